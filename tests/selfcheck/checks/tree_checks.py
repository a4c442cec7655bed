"""Checks of trees: who draws them and from which data, what their columns are, and what a saved part omits."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from securevfl.audit.transcript_checks import Outcome
from securevfl.data.party import Party
from securevfl.data.preparation import SourceColumn
from securevfl.data.scaling import on_grid
from securevfl.errors import ConfigError
from securevfl.job import Job
from securevfl.models.forest_inputs import ForestInputs
from securevfl.models.inputs import FittingData, InputShape
from securevfl.models.metrics import area_under_curve
from securevfl.models.trees import Trees
from securevfl.training.simulate import simulate

ROWS, TREES, DEPTH = 200, 5, 3
MODEL = Trees(trees=TREES, depth=DEPTH)
SOURCES = (SourceColumn("a", (0,)), SourceColumn("b", (1,), 2), SourceColumn("c", (3,)))


def _seen(X: Any, key: int = 0) -> FittingData:
    y = np.where(np.random.default_rng(1).random(len(X)) < 0.5, 1.0, -1.0)[:, None]
    return FittingData("bank", X, SOURCES, y, None, key=bytes([key] * 32))


def _matrix(seed: int, *, flat: bool = False) -> Any:
    rng = np.random.default_rng(seed)
    X = np.zeros((ROWS, 4)) if flat else rng.normal(size=(ROWS, 4))
    X[:, 2] = rng.random(ROWS) < 0.2
    return X


def columns() -> Outcome:
    """Check the columns that trees compute, one for each leaf.

    Their number follows from public sizes alone. Each row has one leaf of each tree, and all leaves have one value.
    The state of a training restores the same trees, and boosted scores of random labels do not predict them.
    """
    outcome, spread = Outcome(), InputShape(active=True, columns=4, outputs=1, parties=2, rows=ROWS)
    count, leaves_per_tree = MODEL.count(spread), 2**DEPTH
    for flat in (False, True):
        X = _matrix(0, flat=flat)
        forest_inputs = MODEL.inputs(spread, None, partial(_seen, X))
        assert isinstance(forest_inputs, ForestInputs), "trees have these"
        inputs = forest_inputs.trained(X, np.arange(ROWS))
        if not inputs.shape[1] == MODEL.breadth(spread) == count * leaves_per_tree + 4 + 1 + 1:
            outcome.add(
                "sizes", "bank", f"{inputs.shape[1]} inputs come of a table for which others expect another number"
            )
            return outcome
        leaves = inputs[:, : count * leaves_per_tree].reshape(ROWS, count, leaves_per_tree)
        if ((leaves != 0).sum(axis=2) != 1).any():
            outcome.add("leaves", "bank", "some rows have no leaf in a tree, or several")
        if not np.isin(leaves, [0.0, float(on_grid(np.array(forest_inputs.leaf_weight * count**-0.5), 1.0))]).all():
            outcome.add("leaves", "bank", "the value of a leaf depends on the table")
    forest_inputs = MODEL.inputs(spread, None, partial(_seen, _matrix(0)))
    assert isinstance(forest_inputs, ForestInputs), "trees have these"
    state = forest_inputs.state(whole=True)
    again = MODEL.inputs(spread, state, lambda: _seen(_matrix(0), key=9))
    assert isinstance(again, ForestInputs), "trees have these"
    if not np.array_equal(again.forest.cuts, np.minimum(forest_inputs.forest.cuts, np.finfo(np.float64).max)):
        outcome.add("kept", "bank", "a training that is taken up again has other trees")
    opened_shape = InputShape(active=False, columns=4, outputs=1, parties=2, rows=ROWS, opened=True)
    if MODEL.inputs(opened_shape, None, partial(_seen, _matrix(0))).state(whole=True)["cosines"] is not None:
        outcome.add("mixed", "bank", "a party that receives its weights has cosines, which mix its columns")
    wide = np.random.default_rng(3).normal(size=(ROWS, 4))
    scored = MODEL.inputs(spread, None, lambda: _seen(wide))
    fold_scores = scored.trained(wide, np.arange(ROWS))[:, -2]
    if abs(area_under_curve(_seen(wide).targets[:, 0] > 0, fold_scores) - 0.5) > 0.2:  # type: ignore[index]
        outcome.add("fold", "bank", "the score of a training row has seen its label")
    return outcome


def _run(held_out: float = 0.0, trained: float = 0.0, seed: int = 0) -> Any:
    """Return the shop's stored state of a run, after adding numbers to held-out rows and to a training row."""
    rng = np.random.default_rng(0)
    A, B = rng.normal(size=(2, 80, 2))
    y = (A[:, 0] + B[:, 0] > 0).astype(int)
    model = Trees(trees=9, depth=3, boosted_score=False)
    job = Job.from_dict({"model": model, "test_fraction": 0.25, "epochs": 1, "seed": seed})
    schedule = job.schedule(80)
    B[schedule.test] += held_out
    B[schedule.train[0]] += trained
    run = simulate(job, [Party("bank", A, y, aligned=True), Party("shop", B, aligned=True)], workers=1)
    return run.parts["shop"].state


def drawn() -> Outcome:
    """Trees depend only on the party's own training rows and the seed, so that nobody else can draw them.

    Held-out rows change no cut. A saved part has no weights that nobody asked for.
    """
    outcome = Outcome()
    first, again, other, seeded, later = _run(), _run(), _run(trained=1.0), _run(seed=1), _run(held_out=50.0)
    sides = [item["inputs"]["forest"]["sides"] for item in (first, again, other, seeded)]
    if not np.array_equal(sides[0], sides[1]):
        outcome.add("repeated", "shop", "two runs of one job draw other trees")
    for what, changed in (("a row", sides[2]), ("the seed", sides[3])):
        if np.array_equal(sides[0], changed):
            outcome.add("draws", "shop", f"trees do not follow from {what}, so that others could draw them")
    if "theta" in first:
        outcome.add("weights", "shop", "its part holds its weights, which the job does not open")
    if not np.array_equal(*(item["inputs"]["forest"]["cuts"] for item in (first, later))):
        outcome.add("held out", "shop", "cuts follow from rows that are held out")
    turned = [item["inputs"]["cosines"]["directions"] for item in (first, again, other, seeded)]
    if not np.array_equal(turned[0], turned[1]):
        outcome.add("repeated", "shop", "two runs of one job draw other cosines")
    for what, changed in (("a row", turned[2]), ("the seed", turned[3])):
        if np.array_equal(turned[0], changed):
            outcome.add("cosines", "shop", f"cosines do not follow from {what}, so that others could draw them")
    if not np.array_equal(*(item["inputs"]["cosines"]["columns"]["mean"] for item in (first, later))):
        outcome.add("held out", "shop", "cosines are scaled by rows that are held out")
    return outcome


def refused() -> Outcome:
    """Check that trees are refused with a residual, in the clear or encrypted."""
    outcome = Outcome()
    for residual in ("open", "ckks"):
        try:
            Job.from_dict({"model": MODEL, "protocol": residual})
        except ConfigError:
            continue
        outcome.add("refused", "shop", f"trees train under a residual ({residual}), which discloses labels")
    return outcome


CHECKS = {"trees: columns": columns, "trees: draws": drawn, "trees: residuals": refused}
