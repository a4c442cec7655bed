"""What alignment by transfers could tell, each with a weakened version that does."""

import os
from types import SimpleNamespace

import numpy as np
import pytest

from securevfl.crypto.curve import canonical_ids, hash_ids
from securevfl.crypto.transfers import okvs, ot_extension
from securevfl.crypto.transfers.ot_extension import ROW_BYTES, Holder, PrfEvaluator
from securevfl.protocols.alignment import psi_many, psi_transfers, psi_work
from securevfl.protocols.alignment.psi import AlignmentWork, Journal
from securevfl.protocols.alignment.psi_many import Store
from securevfl.protocols.alignment.psi_transfers import Question
from tests.security.test_psi_leaks import SETS, View, evaluator_of

UNIVERSE = list(range(200))


def asked_about() -> set[int]:
    """Ids that a passive party, knowing all there can be, reads out of the corrections it got.

    Where its choice is 0 it knows T: if U hid D by T alone, a stored id's rows would add up to its code word there.
    """
    view = View(SETS[:2], transfers=True)
    work = view.work["shop"]
    chosen = work.journal.chunk("chosen", 0)
    holder = Holder(chosen[:ROW_BYTES], psi_transfers._keys(chosen[ROW_BYTES:]))
    sent = np.frombuffer(work.journal.chunk("theirs", 0), np.uint64).reshape(-1, 8)
    known = sent ^ ot_extension._stream(holder._seeds, 0, len(sent))
    (question,) = view.received("shop", "bank", Question)
    keys = hash_ids(canonical_ids(UNIVERSE))
    words = ot_extension.encode(ot_extension.target(keys))
    off = (okvs.decode(question.seed, known, keys) ^ words) & ~holder._choices
    return {UNIVERSE[n] for n in np.flatnonzero(~off.any(axis=1))}


def test_corrections_do_not_show_what_is_asked() -> None:
    assert not asked_about()


def test_that_check_catches_one_pad(monkeypatch: pytest.MonkeyPatch) -> None:
    def one_pad(self: PrfEvaluator, number: int) -> bytes:
        rows = self._block(number)
        return (self._transfers[-1] ^ ot_extension.encode(rows)).tobytes()

    monkeypatch.setattr(PrfEvaluator, "corrections", one_pad)
    monkeypatch.setattr(AlignmentWork, "in_shared_order", lambda work, rows: rows)  # the PRFs no longer agree
    assert asked_about() == set(SETS[0])


def found_beyond_its_own() -> set[int]:
    """Ids outside its own set that P_1, knowing all there can be, finds in the other's store."""
    view = View(SETS[:2], transfers=True)
    work = view.work["bank"]
    (head,) = view.received("bank", "shop", Store)
    keys = hash_ids(canonical_ids(UNIVERSE))
    table = psi_work.words(work.journal.whole("store-0"))
    v = okvs.decode(head.seed, table, keys) ^ evaluator_of(work, 0).answers(keys)
    return {UNIVERSE[n] for n in np.flatnonzero(~v.any(axis=1))} - set(SETS[0])


def test_the_active_party_finds_no_id_that_it_did_not_ask_about() -> None:
    assert not found_beyond_its_own()


def test_that_check_catches_a_holder_without_a_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(psi_transfers, "fresh_choices", lambda: bytes(ROW_BYTES))
    assert found_beyond_its_own() == set(SETS[1]) - set(SETS[0])


def test_two_alignments_by_transfers_share_nothing() -> None:
    views = [View(SETS[:2], transfers=True) for _ in range(2)]
    rows = [view.work["shop"].journal.chunk("theirs", 0) for view in views]
    seen = [{raw[at : at + ROW_BYTES] for at in range(0, len(raw), ROW_BYTES)} for raw in rows]
    assert not seen[0] & seen[1]
    stores = [psi_work.words(view.work["bank"].journal.whole("store-0")) for view in views]
    assert not (stores[0][:, 0] == stores[1][:, 0]).any()


def excluded_by_empty_slots() -> int:
    """Ids of P_1 that a store shows not to be in it, by a slot of theirs that nobody filled."""
    view = View([list(range(2000, 2500)), list(range(400)), list(range(2400))])
    work = view.work["bank"]
    (head,) = view.received("bank", "shop", Store)
    table = psi_work.words(work.journal.whole("store-0"))
    sparse, _ = okvs._places(head.seed, work.keys, (head.slots - okvs._DENSE) // 3, None)
    return int((~table[sparse].any(axis=2)).any(axis=1).sum())


def test_a_store_does_not_show_which_slots_it_uses() -> None:
    assert excluded_by_empty_slots() == 0


def test_that_check_catches_unused_slots_left_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    def empty(size: int) -> bytes:
        return os.urandom(size) if size == okvs.SEED_BYTES else bytes(size)

    monkeypatch.setattr(okvs, "os", SimpleNamespace(urandom=empty))
    assert excluded_by_empty_slots() > 300


class Forgetful(Journal):
    """Keeps everything but the stream it has been told to lose at a break."""

    def __init__(self, loses: str = "") -> None:
        super().__init__()
        self._loses = loses

    def broken_off(self) -> None:
        self._streams.pop(self._loses, None)


def same_answer_in_two_stores(passive_loses: str) -> int:
    """Ids of P_1 that a second store, sent after a break, answers as the first one did although it is another."""
    journals = {"bank": Forgetful("store-0"), "shop": Forgetful(passive_loses), "telco": Forgetful()}
    stores = []
    for _ in range(2):
        view = View(SETS[:3], journals)
        work = view.work["bank"]
        (head,) = view.received("bank", "shop", Store)
        stores.append((head.seed, psi_work.words(work.journal.whole("store-0"))))
        for journal in journals.values():
            journal.broken_off()
    (seed, first), (other_seed, second) = stores
    if seed == other_seed and (first == second).all():
        return 0
    equal = okvs.decode(seed, first, work.keys) == okvs.decode(other_seed, second, work.keys)
    return int(equal.all(axis=1).sum())


def test_a_store_that_is_asked_for_again_is_the_same() -> None:
    assert same_answer_in_two_stores("") == 0


def test_that_check_catches_a_second_store_of_the_same_ids() -> None:
    assert same_answer_in_two_stores("store") == len(set(SETS[0]) & set(SETS[1]))


def test_each_pair_has_keys_of_its_own_in_every_alignment() -> None:
    keys = [key for _ in range(2) for work in View(SETS).work.values() for key in work.pair_keys.values()]
    assert len(set(keys)) == 2 * 6
    assert len(keys) == 2 * 12


def test_names_of_steps_are_those_of_the_protocol() -> None:
    """The attacks above read the streams of the journal by name; an empty stream would let them pass."""
    two = View(SETS[:2]).work["bank"].journal
    many = View(SETS[:3]).work["bank"].journal
    large = View(SETS[:3], transfers=True).work
    assert all(two.count(stream) for stream in ("secrets", "mine", "back-0", "store-0"))
    assert all(many.count(stream) for stream in ("mine", "back-0", "back-1", "store-0", "store-1"))
    assert all(large["bank"].journal.count(stream) for stream in ("own", "pairs-0", "pairs-1", "store-0", "store-1"))
    assert all(large["shop"].journal.count(stream) for stream in ("chosen", "theirs", "store"))
    assert psi_many.CHUNK == psi_work.CHUNK
