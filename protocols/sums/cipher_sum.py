"""Cipher sum: the parts are added up under the collector's key on their way through a tree of contributors.

0. collector -> all       public key             once
1. contributor k -> j     [[sum below k]]        re-randomised at every hop, along the tree
2. head -> collector      [[sum_k H_k]]          the collector decrypts

Between contributors run ciphertexts that only the collector could open. The collector learns the sum, and
more only together with parties that see partial sums: whoever receives from k and, unless k is a leaf, whoever sends
to k. With one contributor the sum is its part.

A sum of phases, each in [-pi, pi), is taken over the integers and reduced by the collector, which besides the phase
learns its number of whole turns, at most log2 of the number of parties in bits. Phases of 16 bits and all phases under
Paillier are exact; under CKKS a phase of 32 bits is rounded to about 2^-26 of a turn.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Literal, Self

import numpy as np
from numpy.typing import NDArray

from securevfl.base.arrays import Floats
from securevfl.base.roles import COLLECTOR, CONTRIBUTOR
from securevfl.crypto.scheme import Adder, AdditiveScheme, SumHolder
from securevfl.crypto.sum_trees import SumTree
from securevfl.errors import ProtocolError
from securevfl.protocols.declarations import MessageDeclaration, Reveal
from securevfl.protocols.engines import ENGINES, AnyEngine, Ckks, Encrypted
from securevfl.protocols.number_spaces import Circle, Phases, Space
from securevfl.protocols.party_context import PartyContext
from securevfl.protocols.sums.base import TOTAL, SumProtocol, SumRole, part_of_sum
from securevfl.protocols.sums.topologies import one_pass
from securevfl.runtime.codec import Message
from securevfl.runtime.disclosure_gate import DisclosingMessage


class SumKey(Message, frozen=True):
    """The active party's key for sums."""

    key: bytes


class PartialSum(DisclosingMessage, frozen=True):
    """[[sum of the parts below the sender, its own included]]."""

    ciphertext: bytes


class CipherSum(Encrypted, SumProtocol):
    """Parts added up under encryption along a tree, a star or a ring of passive parties."""

    name: ClassVar[str] = "cipher"
    engine: AnyEngine = Ckks()
    """The encryption under which parts are added up."""
    topology: Literal["tree", "star"] = "tree"
    """The way of the encrypted parts to the active party."""

    @classmethod
    def variants(cls) -> dict[str, Self]:
        by_engine = {f"cipher {name}": cls(engine=kind()) for name, kind in ENGINES.items()}
        return by_engine | {"cipher star": cls(topology="star")}

    def role(self, context: PartyContext) -> SumRole:
        scheme = context.meter.additive(self.engine.sums())
        tree = self.tree(len(context.contributors))
        return (
            CipherHolder(context, scheme, tree)
            if context.me == context.collector
            else CipherAdder(context, scheme, tree)
        )

    def tree(self, passives: int) -> SumTree:
        """Return the tree of passive parties 0..passives-1 along which the sum is made; its root is the head."""
        return one_pass(self.topology, passives)

    def declares(self, contributors: Sequence[str]) -> list[MessageDeclaration]:
        return [
            MessageDeclaration(SumKey, COLLECTOR, CONTRIBUTOR, Reveal("public")),
            MessageDeclaration(PartialSum, CONTRIBUTOR, CONTRIBUTOR, Reveal("ciphertext", COLLECTOR)),
            MessageDeclaration(PartialSum, CONTRIBUTOR, COLLECTOR, TOTAL),
        ]

    def coalitions(self, parties: Sequence[str]) -> dict[str, frozenset[str]]:
        active, *passives = parties
        tree = self.tree(len(passives))
        found = {}
        for k, passive in enumerate(passives):
            above = tree.target(k)
            neighbours = {*tree.sources(k), *([] if above is None else [above])}
            found[passive] = frozenset({active, *(passives[j] for j in neighbours)})
        return found


class CipherHolder(SumRole):
    def __init__(self, context: PartyContext, scheme: AdditiveScheme, tree: SumTree) -> None:
        self._channel, self._subchannel = context.channel, context.subchannel
        self._head = context.contributors[tree.root]
        self._holder: SumHolder = scheme.sum_keygen()
        for passive in context.contributors:
            self._channel.send(passive, SumKey(self._holder.public), self._subchannel)  # 0

    def collect(self, shape: tuple[int, ...], space: Space) -> NDArray[Any]:
        total = self._holder.decrypt(self._channel.recv(self._head, PartialSum, self._subchannel).ciphertext)  # 2
        if total.size != np.prod(shape, dtype=int):
            raise ProtocolError(f"{self._head} was expected to send a sum of shape {shape}, {total.size} values came")
        if isinstance(space, Circle):
            phases: Phases = (np.rint(total).astype(np.int64) & (2**space.bits - 1)).astype(np.uint32)
            return phases.reshape(shape)
        return total.reshape(shape)


class CipherAdder(SumRole):
    def __init__(self, context: PartyContext, scheme: AdditiveScheme, tree: SumTree) -> None:
        own = context.contributors.index(context.me)
        target = tree.target(own)
        self._context, self._channel, self._subchannel = context, context.channel, context.subchannel
        self._terms = len(context.contributors)
        self._below = [context.contributors[child] for child in tree.sources(own)]
        self._above = context.collector if target is None else context.contributors[target]
        self._adder: Adder = scheme.adder(self._channel.recv(context.collector, SumKey, context.subchannel).key)  # 0

    def contribute(self, values: Floats | Phases, space: Space) -> None:
        max_bytes = self._adder.size(values.size, terms=self._terms)
        permit = part_of_sum(self._context, values, space, max_bytes=max_bytes)
        if isinstance(space, Circle):
            steps = np.asarray(values).astype(np.int32 if space.bits == 32 else np.int16)  # wraps to [-pi, pi)
            v, bound = steps.astype(np.float64), 2.0 ** (space.bits - 1)
        else:
            v, bound = np.asarray(values, np.float64), space.bound
        own = self._adder.encrypt(v.ravel(), bound=bound, terms=self._terms)
        received = [self._channel.recv(child, PartialSum, self._subchannel).ciphertext for child in self._below]  # 1
        total = self._adder.add(own, *received) if received else own
        self._channel.send(self._above, PartialSum(total), self._subchannel, permit=permit)  # 1, 2
