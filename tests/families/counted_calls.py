"""Count how often each party of a run computes its plan, its preparation and its schedule."""

from __future__ import annotations

import threading
from collections import Counter
from typing import Any

import pytest

from securevfl.data.party import Helper
from securevfl.data.schedule import Schedule
from securevfl.families import table_preparation
from securevfl.families.shares import shares_facts, shares_family
from securevfl.families.training_data import TrainingData

PARTIES = ("bank", "shop", "telco", "server")


def counted_calls(monkeypatch: pytest.MonkeyPatch) -> Counter[tuple[str, str]]:
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
