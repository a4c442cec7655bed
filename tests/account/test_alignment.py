"""Alignments in a party's account: ids are recorded before they are sent, and a journal
(stored state) is single-use.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from unittest import mock

import msgspec
import numpy as np
import pytest

from securevfl.account.database import AccountDatabase
from securevfl.consent.alignment_session import AlignmentSession
from securevfl.crypto.identifiers import canonical_ids
from securevfl.crypto.transfers import okvs
from securevfl.crypto.transfers.vole_prf import PrfHash
from securevfl.data.party import Party
from securevfl.disclosure.counts import Disclosure
from securevfl.disclosure.ledger import DisclosureLedger, total_to
from securevfl.disclosure.limits import Limit
from securevfl.errors import DataError, LeakageError, SecureVFLError
from securevfl.organisations.align import align_privately
from securevfl.protocols.alignment import psi, psi_many, psi_transfers, psi_work
from securevfl.protocols.alignment.journal_folder import FolderJournal
from securevfl.protocols.alignment.psi_work import AlignmentWork, Journal, Secrets
from securevfl.runtime.channel import Channel
from securevfl.runtime.clock import WallClock
from securevfl.runtime.disclosure_gate import DisclosureGate, DisclosureRecord
from securevfl.runtime.party_threads import run_threads
from tests.builders import raises_code
from tests.protocols.test_psi import NAMES, Stop, ledger_of, play
from tests.protocols.test_psi_breaks import Cut

flows = pytest.mark.parametrize("transfers", [False, True], ids=["points", "transfers"])


def counted(journals: Path, party: str) -> dict[str, int]:
    """Return how many ids of a party each peer could test, by its ledger."""
    entries = ledger_of(journals, party).read().entries
    return {peer: total_to(entries, "ids", peer).count for peer in {entry.disclosure.learner for entry in entries}}


@flows
@pytest.mark.parametrize("parties", [2, 3])
def test_each_party_enters_what_its_peers_can_test(parties: int, transfers: bool, tmp_path: Path) -> None:
    sets = [list(range(20 * k, 100 + 10 * k)) for k in range(parties)]
    play(sets, journals=tmp_path / "journals", transfers=transfers)
    questions = okvs.table_rows(len(sets[0])) if transfers else len(sets[0])
    for name in NAMES[1:parties]:
        assert counted(tmp_path / "journals", name) == {"bank": questions}
    expected = {name: len(ids) for name, ids in zip(NAMES[1:parties], sets[1:], strict=True)}
    assert counted(tmp_path / "journals", "bank") == expected


@flows
@pytest.mark.parametrize("parties", [2, 3])
@pytest.mark.parametrize("who", [0, 1])
def test_a_limit_of_ids_refuses_an_alignment_before_it_sends(
    who: int, parties: int, transfers: bool, tmp_path: Path
) -> None:
    ledger_of(tmp_path / "journals", NAMES[who]).set_limit("ids", Limit(99))
    sent: list[str] = []

    def observe(event: object) -> None:
        if (event.direction, event.me) == ("send", NAMES[who]):  # type: ignore[attr-defined]
            sent.append(type(event.message).__name__)  # type: ignore[attr-defined]

    with raises_code(LeakageError, "SVFL-LIMIT-REACHED", party=NAMES[who]):
        play([list(range(100))] * parties, journals=tmp_path / "journals", transfers=transfers, observe=observe)
    assert set(sent) <= {"AlignmentHello", "AlignmentStart", "PairKey", "Abort"}
    assert counted(tmp_path / "journals", NAMES[who]) == {}


@flows
def test_a_resumed_alignment_counts_once_and_another_one_again(transfers: bool, tmp_path: Path) -> None:
    journals, sets = tmp_path / "journals", [list(range(100)), list(range(50, 150))]
    ledger_of(journals, "shop").set_limit("ids", Limit(300 if transfers else 150))
    for messages in (2, 1):
        with pytest.raises((SecureVFLError, Stop)):
            play(sets, journals=journals, twist={"bank": Cut(messages)}, transfers=transfers)
    play(sets, journals=journals, transfers=transfers)
    questions = okvs.table_rows(100) if transfers else 100
    assert counted(journals, "shop") == {"bank": questions}
    with raises_code(LeakageError, "SVFL-LIMIT-REACHED", party="shop"):
        play(sets, journals=journals, transfers=transfers)
    ledger_of(journals, "shop").set_limit("ids", None)
    play(sets, journals=journals, transfers=transfers)
    assert counted(journals, "shop") == {"bank": 2 * questions}


def test_ids_of_an_alignment_count_for_the_aligned_table(tmp_path: Path) -> None:
    ids = list(range(100))
    play([ids, ids[50:]], journals=tmp_path / "journals")
    table = Party("shop", np.random.default_rng(0).normal(size=(30, 2)), ids=ids[50:80])
    ledger = ledger_of(tmp_path / "journals", "shop")
    ledger.set_limit("ids", Limit(101))
    disclosures = [Disclosure("ids", "bank", ("shop",), 2, 0)]
    with raises_code(LeakageError, "SVFL-LIMIT-REACHED", party="shop"):
        ledger.record(table.register, ("later", ""), disclosures)


def test_an_adopted_account_uses_no_journal_again(tmp_path: Path) -> None:
    journals = tmp_path / "journals"
    with pytest.raises((SecureVFLError, Stop)):
        play([list(range(100))] * 2, journals=journals, twist={"bank": Cut(3)})
    ledger = ledger_of(journals, "shop")
    assert FolderJournal(journals / "shop", ledger.database).count("secrets")
    ledger = DisclosureLedger.adopt(ledger.path)
    assert not FolderJournal(journals / "shop", ledger.database).count("secrets")


class Dictionary:
    """An active party that restores the journal of an honest passive party, to test its dictionary piece by piece.

    Attributes:
        tested: the ids of its dictionary of which it has learned whether the passive party has them.
        present: those that the passive party has.
    """

    PIECE = 150

    def __init__(self, folder: Path, *, transfers: bool) -> None:
        self.folder, self.transfers = folder, transfers
        self.ids, self.dictionary = list(range(0, 600, 2)), list(range(600))
        self.tested: set[int] = set()
        self.present: set[int] = set()
        self.first: Journal | None = None

    @property
    def journal(self) -> Path:
        return self.folder / "shop"

    def shop(self, channel: Channel) -> None:
        ledger = ledger_of(self.folder, "shop")
        journal = FolderJournal(self.journal, ledger.database)
        append = journal.append

        def copying(stream: str, chunk: bytes) -> None:
            if stream == "theirs" and not (self.folder / "copy").exists():
                shutil.copytree(self.journal, self.folder / "copy")
            append(stream, chunk)

        journal.append = copying  # type: ignore[method-assign]
        align_privately("shop", self.ids, channel, active="bank", passives=["shop"], ledger=ledger, journal=journal)

    def bank(self, piece: list[int]) -> object:
        def ask(channel: Channel) -> None:
            journal = Journal()
            work = AlignmentWork(channel, canonical_ids(piece), active="bank", passives=["shop"], journal=journal)
            if self.first is not None:
                self._resume_with_other_ids(work, journal)
            self.first = self.first or journal
            psi.align_active(work)

        return ask

    def _resume_with_other_ids(self, work: AlignmentWork, journal: Journal) -> None:
        assert self.first is not None
        stored = msgspec.msgpack.decode(self.first.chunk("secrets", 0), type=Secrets)
        journal.append("secrets", msgspec.msgpack.encode(msgspec.structs.replace(stored, subject=work._subject)))
        if self.transfers:
            work.nonce = stored.nonce
            hashing = PrfHash(psi_transfers._coin(work, "all"))
            seed, table = okvs.encode(work.keys, hashing.target(work.keys))
            journal.append("request", seed + table.tobytes())
            journal.append("pairs-0", self.first.chunk("pairs-0", 0))

    def play(self, monkeypatch: pytest.MonkeyPatch) -> None:
        pieces = [self.dictionary[start : start + self.PIECE] for start in range(0, len(self.dictionary), self.PIECE)]
        for piece in pieces:
            if (self.folder / "copy").exists():
                shutil.rmtree(self.journal, ignore_errors=True)
                shutil.copytree(self.folder / "copy", self.journal)

            def learn(prf: np.ndarray, values: np.ndarray, piece: list[int] = piece) -> np.ndarray:
                known = {value.tobytes() for value in values}
                self.tested |= set(piece)
                self.present |= {id_ for id_, value in zip(piece, prf, strict=True) if value.tobytes() in known}
                raise Stop

            with monkeypatch.context() as patch:
                patch.setattr(psi_many, "intersect", learn)
                if self.transfers:
                    patch.setattr(psi_work, "MIN_ROWS_FOR_TRANSFERS", 1)
                with pytest.raises(Stop):
                    run_threads({"bank": self.bank(piece), "shop": self.shop}, WallClock, timeout=20)


@flows
def test_a_restored_journal_answers_no_dictionary(
    transfers: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    attacker = Dictionary(tmp_path / "journals", transfers=transfers)
    with raises_code(DataError, "SVFL-FILE-DAMAGED"):
        attacker.play(monkeypatch)
    assert len(attacker.tested) == Dictionary.PIECE <= counted(tmp_path / "journals", "shop")["bank"]


@flows
def test_the_attack_succeeds_without_the_list_in_the_account(
    transfers: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def count(journal: FolderJournal, stream: str) -> int:
        return len(list(journal._folder.glob(f"{stream}.*.chunk")))

    def chunk(journal: FolderJournal, stream: str, number: int) -> bytes:
        return journal_files.read_checked(journal._file(stream, number))

    from securevfl.protocols.alignment import journal_folder as journal_files

    def append(journal: FolderJournal, stream: str, data: bytes) -> None:
        journal_files.write_checked(journal._file(stream, count(journal, stream)), data)

    attacker = Dictionary(tmp_path / "journals", transfers=transfers)
    with mock.patch.multiple(FolderJournal, count=count, chunk=chunk, append=append):
        attacker.play(monkeypatch)
    assert len(attacker.tested) == 600
    assert attacker.present == set(range(0, 600, 2))
    assert counted(tmp_path / "journals", "shop")["bank"] < 600


def test_a_copied_journal_is_discarded_after_its_alignment(tmp_path: Path) -> None:
    account = AccountDatabase(None)
    journal = FolderJournal(tmp_path / "journal", account)
    journal.append("secrets", b"secret")
    shutil.copytree(tmp_path / "journal", tmp_path / "copy")
    journal.clear()
    shutil.copytree(tmp_path / "copy", tmp_path / "journal")
    assert FolderJournal(tmp_path / "journal", account).count("secrets") == 0
    assert FolderJournal(tmp_path / "copy", account).count("secrets") == 0


def test_a_journal_is_found_by_every_path_to_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And by no path to another journal, although both folders have the same relative path."""
    account, folders = AccountDatabase(None), [tmp_path / "one", tmp_path / "two"]
    for number, folder in enumerate(folders, 1):
        folder.mkdir()
        monkeypatch.chdir(folder)
        for _ in range(number):
            FolderJournal("journal", account).append("secrets", b"secret")
    (tmp_path / "link").symlink_to(folders[0])
    names = []
    for number, folder in enumerate(folders, 1):
        paths = [folder / "journal", Path("..") / folder.name / "journal", folder / ".." / folder.name / "journal"]
        paths += [tmp_path / "link" / "journal"] if number == 1 else []
        journals = [FolderJournal(path, account) for path in paths]
        monkeypatch.chdir(folder)
        journals.append(FolderJournal("journal", account))
        assert {journal.count("secrets") for journal in journals} == {number}
        (name,) = {journal.name for journal in journals}
        names.append(name)
    assert len(set(names)) == 2


def test_a_chunk_that_was_not_entered_is_written_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    account = AccountDatabase(None)
    journal = FolderJournal(tmp_path / "journal", account)
    journal.append("secrets", b"secret")
    with monkeypatch.context() as patch:
        patch.setattr(account, "changing", lambda: (_ for _ in ()).throw(Stop()))
        with pytest.raises(Stop):
            journal.append("mine", b"lost")
    resumed = FolderJournal(tmp_path / "journal", account)
    assert resumed.count("mine") == 0
    resumed.append("mine", b"again")
    assert resumed.read("mine") == b"again"


def test_two_processes_do_not_continue_one_journal(tmp_path: Path) -> None:
    account = AccountDatabase(None)
    one, two = (FolderJournal(tmp_path / "journal", account) for _ in range(2))
    one.append("secrets", b"secret")
    two.count = lambda stream: 0  # type: ignore[method-assign] # it has counted before the other one wrote
    with raises_code(DataError, "SVFL-FILE-DAMAGED"):
        two.append("secrets", b"another")
    with raises_code(DataError, "SVFL-FILE-DAMAGED"):
        one.chunk("secrets", 0)


def test_an_emptied_journal_begins_again(tmp_path: Path) -> None:
    account = AccountDatabase(None)
    journal = FolderJournal(tmp_path / "journal", account)
    journal.append("secrets", b"secret")
    name = journal.name
    shutil.rmtree(tmp_path / "journal")
    again = FolderJournal(tmp_path / "journal", account)
    assert again.count("secrets") == 0
    assert again.name != name


SETS_OF_PEERS = [set[str](), {"bank"}, {"telco"}, {"bank", "telco"}]


@pytest.mark.parametrize("first", SETS_OF_PEERS)
@pytest.mark.parametrize("second", SETS_OF_PEERS)
def test_ids_stay_entered_for_peers_to_which_any_session_sent(
    first: set[str], second: set[str], tmp_path: Path
) -> None:
    """Of two sessions of one alignment; the larger number counts."""
    ledger, expected = DisclosureLedger(tmp_path / "shop.ledger", "shop"), dict[str, int]()
    for sent, numbers in ((first, {"bank": 5, "telco": 7}), (second, {"bank": 3, "telco": 9})):
        gate = DisclosureGate("shop")
        session = AlignmentSession(ledger, "shop", [b"1", b"2"], gate)
        session.record("secrets", numbers)
        for peer in sent:
            gate.permit(DisclosureRecord(peer, "ids", 1, 64, ("shop",)))
            expected[peer] = max(numbers[peer], expected.get(peer, 0))
        session.settle()
    assert {entry.disclosure.learner: entry.disclosure.count for entry in ledger.read().entries} == expected
