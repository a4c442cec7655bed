"""Mutants (deliberate errors) of trees: random numbers, columns, boosted score, refusals and stored state."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import Any

import numpy as np

from securevfl.data.cosine_features import CosineFeatures
from securevfl.families.shares import shares_participant
from securevfl.families.shares.shares_family import SharesFamily
from securevfl.families.shares.shares_participant import SharesParticipant
from securevfl.models import trees
from securevfl.models.boosted_score import Boosted
from securevfl.models.forest_inputs import ForestInputs
from securevfl.models.trees import Trees
from securevfl.options import JobOptions
from selfcheck.mutants.mutant import Mutant, Stand, patched

_features, _breadth, _fit_inputs, _outcome = (
    ForestInputs._features,
    Trees.breadth,
    SharesParticipant._fit_inputs,
    SharesParticipant.model_state,
)
_cosines, _draw = Trees._cosines, CosineFeatures.__dict__["draw"].__func__


def _filled(self: Any, X: Any, rows: Any) -> Any:
    inputs = _features(self, X, rows)
    return inputs[:, inputs.any(axis=0)]


def _lacking(self: Any, X: Any, rows: Any) -> Any:
    inputs = _features(self, X, rows)
    for source in self.forest.sources:
        if source.missing is not None:
            inputs[X[:, source.missing] > 0, : self.forest.merged.size] = 0
    return inputs


def _by_share(self: Any, X: Any, rows: Any) -> Any:
    inputs = _features(self, X, rows)
    counts = np.maximum(self.forest.counts.ravel(), 1)
    inputs[:, : len(counts)] *= np.sqrt(self.forest.counts.sum(axis=1).max() / counts)
    return inputs


def _known_cosines(cls: Any, X: Any, key: bytes, *, count: int, weight: float) -> Any:
    return _draw(cls, X, bytes(len(key)), count=count, weight=weight)


def _untold(spread: Any) -> Any:
    return replace(spread, opened=False)


def _all_rows(self: Any, data: Any) -> Any:
    rows = np.arange(data.rows)
    all_of_them: Any = Stand(data, schedule=Stand(data.schedule, train=rows, fitting_rows=rows))
    return _fit_inputs(self, all_of_them)


def _in_fold(X: Any, targets: Any, key: bytes, *, classifies: bool, weights: Any = None, order: Any = None) -> Any:
    fitted = Boosted.fit(X, targets, classifies=classifies, weights=weights)
    return fitted(X), fitted


def _with_weights(self: Any) -> Any:
    state = _outcome(self)
    state["theta"] = self.params.encoding.decode_weights(state["own"][0])
    return state


MUTANTS = [
    Mutant(
        "trees of the job's seed",
        "trees are drawn by what all parties know",
        "trees: draws",
        "draws",
        patched((shares_participant, "private_stream", lambda label, *_: hashlib.shake_256(label.encode()).digest)),
    ),
    Mutant(
        "cosines of a key that all know",
        "a party's cosines are drawn from values that others know",
        "trees: draws",
        "cosines",
        patched((CosineFeatures, "draw", classmethod(_known_cosines))),
    ),
    Mutant(
        "cosines with opened weights",
        "a party that receives its weights has inputs that mix its columns",
        "trees: columns",
        "mixed",
        patched((Trees, "_cosines", lambda self, spread: _cosines(self, _untold(spread)))),
    ),
    Mutant(
        "cuts of all rows",
        "trees are drawn by rows that are held out too",
        "trees: draws",
        "held out",
        patched((SharesParticipant, "_fit_inputs", _all_rows)),
    ),
    Mutant(
        "weights in the part",
        "a party keeps weights that the job does not open",
        "trees: draws",
        "weights",
        patched((SharesParticipant, "model_state", _with_weights)),
    ),
    Mutant(
        "leaves without rows left out",
        "a party has inputs for non-empty leaves only, so their number depends on its table",
        "trees: columns",
        "sizes",
        patched((ForestInputs, "_features", _filled)),
    ),
    Mutant(
        "no own score where it is of no use",
        "whether a party has a boosted score depends on its labels",
        "trees: columns",
        "sizes",
        patched((Trees, "breadth", lambda self, spread: _breadth(self, spread) - spread.active)),
    ),
    Mutant(
        "missing rows in no leaf",
        "a row without a number is in no leaf",
        "trees: columns",
        "leaves",
        patched((ForestInputs, "_features", _lacking)),
    ),
    Mutant(
        "leaves scaled by their rows",
        "the value of a leaf depends on its number of rows",
        "trees: columns",
        "leaves",
        patched((ForestInputs, "_features", _by_share)),
    ),
    Mutant(
        "trees drawn again at a resume",
        "stored trees are ignored",
        "trees: columns",
        "kept",
        patched((Trees, "inputs", lambda self, spread, state, make: self._drawn(spread, make))),
    ),
    Mutant(
        "own score in fold",
        "training rows are scored by trees that were fitted to them",
        "trees: columns",
        "fold",
        patched((trees, "out_of_fold", _in_fold)),
    ),
    Mutant(
        "trees under a residual",
        "trees train in protocols that send residuals",
        "trees: residuals",
        "refused",
        patched((SharesFamily, "check_job", lambda self, job: None), (SharesFamily, "options", JobOptions)),
    ),
]
