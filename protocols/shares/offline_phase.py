"""Offline phase of a training on secret shares: random products that a chunk of iterations needs, computed in advance.

The share holders are A, which has the labels (role "active"), and B, its partner. Every party k, including A and B, has
columns X_k (n, d), steps W_k (n, d), which are the columns scaled by the step size, and weights theta_k (d, c), for n
rows of a batch and c model outputs per row. All are integers modulo 2^L. Docstrings omit indices that are clear, as in
X @ r. No party knows a weight or a residual:

    theta_k = s_k + sum_h r_kh    party k has s_k, and every holder h other than k has r_kh (d, c)
    g = psi_A + psi_B + delta     the residual (n, c): psi_h is a random mask of holder h, new in each iteration, and B
                                  sends delta in the online phase (iteration.py)

W_k^T psi_h is computed here for each iteration, as two shares: one at k and one, v_kh, at h. r_kh follows from v_kh, so
the products X_k @ r_kh can be computed here too. A *chunk* is a number of epochs whose products are computed together.
For each chunk, each holder h and each other party k:

0. h -> k   the holder's public keys, new for the chunk: one for step 1 and one for step 3
1. h <-> k  products W_k^T psi_h of all iterations (share_products.py)    => shares at k, v_kh at h
            h sends psi_h, encrypted, for each block of rows; k replies once a batch, if it can (reply_sums.py)
2. h        computes r_kh before each iteration from the v_kh of earlier iterations (update_rules.py)
3. h <-> k  products X_k @ r_kh for each iteration                        => shares at k and at h
            h sends r_kh, encrypted, once a batch; k replies for each block of rows
4. A, B     oblivious transfers for every row of every iteration (table_transfers.py): one that selects a table entry,
            and one of a single bit if table entries are lifted (carry_lift.py). If no party stores chunks on disk, they
            are generated during the training (delayed_transfers.py)

Comments refer to these steps by number. Products, transfers and records cover blocks of rows of a public size. The
offline phase is a session, with its own subchannel, keys and nonces (random numbers that are used once).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial

import msgspec
import numpy as np

from securevfl.crypto.batch_cache import BatchCache
from securevfl.crypto.share_ring import Integers, ShareRing, Words
from securevfl.crypto.share_scheme import ShareHolder, ShareScheme
from securevfl.errors import FrameError
from securevfl.protocols.declarations import MessageDeclaration
from securevfl.protocols.party_context import PartyContext
from securevfl.protocols.shares import pair_phase, share_products, table_transfers
from securevfl.protocols.shares.delayed_transfers import DelayedTransfers
from securevfl.protocols.shares.pair_columns import PairColumns
from securevfl.protocols.shares.pair_phase import PairPhase
from securevfl.protocols.shares.pair_weights import PairShares
from securevfl.protocols.shares.preprocessing_store import NAME_BYTES, PreprocessingStore, Record
from securevfl.protocols.shares.product_work import ProductExecutor, RemoteFactor
from securevfl.protocols.shares.reply_sums import ReplySums, ends_sum, layout_rows
from securevfl.protocols.shares.share_products import Evaluators
from securevfl.protocols.shares.shares_params import RowBlock, SharesParams
from securevfl.protocols.shares.shares_session import SharesSession
from securevfl.protocols.shares.spent_chunks import SpentChunks
from securevfl.protocols.shares.table_transfers import BaseTransfers
from securevfl.runtime import eventlog

_MAX_PENDING_VALUES = 1 << 19  # maximum number of entries of psi whose products are computed at once, to limit memory

Factors = Callable[..., Integers | RemoteFactor]
"""A function of a `RowBlock` and of the keyword `steps`. It returns the steps W (n, d) of the block's n rows if `steps`
is True, and their columns X otherwise."""

ByBatch = dict[int, Words]
ByBlock = dict[int, Words]
"""A matrix of words for each block, by the block's index in `SharesParams.blocks`."""


def declares() -> list[MessageDeclaration]:
    """Declare sender, receiver and disclosure of each message. Roles: active, partner, passive (any other party)."""
    return [*share_products.declares(), *table_transfers.declares()]


@dataclass(frozen=True, repr=False)
class PreprocessedBlock:
    """The precomputed material of one party for one block of one iteration. It is single-use.

    Attributes:
        block: the block of rows.
        psi: at a share holder, its random mask (n, c) of the block's residuals; empty at other parties.
        step: in the first block of a batch, the sum (d, c) of this party's shares of all products W^T psi, for the
            whole batch; empty in other blocks.
        sums: the sum (n, c) of this party's shares of all products X @ r.
        products: in the first block of a batch and at a share holder, v (d, c) for every other party, by its name.
        transfer: at a share holder, the stored oblivious transfers (table_transfers.py).
        carry_transfer: at a share holder, the stored transfers of single bits for the lift, which turns shares of table
            entries of k bits into shares of L bits (carry_lift.py); empty if entries have L bits at once.
        pair_step: in the first block of a batch and at a share holder of a model with pairs, the sum (d,) of this
            party's shares of both products of pairs with psi (pair_phase.py), for the whole batch; else empty.
        pair_mask: in the same block, the mask (d,) of this party's share of the gradient of pairs; else empty.
    """

    block: RowBlock
    psi: Words
    step: Words
    sums: Words
    products: Mapping[str, Words]
    transfer: tuple[bytes, ...]
    carry_transfer: tuple[bytes, ...]
    pair_step: Words
    pair_mask: Words


class _Record(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The stored form of a `PreprocessedBlock`, without psi, which is stored separately. It is never sent."""

    block: int
    step: bytes
    sums: bytes
    products: dict[str, bytes]
    transfer: tuple[bytes, ...]
    carry_transfer: tuple[bytes, ...]
    pair_step: bytes = b""
    pair_mask: bytes = b""


_RECORD_DECODER = msgspec.msgpack.Decoder(_Record)


def _decode_record(data: bytes) -> _Record:
    """Decode a stored record. Raises FrameError if it is damaged."""
    try:
        return _RECORD_DECODER.decode(data)
    except (msgspec.DecodeError, ValueError):
        raise FrameError(
            "a stored record of random numbers for the training is damaged",
            "generate the preprocessing chunk again",
            code="SVFL-FILE-DAMAGED",
        ) from None


class OfflinePhase:
    """One party's side of the offline phase, for any role.

    An iteration adds W_k^T g to shares of theta_k. Its summand W_k^T psi_h is computed here, as two shares: one at k
    and one, v_kh, at h. r_kh follows from v_kh alone. So every holder knows its r and psi before any iteration starts,
    and the products X_k @ r_kh can be computed here as well (as in the offline phase of Delphi, Mishra et al. 2020). A
    chunk is a number of epochs whose random products are computed together and stored. A batch that occurs in `count`
    iterations of the chunk needs just one product with a matrix of `count * c` columns.

    Products, transfers and stored records cover blocks of rows of a public size (shares_params.py), so that their
    memory does not grow with the batch. Transfers that are generated during the training are an exception: those of at
    least one iteration are in memory. Sums over blocks are exact modulo 2^L: the division into blocks changes the
    weights only by rounding in the last bit of products.

    A group of blocks of a chunk takes two round trips. Every received value is a ciphertext under another party's key,
    or uniform, so all parties learn sizes only: n, d, c, the number of iterations and L.

    Args:
        context: the party's channel to the others, the roles of all parties, and the meter of its costs.
        params: the parameters of the training on which all parties agree (shares_params.py).
        scheme: the encryption scheme of the products.
        factors: returns the matrix X or W (n, d) of a block.
        store: stores the precomputed material.
        remote: whether other processes store X and W.
        base: base transfers, the slow transfers from which all others are derived. They must exist before the offline
            phase runs concurrently with other sessions that use them; None creates new ones.
        pairs: at a share holder of a model with pairs, the shared products of components; None elsewhere.
    """

    def __init__(
        self,
        context: PartyContext,
        params: SharesParams,
        scheme: ShareScheme,
        factors: Factors,
        store: PreprocessingStore,
        *,
        remote: bool = False,
        base: BaseTransfers | None = None,
        pairs: PairColumns | None = None,
    ) -> None:
        self._context, self._params, self._factors, self.store, self._remote = context, params, factors, store, remote
        self._names = SpentChunks(context.resources.account)
        self._ring = ShareRing(params.encoding.bits)
        session_context = replace(context, subchannel=f"{context.subchannel}/ahead")
        self.session = SharesSession(session_context, params.partner, scheme, params.encoding, base)
        total, parties = sum(params.columns.values()), len(context.parties)
        # average number of columns of the matrices W that multiply this holder's psi
        self._factor_width = -(-total * (parties - 1) // parties)
        self._caches, self._sums_scheme = (BatchCache(), BatchCache()), scheme
        self._iteration = 0
        self._delayed: dict[int, DelayedTransfers] = {}  # by the number of the chunk
        self._rows: dict[int, int] = {}  # rows of all iterations of a chunk, by the number of the chunk
        self._r_queries: dict[str, bytes] = {}  # encrypted r of the current batch, by share holder
        self.is_holder = context.me in (context.active, params.partner)
        others = [name for name in context.parties if name != context.me and self.is_holder]
        zero = {name: np.zeros((params.columns[name], params.outputs), np.uint64) for name in others}
        self._r = {name: params.rule_of(name).start(theta) for name, theta in zero.items()}
        self.pairs = None if pairs is None else PairPhase(self.session.unopened_products, params, pairs)

    def greet(self) -> PartyContext:
        """Exchange nonces and keys with every party, unless done before; return the context of this session."""
        return self.session.products.context

    @property
    def pair_keys(self) -> Mapping[str, bytes]:
        """For each other party, the secret key (32 bytes) that this party and the other one have in common."""
        return self.session.products.pair_keys

    def set_params(self, params: SharesParams) -> None:
        """Use these parameters, which may have another update rule, for chunks that are generated from now on."""
        self._params = params
        if self.pairs is not None:
            self.pairs.set_params(params)

    def set_state(self, iteration: int, r: Mapping[str, Words], pairs: PairShares | None = None) -> None:
        """Continue with this iteration, and with these states of r, the shares of the other parties' weights."""
        self._iteration, self._r = iteration, dict(r)
        if self.pairs is not None and pairs is not None:
            self.pairs.masks = pairs.masks

    def generate(self, chunk: int, batches: Sequence[int], *, delays_transfers: bool = False) -> None:
        """Compute the random products of a chunk together with all other parties, and store this party's share of them.

        Args:
            chunk: the number of the chunk.
            batches: the number of the batch that each iteration of the chunk uses, in order.
            delays_transfers: whether step 4 takes place during the training; it must be equal at all parties.
        """
        ring, params, products = self._ring, self._params, self.session.products
        first, base = self._iteration, self.state_digest()
        self._rows[chunk] = self._rows_of(batches)
        counts = {batch: batches.count(batch) for batch in dict.fromkeys(batches)}
        vectors = self._vectors(counts)
        purposes, schemes = ["steps", "sums"], [products.scheme, self._scheme_of_sums(vectors)]
        if params.pairs is not None:
            purposes += pair_phase.PURPOSES
            schemes += pair_phase.schemes(params, products)
        holders = products.send_keys(chunk, purposes, schemes)  # step 0
        # the first queries are sent before the keys of the other holder are received
        evaluators = cache(partial(products.receive_keys, chunk, purposes, schemes))  # step 0
        indices: dict[int, list[int]] = {batch: [] for batch in counts}
        for index, batch in enumerate(batches):
            indices[batch].append(index)
        sizes = ((params.blocks[block].rows, count) for block, count in vectors.items())
        seconds = sum(products.scheme.seconds(rows, count, self._factor_width) for rows, count in sizes)
        executor, sums_executor = (products.executor(2 * seconds, scheme) for scheme in schemes[:2])

        def records() -> Iterator[Record]:
            """Yield records of psi while its products are computed, and records of the other values afterwards."""
            steps, v, pair_steps = yield from self._steps(executor, vectors, indices, holders, evaluators)  # step 1
            r_before = {name: self._advance(name, batches, counts, values) for name, values in v.items()}  # step 2
            pair_masks, pair_r = (None, {}) if self.pairs is None else self.pairs.advance(batches)  # step 2
            for group in self._groups(vectors):
                sums = self._sums(sums_executor, group, r_before, holders, evaluators()[1])  # step 3
                if self.pairs is not None:
                    for block, share in self.pairs.sums(holders[3], evaluators()[3], group, pair_r).items():  # step 3
                        sums[block] = ring.reduce(sums[block] + share)
                pairs = [(block, e) for block in group for e in range(counts[params.blocks[block].batch])]
                rows = [params.blocks[block].rows * params.outputs for block, _ in pairs]
                ends = None if delays_transfers else self.session.training_transfers
                carry_ends = None if delays_transfers else self.session.carry_transfers
                transfers = ends.generate(rows) if ends is not None else (() for _ in pairs)  # step 4
                carries = carry_ends.generate(rows) if carry_ends is not None else (() for _ in pairs)  # step 4
                for (block, e), transfer, carry_transfer in zip(pairs, transfers, carries, strict=True):
                    batch, start, _ = params.blocks[block]
                    outputs, is_first = self._outputs(e), start == 0
                    record = _Record(
                        block,
                        ring.pack(steps[batch][:, outputs]) if is_first else b"",
                        ring.pack(sums[block][:, outputs]),
                        {name: ring.pack(values[batch][:, outputs]) for name, values in v.items() if is_first},
                        transfer,
                        carry_transfer,
                        *self._packed_pairs(pair_steps, pair_masks, batch, e, indices[batch][e], is_first=is_first),
                    )
                    yield indices[batch][e], 2 * self._index_in_batch(block) + 1, msgspec.msgpack.encode(record)

        name = products.coin(self._context.active, chunk, "name")[:NAME_BYTES]
        self.store.write(chunk, name, first, len(batches), records(), base=base)
        self._iteration += len(batches)
        if delays_transfers and self.is_holder:
            self._delay_transfers(chunk, batches)

    def _delay_transfers(self, chunk: int, batches: Sequence[int]) -> None:
        """Postpone the transfers of a chunk to the training, on the subchannel of the training."""
        params = self._params
        blocks = {batch: [params.blocks[block] for block in params.blocks_of(batch)] for batch in set(batches)}
        rows = [[block.rows * params.outputs for block in blocks[batch]] for batch in batches]
        stored = self.store.chunk_numbers
        earlier = {number: transfers for number, transfers in self._delayed.items() if number in stored}
        self._delayed = earlier | {chunk: DelayedTransfers(self.session.delayed_transfers(self._context), rows)}

    def begin_transfers(self, chunk: int, iteration: int) -> None:
        """Exchange the messages for the transfers of an iteration (step 4), if they were not generated with the chunk.

        Args:
            chunk: the number of the chunk.
            iteration: the index of the iteration in the chunk; nothing is exchanged after the last one.
        """
        if chunk in self._delayed:
            self._delayed[chunk].begin(iteration)

    def finish_transfers(self, chunk: int) -> None:
        """Compute the transfers whose messages were exchanged."""
        if chunk in self._delayed:
            self._delayed[chunk].finish()

    def _packed_pairs(
        self, steps: ByBatch, masks: Words | None, batch: int, e: int, index: int, *, is_first: bool
    ) -> tuple[bytes, bytes]:
        """Return the packed step and mask of pairs of iteration `index`, number `e` on its batch; else empty ones."""
        if self.pairs is None or masks is None or not is_first:
            return b"", b""
        ring = self.pairs.columns.params.ring
        return ring.pack(steps[batch][:, e]), ring.pack(masks[index])

    def _scheme_of_sums(self, vectors: Mapping[int, int]) -> ShareScheme:
        """Return the scheme of the products X @ r; all parties obtain the same one, because it depends on sizes only.

        A forward sum selects a table entry, so the noise of these products may be larger than that of W^T psi.

        Args:
            vectors: for each block of rows, the number of columns of psi, as `_vectors` returns it.

        Returns:
            The scheme.
        """
        params, parties = self._params, len(self._context.parties)
        sizes = {(params.blocks[block].rows, count) for block, count in vectors.items()}
        shapes = [(d, count, rows) for rows, count in sorted(sizes) for d in sorted(set(params.columns.values()))]
        tolerance = params.encoding.sum_tolerance(2 * (parties - 1))
        select = partial(
            self.session.products.scheme.within,
            tolerance,
            params.encoding.largest_entry,
            shapes,
            uses=params.chunks,
        )
        scheme: ShareScheme = self._context.meter("keygen", select)
        if scheme != self._sums_scheme:  # the cached encodings are for the primes of the previous scheme
            self._caches, self._sums_scheme = (self._caches[0], BatchCache()), scheme
        return scheme

    def _vectors(self, counts: Mapping[int, int]) -> dict[int, int]:
        """Return for each block of rows the number of columns of psi: c for each iteration that uses the block's batch.

        `counts` is the number of iterations on each batch.
        """
        params = self._params
        return {block: count * params.outputs for batch, count in counts.items() for block in params.blocks_of(batch)}

    def _groups(self, vectors: Mapping[int, int]) -> Iterator[dict[int, int]]:
        """Divide blocks into groups whose products are computed at once; `vectors` is the result of `_vectors`."""
        group, values = dict[int, int](), 0
        for block, count in vectors.items():
            size = self._params.blocks[block].rows * count
            if group and values + size > _MAX_PENDING_VALUES:
                yield group
                group, values = {}, 0
            group[block], values = count, values + size
        if group:
            yield group

    def usable_chunk(self, number: int, iterations: int) -> bytes:
        """Return the name of a chunk if it can be used now, and an empty name otherwise.

        The chunk is usable if it is stored, unused, has this number of iterations and was generated from the current
        state, and if the list of used chunks does not contain its name. At a share holder it must also have its
        transfers: those of a chunk whose session ended before the iterations are lost. Otherwise a warning states the
        reason.
        """
        if number not in self.store.chunk_numbers:
            return b""
        chunk = self.store.chunk(number)
        if self._names.contains(chunk.name):
            event, reason = "preprocessing already used", "it was already used (its folder was restored or copied)"
        elif chunk.next:
            event, reason = "preprocessing used in part", "a part of it was used before an interruption"
        elif (chunk.first, chunk.count) != (self._iteration, iterations):
            event, reason = "preprocessing of other epochs", "it was generated for other epochs"
        elif chunk.base != self.state_digest():
            event, reason = (
                "preprocessing of another state",
                "it was generated from other weights or by another version",
            )
        elif not self._has_transfers(number):
            event, reason = "preprocessing without transfers", "its transfers were left to a training that has ended"
        else:
            return chunk.name
        eventlog.warn(self._context.me, event, {"chunk": number, "reason": f"{reason}; generating it again"})
        return b""

    def _has_transfers(self, number: int) -> bool:
        """Return whether this party has the transfers of a stored chunk, or needs none."""
        if not self.is_holder or number in self._delayed:
            return True
        return bool(_decode_record(self.store.peek(number, 0, 1)).transfer)

    def drop_from(self, first: int) -> None:
        """Remove the chunk with this number, and all chunks with higher numbers."""
        for number in self.store.chunk_numbers:
            if number >= first:
                self.store.drop(number)
                self._delayed.pop(number, None)

    def skip_chunk(self, number: int) -> None:
        """Compute this party's state after a stored chunk without using it, so that the next chunk can be generated."""
        ring, params, batches = self._ring, self._params, list[int]()
        for index in range(self.store.chunk(number).count):
            record = _decode_record(self.store.peek(number, index, 1))
            batches.append(params.blocks[record.block].batch)
            if self.pairs is not None:
                pairs = self.pairs.columns.params
                mask = pairs.ring.unpack(record.pair_mask, (pairs.products,))
                self.pairs.skip(mask, batches[-1])
            for name, data in record.products.items():
                v = ring.unpack(data, (params.columns[name], params.outputs))
                self._r[name] = ring.reduce(params.rule_of(name).step(self._r[name], v, self._iteration))
            self._iteration += 1
        self._rows[number] = self._rows_of(batches)

    def has_room(self, batches: Sequence[int]) -> bool:
        """Return whether one more chunk, whose iterations use these batches, fits into the store."""
        stored = [(self.store.chunk(number).size, self._rows.get(number)) for number in self.store.chunk_numbers]
        row_bytes = max((size / rows for size, rows in stored if rows), default=0.0)
        return self._rows_of(batches) * row_bytes <= self.store.free_bytes

    def _rows_of(self, batches: Sequence[int]) -> int:
        """Return the number of rows of iterations that use these batches."""
        return sum(self._params.rows[batch] for batch in batches)

    def state_digest(self) -> bytes:
        """Return a digest of this party's state before the next chunk; only from this state can the chunk be used."""
        # another version of this program may divide rows or encode numbers in another way for the same job
        params = repr((self._params.block, self._params.encoding, self._params.pairs))
        digest = hashlib.sha256(params.encode() + self._iteration.to_bytes(8, "little"))
        for name in sorted(self._r):
            digest.update(name.encode() + np.ascontiguousarray(self._r[name], "<u8").tobytes())
        if self.pairs is not None:  # material for other shares of the products would yield wrong gradients
            digest.update(self.pairs.columns.name + np.ascontiguousarray(self.pairs.masks, "<u8").tobytes())
        return digest.digest()[:NAME_BYTES]

    def take(self, chunk: int, iteration: int, part: int = 0) -> PreprocessedBlock:
        """Return the precomputed material for one block of one iteration, and mark it as used.

        Blocks must be taken in order. The first block of an iteration marks the iteration as used. The first block of a
        chunk also adds the chunk to the list of used chunks.

        Args:
            chunk: the number of the chunk.
            iteration: the index of the iteration in the chunk, counted from 0.
            part: the index of the block of rows in its batch.

        Returns:
            The precomputed material.
        """
        if iteration == part == 0:
            self._names.spend(self.store.chunk(chunk).name)
        psi, params, ring = self.store.take(chunk, iteration, 2 * part), self._params, self._ring
        record = _decode_record(self.store.take(chunk, iteration, 2 * part + 1))
        block = params.blocks[record.block]
        n, c = block.rows, params.outputs
        transfer, carry_transfer = record.transfer, record.carry_transfer
        if chunk in self._delayed:
            transfer, carry_transfer = (*self._delayed[chunk].take(iteration, part), ())[:2]
        return PreprocessedBlock(
            block,
            ring.unpack(psi, (n, c) if psi else (0, c)),
            ring.unpack(record.step, (params.columns[self._context.me] if record.step else 0, c)),
            ring.unpack(record.sums, (n, c)),
            {name: ring.unpack(data, (params.columns[name], c)) for name, data in record.products.items()},
            transfer,
            carry_transfer,
            *self._unpacked_pairs(record),
        )

    def _unpacked_pairs(self, record: _Record) -> tuple[Words, Words]:
        """Return the step and the mask of pairs in a record; both are empty if it has none."""
        if self.pairs is None or not record.pair_mask:
            return np.empty(0, np.uint64), np.empty(0, np.uint64)
        ring, shape = self.pairs.columns.params.ring, (self.pairs.columns.params.products,)
        return ring.unpack(record.pair_step, shape), ring.unpack(record.pair_mask, shape)

    def _outputs(self, e: int) -> slice:
        """Return the columns of a batch's product that belong to iteration number `e` on this batch in the chunk."""
        return slice(e * self._params.outputs, (e + 1) * self._params.outputs)

    def _steps(
        self,
        executor: ProductExecutor,
        vectors: Mapping[int, int],
        indices: Mapping[int, Sequence[int]],
        holders: Sequence[ShareHolder],
        evaluators: Callable[[], Sequence[Evaluators]],
    ) -> Generator[Record, None, tuple[ByBatch, dict[str, ByBatch], ByBatch]]:
        """Compute the products W^T psi, and yield records with psi for the store.

        Each yielded record contains psi of one block in one iteration.

        Args:
            executor: computes the products.
            vectors: the number of columns of psi for each block.
            indices: for each batch, the indices of the iterations that use it.
            holders: this party's secret keys, if it is a share holder.
            evaluators: returns, for each purpose, the objects that compute on ciphertexts of the other share holders.
                The first call receives their keys.

        Returns:
            For each batch, the sum of this party's shares of all products, (d, c) for each iteration side by side;
            v for every other party, if this party is a share holder; and the same sums for pairs.
        """
        products, params, ring, width = self.session.products, self._params, self._ring, self._factor_width
        scheme, total = products.scheme, dict[int, Words]()
        sums = ReplySums(self._ends_of(self._context.me)) if scheme.adds_products else None
        v: dict[str, ByBatch] = {name: {} for name in products.queried}
        pair_steps: ByBatch = {}
        for group in self._groups(vectors):
            psi: ByBlock = {}
            if holders:
                shapes_of_psi = {block: (params.blocks[block].rows, count) for block, count in group.items()}
                psi = products.send_uniform_queries(
                    executor,
                    products.queried,
                    holders[0],
                    shapes_of_psi,
                    columns=width,
                    uses=params.chunks,
                    layout_rows=lambda block: layout_rows(scheme, params, params.blocks[block]),
                )
            for block in group:
                for e, index in enumerate(indices[params.blocks[block].batch]):
                    packed = ring.pack(psi[block][:, self._outputs(e)]) if holders else b""
                    yield index, 2 * self._index_in_batch(block), packed
            self._add_to_batches(total, self._answer(executor, 0, evaluators()[0], group, sums=sums))
            for name in products.queried:
                shapes = {block: (params.columns[name], count) for block, count in group.items()}
                replies = products.open_replies(executor, holders[0], name, shapes, ends=self._ends_of(name))
                self._add_to_batches(v[name], replies)
            if self.pairs is not None:
                self._add_to_batches(pair_steps, self.pairs.steps(holders[2], evaluators()[2], group, psi))
        return self._lifted(total), {name: self._lifted(values) for name, values in v.items()}, pair_steps

    def _ends_of(self, party: str) -> Callable[[int], bool]:
        """Return a function that returns whether a party sends a product W^T psi after a block."""
        scheme, params = self.session.products.scheme, self._params
        return lambda block: ends_sum(scheme, params, party, params.blocks[block])

    def _index_in_batch(self, block: int) -> int:
        """Return the position of a block in its batch, counted from 0."""
        return self._params.blocks[block].start // self._params.block

    def _add_to_batches(self, totals: ByBatch, shares: ByBlock) -> None:
        """Add the shares of each block to the shares of its batch in `totals`."""
        for block, share in shares.items():
            batch = self._params.blocks[block].batch
            totals[batch] = self._ring.reduce(totals[batch] + share) if batch in totals else share

    def _lifted(self, changes: ByBatch) -> ByBatch:
        """Multiply shares of W^T psi by the power of two by which W is encoded more coarsely in a smaller batch."""
        lifts = {batch: np.uint64(self._params.encoding.lift(self._params.rows[batch])) for batch in changes}
        return {batch: self._ring.reduce(words << lifts[batch]) for batch, words in changes.items()}

    def _sums(
        self,
        executor: ProductExecutor,
        group: Mapping[int, int],
        r_before: Mapping[str, ByBatch],
        holders: Sequence[ShareHolder],
        evaluators: Evaluators,
    ) -> ByBlock:
        """Return the sum of this party's shares of all products X @ r (n, count * c), for each block of a group."""
        products, params = self.session.products, self._params
        for name, values in r_before.items():
            r = {block: values[params.blocks[block].batch] for block in group if params.blocks[block].start == 0}
            rows = lambda block: params.blocks[block].rows  # noqa: E731
            products.send_queries(executor, [name], holders[1], r, columns=rows, uses=params.chunks)
        total = self._answer(executor, 1, evaluators, group)
        shapes = {block: (params.blocks[block].rows, count) for block, count in group.items()}
        for name in r_before:
            for block, share in products.open_replies(executor, holders[1], name, shapes).items():
                total[block] = self._ring.reduce(total[block] + share)
        return total

    def _answer(
        self,
        executor: ProductExecutor,
        purpose: int,
        evaluators: Evaluators,
        vectors: Mapping[int, int],
        *,
        sums: ReplySums | None = None,
    ) -> ByBlock:
        """Multiply the share holders' encrypted vectors by W (if `purpose` is 0) or by the transpose of X (if it is 1).

        The encoded matrices are cached for later chunks, unless a batch has several blocks and they would need too much
        memory. The products of a batch are added up if there are `sums`. Returns the sum of this party's shares for
        each block that gets a reply with a product.
        """

        def factor(block: int) -> Integers | RemoteFactor:
            rows = self._params.blocks[block]
            return self._factors(rows, steps=False).T if purpose else self._factors(rows, steps=True)

        several_blocks = max(self._params.rows) > self._params.block
        cache = self._caches[purpose] if self._params.chunks > 1 and not several_blocks else None
        return self.session.products.answer_queries(
            executor,
            evaluators,
            vectors,
            factor,
            cache=cache,
            sealed=self._query_of_sums if purpose else None if sums is None else partial(self._query_of_steps, vectors),
            remote=self._remote,
            sums=sums,
        )

    def _query_of_steps(self, vectors: Mapping[int, int], name: str, block: int) -> bytes:
        """Receive a holder's encrypted psi for a block whose product is stored until the last block of its batch.

        `ShareScheme.check_query` raises CryptoError if the query has another layout than the public sizes determine.
        """
        products, params = self.session.products, self._params
        query, rows = products.receive_query(name, block), params.blocks[block].rows
        products.scheme.check_query(
            query,
            (rows, vectors[block]),
            columns=self._factor_width,
            uses=params.chunks,
            rows=layout_rows(products.scheme, params, params.blocks[block]),
        )
        return query

    def _query_of_sums(self, name: str, block: int) -> bytes:
        """Return a holder's encrypted r for a block's X @ r, which is received once a batch."""
        batch, start, stop = self._params.blocks[block]
        if start == 0:
            self._r_queries[name] = self.session.products.receive_query(name, block)
        query = self._r_queries[name]
        if stop == self._params.rows[batch]:
            del self._r_queries[name]
        return query

    def _advance(self, name: str, batches: Sequence[int], counts: Mapping[int, int], v: ByBatch) -> ByBatch:
        """Compute r, this holder's share of another party's weights, before each iteration of a chunk.

        Calls after this one continue with r after the chunk.

        Args:
            name: name of the other party.
            batches: the batch of each iteration.
            counts: the number of iterations on each batch.
            v: this holder's shares of the other party's W^T psi, by batch.

        Returns:
            For each batch, r before each of the iterations that use it (d, count * c).
        """
        rule, d, c = self._params.rule_of(name), self._params.columns[name], self._params.outputs
        r_before = {batch: np.empty((d, count * c), np.uint64) for batch, count in counts.items()}
        seen = dict.fromkeys(counts, 0)
        for iteration, batch in enumerate(batches, self._iteration):
            outputs, seen[batch] = self._outputs(seen[batch]), seen[batch] + 1
            r_before[batch][:, outputs] = self._ring.reduce(rule.theta(self._r[name], iteration))
            self._r[name] = self._ring.reduce(rule.step(self._r[name], v[batch][:, outputs], iteration))
        return r_before
