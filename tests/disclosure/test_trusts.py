"""A ledger's owner may trust single peers to repeat the same request; each peer counts separately, in every run."""

from __future__ import annotations

from pathlib import Path

import pytest

import securevfl as vfl
from securevfl.disclosure.ledger import total_to
from tests.disclosure.test_account import kept, sealed, tables


@pytest.mark.parametrize("trusted", [("shop",), ("telco",)])
def test_equations_count_once_to_those_who_are_trusted_alone(trusted: tuple[str, ...], tmp_path: Path) -> None:
    parties = tables(3)
    ledgers = kept(tmp_path, parties)
    for peer in trusted:
        ledgers["bank"].trust(peer)
    ledgers["shop"].trust("telco")  # the bank does not know about this
    job = sealed(accepts=["columns", "fresh_equations"], batch_size=90)
    for _ in range(2):
        vfl.simulate(job, parties, ledgers=ledgers)
    entries = ledgers["bank"].read().entries
    counts = {peer: total_to(entries, "labels", peer).count for peer in ("shop", "telco")}
    assert counts == {peer: 3 if peer in trusted else 6 for peer in counts}
