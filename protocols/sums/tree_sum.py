"""Tree sum: masked summands are added along one tree, the masks along another (FDSKL, Gu et al. 2020, Algorithm 3).

Every contributor l has a summand v_l. The collector, normally the party with labels, learns the sum of all summands.
T1 and T2 are two trees of all parties, with the collector as the root of both. There must be two contributors or more.

1. contributor l             draws a uniformly random mask r_l, a new one for each sum
2. l -> parent of l in T1    the sum of v_j + r_j over l and all parties below it in T1
3. l -> parent of l in T2    the sum of r_j over l and all parties below it in T2
4. collector                 subtracts the sum of T2 from that of T1, and obtains the sum of all v_l

Comments refer to these steps by number. All values are residues: integers modulo 2^64 or 2^32 (real numbers in fixed
point), or modulo 2^32 or 2^16 (phases). A uniform mask hides them perfectly, so each single message is uniform. Several
parties together learn v_l if and only if they include all neighbours of l in both trees (`crypto.sum_trees`). T1 and T2
are totally different (Definition 2 of the paper), so the collector learns only the sum, and no single contributor
learns anything. The trees depend only on the shape and the number of parties, so `coalitions` can be computed before a
run.

The paper omits one party from T2. Here all parties are in T2, and every mask is subtracted (see `crypto.sum_trees`).

The parties add along both trees at the same time, level by level, on separate subchannels. A sum therefore takes as
long as the deeper of the two trees, and not as long as both.
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
from securevfl.protocols.sums.base import TOTAL, SumProtocol, SumRole, permit_summand
from securevfl.protocols.sums.residue_sums import Residues, from_residues, pack, residue_type, to_residues, unpack
from securevfl.protocols.sums.topologies import Topology, two_passes
from securevfl.runtime.codec import Message
from securevfl.runtime.disclosure_gate import DisclosingMessage, DisclosurePermit


class MaskedPartial(Message, frozen=True):
    """The sum of the masked summands v_j + r_j of the sender and of all parties below it in T1, as residues."""

    residues: bytes


class MaskPartial(DisclosingMessage, frozen=True):
    """The sum of the masks r_j of the sender and of all parties below it in T2, as residues."""

    residues: bytes


class TreeSum(SumProtocol):
    """A sum of masked summands along a tree T1, and of their masks along another tree T2."""

    name: ClassVar[str] = "tree"
    min_contributors: ClassVar[int] = 2
    topology: Topology = "tree"
    """Shape of the tree along which masked outputs are added; the tree of the masks is chosen to fit."""

    @classmethod
    def variants(cls) -> dict[str, Self]:
        """Return one protocol for each shape of T1; see `MessageProtocol.variants`."""
        return {"tree": cls(), "tree star": cls(topology="star"), "tree ring": cls(topology="ring")}

    @property
    def strength(self) -> str:
        """The cryptographic assumption as one line of text."""
        return "ChaCha20 as a pseudorandom generator; masks uniform over the ring"

    def role(self, context: PartyContext) -> SumRole:
        """Create this party's role; see `SumProtocol.role`."""
        return TreeSumRole(context, *self.trees(len(context.parties)))

    def trees(self, parties: int) -> tuple[SumTree, SumTree]:
        """Return T1 and T2; the collector is number 0, and the contributors are 1 to `parties` - 1 (`two_passes`)."""
        return two_passes(self.topology, parties)

    def declares(self, contributors: Sequence[str]) -> list[MessageDeclaration]:
        """Declare sender, receiver and disclosure of each message; see `SumProtocol.declares`."""
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
        """Return, for every contributor, its neighbours in both trees; see `SumProtocol.coalitions`."""
        if len(parties) < 3:
            return {passive: frozenset({parties[0]}) for passive in parties[1:]}
        T1, T2 = self.trees(len(parties))
        members = {}
        for l, passive in enumerate(parties[1:], start=1):
            neighbours = smallest_coalition(T1, T2, l)
            assert neighbours is not None, "every passive party sends in both trees"
            members[passive] = frozenset(parties[k] for k in neighbours)
        return members


class TreeStep(NamedTuple):
    """One message of a sum, which this party sends to a peer if `sends` is true, and otherwise receives from it."""

    message: type[MaskedPartial] | type[MaskPartial]
    sends: bool
    peer: str


class TreeSumRole(SumRole):
    """The role of a contributor, or of the collector, which is the root of both trees and has no summand.

    Args:
        context: the party's channel to the others, the roles of all parties, and the meter of its costs.
        T1: the tree along which masked summands are added up.
        T2: the tree along which masks are added up.
    """

    def __init__(self, context: PartyContext, T1: SumTree, T2: SumTree) -> None:
        self._context = context
        self._terms = len(context.contributors)
        self._masks = Prg.fresh("tree sum")
        self._steps = _steps(context, T1, T2)

    def contribute(self, values: Floats | Phases, space: Space) -> None:
        """Contribute this party's summand; see `SumRole.contribute`."""
        if self._context.me == self._context.collector:
            super().contribute(values, space)
        permit = permit_summand(self._context, values, space)
        part = to_residues(values, space, self._terms)
        mask = self._mask(part)  # step 1
        self._pass_on(part + mask, mask, space, permit)

    def collect(self, shape: tuple[int, ...], space: Space) -> NDArray[Any]:
        """Return the sum; see `SumRole.collect`."""
        if self._context.me != self._context.collector:
            super().collect(shape, space)
        masked, masks = (np.zeros(shape, residue_type(space)) for _ in range(2))
        self._pass_on(masked, masks, space)
        return from_residues(masked - masks, space, self._terms)  # step 4

    def _mask(self, part: Residues) -> Residues:
        return self._masks.array(part.shape, part.dtype.type)

    def _pass_on(self, masked: Residues, mask: Residues, space: Space, permit: DisclosurePermit | None = None) -> None:
        """Add the partial sums that arrive in each tree to this party's values in place, and send the results up."""
        sums = {MaskedPartial: masked, MaskPartial: mask}
        channel = self._context.channel
        for message, sends, peer in self._steps:
            subchannel = f"{self._context.subchannel}/{message.__name__}"
            partial = sums[message]
            if sends:
                channel.send(peer, message(pack(partial)), subchannel, permit=permit)  # steps 2 and 3
            else:
                # steps 2 and 3
                partial += unpack(channel.recv(peer, message, subchannel).residues, partial.shape, space, peer)


def _steps(context: PartyContext, T1: SumTree, T2: SumTree) -> list[TreeStep]:
    """List this party's messages in both trees, level by level. In each level, sending precedes receiving."""
    index = context.parties.index(context.me)
    timed: list[tuple[int, bool, TreeStep]] = []
    for message, tree in ((MaskedPartial, T1), (MaskPartial, T2)):
        for level, sends in enumerate(tree.levels):
            for sender, to in sends:
                if index in (sender, to):
                    peer = context.parties[to if index == sender else sender]
                    timed.append((level, index == to, TreeStep(message, index == sender, peer)))
    return [step for *_, step in sorted(timed, key=lambda item: item[:2])]
