"""Alignment between organisations: its limit, its entries in the ledger, repeats and simultaneous commands."""

import gc
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from securevfl.disclosure.ledger import DisclosureLedger, total_to
from securevfl.disclosure.limits import Limit
from securevfl.errors import ConfigError, DataError, LeakageError, SecureVFLError
from securevfl.organisations.align import align_with
from securevfl.organisations.join import join
from securevfl.organisations.peer_settings import PeerSettings
from securevfl.protocols.alignment.journal_folder import FolderJournal
from tests.builders import cancer_parties, raises_code

IDS = {"bank": range(100), "shop": range(50, 200)}


def align(
    meeting: Any, name: str, on_rows: Callable[[Any], object] = lambda rows: None, rule: int | None = None
) -> np.ndarray | SecureVFLError:
    kit = meeting.kit(name)
    settings = PeerSettings.of(kit / "peers.toml", timeout=20, patience=5)
    try:
        return align_with(
            name, IDS[name], settings, ledger=kit / "ledger", journal=kit / "table.align", rule=rule, on_rows=on_rows
        )
    except SecureVFLError as error:
        return error


def aligned(meeting: Any) -> dict[str, np.ndarray | SecureVFLError]:
    with ThreadPoolExecutor(2) as threads:
        results = {name: threads.submit(align, meeting, name) for name in IDS}
        return {name: result.result() for name, result in results.items()}


def counted(meeting: Any, name: str, peer: str) -> int:
    return total_to(DisclosureLedger(meeting.kit(name) / "ledger", name).read().entries, "ids", peer).count


def test_an_alignment_is_limited_and_entered(meet: Any) -> None:
    meeting = meet(2)
    shop = DisclosureLedger(meeting.kit("shop") / "ledger", "shop")
    shop.set_limit("ids", Limit(150))
    assert [len(rows) for rows in aligned(meeting).values()] == [50, 50]
    assert counted(meeting, "shop", "bank") == 100
    assert counted(meeting, "bank", "shop") == 150
    refused = aligned(meeting)
    assert isinstance(refused["shop"], LeakageError)
    assert isinstance(refused["bank"], SecureVFLError)
    assert counted(meeting, "shop", "bank") == 100
    assert counted(meeting, "bank", "shop") == 150  # nothing of the second alignment has left the bank
    shop.set_limit("ids", None)
    aligned(meeting)
    assert counted(meeting, "shop", "bank") == 200
    assert not list(meeting.folder.glob("*/table.align"))


def test_a_rule_for_ids_at_one_party_is_named_as_such(meet: Any) -> None:
    meeting = meet(2)
    with ThreadPoolExecutor(2) as threads:
        results = [threads.submit(align, meeting, name, rule=rule) for name, rule in (("bank", 1), ("shop", None))]
        errors = [result.result() for result in results]
    own = [error for error in errors if isinstance(error, ConfigError)]
    assert own
    for error in own:
        assert error.remedy is not None
        assert error.remedy.startswith("write --id in the same form at all parties")
        assert "job.toml" not in str(error)


def test_one_table_is_aligned_by_one_command_at_a_time(meet: Any) -> None:
    meeting, second = meet(2), list[np.ndarray | SecureVFLError]()
    with ThreadPoolExecutor(2) as threads:
        bank = threads.submit(align, meeting, "bank", lambda rows: second.append(align(meeting, "bank")))
        shop = threads.submit(align, meeting, "shop")
        assert len(bank.result()) == len(shop.result()) == 50  # type: ignore[arg-type]
    assert isinstance(second[0], ConfigError)
    assert second[0].code == "SVFL-FILE-IN-USE"


def test_a_restored_journal_is_refused_before_anybody_is_called(meet: Any) -> None:
    kit = meet(2).kit("shop")
    ledger = DisclosureLedger(kit / "ledger", "shop")
    journal = FolderJournal(kit / "table.align", ledger.database)
    for chunk in (b"one", b"two"):
        journal.append("mine", chunk)
    (kit / "table.align" / "mine.1.chunk").unlink()
    settings = PeerSettings.of(kit / "peers.toml", timeout=20, patience=5)
    with raises_code(DataError, "SVFL-FILE-DAMAGED"):
        align_with("shop", IDS["shop"], settings, ledger=ledger, journal=kit / "table.align")


@pytest.mark.parametrize("command", ["align", "join"])
def test_a_damaged_account_is_refused_before_anybody_is_called(command: str, meet: Any) -> None:
    """Nobody else has started, so an attempt to connect would end with another error."""
    meeting = meet(2)
    kit, ledger = meeting.kit("shop"), DisclosureLedger(meeting.kit("shop") / "ledger", "shop")
    ledger.set_limit("ids", Limit(150))
    path = ledger.path
    del ledger
    gc.collect()
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with raises_code(DataError, "SVFL-LEDGER-DAMAGED"):
        if command == "align":
            settings = PeerSettings.of(kit / "peers.toml", timeout=5, patience=1)
            align_with("shop", IDS["shop"], settings, ledger=path, journal=kit / "table.align")
        else:
            shop = next(party for party in cancer_parties() if party.name == "shop")
            join(meeting.job, shop, kit / "peers.toml", ledger=path, timeout=5, patience=1)
