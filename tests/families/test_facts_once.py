"""Each party computes the plan, the preparation and the schedule of a training once, in every family.

`tests/disclosure/test_disclosed_the_same.py` tests runs in one process, also with other options.
"""

from __future__ import annotations

from collections import Counter
from functools import partial
from pathlib import Path

import pytest

import securevfl as vfl
from securevfl.disclosure.ledger import DisclosureLedger
from securevfl.runtime.clock import VirtualClock
from securevfl.runtime.network import Network
from securevfl.runtime.party_threads import run_threads
from securevfl.training.checkpoint import Checkpoints
from securevfl.training.session import take_part
from tests.disclosure.disclosed_jobs import EXAMPLES, cases
from tests.families.counted_calls import check_once, counted_calls

CASES = cases()
# until the first message, these runs with consent compute the same facts as that of another example
LIKE_OTHERS = (
    "neural", "kernel direct", "kernel pairwise", "transfer linearised", "shares, counts", "shares, weights opened",
    "shares, scores to another",
)  # fmt: skip


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Counter[tuple[str, str]]:
    """Count calls by what they compute and by the thread that runs them."""
    return counted_calls(monkeypatch)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.slow] * (name in LIKE_OTHERS)) for name in CASES if name in EXAMPLES],
)
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
