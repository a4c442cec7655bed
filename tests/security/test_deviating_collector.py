"""An active party that deviates in a sum with a threshold so as to read one part: carried out, and refused.

Each attack succeeds where the one check that stops it is taken away.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from cryptography.exceptions import InvalidTag

import securevfl as vfl
from securevfl.base.roles import Roles
from securevfl.crypto.masking.agreement import KeyPair
from securevfl.crypto.masking.shamir import SHARE_BYTES, Share, combine
from securevfl.crypto.prg import Prg
from securevfl.errors import ProtocolError, SecureVFLError, TransportError
from securevfl.protocols.seat import Seat
from securevfl.protocols.spaces import Circle, Reals
from securevfl.protocols.sums.dropout_sum import (
    Commit,
    Commits,
    DoubleMasked,
    DropoutCollector,
    DropoutMember,
    SeedShares,
    Survivors,
    Told,
    pair_seeds,
)
from securevfl.protocols.sums.pairwise_sum import PairwiseSum
from securevfl.protocols.sums.sum_residues import unpack
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
    parts = parts_of(passives)
    errors: list[SecureVFLError] = []
    read: list[np.ndarray] = []

    def play(channel: Channel) -> None:
        seat = Seat(channel, Roles.sum("a", passives), Meter(channel.clock, channel.books))
        if channel.me == "a":
            read.append(collector(seat, threshold, 60.0).collect((ROWS,), SPACE))
            raise TransportError("the attacker has what it wanted; nobody need wait")
        try:
            member(seat, threshold).contribute(parts[channel.me], SPACE)
        except ProtocolError as error:
            errors.append(error)
            raise

    with contextlib.suppress(SecureVFLError):
        run_threads(
            dict.fromkeys(("a", *passives), play),
            lambda: VirtualClock(vfl.Network()),
            timeout=60,
            observe=events.append,
        )
    return (read[0] if read else None), parts[VICTIM], errors


def sent_by(events: list[Event], name: str) -> list[type]:
    return [type(event.message) for event in events if event.me == name and event.direction == "send"]


def both(seat: Seat, names: Sequence[str]) -> tuple[dict[str, Told], dict[str, DoubleMasked]]:
    """What the members send in step 3."""
    told = {name: seat.channel.recv(name, Told, seat.lane) for name in names}
    return told, {name: seat.channel.recv(name, DoubleMasked, seat.lane) for name in names}


def tags_of(told: Told, sender: str, list_of_sender: Sequence[str]) -> dict[str, bytes]:
    """By receiver."""
    return dict(zip([name for name in list_of_sender if name != sender], told.tags, strict=True))


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
        told, masked = both(seat, list(commits))
        y = unpack(masked[VICTIM].residues, shape, space, VICTIM)
        for name in own:
            made = [tags_of(told[other], other, list(commits)) for other in commits if other != name]
            seat.channel.send(name, Survivors(list(commits), [tags[name] for tags in made]), lane)
        opened = [seat.channel.recv(name, SeedShares, lane) for name in own]
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
        told, masked = both(seat, list(commits))
        for name, survivors in self.LISTS.items():
            made = {
                other: tags_of(told[other], other, [x for x in commits if other != VICTIM or x in "bcd"])
                for other in survivors
                if other != name
            }
            tags = [found.get(name, bytes(32)) for found in made.values()]
            seat.channel.send(name, Survivors(list(survivors), tags), lane)
        opened = {name: seat.channel.recv(name, SeedShares, lane).shares for name in self.LISTS}
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


def test_members_who_were_told_different_things_open_no_share() -> None:
    events: list[Event] = []
    read, _, errors = attacked(TellsTwoLists, DropoutMember, tuple("bcdef"), 3, events)
    assert read is None
    assert errors
    assert all("b was told of others than" in str(error) for error in errors)
    assert not any(SeedShares in sent_by(events, name) for name in "bcdef")


def test_without_tags_two_lists_would_give_a_part_away() -> None:
    read, part, _ = attacked(TellsTwoLists, TrustsKeysAndLists, tuple("bcdef"), 3, [])
    assert np.array_equal(read, part)


def sealed_in_two_sums(member: type[DropoutMember], until_silent: Any) -> tuple[bytes, bytes]:
    """What b seals for c in a sum that fails for lack of an answer, and in the sum that b is then asked for."""
    sealed: list[bytes] = []

    def play(channel: Channel) -> None:
        seat = Seat(channel, Roles.sum("a", ("b", "c")), Meter(channel.clock, channel.books))
        if channel.me == "a":
            sealed.extend(channel.recv("b", Commit).sealed[1] for _ in range(2))
            return
        role = member(seat, 2)
        if channel.me == "b":
            until_silent(channel, {"a"})
            for _ in range(2):
                with contextlib.suppress(TransportError):
                    role.contribute(np.zeros(3, np.uint32), SPACE)

    run_threads(dict.fromkeys("abc", play), lambda: VirtualClock(vfl.Network()), timeout=60)
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


def test_a_sum_that_failed_is_not_sealed_again_under_its_key_and_nonce(until_silent: Any) -> None:
    assert not keystream_repeats(*sealed_in_two_sums(DropoutMember, until_silent))
    assert keystream_repeats(*sealed_in_two_sums(AdvancesLate, until_silent))


@pytest.mark.parametrize("change", [lambda tags: tags[:-1], lambda tags: [*tags, b""], lambda tags: []])
def test_tags_that_are_missing_are_named(change: Callable[[list[bytes]], list[bytes]]) -> None:
    class Mutilates(DropoutMember):
        def __init__(self, seat: Seat, threshold: int) -> None:
            super().__init__(seat, threshold)
            send = seat.channel.send
            seat.channel.send = lambda to, message, lane="", told=None: send(
                to,
                Told(change(message.tags)) if isinstance(message, Told) and seat.me == "c" else message,
                lane,
                told=told,
            )

    names = ("a", "b", "c", "d")

    def play(channel: Channel) -> None:
        seat = Seat(channel, Roles.sum("a", names[1:]), Meter(channel.clock, channel.books))
        if channel.me == "a":
            PairwiseSum(threshold=2, patience=60).role(seat).collect((3,), SPACE)
        else:
            with contextlib.suppress(TransportError):
                Mutilates(seat, 2).contribute(np.zeros(3, np.uint32), SPACE)

    with pytest.raises(ProtocolError, match="c was expected to send 2 tags"):
        run_threads(dict.fromkeys(names, play), lambda: VirtualClock(vfl.Network()), timeout=60)
