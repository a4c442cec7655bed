"""Which disclosures add up: over parties that are disclosed together, groups of rows, sessions and threads."""

from __future__ import annotations

import random
import threading
from pathlib import Path
from typing import Any

import pytest
from builders import raises_code

import securevfl as vfl
from securevfl.consent import forecast
from securevfl.consent.forecast import check_together
from securevfl.consent.ledger_session import LedgerSession
from securevfl.disclosure.counts import Disclosure, RunShape, earlier_share
from securevfl.disclosure.ledger import DisclosureLedger
from securevfl.disclosure.ledger_contents import LedgerEntry
from securevfl.disclosure.limits import DisclosureTotal, Limit, sum_disclosures, sum_sessions
from securevfl.disclosure.outputs import disclosures_of
from securevfl.errors import LeakageError
from securevfl.families.run_facts import pooled_run_facts
from securevfl.families.run_outputs import run_outputs
from securevfl.runtime.disclosure_gate import DisclosureGate, DisclosureRecord
from tests.disclosure.test_account import EXAMPLES, example


def told(*about: str, count: int = 5, **keys: Any) -> Disclosure:
    return Disclosure("columns", "bank", about, count, 20, **keys)


@pytest.mark.parametrize(
    ("subject", "before", "adds"),
    [
        (("shop",), ("shop",), True),
        (("shop",), ("shop", "telco"), True),
        (("shop", "telco"), ("telco",), True),
        (("shop", "telco"), ("telco", "mart"), True),
        (("shop",), ("telco",), False),
    ],
)
def test_numbers_about_any_party_that_both_are_about_add_up(
    subject: tuple[str, ...], before: tuple[str, ...], adds: bool
) -> None:
    assert earlier_share(told(*subject), [told(*before)]) == (0.25 if adds else 0.0)
    assert earlier_share(told(*subject), [told(*before)] * 3) == (0.75 if adds else 0.0)


def labels(count: int, **keys: Any) -> Disclosure:
    return Disclosure("labels", "shop", ("bank",), count, 100, **keys)


def test_counts_in_bins_add_to_the_equations_of_their_run() -> None:
    """Counts in bins are about all rows, so they add up with equations; groups of rows do not, as no row is in two."""
    both = [("run", labels(30, group="bins")), ("run", labels(20))]
    assert (sum_disclosures(both).count, sum_disclosures(both).runs) == (50, 1)
    groups = [("run", labels(30)), ("run", labels(20, group="held out"))]
    assert sum_disclosures(groups).count == 30
    assert sum_disclosures([*both, ("another", labels(7))]).count == 57


@pytest.mark.parametrize(("start", "counted"), [(0, 7), (2, 7), (3, 4), (4, 4), (5, 0)])
def test_future_equations_count_when_a_run_resumes(start: int, counted: int) -> None:
    """Equations of a repeated iteration count as well; up to 3 and up to 5 iterations were opened before."""
    ledger_session = LedgerSession.__new__(LedgerSession)
    ledger_session._session, ledger_session._start, ledger_session._opened_session = ("run", "now"), start, "now"
    ledger_session._party = "bank"
    ledger_session._sizes = RunShape("bank", 100, 0, 1, 100, 1, 1, {"shop": 1}, {"bank": 1, "shop": 1})
    entries = [LedgerEntry("t", "run", "", labels(count, steps=(0, end)), "before") for count, end in ((3, 3), (4, 5))]
    assert sum(item.count for item in ledger_session._before(entries)) == counted


@pytest.mark.parametrize("share", [0.001, 0.01, 0.07, 0.25, 0.2500001, 0.254, 0.255, 0.29, 0.57, 0.999, 1.0, 1.2])
def test_the_needed_limit_is_the_smallest_that_allows_a_total(share: float) -> None:
    total = DisclosureTotal(7, share, 1)
    for kind, limit in (("labels", Limit(0.0, share=True)), ("labels", Limit(0.0)), ("scores", Limit(0.0))):
        text = limit.needed(total)
        _, needed = Limit.parse(kind, text)
        _, smaller = Limit.parse(kind, text.replace(text.rstrip("%"), str(int(text.rstrip("%")) - 1)))
        assert needed is not None
        assert smaller is not None
        assert needed.allows(total)
        assert not smaller.allows(total)


@pytest.mark.parametrize("seed", range(8))
def test_sessions_count_for_the_step_that_most_of_them_opened(seed: int) -> None:
    """Sessions overlap, follow or repeat each other; counts are compared with a loop over single steps."""
    draw = random.Random(seed)
    ends = [0, 1, 2, 3, 5, 8]
    items = [labels(draw.randint(1, 9), steps=tuple(sorted(draw.sample(ends, 2)))) for _ in range(draw.randint(1, 6))]
    unlimited = [labels(draw.randint(1, 9)) for _ in range(draw.randint(0, 2))]
    by_step = [0] * ends[-1]
    for item in items:
        assert item.steps is not None
        for step in range(*item.steps):
            by_step[step] += item.count
    total = max(by_step) + sum(item.count for item in unlimited)
    assert sum_sessions([*items, *unlimited]) == (total, pytest.approx(total / 100))
    following = [labels(7, steps=(start, start + 1)) for start in range(5)]
    assert sum_disclosures([("run", item) for item in following]).count == 7


def test_sessions_of_one_run_come_to_its_limit_together(tmp_path: Path) -> None:
    """A session replaces only itself in the ledger: disclosures of the run's other sessions count in addition."""
    ledger, register = (
        DisclosureLedger(tmp_path / "bank", "bank"),
        vfl.Party("bank", [[1.0], [2.0]], ids=[1, 2]).register,
    )
    ledger.set_limit("scores", Limit(25))
    scores = Disclosure("scores", "shop", ("bank",), 10, 0)
    seen = list[int]()
    for session in ("one", "two"):
        for _ in range(2):
            ledger.record(register, ("run", session), [scores], lambda before: seen.append(len(before)))
    assert seen == [0, 0, 1, 1]
    with raises_code(LeakageError, "SVFL-LIMIT-REACHED"):
        ledger.record(register, ("run", "three"), [scores])


def test_threads_tell_of_rows_of_their_own() -> None:
    """Two threads that disclose values of new rows and of training rows at the same time record both correctly."""
    gate, inside, done = DisclosureGate("bank"), threading.Event(), threading.Event()
    notes = list[DisclosureRecord]()
    gate._note = notes.append

    def other() -> None:
        assert inside.wait(60)
        gate.permit(DisclosureRecord("shop", "columns", 1, 64, about=("bank",)))
        with gate.about_rows("held out"):
            gate.permit(DisclosureRecord("shop", "columns", 1, 64, about=("bank",)))
        done.set()

    thread = threading.Thread(target=other)
    thread.start()
    with gate.about_rows("new"):
        inside.set()
        assert done.wait(60)
        gate.permit(DisclosureRecord("shop", "columns", 1, 64, about=("bank",)))
        with gate.about_rows("bins"):
            gate.permit(DisclosureRecord("shop", "columns", 1, 64, about=("bank",)))
        gate.permit(DisclosureRecord("shop", "columns", 1, 64, about=("bank",)))
    thread.join(60)
    gate.permit(DisclosureRecord("shop", "columns", 1, 64, about=("bank",)))
    assert [entry.group for entry in notes] == ["training", "held out", "new", "bins", "new", "training"]
    assert gate.group == "training"


@pytest.mark.parametrize("name", sorted(EXAMPLES))
def test_each_of_several_jobs_is_checked_beside_all_before_it(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    job, parties = example(name)
    sizes, earlier = pooled_run_facts(job, parties).shape, list[list[Disclosure]]()
    monkeypatch.setattr(forecast, "leaks", lambda job, sizes, before: earlier.append([*before]) or [])
    check_together([(job, sizes)] * 4, [], {})
    assert earlier == [disclosures_of(run_outputs(job.family, job, sizes)) * earlier_jobs for earlier_jobs in range(4)]
