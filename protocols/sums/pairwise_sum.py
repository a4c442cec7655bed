"""Pairwise sum: every two contributors have common random masks, which cancel in the sum (Bonawitz et al. 2017).

Contributor k has the summand v_k. The collector, normally the party with labels, learns the sum of all v_k. For each
other contributor j, k has a secret key, from which both compute the same mask m_kj, a new one in every sum. One of them
adds the mask and the other one subtracts it:

0. k <-> j             X25519 public keys, once; HKDF derives the common key
1. k -> collector      y_k = v_k + sum of m_kj over j > k - sum of m_kj over j < k, modulo 2^bits
2. collector           computes the sum of all y_k, which is the sum of all v_k

Comments refer to these steps by number. Each y_k is uniform, the collector learns the sum, and the contributors learn
nothing. Only all other parties together learn v_k. Public keys are sent over authenticated connections, so an attacker
cannot replace them. All summands are sent at the same time; in a tree sum they pass through several parties.

The paper adds a second mask and secret-shared keys, so that the sum can be completed if parties drop out. Both are
omitted here: a synchronous round (FedBCD, FDSKL) needs every party, because no other party has its columns. If a party
stops, the job ends with a TransportError. Nothing is revealed then, because the masks of an incomplete sum do not
cancel.
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
    """The sender's masked summand y_k as residues (integers modulo 2^bits), for the sum with the number `round`."""

    round: int
    residues: bytes


class PairwiseSum(SumProtocol):
    """A sum of summands with pairwise masks. It needs two or more contributors."""

    name: ClassVar[str] = "pairwise"
    min_contributors: ClassVar[int] = 2

    @property
    def strength(self) -> str:
        """The cryptographic assumption as one line of text."""
        return "X25519 (computational Diffie-Hellman), HKDF, ChaCha20 as a pseudorandom generator"

    def role(self, context: PartyContext) -> SumRole:
        """Create this party's role; see `SumProtocol.role`."""
        passives = len(context.contributors)
        if passives < self.min_contributors:
            raise ConfigError(
                f"a pairwise sum needs at least two passive parties, but the job has {passives}",
                'use sum = "direct", because a sum of one summand hides nothing',
                code="SVFL-LEAK-UNPROTECTED",
            )
        return PairwiseCollector(context) if context.me == context.collector else PairwiseMember(context)

    def declares(self, contributors: Sequence[str]) -> list[MessageDeclaration]:
        """Declare sender, receiver and disclosure of each message; see `SumProtocol.declares`."""
        return [
            MessageDeclaration(SumPublicKey, CONTRIBUTOR, CONTRIBUTOR, Reveal("public")),
            MessageDeclaration(MaskedSummand, CONTRIBUTOR, COLLECTOR, TOTAL),
        ]

    def coalitions(self, parties: Sequence[str]) -> dict[str, frozenset[str]]:
        """Return, for every contributor, all other parties; see `SumProtocol.coalitions`."""
        return {passive: frozenset(parties) - {passive} for passive in parties[1:]}


class PairwiseCollector(SumRole):
    """The party that receives the masked summands and adds them up."""

    def __init__(self, context: PartyContext) -> None:
        self._context = context
        self._round = 0

    def collect(self, shape: tuple[int, ...], space: Space) -> NDArray[Any]:
        """Return the sum; see `SumRole.collect`."""
        total = np.zeros(shape, residue_type(space))
        for sender in self._context.contributors:
            message = self._context.channel.recv(sender, MaskedSummand, self._context.subchannel)  # step 1
            if message.round != self._round:
                raise ProtocolError(
                    f"{sender} sent its summand for sum number {message.round} instead of {self._round}, so its masks "
                    "would not cancel",
                    code="SVFL-PROTOCOL-MESSAGE",
                    party=sender,
                )
            total += unpack(message.residues, shape, space, sender)
        self._round += 1
        return from_residues(total, space, len(self._context.contributors))  # step 2


class PairwiseMember(SumRole):
    """A party that sends its summand under pairwise masks."""

    def __init__(self, context: PartyContext) -> None:
        self._context = context
        self._round = 0
        self._pairs = pair_generators(context)  # step 0

    def contribute(self, values: Floats | Phases, space: Space) -> None:
        """Contribute this party's summand; see `SumRole.contribute`."""
        permit = permit_summand(self._context, values, space)
        masked = to_residues(values, space, len(self._context.contributors))
        add_pair_masks(masked, self._context.me, self._pairs, self._round)
        message = MaskedSummand(self._round, pack(masked))
        self._context.channel.send(self._context.collector, message, self._context.subchannel, permit=permit)  # step 1
        self._round += 1


def pair_generators(context: PartyContext) -> dict[str, Prg]:
    """Exchange keys with all other contributors, and return the generator of the common masks for each of them."""
    keys = exchange_keys(context, KeyPair(), context.contributors, domain="pairwise sum")
    return {peer: Prg(key, "pair mask") for peer, key in keys.items()}


def add_pair_masks(total: Residues, me: str, pairs: Mapping[str, Prg], round: int) -> None:
    """Add the masks for sum number `round` to `total` in place; each peer applies its mask with the opposite sign."""
    for peer, prg in pairs.items():
        mask = prg.array(total.shape, total.dtype.type, number=round)
        (np.add if me < peer else np.subtract)(total, mask, out=total)
