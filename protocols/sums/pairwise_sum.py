"""Pairwise sum: masks between each two parties that cancel in the sum (Bonawitz et al. 2017).

Single masking, for rounds in which every party takes part (`threshold` None):

0. k <-> j             X25519 public keys                        once; HKDF gives the pair key k_kj
1. k -> above k        y_k + what came from below, where
                       y_k = v_k + sum_{j > k} PRG(k_kj, t) - sum_{j < k} PRG(k_kj, t)     in exchange t
2. collector           sum of all y_k = sum of all v_k

In a star the contributors mask among themselves, and each y_k goes to the collector alone. In a tree and a ring,
where contributors see partial sums, the collector is one of those that mask, with v = 0: without it the last of a ring
could take its own masks off and know the sum. So in every topology each message is uniform by itself, the collector
learns the sum, contributors nothing, and v_k comes out only if everybody else pools what they hold.

One pass instead of the two of a tree sum. Public keys go straight between the parties over authenticated lines, so
nobody can stand in the middle.

With a `threshold` the sum outlives parties that drop: see `dropout_sum`, which costs two more exchanges of messages a
sum and shares of secrets. A synchronous round (FedBCD, FDSKL) needs every party anyway, and a party that falls silent
there ends the job with a TransportError, having revealed nothing: pair masks of a sum that never came together are
never opened. So training does without, and self masks, which guard what was opened for a drop, are not needed. Where a
job has a threshold all the same, a party that drops counts as lost (`SumRole.collect_all`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from securevfl.base.arrays import Floats
from securevfl.base.roles import COLLECTOR, CONTRIBUTOR
from securevfl.crypto.masking.agreement import KeyPair
from securevfl.crypto.masking.sum_trees import SumTree
from securevfl.crypto.prg import Prg
from securevfl.errors import ConfigError, ProtocolError
from securevfl.protocols.declared import Declared, Reveal
from securevfl.protocols.seat import Seat
from securevfl.protocols.spaces import Phases, Space
from securevfl.protocols.sums.base import TOTAL, Coalition, SumProtocol, SumRole, part_of_sum
from securevfl.protocols.sums.dropout_sum import DROPOUT_MESSAGES, DropoutCollector, DropoutMember
from securevfl.protocols.sums.sum_keys import SumPublic, exchange_keys
from securevfl.protocols.sums.sum_residues import Residues, from_residues, pack, residue_type, to_residues, unpack
from securevfl.protocols.sums.topology import Topology, one_pass
from securevfl.runtime.door import Telling


class PairMasked(Telling, frozen=True):
    """Sum of y_j below the sender, its own included, of exchange `round`, as residues."""

    round: int
    residues: bytes


class PairwiseSum(SumProtocol):
    """Masks that cancel between passive parties, of whom there must be two or more."""

    name: ClassVar[str] = "pairwise"
    topology: Topology = "star"
    """The way of the masked parts to the active party."""
    threshold: int | float | None = None
    """How many passive parties (a number, or a share below 1) must stay for a sum to finish without the others; more
    than half, over a star. Without it a lost party ends the run.
    """
    patience: float = Field(default=30.0, gt=0)
    """Seconds the active party then waits for a step of a sum; more than the slowest party computes between two."""

    @model_validator(mode="after")
    def _check_threshold(self) -> PairwiseSum:
        if self.threshold is None:
            return self
        if self.topology != "star":
            raise ValueError(
                "threshold: a partial sum cannot be finished without one of its parts; use topology = 'star'"
            )
        if isinstance(self.threshold, float) and not 0.5 < self.threshold <= 1:
            raise ValueError("threshold: a share must be above 0.5 and at most 1; use 0.67, or a number of parties")
        if isinstance(self.threshold, int) and self.threshold < 2:
            raise ValueError("threshold: must be at least 2 parties; one party alone could open every mask")
        return self

    @classmethod
    def variants(cls) -> dict[str, Self]:
        return {
            "pairwise": cls(),
            "pairwise tree": cls(topology="tree"),
            "pairwise ring": cls(topology="ring"),
            "dropout": cls(threshold=2 / 3),
        }

    @property
    def strength(self) -> str:
        return "X25519 (computational Diffie-Hellman), HKDF, ChaCha20 as a pseudorandom generator"

    def role(self, seat: Seat) -> SumRole:
        passives = len(seat.contributors)
        if passives < 2:
            raise ConfigError(
                f"pairwise sum: expected at least two passive parties, got {passives}; a sum of one part is that part, "
                'use sum = "direct"'
            )
        active = seat.me == seat.collector
        if self.threshold is not None:
            t = self.needed(passives)
            return DropoutCollector(seat, t, self.patience) if active else DropoutMember(seat, t)
        tree = one_pass(self.topology, len(seat.parties))
        masking = seat.contributors if self.topology == "star" else seat.parties
        return PairwiseCollector(seat, tree, masking) if active else PairwiseMember(seat, tree, masking)

    def needed(self, passives: int) -> int:
        """t, the passive parties that must stay. ConfigError unless more than half of them and at most all."""
        assert self.threshold is not None, "single masking needs everyone"
        whole = isinstance(self.threshold, int)
        t = int(self.threshold) if whole else max(2, ceil(self.threshold * passives - 1e-9))
        if not passives < 2 * t <= 2 * passives:
            raise ConfigError(
                f"pairwise sum: threshold of more than half of {passives} passive parties expected, got {t}; half of "
                "them could open one mask and half the other"
            )
        return t

    def declares(self, contributors: Sequence[str]) -> list[Declared]:
        key = Declared(SumPublic, CONTRIBUTOR, CONTRIBUTOR, Reveal("public"))
        if self.threshold is not None:
            return [key, *DROPOUT_MESSAGES]
        total = Declared(PairMasked, CONTRIBUTOR, COLLECTOR, TOTAL)
        if self.topology == "star":
            return [key, total]
        return [
            key,
            Declared(SumPublic, CONTRIBUTOR, COLLECTOR, Reveal("public")),
            Declared(SumPublic, COLLECTOR, CONTRIBUTOR, Reveal("public")),
            Declared(PairMasked, CONTRIBUTOR, CONTRIBUTOR, Reveal("uniform")),
            total,
        ]

    def coalitions(self, parties: Sequence[str]) -> dict[str, Coalition]:
        active, *passives = parties
        others = {passive: frozenset(passives) - {passive} for passive in passives}
        if self.threshold is None or len(passives) < 2:
            return {passive: Coalition(others[passive] | {active}) for passive in passives}
        t = min(self.needed(len(passives)), len(passives) - 1)
        return {passive: Coalition(frozenset({active}), others[passive], t) for passive in passives}


class PairwiseCollector(SumRole):
    def __init__(self, seat: Seat, tree: SumTree, masking: Sequence[str]) -> None:
        self._seat = seat
        self._below = [seat.parties[k] for k in tree.sources(0)]
        self._round = 0
        self._pairs = pair_generators(seat, masking) if seat.me in masking else {}  # 0

    def contribute(self, values: Floats | Phases, space: Space) -> None:
        raise ProtocolError("pairwise sum: the active party collects; it adds its own part in the clear")

    def collect(self, shape: tuple[int, ...], space: Space) -> NDArray[Any]:
        total = np.zeros(shape, residue_type(space))
        add_pair_masks(total, self._seat.me, self._pairs, self._round)
        add_below(self._seat, self._below, self._round, total, space)  # 1
        self._round += 1
        return from_residues(total, space, len(self._seat.contributors))  # 2


class PairwiseMember(SumRole):
    def __init__(self, seat: Seat, tree: SumTree, masking: Sequence[str]) -> None:
        self._seat = seat
        own = seat.parties.index(seat.me)
        above = tree.target(own)
        assert above is not None, "only the active party is the root"
        self._below = [seat.parties[k] for k in tree.sources(own)]
        self._above = seat.parties[above]
        self._round = 0
        self._pairs = pair_generators(seat, masking)  # 0

    def contribute(self, values: Floats | Phases, space: Space) -> None:
        told = part_of_sum(self._seat, values, space)
        total = to_residues(values, space, len(self._seat.contributors))
        add_pair_masks(total, self._seat.me, self._pairs, self._round)
        add_below(self._seat, self._below, self._round, total, space)  # 1
        self._seat.channel.send(self._above, PairMasked(self._round, pack(total)), self._seat.lane, told=told)  # 1
        self._round += 1

    def collect(self, shape: tuple[int, ...], space: Space) -> NDArray[Any]:
        raise ProtocolError("pairwise sum: only the active party collects, the masks cancel nowhere else")


def pair_generators(seat: Seat, masking: Sequence[str]) -> dict[str, Prg]:
    """Return, by peer, the generators from which each two of the masking parties draw their masks."""
    keys = exchange_keys(seat, KeyPair(), masking, domain="pairwise sum")
    return {peer: Prg(key, "pair mask") for peer, key in keys.items()}


def add_pair_masks(total: Residues, me: str, pairs: Mapping[str, Prg], round: int) -> None:
    """Add the masks of exchange `round` in place, each with the sign opposite to the one that its peer uses."""
    for peer, prg in pairs.items():
        mask = prg.array(total.shape, total.dtype.type, number=round)
        (np.add if me < peer else np.subtract)(total, mask, out=total)


def add_below(seat: Seat, below: Sequence[str], round: int, total: Residues, space: Space) -> None:
    """Add what these parties send in exchange `round`, in place. ProtocolError if one is in another exchange."""
    for sender in below:
        message = seat.channel.recv(sender, PairMasked, seat.lane)
        if message.round != round:
            raise ProtocolError(
                f"{sender} was expected in exchange {round} of the pairwise sum, it is in {message.round}; its masks "
                "would not cancel"
            )
        total += unpack(message.residues, total.shape, space, sender)
