"""Public values that a peer chooses, chosen badly: each must be refused, or do no harm.

keys        a lattice key with both halves, a Paillier modulus that shares a factor with phi(n), a weak Paillier base
shapes      a blinded product wider than agreed (in `engines`)
sums        keys exchanged on the way, lists that differ, a sum called again after it failed
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import gmpy2
import numpy as np
from gmpy2 import mpz

from securevfl.audit.transcripts import Outcome
from securevfl.base.roles import Roles
from securevfl.crypto.lattice import sealio
from securevfl.crypto.lattice.lattice_product import LatticeScheme
from securevfl.crypto.lattice.profile import PUBLIC, Parameters
from securevfl.crypto.masking.agreement import KeyPair
from securevfl.crypto.masking.shamir import SHARE_BYTES
from securevfl.crypto.paillier.modulus_proof import ROOTS
from securevfl.crypto.paillier.paillier_keys import PublicKey, SecretKey
from securevfl.crypto.paillier.paillier_product import PaillierHolder, PaillierScheme
from securevfl.crypto.scheme import KeyHolder
from securevfl.errors import CryptoError, SecureVFLError, TransportError
from securevfl.protocols.seat import Seat
from securevfl.protocols.spaces import Circle
from securevfl.protocols.sums.dropout_sum import (
    Commit,
    Commits,
    DoubleMasked,
    DropoutCollector,
    DropoutMember,
    SeedShares,
    Survivors,
    Told,
)
from securevfl.runtime.channel import Channel, Event
from securevfl.runtime.clock import WallClock
from securevfl.runtime.meter import Meter
from securevfl.runtime.threads import run_threads
from selfcheck.checks import engine_checks

_BITS = 2048
_SPACE = Circle(32)


def lattice_key() -> Outcome:
    """Check that a public key that names its second half is refused: the evaluator expands that half from a seed."""
    ring = Parameters().ring
    half = sealio.packed_size(ring.key_primes, ring.degree)
    magic = LatticeScheme().keygen().public[: PUBLIC.size]
    return _refused("a lattice key with both halves", lambda: LatticeScheme().evaluator(magic + bytes(2 * half)))


def paillier_modulus() -> Outcome:
    """n = p p r: powers of x do not reach all n-th residues, so that a reply would tell exponents modulo p."""
    p, r = gmpy2.next_prime(mpz(1) << 683), gmpy2.next_prime(mpz(3) << 680)
    public = PublicKey(int(p * p * r), 4, [2] * ROOTS)
    return _refused("n = p p r", lambda: PublicKey.load(public.data, _BITS))


def _refused(what: str, work: Callable[[], Any]) -> Outcome:
    outcome = Outcome()
    try:
        work()
    except CryptoError:
        return outcome
    outcome.add("refusal", "evaluator", f"{what} is accepted")
    return outcome


def weak_base() -> Outcome:
    """Check that under a Paillier key whose h has order 3 replies are as fresh as under any other."""
    return engine_checks.linear(PaillierScheme(_BITS), holders=_weak_holder)


def _weak_holder() -> KeyHolder:
    while True:
        key = SecretKey.generate(_BITS)
        p = mpz(key._p)
        lead = gmpy2.powmod(2, p * ((p - 1) // 3), p * p) if p % 3 == 1 else mpz(1)
        if lead != 1:
            break
    data, width = key.public.data, _BITS // 8
    roots = [int.from_bytes(data[i : i + width], "big") for i in range(len(data) - ROOTS * width, len(data), width)]
    key.public = PublicKey(int(key.public.n), int(key._join(lead, mpz(1))), roots)
    return PaillierHolder(key)


class _Tampers(DropoutCollector):
    """Changes what the first member is told, and stops once it has answered."""

    change: Callable[[Commits], Commits] = staticmethod(lambda commits: commits)
    tag: bytes | None = None

    def collect(self, shape: tuple[int, ...], space: Any) -> Any:
        seat = self._seat
        self._round += 1
        commits = self._gather(Commit, self._members)
        for place, name in enumerate(seat.contributors):
            publics = [commit.public for commit in commits.values()]
            told = Commits(list(commits), publics, [commit.sealed[place] for commit in commits.values()])
            seat.channel.send(name, self.change(told) if place == 0 else told, seat.lane)
        heard = {name: seat.channel.recv(name, Told, seat.lane) for name in commits}
        for name in commits:
            seat.channel.recv(name, DoubleMasked, seat.lane)
        tags = [self.tag or heard[name].tags[0] for name in seat.contributors[1:]]  # each one's first is for the first
        seat.channel.send(seat.contributors[0], Survivors(list(commits), tags), seat.lane)
        seat.channel.recv(seat.contributors[0], SeedShares, seat.lane)
        raise TransportError("the check has seen what it wanted to see; nobody need wait")


def _sent_by_first(collector: type[DropoutCollector]) -> set[str]:
    """Return the kinds of messages that the first of three members of a sum sends before it stops, or before the
    collector does."""
    passives, events = ("P1", "P2", "P3"), list[Event]()

    def play(channel: Channel) -> None:
        seat = Seat(channel, Roles.sum("active", passives), Meter(channel.clock, channel.books))
        if channel.me == "active":
            collector(seat, 2, 5.0).collect((4,), _SPACE)
        else:
            DropoutMember(seat, 2).contribute(np.zeros(4, np.uint32), _SPACE)

    with contextlib.suppress(SecureVFLError):
        run_threads(dict.fromkeys(("active", *passives), play), WallClock, timeout=5.0, observe=events.append)
    return {type(event.message).__name__ for event in events if event.me == "P1" and event.direction == "send"}


def exchanged_keys() -> Outcome:
    """Check that a member whose peers' keys were exchanged on the way stops before its masked part leaves."""

    class Exchanges(_Tampers):
        @staticmethod
        def change(commits: Commits) -> Commits:
            return Commits(commits.names, [commits.publics[0], *(KeyPair().public for _ in "23")], commits.sealed)

    outcome = Outcome()
    if DoubleMasked.__name__ in _sent_by_first(Exchanges):
        outcome.add("refusal", "P1", "sends its part under masks made with keys that were exchanged")
    return outcome


def different_lists() -> Outcome:
    """Check that a member opens no share beside parties who were told of other parties than it was."""

    class Differs(_Tampers):
        tag = bytes(32)

    outcome = Outcome()
    if SeedShares.__name__ in _sent_by_first(Differs):
        outcome.add("refusal", "P1", "opens shares although the tags of the others do not fit")
    if SeedShares.__name__ not in _sent_by_first(_Tampers):
        outcome.add("refusal", "audit", "no share is opened for tags that fit; the check sees nothing")
    return outcome


def failed_sum() -> Outcome:
    """Check that a sum that failed and is called again is sealed under other keys."""
    sealed: list[bytes] = []

    def play(channel: Channel) -> None:
        seat = Seat(channel, Roles.sum("active", ("P1", "P2")), Meter(channel.clock, channel.books))
        if channel.me == "active":
            sealed.extend(channel.recv("P1", Commit, timeout=60.0).sealed[1] for _ in range(2))
            return
        role = DropoutMember(seat, 2)
        for _ in range(2 if channel.me == "P1" else 0):
            with contextlib.suppress(TransportError):
                role.contribute(np.zeros(3, np.uint32), _SPACE)

    run_threads(dict.fromkeys(("active", "P1", "P2"), play), WallClock, timeout=0.5)
    outcome = Outcome()
    places = [0, 1, SHARE_BYTES, SHARE_BYTES + 1]  # the number of the holder of each share: known, and the same
    if len(sealed) < 2 or all(sealed[0][place] == sealed[1][place] for place in places):
        outcome.add("nonce", "P1", "seals the shares of two sums under one keystream")
    return outcome


CHECKS: dict[str, Callable[[], Outcome]] = {
    "lattice keys come as seeds": lattice_key,
    "Paillier moduli are proved": paillier_modulus,
    "engine paillier, weak base": weak_base,
    "exchanged keys are refused": exchanged_keys,
    "lists that differ are refused": different_lists,
    "failed sums are sealed anew": failed_sum,
}
