"""An active party that deviates in a sum with a threshold so as to read one part: carried out, and refused.

Each attack succeeds where the one check that stops it is taken away.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from cryptography.exceptions import InvalidTag

import securevfl as vfl
from securevfl.crypto.agreement import KeyPair
from securevfl.crypto.prg import Prg
from securevfl.crypto.shamir import SHARE_BYTES, Share, combine
from securevfl.errors import ProtocolError, SecureVFLError, TransportError
from securevfl.protocols.base import Circle, Reals, Seat
from securevfl.protocols.dropout_sum import (
    Commit,
    Commits,
    DoubleMasked,
    DropoutCollector,
    DropoutMember,
    Shares,
    Survivors,
    pair_seeds,
)
from securevfl.protocols.pairwise_sum import PairwiseSum
from securevfl.protocols.residues import unpack
from securevfl.roles import Roles
from securevfl.runtime.channel import Channel, Event
from securevfl.runtime.clock import VirtualClock
from securevfl.runtime.meter import Meter
from securevfl.runtime.threads import run_threads

ROWS = 40
SPACE = Circle(32)
VICTIM = "b"


def parts_of(names: Sequence[str]) -> dict[str, np.ndarray]:
    generator = np.random.default_rng(0)
    return {name: generator.integers(2**32, size=ROWS, dtype=np.uint64).astype(np.uint32) for name in names}


def attacked(
    collector: type[DropoutCollector],
    member: type[DropoutMember],
    passives: Sequence[str],
    threshold: int,
    events: list[Event],
) -> tuple[np.ndarray | None, np.ndarray, list[SecureVFLError]]:
    """What the active party reads of the victim's part, that part, and the errors of the members."""
    parts, errors = parts_of(passives), []

    def play(channel: Channel) -> np.ndarray | None:
        seat = Seat(channel, Roles.sum("a", passives), Meter(channel.clock, channel.books))
        if channel.me == "a":
            try:
                return collector(seat, threshold, 1.5).collect((ROWS,), SPACE)
            except TransportError:
                return None
        try:
            member(seat, threshold).contribute(parts[channel.me], SPACE)
        except ProtocolError as error:
            errors.append(error)
        except TransportError:
            pass
        return None

    names = ("a", *passives)
    found = run_threads(
        dict.fromkeys(names, play), lambda: VirtualClock(vfl.Network()), timeout=2.0, observe=events.append
    )
    return found["a"], parts[VICTIM], errors


def sent_by(events: list[Event], name: str) -> list[type]:
    return [type(event.message) for event in events if event.me == name and event.direction == "send"]


class ExchangesKeys(DropoutCollector):
    """Hands the victim keys of its own in place of the others', and has the others open the victim's self mask."""

    def collect(self, shape: tuple[int, ...], space: Reals | Circle) -> np.ndarray:
        self._round += 1
        seat, lane = self._seat, self._seat.lane
        commits = self._gather(Commit, self._members)
        own = {name: KeyPair() for name in commits if name != VICTIM}
        for name in commits:
            place = seat.contributors.index(name)
            publics = [
                own[other].public if name == VICTIM and other in own else commit.public
                for other, commit in commits.items()
            ]
            sealed = [commit.sealed[place] for commit in commits.values()]
            seat.channel.send(name, Commits(list(commits), publics, sealed), lane)
        y = unpack(seat.channel.recv(VICTIM, DoubleMasked, lane, timeout=1.5).residues, shape, space, VICTIM)
        masked = {name: seat.channel.recv(name, DoubleMasked, lane, timeout=1.5) for name in own}
        for name in own:
            place = list(commits).index(name)
            tags = [masked[other].tags[place] if other in masked else bytes(32) for other in commits]
            seat.channel.send(name, Survivors(list(commits), tags), lane)
        opened = [seat.channel.recv(name, Shares, lane, timeout=1.5) for name in own]
        at = list(commits).index(VICTIM)
        b = combine([Share.from_bytes(shares.shares[at]) for shares in opened], threshold=self._threshold)
        seeds = {
            name: pair_seeds(seat, name, pair, {VICTIM: commits[VICTIM].public}, self._round)[VICTIM]
            for name, pair in own.items()
        }
        return stripped(y, b, seeds)


def stripped(y: np.ndarray, b: bytes, seeds: dict[str, bytes]) -> np.ndarray:
    """The victim's y less the self mask under b and the pair masks under these seeds."""
    part = y - Prg(b, "self mask").array(len(y), np.uint32)
    for peer, seed in seeds.items():
        mask = Prg(seed, "pair mask").array(len(y), np.uint32)
        part += -mask if peer > VICTIM else mask
    return part


class TrustsKeys(DropoutMember):
    """Opens what was sealed for it where it can, and goes on."""

    def _unseal(self, commits: Commits, own_shares: bytes) -> dict[str, bytes]:
        found = {}
        for name, public, sealed in zip(commits.names, commits.publics, commits.sealed, strict=True):
            found[name] = own_shares
            with contextlib.suppress(InvalidTag):
                if name != self._seat.me:
                    found[name] = self._cipher(self._seat.me, name).decrypt(bytes(12), sealed, public)
        return found


class TrustsKeysAndLists(TrustsKeys):
    """Nor asks what others were told."""

    def _receive_survivors(self, commits: Commits) -> frozenset[str]:
        return frozenset(self._seat.channel.recv(self._seat.collector, Survivors, self._seat.lane).names)


def test_exchanged_keys_are_refused_before_a_masked_part_leaves() -> None:
    events: list[Event] = []
    read, _, errors = attacked(ExchangesKeys, DropoutMember, ("b", "c", "d"), 2, events)
    assert read is None
    assert any("the key or the shares of c came altered through a" in str(error) for error in errors)
    assert Commit in sent_by(events, VICTIM)
    assert DoubleMasked not in sent_by(events, VICTIM)


def test_exchanged_keys_would_give_a_part_away() -> None:
    read, part, _ = attacked(ExchangesKeys, TrustsKeysAndLists, ("b", "c", "d"), 2, [])
    assert np.array_equal(read, part)


class TellsTwoLists(DropoutCollector):
    """Of b to f with t = 3: tells b that c and d alone have committed, and the others what suits it of who dropped."""

    LISTS = {"c": "bcef", "d": "bdef", "e": "bef", "f": "bef"}

    def collect(self, shape: tuple[int, ...], space: Reals | Circle) -> np.ndarray:
        self._round += 1
        seat, lane = self._seat, self._seat.lane
        commits = self._gather(Commit, self._members)
        for name in commits:
            told = [other for other in commits if name != VICTIM or other in "bcd"]
            sealed = [commits[other].sealed[seat.contributors.index(name)] for other in told]
            seat.channel.send(name, Commits(told, [commits[other].public for other in told], sealed), lane)
        masked = {name: seat.channel.recv(name, DoubleMasked, lane, timeout=1.5) for name in commits}
        for name, survivors in self.LISTS.items():
            tags = [self._tag_of(masked[other], other, name, list(commits)) for other in survivors]
            seat.channel.send(name, Survivors(list(survivors), tags), lane)
        opened = {name: seat.channel.recv(name, Shares, lane, timeout=1.5).shares for name in self.LISTS}
        order = list(commits)

        def secret(owner: str, holders: str) -> list[Share]:
            return [Share.from_bytes(opened[holder][order.index(owner)]) for holder in holders]

        b = combine(secret("b", "cef"), threshold=3)
        holders = {"c": "def", "d": "cef"}
        pairs = {name: KeyPair.restore(secret(name, those), threshold=3) for name, those in holders.items()}
        seeds = {
            name: pair_seeds(seat, name, pair, {VICTIM: commits[VICTIM].public}, self._round)[VICTIM]
            for name, pair in pairs.items()
        }
        return stripped(unpack(masked[VICTIM].residues, shape, space, VICTIM), b, seeds)

    @staticmethod
    def _tag_of(message: DoubleMasked, sender: str, receiver: str, order: list[str]) -> bytes:
        told = [name for name in order if sender != VICTIM or name in "bcd"]
        return message.tags[told.index(receiver)] if receiver in told else bytes(32)


def test_members_who_were_told_different_things_open_no_share() -> None:
    events: list[Event] = []
    read, _, errors = attacked(TellsTwoLists, DropoutMember, tuple("bcdef"), 3, events)
    assert read is None
    assert sum("b was told of others than" in str(error) for error in errors) == 4
    assert not any(Shares in sent_by(events, name) for name in "bcdef")


def test_without_tags_two_lists_would_give_a_part_away() -> None:
    read, part, _ = attacked(TellsTwoLists, TrustsKeysAndLists, tuple("bcdef"), 3, [])
    assert np.array_equal(read, part)


def sealed_in_two_sums(member: type[DropoutMember]) -> tuple[bytes, bytes]:
    """What b seals for c in a sum that fails for lack of an answer, and in the sum that b is then asked for."""
    sealed: list[bytes] = []

    def play(channel: Channel) -> None:
        seat = Seat(channel, Roles.sum("a", ("b", "c")), Meter(channel.clock, channel.books))
        if channel.me == "a":
            sealed.extend(channel.recv("b", Commit, timeout=60.0).sealed[1] for _ in range(2))
            return
        role = member(seat, 2)
        if channel.me == "b":
            for _ in range(2):
                with contextlib.suppress(TransportError):
                    role.contribute(np.zeros(3, np.uint32), SPACE)

    run_threads(dict.fromkeys("abc", play), lambda: VirtualClock(vfl.Network()), timeout=0.5)
    return sealed[0], sealed[1]


def keystream_repeats(first: bytes, second: bytes) -> bool:
    """The places of a share and its holder's number are known (its first two bytes): equal under one keystream."""
    places = [0, 1, SHARE_BYTES, SHARE_BYTES + 1]
    return all(first[place] == second[place] for place in places)


class AdvancesLate(DropoutMember):
    """Counts a sum when it has succeeded."""

    def contribute(self, values: np.ndarray, space: Reals | Circle) -> None:
        before = self._round
        try:
            super().contribute(values, space)
        except SecureVFLError:
            self._round = before
            raise


def test_a_sum_that_failed_is_not_sealed_again_under_its_key_and_nonce() -> None:
    assert not keystream_repeats(*sealed_in_two_sums(DropoutMember))
    assert keystream_repeats(*sealed_in_two_sums(AdvancesLate))


@pytest.mark.parametrize("change", [lambda tags: tags[:-1], lambda tags: [*tags, b""], lambda tags: []])
def test_tags_that_are_missing_are_named(change: Callable[[list[bytes]], list[bytes]]) -> None:
    class Mutilates(DropoutMember):
        def __init__(self, seat: Seat, threshold: int) -> None:
            super().__init__(seat, threshold)
            send = seat.channel.send
            seat.channel.send = lambda to, message, lane="": send(
                to,
                DoubleMasked(message.residues, change(message.tags))
                if isinstance(message, DoubleMasked) and seat.me == "c"
                else message,
                lane,
            )

    names = ("a", "b", "c", "d")

    def play(channel: Channel) -> None:
        seat = Seat(channel, Roles.sum("a", names[1:]), Meter(channel.clock, channel.books))
        if channel.me == "a":
            PairwiseSum(threshold=2, patience=2.0).role(seat).collect((3,), SPACE)
        else:
            with contextlib.suppress(TransportError):
                Mutilates(seat, 2).contribute(np.zeros(3, np.uint32), SPACE)

    with pytest.raises(ProtocolError, match="c was expected to send 3 tags"):
        run_threads(dict.fromkeys(names, play), lambda: VirtualClock(vfl.Network()), timeout=5.0)
