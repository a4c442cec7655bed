"""Training on secret shares, online phase: the messages of one iteration, which is one update of the model's weights.

Party A has the labels (role "active"), B is its partner, and C is any further party (role "passive"). A and B are the
share holders. Every party k has columns X_k (n, d) and weights theta_k (d, c), for n rows of a batch and c outputs of
the model per row. W_k (n, d) is X_k scaled by the step size. All values are integers modulo 2^L in fixed point
(fixed_point.py); messages contain them *packed*, in as few bytes as their bits need. Weights, forward sums
H = sum_k X_k @ theta_k, residuals g (n, c) and gradients are additively shared: each party has a random-looking
summand. The offline phase (offline_phase.py) computes *chunks* of material, products with random vectors for some
epochs, in advance. In iterations of many rows, table entries are short; they are *lifted* to L bits by messages 8a and
8b (`TrainingRole`). The material gives:

    theta_k = s_k + sum_h r_kh     party k has s_k, and every holder h other than k has r_kh
    g = psi_A + psi_B + delta      psi_h is a random mask (n, c) that only holder h knows; delta is sent in step 9
    h_k                            k's share of H (n, c): X_k @ s_k, plus k's shares of the products X @ r
    chi, pad(j)                    for each row and output, an oblivious transfer gave B a random index chi below 2^b
                                   and the number pad(chi), and gave A all 2^b numbers pad(j)

A row's table T_y lists the residual for label y at 2^b forward sums. Comments refer to these steps by number; steps 0
to 4 belong to the offline phase. One iteration:

6. C -> A   h_C - kappa                              kappa: random numbers from a key that B and C have in common
7. B -> A   offset = (i_B - chi) mod 2^b             i_B: the top b bits of h_B + kappa (added up for all C)
8. A -> B   T_y[i_A + offset + j] - psi_A - pad(j)   for each j < 2^b; i_A: the top b bits of h_A plus all of step 6
   B        g_B = the received entry chi, plus pad(chi), which is g - psi_A
9. B -> A, C   delta = g_B - psi_B
   k        adds to its shares of the weights: its shares of W_k^T psi_h, and W_k^T times its share of g, which is
            psi_A + delta at A, g_B at B, and delta at C

If the model has products of components of A and B ("pairs", pair_weights.py), A and B also do this:

10. A <-> B  G_h - m_h                               h's share of the gradient of pairs, less its mask; A and B then
                                                     have two views of their weights, each with shares at A and B
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

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
from securevfl.protocols.shares.carry_lift import Bits, CarryLift, SplitMask
from securevfl.protocols.shares.column_blocks import ColumnBlocks
from securevfl.protocols.shares.offline_phase import OfflinePhase, PreprocessedBlock
from securevfl.protocols.shares.pair_weights import PairShares
from securevfl.protocols.shares.residual_tables import ResidualTables
from securevfl.protocols.shares.share_products import read_offsets, unpack_words
from securevfl.protocols.shares.shares_params import RowBlock, SharesParams
from securevfl.runtime.codec import M, Message

_ROWS_PER_TABLE_CHUNK = 2048
_REQUESTS_AHEAD = 3
_KAPPA_LABEL = "sums of a training on shares"

TableIndices = NDArray[np.uint8]

_NO_WORDS: Words = np.empty((0, 0), np.uint64)


class MaskedSum(Message, frozen=True):
    """The passive party's masked share of the forward sums.

    Attributes:
        chunk: the name of the chunk of precomputed material that the sender uses.
        words: h_C - kappa, packed integers (n, c).
    """

    chunk: str
    words: bytes


class LookupRequest(Message, frozen=True):
    """The partner's request for the tables of the next block, with its masked residuals since its last request.

    Attributes:
        chunk: the name of the chunk of precomputed material that the sender uses.
        delta: the masked residuals of all blocks since the last request, concatenated; empty in the first request.
        offsets: the table offsets of the next block, one byte for each row and output; empty after the last block.
        carries: the bits e of step 8a of earlier blocks, eight in a byte for each block; empty without a lift.
    """

    chunk: str
    delta: bytes
    offsets: bytes
    carries: bytes = b""


class MaskedTables(Message, frozen=True):
    """The label party's answer to a request.

    Attributes:
        entries: the masked table entries of every row and output of the requested block: packed integers (n * c, 2^b).
        lifts: the words Y of step 8b for the bits in the request: packed integers (2, n * c) for each block. They turn
            the partner's shares of k bits into shares of L bits.
    """

    entries: bytes
    lifts: bytes = b""


class MaskedGradient(Message, frozen=True):
    """A share holder's masked share of the gradient of pairs: packed integers (d,)."""

    words: bytes


class MaskedResidual(Message, frozen=True):
    """The masked residual delta for a party that is not a share holder: packed integers (n, c)."""

    words: bytes


def declares_pairs() -> list[MessageDeclaration]:
    """Declare the message of step 10, which only models with pairs have. Roles: active, partner."""
    return [
        MessageDeclaration(MaskedGradient, "active", "partner", Reveal("uniform")),
        MessageDeclaration(MaskedGradient, "partner", "active", Reveal("uniform")),
    ]


def declares() -> list[MessageDeclaration]:
    """Declare sender, receiver and disclosure of each message. Roles: active, partner, passive (any other party)."""
    return [
        MessageDeclaration(MaskedSum, "passive", "active", Reveal("uniform")),
        MessageDeclaration(LookupRequest, "partner", "active", Reveal("uniform"), structured=True),
        MessageDeclaration(MaskedTables, "active", "partner", Reveal("uniform")),
        MessageDeclaration(MaskedResidual, "partner", "passive", Reveal("uniform")),
    ]


def coalitions(active: str, partner: str, passives: tuple[str, ...]) -> dict[str, frozenset[str]]:
    """Return, for each party that is not a share holder, the parties that must collude to learn its forward sums."""
    holders = frozenset((active, partner))
    return {name: holders for name in passives if name != partner}


class RequestStep(NamedTuple):
    """The contents of one of the partner's requests in an iteration, as numbers of blocks.

    Attributes:
        block: the block whose tables are requested, if any.
        carries: the blocks whose bits e (step 8a) the request contains.
        deltas: the blocks whose delta (step 9) it contains.
        answers: the number of answers that the partner receives before it sends this request.
        answered: whether the label party answers this request. The last request of an iteration is answered as the
            first one of the next iteration.
    """

    block: int | None
    carries: range
    deltas: range
    answers: int
    answered: bool = True


def lookup_requests(blocks: int, *, lifts: bool) -> list[RequestStep]:
    """Return the partner's requests of an iteration, in order; the last one is part of the next iteration's first one.

    The partner requests the tables of up to `_REQUESTS_AHEAD` blocks before it receives the first ones, so that the
    line is in use while both parties compute. It sends the bits e of a block as soon as it has the block's tables, and
    every delta as soon as another request is due. The deltas of all but the last block have a request of their own at
    the end, because they are complete before the last one.

    Args:
        blocks: the number of blocks of rows in the batch.
        lifts: whether table entries are sent with k < L bits and lifted to L bits (steps 8a and 8b).

    Returns:
        The requests.
    """
    ahead = min(blocks, _REQUESTS_AHEAD)
    steps = [RequestStep(block, range(0), range(0), 0) for block in range(ahead)]
    for block in range(blocks if lifts else blocks - ahead):  # its tables have arrived
        requested = block + ahead if block + ahead < blocks else None
        # the answer with the tables also contains the words of step 8b of an earlier block
        complete = block - ahead if lifts else block
        carries = range(block, block + 1) if lifts else range(0)
        steps.append(RequestStep(requested, carries, range(max(0, complete), max(0, complete + 1)), block + 1))
    last = blocks - 1
    if blocks > 1:
        steps.append(RequestStep(None, range(0), range(max(0, blocks - ahead), last), len(steps) - 1, answered=False))
    answers = sum(step.answered for step in steps)
    return [*steps, RequestStep(None, range(0), range(last, blocks), answers, answered=False)]


@dataclass(frozen=True, repr=False)
class SharedState:
    """One party's shares of the weights after a number of iterations.

    Attributes:
        iterations: the number of iterations.
        own_share: s, this party's share of the weights of its columns, as a state (k, d, c) of the update rule
            (update_rules.py): k arrays of the shape of the weights.
        peer_shares: at a share holder, r for every other party, as states of the update rule.
        pairs: at a share holder of a model with pairs, its parts of their gradients; None elsewhere.
    """

    iterations: int
    own_share: Words
    peer_shares: Mapping[str, Words]
    pairs: PairShares | None = None


class TrainingRole(ABC):
    """Base class of the three roles in an iteration, with the computations that all parties have in common.

    In iterations of many rows the tables are most of the traffic. Entries then have k < L bits and are lifted to L bits
    (carry_lift.py). An entry is u = T_y[..] - base_y, from 0 to 2^(k-1) - 1, and psi_A - base_y is split into a, its
    lowest k bits, and alpha, its other bits. Another oblivious transfer gave B a random bit c and a number p_c, and
    gave A both numbers p_0 and p_1. Step 8 becomes:

    8.  A -> B   u[i_A + offset + j] - a - pad(j)        for each j < 2^b, modulo 2^k
        B        b = the received entry chi, plus pad(chi), which is u - a
    8a. B -> A   e = c ^ (the top bit of b)
    8b. A -> B   Y_j = c_a * [j = e] - alpha - p_j       for j = 0, 1, modulo 2^(L-k); c_a: 1 - (the top bit of a)
        B        g_B = b + (Y_c + p_c - 1) * 2^k, which is g - psi_A

    The steps process one block of rows at a time. B requests several blocks before it receives the tables of the first
    one, so that both parties compute while the line is in use (`lookup_requests`). A receives delta together with the
    request for a later block, or for the next iteration, whose first sums depend on the last delta. Look-ups by
    oblivious transfer are those of Dessouky et al. 2017; a table can represent any loss that depends on one sum. With
    two parties an iteration is one round trip. With more parties it is three messages in sequence, whatever the number
    of columns. Steps 8a and 8b take one further round trip for all blocks of an iteration. While the tables of an
    iteration are sent, B sends its message about the transfers of the next iteration (delayed_transfers.py).

    All values that A receives are uniform, because of chi, c, psi_B and kappa. B can read one entry of each row's
    table, which is uniform because of psi_A, and one of the two words of step 8b, which is uniform because of alpha.
    delta is uniform to C because of psi_B. So nobody learns more than n, d, c, the number of iterations, L, b and k. A
    coalition learns no more, unless it contains both A and B: these two together know g, every party's X_k @ theta_k,
    and their own weights.

    An interrupted training resumes from a checkpoint that all parties took after the same iteration. A resumed run
    draws fresh masks and keys, so replaying earlier iterations reveals nothing new; parties may resume from any common
    checkpoint.

    Args:
        context: the party's channel to the others, the roles of all parties, and the meter of its costs.
        params: the parameters of the training on which all parties agree (shares_params.py).
        columns: this party's columns.
        offline: this party's offline phase, which provides the precomputed material.
        state: the state of the weights to resume from; None starts with zero weights.
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
        self._lift = CarryLift(params.encoding.lift_bits, self._ring) if params.encoding.lift_bits else None
        self._entry_ring = self._lift.short_ring if self._lift else self._ring
        self._columns, self._offline = columns, offline
        # this party's share of W^T g, summed over the blocks of the batch so far
        self._change: Words = np.zeros((0, 0), np.uint64)
        # the same for the gradient of pairs, and the mask with which it is sent
        self._pair_change = self._pair_mask = _NO_WORDS
        self._peer_changes: Mapping[str, Words] = {}
        self._passives = tuple(name for name in context.passives if name != params.partner)
        is_holder = context.me in (context.active, params.partner)
        zero = {
            name: params.rule_of(name).start(np.zeros((d, params.outputs), np.uint64))
            for name, d in params.columns.items()
        }
        peer_shares = {name: r for name, r in zero.items() if is_holder and name != context.me}
        pairs = None if offline.pairs is None else PairShares.empty(offline.pairs.columns.params.products)
        self.state = state or SharedState(0, zero[context.me], peer_shares, pairs)
        offline.set_state(self.state.iterations, self.state.peer_shares, self.state.pairs)

    def set_params(self, params: SharesParams) -> None:
        """Switch to parameters with a new update rule, from the current iteration on.

        The caller must discard precomputed material for later iterations.
        """
        self._params = params
        self._offline.set_params(params)
        self._offline.set_state(self.state.iterations, self.state.peer_shares, self.state.pairs)

    @abstractmethod
    def train(self, chunk: int, iterations: int) -> Iterator[SharedState]:
        """Run the iterations for which a chunk has precomputed material, and yield the state after each one.

        The channel may carry other messages between two iterations.

        Args:
            chunk: the number of the chunk, which is the precomputed material for a number of iterations.
            iterations: the number of iterations to run.

        Yields:
            This party's shares of the weights after each iteration.
        """

    def _begin(self, number: int) -> str:
        """Return the name of a chunk. Raises ProtocolError unless its unused material starts at the next iteration."""
        chunk = self._offline.store.chunk(number)
        if chunk.first + chunk.next != self.state.iterations:
            raise ProtocolError(
                f"shares: preprocessing chunk {number} (random numbers for some epochs) continues at iteration "
                f"{chunk.first + chunk.next}, but the training continues at iteration {self.state.iterations}",
                "generate a new chunk",
                code="SVFL-STATE",
            )
        self._offline.greet()
        return chunk.name.hex()

    def _check_chunk(self, name: str, expected: str, received: str) -> None:
        """Raise ProtocolError unless a peer uses the same chunk of precomputed material as this party."""
        if expected != received:
            raise ProtocolError(
                f"{name} uses another preprocessing chunk (random numbers for some epochs) than this party",
                "generate new chunks at both parties together",
                code="SVFL-PROTOCOL-MESSAGE",
                party=name,
            )

    @property
    def theta(self) -> Words:
        """This party's share s (d, c) of its own weights."""
        rule = self._params.rule_of(self._context.me)
        return self._ring.reduce(rule.theta(self.state.own_share, self.state.iterations))

    def _sum(self, material: PreprocessedBlock) -> Words:
        """Return h, this party's share (n, c) of the forward sums of a block."""
        h = self._columns.sums(material.block, self.theta) + material.sums
        if self._offline.pairs is None or self.state.pairs is None:
            return h
        pairs, shares = self._offline.pairs.columns.params, self.state.pairs
        s = pairs.weights(self._params.rule, shares.opened)
        return h + ((self._offline.pairs.rows(material.block) @ s)[:, None] << np.uint64(pairs.shift))

    def _requests(self, material: PreprocessedBlock) -> list[RequestStep]:
        """Return the partner's requests of the iteration to which a block belongs."""
        blocks = len(self._params.blocks_of(material.block.batch))
        return lookup_requests(blocks, lifts=self._lift is not None)

    def _is_last(self, material: PreprocessedBlock) -> bool:
        """Return whether a block is the last one of its batch."""
        return material.block.stop == self._params.rows[material.block.batch]

    def _step(self, material: PreprocessedBlock, g: Words) -> SharedState:
        """Add a block's share of the gradient to the sum over blocks; after the last block, update the weights.

        Args:
            material: the precomputed material of the block.
            g: this party's share of the residual (n, c).

        Returns:
            The current state, updated if this was the last block of the batch.
        """
        params, ring, iterations = self._params, self._ring, self.state.iterations
        batch = material.block.batch
        if self._context.channel.observed:
            self._context.channel.note(SharedResidual(batch, ring.signed(ring.reduce(g)).astype(np.float64)))
        if not material.block.start:
            self._change, self._peer_changes = material.step, material.products
            self._pair_change, self._pair_mask = material.pair_step, material.pair_mask
        if self._offline.pairs is not None:
            self._pair_change = self._pair_change + g[:, 0] @ self._offline.pairs.rows(material.block)
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
        self.state = replace(self.state, iterations=iterations + 1, own_share=own_share, peer_shares=peer_shares)
        return self.state

    def _exchange_pairs(self, material: PreprocessedBlock) -> None:
        """Run step 10 at the end of an iteration of a model with pairs; `material` belongs to a block of its batch."""
        if self._offline.pairs is None or self.state.pairs is None:
            return
        pairs, (peer,) = self._offline.pairs.columns.params, self._offline.session.products.other_holders
        ring, factor = pairs.ring, pairs.factor(self._params.rows[material.block.batch])
        self._send(peer, MaskedGradient(ring.pack(ring.reduce(self._pair_change - self._pair_mask))))  # step 10
        received = unpack_words(peer, self._recv(peer, MaskedGradient).words, ring, self._pair_change.shape)  # step 10
        opened = ring.reduce((self._pair_change + received) * factor)
        extended = self.state.pairs.extended(opened, ring.reduce(self._pair_mask * factor))
        self.state = replace(self.state, pairs=extended)

    def _split(self, data: bytes, sizes: Sequence[int]) -> list[bytes]:
        """Split the other holder's values of several blocks. Raises ProtocolError if `data` has another size."""
        if len(data) != sum(sizes):
            raise ProtocolError(
                f"the other share holder sent {len(data)} bytes about {len(sizes)} blocks of rows instead of "
                f"{sum(sizes)}",
                "use the same job at both parties",
                code="SVFL-PROTOCOL-SIZE",
            )
        ends = np.cumsum([0, *sizes], dtype=int).tolist()
        return [data[start:stop] for start, stop in pairwise(ends)]

    def _send(self, name: str, message: Message) -> None:
        self._context.channel.send(name, message, self._context.subchannel)

    def _recv(self, name: str, kind: type[M]) -> M:
        return self._context.channel.recv(name, kind, self._context.subchannel)


class LabelParty(TrainingRole):
    """Party A: it has the labels, and provides the tables from which residuals are read.

    Args:
        context: the party's channel to the others, the roles of all parties, and the meter of its costs.
        params: the parameters of the training on which all parties agree (shares_params.py).
        columns: this party's columns.
        offline: this party's offline phase, which provides the precomputed material.
        tables: returns the tables of a block, one for each of its rows and outputs.
        state: the state of the weights to resume from; None starts with zero weights, except for the intercept.
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

    def train(self, chunk: int, iterations: int) -> Iterator[SharedState]:
        """Run the iterations of a chunk as the party with labels; see `TrainingRole.train`."""
        partner, chunk_name, offline = self._params.partner, self._begin(chunk), self._offline
        offline.begin_transfers(chunk, 0)
        offline.finish_transfers(chunk)
        material, masks = self._take(chunk, 0, 0)
        request = self._recv(partner, LookupRequest)  # step 7
        self._check_chunk(partner, chunk_name, request.chunk)
        for iteration in range(iterations):
            blocks = dict[int, PreprocessedBlock]()  # material of the blocks whose delta has not arrived yet
            requests = self._requests(material)
            for step, following in pairwise(requests):
                tables = b""
                if step.block is not None:
                    indices = self._indices(material, request.offsets, chunk_name)
                    tables = self._mask_tables(material.block, indices, masks)
                    blocks[step.block] = material
                    del masks  # frees memory now, because the masks are as large as the tables
                if step.answered:
                    lifts = self._lift_words([blocks[block] for block in step.carries], request.carries)
                    self._send(partner, MaskedTables(tables, lifts))  # steps 8 and 8b
                if following.answers and not step.answers:
                    offline.begin_transfers(chunk, iteration + 1)
                # the next material is computed while the partner computes
                if following.block is not None:
                    material, masks = self._take(chunk, iteration, following.block)
                elif step.answered and not following.answered:  # nothing else to do until the residuals arrive
                    offline.finish_transfers(chunk)
                    if iteration + 1 < iterations and offline.pairs is None:
                        material, masks = self._take(chunk, iteration + 1, 0)
                request = self._recv(partner, LookupRequest)  # steps 9, 7 and 8a
                answered = [blocks.pop(block) for block in following.deltas]
                deltas = self._split(request.delta, [self._ring.size(item.psi.size) for item in answered])
                for previous, delta in zip(answered, deltas, strict=True):
                    masked_g = unpack_words(partner, delta, self._ring, previous.psi.shape, "delta")
                    self._step(previous, previous.psi + masked_g)
            if self._offline.pairs is not None:
                self._exchange_pairs(material)
                if iteration + 1 < iterations:
                    material, masks = self._take(chunk, iteration + 1, 0)
                    request = self._recv(partner, LookupRequest)  # step 7
            yield self.state

    def _indices(self, material: PreprocessedBlock, offsets: bytes, chunk_name: str) -> TableIndices:
        """Return, for each row and output (n * c,), the index of the table entry that is sent first."""
        h = self._sum(material)
        for name in self._passives:
            masked = self._recv(name, MaskedSum)  # step 6
            self._check_chunk(name, chunk_name, masked.chunk)
            h = h + unpack_words(name, masked.words, self._ring, h.shape)
        rotation = read_offsets(self._params.partner, offsets, h.size, self._encoding.entries)
        return self._encoding.index(self._ring.reduce(h)).ravel() + rotation

    def _take(self, chunk: int, iteration: int, part: int) -> tuple[PreprocessedBlock, NDArray[Any]]:
        """Return the material of a block, and the masks (n * c, 2^b) of its table entries: psi or a, plus the pads."""
        material = self._offline.take(chunk, iteration, part)
        masks: NDArray[Any]
        if self._lift is None:
            masks = self._context.meter("transfer", lambda: table_transfers.pads(material.transfer, self._ring)).T
            masks += material.psi.reshape(-1, 1)
            return material, masks
        masks = self._context.meter("transfer", lambda: table_transfers.short_pads(material.transfer)).T
        masks += self._split_psi(self._lift, material).low.astype(masks.dtype)[:, None]
        return material, masks

    def _split_psi(self, lift: CarryLift, material: PreprocessedBlock) -> SplitMask:
        """Return a and alpha of each row and output of a block: the parts of psi minus the table's base."""
        return lift.split(material.psi.ravel() - self._tables(material.block).bases().view(np.uint64))

    def _lift_words(self, blocks: Sequence[PreprocessedBlock], carries: bytes) -> bytes:
        """Return the packed words of step 8b for some blocks, from the partner's bits of step 8a."""
        if self._lift is None:
            return b""
        lift, words = self._lift, list[bytes]()
        sizes = [-(-material.psi.size // 8) for material in blocks]
        for material, packed in zip(blocks, self._split(carries, sizes), strict=True):
            e = np.unpackbits(np.frombuffer(packed, np.uint8), count=material.psi.size, bitorder="little")
            read_pads = partial(table_transfers.pads, material.carry_transfer, lift.high_ring)
            pads = self._context.meter("transfer", read_pads)
            words.append(lift.high_ring.pack(lift.answer(self._split_psi(lift, material), e, pads)))
        return b"".join(words)

    def _mask_tables(self, block: RowBlock, indices: TableIndices, masks: NDArray[Any]) -> bytes:
        """Return the packed tables of a block, minus their masks.

        Args:
            block: the block of rows.
            indices: for each row and output (n * c,), the index of the table entry that is sent first.
            masks: the masks of the entries (n * c, 2^b).

        Returns:
            The bytes of `MaskedTables.entries`.
        """
        tables, packing = self._tables(block), IncrementalPacking(self._entry_ring, masks.shape)
        for start in range(0, len(indices), _ROWS_PER_TABLE_CHUNK):
            rows = slice(start, start + _ROWS_PER_TABLE_CHUNK)
            entries = tables.entries(indices[rows], self._prg, start).view(masks.dtype)
            entries -= masks[rows]
            packing.put(rows, entries)
        return packing.packed()


@dataclass(frozen=True)
class _PreparedRequest:
    """The partner's request for the tables of one block, before it is sent.

    Attributes:
        material: the precomputed material of the block.
        chi: the random indices chi (n * c,).
        pad: pad(chi) for each of them (n * c,).
        offsets: the table offsets to send, one byte for each row and output.
    """

    material: PreprocessedBlock
    chi: TableIndices
    pad: Words
    offsets: bytes


@dataclass(frozen=True, repr=False)
class _OpenedEntries:
    """The partner's shares of the table entries of one block, modulo 2^k: before they are lifted to L bits.

    Attributes:
        material: the precomputed material of the block.
        b: the shares of k bits (n * c,).
        c: the random bits of the transfers for the lift (n * c,).
        pad: the pads p_c of these transfers (n * c,).
    """

    material: PreprocessedBlock
    b: Words
    c: Bits
    pad: Words


class PartnerParty(TrainingRole):
    """Party B: the share holder without labels, which looks up residuals in the tables of A."""

    def train(self, chunk: int, iterations: int) -> Iterator[SharedState]:
        """Run the iterations of a chunk as the partner; see `TrainingRole.train`."""
        active, chunk_name, offline = self._context.active, self._begin(chunk), self._offline
        offline.begin_transfers(chunk, 0)
        offline.finish_transfers(chunk)
        kappas = [Prg(self._offline.pair_keys[name], f"{_KAPPA_LABEL}, {chunk}") for name in self._passives]
        prepared = self._prepare(chunk, 0, 0, kappas)
        self._send(active, LookupRequest(chunk_name, b"", prepared.offsets))  # step 7
        for iteration in range(iterations):
            requests, answers = self._requests(prepared.material), 0
            answered = [request for request in requests if request.answered]
            requested, opened = {0: prepared}, dict[int, _OpenedEntries]()
            carries, deltas = dict[int, bytes](), dict[int, bytes]()
            for request in requests[1:]:
                if request.answers and not answers:
                    offline.begin_transfers(chunk, iteration + 1)
                    offline.finish_transfers(chunk)
                while answers < request.answers:
                    self._read_answer(answered[answers], requested, opened, carries, deltas)
                    answers += 1
                offsets = b""
                if request.block is not None:
                    requested[request.block] = self._prepare(chunk, iteration, request.block, kappas)
                    offsets = requested[request.block].offsets
                elif request is requests[-1] and iteration + 1 < iterations and self._offline.pairs is None:
                    prepared = self._prepare(chunk, iteration + 1, 0, kappas)
                    offsets = prepared.offsets
                delta = b"".join(deltas.pop(block) for block in request.deltas)
                bits = b"".join(carries.pop(block) for block in request.carries)
                self._send(active, LookupRequest(chunk_name, delta, offsets, bits))  # steps 9, 7 and 8a
            if self._offline.pairs is not None:
                self._exchange_pairs(prepared.material)
                if iteration + 1 < iterations:  # the next forward sums depend on the gradient of pairs
                    prepared = self._prepare(chunk, iteration + 1, 0, kappas)
                    self._send(active, LookupRequest(chunk_name, b"", prepared.offsets))  # step 7
            yield self.state

    def _prepare(self, chunk: int, iteration: int, part: int, kappas: Sequence[Prg]) -> _PreparedRequest:
        """Compute this party's share of the forward sums of a block, and the table offsets to request."""
        material, ring = self._offline.take(chunk, iteration, part), self._entry_ring
        chi, pad = self._context.meter("transfer", lambda: table_transfers.chosen(material.transfer, ring))
        h = self._sum(material)
        for prg in kappas:
            h = h + self._ring.uniform(prg, h.shape)
        index = self._encoding.index(self._ring.reduce(h)).ravel()
        offsets = (index - chi) & np.uint8(self._encoding.entries - 1)
        return _PreparedRequest(material, chi, pad, offsets.tobytes())

    def _read_answer(
        self,
        request: RequestStep,
        requested: dict[int, _PreparedRequest],
        opened: dict[int, _OpenedEntries],
        carries: dict[int, bytes],
        deltas: dict[int, bytes],
    ) -> None:
        """Receive the answer to a request; compute the bits of step 8a, and the residuals of blocks that are complete.

        Args:
            request: one of the partner's requests, whose answer arrives next.
            requested: the blocks whose tables have not arrived; this method removes the block of the request.
            opened: the blocks whose entries are not lifted yet.
            carries: the packed bits of step 8a by block, to which this method adds.
            deltas: the packed deltas by block, to which this method adds.
        """
        answer = self._recv(self._context.active, MaskedTables)  # steps 8 and 8b
        lift = self._lift
        if request.block is not None:
            prepared = requested.pop(request.block)
            material, entry = prepared.material, self._open(answer.entries, prepared.chi) + prepared.pad
            if lift is None:
                deltas[request.block] = self._finish(material, entry)
                return
            read_pads = partial(table_transfers.chosen, material.carry_transfer, lift.high_ring)
            c, pad = self._context.meter("transfer", read_pads)
            block = _OpenedEntries(material, lift.short_ring.reduce(entry), c, pad)
            opened[request.block] = block
            carries[request.block] = np.packbits(lift.request(block.b, c), bitorder="little").tobytes()
        if lift is not None:
            lifted = [opened.pop(number) for number in request.carries]
            words = self._split(answer.lifts, [lift.high_ring.size(2 * block.b.size) for block in lifted])
            for number, block, packed in zip(request.carries, lifted, words, strict=True):
                received = unpack_words(self._context.active, packed, lift.high_ring, (2, block.b.size))
                g = lift.finish(block.b, block.c, block.pad, received)
                deltas[number] = self._finish(block.material, g)

    def _finish(self, material: PreprocessedBlock, g: Words) -> bytes:
        """Process this party's share g (n * c,) of the residuals of a block; return the packed delta for party A."""
        g = g.reshape(material.psi.shape)
        delta = self._ring.pack(self._ring.reduce(g - material.psi))
        self._step(material, g)
        for name in self._passives:
            self._send(name, MaskedResidual(delta))  # step 9
        return delta

    def _open(self, entries: bytes, chi: TableIndices) -> Words:
        """Return entry chi of each row's masked table. Raises ProtocolError if the tables have the wrong size."""
        ring, rows = self._entry_ring, len(chi)
        size = rows * ring.octets * self._encoding.entries
        if len(entries) != size:
            raise ProtocolError(
                f"{self._context.active} sent {len(entries)} bytes of masked table entries instead of {size}",
                code="SVFL-PROTOCOL-SIZE",
                party=self._context.active,
            )
        return ring.unpack(entries, (rows, self._encoding.entries), (np.arange(rows), chi))


class FeatureParty(TrainingRole):
    """Party C: a party that has columns and is not a share holder."""

    def train(self, chunk: int, iterations: int) -> Iterator[SharedState]:
        """Run the iterations of a chunk as a party with columns only; see `TrainingRole.train`."""
        chunk_name, partner = self._begin(chunk), self._params.partner
        kappa = Prg(self._offline.pair_keys[partner], f"{_KAPPA_LABEL}, {chunk}")
        for iteration in range(iterations):
            pending, part, last = list[PreprocessedBlock](), 0, False
            while not last:
                material = self._offline.take(chunk, iteration, part)
                last, part = self._is_last(material), part + 1
                h = self._sum(material)
                h = self._ring.reduce(h - self._ring.uniform(kappa, h.shape))
                self._send(self._context.active, MaskedSum(chunk_name, self._ring.pack(h)))  # step 6
                pending.append(replace(material, sums=_NO_WORDS))
            for material in pending:
                delta = self._recv(partner, MaskedResidual).words  # step 9
                shape = material.block.rows, self._params.outputs
                self._step(material, unpack_words(partner, delta, self._ring, shape, "delta"))
            yield self.state
