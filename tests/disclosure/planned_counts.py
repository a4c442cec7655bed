"""Compare the entries of ledgers with the disclosures that leak checks expect of a run to its planned end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import securevfl as vfl
from securevfl.data.party import Helper
from securevfl.disclosure.ledger_contents import LedgerEntry
from securevfl.disclosure.outputs import disclosures_of
from securevfl.families.run_facts import pooled_run_facts


def planned(job: vfl.Job, parties: Sequence[vfl.Party | Helper]) -> dict[str, tuple[Counter[Any], Counter[Any]]]:
    """Return for each party the numbers that it sends and the counts about it, by kind, learner, owner and rows."""
    expected = disclosures_of(pooled_run_facts(job, parties).outputs)
    plan: dict[str, tuple[Counter[Any], Counter[Any]]] = {}
    for party in parties:
        numbers, counts = plan[party.name] = Counter[Any](), Counter[Any]()
        for item in expected:
            if party.name in item.about:
                numbers[item.key] += item.sent_by(party.name).numbers
                counts[item.key] += item.count
    return plan


def debited_numbers(entries: Iterable[LedgerEntry]) -> Counter[Any]:
    """Return the recorded numbers by kind, learner, owner of the data, and rows."""
    debited: Counter[Any] = Counter()
    for entry in entries:
        debited[entry.disclosure.key] += entry.disclosure.numbers
    return debited


def assert_as_planned(
    entries: Sequence[LedgerEntry], numbers: Counter[Any], counts: Counter[Any], *, ends_early: bool
) -> None:
    """Compare a party's entries with its plan; a run that ends early records at most as many numbers."""
    debited = debited_numbers(entries)
    if ends_early:
        assert all(debited[key] <= numbers[key] for key in debited)
        return
    assert debited == numbers
    assert {entry.disclosure.key: entry.disclosure.count for entry in entries} == counts
