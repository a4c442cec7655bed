"""A run that is interrupted after any iteration and resumed counts what an uninterrupted run counts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import fields
from functools import cache, partial
from itertools import product
from pathlib import Path
from typing import Any

import pytest

import securevfl as vfl
from securevfl.data.baseline import Baseline
from securevfl.disclosure.ledger import DisclosureLedger
from securevfl.errors import DataError
from securevfl.families.score_results import Measurement
from securevfl.protocols.handshake import RunHello, StopDecision
from securevfl.training.checkpoint import Checkpoints
from securevfl.training.evaluation_records import FINAL_EVALUATION, EvaluationFile, KnownEvaluations
from tests.builders import cancer_parties, raises_code

EPOCHS, INTERVAL = 5, 2
ONCE = (
    ("bank", ("labels", "shop", "verdicts")),
    ("shop", ("scores", "bank", "held out")),
    ("shop", ("columns", "bank", "evaluations")),
)
"""What a resumed run discloses no second time: the owner; kind, learner and group."""
JOBS: dict[str, dict[str, Any]] = {
    "rounds, open": {"protocol": "open", "batch_size": "all", "accepts": ["columns", "rank"]},
    "rounds, CKKS": {"protocol": vfl.Protocol(residual=vfl.Ckks()), "batch_size": "all", "accepts": ["columns"]},
    "shares": {"protocol": "shares", "accepts": ["small_metrics"]},
    "trees": {
        "model": vfl.Trees(depth=1, trees=3, boosted_score=False),
        "protocol": "shares",
        "accepts": ["small_metrics"],
    },
}


class Stopped(Exception):
    """The operator has stopped the process."""


def counted(
    name: str, folder: Path, stop: int | None, interrupted: Callable[[], AbstractContextManager[object]] = nullcontext
) -> dict[str, Counter[tuple[str, str, str]]]:
    """Return the counts of both parties' ledgers, by kind, learner and group, after a run that stops once.

    Args:
        name: name of the job.
        folder: a folder for ledgers and checkpoints.
        stop: the iteration after which the run stops and is resumed; None for a run that `interrupted` may stop.
        interrupted: a context in which the first of the two runs takes place.
    """
    keys = {"model": vfl.Logistic(), "epochs": EPOCHS, "test_fraction": 0.3, "evaluate_every": INTERVAL}
    keys |= JOBS[name] | {"target": {"metric": "loss", "value": 0.0001}}
    keys["accepts"] = [*keys["accepts"], "fresh_equations", "label_auc"]
    job, parties = vfl.Job(**keys), cancer_parties()
    ledgers = {party.name: DisclosureLedger(folder / f"{party.name}.ledger", party.name) for party in parties}
    checkpoints = {party.name: Checkpoints(folder / party.name, party.name, every=1) for party in parties}

    def on_round(done: int, of: int) -> None:
        if done == stop:
            raise Stopped

    if stop is not None or interrupted is not nullcontext:
        with pytest.raises(Stopped), interrupted():
            vfl.simulate(job, parties, ledgers=ledgers, checkpoints=checkpoints, on_round=on_round)
    vfl.simulate(job, parties, ledgers=ledgers, checkpoints=checkpoints)
    counts = {party: Counter[tuple[str, str, str]]() for party in ledgers}
    for party, ledger in ledgers.items():
        for entry in ledger.read().entries:
            item = entry.disclosure
            counts[party][item.kind, item.learner, item.group] += item.count
    return counts


@pytest.fixture(scope="module")
def complete_runs(
    tmp_path_factory: pytest.TempPathFactory,
) -> Callable[[str], dict[str, Counter[tuple[str, str, str]]]]:
    """Return a function that counts an uninterrupted run of a job, which takes place once for all tests."""
    return cache(lambda name: counted(name, tmp_path_factory.mktemp("complete"), None))


STOPS = [
    # trees on shares stop as the weights do, whatever the iteration
    pytest.param(name, stop, marks=pytest.mark.slow if name == "trees" and stop not in (2, 3) else ())
    for name in JOBS
    for stop in range(1, EPOCHS)
]


@pytest.mark.parametrize(("name", "stop"), STOPS)
def test_a_stopped_run_counts_exactly_the_sent_values(
    name: str, stop: int, tmp_path: Path, complete_runs: Callable[[str], dict[str, Counter[tuple[str, str, str]]]]
) -> None:
    """After a stop between an evaluation and its checkpoint, neither the evaluation nor its decision is sent again."""
    complete, resumed = complete_runs(name), counted(name, tmp_path, stop)
    for party, counts in complete.items():
        again = resumed[party]
        lacking = {key: (count, again[key]) for key, count in counts.items() if again[key] < count}
        assert not lacking, party
    for party, key in ONCE:
        assert resumed[party][key] == complete[party][key], key


@contextmanager
def stopped_at_store(party: str, number: int, *, stored: bool) -> Iterator[None]:
    """Stop a party just before or just after it has stored an evaluation."""
    store = EvaluationFile.store

    def stop(self: EvaluationFile, evaluation: int, *results: Any) -> None:
        here = evaluation == number and self._path is not None and self._path.parent.name == party
        if stored or not here:
            store(self, evaluation, *results)
        if here:
            raise Stopped

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(EvaluationFile, "store", stop)
        yield


def is_slow(name: str, party: str, number: int) -> bool:
    """Return whether another evaluation of this party proves the same: the shop's own result is its decision alone."""
    return number == 2 * INTERVAL or (name, party, number) == ("shares", "shop", INTERVAL)


AROUND = [
    pytest.param(*case, marks=pytest.mark.slow if is_slow(*case) else ())
    for case in product(("rounds, CKKS", "shares"), ("bank", "shop"), (INTERVAL, 2 * INTERVAL, FINAL_EVALUATION))
]


@pytest.mark.parametrize(("name", "party", "number"), AROUND)
def test_a_run_that_is_stopped_around_an_evaluation(
    name: str,
    party: str,
    number: int,
    tmp_path: Path,
    complete_runs: Callable[[str], dict[str, Counter[tuple[str, str, str]]]],
) -> None:
    """The bank measures again only if it is stopped after it has received a result and
    before the result is on its disk.
    """
    complete = complete_runs(name)
    for stored in (True, False):
        stop = partial(stopped_at_store, party, number, stored=stored)
        resumed = counted(name, tmp_path / f"stored {stored}", None, stop)
        repeats = party == "bank" and not stored
        for owner, key in ONCE:
            once, now = complete[owner][key], resumed[owner][key]
            if key[0] in ("scores", "columns"):
                assert (now > once) if repeats and once else (now == once), (key, stored)
            else:
                assert now >= once


@pytest.mark.parametrize("parties", [2, 3, 4])
@pytest.mark.parametrize("lead", [0, 1])
def test_only_evaluations_that_all_have_are_not_repeated(parties: int, lead: int) -> None:
    """Each party in turn lacks an evaluation that all others have; the result is compared with a loop."""
    names = [f"party{k}" for k in range(parties)]
    for lacking in names:
        evaluated = {name: {1, 2, FINAL_EVALUATION} - ({2} if name == lacking else set()) for name in names}
        hellos = {
            name: RunHello(b"", "", 1, 1, 0, 1, b"", (), "", "", tuple(sorted(evaluated[name]))) for name in names
        }
        for has_final_weights in (True, False):
            known = KnownEvaluations.of(EvaluationFile(None), hellos, names[lead], has_final_weights=has_final_weights)
            usable = {1, 2, FINAL_EVALUATION} if has_final_weights else {1, 2}
            assert known.measured == {number for number in usable if number in evaluated[names[lead]]}
            assert known.decided == {number for number in usable if all(number in of for of in evaluated.values())}


def test_stored_evaluations_are_those_that_were_measured(tmp_path: Path) -> None:
    baseline = Baseline(column="score", rows=3, missing=0, points=(0.5,), below=(1,), under=(0,))
    measurement = Measurement(
        metrics={"auc": 0.75},
        calibration=[[0.1, 0.2, 3.0]],
        standard_errors={"auc": 0.01},
        score_baseline=baseline,
        start_loss=0.7,
        loss_rounding=0.01,
        by_class={"late": {"auc": 0.8}},
        notes=["a statement"],
    )
    assert all(getattr(measurement, item.name) != getattr(Measurement(), item.name) for item in fields(Measurement))
    file = EvaluationFile(tmp_path / "evaluations")
    file.store(3, measurement, StopDecision(stop=True, is_best=False, roll_back=False))
    again = EvaluationFile(tmp_path / "evaluations")
    assert again.numbers == (3,)
    assert again.measurement(3) == measurement
    assert again.measurement(6) == Measurement()
    assert again.decision(3) == StopDecision(stop=True, is_best=False, roll_back=False)
    content = (tmp_path / "evaluations").read_bytes()
    (tmp_path / "evaluations").write_bytes(content[:5] + bytes([content[5] ^ 1]) + content[6:])
    with raises_code(DataError, "SVFL-CHECKPOINT"):
        EvaluationFile(tmp_path / "evaluations")
