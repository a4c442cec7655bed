"""Pairwise sum: each two passive parties share masks that cancel in the sum (Bonawitz et al. 2017).

0. k <-> j             X25519 public keys                        once; HKDF derives the pairwise key k_kj
1. k -> collector      y_k = v_k + sum_{j > k} PRG(k_kj, t) - sum_{j < k} PRG(k_kj, t)     in exchange t
2. collector           sum of all y_k = sum of all v_k

Each y_k is uniform, the collector learns the sum, and the contributors learn nothing. v_k is learned only if all other
parties combine their values.

A pairwise sum has one pass, a tree sum has two. Public keys are sent directly over authenticated connections, so an
attacker cannot replace them.

The paper adds a second mask and secret-shared keys, so that a sum survives parties that drop out. Both are omitted
here: a synchronous round (FedBCD, FDSKL) needs every party, because no other party has its columns. If a party stops,
    the job
ends with a TransportError. Nothing is revealed then, because the masks of an incomplete sum are never removed.
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
from securevfl.protocols.sums.base import TOTAL, SumProtocol, SumRole, permit_summand
from securevfl.protocols.sums.mask_keys import SumPublicKey, exchange_keys
from securevfl.protocols.sums.residue_sums import Residues, from_residues, pack, residue_type, to_residues, unpack
from securevfl.runtime.disclosure_gate import DisclosingMessage


class MaskedSummand(DisclosingMessage, frozen=True):
    """The sender's summand plus its masks of exchange `round`, as residues."""

    round: int
    residues: bytes


class PairwiseSum(SumProtocol):
    """A sum under pairwise masks; it needs two or more passive parties."""

    name: ClassVar[str] = "pairwise"

    @property
    def strength(self) -> str:
        """Cryptographic assumption in one line."""
        return "X25519 (computational Diffie-Hellman), HKDF, ChaCha20 as a pseudorandom generator"

    def role(self, context: PartyContext) -> SumRole:
        """Create this party's role; see `SumProtocol.role`."""
        passives = len(context.contributors)
        if passives < 2:
            raise ConfigError(
                f"a pairwise sum needs at least two passive parties, the job has {passives}",
                'use sum = "direct": a sum of one summand hides nothing',
                code="SVFL-LEAK-UNPROTECTED",
            )
        return PairwiseCollector(context) if context.me == context.collector else PairwiseMember(context)

    def declares(self, contributors: Sequence[str]) -> list[MessageDeclaration]:
        """Declare the messages; see `SumProtocol.declares`."""
        return [
            MessageDeclaration(SumPublicKey, CONTRIBUTOR, CONTRIBUTOR, Reveal("public")),
            MessageDeclaration(MaskedSummand, CONTRIBUTOR, COLLECTOR, TOTAL),
        ]

    def coalitions(self, parties: Sequence[str]) -> dict[str, frozenset[str]]:
        """Return all other parties for every contributor; see `SumProtocol.coalitions`."""
        return {passive: frozenset(parties) - {passive} for passive in parties[1:]}


class PairwiseCollector(SumRole):
    """The collector of a pairwise sum."""

    def __init__(self, context: PartyContext) -> None:
        self._context = context
        self._round = 0

    def collect(self, shape: tuple[int, ...], space: Space) -> NDArray[Any]:
        """Return the sum; see `SumRole.collect`."""
        total = np.zeros(shape, residue_type(space))
        for sender in self._context.contributors:
            message = self._context.channel.recv(sender, MaskedSummand, self._context.subchannel)  # 1
            if message.round != self._round:
                raise ProtocolError(
                    f"{sender} sent exchange {message.round} of the pairwise sum, expected exchange {self._round}, so "
                    "its "
                    "masks would not cancel",
                    code="SVFL-PROTOCOL-MESSAGE",
                    party=sender,
                )
            total += unpack(message.residues, shape, space, sender)
        self._round += 1
        return from_residues(total, space, len(self._context.contributors))  # 2


class PairwiseMember(SumRole):
    """A contributor to a pairwise sum."""

    def __init__(self, context: PartyContext) -> None:
        self._context = context
        self._round = 0
        self._pairs = pair_generators(context)  # 0

    def contribute(self, values: Floats | Phases, space: Space) -> None:
        """Add this party's summand; see `SumRole.contribute`."""
        permit = permit_summand(self._context, values, space)
        masked = to_residues(values, space, len(self._context.contributors))
        add_pair_masks(masked, self._context.me, self._pairs, self._round)
        message = MaskedSummand(self._round, pack(masked))
        self._context.channel.send(self._context.collector, message, self._context.subchannel, permit=permit)  # 1
        self._round += 1


def pair_generators(context: PartyContext) -> dict[str, Prg]:
    """Exchange keys, and return the generator of the common masks by peer."""
    keys = exchange_keys(context, KeyPair(), context.contributors, domain="pairwise sum")
    return {peer: Prg(key, "pair mask") for peer, key in keys.items()}


def add_pair_masks(total: Residues, me: str, pairs: Mapping[str, Prg], round: int) -> None:
    """Add the masks of exchange `round` in place; the peer of each mask uses the opposite sign."""
    for peer, prg in pairs.items():
        mask = prg.array(total.shape, total.dtype.type, number=round)
        (np.add if me < peer else np.subtract)(total, mask, out=total)
