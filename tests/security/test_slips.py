"""Errors that were once undetected: each is planted by hand, and the test of its class fails.

Errors that a check of the self-check detects are mutants of its table (`tests/selfcheck/mutants`); tests detect these.
"""

import runpy
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from selfcheck.checks import two_runs
from selfcheck.checks.check_table import parts
from selfcheck.mutants.mutant import Patch, edited

import securevfl as vfl
from securevfl.audit.recording.transcript import Transcript
from securevfl.audit.recording.transcript_recording import record_sum
from securevfl.families import training_data
from securevfl.families.fdml.fdml_worker import FdmlWorker
from securevfl.families.rounds import rounds_participant
from securevfl.families.training_data import TrainingData
from securevfl.models import row_weights
from securevfl.optim.fedbcd import FedBCD
from securevfl.protocols.number_spaces import Reals

TESTS = Path(__file__).parents[1]


def body_of(path: str, name: str) -> Callable[..., None]:
    text: Callable[..., None] = runpy.run_path(str(TESTS / path))[name]
    return text


HELD_OUT_TEST, BALANCED = "training/test_held_out.py", {"classes": "balanced"}
SLIPS: dict[str, tuple[Callable[[], Patch], str, str, dict[str, Any]]] = {
    "robust scaling by all rows": (
        lambda: edited(training_data, "_fit_scaling", ("(party.X, train)", "(party.X, np.arange(len(party)))")),
        HELD_OUT_TEST,
        "test_no_bit_of_a_weight",
        {"method": "FedSGD", "scale": "robust", "weights": None},
    ),
    "balanced weights by all rows": (
        lambda: edited(row_weights, "_class_weights", ("class_index[train], minlength", "class_index, minlength")),
        HELD_OUT_TEST,
        "test_no_bit_of_a_weight",
        {"method": "FedSGD", "scale": "none", "weights": BALANCED},
    ),
    "numbers scaled by all rows": (
        lambda: edited(
            TrainingData,
            "__init__",
            ("None if loss.classifies else np.sort(schedule.batch_order)", "None"),
        ),
        HELD_OUT_TEST,
        "test_no_bit_under_any_loss",
        {"loss": "square", "scale": "none"},
    ),
    "first weights from all rows": (
        lambda: edited(TrainingData, "initial_rows", ("self.schedule.by_ids", "np.arange(self.rows)")),
        HELD_OUT_TEST,
        "test_no_bit_under_any_loss",
        {"loss": "logistic", "scale": "none"},
    ),
    "decay dropped with adaptive steps": (
        lambda: edited(FedBCD, "_step", (" * self.shrunk(t, party.parties)", "")),
        "optim/test_curvature_steps.py",
        "test_a_step_is_that_of_the_bound_on_the_curvature",
        {"decay": "sqrt_t", "before": 1},
    ),
    "own part left as it was pushed": (
        lambda: edited(FdmlWorker, "_step", ("self._finished > pending.steps or self._noise is not None", "False")),
        "families/test_fdml_steps.py",
        "test_steps_are_taken_at_the_weights_of_their_time",
        {"tau": 2, "decay": "none"},
    ),
}


@pytest.mark.parametrize("name", SLIPS)
def test_the_test_of_its_class_fails(name: str) -> None:
    patch, path, test, arguments = SLIPS[name]
    run = body_of(path, test)
    with mock.patch.object(*patch()), pytest.raises(AssertionError):
        run(**arguments)


def transcripts_of_two() -> list[Transcript]:
    """Return transcripts of two sessions of one sum that differ in their numbers only."""
    sums = vfl.PairwiseSum()
    return [record_sum(sums, parts(seed, Reals(), rounds=2, rows=8), Reals()) for seed in range(2)]


def larger(run: Transcript) -> None:
    run.events[:] = [replace(event, nbytes=event.nbytes + 1) for event in run.events]


def fewer(run: Transcript) -> None:
    last = max(place for place, event in enumerate(run.events) if event.direction == "recv")
    del run.events[last]


SHAPES: dict[str, tuple[Callable[[Transcript], None], tuple[str, str]]] = {
    "sizes": (larger, ("event.nbytes, ", "0, ")),
    "number of messages": (fewer, ("if len(shapes[0].get(place, [])) != len(shapes[1].get(place, [])):", "if False:")),
}


@pytest.mark.parametrize("name", SHAPES)
def test_shapes_are_compared_in_every_respect(name: str) -> None:
    """Without any one branch of `same_shape`, the difference that it detects goes undetected."""
    change, branch = SHAPES[name]
    runs = transcripts_of_two()
    assert not two_runs.same_shape(*runs).findings
    change(runs[1])
    assert two_runs.same_shape(*runs).findings
    assert not edited(two_runs, "same_shape", branch)[2](*runs).findings


def test_first_weights_differ_between_tables() -> None:
    """Other labels of the same training rows give another start."""
    assert rounds_participant.INITIAL_WEIGHT_ROWS > 0
    bank, shop = vfl.datasets.breast_cancer()
    assert bank.y is not None
    other = vfl.Party("bank", bank.X, 1 - np.asarray(bank.y), aligned=True)
    job = vfl.Job(
        model=vfl.Logistic(),
        optimizer=vfl.FedSGD(lr=1e-9),
        protocol=vfl.Protocol(residual="open"),
        epochs=1,
        batch_size="all",
        test_fraction=0.3,
    )
    starts = [vfl.simulate(job, [item, shop]).parts["bank"].theta for item in (bank, other)]
    assert np.abs(starts[0] - starts[1]).max() > 1e-3
