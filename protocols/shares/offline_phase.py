"""Offline phase of a training on shares: all products and oblivious transfers of a chunk of iterations, in advance.

The *share holders* are A, which has the labels (active), and B, its partner; every party k has columns. The weights
theta_k are shared: party k has s_k, and each holder h other than k has r_kh, with theta_k = s_k + sum_h r_kh. The
residual of an iteration is g = psi_A + psi_B + delta. psi_h is a fresh keystream of holder h, and B sends delta in the
online phase. The product W_k^T psi_h leaves the share v_kh at h. Hence r and psi are functions of masks alone, which
their owner knows before any iteration, and every product has a random vector as a factor (as in the offline phase of
Delphi, Mishra et al. 2020). Iterations on the same batch share its plaintexts: a batch that occurs E times in a chunk
is one product with E c outputs. For each chunk and k != h:

0. h -> k   the holder's public keys, new for the chunk, one for steps and one for sums
1. h <-> k  products W_k^T psi_h of all iterations (share_products.py)    => shares at k, v_kh at h
2. h        r_kh before each iteration: a fixed rule of the v_kh of earlier iterations (update_rules.py)
3. h <-> k  products X_k r_kh before each iteration                       => shares at k and at h
4. A, B     oblivious transfers for every row of every iteration (table_transfers.py)

Products, transfers and records cover blocks of rows of a public size (shares_params.py), so memory does not grow with
the batch. Sums over blocks are exact modulo 2^L. With equal masks, the weights are those of a batch in one block,
except for unit rounding of the products.

A chunk and group of blocks takes two round trips. Every received value is a ciphertext under another party's key, or
uniform, so all parties learn sizes only: n, d, c, the number of iterations and L.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import msgspec
import numpy as np

from securevfl.crypto.batch_cache import BatchCache
from securevfl.crypto.prg import Prg
from securevfl.crypto.share_ring import Integers, ShareRing, Words
from securevfl.crypto.share_scheme import ShareHolder, ShareScheme
from securevfl.errors import FrameError
from securevfl.protocols.declarations import MessageDeclaration
from securevfl.protocols.party_context import PartyContext
from securevfl.protocols.shares import share_products, table_transfers
from securevfl.protocols.shares.preprocessing_store import NAME_BYTES, PreprocessingStore, Record
from securevfl.protocols.shares.product_work import ProductExecutor, RemoteFactor
from securevfl.protocols.shares.share_products import Evaluators
from securevfl.protocols.shares.shares_params import RowBlock, SharesParams
from securevfl.protocols.shares.shares_session import SharesSession
from securevfl.protocols.shares.spent_chunks import SpentChunks
from securevfl.protocols.shares.table_transfers import BaseTransfers
from securevfl.runtime import eventlog

_MAX_PENDING_VALUES = 1 << 19  # values of psi whose products are computed at once

Factors = Callable[[RowBlock], tuple[Integers, Integers] | tuple[RemoteFactor, RemoteFactor]]
"""Returns X and W (n, d) of a block."""

ByBatch = dict[int, Words]
ByBlock = dict[int, Words]
"""Words by index of the block in `SharesParams.blocks`."""


def declares() -> list[MessageDeclaration]:
    """Declare the disclosures of the messages. Roles: active, partner, passive (any party that is neither)."""
    return [*share_products.declares(), *table_transfers.declares()]


@dataclass(frozen=True, repr=False)
class PreprocessedBlock:
    """The precomputed material of one party for one block of one iteration. It is single-use.

    Attributes:
        block: the block of rows.
        psi: at a holder, its keystream (n, c); empty elsewhere.
        step: with the first block of an iteration, this party's shares of W^T psi of the whole batch (d, c), added up;
            empty with other blocks.
        sums: this party's shares of X r (n, c), added up.
        products: with the first block, at a holder: v (d, c) of every other party.
        transfer: at a holder, the stored oblivious transfers (table_transfers.py).
    """

    block: RowBlock
    psi: Words
    step: Words
    sums: Words
    products: Mapping[str, Words]
    transfer: tuple[bytes, ...]


class _Record(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A `PreprocessedBlock` in the store, without psi, which is a record of its own. It is never sent."""

    block: int
    step: bytes
    sums: bytes
    products: dict[str, bytes]
    transfer: tuple[bytes, ...]


_RECORD_DECODER = msgspec.msgpack.Decoder(_Record)


def _decode_record(data: bytes) -> _Record:
    """Decode a stored record. Raises FrameError if it is damaged."""
    try:
        return _RECORD_DECODER.decode(data)
    except (msgspec.DecodeError, ValueError):
        raise FrameError(
            "a stored preprocessing record is damaged", "generate the chunk again", code="SVFL-FILE-DAMAGED"
        ) from None


class OfflinePhase:
    """One party's side of the offline phase, whichever its role.

    Args:
        context: this party's context.
        params: the agreed parameters.
        scheme: the encryption scheme of the products.
        factors: returns X and W of a block.
        store: stores the precomputed material.
        remote: True if other processes store the factors.
        base: the base transfers of this session, which are established before the offline phase runs concurrently with
            other sessions.
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
    ) -> None:
        self._context, self._params, self._factors, self.store, self._remote = context, params, factors, store, remote
        self._names = SpentChunks(context.resources.spent_chunks)
        self._ring = ShareRing(params.encoding.bits)
        session_context = replace(context, subchannel=f"{context.subchannel}/ahead")
        self.session = SharesSession(session_context, params.partner, scheme, params.encoding, base)
        total, parties = sum(params.columns.values()), len(context.parties)
        self._factor_width = -(-total * (parties - 1) // parties)  # approximate width of a factor that meets psi
        self._prg = Prg.fresh("masks of a training on shares")
        self._caches = BatchCache(), BatchCache()
        self._iteration = 0
        self.is_holder = context.me in (context.active, params.partner)
        others = [name for name in context.parties if name != context.me and self.is_holder]
        zero = {name: np.zeros((params.columns[name], params.outputs), np.uint64) for name in others}
        self._r = {name: params.rule_of(name).start(theta) for name, theta in zero.items()}

    def greet(self) -> PartyContext:
        """Greet every party, and return this party's context in the session of the offline phase."""
        return self.session.products.context

    @property
    def pair_keys(self) -> Mapping[str, bytes]:
        """The secret keys of this session, 32 bytes shared with each other party."""
        return self.session.products.pair_keys

    def set_params(self, params: SharesParams) -> None:
        """Use other parameters, and thereby another update rule, from now on."""
        self._params = params

    def set_state(self, iteration: int, r: Mapping[str, Words]) -> None:
        """Continue from this iteration, with these states of the shares r of the other parties' weights."""
        self._iteration, self._r = iteration, dict(r)

    def generate(self, chunk: int, batches: Sequence[int]) -> None:
        """Generate and store a chunk.

        Args:
            chunk: the number of the chunk.
            batches: the batch of each iteration, in order.
        """
        ring, params, products = self._ring, self._params, self.session.products
        first, base = self._iteration, self._base()
        counts = {batch: batches.count(batch) for batch in dict.fromkeys(batches)}
        holders, evaluators = products.keys(chunk, ("steps", "sums"))  # 0
        vectors = self._vectors(counts)
        indices: dict[int, list[int]] = {batch: [] for batch in counts}
        for index, batch in enumerate(batches):
            indices[batch].append(index)
        sizes = ((params.blocks[block].rows, count) for block, count in vectors.items())
        seconds = sum(products.scheme.seconds(rows, count, self._factor_width) for rows, count in sizes)
        executor = products.executor(2 * seconds)

        def records() -> Iterator[Record]:
            """Yield psi of each block while its products are computed, and the other values afterwards."""
            steps, v = yield from self._steps(executor, vectors, indices, holders, evaluators[0])  # 1
            r_before = {name: self._advance(name, batches, counts, values) for name, values in v.items()}  # 2
            for group in self._groups(vectors):
                sums = self._sums(executor, group, r_before, holders, evaluators[1])  # 3
                pairs = [(block, e) for block in group for e in range(counts[params.blocks[block].batch])]
                rows = [params.blocks[block].rows * params.outputs for block, _ in pairs]
                ends = self.session.transfers
                transfers = ends.generate(rows) if ends is not None else (() for _ in pairs)  # 4
                for (block, e), transfer in zip(pairs, transfers, strict=True):
                    batch, start, _ = params.blocks[block]
                    outputs, is_first = self._outputs(e), start == 0
                    record = _Record(
                        block,
                        ring.pack(steps[batch][:, outputs]) if is_first else b"",
                        ring.pack(sums[block][:, outputs]),
                        {name: ring.pack(values[batch][:, outputs]) for name, values in v.items() if is_first},
                        transfer,
                    )
                    yield indices[batch][e], 2 * self._index_in_batch(block) + 1, msgspec.msgpack.encode(record)

        name = products.coin(self._context.active, chunk, "name")[:NAME_BYTES]
        self.store.write(chunk, name, first, len(batches), records(), base=base)
        self._iteration += len(batches)

    def _vectors(self, counts: Mapping[int, int]) -> dict[int, int]:
        """Return the number of vectors of each block's products, from the number of iterations on each batch."""
        params = self._params
        return {block: count * params.outputs for batch, count in counts.items() for block in params.blocks_of(batch)}

    def _groups(self, vectors: Mapping[int, int]) -> Iterator[dict[int, int]]:
        """Divide blocks, with their numbers of vectors, into groups whose products are computed at once."""
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

        The chunk is usable if it exists, is unused, its name was never consumed, it has this number of iterations and
        it was generated from the current state.
        """
        if number not in self.store.chunk_numbers:
            return b""
        chunk = self.store.chunk(number)
        if self._names.contains(chunk.name):
            reason = "this preprocessing was already used (its folder was restored or copied); generating it again"
            eventlog.warn(self._context.me, "spent", {"chunk": number, "reason": reason})
            return b""
        fits = (chunk.next, chunk.first, chunk.count) == (0, self._iteration, iterations)
        return chunk.name if fits and chunk.base == self._base() else b""

    def drop_from(self, first: int) -> None:
        """Remove the chunks with this number and with later ones."""
        for number in self.store.chunk_numbers:
            if number >= first:
                self.store.drop(number)

    def skip_chunk(self, number: int) -> None:
        """Advance the state past a stored chunk without consuming it, so that the next chunk can be generated."""
        ring, params = self._ring, self._params
        for index in range(self.store.chunk(number).count):
            products = _decode_record(self.store.peek(number, index, 1)).products
            for name, data in products.items():
                v = ring.unpack(data, (params.columns[name], params.outputs))
                self._r[name] = ring.reduce(params.rule_of(name).step(self._r[name], v, self._iteration))
            self._iteration += 1

    def has_room(self, iterations: int) -> bool:
        """Return whether a chunk of this number of iterations fits into the store, next to the stored ones."""
        chunks = [self.store.chunk(number) for number in self.store.chunk_numbers]
        return iterations * max((chunk.size / chunk.count for chunk in chunks), default=0.0) <= self.store.free_bytes

    def _base(self) -> bytes:
        """Return a digest of the state from which the next chunk is generated, for this party's files."""
        digest = hashlib.sha256(self._iteration.to_bytes(8, "little"))
        for name in sorted(self._r):
            digest.update(name.encode() + np.ascontiguousarray(self._r[name], "<u8").tobytes())
        return digest.digest()[:NAME_BYTES]

    def take(self, chunk: int, iteration: int, part: int = 0) -> PreprocessedBlock:
        """Return the precomputed material for one block of one iteration, and mark it as used.

        Blocks must be taken in order. Taking block 0 marks the iteration as used; taking iteration 0 marks the name of
        the chunk as used.

        Args:
            chunk: the number of the chunk.
            iteration: the index of the iteration in the chunk.
            part: the index of the block in its batch.

        Returns:
            The material.
        """
        if iteration == part == 0:
            self._names.spend(self.store.chunk(chunk).name)
        psi, params, ring = self.store.take(chunk, iteration, 2 * part), self._params, self._ring
        record = _decode_record(self.store.take(chunk, iteration, 2 * part + 1))
        block = params.blocks[record.block]
        n, c = block.rows, params.outputs
        return PreprocessedBlock(
            block,
            ring.unpack(psi, (n, c) if psi else (0, c)),
            ring.unpack(record.step, (params.columns[self._context.me] if record.step else 0, c)),
            ring.unpack(record.sums, (n, c)),
            {name: ring.unpack(data, (params.columns[name], c)) for name, data in record.products.items()},
            record.transfer,
        )

    def _outputs(self, e: int) -> slice:
        """Return the columns of a batch's product that belong to its iteration number `e`."""
        return slice(e * self._params.outputs, (e + 1) * self._params.outputs)

    def _steps(
        self,
        executor: ProductExecutor,
        vectors: Mapping[int, int],
        indices: Mapping[int, Sequence[int]],
        holders: Sequence[ShareHolder],
        evaluators: Evaluators,
    ) -> Generator[Record, None, tuple[ByBatch, dict[str, ByBatch]]]:
        """Compute the products W^T psi, and yield psi of each block and iteration for the store.

        Each yielded record holds psi of one block in one iteration.

        Args:
            executor: computes the products.
            vectors: the number of vectors of each block.
            indices: the iterations on each batch.
            holders: this party's keys, if it is a holder.
            evaluators: the evaluators under the other holders' keys.

        Returns:
            This party's shares (d, E c), added up; and v of every other party, if this party is a holder.
        """
        products, params, ring, width = self.session.products, self._params, self._ring, self._factor_width
        total: ByBatch = {}
        v: dict[str, ByBatch] = {name: {} for name in products.queried}
        for group in self._groups(vectors):
            psi = {
                block: ring.uniform(self._prg, (params.blocks[block].rows, group[block])) for block in group if holders
            }
            if holders:
                products.send_queries(
                    executor, products.queried, holders[0], psi, columns=lambda block: width, uses=params.chunks
                )
            for block in group:
                for e, index in enumerate(indices[params.blocks[block].batch]):
                    packed = ring.pack(psi[block][:, self._outputs(e)]) if holders else b""
                    yield index, 2 * self._index_in_batch(block), packed
            self._add_to_batches(total, self._answer(executor, 0, evaluators, group))
            for name in products.queried:
                shapes = {block: (params.columns[name], count) for block, count in group.items()}
                self._add_to_batches(v[name], products.open_replies(executor, holders[0], name, shapes))
        return self._lifted(total), {name: self._lifted(values) for name, values in v.items()}

    def _index_in_batch(self, block: int) -> int:
        """Return the index of a block in its batch."""
        return self._params.blocks[block].start // self._params.block

    def _add_to_batches(self, totals: ByBatch, shares: ByBlock) -> None:
        """Add shares of blocks to those of their batches."""
        for block, share in shares.items():
            batch = self._params.blocks[block].batch
            totals[batch] = self._ring.reduce(totals[batch] + share) if batch in totals else share

    def _lifted(self, changes: ByBatch) -> ByBatch:
        """Multiply shares of W^T psi by the factor by which W is smaller in smaller batches."""
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
        """Return this party's shares of all products X r (n, E c), added up, for the blocks of a group."""
        products, params = self.session.products, self._params
        for name, values in r_before.items():
            r = {block: values[params.blocks[block].batch] for block in group}
            rows = lambda block: params.blocks[block].rows  # noqa: E731
            products.send_queries(executor, [name], holders[1], r, columns=rows, uses=params.chunks)
        total = self._answer(executor, 1, evaluators, group)
        shapes = {block: (params.blocks[block].rows, count) for block, count in group.items()}
        for name in r_before:
            for block, share in products.open_replies(executor, holders[1], name, shapes).items():
                total[block] = self._ring.reduce(total[block] + share)
        return total

    def _answer(
        self, executor: ProductExecutor, purpose: int, evaluators: Evaluators, vectors: Mapping[int, int]
    ) -> ByBlock:
        """Answer the queries about W (purpose 0) or the transpose of X (1) of blocks.

        Plaintexts are cached if there are more chunks, unless a batch has several blocks.
        """

        def factor(block: int) -> Integers | RemoteFactor:
            X, W = self._factors(self._params.blocks[block])
            return X.T if purpose else W

        several_blocks = max(self._params.rows) > self._params.block
        cache = self._caches[purpose] if self._params.chunks > 1 and not several_blocks else None
        return self.session.products.answer_queries(
            executor, evaluators, vectors, factor, cache=cache, remote=self._remote
        )

    def _advance(self, name: str, batches: Sequence[int], counts: Mapping[int, int], v: ByBatch) -> ByBatch:
        """Apply the update rule to r of a party over a chunk, and return r before each iteration (d, E c), by batch."""
        rule, d, c = self._params.rule_of(name), self._params.columns[name], self._params.outputs
        r_before = {batch: np.empty((d, count * c), np.uint64) for batch, count in counts.items()}
        seen = dict.fromkeys(counts, 0)
        for iteration, batch in enumerate(batches, self._iteration):
            outputs, seen[batch] = self._outputs(seen[batch]), seen[batch] + 1
            r_before[batch][:, outputs] = self._ring.reduce(rule.theta(self._r[name], iteration))
            self._r[name] = self._ring.reduce(rule.step(self._r[name], v[batch][:, outputs], iteration))
        return r_before
