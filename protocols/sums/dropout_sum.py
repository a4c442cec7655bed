"""Pairwise sum that outlives dropped parties: double masks and shared secrets (Bonawitz et al. 2017, Figure 2).

Of n contributors t ("threshold", more than n / 2) must stay to the end. Fresh secrets for every sum:

0. k <-> j                    X25519 public keys              once; HKDF gives the key k_kj that seals shares
1. k -> collector             public key s_k^P of a pair (s_k, s_k^P) made for this sum; for each j, sealed under k_kj,
                              j's Shamir shares of s_k and of b_k, the seed of the self mask
2. collector -> k             for all who committed in 1: public keys, and the shares sealed for k
   k                          opens all of these shares, and stops here if one does not open
3. k -> collector             for each j a tag, under k_kj, of who has committed as k was told in 2
   k -> collector             y_k = v_k + PRG(b_k) + sum_{j > k} PRG(s_kj) - sum_{j < k} PRG(s_kj), s_kj from s_k, s_j^P
4. collector -> k             whose y_j came: the survivors, and the tag that each of them made for k
   k                          stops if one of them was told something else in 2
5. k -> collector             for each survivor its share of b_j, for each other who committed its share of s_j
   collector                  from t shares each: b_j of the survivors, s_j of the dropped, and so all masks

The collector learns the sum over the survivors. Nobody opens both b_k and s_k for one party: a member answers one
list of survivors a sum. So y_k stays uniform if it arrives after k was called dropped, when s_k is known and b_k is
not, and it does so for a survivor, whose s_k is not known. A party may drop between any two steps. Keys and seeds are
made anew for every sum, so what is opened for one says nothing of another. A party that has dropped is not asked again,
and what it sends late is not read. The number of the sum moves on before anything is sealed, so a sum that fails and is
called again seals under other keys.

A collector that deviates, with all others honest, learns no part either:

- Public keys of step 1 pass through it and are bound to the sealed shares as associated data. They are opened in step
  2, so y_k does not leave under masks made with keys it has exchanged.
- Lists of survivors that differ from party to party. To read y_k it needs b_k from t parties who call k a survivor,
  and s_j of every other j that k masked with, each from t parties who call j dropped (or s_k from t, but 2 t > n). The
  first t were all told one list of m in step 2, by the tags, and each of them calls at most m - t parties dropped, the
  others at most n - t each: t (m - t) + (n - t)^2 calls in all, and (m - 1) t are needed, which is more for 2 t > n.
- Lists in step 2 that differ: by the tags, whoever opens a share of b_k was told the same as k. (Without them, k told
  of two others, who are then called dropped by t more, would be read.)

It may make any sum fail, or be of fewer parties than came, but not of fewer than t.
"""

from __future__ import annotations

import hmac
import os
import time
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from numpy.typing import NDArray

from securevfl.base.arrays import Floats
from securevfl.base.roles import COLLECTOR, CONTRIBUTOR
from securevfl.crypto.masking.agreement import KeyPair
from securevfl.crypto.masking.masks import double_mask, unmask
from securevfl.crypto.masking.shamir import SHARE_BYTES, Share, combine_many, split
from securevfl.crypto.prg import KEY_BYTES, derive_key, encode_context
from securevfl.errors import PeerLost, ProtocolError, TransportError
from securevfl.protocols.declared import Declared, Reveal
from securevfl.protocols.seat import Seat
from securevfl.protocols.spaces import Phases, Space
from securevfl.protocols.sums.base import SumRole, part_of_sum
from securevfl.protocols.sums.sum_keys import exchange_keys, session
from securevfl.protocols.sums.sum_residues import from_residues, pack, residue_type, to_residues, unpack
from securevfl.runtime.clock import Kind
from securevfl.runtime.codec import M, Message
from securevfl.runtime.door import Telling

_NONCE = bytes(12)


class Commit(Message, frozen=True):
    """s_k^P, and for each passive party (in the order of the seat; empty for the sender) its sealed shares."""

    public: bytes
    sealed: list[bytes]


class Commits(Message, frozen=True):
    """Who has committed, their public keys, and the shares they sealed for the receiver."""

    names: list[str]
    publics: list[bytes]
    sealed: list[bytes]


class Told(Message, frozen=True):
    """The message with, for each of `Commits.names` but the sender, a tag of what the sender was told in step 2."""

    tags: list[bytes]


class DoubleMasked(Message, frozen=True):
    """The message with y_k, the party's part under pair masks and its own mask, as residues."""

    residues: bytes


class Survivors(Message, frozen=True):
    """Whose y_k came, and the tag that each of them but the receiver made for the receiver."""

    names: list[str]
    tags: list[bytes]


class SeedShares(Telling, frozen=True):
    """The sender's share of b (of a survivor) or of s (of a dropped party), for each of `Commits.names` in turn."""

    shares: list[bytes]


_STAYED = Reveal("output", "the sum of the parts of those that stayed, which over a run spans their columns")

DROPOUT_MESSAGES = [
    Declared(Commit, CONTRIBUTOR, COLLECTOR, Reveal("ciphertext", "the other passive parties"), structured=True),
    Declared(Commits, COLLECTOR, CONTRIBUTOR, Reveal("uniform"), structured=True, relays=True),
    Declared(Told, CONTRIBUTOR, COLLECTOR, Reveal("uniform"), structured=True),
    Declared(DoubleMasked, CONTRIBUTOR, COLLECTOR, Reveal("uniform")),
    Declared(Survivors, COLLECTOR, CONTRIBUTOR, Reveal("public"), relays=True),
    Declared(SeedShares, CONTRIBUTOR, COLLECTOR, _STAYED, structured=True),
]


class DropoutCollector(SumRole):
    """The active party's side. `dropped` names the passive parties that the last sum is without."""

    def __init__(self, seat: Seat, threshold: int, patience: float) -> None:
        self._seat = seat
        self._threshold = threshold
        self._patience = patience
        self._members: tuple[str, ...] = seat.contributors
        self._round = -1

    @property
    def dropped(self) -> tuple[str, ...]:
        return tuple(name for name in self._seat.contributors if name not in self._members)

    def contribute(self, values: Floats | Phases, space: Space) -> None:
        raise ProtocolError("pairwise sum: the active party collects; it adds its own part in the clear")

    def collect(self, shape: tuple[int, ...], space: Space) -> NDArray[Any]:
        """Return the sum over those who stayed; what the others have sent stays hidden.

        PeerLost if fewer than `threshold` answer, ProtocolError if shares do not fit.
        """
        self._round += 1
        commits = self._gather(Commit, self._members)  # 1
        self._hand_out(commits)  # 2
        told = self._gather(Told, commits)  # 3
        masked = self._gather(DoubleMasked, told)  # 3
        total = np.zeros(shape, residue_type(space))
        for name, message in masked.items():
            total += unpack(message.residues, shape, space, name)
        survivors = list(masked)
        self._tell_survivors(survivors, told, list(commits))  # 4
        opened = self._gather(SeedShares, survivors)  # 5
        total = self._take_off(total, commits, survivors, opened)
        self._members = tuple(opened)
        return from_residues(total, space, len(self._seat.contributors))

    def _hand_out(self, commits: Mapping[str, Commit]) -> None:
        passives = self._seat.contributors
        for name, commit in commits.items():
            if len(commit.sealed) != len(passives):
                raise ProtocolError(f"{name} was expected to share with {len(passives)}, not {len(commit.sealed)}")
        publics = [commit.public for commit in commits.values()]
        for name in commits:
            sealed = [commit.sealed[passives.index(name)] for commit in commits.values()]
            self._seat.channel.send(name, Commits(list(commits), publics, sealed), self._seat.lane)  # 2

    def _tell_survivors(self, survivors: Sequence[str], told: Mapping[str, Told], committed: Sequence[str]) -> None:
        made = {}
        for name in survivors:
            others = [other for other in committed if other != name]
            if len(told[name].tags) != len(others):
                raise ProtocolError(f"{name} was expected to send {len(others)} tags, not {len(told[name].tags)}")
            made[name] = dict(zip(others, told[name].tags, strict=True))
        for name in survivors:
            tags = [made[other][name] for other in survivors if other != name]
            self._seat.channel.send(name, Survivors(list(survivors), tags), self._seat.lane)  # 4

    def _take_off(
        self,
        total: NDArray[Any],
        commits: Mapping[str, Commit],
        survivors: Sequence[str],
        opened: Mapping[str, SeedShares],
    ) -> NDArray[Any]:
        by_party = {name: self._shares_of(place, len(commits), opened) for place, name in enumerate(commits)}
        t = self._threshold
        survived = [by_party[name] for name in survivors]
        seeds = dict(zip(survivors, combine_many(survived, threshold=t), strict=True))
        of_dropped = {}
        for name in commits:
            if name in seeds:
                continue
            pair = KeyPair.restore(by_party[name], threshold=t)
            if pair.public != commits[name].public:
                raise ProtocolError(f"pairwise sum: the shares of {name} do not lead to its key; run the sum again")
            publics = {survivor: commits[survivor].public for survivor in survivors}
            of_dropped[name] = pair_seeds(self._seat, name, pair, publics, self._round)
        return unmask(total, seeds, of_dropped)

    def _shares_of(self, place: int, committed: int, opened: Mapping[str, SeedShares]) -> list[Share]:
        shares = []
        for holder, message in opened.items():
            share = Share.from_bytes(message.shares[place]) if len(message.shares) == committed else None
            if share is None or share.x != self._seat.contributors.index(holder) + 1:
                raise ProtocolError(f"{holder} was expected to open its own share for each of {committed} parties")
            shares.append(share)
        return shares

    def _gather(self, kind: type[M], names: Collection[str]) -> dict[str, M]:
        """Gather what these parties answer within `patience`, all together."""
        ends = time.monotonic() + self._patience
        found: dict[str, M] = {}
        failure: TransportError | None = None
        for name in names:
            left = max(0.0, ends - time.monotonic())
            try:
                found[name] = self._seat.channel.recv(name, kind, self._seat.lane, timeout=left)
            except TransportError as error:
                failure = error
        if failure is not None:
            self._seat.channel.clock.offloaded(Kind.COMMUNICATION, self._patience)
        if len(found) < self._threshold:
            raise PeerLost(
                f"pairwise sum: {kind.__name__} of at least {self._threshold} passive parties was expected within "
                f"{self._patience:g} s, {len(found)} came; start those that are away"
            ) from failure
        return found


class DropoutMember(SumRole):
    """A passive party's side of the sum that outlives dropped parties."""

    def __init__(self, seat: Seat, threshold: int) -> None:
        self._seat = seat
        self._threshold = threshold
        self._keys = exchange_keys(seat, KeyPair(), seat.contributors, domain="shares")  # 0
        self._round = -1

    def contribute(self, values: Floats | Phases, space: Space) -> None:
        """ProtocolError if keys or shares came altered, if parties were told different things, if too few are called
        survivors, or this one dropped.
        """
        seat = self._seat
        self._round += 1  # first: a sum that fails is not sealed under its keys again
        told = part_of_sum(seat, values, space)
        part = to_residues(values, space, len(seat.contributors))
        pair, self_seed = KeyPair(), os.urandom(KEY_BYTES)
        own_shares = self._commit(pair, self_seed)  # 1
        commits = self._receive_commits()  # 2
        shares = self._unseal(commits, own_shares)
        publics = {name: public for name, public in zip(commits.names, commits.publics, strict=True) if name != seat.me}
        y = double_mask(seat.me, part, self_seed, pair_seeds(seat, seat.me, pair, publics, self._round))
        seat.channel.send(seat.collector, Told([self._tag(name, seat.me, commits) for name in publics]), seat.lane)  # 3
        seat.channel.send(seat.collector, DoubleMasked(pack(y)), seat.lane)  # 3
        survivors = self._receive_survivors(commits)  # 4
        seat.channel.send(seat.collector, self._open(shares, survivors), seat.lane, told=told)  # 5

    def collect(self, shape: tuple[int, ...], space: Space) -> NDArray[Any]:
        raise ProtocolError("pairwise sum: only the active party collects, the masks come off nowhere else")

    def _commit(self, pair: KeyPair, self_seed: bytes) -> bytes:
        """Send step 1 and keep this party's own shares."""
        seat = self._seat
        holders = len(seat.contributors)
        of_pair = pair.split(threshold=self._threshold, holders=holders)
        of_seed = split(self_seed, threshold=self._threshold, holders=holders)
        sealed = []
        for name, s, b in zip(seat.contributors, of_pair, of_seed, strict=True):
            secret = s.to_bytes() + b.to_bytes()
            sealed.append(self._cipher(name, seat.me).encrypt(_NONCE, secret, pair.public) if name != seat.me else b"")
        seat.channel.send(seat.collector, Commit(pair.public, sealed), seat.lane)  # 1
        own = seat.contributors.index(seat.me)
        return of_pair[own].to_bytes() + of_seed[own].to_bytes()

    def _receive_commits(self) -> Commits:
        commits = self._seat.channel.recv(self._seat.collector, Commits, self._seat.lane)  # 2
        names = set(commits.names)
        lengths = {len(commits.names), len(commits.publics), len(commits.sealed), len(names)}
        if (
            len(lengths) > 1
            or len(names) < self._threshold
            or not {self._seat.me} <= names <= set(self._seat.contributors)
        ):
            raise ProtocolError(
                f"{self._seat.collector} was expected to name at least {self._threshold} passive parties that have "
                f"committed, {self._seat.me} among them; it names {len(commits.names)}"
            )
        return commits

    def _receive_survivors(self, commits: Commits) -> Collection[str]:
        message = self._seat.channel.recv(self._seat.collector, Survivors, self._seat.lane)  # 4
        names = message.names
        others = [name for name in names if name != self._seat.me]
        if (
            len(message.tags) != len(others)
            or len(set(names)) < self._threshold
            or not {self._seat.me} <= set(names) <= set(commits.names)
        ):
            raise ProtocolError(
                f"{self._seat.collector} was expected to call at least {self._threshold} of those that committed "
                f"survivors, {self._seat.me} among them; it calls {len(names)}. No share is opened"
            )
        for name, tag in zip(others, message.tags, strict=True):
            if not hmac.compare_digest(tag, self._tag(name, name, commits)):
                raise ProtocolError(
                    f"{self._seat.collector} was expected to name the same committed parties to all; {name} was told "
                    f"of others than {self._seat.me}. No share is opened"
                )
        return frozenset(names)

    def _unseal(self, commits: Commits, own_shares: bytes) -> dict[str, bytes]:
        """Open this party's shares of s and b of all that committed. ProtocolError unless they belong to its key."""
        shares = {}
        for name, public, sealed in zip(commits.names, commits.publics, commits.sealed, strict=True):
            if name == self._seat.me:
                shares[name] = own_shares
                continue
            try:
                shares[name] = self._cipher(self._seat.me, name).decrypt(_NONCE, sealed, public)
            except InvalidTag:
                raise ProtocolError(
                    f"the key or the shares of {name} came altered through {self._seat.collector}; run the sum again"
                ) from None
        return shares

    def _open(self, shares: Mapping[str, bytes], survivors: Collection[str]) -> SeedShares:
        return SeedShares(
            [both[SHARE_BYTES:] if name in survivors else both[:SHARE_BYTES] for name, both in shares.items()]
        )

    def _tag(self, peer: str, sender: str, commits: Commits) -> bytes:
        """Return the tag by which one of this party and `peer`, the `sender`, tells the other its list of step 2."""
        told = [part for pair in zip(commits.names, commits.publics, strict=True) for part in pair]
        return derive_key(self._keys[peer], "committed", self._round, sender, encode_context(*told))

    def _cipher(self, holder: str, owner: str) -> ChaCha20Poly1305:
        """Seals the shares of one owner for one holder in one sum: the key serves once, so the nonce may stay."""
        peer = owner if holder == self._seat.me else holder
        return ChaCha20Poly1305(derive_key(self._keys[peer], "shares", self._round, owner))


def pair_seeds(seat: Seat, own: str, pair: KeyPair, publics: Mapping[str, bytes], round: int) -> dict[str, bytes]:
    """s_kj with each of these parties, for one sum. CryptoError if a public key is none."""
    return {
        peer: pair.agree(public, session=session(seat), own=own, peer=peer, domain=f"pair seed {round}")
        for peer, public in publics.items()
    }
