"""Tree sum: masked summands are added along one tree, the masks along another (FDSKL, Gu et al. 2020, Algorithm 3).

All parties take part, with the collector as the root of both trees. There must be two contributors or more.

1. contributor l             draws a fresh uniform mask r_l for this exchange
2. l -> parent of l in T1    sum of v_j + r_j over l and all parties below it in T1
3. l -> parent of l in T2    sum of r_j over l and all parties below it in T2
4. collector                 subtracts the sums: sum over all l of v_l

Values are elements of Z_2^64 (reals in fixed point), or of Z_2^32 or Z_2^16 (phases). A uniform mask hides them
perfectly, so each single message is uniform. The trees determine what several parties learn together: they learn v_l if
and only if they include all neighbours of l in both trees (`crypto.sum_trees`). T1 and T2 are totally different
(Definition 2), so the collector learns the sum, and no single contributor learns anything. The trees depend only on the
shape and the number of parties, so `coalitions` can be computed before a run.

The paper omits one party from T2. Here every mask is fresh, and every mask is subtracted (see `crypto.sum_trees`).

Both passes run concurrently, level by level, on separate subchannels. A sum takes as long as the deeper tree and not as
long as both, because masks do not depend on values.
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
    """Sum of v_j + r_j over the sender and all parties below it in T1, as residues."""

    residues: bytes


class MaskPartial(DisclosingMessage, frozen=True):
    """Sum of r_j over the sender and all parties below it in T2, as residues."""

    residues: bytes


class TreeSum(SumProtocol):
    """A sum of masked summands along T1, and of masks along T2. `topology` is the shape of T1; T2 is chosen to fit."""

    name: ClassVar[str] = "tree"
    topology: Topology = "tree"
    """Shape of the tree along which masked outputs are added; the tree of the masks is chosen to fit."""

    @classmethod
    def variants(cls) -> dict[str, Self]:
        """Return one sum for each shape; see `MessageProtocol.variants`."""
        return {"tree": cls(), "tree star": cls(topology="star"), "tree ring": cls(topology="ring")}

    @property
    def strength(self) -> str:
        """Cryptographic assumption in one line."""
        return "ChaCha20 as a pseudorandom generator; masks uniform over the ring"

    def role(self, context: PartyContext) -> SumRole:
        """Create this party's role; see `SumProtocol.role`."""
        return TreeSumRole(context, *self.trees(len(context.parties)))

    def trees(self, parties: int) -> tuple[SumTree, SumTree]:
        """Return T1 and T2 over the collector 0 and contributors 1..parties-1; see `two_passes`."""
        return two_passes(self.topology, parties)

    def declares(self, contributors: Sequence[str]) -> list[MessageDeclaration]:
        """Declare the messages; see `SumProtocol.declares`."""
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
        """Return the neighbours in both trees for every contributor; see `SumProtocol.coalitions`."""
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
    """One message that a party sends or receives in an exchange."""

    message: type[MaskedPartial] | type[MaskPartial]
    sends: bool
    peer: str


class TreeSumRole(SumRole):
    """The role of a contributor, or of the collector, which is the root and adds no summand.

    Args:
        context: the party's context.
        T1: the tree of masked summands.
        T2: the tree of masks.
    """

    def __init__(self, context: PartyContext, T1: SumTree, T2: SumTree) -> None:
        self._context = context
        self._terms = len(context.contributors)
        self._masks = Prg.fresh("tree sum")
        self._steps = _steps(context, T1, T2)

    def contribute(self, values: Floats | Phases, space: Space) -> None:
        """Add this party's summand; see `SumRole.contribute`."""
        if self._context.me == self._context.collector:
            super().contribute(values, space)
        permit = permit_summand(self._context, values, space)
        part = to_residues(values, space, self._terms)
        mask = self._mask(part)  # 1
        self._pass_on(part + mask, mask, space, permit)

    def collect(self, shape: tuple[int, ...], space: Space) -> NDArray[Any]:
        """Return the sum; see `SumRole.collect`."""
        if self._context.me != self._context.collector:
            super().collect(shape, space)
        masked, masks = (np.zeros(shape, residue_type(space)) for _ in range(2))
        self._pass_on(masked, masks, space)
        return from_residues(masked - masks, space, self._terms)  # 4

    def _mask(self, part: Residues) -> Residues:
        return self._masks.array(part.shape, part.dtype.type)

    def _pass_on(self, masked: Residues, mask: Residues, space: Space, permit: DisclosurePermit | None = None) -> None:
        """Add the received sums of each tree to this party's values in place, and send the results to its parents."""
        sums = {MaskedPartial: masked, MaskPartial: mask}
        channel = self._context.channel
        for message, sends, peer in self._steps:
            subchannel = f"{self._context.subchannel}/{message.__name__}"
            partial = sums[message]
            if sends:
                channel.send(peer, message(pack(partial)), subchannel, permit=permit)  # 2, 3
            else:
                partial += unpack(channel.recv(peer, message, subchannel).residues, partial.shape, space, peer)  # 2, 3


def _steps(context: PartyContext, T1: SumTree, T2: SumTree) -> list[TreeStep]:
    """List this party's messages of both passes, level by level; in each level, those to send first."""
    index = context.parties.index(context.me)
    timed: list[tuple[int, bool, TreeStep]] = []
    for message, tree in ((MaskedPartial, T1), (MaskPartial, T2)):
        for level, sends in enumerate(tree.levels):
            for sender, to in sends:
                if index in (sender, to):
                    peer = context.parties[to if index == sender else sender]
                    timed.append((level, index == to, TreeStep(message, index == sender, peer)))
    return [step for *_, step in sorted(timed, key=lambda item: item[:2])]
