"""Each party computes the plan, the preparation and the schedule of a training once, in every family."""

from __future__ import annotations

import threading
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import securevfl as vfl
from securevfl.data.party import Helper
from securevfl.data.schedule import Schedule
from securevfl.disclosure.ledger import DisclosureLedger
from securevfl.families import table_preparation
from securevfl.families.shares import shares_facts, shares_family
from securevfl.families.training_data import TrainingData
from securevfl.runtime.clock import VirtualClock
from securevfl.runtime.network import Network
from securevfl.runtime.party_threads import run_threads
from securevfl.training.checkpoint import Checkpoints
from securevfl.training.session import take_part
from tests.disclosure.disclosed_jobs import cases

CASES = {name: case for name, case in cases().items() if "rollbacks" not in name}  # a rollback changes the plan
PARTIES = ("bank", "shop", "telco", "server")


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Counter[tuple[str, str]]:
    """Count calls by what they compute and by the thread that runs them; each party of a run is a thread."""
    counter: Counter[tuple[str, str]] = Counter()

    def count(owner: Any, name: str, what: str) -> None:
        original = getattr(owner, name)

        def counted(*args: Any, **options: Any) -> Any:
            counter[what, threading.current_thread().name] += 1
            return original(*args, **options)

        monkeypatch.setattr(owner, name, counted)

    count(table_preparation, "fit_preparation", "preparation")
    count(Schedule, "__init__", "schedule")
    count(TrainingData, "__init__", "training data")
    count(shares_facts, "make_plan", "plan")
    count(shares_family, "make_plan", "plan")
    return counter


def check_once(calls: Counter[tuple[str, str]], parties: list[Any], *, shares: bool) -> None:
    by_party = {name: {what: n for (what, thread), n in calls.items() if thread == name} for name in PARTIES}
    for party in parties:
        has_table = not isinstance(party, Helper)
        expected = {"schedule": 1, "training data": 1}
        expected |= {"preparation": 1} if has_table else {}
        expected |= {"plan": 1} if shares else {}
        assert by_party[party.name] == expected, party.name


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", {job.family.name: name for name, (job, _) in CASES.items()}.values())
def test_a_run_in_one_process_computes_its_facts_once(name: str, calls: Counter[tuple[str, str]]) -> None:
    job, parties = CASES[name]
    vfl.simulate(job, parties)
    check_once(calls, parties, shares=job.family.name == "shares")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", CASES)
def test_a_run_with_consent_and_ledgers_computes_its_facts_once(
    name: str, calls: Counter[tuple[str, str]], tmp_path: Path
) -> None:
    """Each party takes part as `join` does: with a ledger, checkpoints and a consent sheet."""
    job, parties = CASES[name]
    sheets: list[vfl.consent.consent_sheet.ConsentSheet] = []
    roles = {
        party.name: partial(
            take_part,
            job,
            party,
            parties=[item.name for item in parties],
            checkpoints=Checkpoints(tmp_path / party.name, party.name),
            ledger=DisclosureLedger(tmp_path / f"{party.name}.ledger", party.name),
            consent=sheets.append,
        )
        for party in parties
    }
    run_threads(roles, lambda: VirtualClock(Network()))
    assert len(sheets) == len(parties)
    check_once(calls, parties, shares=job.family.name == "shares")
