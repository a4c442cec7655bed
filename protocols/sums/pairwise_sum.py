"""Pairwise sum: masks between each two passive parties that cancel in the sum (Bonawitz et al. 2017).

0. k <-> j             X25519 public keys                        once; HKDF gives the pair key k_kj
1. k -> collector      y_k = v_k + sum_{j > k} PRG(k_kj, t) - sum_{j < k} PRG(k_kj, t)     in exchange t
2. collector           sum of all y_k = sum of all v_k

Each y_k is uniform by itself, the collector learns the sum, contributors nothing, and v_k comes out only if everybody
else pools what they hold.

One pass instead of the two of a tree sum. Public keys go straight between the parties over authenticated lines, so
nobody can stand in the middle.

The paper's second mask and its shared secrets, by which a sum outlives parties that drop, are left out: a synchronous
round (FedBCD, FDSKL) needs every party, as nobody else has its columns. A party that falls silent ends the job with a
TransportError, having revealed nothing: pair masks of a sum that never came together are never opened.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from securevfl.base.arrays import Floats
from securevfl.base.roles import COLLECTOR, CONTRIBUTOR
from securevfl.crypto.key_agreement import KeyPair
from securevfl.crypto.prg import Prg
from securevfl.errors import ConfigError, ProtocolError
from securevfl.protocols.declarations import MessageDeclaration, Reveal
from securevfl.protocols.number_spaces import Phases, Space
from securevfl.protocols.party_context import PartyContext
from securevfl.protocols.sums.base import TOTAL, SumProtocol, SumRole, part_of_sum
from securevfl.protocols.sums.mask_keys import SumPublic, exchange_keys
from securevfl.protocols.sums.residues import Residues, from_residues, pack, residue_type, to_residues, unpack
from securevfl.runtime.disclosure_gate import DisclosingMessage


class PairMasked(DisclosingMessage, frozen=True):
    """The sender's part under its masks of exchange `round`, as residues."""

    round: int
    residues: bytes


class PairwiseSum(SumProtocol):
    """Masks that cancel between passive parties, of whom there must be two or more."""

    name: ClassVar[str] = "pairwise"

    @property
    def strength(self) -> str:
        return "X25519 (computational Diffie-Hellman), HKDF, ChaCha20 as a pseudorandom generator"

    def role(self, context: PartyContext) -> SumRole:
        passives = len(context.contributors)
        if passives < 2:
            raise ConfigError(
                f"pairwise sum: expected at least two passive parties, got {passives}; a sum of one part is that part, "
                'use sum = "direct"'
            )
        return PairwiseCollector(context) if context.me == context.collector else PairwiseMember(context)

    def declares(self, contributors: Sequence[str]) -> list[MessageDeclaration]:
        return [
            MessageDeclaration(SumPublic, CONTRIBUTOR, CONTRIBUTOR, Reveal("public")),
            MessageDeclaration(PairMasked, CONTRIBUTOR, COLLECTOR, TOTAL),
        ]

    def coalitions(self, parties: Sequence[str]) -> dict[str, frozenset[str]]:
        return {passive: frozenset(parties) - {passive} for passive in parties[1:]}


class PairwiseCollector(SumRole):
    def __init__(self, context: PartyContext) -> None:
        self._context = context
        self._round = 0

    def collect(self, shape: tuple[int, ...], space: Space) -> NDArray[Any]:
        total = np.zeros(shape, residue_type(space))
        for sender in self._context.contributors:
            message = self._context.channel.recv(sender, PairMasked, self._context.subchannel)  # 1
            if message.round != self._round:
                raise ProtocolError(
                    f"{sender} was expected in exchange {self._round} of the pairwise sum, it is in {message.round}; "
                    "its masks would not cancel"
                )
            total += unpack(message.residues, shape, space, sender)
        self._round += 1
        return from_residues(total, space, len(self._context.contributors))  # 2


class PairwiseMember(SumRole):
    def __init__(self, context: PartyContext) -> None:
        self._context = context
        self._round = 0
        self._pairs = pair_generators(context)  # 0

    def contribute(self, values: Floats | Phases, space: Space) -> None:
        permit = part_of_sum(self._context, values, space)
        masked = to_residues(values, space, len(self._context.contributors))
        add_pair_masks(masked, self._context.me, self._pairs, self._round)
        message = PairMasked(self._round, pack(masked))
        self._context.channel.send(self._context.collector, message, self._context.subchannel, permit=permit)  # 1
        self._round += 1


def pair_generators(context: PartyContext) -> dict[str, Prg]:
    """Return, by peer, the generators from which each two contributors draw their masks."""
    keys = exchange_keys(context, KeyPair(), context.contributors, domain="pairwise sum")
    return {peer: Prg(key, "pair mask") for peer, key in keys.items()}


def add_pair_masks(total: Residues, me: str, pairs: Mapping[str, Prg], round: int) -> None:
    """Add the masks of exchange `round` in place, each with the sign opposite to the one that its peer uses."""
    for peer, prg in pairs.items():
        mask = prg.array(total.shape, total.dtype.type, number=round)
        (np.add if me < peer else np.subtract)(total, mask, out=total)
