"""Who must collude to learn a part of a sum that outlives dropouts, and what a late vector tells."""

import threading
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pytest

import securevfl as vfl
from securevfl.base.roles import Roles
from securevfl.crypto.masking import masks
from securevfl.crypto.masking.agreement import KeyPair
from securevfl.crypto.masking.shamir import SHARE_BYTES, Share, combine
from securevfl.crypto.prg import Prg
from securevfl.protocols.seat import Seat
from securevfl.protocols.sums import dropout_sum, pairwise_sum
from securevfl.protocols.sums.base import Coalition
from securevfl.protocols.sums.dropout_sum import Commit, Commits, DoubleMasked, DropoutMember, SeedShares, Survivors
from securevfl.runtime.channel import Channel, Event
from securevfl.runtime.clock import VirtualClock
from securevfl.runtime.meter import Meter
from securevfl.runtime.threads import run_threads
from tests.security.test_collusion import NAMES, SPACE, Transcript, parts_of
from tests.security.test_masks_of_sums import uniform


@pytest.fixture
def keys(monkeypatch: pytest.MonkeyPatch) -> dict[str, dict[str, bytes]]:
    """The pair keys that each party agrees on, by party."""
    found: dict[str, dict[str, bytes]] = {}
    exchange = pairwise_sum.exchange_keys

    def recorded(seat: Seat, pair: KeyPair, among: Sequence[str], *, domain: str) -> dict[str, bytes]:
        found[seat.me] = exchange(seat, pair, among, domain=domain)
        return found[seat.me]

    monkeypatch.setattr(pairwise_sum, "exchange_keys", recorded)
    monkeypatch.setattr(dropout_sum, "exchange_keys", recorded)
    return found


def opened_shares(run: Transcript, coalition: Iterable[str], target: str, keys: Any) -> tuple[list[Share], list[Share]]:
    """The coalition's shares of the target's s and b, out of what they were sent and their pair keys."""
    of_s, of_b = [], []
    for holder in sorted(coalition):
        own = next(e.message for e in run.events if e.me == holder and isinstance(e.message, Commits))
        place = own.names.index(target)
        role = run.roles[holder]
        assert isinstance(role, DropoutMember)
        role._round = 0
        both = role._cipher(holder, target).decrypt(bytes(12), own.sealed[place], own.publics[place])
        of_s.append(Share.from_bytes(both[:SHARE_BYTES]))
        of_b.append(Share.from_bytes(both[SHARE_BYTES:]))
    return of_s, of_b


def part_from_secrets(
    y: np.ndarray, target: str, session: str, publics: dict[str, bytes], s: KeyPair, b: bytes | None
) -> np.ndarray:
    """v_k out of y_k by taking off all pair masks, and the self mask where its seed is known."""
    part = y.copy()
    for peer, public in publics.items():
        seed = s.agree(public, session=session, own=target, peer=peer, domain="pair seed 0")
        mask = Prg(seed, "pair mask").array(len(y), np.uint32)
        part += -mask if target < peer else mask
    if b is not None:
        part -= Prg(b, "self mask").array(len(y), np.uint32)
    return part


def test_with_a_threshold_that_many_and_the_active_party_learn_a_part_and_fewer_do_not(
    keys: dict[str, dict[str, bytes]],
) -> None:
    sums = vfl.PairwiseSum(threshold=3)
    run = Transcript(sums, parts_of(NAMES))
    publics = {sender: m.public for sender, m in run.seen({"a"}, Commit)}
    for target, needed in sums.coalitions(NAMES).items():
        others = sorted(needed.among)
        assert needed == Coalition(frozenset({"a"}), frozenset(NAMES[1:]) - {target}, 3)
        y = next(np.frombuffer(m.residues, "<u4") for sender, m in run.seen({"a"}, DoubleMasked) if sender == target)
        of_s, of_b = opened_shares(run, others[:3], target, keys)
        with_peers = {name: public for name, public in publics.items() if name != target}
        s, b = KeyPair.restore(of_s, threshold=3), combine(of_b, threshold=3)
        assert np.array_equal(part_from_secrets(y, target, run.session, with_peers, s, b), run.parts[target][0])
        # two shares are two points of a parabola whose value at zero is free
        with pytest.raises(vfl.errors.CryptoError):
            combine(of_b[:2], threshold=3)
        assert sums.needed(5) == 3


def late_vector_is_readable(until_silent: Any) -> bool:
    """Party "c" is called dropped, so that the active party restores s_c; then its y_c arrives. Does it show v_c?"""
    called, names, silent = threading.Event(), NAMES[:5], set[str]()
    parts, events = parts_of(names, shape=1 << 13), list[Event]()
    session: list[str] = []

    class Gone(Exception):
        pass

    class Late(DropoutMember):
        def _receive_commits(self) -> Commits:
            commits = super()._receive_commits()
            silent.add("c")
            assert called.wait(60)
            return commits

        def _receive_survivors(self, commits: Commits) -> frozenset[str]:
            raise Gone

    def watch(event: Event) -> None:
        events.append(event)
        if isinstance(event.message, Survivors):
            called.set()

    def play(channel: Channel) -> None:
        seat = Seat(channel, Roles.sum("a", names[1:]), Meter(channel.clock, channel.books))
        session.append(f"{channel.session.hex()}/")
        if channel.me == "a":
            until_silent(channel, silent)
            vfl.PairwiseSum(threshold=3).role(seat).collect((1 << 13,), SPACE)
            return
        member = (Late if channel.me == "c" else DropoutMember)(seat, 3)
        try:
            member.contribute(parts[channel.me][0], SPACE)
        except Gone:
            return

    run_threads(dict.fromkeys(names, play), lambda: VirtualClock(vfl.Network()), timeout=30, observe=watch)
    at_active = [e for e in events if e.me == "a" and e.direction == "recv"]
    publics = {e.peer: e.message.public for e in at_active if isinstance(e.message, Commit)}
    order = list(publics)
    shares = [
        Share.from_bytes(e.message.shares[order.index("c")]) for e in at_active if isinstance(e.message, SeedShares)
    ]
    late = next(e.message for e in events if e.me == "c" and isinstance(e.message, DoubleMasked))
    with_peers = {name: public for name, public in publics.items() if name != "c"}
    s = KeyPair.restore(shares, threshold=3)
    read = part_from_secrets(np.frombuffer(late.residues, "<u4"), "c", session[0], with_peers, s, None)
    if np.array_equal(read, parts["c"][0]):
        return True
    assert uniform(read - parts["c"][0])
    return False


def test_a_late_vector_stays_hidden(until_silent: Any) -> None:
    assert not late_vector_is_readable(until_silent)


def test_a_late_vector_without_self_mask_is_caught(until_silent: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    apply = masks._apply

    def without_self_mask(total: Any, seed: bytes, label: str, *, add: bool) -> None:
        if label != "self mask":
            apply(total, seed, label, add=add)

    monkeypatch.setattr(masks, "_apply", without_self_mask)
    assert late_vector_is_readable(until_silent)
