"""Training on additive shares: weights, forward sums, residuals and gradients stay shared, visit after visit.

A has the labels (active), B is its partner, C any further party (passive); what they have ready for a visit is
offline_phase.py's: theta_k is s_k at party k and r_kh at each holder h of A, B other than k, g = psi_A + psi_B + delta.
X, W are integers modulo 2^L (fixed_point.py), a row of a batch has c outputs and one transfer 1-of-2^b for each.
h_k below is X_k s_k and the party's shares of all X r. A visit:

6. C -> A   h_C - kappa                         kappa a keystream that B has too
7. B -> A   place = (i_B - chi) mod 2^b         i_B = top bits of h_B + all kappa
8. A -> B   T_y(i_A + place + j) - psi_A - pad(j)   for each row and j < 2^b;  i_A = top bits of h_A + all of 6
   B        g_B = entry chi + pad(chi)
9. B -> A, C   delta = g_B - psi_B
   k        s_k steps by its shares of W_k^T psi and W_k^T (what it knows of g: psi_A + delta at A, g_B at B, delta)

6 to 9 are of a block of rows; B asks for one block more before it has the tables of the one before. For A, 9 comes in
one message with 7 of a later block, or of the next visit, whose first sums hang on the last delta. T_y is the table of
g for label y, so shares of g come out of the look-up (Dessouky et al. 2017 look up by transfer); it stands for any loss
of one sum. With two parties a visit is one round trip, with more three messages in a row, whatever d.

What A receives is uniform by chi, psi_B and kappa; of the tables B can open one entry a row, which psi_A makes uniform;
delta is uniform to C by psi_B. So nobody learns more than n, d, c, the visits, L and b, and neither do parties that
pool what they hold, unless A and B are both among them: then they have g, every H_k, theta_A and theta_B.

A training that was broken off goes on from states after the same visit at all parties. Whoever goes on makes new masks
and new keys, so what is gone through again is as uniform as it was: parties may go back as far as they like.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

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

_TABLES = 1024  # rows whose tables are made at a time
_KAPPA = "sums of a training on shares"

Places = NDArray[np.uint8]

_NO_MASKS: Words = np.empty((0, 0), np.uint64)


class MaskedSum(Message, frozen=True):
    """h_C - kappa, (n x c) words, and the name of the chunk."""

    chunk: str
    words: bytes


class LookupRequest(Message, frozen=True):
    """The chunk's name, delta of each block since the last message (empty before the first), one after the other, and
    places of the next block (empty after the last)."""

    chunk: str
    delta: bytes
    places: bytes


class MaskedTables(Message, frozen=True):
    """The masked entries of every row, (2^b x n c) words."""

    entries: bytes


class MaskedResidual(Message, frozen=True):
    """delta, (n x c) words, for a party that is no holder."""

    words: bytes


def declares() -> list[MessageDeclaration]:
    """Declare what the messages of a visit reveal. Roles: active, partner, passive (any party that is neither)."""
    return [
        MessageDeclaration(MaskedSum, "passive", "active", Reveal("uniform")),
        MessageDeclaration(LookupRequest, "partner", "active", Reveal("uniform"), structured=True),
        MessageDeclaration(MaskedTables, "active", "partner", Reveal("uniform")),
        MessageDeclaration(MaskedResidual, "partner", "passive", Reveal("uniform")),
    ]


def coalitions(active: str, partner: str, passives: tuple[str, ...]) -> dict[str, frozenset[str]]:
    """Who must pool what they hold to learn a party's forward sums: for each party other than the holders, both."""
    holders = frozenset((active, partner))
    return {name: holders for name in passives if name != partner}


@dataclass(frozen=True, repr=False)
class SharedState:
    """One party's shares after `visits` visits, as the rule keeps them (k x d x c): s of its own weights, and as a
    holder r of every other party's, by name.
    """

    visits: int
    own: Words
    others: Mapping[str, Words]


class TrainingRole(ABC):
    """What all parties do alike in a visit."""

    def __init__(
        self,
        context: PartyContext,
        terms: SharesParams,
        columns: ColumnBlocks,
        ahead: OfflinePhase,
        state: SharedState | None = None,
    ) -> None:
        """state: where a training goes on; all weights zero if None."""
        self._context, self._terms, self._numbers = context, terms, terms.encoding
        self._ring = ShareRing(terms.encoding.bits)
        self._columns, self._ahead = columns, ahead
        self._change: Words = np.zeros((0, 0), np.uint64)  # W^T g of the blocks of a visit so far
        self._left: Mapping[str, Words] = {}
        self._passives = tuple(name for name in context.passives if name != terms.partner)
        holder = context.me in (context.active, terms.partner)
        zero = {
            name: terms.rule_of(name).start(np.zeros((d, terms.outputs), np.uint64))
            for name, d in terms.columns.items()
        }
        others = {name: r for name, r in zero.items() if holder and name != context.me}
        self.state = state or SharedState(0, zero[context.me], others)
        ahead.set_state(self.state.visits, self.state.others)

    def set_params(self, terms: SharesParams) -> None:
        """Go on from here by another rule, as the work ahead does: what was made for later visits serves no more."""
        self._terms = terms
        self._ahead.set_params(terms)
        self._ahead.set_state(self.state.visits, self.state.others)

    @abstractmethod
    def train(self, chunk: int, visits: int) -> Iterator[SharedState]:
        """Goes through a chunk of so many visits; the state after each. Parties may talk of other things in between."""

    def _begin(self, number: int) -> str:
        """Return the name of a chunk. ProtocolError if it was made for another visit than the next."""
        chunk = self._ahead.store.chunk(number)
        if chunk.first + chunk.next != self.state.visits:
            raise ProtocolError(
                f"shares: chunk {number} is for visit {chunk.first + chunk.next}, the training is at visit "
                f"{self.state.visits}; make a new chunk"
            )
        self._ahead.greet()
        return chunk.name.hex()

    def _same(self, name: str, own: str, theirs: str) -> None:
        if own != theirs:
            raise ProtocolError(f"{name} goes through a chunk that was made with others; make new chunks together")

    @property
    def theta(self) -> Words:
        """s (d x c), this party's share of its own weights."""
        rule = self._terms.rule_of(self._context.me)
        return self._ring.reduce(rule.theta(self.state.own, self.state.visits))

    def _sum(self, visit: PreprocessedBlock) -> Words:
        """h (n x c)."""
        return self._columns.sums(visit.piece, self.theta) + visit.sums

    def _is_last(self, visit: PreprocessedBlock) -> bool:
        """Whether a block is the last one of its batch."""
        return visit.piece.stop == self._terms.rows[visit.piece.batch]

    def _step(self, visit: PreprocessedBlock, g: Words) -> SharedState:
        """Add a block's part of the change, given what this party knows of g (n x c), and with the last one step the
        state; return it."""
        terms, ring, done = self._terms, self._ring, self.state.visits
        batch = visit.piece.batch
        if self._context.channel.observed:
            self._context.channel.note(SharedResidual(batch, ring.signed(ring.reduce(g)).astype(np.float64)))
        if not visit.piece.start:
            self._change, self._left = visit.step, visit.left
        change = self._columns.change(visit.piece, ring.reduce(g))
        self._change = self._change + (change << np.uint64(terms.encoding.lift(terms.rows[batch])))
        if not self._is_last(visit):
            return self.state
        own = ring.reduce(terms.rule_of(self._context.me).step(self.state.own, self._change, done))
        others = {
            name: ring.reduce(terms.rule_of(name).step(r, self._left[name], done))
            for name, r in self.state.others.items()
        }
        self.state = SharedState(done + 1, own, others)
        return self.state

    def _send(self, name: str, message: Message) -> None:
        self._context.channel.send(name, message, self._context.subchannel)

    def _recv(self, name: str, kind: type[M]) -> M:
        return self._context.channel.recv(name, kind, self._context.subchannel)


class LabelParty(TrainingRole):
    """A: has the labels, makes the tables."""

    def __init__(
        self,
        context: PartyContext,
        terms: SharesParams,
        columns: ColumnBlocks,
        ahead: OfflinePhase,
        tables: Callable[[RowBlock], ResidualTables],
        state: SharedState | None = None,
    ) -> None:
        """tables: the look-ups of a block, for its n c targets row by row."""
        super().__init__(context, terms, columns, ahead, state)
        self._tables = tables
        self._prg = Prg.fresh("rounding of table entries")
        self._masks = _NO_MASKS

    def train(self, chunk: int, visits: int) -> Iterator[SharedState]:
        partner, own = self._terms.partner, self._begin(chunk)
        visit = self._ready(chunk, 0, 0)
        turn = self._recv(partner, LookupRequest)  # 7
        self._same(partner, own, turn.chunk)
        for place in range(visits):
            asked, part, last = list[PreprocessedBlock](), 0, False  # blocks whose delta has not come
            while not last:
                h, last = self._sum(visit), self._is_last(visit)
                for name in self._passives:
                    masked = self._recv(name, MaskedSum)  # 6
                    self._same(name, own, masked.chunk)
                    h = h + unpack_words(name, masked.words, self._ring, h.shape)
                at = self._numbers.index(self._ring.reduce(h)).ravel() + read_offsets(
                    partner, turn.places, h.size, self._numbers.entries
                )
                self._send(partner, MaskedTables(self._masked(visit.piece, at)))  # 8
                asked.append(visit)
                part += 1
                if not last:
                    visit = self._ready(chunk, place, part)  # while the partner works
                elif place + 1 < visits:
                    visit = self._ready(chunk, place + 1, 0)
                turn = self._recv(partner, LookupRequest)  # 9, 7
                told = asked if last else asked[:-1]
                for each, delta in zip(told, self._parted(turn.delta, told), strict=True):
                    self._step(each, each.own + unpack_words(partner, delta, self._ring, each.own.shape, "delta"))
                asked = asked[len(told) :]
            yield self.state

    def _ready(self, chunk: int, place: int, part: int) -> PreprocessedBlock:
        """Return what is prepared of a block, with its masks made from it: psi + pad (2^b x n c)."""
        visit = self._ahead.take(chunk, place, part)
        self._masks = self._context.meter("transfer", lambda: table_transfers.pads(visit.transfer, self._ring))
        self._masks += visit.own.ravel()
        return visit

    def _parted(self, deltas: bytes, told: Sequence[PreprocessedBlock]) -> list[bytes]:
        """Divide what came of several blocks; the last one gets all that is left."""
        ends = np.cumsum([self._ring.size(each.own.size) for each in told[:-1]], dtype=int).tolist()
        return [deltas[start:stop] for start, stop in pairwise([0, *ends, len(deltas)])] if told else []

    def _masked(self, piece: RowBlock, at: Places) -> bytes:
        """Return the entries of a block from these places on, less the masks, packed; the masks go."""
        masks, self._masks = self._masks, _NO_MASKS
        tables, packing = self._tables(piece), IncrementalPacking(self._ring, masks.shape)
        for start in range(0, len(at), _TABLES):
            rows = slice(start, start + _TABLES)
            entries = tables.entries(at[rows], self._prg, start).view(np.uint64)
            entries -= masks[:, rows]
            packing.put((slice(None), rows), entries)
        return packing.packed()


class PartnerParty(TrainingRole):
    """The partner's side (B): the party that reads the tables."""

    def train(self, chunk: int, visits: int) -> Iterator[SharedState]:
        active, own = self._context.active, self._begin(chunk)
        kappas = [Prg(self._ahead.pair_keys[name], f"{_KAPPA}, {chunk}") for name in self._passives]
        visit, chi, pad, places = self._ready(chunk, 0, 0, kappas)
        self._send(active, LookupRequest(own, b"", places))  # 7
        for place in range(visits):
            deltas, part, last = b"", 0, False  # of blocks, which go with the next message
            while not last:
                last, part = self._is_last(visit), part + 1
                if not last:
                    after = self._ready(chunk, place, part, kappas)  # one block ahead, so that neither party waits
                    self._send(active, LookupRequest(own, deltas, after[3]))  # 9, 7
                    deltas = b""
                g = (self._opened(self._recv(active, MaskedTables).entries, chi) + pad).reshape(visit.own.shape)  # 8
                delta = self._ring.pack(self._ring.reduce(g - visit.own))
                self._step(visit, g)
                for name in self._passives:
                    self._send(name, MaskedResidual(delta))  # 9
                deltas = deltas + delta
                if not last:
                    visit, chi, pad, places = after
            places = b""
            if place + 1 < visits:
                visit, chi, pad, places = self._ready(chunk, place + 1, 0, kappas)
            self._send(active, LookupRequest(own, deltas, places))  # 9, 7 of the next visit
            yield self.state

    def _ready(
        self, chunk: int, place: int, part: int, kappas: Sequence[Prg]
    ) -> tuple[PreprocessedBlock, Places, Words, bytes]:
        """Return what is prepared of a block, chi and pad(chi) of its rows (n c,), and the places to ask for."""
        visit = self._ahead.take(chunk, place, part)
        chi, pad = table_transfers.chosen(visit.transfer, self._ring)
        h = self._sum(visit)
        for prg in kappas:
            h = h + self._ring.uniform(prg, h.shape)
        places = (self._numbers.index(self._ring.reduce(h)).ravel() - chi) & np.uint8(self._numbers.entries - 1)
        return visit, chi, pad, places.tobytes()

    def _opened(self, entries: bytes, chi: Places) -> Words:
        """Return the entry of each row that chi chooses from the tables."""
        rows, size = len(chi), len(chi) * self._ring.octets * self._numbers.entries
        if len(entries) != size:
            raise ProtocolError(
                f"{self._context.active}: tables of {size} bytes were expected, {len(entries)} came; "
                "do both run the same job?"
            )
        return self._ring.unpack(entries, (self._numbers.entries, rows), (chi, np.arange(rows)))


class FeatureParty(TrainingRole):
    """A passive party's side (C): a party that has columns alone."""

    def train(self, chunk: int, visits: int) -> Iterator[SharedState]:
        own, partner = self._begin(chunk), self._terms.partner
        kappa = Prg(self._ahead.pair_keys[partner], f"{_KAPPA}, {chunk}")
        for place in range(visits):
            asked, part, last = list[PreprocessedBlock](), 0, False
            while not last:
                visit = self._ahead.take(chunk, place, part)
                last, part = self._is_last(visit), part + 1
                h = self._sum(visit)
                h = self._ring.reduce(h - self._ring.uniform(kappa, h.shape))
                self._send(self._context.active, MaskedSum(own, self._ring.pack(h)))  # 6
                asked.append(replace(visit, sums=_NO_MASKS))
            for each in asked:
                delta = self._recv(partner, MaskedResidual).words  # 9
                self._step(
                    each, unpack_words(partner, delta, self._ring, (each.piece.rows, self._terms.outputs), "delta")
                )
            yield self.state
