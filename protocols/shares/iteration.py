"""Training on additive shares: weights, forward sums, residuals and gradients stay shared in every iteration.

A has the labels (active), B is its partner, and C any further party (passive). Their precomputed material is described
in offline_phase.py: theta_k = s_k + sum_h r_kh, with s_k at party k and r_kh at each holder h of A, B other than k, and
g = psi_A + psi_B + delta. X and W are integers modulo 2^L (fixed_point.py). A row of a batch has c outputs, and one
oblivious transfer 1-of-2^b for each. h_k below is X_k s_k plus the party's shares of all X r. An iteration:

6. C -> A   h_C - kappa                           kappa: a keystream that B has too
7. B -> A   offset = (i_B - chi) mod 2^b          i_B: top bits of h_B plus all kappa
8. A -> B   T_y(i_A + offset + j) - psi_A - pad(j)   for each row and j < 2^b;  i_A: top bits of h_A plus all of 6
   B        g_B = entry chi + pad(chi)
9. B -> A, C   delta = g_B - psi_B
   k        updates s_k with its shares of W_k^T psi, and W_k^T (its part of g: psi_A + delta at A, g_B at B, delta at
   C)

Steps 6 to 9 process a block of rows. B requests one block ahead: it sends the request for the next block before it
receives the tables of the current one. A receives delta in one message with the request for a later block, or for the
next iteration, whose first sums depend on the last delta. T_y is the table of g for label y, so shares of g result from
the look-up (Dessouky et al. 2017 use transfers for look-ups), and it represents any loss of one sum. With two parties
an iteration is one round trip; with more, three messages in a row, whatever d is.

All values that A receives are uniform, because of chi, psi_B and kappa. B can open one entry of each row's table, which
psi_A makes uniform. delta is uniform to C because of psi_B. So nobody learns more than n, d, c, the number of
iterations, L and b. Parties that collude learn no more either, unless A and B are both among them: these two together
know g, every H_k, theta_A and theta_B.

An interrupted training resumes from a checkpoint that all parties took after the same iteration. A resumed run draws
fresh masks and keys, so replaying earlier iterations reveals nothing new; parties may resume from any common
checkpoint.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from securevfl.base.arrays import Floats
from securevfl.crypto.prg import Prg
from securevfl.crypto.share_ring import IncrementalPacking, ShareRing, Words
from securevfl.errors import ProtocolError
from securevfl.protocols.declarations import MessageDeclaration, Reveal
from securevfl.protocols.observations import SharedResidual
from securevfl.protocols.party_context import PartyContext
from securevfl.protocols.shares import table_transfers
from securevfl.protocols.shares.column_blocks import ColumnBlocks
from securevfl.protocols.shares.offline_phase import OfflinePhase, PreprocessedBlock
from securevfl.protocols.shares.residual_tables import ResidualTables
from securevfl.protocols.shares.share_products import read_offsets, unpack_words
from securevfl.protocols.shares.shares_params import RowBlock, SharesParams
from securevfl.runtime.codec import M, Message

_ROWS_PER_TABLE_CHUNK = 1024
_KAPPA_LABEL = "sums of a training on shares"

TableIndices = NDArray[np.uint8]

_NO_WORDS: Words = np.empty((0, 0), np.uint64)


class MaskedSum(Message, frozen=True):
    """h_C - kappa, (n, c) words, and the name of the chunk."""

    chunk: str
    words: bytes


class LookupRequest(Message, frozen=True):
    """The name of the chunk; delta of each block since the last request; and the table offsets of the next block.

    delta is empty before the first block, and the offsets are empty after the last one.
    """

    chunk: str
    delta: bytes
    offsets: bytes


class MaskedTables(Message, frozen=True):
    """The masked table entries of every row, (2^b, n c) words."""

    entries: bytes


class MaskedResidual(Message, frozen=True):
    """delta, (n, c) words, for a party that is no share holder."""

    words: bytes


def declares() -> list[MessageDeclaration]:
    """Declare the disclosures of the messages of an iteration. Roles: active, partner, passive (any other party)."""
    return [
        MessageDeclaration(MaskedSum, "passive", "active", Reveal("uniform")),
        MessageDeclaration(LookupRequest, "partner", "active", Reveal("uniform"), structured=True),
        MessageDeclaration(MaskedTables, "active", "partner", Reveal("uniform")),
        MessageDeclaration(MaskedResidual, "partner", "passive", Reveal("uniform")),
    ]


def coalitions(active: str, partner: str, passives: tuple[str, ...]) -> dict[str, frozenset[str]]:
    """Return, for each party other than the holders, which parties have to collude to learn its forward sums."""
    holders = frozenset((active, partner))
    return {name: holders for name in passives if name != partner}


@dataclass(frozen=True, repr=False)
class SharedState:
    """One party's shares of the weights after a number of iterations.

    Attributes:
        iterations: the number of iterations.
        own_share: the state (k, d, c) of the update rule for s, this party's share of its weights.
        peer_shares: at a holder, the states for r, its shares of every other party's weights.
    """

    iterations: int
    own_share: Words
    peer_shares: Mapping[str, Words]


class TrainingRole(ABC):
    """The part of an iteration that all parties have in common.

    Args:
        context: this party's context.
        params: the agreed parameters.
        columns: this party's columns.
        offline: its offline phase.
        state: the state to resume from; None starts with zero weights.
    """

    def __init__(
        self,
        context: PartyContext,
        params: SharesParams,
        columns: ColumnBlocks,
        offline: OfflinePhase,
        state: SharedState | None = None,
    ) -> None:
        self._context, self._params, self._encoding = context, params, params.encoding
        self._ring = ShareRing(params.encoding.bits)
        self._columns, self._offline = columns, offline
        self._change: Words = np.zeros((0, 0), np.uint64)  # W^T g of the blocks of an iteration so far
        self._peer_changes: Mapping[str, Words] = {}
        self._passives = tuple(name for name in context.passives if name != params.partner)
        is_holder = context.me in (context.active, params.partner)
        zero = {
            name: params.rule_of(name).start(np.zeros((d, params.outputs), np.uint64))
            for name, d in params.columns.items()
        }
        peer_shares = {name: r for name, r in zero.items() if is_holder and name != context.me}
        self.state = state or SharedState(0, zero[context.me], peer_shares)
        offline.set_state(self.state.iterations, self.state.peer_shares)

    def set_params(self, params: SharesParams) -> None:
        """Switch to a new update rule from the current iteration on.

        Precomputed material for later iterations must be discarded.
        """
        self._params = params
        self._offline.set_params(params)
        self._offline.set_state(self.state.iterations, self.state.peer_shares)

    @abstractmethod
    def train(self, chunk: int, iterations: int) -> Iterator[SharedState]:
        """Run the iterations of a chunk, and yield the state after each one.

        The channel may carry other messages between two iterations.
        """

    def _begin(self, number: int) -> str:
        """Return the name of a chunk. Raises ProtocolError if it does not begin with the next iteration."""
        chunk = self._offline.store.chunk(number)
        if chunk.first + chunk.next != self.state.iterations:
            raise ProtocolError(
                f"shares: preprocessing chunk {number} continues with iteration {chunk.first + chunk.next}, and the "
                f"training with iteration {self.state.iterations}",
                "generate a new chunk",
                code="SVFL-STATE",
            )
        self._offline.greet()
        return chunk.name.hex()

    def _check_chunk(self, name: str, expected: str, received: str) -> None:
        """Raise ProtocolError if a peer uses another chunk."""
        if expected != received:
            raise ProtocolError(
                f"{name} uses another preprocessing chunk",
                "generate new chunks together",
                code="SVFL-PROTOCOL-MESSAGE",
                party=name,
            )

    @property
    def theta(self) -> Words:
        """S (d, c), this party's share of its weights."""
        rule = self._params.rule_of(self._context.me)
        return self._ring.reduce(rule.theta(self.state.own_share, self.state.iterations))

    def _sum(self, material: PreprocessedBlock) -> Words:
        """Return h (n, c) of a block."""
        return self._columns.sums(material.block, self.theta) + material.sums

    def _is_last(self, material: PreprocessedBlock) -> bool:
        """Return whether a block is the last one of its batch."""
        return material.block.stop == self._params.rows[material.block.batch]

    def _step(self, material: PreprocessedBlock, g: Words) -> SharedState:
        """Add a block's contribution to the change; after the last block, update the state.

        Args:
            material: the precomputed material of the block.
            g: this party's part of the residual (n, c).

        Returns:
            The current state.
        """
        params, ring, iterations = self._params, self._ring, self.state.iterations
        batch = material.block.batch
        if self._context.channel.observed:
            self._context.channel.note(SharedResidual(batch, ring.signed(ring.reduce(g)).astype(np.float64)))
        if not material.block.start:
            self._change, self._peer_changes = material.step, material.products
        change = self._columns.change(material.block, ring.reduce(g))
        self._change = self._change + (change << np.uint64(params.encoding.lift(params.rows[batch])))
        if not self._is_last(material):
            return self.state
        rule = params.rule_of(self._context.me)
        own_share = ring.reduce(rule.step(self.state.own_share, self._change, iterations))
        peer_shares = {
            name: ring.reduce(params.rule_of(name).step(r, self._peer_changes[name], iterations))
            for name, r in self.state.peer_shares.items()
        }
        self.state = SharedState(iterations + 1, own_share, peer_shares)
        return self.state

    def _send(self, name: str, message: Message) -> None:
        self._context.channel.send(name, message, self._context.subchannel)

    def _recv(self, name: str, kind: type[M]) -> M:
        return self._context.channel.recv(name, kind, self._context.subchannel)


class LabelParty(TrainingRole):
    """A: has the labels, and provides the tables.

    Args:
        context: this party's context.
        params: the agreed parameters.
        columns: this party's columns.
        offline: its offline phase.
        tables: returns the tables of a block, for its n c targets.
        state: the state to resume from; None starts with zero weights, except for the intercept.
        start: the intercepts (c,) at the start, if this party's last column is constant. They are part of its own
            share, so nobody else learns anything of them.
    """

    def __init__(
        self,
        context: PartyContext,
        params: SharesParams,
        columns: ColumnBlocks,
        offline: OfflinePhase,
        tables: Callable[[RowBlock], ResidualTables],
        state: SharedState | None = None,
        start: Floats | None = None,
    ) -> None:
        super().__init__(context, params, columns, offline, state)
        if state is None and start is not None:
            weights = np.zeros((params.columns[context.me], params.outputs))
            weights[-1] = start
            own_share = params.rule_of(context.me).start(params.encoding.encode_weights(weights))
            self.state = replace(self.state, own_share=own_share)
        self._tables = tables
        self._prg = Prg.fresh("rounding of table entries")
        self._masks = _NO_WORDS

    def train(self, chunk: int, iterations: int) -> Iterator[SharedState]:
        """Run the iterations of a chunk, and yield the state after each one."""
        partner, chunk_name = self._params.partner, self._begin(chunk)
        material = self._take(chunk, 0, 0)
        request = self._recv(partner, LookupRequest)  # 7
        self._check_chunk(partner, chunk_name, request.chunk)
        for iteration in range(iterations):
            pending, part, last = list[PreprocessedBlock](), 0, False  # blocks whose delta has not arrived
            while not last:
                h, last = self._sum(material), self._is_last(material)
                for name in self._passives:
                    masked = self._recv(name, MaskedSum)  # 6
                    self._check_chunk(name, chunk_name, masked.chunk)
                    h = h + unpack_words(name, masked.words, self._ring, h.shape)
                indices = self._encoding.index(self._ring.reduce(h)).ravel() + read_offsets(
                    partner, request.offsets, h.size, self._encoding.entries
                )
                self._send(partner, MaskedTables(self._mask_tables(material.block, indices)))  # 8
                pending.append(material)
                part += 1
                if not last:
                    material = self._take(chunk, iteration, part)  # while the partner computes
                elif iteration + 1 < iterations:
                    material = self._take(chunk, iteration + 1, 0)
                request = self._recv(partner, LookupRequest)  # 9, 7
                answered = pending if last else pending[:-1]
                for previous, delta in zip(answered, self._split(request.delta, answered), strict=True):
                    masked_g = unpack_words(partner, delta, self._ring, previous.psi.shape, "delta")
                    self._step(previous, previous.psi + masked_g)
                pending = pending[len(answered) :]
            yield self.state

    def _take(self, chunk: int, iteration: int, part: int) -> PreprocessedBlock:
        """Return the material of a block, and compute its masks psi + pad (2^b, n c)."""
        material = self._offline.take(chunk, iteration, part)
        self._masks = self._context.meter("transfer", lambda: table_transfers.pads(material.transfer, self._ring))
        self._masks += material.psi.ravel()
        return material

    def _split(self, deltas: bytes, blocks: Sequence[PreprocessedBlock]) -> list[bytes]:
        """Split the concatenated deltas of several blocks; the last block receives all remaining bytes."""
        ends = np.cumsum([self._ring.size(material.psi.size) for material in blocks[:-1]], dtype=int).tolist()
        return [deltas[start:stop] for start, stop in pairwise([0, *ends, len(deltas)])] if blocks else []

    def _mask_tables(self, block: RowBlock, indices: TableIndices) -> bytes:
        """Return the packed tables of a block, starting at these indices and without the masks, which are discarded."""
        masks, self._masks = self._masks, _NO_WORDS
        tables, packing = self._tables(block), IncrementalPacking(self._ring, masks.shape)
        for start in range(0, len(indices), _ROWS_PER_TABLE_CHUNK):
            rows = slice(start, start + _ROWS_PER_TABLE_CHUNK)
            entries = tables.entries(indices[rows], self._prg, start).view(np.uint64)
            entries -= masks[:, rows]
            packing.put((slice(None), rows), entries)
        return packing.packed()


@dataclass(frozen=True)
class _PreparedRequest:
    """A block for which the partner sends a request.

    Attributes:
        material: the precomputed material of the block.
        chi: the random choices (n c,).
        pad: pad(chi) (n c,).
        offsets: the table offsets to send.
    """

    material: PreprocessedBlock
    chi: TableIndices
    pad: Words
    offsets: bytes


class PartnerParty(TrainingRole):
    """B: the share holder without labels, which reads the tables."""

    def train(self, chunk: int, iterations: int) -> Iterator[SharedState]:
        """Run the iterations of a chunk, and yield the state after each one."""
        active, chunk_name = self._context.active, self._begin(chunk)
        kappas = [Prg(self._offline.pair_keys[name], f"{_KAPPA_LABEL}, {chunk}") for name in self._passives]
        prepared = self._prepare(chunk, 0, 0, kappas)
        self._send(active, LookupRequest(chunk_name, b"", prepared.offsets))  # 7
        for iteration in range(iterations):
            deltas, part, last = b"", 0, False  # deltas of blocks, which the next request contains
            while not last:
                material = prepared.material
                last, part = self._is_last(material), part + 1
                if not last:
                    following = self._prepare(chunk, iteration, part, kappas)  # one block ahead, so nobody waits
                    self._send(active, LookupRequest(chunk_name, deltas, following.offsets))  # 9, 7
                    deltas = b""
                entry = self._open(self._recv(active, MaskedTables).entries, prepared.chi)  # 8
                g = (entry + prepared.pad).reshape(material.psi.shape)
                delta = self._ring.pack(self._ring.reduce(g - material.psi))
                self._step(material, g)
                for name in self._passives:
                    self._send(name, MaskedResidual(delta))  # 9
                deltas = deltas + delta
                if not last:
                    prepared = following
            offsets = b""
            if iteration + 1 < iterations:
                prepared = self._prepare(chunk, iteration + 1, 0, kappas)
                offsets = prepared.offsets
            self._send(active, LookupRequest(chunk_name, deltas, offsets))  # 9, 7 of the next iteration
            yield self.state

    def _prepare(self, chunk: int, iteration: int, part: int, kappas: Sequence[Prg]) -> _PreparedRequest:
        """Compute the sums of a block, and the table offsets to request."""
        material = self._offline.take(chunk, iteration, part)
        chi, pad = table_transfers.chosen(material.transfer, self._ring)
        h = self._sum(material)
        for prg in kappas:
            h = h + self._ring.uniform(prg, h.shape)
        index = self._encoding.index(self._ring.reduce(h)).ravel()
        offsets = (index - chi) & np.uint8(self._encoding.entries - 1)
        return _PreparedRequest(material, chi, pad, offsets.tobytes())

    def _open(self, entries: bytes, chi: TableIndices) -> Words:
        """Return the entry chi of each row's table. Raises ProtocolError if the tables have another size."""
        rows, size = len(chi), len(chi) * self._ring.octets * self._encoding.entries
        if len(entries) != size:
            raise ProtocolError(
                f"{self._context.active} sent {len(entries)} bytes of tables instead of {size}",
                code="SVFL-PROTOCOL-SIZE",
                party=self._context.active,
            )
        return self._ring.unpack(entries, (self._encoding.entries, rows), (chi, np.arange(rows)))


class FeatureParty(TrainingRole):
    """C: a party that has columns only."""

    def train(self, chunk: int, iterations: int) -> Iterator[SharedState]:
        """Run the iterations of a chunk, and yield the state after each one."""
        chunk_name, partner = self._begin(chunk), self._params.partner
        kappa = Prg(self._offline.pair_keys[partner], f"{_KAPPA_LABEL}, {chunk}")
        for iteration in range(iterations):
            pending, part, last = list[PreprocessedBlock](), 0, False
            while not last:
                material = self._offline.take(chunk, iteration, part)
                last, part = self._is_last(material), part + 1
                h = self._sum(material)
                h = self._ring.reduce(h - self._ring.uniform(kappa, h.shape))
                self._send(self._context.active, MaskedSum(chunk_name, self._ring.pack(h)))  # 6
                pending.append(replace(material, sums=_NO_WORDS))
            for material in pending:
                delta = self._recv(partner, MaskedResidual).words  # 9
                shape = material.block.rows, self._params.outputs
                self._step(material, unpack_words(partner, delta, self._ring, shape, "delta"))
            yield self.state
