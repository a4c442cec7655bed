"""A party's ledger contains an evaluation before its sum of losses is opened, and a model before it is returned."""

from __future__ import annotations

import errno
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from builders import SHARES_JOB, make_job

import securevfl as vfl
from securevfl.errors import LeakageError, StorageError
from securevfl.protocols.score_ledger.row_ledger import ScoreLedger
from securevfl.protocols.shares.opened_loss import LossSum
from securevfl.runtime.observer import Event

JOB = make_job(SHARES_JOB, evaluate_every=2, batch_size="all", accepts=["small_metrics"])
SUMS = 2


pytestmark = pytest.mark.usefixtures("score_ledgers")


def replace_in_ledger(monkeypatch: pytest.MonkeyPatch, function: Callable[..., None]) -> None:
    """Replace the method of score ledgers that has the function's name."""
    monkeypatch.setattr(ScoreLedger, function.__name__, function)


def sums_and_records(
    monkeypatch: pytest.MonkeyPatch, parties: int, record: Callable[[str], None]
) -> tuple[list[str], BaseException | None]:
    """Train, and return in order who recorded an evaluation, with "sum" for each opened sum, and the run's error."""
    order: list[str] = []

    def record_evaluation(self: ScoreLedger, peer: str, ids: Any, *, me: str, **keys: Any) -> None:
        record(me)
        order.append(me)

    def watch(event: Event) -> None:
        if isinstance(event.message, LossSum) and event.direction == "send":
            order.append("sum")

    replace_in_ledger(monkeypatch, record_evaluation)
    try:
        vfl.simulate(JOB, vfl.datasets.breast_cancer(parties), workers=1, observe=watch)
    except LeakageError as error:
        return order, error
    return order, None


@pytest.mark.parametrize("parties", [2, 3])
def test_every_ledger_has_an_evaluation_before_its_sum(parties: int, monkeypatch: pytest.MonkeyPatch) -> None:
    order, error = sums_and_records(monkeypatch, parties, lambda me: time.sleep(0.2))
    assert error is None
    names = {party.name for party in vfl.datasets.breast_cancer(parties)} - {"bank"}
    assert [order[start : start + parties][-1] for start in range(0, len(order), parties)] == ["sum"] * SUMS
    assert all(set(order[start : start + parties - 1]) == names for start in range(0, len(order), parties))


@pytest.mark.parametrize("parties", [2, 3])
@pytest.mark.parametrize("position", [1, -1])
def test_no_sum_is_opened_if_a_ledger_refuses(parties: int, position: int, monkeypatch: pytest.MonkeyPatch) -> None:
    refusing = vfl.datasets.breast_cancer(parties)[position].name

    def record(me: str) -> None:
        if me == refusing:
            raise LeakageError("too many evaluations", code="SVFL-LIMIT-REACHED")

    order, error = sums_and_records(monkeypatch, parties, record)
    assert isinstance(error, LeakageError)
    assert "sum" not in order


def test_a_model_is_returned_after_every_ledger_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    recorded = []

    def record_model(self: ScoreLedger, model: bytes, *arguments: Any) -> None:
        time.sleep(2.0)
        recorded.append(model)

    replace_in_ledger(monkeypatch, record_model)
    vfl.simulate(JOB, vfl.datasets.breast_cancer(2), workers=1)
    assert len(recorded) == 2


def test_a_ledger_that_cannot_be_written_ends_the_run_early(monkeypatch: pytest.MonkeyPatch) -> None:
    def check_writable(self: ScoreLedger) -> None:
        raise StorageError(Path("scores"), OSError(errno.ENOSPC, "No space left on device"))

    replace_in_ledger(monkeypatch, check_writable)
    opened = []

    def watch(event: Event) -> None:
        if isinstance(event.message, LossSum):
            opened.append(event)

    with pytest.raises(StorageError):
        vfl.simulate(make_job(SHARES_JOB, batch_size="all"), vfl.datasets.breast_cancer(2), workers=1, observe=watch)
    assert not opened


def test_no_model_is_returned_if_the_ledger_cannot_be_written(monkeypatch: pytest.MonkeyPatch) -> None:
    def record_model(*arguments: Any) -> None:
        raise StorageError(Path("scores"), OSError(errno.ENOSPC, "No space left on device"))

    replace_in_ledger(monkeypatch, record_model)
    with pytest.raises(StorageError, match="No space left"):
        vfl.simulate(JOB, vfl.datasets.breast_cancer(2), workers=1)
