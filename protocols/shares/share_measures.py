"""How good a model on shares is on some rows: one opened sum, and no score.

1. all      shares of H = X theta at the active party A and its partner B (new_sums.py)
2. B, A     look up T_y, modulo 2^64, where H falls to (new_sums.py, steps 2 to 4)    => shares of the row's entry
3. B -> A   the sum of its shares
   A        adds its own: the sum of all rows' entries

An entry holds two numbers side by side, so that a sum of rows holds their two sums: the loss, and whether |H| is beyond
half of the table's reach. A learns these two sums; everything else that either receives is uniform. Between two entries
the loss is interpolated, so it is too high by an eighth of its curvature times the square of the step at most. Where
the loss is zero throughout, one count is all that is told.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from securevfl.base.arrays import Floats
from securevfl.crypto.prg import Prg
from securevfl.crypto.share_ring import ShareRing, Words
from securevfl.crypto.transfers.ot_extension import Offered
from securevfl.crypto.transfers.switch_network import SwitchNetwork, network
from securevfl.errors import ProtocolError
from securevfl.protocols.declared import Declared, Reveal
from securevfl.protocols.seat import Seat
from securevfl.protocols.shares import new_sums, table_transfers
from securevfl.protocols.shares.new_sums import NewRows, NewSums, looked_up
from securevfl.protocols.shares.share_numbers import Levels, Numbers, away
from securevfl.protocols.shares.share_products import Products, words
from securevfl.protocols.shares.table_transfers import Transfers
from securevfl.protocols.shares.visits import SharedState
from securevfl.protocols.shares.work_ahead import Terms
from securevfl.runtime.channel import Entry, Telling
from securevfl.runtime.codec import Message

FEWEST, MOST = 20, 65_536  # rows
_LOSS_BITS = 44
_FRACTION = 16  # bits of a loss below one
_RING = ShareRing(64)


class LossTable(NamedTuple):
    """What the active party takes the loss of rows from: the loss of each of f (m x 1) and targets (m x k), the targets
    of each row and output (n c x k), and the f of their least losses (n c x 1)."""

    values: Callable[[Floats, Floats], Floats]
    targets: Floats
    least: Floats


class MeasuredSum(Telling, frozen=True):
    """The sum of the partner's shares."""

    total: bytes


def declares() -> list[Declared]:
    """Declare what the messages reveal. Roles: active, partner, passive (any party that is neither)."""
    told = "of the rows measured: the sum of their losses, and how many are beyond half of the table's reach"
    return [
        *new_sums.declares(),
        *new_sums.declares_tables(),
        Declared(MeasuredSum, "partner", "active", Reveal("output", told)),
    ]


@dataclass(frozen=True)
class Measured:
    """Means over rows and outputs: the loss, and the part beyond half of the table's reach."""

    loss: float
    far: float


def measure(
    products: Products,
    transfers: Transfers | None,
    terms: Terms,
    state: SharedState,
    number: int,
    X: NewRows,
    table: LossTable | None,
    *,
    occasion: str = "measure",
) -> Measured | None:
    """One party's side, with its columns X (n x d); what the active party learns, None elsewhere.

    transfers: at the two holders, those of the session. occasion, number: no two of a session are equal in both.
    table: at the active party. ProtocolError if a peer sends something of another size.
    """
    seat, numbers = products.seat, terms.numbers
    h = NewSums(products, terms, state, occasion, number, len(X)).block(0, X)  # 1
    if h is None or transfers is None:
        return None
    entries = None if table is None else _entries(numbers, table)
    shares = looked_up(products, transfers, terms.partner, numbers.index(h), numbers.table_bits, entries, _RING)  # 2
    total = shares.sum(dtype=np.uint64)
    if table is None:
        told = seat.channel.tell(Entry(seat.active, "losses", 2, 32, about=seat.passives))
        products.send(seat.active, MeasuredSum(_RING.pack(total[None])), told)  # 3
        return None
    (theirs,) = words(terms.partner, products.recv(terms.partner, MeasuredSum).total, _RING, (1,))  # 3
    return _read((int(theirs) + int(total)) % 2**64, h.size)


def _entries(numbers: Numbers, table: LossTable) -> Words:
    """Pack the loss of each entry (2^b x n c) and whether its sum is far out into one word each."""
    centres = numbers.centres(table.least)
    distances = away(numbers.knots, centres)
    f, of = (distances + centres).reshape(-1, 1), np.tile(table.targets, (numbers.entries, 1))
    most = 2.0 ** (_LOSS_BITS - _FRACTION) / MOST
    loss = np.clip(table.values(f, of), 0, most - 1).reshape(distances.shape)
    packed = np.rint(np.ldexp(loss, _FRACTION)).astype(np.uint64)
    packed |= (np.abs(distances) > numbers.reach / 2).astype(np.uint64) << np.uint64(_LOSS_BITS)
    return packed


def _read(total: int, rows: int) -> Measured:
    loss = (total & (2**_LOSS_BITS - 1)) * 2.0**-_FRACTION
    return Measured(loss / rows, (total >> _LOSS_BITS) / rows)


# Shared words in a hidden order: the active party A learns the words of all rows, and of none which row it is of.
#
# A has x_A, its partner B x_B, words modulo 2^k of every row; rows come in blocks, and each block is put in an order of
# its own by switches (crypto/transfers/ot_extension.py). B draws the orders, for each shuffle anew.
#
# 1. B -> A   corrections of a transfer 1-of-2 for each switch, its choices chi random (table_transfers.py)
# 2. B -> A   setting ^ chi, a bit for each switch
#    A        a mask r for each word as it enters. Of a switch with masks a, b at its entrances: its pads for the
#    straight
#             setting make the masks behind it, c = a - p, d = b - q, so that those as the words leave, s, follow
# 3. A -> B   for each switch b - c - p', a - d - q' with the pads p', q' for the crossed setting
# 4. A -> B   x_A - r
#    B        x_A + x_B - r goes through its switches: + p, + q where one is straight, crossed + p' and + q' with 3
# 5. B -> A   the words as they leave, pi(x_A + x_B) - s
#    A        + s
#
# 1 to 3 go ahead, on random numbers alone, and serve once; 4 and 5 are one round trip. Of each switch B has one pad of
# two, so the other's masks, and all that comes to it, are uniform; what comes to A are random bits and, in 5, the words
# in an order that is uniform to it: nothing else is told, if both follow the protocol. A party that does not may mark
# single rows by the words that it puts in, so what it learns at most is the words with their rows.
#
# The networks by which a permutation is switched obliviously are those of Mohassel and Sadeghian 2013 (section 3).


MOST_BITS = 32  # of a word: a pad of 64 bits holds two
_HALF = np.uint64(32)


class SwitchSettings(Message, frozen=True):
    """A bit for each switch, eight to a byte."""

    bits: bytes


class SwitchWords(Message, frozen=True):
    """The message with two words for each switch of a network, for its crossed setting."""

    words: bytes


class MaskedWords(Message, frozen=True):
    """The message with the active party's words less its masks, x_A - r."""

    words: bytes


class ShuffledWords(Telling, frozen=True):
    """The words as they leave, less their masks."""

    words: bytes


def declares_shuffle(told: str) -> list[Declared]:
    """Declare what the messages reveal. Roles: active, partner. told: what the words are."""
    return [
        *table_transfers.declares(),
        Declared(SwitchSettings, "partner", "active", Reveal("uniform"), structured=True),
        Declared(SwitchWords, "active", "partner", Reveal("uniform")),
        Declared(MaskedWords, "active", "partner", Reveal("uniform")),
        Declared(ShuffledWords, "partner", "active", Reveal("output", told)),
    ]


@dataclass(repr=False)
class Shuffle:
    """What one holder has ready for a shuffle of `rows` words, k bits each. Serves once.

    entering, leaving: at the active party the masks r and s (rows,). settings (switches,), added (2 x switches): at the
    partner how its switches stand, and what each adds to the two words that leave it.
    """

    ring: ShareRing
    network: SwitchNetwork
    entering: Words | None = None
    leaving: Words | None = None
    settings: NDArray[np.uint8] | None = None
    added: Words | None = None
    _spent: bool = field(default=False, init=False)

    def spend(self) -> None:
        """Mark the shuffle as used. ProtocolError if it is already: two shuffles in one order compare rows."""
        if self._spent:
            raise ProtocolError("a shuffle that nobody has used was expected, this one was; make a new one")
        self._spent = True


def prepared(seat: Seat, peer: str, transfers: Transfers, rows: int, bits: int, *, blocks: int = 1) -> Shuffle:
    """One holder's side of a shuffle to come, of blocks of so many rows; both call it at the same point.

    peer: the other holder. transfers: of two entries. bits: k, of a word, up to MOST_BITS.
    """
    ring, switched = ShareRing(bits), network(rows, blocks)
    (stored,) = transfers.made([switched.switches])  # 1
    if seat.me == seat.active:
        return _offered(seat, peer, ring, switched, stored)
    chi, pad = np.frombuffer(stored[0], np.uint8), np.frombuffer(stored[1], "<u8").astype(np.uint64, copy=False)
    settings = switched.settings(_orders(rows, blocks))
    seat.channel.send(peer, SwitchSettings(np.packbits(settings ^ chi, bitorder="little").tobytes()), seat.lane)  # 2
    data = seat.channel.recv(peer, SwitchWords, seat.lane).words  # 3
    crossing = words(peer, data, ring, (2, switched.switches)) * settings
    return Shuffle(ring, switched, settings=settings, added=ring.reduce(_halves(pad) + crossing))


def shuffled(seat: Seat, peer: str, shuffle: Shuffle, own: Words) -> Words | None:
    """Shuffle both holders' words: return their sums (rows,) in a hidden order at the active party, None at its
    partner.

    own: this holder's words (rows,). ProtocolError if the shuffle has been used, or words of another number come.
    """
    shuffle.spend()
    ring, channel = shuffle.ring, seat.channel
    if shuffle.settings is None or shuffle.added is None:
        assert shuffle.entering is not None and shuffle.leaving is not None, "it is the active party's"  # noqa: PT018
        channel.send(peer, MaskedWords(ring.pack(ring.reduce(own - shuffle.entering))), seat.lane)  # 4
        left = words(peer, channel.recv(peer, ShuffledWords, seat.lane).words, ring, own.shape)  # 5
        return ring.reduce(left + shuffle.leaving)
    value = words(peer, channel.recv(peer, MaskedWords, seat.lane).words, ring, own.shape) + own  # 4
    start = 0
    for first, second in shuffle.network.layers:
        at = slice(start, start := start + len(first))
        crossed, (one, other) = shuffle.settings[at].astype(bool), shuffle.added[:, at]
        a, b = value[first], value[second]
        value[first], value[second] = np.where(crossed, b, a) + one, np.where(crossed, a, b) + other
    about = tuple(name for name in seat.parties if name != peer)
    told = channel.tell(Entry(peer, "scores", own.size, ring.bits, about=about))
    channel.send(peer, ShuffledWords(ring.pack(ring.reduce(value))), seat.lane, told=told)  # 5
    return None


def _offered(seat: Seat, peer: str, ring: ShareRing, switched: SwitchNetwork, stored: tuple[bytes, ...]) -> Shuffle:
    """Run the active party's side of steps 2 and 3."""
    offered, count = Offered.restored(stored), switched.switches
    data = seat.channel.recv(peer, SwitchSettings, seat.lane).bits  # 2
    if len(data) != -(-count // 8):
        raise ProtocolError(
            f"{peer}: {count} settings were expected, {len(data)} bytes came; do both run the same job?"
        )
    straight = np.unpackbits(np.frombuffer(data, np.uint8), count=count, bitorder="little")
    pads = seat.meter("transfer", lambda: offered.pads(0, count))
    places = np.arange(count)
    behind, crossing = _halves(pads[straight, places]), _halves(pads[1 - straight, places])
    entering = ring.uniform(Prg.fresh("masks of a shuffle"), switched.rows)
    mask, start = entering.copy(), 0
    for first, second in switched.layers:
        at = slice(start, start := start + len(first))
        a, b = mask[first], mask[second]
        c, d = a - behind[0, at], b - behind[1, at]
        crossing[:, at] = b - c - crossing[0, at], a - d - crossing[1, at]
        mask[first], mask[second] = c, d
    seat.channel.send(peer, SwitchWords(ring.pack(ring.reduce(crossing))), seat.lane)  # 3
    return Shuffle(ring, switched, entering=entering, leaving=ring.reduce(mask))


def _halves(pads: Words) -> Words:
    """Two words (2 x switches) of each pad."""
    return np.stack([pads & np.uint64(2**32 - 1), pads >> _HALF])


def _orders(rows: int, blocks: int) -> NDArray[np.intp]:
    """Draw a fresh order of each block's rows, behind each other."""
    drawn = Prg.fresh("order of a shuffle").array((blocks, rows), np.uint64)
    return (np.argsort(drawn, axis=1) + np.arange(blocks)[:, None] * rows).ravel()


# How good a model on shares is on some rows: pairs (level of the sum, label) in a hidden order, and no row's score.
#
# s = 2^step is the distance of two levels, k bits say which one. y: a bit of each row that the active party A chooses.
#
# 1. all      shares of H = X theta at A and its partner B (new_sums.py); A may take targets off its own. Where it does
#             not, H that is beyond the levels is moved to their ends, in shares, by its highest bits (new_sums.py)
# 2. A        x_A = 2 i_A + y      B   x_B = 2 i_B         i the k bits of a share from s on; words of k + 1 bits
# 3. A, B     both words go through a shuffle (share_measures.py)
#    A        of each pair the level i_A + i_B + 1, and y
#
# As the fraction of a share is uniform, a level is H / s rounded up or down at random, without bias. Levels are those
# modulo 2^k: sums that are not moved must lie within 2^(k - 1) s. Several outputs are shuffled each by itself, so that
# no row's scores come together: a tuple of them finds its row again.
#
# A learns how many rows of each label have each level, so all metrics of them, but of no row which it is; the most
# extreme own parts remain better placed than others, so there must be FEW_ROWS rows, and FEW_ALIKE of each label: below
# that the others must agree by name. A that deviates may mark rows by y, or by what it adds to its share, and reads
# some of them for certain: k + 1 bits a row and evaluation is what any A learns at most, and B lets the same rows be
# evaluated one time for each hundred of them (score_ledger.py).


FEW_ROWS, FEW_ALIKE = 400, 100  # below which the others must agree by name

_TOLD = "of the rows measured, in a hidden order: the level of each sum, with a label of one bit"


def declares_pairs() -> list[Declared]:
    """Declare what the messages reveal. Roles: active, partner, passive (any party that is neither)."""
    return [*new_sums.declares(), *new_sums.declares_tables(), *declares_shuffle(_TOLD)]


@dataclass(frozen=True)
class LevelPairs:
    """Rows of each output in an order of its own: sums (n x c) as levels, and whether they were marked (n x c)."""

    f: Floats
    marked: NDArray[np.bool_]


class Marked(NamedTuple):
    """What the active party puts to the sums of rows: marks y (n x c), and what is taken off (n x c), if anything."""

    marks: NDArray[np.bool_]
    less: Floats | None


def pairs(
    products: Products,
    shuffle: Shuffle | None,
    terms: Terms,
    state: SharedState,
    X: NewRows,
    levels: Levels,
    marked: Marked | None = None,
    tops: Transfers | None = None,
) -> LevelPairs | None:
    """One party's side, with its columns X (n x d); the pairs at the active party, None elsewhere.

    shuffle: at the two holders, one that nobody has used, of blocks of n words for each output. state: measured once in
    a session. marked: at the active party. tops: at the two holders, transfers for tables by the highest bits, by which
    sums beyond the levels are moved to their ends; none where they wrap. ProtocolError if a peer sends something of
    another size.
    """
    seat, numbers, ring = products.seat, terms.numbers, ShareRing(terms.numbers.bits)
    h = NewSums(products, terms, state, "measure", state.visits, len(X)).block(0, X)  # 1
    if h is None or shuffle is None:
        return None
    if marked is not None and marked.less is not None:
        h = ring.reduce(
            h - ring.of(np.rint(np.ldexp(marked.less, numbers.f_x + numbers.f_theta)).astype(np.int64))
        )  # 1
    if tops is not None:
        moves = looked_up(
            products,
            tops,
            terms.partner,
            numbers.top_index(h),
            numbers.top_bits,
            levels.ends(numbers.top_knots),
            ShareRing(levels.bits),
        )  # 1
        h = ring.reduce(h + (moves << np.uint64(levels.shift(numbers))))
    own = levels.cut(numbers, h) << np.uint64(1)
    if marked is not None:
        own |= marked.marks.astype(np.uint64)  # 2
    peer = terms.partner if seat.me == seat.active else seat.active
    words = shuffled(seat, peer, shuffle, own.T.ravel())  # 3
    if words is None:
        return None
    found = words.reshape(h.shape[1], h.shape[0]).T
    return LevelPairs(levels.sums(found >> np.uint64(1)), (found & np.uint64(1)).astype(bool))
