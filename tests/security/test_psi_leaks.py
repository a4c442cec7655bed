"""What a party can make of its view of a private alignment. Every attack succeeds on a mutant of the protocol."""

import os
from collections.abc import Mapping, Sequence
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest

from securevfl.crypto.curve import canonical_ids, common_positions, hash_ids, hash_to_group, sort_points
from securevfl.crypto.transfers import okvs, ot_extension
from securevfl.crypto.transfers.ot_extension import ROW_BYTES, Holder, PrfEvaluator
from securevfl.errors import ProtocolError
from securevfl.protocols.alignment import psi, psi_many, psi_transfers, psi_work
from securevfl.protocols.alignment.psi import AlignmentWork, Journal, align_active, align_passive
from securevfl.protocols.alignment.psi_many import Store
from securevfl.protocols.alignment.psi_transfers import Question
from securevfl.protocols.alignment.psi_work import Points
from securevfl.runtime.channel import Channel, Event
from securevfl.runtime.clock import WallClock
from securevfl.runtime.threads import run_threads

NAMES = ["bank", "shop", "telco", "clinic"]
flows = pytest.mark.parametrize("transfers", [False, True], ids=["points", "transfers"])


class View:
    """All that each party has after one run: its work, with its secrets and journal, and what it received."""

    def __init__(
        self,
        sets: Sequence[Sequence[int]],
        journals: Mapping[str, Journal] | None = None,
        *,
        transfers: bool = False,
    ) -> None:
        names = NAMES[: len(sets)]
        self.events: list[Event] = []
        self.work: dict[str, AlignmentWork] = {}

        def role(channel: Channel, *, ids: Sequence[int]) -> np.ndarray:
            journal = (journals or {}).get(channel.me)
            work = AlignmentWork(channel, canonical_ids(ids), active=names[0], passives=names[1:], journal=journal)
            self.work[channel.me] = work
            return align_active(work) if channel.me == names[0] else align_passive(work)

        roles = {name: partial(role, ids=ids) for name, ids in zip(names, sets, strict=True)}
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(psi, "MANY", 1 if transfers else 1 << 40)
            self.rows = run_threads(roles, WallClock, timeout=20, observe=self.events.append)

    def received(self, me: str, sender: str, kind: type) -> list:
        mine = [e for e in self.events if e.direction == "recv" and (e.me, e.peer) == (me, sender)]
        return [event.message for event in mine if isinstance(event.message, kind)]

    def points(self, me: str, sender: str) -> list[bytes]:
        raw = b"".join(message.points for message in self.received(me, sender, Points))
        return [raw[at : at + 32] for at in range(0, len(raw), 32)]


def shuffled(count: int, seed: int) -> list[int]:
    return np.random.default_rng(seed).permutation(count).tolist()


def agreement(one: Sequence[int], other: Sequence[int]) -> float:
    """Rank correlation of two orders of the same things."""
    return float(np.corrcoef(np.argsort(np.argsort(one)), np.argsort(np.argsort(other)))[0, 1])


def row_order_seen_by_the_active_party() -> float:
    """How far the order of B's list gives away the order of B's rows, to A, who knows which points match."""
    ids = shuffled(300, 1)
    view = View([list(range(300)), ids])
    journal = view.work["bank"].journal
    order_mine = psi.sort_points(journal.whole("mine"))[1]
    back, theirs = journal.whole("back"), journal.whole("theirs")
    place = {theirs[at : at + 32]: at for at in range(0, len(theirs), 32)}
    placed = {int(order_mine[n]): place[back[32 * n : 32 * n + 32]] for n in common_positions(back, theirs)}
    return agreement([placed[n] for n in range(300)], [ids.index(n) for n in range(300)])


def unsorted(points: bytes) -> tuple[bytes, np.ndarray]:
    return points, np.arange(len(points) // 32)


def test_lists_do_not_show_row_order() -> None:
    assert abs(row_order_seen_by_the_active_party()) < 0.37  # of 300 rows: 6.4 standard errors


def test_that_check_catches_lists_in_row_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(psi, "sort_points", unsorted)
    with pytest.raises(ProtocolError, match="ascending"):
        row_order_seen_by_the_active_party()
    monkeypatch.setattr(psi_work, "check_ascending", lambda *_: b"")
    assert row_order_seen_by_the_active_party() > 0.99


def shared_order_follows_rows(parties: int, *, transfers: bool = False) -> float:
    """How far the shared order follows the active party's rows, to a passive one that knows the ids."""
    ids = [shuffled(300, seed) for seed in range(parties)]
    view = View(ids, transfers=transfers)
    shared = [ids[1][row] for row in view.rows["shop"]]
    return agreement(range(300), [ids[0].index(n) for n in shared])


@flows
@pytest.mark.parametrize("parties", [2, 3])
def test_the_shared_order_follows_nobodys_rows(parties: int, transfers: bool) -> None:
    assert abs(shared_order_follows_rows(parties, transfers=transfers)) < 0.37


def test_that_check_catches_the_active_partys_order(monkeypatch: pytest.MonkeyPatch) -> None:
    leak = {n: place.to_bytes(8, "big") + bytes(8) for place, n in enumerate(shuffled(300, 0))}
    hashed = {hash_to_group([key]): n for n, key in enumerate(canonical_ids(range(300)))}

    def tags(work: AlignmentWork, rows: np.ndarray) -> np.ndarray:
        own = [leak[hashed[work.keys[32 * row : 32 * row + 32]]] for row in rows.tolist()]
        return np.array([b"t" + tag[:15] for tag in own], "S16")

    monkeypatch.setattr(AlignmentWork, "tags", tags)
    assert shared_order_follows_rows(2) > 0.99


@pytest.mark.parametrize("parties", [2, 3])
def test_two_alignments_cannot_be_linked(parties: int) -> None:
    assert points_seen_twice(parties) == 0


@pytest.mark.parametrize("parties", [2, 3])
def test_that_check_catches_a_scalar_that_is_kept(parties: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(psi_work, "fresh_scalar", lambda: b"\x05" * 32)
    assert points_seen_twice(parties) == 30


def points_seen_twice(parties: int) -> int:
    """Of the active party's 50 ids, 30 are the same in a second run: how many does a passive party recognise?"""
    first = View([list(range(50))] * parties)
    second = View([list(range(20, 70))] * parties)
    return len(set(first.points("shop", "bank")) & set(second.points("shop", "bank")))


def dictionary_hits() -> int:
    """Points from A that B recognises, knowing every id there can be and its own scalar."""
    view = View([list(range(0, 40)), list(range(20, 60))])
    hashed = hash_to_group(canonical_ids(range(60)))
    blinded = view.work["shop"].blinder.blind(hashed)
    known = {raw[at : at + 32] for raw in (hashed, blinded) for at in range(0, len(raw), 32)}
    return len(known & set(view.points("shop", "bank")))


def test_a_party_that_knows_all_ids_recognises_none() -> None:
    assert dictionary_hits() == 0


def test_that_check_catches_a_scalar_that_both_have(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(psi_work, "fresh_scalar", lambda: b"\x05" * 32)
    assert dictionary_hits() == 40


SETS = [list(range(0, 60)), list(range(20, 90)), list(range(40, 120)), list(range(50, 130))]


def masked_shares(view: View, passive: str) -> okvs.Words:
    """v_i of P_1's ids: what the store of this party answers, with F_i taken off."""
    work = view.work["bank"]
    number = work.passives.index(passive)
    (head,) = view.received("bank", passive, Store)
    v = okvs.decode(head.seed, psi_work.words(work.journal.whole(f"store-{number}")), work.keys)
    if work.transfers:
        return v ^ evaluator_of(work, number).answers(work.keys)
    v[sort_points(work.journal.whole("mine"))[1]] ^= psi_work.words(work.journal.whole(f"back-{number}"))
    return v


def evaluator_of(work: AlignmentWork, number: int) -> PrfEvaluator:
    """What P_1 can compute of F_i, from its journal."""
    own = work.journal.chunk("own", 0)
    store = psi_work.words(own[okvs.SEED_BYTES :])
    pairs = psi_transfers._pairs(work.journal.chunk(f"pairs-{number}", 0))
    evaluator = PrfEvaluator(pairs, own[: okvs.SEED_BYTES], store)
    evaluator.skip(0)
    return evaluator


def pairwise_guesses(parties: int, *, transfers: bool = False) -> dict[str, set[int]]:
    """Ids that P_1 finds in the set of one passive party alone.

    It looks for v_i(x), with any of the pair keys it has taken off, that is zero.
    """
    view = View(SETS[:parties], transfers=transfers)
    work = view.work["bank"]
    points = work.keys
    prf = [work.digests(points, key, b"zero share") for key in work.pair_keys.values()]
    found: dict[str, set[int]] = {}
    for passive in NAMES[1:parties]:
        v = masked_shares(view, passive)
        hits = np.zeros(len(points) // 32, np.bool_)
        for subset in range(1 << len(prf)):
            rest = v.copy()
            for key, share in enumerate(prf):
                if subset >> key & 1:
                    rest ^= share
            hits |= ~rest.any(axis=1)
        found[passive] = {SETS[0][row] for row in np.flatnonzero(hits)}
    return found


def truth(parties: int) -> dict[str, set[int]]:
    return {name: set(SETS[0]) & set(SETS[k]) for k, name in enumerate(NAMES[:parties]) if k}


@flows
@pytest.mark.parametrize("parties", [3, 4])
def test_the_active_party_learns_nobodys_membership(parties: int, transfers: bool) -> None:
    assert not any(pairwise_guesses(parties, transfers=transfers).values())


@flows
@pytest.mark.parametrize("parties", [3, 4])
def test_that_check_catches_no_zero_sharing(parties: int, transfers: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(AlignmentWork, "zero_share", lambda work: np.zeros((work.rows, 2), np.uint64))
    assert pairwise_guesses(parties, transfers=transfers) == truth(parties)


def test_that_check_catches_zero_sharing_with_the_active_party_only(monkeypatch: pytest.MonkeyPatch) -> None:
    share = AlignmentWork.zero_share

    def with_active_only(work: AlignmentWork) -> np.ndarray:
        if work.me != work.active:
            work.pair_keys = {work.active: work.pair_keys[work.active]}
        return share(work)

    monkeypatch.setattr(AlignmentWork, "zero_share", with_active_only)
    assert pairwise_guesses(3) == truth(3)


def pairs_of_values(parties: int) -> int:
    """Ids for which v_2(x) ^ v_3(x), with its own keys off, shows P_1 that shop and telco have them."""
    view = View(SETS[:parties])
    work = view.work["bank"]
    total = np.zeros((work.rows, 2), np.uint64)
    for passive in ["shop", "telco"]:
        total ^= masked_shares(view, passive)
        total ^= work.digests(work.keys, work.pair_keys[passive], b"zero share")
    return int((~total.any(axis=1)).sum())


def test_two_of_three_passive_parties_stay_hidden_together() -> None:
    assert pairs_of_values(4) == 0


def test_that_check_catches_a_party_left_out_of_the_sharing(monkeypatch: pytest.MonkeyPatch) -> None:
    share = AlignmentWork.zero_share

    def without_clinic(work: AlignmentWork) -> np.ndarray:
        work.pair_keys = {peer: key for peer, key in work.pair_keys.items() if "clinic" not in (peer, work.me)}
        return share(work)

    monkeypatch.setattr(AlignmentWork, "zero_share", without_clinic)
    assert pairs_of_values(4) == 20


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
    assert all(two.count(stream) for stream in ("secrets", "mine", "back", "theirs"))
    assert all(many.count(stream) for stream in ("mine", "back-0", "back-1", "store-0", "store-1"))
    assert all(large["bank"].journal.count(stream) for stream in ("own", "pairs-0", "pairs-1", "store-0", "store-1"))
    assert all(large["shop"].journal.count(stream) for stream in ("chosen", "theirs", "store"))
    assert psi_many.CHUNK == psi_work.CHUNK
