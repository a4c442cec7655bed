"""Tree sum: masked parts go up one tree, the masks another (FDSKL, Gu et al. 2020, Algorithm 3).

All parties take part, the collector as the root of both trees; there must be two contributors or more.

1. contributor l          draws a fresh uniform mask r_l, for this exchange alone
2. l -> above l in T1     sum of v_j + r_j, over l and everyone below it in T1
3. l -> above l in T2     sum of r_j, over l and everyone below it in T2
4. collector              subtracts: sum over all l of v_l

Values live in Z_2^64 (reals in fixed point) or in Z_2^32 or Z_2^16 (phases), where a uniform mask hides perfectly.
Each message alone is uniform. What several parties know together is decided by the trees: the part v_l comes out if and
only if all neighbours of l in both trees pool what they hold (`crypto.sum_trees`). T1 and T2 are totally
different (Definition 2), so no single party learns more than it should: the collector the sum, contributors nothing.
The trees depend only on the topology and the number of parties, so that `coalitions` can be read before anything runs.

The paper leaves one party out of T2; here every mask is fresh and every mask is taken off (see
`crypto.sum_trees`).

Both passes go on side by side, level by level, each on a subchannel of its own: a sum takes as long as the deeper
tree, not
as both, since masks wait for no values.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from securevfl.base.arrays import Floats
from securevfl.base.roles import COLLECTOR, CONTRIBUTOR
from securevfl.crypto.prg import Prg
from securevfl.crypto.sum_trees import SumTree, smallest_coalition
from securevfl.protocols.declarations import MessageDeclaration, Reveal
from securevfl.protocols.number_spaces import Phases, Space
from securevfl.protocols.party_context import PartyContext
from securevfl.protocols.sums.base import TOTAL, SumProtocol, SumRole, part_of_sum
from securevfl.protocols.sums.residues import Residues, from_residues, pack, residue_type, to_residues, unpack
from securevfl.protocols.sums.topologies import Topology, two_passes
from securevfl.runtime.codec import Message
from securevfl.runtime.disclosure_gate import DisclosingMessage, DisclosurePermit


class MaskedPartial(Message, frozen=True):
    """Sum of v_j + r_j below the sender in T1, its own included, as residues."""

    residues: bytes


class MaskPartial(DisclosingMessage, frozen=True):
    """Sum of r_j below the sender in T2, its own included, as residues."""

    residues: bytes


class TreeSum(SumProtocol):
    """Masked parts along T1, masks along T2. `topology` is the shape of T1; T2 is chosen to go with it."""

    name: ClassVar[str] = "tree"
    topology: Topology = "tree"
    """Shape of the tree that masked parts go up; masks take another one, chosen to go with it."""

    @classmethod
    def variants(cls) -> dict[str, Self]:
        return {"tree": cls(), "tree star": cls(topology="star"), "tree ring": cls(topology="ring")}

    @property
    def strength(self) -> str:
        return "ChaCha20 as a pseudorandom generator; masks uniform over the ring"

    def role(self, context: PartyContext) -> SumRole:
        return TreeSumRole(context, *self.trees(len(context.parties)))

    def trees(self, parties: int) -> tuple[SumTree, SumTree]:
        """T1 and T2 over the active party 0 and passive parties 1 to parties-1. ConfigError if parties < 3."""
        return two_passes(self.topology, parties)

    def declares(self, contributors: Sequence[str]) -> list[MessageDeclaration]:
        uniform = Reveal("uniform")
        between = [
            MessageDeclaration(MaskedPartial, CONTRIBUTOR, CONTRIBUTOR, uniform),
            MessageDeclaration(MaskPartial, CONTRIBUTOR, CONTRIBUTOR, uniform),
        ]
        return [
            *(between[1:] if self.topology == "star" else between),
            MessageDeclaration(MaskedPartial, CONTRIBUTOR, COLLECTOR, uniform),
            MessageDeclaration(MaskPartial, CONTRIBUTOR, COLLECTOR, TOTAL),
        ]

    def coalitions(self, parties: Sequence[str]) -> dict[str, frozenset[str]]:
        if len(parties) < 3:
            return {passive: frozenset({parties[0]}) for passive in parties[1:]}
        T1, T2 = self.trees(len(parties))
        found = {}
        for l, passive in enumerate(parties[1:], start=1):
            neighbours = smallest_coalition(T1, T2, l)
            assert neighbours is not None, "every passive party sends in both trees"
            found[passive] = frozenset(parties[k] for k in neighbours)
        return found


class TreeStep(NamedTuple):
    """One message of one party in one exchange."""

    message: type[MaskedPartial] | type[MaskPartial]
    sends: bool
    peer: str


class TreeSumRole(SumRole):
    """Either side; the active party is the root, which adds nothing of its own."""

    def __init__(self, context: PartyContext, T1: SumTree, T2: SumTree) -> None:
        self._context = context
        self._terms = len(context.contributors)
        self._masks = Prg.fresh("tree sum")
        self._steps = _steps(context, T1, T2)

    def contribute(self, values: Floats | Phases, space: Space) -> None:
        if self._context.me == self._context.collector:
            super().contribute(values, space)
        permit = part_of_sum(self._context, values, space)
        part = to_residues(values, space, self._terms)
        mask = self._mask(part)  # 1
        self._pass_on(part + mask, mask, space, permit)

    def collect(self, shape: tuple[int, ...], space: Space) -> NDArray[Any]:
        if self._context.me != self._context.collector:
            super().collect(shape, space)
        masked, masks = (np.zeros(shape, residue_type(space)) for _ in range(2))
        self._pass_on(masked, masks, space)
        return from_residues(masked - masks, space, self._terms)  # 4

    def _mask(self, part: Residues) -> Residues:
        return self._masks.array(part.shape, part.dtype.type)

    def _pass_on(self, masked: Residues, mask: Residues, space: Space, permit: DisclosurePermit | None = None) -> None:
        """Add what comes from below in each tree to its own, in place, and send it up."""
        held = {MaskedPartial: masked, MaskPartial: mask}
        channel = self._context.channel
        for message, sends, peer in self._steps:
            subchannel = f"{self._context.subchannel}/{message.__name__}"
            own = held[message]
            if sends:
                channel.send(peer, message(pack(own)), subchannel, permit=permit)  # 2, 3
            else:
                own += unpack(channel.recv(peer, message, subchannel).residues, own.shape, space, peer)  # 2, 3


def _steps(context: PartyContext, T1: SumTree, T2: SumTree) -> list[TreeStep]:
    """List this party's messages of both passes, level by level; of one level, what needs no waiting first."""
    own = context.parties.index(context.me)
    timed: list[tuple[int, bool, TreeStep]] = []
    for message, tree in ((MaskedPartial, T1), (MaskPartial, T2)):
        for level, sends in enumerate(tree.levels):
            for sender, to in sends:
                if own in (sender, to):
                    peer = context.parties[to if own == sender else sender]
                    timed.append((level, own == to, TreeStep(message, own == sender, peer)))
    return [step for *_, step in sorted(timed, key=lambda item: item[:2])]
