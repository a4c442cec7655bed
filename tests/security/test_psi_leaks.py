"""Computations of a party on its view of a private alignment; every attack succeeds on a mutant of the protocol."""

from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np
import pytest

from securevfl.crypto.curve import hash_to_group, sort_points
from securevfl.crypto.identifiers import canonical_ids
from securevfl.crypto.transfers import okvs, vole_prf
from securevfl.crypto.transfers.vole_prf import PrfHash
from securevfl.errors import ProtocolError
from securevfl.protocols.alignment import psi_points, psi_transfers, psi_work
from securevfl.protocols.alignment.psi import align_active, align_passive
from securevfl.protocols.alignment.psi_many import StoreHeader
from securevfl.protocols.alignment.psi_work import AlignmentWork, Journal, Points
from securevfl.runtime.channel import Channel
from securevfl.runtime.clock import WallClock
from securevfl.runtime.observer import Event
from securevfl.runtime.party_threads import run_threads
from tests.builders import raises_code

NAMES = ["bank", "shop", "telco", "clinic"]
flows = pytest.mark.parametrize("transfers", [False, True], ids=["points", "transfers"])


class PartyView:
    """The view of each party after one run: its state with secrets and journal, and its received messages."""

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
            if transfers:
                work.min_transfer_rows = 1
            self.work[channel.me] = work
            return align_active(work) if channel.me == names[0] else align_passive(work)

        roles = {name: partial(role, ids=ids) for name, ids in zip(names, sets, strict=True)}
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
    """Return the rank correlation of two orders."""
    return float(np.corrcoef(np.argsort(np.argsort(one)), np.argsort(np.argsort(other)))[0, 1])


def row_order_seen_by_a_passive_party() -> float:
    """Return how far the order of the active party's list reveals the order of its rows."""
    view = PartyView([shuffled(300, 1), list(range(300))])
    id_order = view.work["bank"].journal.read("mine")
    place = {point: at for at, point in enumerate(view.points("shop", "bank"))}
    return agreement(range(300), [place[id_order[at : at + 32]] for at in range(0, len(id_order), 32)])


def unsorted(points: bytes) -> tuple[bytes, np.ndarray]:
    return points, np.arange(len(points) // 32)


def test_lists_do_not_show_row_order() -> None:
    assert abs(row_order_seen_by_a_passive_party()) < 0.37  # 6.4 standard errors with 300 rows


def test_the_check_detects_lists_in_row_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(psi_points, "sort_points", unsorted)
    with raises_code(ProtocolError, "SVFL-PROTOCOL-VALUES", party="bank"):
        row_order_seen_by_a_passive_party()
    monkeypatch.setattr(psi_work, "check_ascending", lambda *_: b"")
    assert row_order_seen_by_a_passive_party() > 0.99


def shared_order_follows_rows(parties: int, *, transfers: bool = False) -> float:
    """Return how similar the order of the common ids is to the order of the rows in the active party's table.

    A passive party knows the order of the common ids. If it were similar, the passive party would learn how the active
    party's table is sorted.

    Args:
        parties: number of parties.
        transfers: whether the alignment uses oblivious transfers in place of elliptic curves.

    Returns:
        The rank correlation of the two orders: near 0 if the common ids are in random order.
    """
    ids = [shuffled(300, seed) for seed in range(parties)]
    view = PartyView(ids, transfers=transfers)
    shared = [ids[1][row] for row in view.rows["shop"]]
    return agreement(range(300), [ids[0].index(n) for n in shared])


@flows
@pytest.mark.parametrize("parties", [2, 3])
def test_the_shared_order_follows_no_partys_rows(parties: int, transfers: bool) -> None:
    assert abs(shared_order_follows_rows(parties, transfers=transfers)) < 0.37


def test_the_check_detects_the_active_partys_order(monkeypatch: pytest.MonkeyPatch) -> None:
    leak = {n: place.to_bytes(8, "big") + bytes(8) for place, n in enumerate(shuffled(300, 0))}
    named = {key: n for n, key in enumerate(canonical_ids(range(300)))}

    def by_rows(work: AlignmentWork, rows: np.ndarray) -> np.ndarray:
        tolist = [leak[named[work.ids[row]]] for row in rows.tolist()]
        return rows[np.argsort(tolist)]

    monkeypatch.setattr(AlignmentWork, "in_shared_order", by_rows)
    assert shared_order_follows_rows(2) > 0.99


@pytest.mark.parametrize("parties", [2, 3])
def test_two_alignments_cannot_be_linked(parties: int) -> None:
    assert points_seen_twice(parties) == 0


@pytest.mark.parametrize("parties", [2, 3])
def test_the_check_detects_a_reused_scalar(parties: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(psi_work, "fresh_scalar", lambda: b"\x05" * 32)
    assert points_seen_twice(parties) == 30


def points_seen_twice(parties: int) -> int:
    """Return how many of 30 ids that occur in two runs a passive party recognises."""
    first = PartyView([list(range(50))] * parties)
    second = PartyView([list(range(20, 70))] * parties)
    return len(set(first.points("shop", "bank")) & set(second.points("shop", "bank")))


def dictionary_hits() -> int:
    """Return the points from A that B recognises, given every possible id and its scalar."""
    view = PartyView([list(range(0, 40)), list(range(20, 60))])
    hashed = hash_to_group(canonical_ids(range(60)))
    blinded = view.work["shop"].blinder.blind(hashed)
    known = {raw[at : at + 32] for raw in (hashed, blinded) for at in range(0, len(raw), 32)}
    return len(known & set(view.points("shop", "bank")))


def test_a_party_that_knows_all_ids_recognises_none() -> None:
    assert dictionary_hits() == 0


def test_the_check_detects_a_shared_scalar(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(psi_work, "fresh_scalar", lambda: b"\x05" * 32)
    assert dictionary_hits() == 40


SETS = [list(range(0, 60)), list(range(20, 90)), list(range(40, 120)), list(range(50, 130))]


def masked_shares(view: PartyView, passive: str) -> okvs.Words:
    """Return v_i of P_1's ids: the answers of this party's store without F_i."""
    work = view.work["bank"]
    number = work.passives.index(passive)
    (head,) = view.received("bank", passive, StoreHeader)
    (v,) = okvs.decode(head.seed, work.keys, psi_work.words(work.journal.read(f"store-{number}")))
    if work.transfers:
        return v ^ evaluated(work, passive, work.keys)[:, :2]
    v[sort_points(work.journal.read("mine"))[1]] ^= psi_work.words(work.journal.read(f"back-{number}"), 4)[:, :2]
    return v


def evaluated(work: AlignmentWork, passive: str, keys: okvs.Words) -> okvs.Words:
    """Return what P_1 can compute of F_i on any keys, from its journal."""
    chunk = work.journal.chunk("request", 0)
    slots = (len(chunk) - okvs.OKVS_SEED_BYTES) // okvs.VALUE_BYTES
    _, c = psi_transfers._receive_vole(work, passive, slots, 1 << 40)
    return vole_prf.evaluate_stored(PrfHash(psi_transfers._coin(work, "all")), chunk[: okvs.OKVS_SEED_BYTES], c, keys)


def pairwise_guesses(parties: int, *, transfers: bool = False) -> dict[str, set[int]]:
    """Return the ids that P_1 finds in the set of one passive party alone.

    It looks for ids whose v_i(x) is zero after removing any of its pair keys.
    """
    view = PartyView(SETS[:parties], transfers=transfers)
    work = view.work["bank"]
    prf = [psi_work.keyed(key, work.keys) for key in work.pair_keys.values()]
    results: dict[str, set[int]] = {}
    for passive in NAMES[1:parties]:
        v = masked_shares(view, passive)
        hits = np.zeros(work.rows, np.bool_)
        for subset in range(1 << len(prf)):
            remaining = v.copy()
            for key, share in enumerate(prf):
                if subset >> key & 1:
                    remaining ^= share
            hits |= ~remaining.any(axis=1)
        results[passive] = {SETS[0][row] for row in np.flatnonzero(hits)}
    return results


def truth(parties: int) -> dict[str, set[int]]:
    return {name: set(SETS[0]) & set(SETS[k]) for k, name in enumerate(NAMES[:parties]) if k}


@flows
@pytest.mark.parametrize("parties", [3, 4])
def test_the_active_party_learns_no_single_membership(parties: int, transfers: bool) -> None:
    assert not any(pairwise_guesses(parties, transfers=transfers).values())


@flows
@pytest.mark.parametrize("parties", [3, 4])
def test_the_check_detects_missing_zero_sharing(parties: int, transfers: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(AlignmentWork, "zero_share", lambda work: np.zeros((work.rows, 2), np.uint64))
    assert pairwise_guesses(parties, transfers=transfers) == truth(parties)


def test_the_check_detects_zero_sharing_with_the_active_party(monkeypatch: pytest.MonkeyPatch) -> None:
    share = AlignmentWork.zero_share

    def with_active_only(work: AlignmentWork) -> np.ndarray:
        if work.me != work.active:
            work.pair_keys = {work.active: work.pair_keys[work.active]}
        return share(work)

    monkeypatch.setattr(AlignmentWork, "zero_share", with_active_only)
    assert pairwise_guesses(3) == truth(3)


def pairs_of_values(parties: int) -> int:
    """Return ids for which v_2(x) ^ v_3(x), without its keys, shows P_1 that shop and telco have them."""
    view = PartyView(SETS[:parties])
    work = view.work["bank"]
    total = np.zeros((work.rows, 2), np.uint64)
    for passive in ["shop", "telco"]:
        total ^= masked_shares(view, passive)
        total ^= psi_work.keyed(work.pair_keys[passive], work.keys)
    return int((~total.any(axis=1)).sum())


def test_two_of_three_passive_parties_stay_hidden_together() -> None:
    assert pairs_of_values(4) == 0


def test_the_check_detects_a_party_without_zero_sharing(monkeypatch: pytest.MonkeyPatch) -> None:
    share = AlignmentWork.zero_share

    def without_clinic(work: AlignmentWork) -> np.ndarray:
        work.pair_keys = {peer: key for peer, key in work.pair_keys.items() if "clinic" not in (peer, work.me)}
        return share(work)

    monkeypatch.setattr(AlignmentWork, "zero_share", without_clinic)
    assert pairs_of_values(4) == 20
