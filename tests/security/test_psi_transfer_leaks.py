"""What alignment by transfers could disclose, each with a weakened version that does."""

import os
from types import SimpleNamespace

import numpy as np
import pytest

from securevfl.crypto.identifiers import canonical_ids, id_keys
from securevfl.crypto.transfers import okvs, vole
from securevfl.crypto.transfers.vole_prf import PrfHash
from securevfl.protocols.alignment import psi_many, psi_transfers, psi_work
from securevfl.protocols.alignment.psi_many import StoreHeader
from securevfl.protocols.alignment.psi_transfers import MaskedStore, VoleRequest
from securevfl.protocols.alignment.psi_work import AlignmentWork, Journal
from securevfl.runtime.disclosure_gate import DisclosurePermit, DisclosureRecord
from tests.security.test_psi_leaks import SETS, PartyView, evaluated

UNIVERSE = list(range(200))


def asked_about() -> set[int]:
    """Return the ids that a passive party, given all possible ids, reads from the request.

    If d did not mask P, it would answer a stored id with its h.
    """
    view = PartyView(SETS[:2], transfers=True)
    d = psi_work.words(b"".join(message.slots for message in view.received("shop", "bank", MaskedStore)))
    (question,) = view.received("shop", "bank", VoleRequest)
    keys = id_keys(canonical_ids(UNIVERSE))
    off = okvs.decode(question.seed, keys, d)[0] ^ PrfHash(psi_transfers._coin(view.work["shop"], "all")).target(keys)
    return {UNIVERSE[n] for n in np.flatnonzero(~off.any(axis=1))}


def test_a_request_does_not_reveal_the_requested_ids() -> None:
    assert not asked_about()


def test_the_check_detects_missing_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    real = np.packbits
    monkeypatch.setattr(vole.np, "packbits", lambda bits, **keys: real(bits, **keys) * np.uint8(0))
    monkeypatch.setattr(vole.VoleReceiverPiece, "check", lambda *_: None)
    monkeypatch.setattr(AlignmentWork, "in_shared_order", lambda work, rows: rows)  # the PRFs no longer agree
    assert asked_about() == set(SETS[0])


def found_beyond_its_own() -> set[int]:
    """Return ids outside its set that P_1, given all possible ids, finds in the other's values."""
    view = PartyView(SETS[:2], transfers=True)
    work = view.work["bank"]
    keys = id_keys(canonical_ids(UNIVERSE))
    theirs = psi_work.words(work.journal.read("store-0"))
    known = psi_work.intersect(evaluated(work, "shop", keys)[:, :2], theirs)
    return {UNIVERSE[n] for n in known} - set(SETS[0])


def test_the_active_party_finds_only_requested_ids() -> None:
    assert not found_beyond_its_own()


def test_the_check_detects_a_holder_without_a_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(psi_transfers, "fresh_secret", lambda: (bytes(16), [False] * 128))
    assert found_beyond_its_own() == set(SETS[1]) - set(SETS[0])


def asked_for_as_many_as_fit() -> tuple[set[int], int]:
    """Return the ids beyond its 60 that a malicious P_1 finds, and how many queries the other party has recorded.

    Its store encodes as many ids as it has slots in place of its set.
    """
    lines: list[tuple[str, int]] = []
    hashing: list[PrfHash] = []
    expected = id_keys(canonical_ids(range(500)))

    class Noted(PrfHash):
        def __init__(self, coin: bytes) -> None:
            super().__init__(coin)
            hashing.append(self)

    def crowded(keys: okvs.Words, values: okvs.Words) -> tuple[bytes, okvs.Words]:
        return solved(expected, hashing[0].target(expected), okvs.table_rows(len(keys)))

    def permit_ids(work: AlignmentWork, to: str, ids: int) -> DisclosurePermit:
        lines.append((work.me, ids))
        return work.channel.permit(DisclosureRecord(to, "ids", ids, 1, about=(work.me,)))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(AlignmentWork, "permit_ids", permit_ids)
        patch.setattr(psi_transfers, "PrfHash", Noted)
        patch.setattr(psi_transfers, "okvs", SimpleNamespace(**vars(okvs) | {"encode": crowded}))
        view = PartyView([list(range(60)), list(range(20, 400))], transfers=True)
    work = view.work["bank"]
    known = psi_work.intersect(evaluated(work, "shop", expected)[:, :2], psi_work.words(work.journal.read("store-0")))
    return set(known.tolist()) - set(range(60)), dict(reversed(lines))["shop"]


def solved(keys: okvs.Words, targets: okvs.Words, slots: int) -> tuple[bytes, okvs.Words]:
    """Return a store that encodes as many of the keys as possible, by elimination row by row, with bits of an int."""
    seed = os.urandom(okvs.OKVS_SEED_BYTES)
    sparse, dense = okvs._slots_of_keys(seed, keys, (slots - okvs._DENSE_SLOTS) // 3)
    results: dict[int, tuple[int, np.ndarray]] = {}
    for n in range(len(keys)):
        row, value = int(dense[n]) << slots - okvs._DENSE_SLOTS, targets[n].copy()
        for slot in sparse:
            row ^= 1 << int(slot[n])
        while row and (top := row.bit_length() - 1) in results:
            row, value = row ^ results[top][0], value ^ results[top][1]
        if row:
            results[top] = row, value
    table = np.zeros((slots, 2), np.uint64)
    for top in sorted(results):
        row, value = results[top]
        for bit in range(top):
            if row >> bit & 1:
                value = value ^ table[bit]
        table[top] = value
    return seed, table


def test_excess_requests_are_within_the_recorded_number() -> None:
    result, entered = asked_for_as_many_as_fit()
    assert len(result) > 100
    assert 60 + len(result) <= entered == okvs.table_rows(60)


def test_two_alignments_by_transfers_share_nothing() -> None:
    views = [PartyView(SETS[:2], transfers=True) for _ in range(2)]
    for who, stream in (("shop", "theirs"), ("bank", "back-0"), ("bank", "store-0")):
        journals = [view.work[who].journal for view in views]
        raw = [b"".join(journal.chunk(stream, at) for at in range(journal.count(stream))) for journal in journals]
        blocks = [{octets[at : at + 16] for at in range(0, len(octets), 16)} for octets in raw]
        assert not blocks[0] & blocks[1]


def excluded_by_empty_slots() -> int:
    """Return ids of P_1 that an empty slot of a store excludes."""
    view = PartyView([list(range(2000, 2500)), list(range(400)), list(range(2400))])
    work = view.work["bank"]
    (head,) = view.received("bank", "shop", StoreHeader)
    table = psi_work.words(work.journal.read("store-0"))
    sparse, _ = okvs._slots_of_keys(head.seed, work.keys, (head.slots - okvs._DENSE_SLOTS) // 3)
    return int((~table[np.stack(sparse)].any(axis=2)).any(axis=0).sum())


def test_a_store_does_not_reveal_its_used_slots() -> None:
    assert excluded_by_empty_slots() == 0


def test_the_check_detects_empty_slots(monkeypatch: pytest.MonkeyPatch) -> None:
    def empty(size: int) -> bytes:
        return os.urandom(size) if size == okvs.OKVS_SEED_BYTES else bytes(size)

    monkeypatch.setattr(okvs, "os", SimpleNamespace(urandom=empty))
    assert excluded_by_empty_slots() > 300


class Forgetful(Journal):
    """Stores everything except the stream that it must lose at an interruption."""

    def __init__(self, loses: str = "") -> None:
        super().__init__()
        self._loses = loses

    def broken_off(self) -> None:
        self._streams.pop(self._loses, None)


def same_answer_in_two_stores(passive_loses: str) -> int:
    """Return ids of P_1 that a second store after an interruption answers as the first one, although it differs."""
    journals = {"bank": Forgetful("store-0"), "shop": Forgetful(passive_loses), "telco": Forgetful()}
    stores = []
    for _ in range(2):
        view = PartyView(SETS[:3], journals)
        work = view.work["bank"]
        (head,) = view.received("bank", "shop", StoreHeader)
        stores.append((head.seed, psi_work.words(work.journal.read("store-0"))))
        for journal in journals.values():
            journal.broken_off()
    (seed, first), (other_seed, second) = stores
    if seed == other_seed and (first == second).all():
        return 0
    equal = okvs.decode(seed, work.keys, first)[0] == okvs.decode(other_seed, work.keys, second)[0]
    return int(equal.all(axis=1).sum())


def test_a_store_that_is_requested_again_is_the_same() -> None:
    assert same_answer_in_two_stores("") == 0


def test_the_check_detects_a_second_store_of_the_same_ids() -> None:
    assert same_answer_in_two_stores("store") == len(set(SETS[0]) & set(SETS[1]))


def test_each_pair_has_fresh_keys_in_every_alignment() -> None:
    keys = [key for _ in range(2) for work in PartyView(SETS).work.values() for key in work.pair_keys.values()]
    assert len(set(keys)) == 2 * 6
    assert len(keys) == 2 * 12


def test_names_of_steps_are_those_of_the_protocol() -> None:
    """The attacks read streams of the journal by name; with an empty stream they would pass."""
    two = PartyView(SETS[:2]).work["bank"].journal
    many = PartyView(SETS[:3]).work["bank"].journal
    large = PartyView(SETS[:3], transfers=True).work
    assert all(two.count(stream) for stream in ("secrets", "mine", "back-0", "store-0"))
    assert all(many.count(stream) for stream in ("mine", "back-0", "back-1", "store-0", "store-1"))
    assert all(
        large["bank"].journal.count(stream) for stream in ("request", "pairs-0", "pairs-1", "store-0", "store-1")
    )
    assert all(large["shop"].journal.count(stream) for stream in ("chosen", "theirs", "store"))
    assert psi_many.ITEMS_PER_MESSAGE == psi_work.ITEMS_PER_MESSAGE
