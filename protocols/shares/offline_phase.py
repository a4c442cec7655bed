"""Work ahead of a training on shares: every product of a chunk of visits, and its transfers, before the first visit.

The *holders* are A, who has the labels (active), and B, its partner; every party k has columns. theta_k is shared:
s_k is at party k, r_kh at each holder h other than k, theta_k = s_k + sum_h r_kh. The residual of a visit is
g = psi_A + psi_B + delta: psi_h is a fresh keystream of holder h, delta is what B tells in the visit. A product of
W_k^T psi_h leaves a share v_kh at h. So r and psi are functions of masks alone, known to whom they belong before any
visit: every product is of a random vector (as in the offline phase of Delphi, Mishra et al. 2020). Visits of one batch
share its plaintexts: a batch that comes E times in a chunk is one product with E c outputs. For each chunk, k != h:

0. h -> k   the holder's public keys, new for the chunk, one for steps and one for sums
1. h <-> k  products W_k^T psi_h of all visits (share_products.py)    => shares at k, v_kh at h
2. h        r_kh before each visit: a fixed rule of the v_kh of the visits before (fixed_point.py)
3. h <-> k  products X_k r_kh before each visit                        => shares at k and at h
4. A, B     transfers for every row of every visit (table_transfers.py)

Rows come in blocks of `BLOCK`, a public size, and products, transfers and records are of a block: what is in memory
does not grow with the batch. Sums over blocks are exact modulo 2^L, so for the same
masks the weights are those of a batch in one piece, but for the products' unit rounding.

Two round trips a chunk and group of blocks. All that is received is a ciphertext under another's key or uniform, so all
learn sizes: n, d, c, the visits and L.
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
from securevfl.protocols.shares.preprocessing_store import NAME_BYTES, PreprocessingStore
from securevfl.protocols.shares.product_work import ProductExecutor, RemoteFactor
from securevfl.protocols.shares.share_products import Evaluators
from securevfl.protocols.shares.shares_params import RowBlock, SharesParams
from securevfl.protocols.shares.shares_session import SharesSession
from securevfl.protocols.shares.spent_chunks import SpentChunks
from securevfl.protocols.shares.table_transfers import BaseTransfers
from securevfl.runtime import eventlog

_AT_ONCE = 1 << 19  # values of psi whose products are on their way at a time


Factors = Callable[
    [RowBlock], tuple[Integers, Integers] | tuple[RemoteFactor, RemoteFactor]
]  # X and W (n x d) of a block
ByBatch = dict[int, Words]
ByPiece = dict[int, Words]  # by the number of the block in `SharesParams.pieces`


def declares() -> list[MessageDeclaration]:
    """Declare what the messages reveal. Roles: active, partner, passive (any party that is neither)."""
    return [*share_products.declares(), *table_transfers.declares()]


@dataclass(frozen=True, repr=False)
class PreprocessedBlock:
    """What one party has ready for a block in one visit. Serves once.

    `own`: psi (n x c), at a holder; `sums`: its shares of X r (n x c), all added up; `transfer`: at a holder, what
    table_transfers.py stores. With the first block of a visit, of all of its rows, `step`: its shares of W^T psi
    (d x c), all added up, and `left`: at a holder v (d x c) of every other party.
    """

    piece: RowBlock
    own: Words
    step: Words
    sums: Words
    left: Mapping[str, Words]
    transfer: tuple[bytes, ...]


class _Record(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A `PreprocessedBlock` as it is stored, but for psi, which stands before it; it crosses no line."""

    piece: int
    step: bytes
    sums: bytes
    left: dict[str, bytes]
    transfer: tuple[bytes, ...]


_RECORDS = msgspec.msgpack.Decoder(_Record)


def _stored(data: bytes) -> _Record:
    """FrameError if it is not what was stored."""
    try:
        return _RECORDS.decode(data)
    except (msgspec.DecodeError, ValueError):
        raise FrameError("a stored visit was expected, its bytes are damaged; make the chunk anew") from None


class OfflinePhase:
    """One party's side, whichever it is."""

    def __init__(
        self,
        context: PartyContext,
        terms: SharesParams,
        scheme: ShareScheme,
        factors: Factors,
        store: PreprocessingStore,
        *,
        apart: bool = False,
        base: BaseTransfers | None = None,
    ) -> None:
        """scheme: what multiplies; store: where the records go. apart: whether factors lie in other processes. base:
        this session's base transfers, which are made before work goes on beside other conversations."""
        self._context, self._terms, self._factors, self.store, self._apart = context, terms, factors, store, apart
        self._names = SpentChunks(context.resources.spent_chunks)
        self._ring = ShareRing(terms.encoding.bits)
        own = replace(context, subchannel=f"{context.subchannel}/ahead")
        self.session = SharesSession(own, terms.partner, scheme, terms.encoding, base)
        total = sum(terms.columns.values())
        self._width = -(
            -total * (len(context.parties) - 1) // len(context.parties)
        )  # of a factor that psi meets, about
        self._prg = Prg.fresh("masks of a training on shares")
        self._shelves = BatchCache(), BatchCache()
        self._visits = 0
        self.is_holder = context.me in (context.active, terms.partner)
        others = [name for name in context.parties if name != context.me and self.is_holder]
        zero = {name: np.zeros((terms.columns[name], terms.outputs), np.uint64) for name in others}
        self._r = {name: terms.rule_of(name).start(theta) for name, theta in zero.items()}

    def greet(self) -> PartyContext:
        """Greet every party, and return this party's context at the work ahead, with a subchannel of its own."""
        return self.session.products.context

    @property
    def pair_keys(self) -> Mapping[str, bytes]:
        """The secret keys of this session that the party shares, 32 bytes with every other party."""
        return self.session.products.pair_keys

    def set_params(self, terms: SharesParams) -> None:
        """Set the rule of what is made from now on."""
        self._terms = terms

    def set_state(self, visits: int, r: Mapping[str, Words]) -> None:
        """Set where the training is, and the states of the others' r there: what is made next goes on from that."""
        self._visits, self._r = visits, dict(r)

    def generate(self, chunk: int, visits: Sequence[int]) -> None:
        """Make chunk number `chunk`, for visits to these batches in this order, and store it."""
        ring, terms, products = self._ring, self._terms, self.session.products
        first, base = self._visits, self._base()
        counts = {batch: visits.count(batch) for batch in dict.fromkeys(visits)}
        holders, evaluators = products.keys(chunk, ("steps", "sums"))  # 0
        vectors = self._vectors(counts)
        places: dict[int, list[int]] = {batch: [] for batch in counts}
        for place, batch in enumerate(visits):
            places[batch].append(place)
        sizes = ((terms.blocks[piece].rows, count) for piece, count in vectors.items())
        work = products.work(2 * sum(products.scheme.seconds(rows, count, self._width) for rows, count in sizes))

        def records() -> Iterator[tuple[int, int, bytes]]:
            """Yield, for each block and visit, psi while its products are under way, and the rest once it is made."""
            steps, left = yield from self._steps(work, vectors, places, holders, evaluators[0])  # 1
            before = {name: self._walk(name, visits, counts, values) for name, values in left.items()}  # 2
            for group in self._groups(vectors):
                sums = self._sums(work, group, before, holders, evaluators[1])  # 3
                made = [(piece, e) for piece in group for e in range(counts[terms.blocks[piece].batch])]
                rows = [terms.blocks[piece].rows * terms.outputs for piece, _ in made]
                ends = self.session.transfers
                transfers = ends.generate(rows) if ends is not None else (() for _ in made)  # 4
                for (piece, e), transfer in zip(made, transfers, strict=True):
                    batch, start, _ = terms.blocks[piece]
                    outputs, whole = self._outputs(e), start == 0
                    record = _Record(
                        piece,
                        ring.pack(steps[batch][:, outputs]) if whole else b"",
                        ring.pack(sums[piece][:, outputs]),
                        {name: ring.pack(values[batch][:, outputs]) for name, values in left.items() if whole},
                        transfer,
                    )
                    yield places[batch][e], 2 * self._part(piece) + 1, msgspec.msgpack.encode(record)

        name = products.coin(self._context.active, chunk, "name")[:NAME_BYTES]
        self.store.write(chunk, name, first, len(visits), records(), base=base)
        self._visits += len(visits)

    def _vectors(self, counts: Mapping[int, int]) -> dict[int, int]:
        """How many vectors the products of each block have."""
        terms = self._terms
        return {piece: count * terms.outputs for batch, count in counts.items() for piece in terms.blocks_of(batch)}

    def _groups(self, vectors: Mapping[int, int]) -> Iterator[dict[int, int]]:
        """Divide blocks, with their numbers of vectors, into groups whose products are on their way at a time."""
        group, values = dict[int, int](), 0
        for piece, count in vectors.items():
            size = self._terms.blocks[piece].rows * count
            if group and values + size > _AT_ONCE:
                yield group
                group, values = {}, 0
            group[piece], values = count, values + size
        if group:
            yield group

    def usable_chunk(self, number: int, visits: int) -> bytes:
        """Return the name of chunk `number` if it can be used now, else an empty one.

        It can if it is here, untouched, never begun under this name, for so many visits, and rests on this party's
        state.
        """
        if number not in self.store.chunk_numbers:
            return b""
        chunk = self.store.chunk(number)
        if self._names.contains(chunk.name):
            why = "this work ahead was gone through before, its folder was put back or copied; it is made anew"
            eventlog.warn(self._context.me, "spent", {"chunk": number, "reason": why})
            return b""
        fits = (chunk.next, chunk.first, chunk.count) == (0, self._visits, visits) and chunk.base == self._base()
        return chunk.name if fits else b""

    def drop_from(self, first: int) -> None:
        """Forgets the chunks of this number and later ones."""
        for number in self.store.chunk_numbers:
            if number >= first:
                self.store.drop(number)

    def skip_chunk(self, number: int) -> None:
        """Goes on from behind a chunk that is ready and stays so: what is made next rests on it."""
        ring, terms = self._ring, self._terms
        for place in range(self.store.chunk(number).count):
            left = _stored(self.store.peek(number, place, 1)).left
            for name, data in left.items():
                v = ring.unpack(data, (terms.columns[name], terms.outputs))
                self._r[name] = ring.reduce(terms.rule_of(name).step(self._r[name], v, self._visits))
            self._visits += 1

    def has_room(self, visits: int) -> bool:
        """Whether there is room for a chunk of so many visits beside what is kept."""
        kept = [self.store.chunk(number) for number in self.store.chunk_numbers]
        return visits * max((chunk.size / chunk.count for chunk in kept), default=0.0) <= self.store.free_bytes

    def _base(self) -> bytes:
        """Return a digest of this party's states of the others' r, on which the next chunk rests, for its own file."""
        digest = hashlib.sha256(self._visits.to_bytes(8, "little"))
        for name in sorted(self._r):
            digest.update(name.encode() + np.ascontiguousarray(self._r[name], "<u8").tobytes())
        return digest.digest()[:NAME_BYTES]

    def take(self, chunk: int, place: int, part: int = 0) -> PreprocessedBlock:
        """Take what is ready for a block of a visit, one after the other; with the first one the visit is spent from
        now on, and with the first visit of a chunk the chunk's name.

        ProtocolError if it is spent already.
        """
        if place == part == 0:
            self._names.spend(self.store.chunk(chunk).name)
        own, terms, ring = self.store.take(chunk, place, 2 * part), self._terms, self._ring
        record = _stored(self.store.take(chunk, place, 2 * part + 1))
        piece = terms.blocks[record.piece]
        n, c = piece.rows, terms.outputs
        return PreprocessedBlock(
            piece,
            ring.unpack(own, (n, c) if own else (0, c)),
            ring.unpack(record.step, (terms.columns[self._context.me] if record.step else 0, c)),
            ring.unpack(record.sums, (n, c)),
            {name: ring.unpack(data, (terms.columns[name], c)) for name, data in record.left.items()},
            record.transfer,
        )

    def _outputs(self, place: int) -> slice:
        """Locate the outputs of a batch's visit number `place`."""
        return slice(place * self._terms.outputs, (place + 1) * self._terms.outputs)

    def _steps(
        self,
        work: ProductExecutor,
        vectors: Mapping[int, int],
        places: Mapping[int, Sequence[int]],
        holders: Sequence[ShareHolder],
        evaluators: Evaluators,
    ) -> Generator[tuple[int, int, bytes], None, tuple[ByBatch, dict[str, ByBatch]]]:
        """Compute this party's shares of W^T psi, added up (d x E c), and v by party where it is a holder; yield psi of
        each block and visit, to be kept."""
        products, terms, ring, width = self.session.products, self._terms, self._ring, self._width
        own: ByBatch = {}
        left: dict[str, ByBatch] = {name: {} for name in products.asked}
        for group in self._groups(vectors):
            psi = {
                piece: ring.uniform(self._prg, (terms.blocks[piece].rows, group[piece])) for piece in group if holders
            }
            if holders:
                products.ask(work, products.asked, holders[0], psi, columns=lambda piece: width, uses=terms.chunks)
            for piece in group:
                for e, place in enumerate(places[terms.blocks[piece].batch]):
                    packed = ring.pack(psi[piece][:, self._outputs(e)]) if holders else b""
                    yield place, 2 * self._part(piece), packed
            self._add_up(own, self._answered(work, 0, evaluators, group))
            for name in products.asked:
                shapes = {piece: (terms.columns[name], count) for piece, count in group.items()}
                self._add_up(left[name], products.opened(work, holders[0], name, shapes))
        return self._lifted(own), {name: self._lifted(values) for name, values in left.items()}

    def _part(self, piece: int) -> int:
        """Return which block of its batch a block is."""
        return self._terms.blocks[piece].start // self._terms.block

    def _add_up(self, total: ByBatch, shares: ByPiece) -> None:
        """Add shares of blocks to those of their batches."""
        for piece, share in shares.items():
            batch = self._terms.blocks[piece].batch
            total[batch] = self._ring.reduce(total[batch] + share) if batch in total else share

    def _lifted(self, changes: ByBatch) -> ByBatch:
        """Multiply shares of W^T psi by what W is smaller by in smaller batches."""
        lifts = {batch: np.uint64(self._terms.encoding.lift(self._terms.rows[batch])) for batch in changes}
        return {batch: self._ring.reduce(words << lifts[batch]) for batch, words in changes.items()}

    def _sums(
        self,
        work: ProductExecutor,
        group: Mapping[int, int],
        before: Mapping[str, ByBatch],
        holders: Sequence[ShareHolder],
        evaluators: Evaluators,
    ) -> ByPiece:
        """Add up this party's shares of all X r that it takes part in (n x E c), by block of a group."""
        products, terms = self.session.products, self._terms
        for name, values in before.items():
            r = {piece: values[terms.blocks[piece].batch] for piece in group}
            products.ask(work, [name], holders[1], r, columns=lambda piece: terms.blocks[piece].rows, uses=terms.chunks)
        total = self._answered(work, 1, evaluators, group)
        shapes = {piece: (terms.blocks[piece].rows, count) for piece, count in group.items()}
        for name in before:
            for piece, share in products.opened(work, holders[1], name, shapes).items():
                total[piece] = self._ring.reduce(total[piece] + share)
        return total

    def _answered(
        self, work: ProductExecutor, purpose: int, evaluators: Evaluators, vectors: Mapping[int, int]
    ) -> ByPiece:
        """Answers about W (purpose 0) or X transposed (1) of blocks; plaintexts are kept if there are more chunks, but
        of batches of several blocks."""

        def factor(piece: int) -> Integers | RemoteFactor:
            X, W = self._factors(self._terms.blocks[piece])
            return X.T if purpose else W

        several = max(self._terms.rows) > self._terms.block
        shelf = self._shelves[purpose] if self._terms.chunks > 1 and not several else None
        return self.session.products.answer(work, evaluators, vectors, factor, shelf=shelf, apart=self._apart)

    def _walk(self, name: str, visits: Sequence[int], counts: Mapping[int, int], left: ByBatch) -> ByBatch:
        """r of a party before each visit (d x E c)."""
        rule, d, c = self._terms.rule_of(name), self._terms.columns[name], self._terms.outputs
        before = {batch: np.empty((d, count * c), np.uint64) for batch, count in counts.items()}
        seen = dict.fromkeys(counts, 0)
        for visit, batch in enumerate(visits, self._visits):
            e, seen[batch] = self._outputs(seen[batch]), seen[batch] + 1
            before[batch][:, e] = self._ring.reduce(rule.theta(self._r[name], visit))
            self._r[name] = self._ring.reduce(rule.step(self._r[name], left[batch][:, e], visit))
        return before
