"""Cipher sum: contributors add up their outputs in encrypted form, along a tree, under the collector's public key.

Contributor k has the summand H_k (n, c), its forward outputs for n rows and c model outputs. The collector, normally
the party with labels, learns the sum. The contributors form a tree.

0. collector -> all       its public key, once
1. k -> parent of k       the encrypted sum of H_k and of the summands of all contributors below k, re-randomised
2. root -> collector      the encrypted sum of all summands, which the collector decrypts

Comments refer to these steps by number. Contributors exchange only ciphertexts, which nobody but the collector can
decrypt. The collector learns the sum. To learn H_k, it must collude with all contributors that see partial sums next to
k: the parent of k, and the children of k if it has any. If there is only one contributor, the sum is its summand.

Phases are angles in [-pi, pi). Their sum is computed over the integers, and the collector reduces it to an angle. So it
also learns the number of full turns, at most log2(number of parties) bits of information. Phases of 16 bits, and all
phases under Paillier, are exact. Under CKKS a phase of 32 bits is rounded to about 2^-26 of a turn. An engine is an
encryption scheme with its parameters.
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
from securevfl.protocols.sums.base import TOTAL, SumProtocol, SumRole, permit_summand
from securevfl.protocols.sums.topologies import one_pass
from securevfl.runtime.codec import Message
from securevfl.runtime.disclosure_gate import DisclosingMessage


class SumKey(Message, frozen=True):
    """The collector's public key, under which summands are encrypted."""

    key: bytes


class PartialSum(DisclosingMessage, frozen=True):
    """The encrypted sum of the summands of the sender and of all contributors below it in the tree."""

    ciphertext: bytes


class CipherSum(Encrypted, SumProtocol):
    """A sum of encrypted summands along a tree or a star of contributors."""

    name: ClassVar[str] = "cipher"
    engine: AnyEngine = Ckks()
    """The encryption scheme."""
    topology: Literal["tree", "star"] = "tree"
    """Shape of the tree of contributors along which ciphertexts are added."""

    @classmethod
    def variants(cls) -> dict[str, Self]:
        """Return one protocol for each engine, and one with a star; see `MessageProtocol.variants`."""
        by_engine = {f"cipher {name}": cls(engine=kind()) for name, kind in ENGINES.items()}
        return by_engine | {"cipher star": cls(topology="star")}

    def role(self, context: PartyContext) -> SumRole:
        """Create this party's role; see `SumProtocol.role`."""
        scheme = context.meter.additive(self.engine.sums())
        tree = self.tree(len(context.contributors))
        return (
            CipherHolder(context, scheme, tree)
            if context.me == context.collector
            else CipherAdder(context, scheme, tree)
        )

    def tree(self, passives: int) -> SumTree:
        """Return the tree of the contributors 0 to `passives` - 1; its root sends the sum to the collector."""
        return one_pass(self.topology, passives)

    def declares(self, contributors: Sequence[str]) -> list[MessageDeclaration]:
        """Declare sender, receiver and disclosure of each message; see `SumProtocol.declares`."""
        return [
            MessageDeclaration(SumKey, COLLECTOR, CONTRIBUTOR, Reveal("public")),
            MessageDeclaration(PartialSum, CONTRIBUTOR, CONTRIBUTOR, Reveal("ciphertext", COLLECTOR)),
            MessageDeclaration(PartialSum, CONTRIBUTOR, COLLECTOR, TOTAL),
        ]

    def coalitions(self, parties: Sequence[str]) -> dict[str, frozenset[str]]:
        """Return, for every contributor, the collector and its neighbours in the tree; see `SumProtocol.coalitions`."""
        active, *passives = parties
        tree = self.tree(len(passives))
        members = {}
        for k, passive in enumerate(passives):
            above = tree.target(k)
            neighbours = {*tree.sources(k), *([] if above is None else [above])}
            members[passive] = frozenset({active, *(passives[j] for j in neighbours)})
        return members


class CipherHolder(SumRole):
    """The role of the collector, which has the secret key.

    Args:
        context: the party's channel to the others, the roles of all parties, and the meter of its costs.
        scheme: the encryption scheme of the summands.
        tree: the tree of contributors, along which encrypted partial sums are sent.
    """

    def __init__(self, context: PartyContext, scheme: AdditiveScheme, tree: SumTree) -> None:
        self._channel, self._subchannel = context.channel, context.subchannel
        self._root = context.contributors[tree.root]
        self._holder: SumHolder = scheme.sum_keygen()
        for passive in context.contributors:
            self._channel.send(passive, SumKey(self._holder.public), self._subchannel)  # step 0

    def collect(self, shape: tuple[int, ...], space: Space) -> NDArray[Any]:
        """Return the sum; see `SumRole.collect`."""
        total = self._holder.decrypt(self._channel.recv(self._root, PartialSum, self._subchannel).ciphertext)  # step 2
        if total.size != np.prod(shape, dtype=int):
            raise ProtocolError(
                f"{self._root} sent a sum of {total.size} values instead of the shape {shape}",
                code="SVFL-PROTOCOL-SIZE",
                party=self._root,
            )
        if isinstance(space, Circle):
            phases: Phases = (np.rint(total).astype(np.int64) & (2**space.bits - 1)).astype(np.uint32)
            return phases.reshape(shape)
        return total.reshape(shape)


class CipherAdder(SumRole):
    """The role of a contributor, which adds its encrypted summand to the partial sums of the contributors below it.

    Args:
        context: the party's channel to the others, the roles of all parties, and the meter of its costs.
        scheme: the encryption scheme of the summands.
        tree: the tree of contributors, along which encrypted partial sums are sent.
    """

    def __init__(self, context: PartyContext, scheme: AdditiveScheme, tree: SumTree) -> None:
        index = context.contributors.index(context.me)
        target = tree.target(index)
        self._context, self._channel, self._subchannel = context, context.channel, context.subchannel
        self._terms = len(context.contributors)
        self._below = [context.contributors[child] for child in tree.sources(index)]
        self._above = context.collector if target is None else context.contributors[target]
        # step 0
        self._adder: Adder = scheme.adder(self._channel.recv(context.collector, SumKey, context.subchannel).key)

    def contribute(self, values: Floats | Phases, space: Space) -> None:
        """Contribute this party's summand; see `SumRole.contribute`."""
        max_bytes = self._adder.size(values.size, terms=self._terms)
        permit = permit_summand(self._context, values, space, max_bytes=max_bytes)
        if isinstance(space, Circle):
            steps = np.asarray(values).astype(np.int32 if space.bits == 32 else np.int16)  # wraps to [-pi, pi)
            v, bound = steps.astype(np.float64), 2.0 ** (space.bits - 1)
        else:
            v, bound = np.asarray(values, np.float64), space.bound
        ciphertext = self._adder.encrypt(v.ravel(), bound=bound, terms=self._terms)
        # step 1
        received = [self._channel.recv(child, PartialSum, self._subchannel).ciphertext for child in self._below]
        total = self._adder.add(ciphertext, *received) if received else ciphertext
        self._channel.send(self._above, PartialSum(total), self._subchannel, permit=permit)  # steps 1 and 2
