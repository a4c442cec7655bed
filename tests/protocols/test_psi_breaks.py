"""Interrupted and resumed alignments: the stored state, and the work that is not repeated."""

import stat
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from builders import raises_code
from msgspec.structs import astuple

from securevfl.account.database import AccountDatabase
from securevfl.base.files import atomic_writer
from securevfl.crypto.transfers import okvs
from securevfl.data.row_order import read_rows, rows_path, write_rows
from securevfl.errors import DataError, StorageError, TransportError
from securevfl.protocols.alignment import psi_transfers, psi_work
from securevfl.protocols.alignment.journal_folder import FolderJournal
from securevfl.protocols.alignment.psi_many import IntersectionSize, PrfValues, StoreHeader, StoreSlots
from securevfl.protocols.alignment.psi_transfers import (
    BaseOtOffer,
    MaskedStore,
    VoleRequest,
    VoleRows,
    VoleSums,
    VoleTrees,
)
from securevfl.protocols.alignment.psi_work import Points, TwiceBlinded
from securevfl.runtime.codec import Message
from securevfl.runtime.observer import Event
from tests.protocols.test_psi import NAMES, Stop, cut_small, play


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    cut_small(monkeypatch, 8)


class Cut:
    """Let a party send `messages` messages, then interrupt it."""

    def __init__(self, messages: int) -> None:
        self.left = messages

    def __call__(self, message: Message) -> Message:
        if not self.left:
            raise Stop
        self.left -= 1
        return message


@pytest.mark.parametrize(
    ("parties", "transfers"),
    [(2, False), (2, True), *(pytest.param(3, transfers, marks=pytest.mark.slow) for transfers in (False, True))],
)
def test_going_on_after_a_break_at_any_message(
    parties: int, transfers: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cut_small(monkeypatch, 16)
    sets = [list(range(k, 20 + k)) for k in range(parties)]
    common = list(range(parties - 1, 20))
    for cut in NAMES[:parties]:
        for messages in range(0, 100, (parties - 1) * (2 if transfers else 1)):
            folder = tmp_path / f"{parties}-{cut}-{messages}"
            try:
                play(sets, journals=folder, twist={cut: Cut(messages)}, transfers=transfers)
                break
            except (Stop, TransportError):
                rows = play(sets, journals=folder, transfers=transfers)
            assert [sorted(ids[r] for r in indices) for ids, indices in zip(sets, rows, strict=True)] == [
                common
            ] * parties
            assert not list(folder.iterdir())
        assert messages >= 4


def sent(events: list[Event], kind: type[Message]) -> list[Message]:
    return [event.message for event in events if event.direction == "send" and isinstance(event.message, kind)]


@pytest.mark.parametrize("parties", [2, 3])
def test_completed_work_is_not_repeated(
    parties: int, small_chunks: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sets = [list(range(k, 40 + k)) for k in range(parties)]
    first: list[Event] = []

    def stop(message: Message) -> Message:
        if isinstance(message, IntersectionSize):
            raise Stop
        return message

    with pytest.raises((Stop, TransportError)):
        play(sets, journals=tmp_path, twist={"bank": stop}, observe=first.append)
    for file in tmp_path.glob("*/*"):
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    monkeypatch.setattr(okvs, "encode", None)
    monkeypatch.setattr(psi_work.Blinder, "blind", None)
    again: list[Event] = []
    play(sets, journals=tmp_path, observe=again.append)
    assert len(sent(first, Points)) == (parties - 1) * 5
    assert not sent(again, Points) + sent(again, TwiceBlinded) + sent(again, StoreSlots) + sent(again, PrfValues)
    assert {m.seed for m in sent(again, StoreHeader)} == {m.seed for m in sent(first, StoreHeader)}  # type: ignore[attr-defined]


def test_transfers_that_were_done_are_not_done_again(
    small_chunks: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sets = [list(range(k, 40 + k)) for k in range(3)]
    first: list[Event] = []

    def stop(message: Message) -> Message:
        if isinstance(message, IntersectionSize):
            raise Stop
        return message

    with pytest.raises((Stop, TransportError)):
        play(sets, journals=tmp_path, twist={"bank": stop}, observe=first.append, transfers=True)
    monkeypatch.setattr(okvs, "encode", None)
    monkeypatch.setattr(psi_transfers, "receive_keys", None)
    again: list[Event] = []
    rows = play(sets, journals=tmp_path, observe=again.append, transfers=True)
    assert sorted(sets[0][row] for row in rows[0]) == list(range(2, 40))
    assert len(sent(first, MaskedStore)) == 2 * -(-okvs.table_rows(40) // 8)
    assert all(
        sent(first, kind) and not sent(again, kind)
        for kind in (BaseOtOffer, VoleRows, VoleTrees, VoleSums, MaskedStore, StoreSlots)
    )
    assert {m.seed for m in sent(again, VoleRequest)} == {m.seed for m in sent(first, VoleRequest)}  # type: ignore[attr-defined]


@pytest.mark.parametrize("who", ["bank", "shop"])
def test_other_ids_after_a_break_take_fresh_transfers(who: str, small_chunks: None, tmp_path: Path) -> None:
    sets = [list(range(k, 20 + k)) for k in range(2)]
    first: list[Event] = []
    with pytest.raises((Stop, TransportError)):
        play(sets, journals=tmp_path, twist={"shop": Cut(6)}, observe=first.append, transfers=True)
    sets[NAMES.index(who)] = list(range(5, 25))
    again: list[Event] = []
    rows = play(sets, journals=tmp_path, observe=again.append, transfers=True)
    assert [sets[0][row] for row in rows[0]] == [sets[1][row] for row in rows[1]]
    for kind in (VoleRows, VoleTrees, MaskedStore):
        before, after = ({astuple(message) for message in sent(events, kind)} for events in (first, again))
        assert before
        assert not before & after
    assert sent(again, BaseOtOffer)


@pytest.mark.parametrize("parties", [2, 3])
@pytest.mark.parametrize("who", ["bank", "shop"])
def test_other_ids_after_a_break_start_afresh(who: str, parties: int, small_chunks: None, tmp_path: Path) -> None:
    sets = [list(range(k, 20 + k)) for k in range(parties)]
    first: list[Event] = []
    with pytest.raises((Stop, TransportError)):
        play(sets, journals=tmp_path, twist={"shop": Cut(3)}, observe=first.append)
    sets[NAMES.index(who)] = list(range(5, 25))
    again: list[Event] = []
    rows = play(sets, journals=tmp_path, observe=again.append)
    assert [sets[0][row] for row in rows[0]] == [sets[1][row] for row in rows[1]]
    before = {m.points for m in sent(first, Points)}  # type: ignore[attr-defined]
    assert before
    assert not before & {m.points for m in sent(again, Points)}  # type: ignore[attr-defined]


@pytest.mark.parametrize("permission", [0o040, 0o020, 0o010, 0o004, 0o002, 0o001], ids=oct)
def test_a_folder_that_others_may_read_is_refused(permission: int, tmp_path: Path) -> None:
    """Not a single permission of the group or of other users is accepted."""
    folder = tmp_path / "open"
    folder.mkdir()
    folder.chmod(0o700 | permission)
    with raises_code(DataError, "SVFL-FILE-READABLE-BY-OTHERS"):
        FolderJournal(folder, AccountDatabase(None))
    folder.chmod(0o700)
    FolderJournal(folder, AccountDatabase(None))


def test_a_journal_leaves_other_files_alone(tmp_path: Path) -> None:
    folder = tmp_path / "closed"
    folder.mkdir(mode=0o700)
    (folder / "notes.txt").write_text("mine")
    account = AccountDatabase(None)
    journal = FolderJournal(folder, account)
    journal.append("secrets", b"one")
    journal.append("mine", b"two")
    journal.append("mine", b"three")
    assert FolderJournal(folder, account).read("mine") == b"twothree"
    journal.clear()
    assert [file.name for file in folder.iterdir()] == ["notes.txt"]


@pytest.mark.parametrize("stream", ["secrets", "mine", "theirs", "vole-0"])
def test_a_cleared_journal_leaves_no_part_of_a_chunk(stream: str, tmp_path: Path) -> None:
    """A process that is killed while it writes a chunk leaves a draft, which may contain secrets."""
    folder = tmp_path / "journal"
    journal = FolderJournal(folder, AccountDatabase(None))
    for name in ("secrets", "mine"):
        journal.append(name, b"complete")
    with suppress(StorageError), atomic_writer(folder / f"{stream}.1.chunk") as draft:
        draft.write(b"incomplete")
        assert len([*folder.iterdir()]) == 3
        journal.clear()  # there is no draft to complete after it
    assert not folder.exists()


def test_the_row_order_is_stored_next_to_the_data(tmp_path: Path) -> None:
    data = tmp_path / "shop.csv"
    rows = np.array([3, 0, 2])
    assert write_rows(data, rows) == rows_path(data) == tmp_path / "shop.csv.rows.npy"
    np.testing.assert_array_equal(read_rows(data, of=4), rows)
    with raises_code(DataError, "SVFL-TABLE-CHANGED"):
        read_rows(data, of=3)
    write_rows(data, np.array([1, 1]))
    with raises_code(DataError, "SVFL-FILE-DAMAGED"):
        read_rows(data, of=3)
    rows_path(data).write_bytes(b"no numpy file")
    with raises_code(DataError, "SVFL-FILE-DAMAGED"):
        read_rows(data, of=3)
    with raises_code(DataError, "SVFL-FILE-UNUSABLE"):
        read_rows(tmp_path / "none.csv", of=3)


def test_stored_secrets_have_no_representation() -> None:
    stored = psi_work.Secrets(b"n" * 16, False, b"s" * 32, b"scalar" * 5, {"shop": b"pair key" * 4})
    assert repr(stored) == str(stored) == "<Secrets, secret>"
