"""How the parts of a sum go up (n x c each), and who must collude to learn one.

A round is a forward sum and a residual (design: FedBCD 2019, Algorithm 1). A `SumProtocol` says how the H_k go up;
it goes with any residual. It is an option (frozen, named) that makes one role object for each party.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from securevfl.base.arrays import Floats
from securevfl.base.roles import COLLECTOR, CONTRIBUTOR
from securevfl.crypto.sum_trees import SumTree, balanced, build_trees, chain, learned_sums, star, totally_different
from securevfl.errors import ConfigError, ProtocolError
from securevfl.protocols.declared import Circle, Declared, MessageProtocol, Phases, Reals, Reveal, Space
from securevfl.protocols.party_context import PartyContext
from securevfl.runtime.channel import DisclosingMessage, DisclosurePermit, DisclosureRecord
from securevfl.runtime.codec import Numbers, carried, check_bits

TOTAL = Reveal("output", "the sum of the parts; of a linear model these span their columns over a run")


class SumRole:
    """One party's side of a sum, good for the whole run."""

    def contribute(self, values: Floats | Phases, space: Space) -> None:
        """Contribute this party's part (any shape; the same at every party)."""
        raise ProtocolError("the party that a sum is for collects; it adds its own part in the clear")

    def collect(self, shape: tuple[int, ...], space: Space) -> NDArray[Any]:
        """Return the sum of all other parties' parts; only for the party the sum is for."""
        raise ProtocolError("only the party that a sum is for collects it")


class SumProtocol(MessageProtocol):
    """A protocol by which the parties' parts are added up for one of them."""

    @property
    def strength(self) -> str:
        return "see its docstring"

    @abstractmethod
    def role(self, context: PartyContext) -> SumRole:
        """Create this party's side, exchanging keys if the protocol has any. All parties call it at the same point."""

    @abstractmethod
    def declares(self, contributors: Sequence[str]) -> list[Declared]:
        """Declare what each message reveals when these parties contribute, in the roles of a sum."""

    @abstractmethod
    def coalitions(self, parties: Sequence[str]) -> dict[str, frozenset[str]]:
        """Who must collude: for each contributor the fewest others that learn its part. `parties`: collector first.

        Exact for parties that follow the protocol: a set of others learns the part if and only if it holds such a
        coalition, or is everybody else (who are left with the part when they take theirs off the sum).
        """

    def coalition(self, contributors: Sequence[str], collector: str = "the active party") -> str:
        """Describe the weakest of `coalitions` in one line for people. It speaks of the messages of one sum."""
        name, fewest = min(self.coalitions((collector, *contributors)).items(), key=lambda item: len(item[1]))
        *some, last = sorted(fewest)
        if not some:
            return f"{last} learns the part of {name}"
        return (
            f"{', '.join(some)} and {last} together learn the part of {name}; fewer than {len(fewest)} learn nobody's"
        )

    @property
    def hides_parts(self) -> bool:
        """Whether the active party is kept from seeing single parts (given two or more)."""
        return True


def part_of_sum(
    context: PartyContext, values: Floats | Phases, space: Space, about: Sequence[str] = (), *, octets: int = 0
) -> DisclosurePermit:
    """Enters this party's part of a sum as told to the collector. about: whose columns the sum is of, all
    contributors' by default, as where it hides who gave what. octets: of a message in which it is sealed.
    """
    circle = isinstance(space, Circle)
    return context.channel.permit(
        DisclosureRecord(
            context.collector,
            "phases" if circle else "columns",
            values.size,
            space.bits,
            tuple(about) or context.contributors,
            octets=octets,
        )
    )


# Direct sum: every contributor sends its part to the collector in the clear (FedBCD 2019, Algorithm 1).
#
# 1. contributor k -> collector   H_k     in the clear
#    collector                    adds up
#
# The collector learns each H_k, n x c numbers a round. As theta_k moves from round to round, these span the columns
# X_k after d_k rounds or earlier: columns of few values can then be read, and a few known rows give all others (the
# leak `columns`; `securevfl.disclosure.exposure` says from when on). Contributors learn nothing.


class Part(DisclosingMessage, frozen=True):
    """The message with one party's part H_k (n x c), as it is."""

    values: Numbers


class PhasePart(DisclosingMessage, frozen=True):
    """The message with one party's phases of random features, as they are, in words of as many bits."""

    values: NDArray[np.uint32 | np.uint16]


class DirectSum(SumProtocol):
    """Parts in the clear: the least work, and the active party sees each part."""

    name: ClassVar[str] = "direct"

    def role(self, context: PartyContext) -> SumRole:
        return DirectSumRole(context)

    def declares(self, contributors: Sequence[str]) -> list[Declared]:
        part = Reveal(
            "plain", "the sender's forward outputs H_k on the rows asked for, which over a run span its columns"
        )
        phases = Reveal("plain", "the sender's phases w^T x_k")
        return [
            Declared(Part, CONTRIBUTOR, COLLECTOR, part, space=Reals),
            Declared(PhasePart, CONTRIBUTOR, COLLECTOR, phases, space=Circle),
        ]

    def coalitions(self, parties: Sequence[str]) -> dict[str, frozenset[str]]:
        return {passive: frozenset(parties[:1]) for passive in parties[1:]}

    @property
    def strength(self) -> str:
        return "none: parts are sent in the clear"

    @property
    def hides_parts(self) -> bool:
        return False


class DirectSumRole(SumRole):
    def __init__(self, context: PartyContext) -> None:
        self._context = context

    def contribute(self, values: Floats | Phases, space: Space) -> None:
        if isinstance(space, Reals):
            message: Part | PhasePart = Part(carried(values, space.bits))
        else:
            message = PhasePart(values.astype(np.uint16 if space.bits == 16 else np.uint32))
        permit = part_of_sum(self._context, values, space, (self._context.me,))
        self._context.channel.send(self._context.collector, message, self._context.subchannel, permit=permit)  # 1

    def collect(self, shape: tuple[int, ...], space: Space) -> NDArray[Any]:
        kind: type[Part] | type[PhasePart] = Part if isinstance(space, Reals) else PhasePart
        total: NDArray[Any] = np.zeros(shape, np.float64 if isinstance(space, Reals) else np.uint32)
        for passive in self._context.contributors:
            values = self._context.channel.recv(passive, kind, self._context.subchannel).values  # 1
            check_shape(passive, values, shape)
            check_bits(passive, values, space.bits)
            total += values
        return total & np.uint32(2**space.bits - 1) if isinstance(space, Circle) else total


def check_shape(sender: str, values: NDArray[Any], shape: tuple[int, ...]) -> None:
    """ProtocolError unless the part has the agreed shape and is finite."""
    if values.shape != shape:
        raise ProtocolError(f"{sender} was expected to send a part of shape {shape}, {values.shape} came")
    if values.dtype.kind == "f" and not np.isfinite(values).all():
        raise ProtocolError(f"{sender} sent a part with NaN or infinite values; lower its step size")


# Who sends to whom in a sum: tree, star or ring. Party 0 is the root, where the sum ends.
#
# *One pass* (cipher sums): the shape itself, `one_pass`.
#
# *Two passes* (tree sums): T1 has the shape asked for, and T2, which carries the masks, is another tree, since two
# equal shapes would protect nothing (two stars show the root every part). `two_passes` makes T2 so that the pair keeps
# what `protects` asks for:
#
#     tree    T1 and T2 balanced, with shuffled labels (FDSKL 2020, Algorithm 3)
#     star    T1 all to the root at once; T2 a balanced tree of the others, whose head alone sends to the root: the root
#             sees every masked part, so it may see nothing but the sum of all masks
#     ring    T1 a chain; T2 balanced, with shuffled labels. A second chain would hold the same set of parties just
#     before
#             the root, and the two parties there would know the total together


Topology = Literal["tree", "star", "ring"]

_TRIES = 1000


def one_pass(topology: Topology, parties: int) -> SumTree:
    """Build the tree of this topology over parties 0..parties-1 with root 0."""
    match topology:
        case "tree":
            return balanced(range(parties), 0)
        case "star":
            return star(range(parties), 0)
        case "ring":
            return chain([*range(1, parties), 0])


@lru_cache(maxsize=256)
def two_passes(topology: Topology, parties: int) -> tuple[SumTree, SumTree]:
    """T1 and T2 over parties 0..parties-1 with root 0, the same at every party. ConfigError if parties < 3."""
    if parties < 3:
        raise ConfigError(
            f"tree sum: expected at least two passive parties, got {parties - 1}; a sum of one part is that part, "
            'use sum = "direct"'
        )
    T1 = one_pass(topology, parties)
    match topology:
        case "tree":
            both = build_trees(parties, 0, b"tree sum")
            return both.T1, both.T2
        case "star":
            others = balanced(range(1, parties), 1)
            return T1, SumTree((*others.levels, ((1, 0),)), 0)
        case "ring":
            for attempt in range(_TRIES):
                T2 = build_trees(parties, 0, f"ring sum {attempt}".encode()).T2
                if protects(T1, T2):
                    return T1, T2
    raise ConfigError(f"tree sum: no fit pair of trees for {parties} parties; use topology = 'tree'")


def protects(T1: SumTree, T2: SumTree) -> bool:
    """Totally different (Definition 2), and no party by itself learns a sum, except the root that over all others."""
    if not totally_different(T1, T2):
        return False
    for party in T1.parties:
        allowed = [T1.parties - {party}] if party == T1.root else []
        if learned_sums(T1, T2, {party}) != allowed:
            return False
    return True
