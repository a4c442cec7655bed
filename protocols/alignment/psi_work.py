"""The state of a party in a private alignment, and checks of messages, for both ways to evaluate the PRF.

In an alignment, an active and one or more passive parties learn which of their ids all of them have. They use an
oblivious pseudorandom function (PRF), which is evaluated on elliptic-curve points (psi_points.py) or by oblivious
transfer (psi_transfers.py). To blind a point means to multiply it by a secret number, the scalar of a party.

Lists are sent in chunks of 65,536 items, so that messages stay small, computation and transfer overlap, and an
interrupted alignment can resume after the last complete chunk. For that, each party stores completed chunks in a
journal, which has these named streams:

    secrets   the nonce of the alignment, the party's scalar, and keys in common with each other party
    mine      points: this party's blinded points
    theirs    points: the other party's points, blinded by both; transfers: the other party's request
    back      points: PRF values of this party's ids; transfers: the other party's answers
    chosen    transfers: a passive party's choices and seeds of base transfers
    pairs     transfers: the active party's seeds of base transfers and random choices
    request   transfers: the key-value store of the active party's request
    store     the answers that a passive party sends, or that the active party has received
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor

import msgspec
import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray

from securevfl.crypto.curve import POINT_BYTES, Blinder
from securevfl.crypto.identifiers import CanonicalIds, id_keys
from securevfl.crypto.key_agreement import KeyPair
from securevfl.crypto.key_derivation import SYMMETRIC_KEY_BYTES, encode_context
from securevfl.crypto.share_ring import Words
from securevfl.errors import LeakageError, ProtocolError
from securevfl.runtime.channel import Channel
from securevfl.runtime.codec import Message
from securevfl.runtime.disclosure_gate import DisclosingMessage, DisclosurePermit, DisclosureRecord

ITEMS_PER_MESSAGE = 1 << 16  # number of points, slots or tags that one message (a chunk of a list) contains
TAG_BYTES = 16
# if all tables have fewer rows, alignment by elliptic-curve points is faster than by transfers
MIN_ROWS_FOR_TRANSFERS = 4096

Progress = Callable[[int, int], None]
"""Receives the number of completed operations of an alignment, and their total number."""
IdRecorder = Callable[[str, Mapping[str, int]], None]
"""Receives the name of an alignment's secrets, and the number of ids that each peer can test with them. It enters them
in this party's account, or raises an error to refuse them."""


class AlignmentHello(DisclosingMessage, frozen=True):
    """A passive party's first message.

    Attributes:
        rows: number of its rows.
        saved: nonce of an interrupted alignment that it can resume; empty if there is none.
        done: number of chunks of the active party's request that it received before the interruption.
    """

    rows: int
    saved: bytes
    done: int


class AlignmentStart(DisclosingMessage, frozen=True):
    """The active party's message that starts an alignment.

    Attributes:
        rows: number of its rows.
        nonce: nonce of the alignment.
        transfers: whether the PRF is evaluated by oblivious transfer.
        resumes: whether all parties resume an interrupted alignment.
        first: number of the receiver's messages for the PRF that the active party received before the interruption.
        second: number of chunks of the receiver's store that the active party received before the interruption.
    """

    rows: int
    nonce: bytes
    transfers: bool
    resumes: bool
    first: int
    second: int


class PairKey(Message, frozen=True):
    """The sender's X25519 public key, from which sender and receiver derive a common key for this alignment."""

    public: bytes


class Points(Message, frozen=True):
    """The sender's blinded points in ascending order: up to 65,536 of 32 bytes each."""

    points: bytes


class TwiceBlinded(Message, frozen=True):
    """The receiver's blinded points, multiplied by the sender's scalar as well, in the receiver's order."""

    points: bytes


class Journal:
    """The completed work of one party, in named streams of chunks. This base class stores it in memory."""

    def __init__(self) -> None:
        self._streams: dict[str, list[bytes]] = {}
        self._name = secrets.token_hex(16)

    @property
    def name(self) -> str:
        """A random name, which is new whenever the journal's secrets are."""
        return self._name

    def count(self, stream: str) -> int:
        """Return how many chunks of this stream are stored."""
        return len(self._streams.get(stream, []))

    def append(self, stream: str, chunk: bytes) -> None:
        """Append a chunk to a stream. If the process is interrupted, the chunk is stored completely or not at all."""
        self._streams.setdefault(stream, []).append(chunk)

    def chunk(self, stream: str, number: int) -> bytes:
        """Return chunk `number` of a stream, counted from 0."""
        return self._streams[stream][number]

    def read(self, stream: str) -> bytes:
        """Return all chunks of a stream, concatenated."""
        return b"".join(self.chunk(stream, number) for number in range(self.count(stream)))

    def clear(self) -> None:
        """Delete all streams of stored chunks."""
        self._streams.clear()
        self._name = secrets.token_hex(16)


class Secrets(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The secret state that a party needs to resume an alignment.

    Attributes:
        nonce: nonce of the alignment.
        transfers: whether the PRF is evaluated by oblivious transfer.
        subject: digest of the parties' names and of this party's ids; the secrets are used for these only.
        scalar: the number by which this party multiplies points.
        pair_keys: for each other party, the key that the two have in common.
    """

    nonce: bytes
    transfers: bool
    subject: bytes
    scalar: bytes
    pair_keys: dict[str, bytes]

    def __repr__(self) -> str:  # msgspec would print the secrets
        return "<Secrets, secret>"


_SECRETS = msgspec.msgpack.Decoder(Secrets)


class StoredBlinder(Blinder):
    """A multiplier of points with a given scalar, so that an alignment can resume in another process."""

    __slots__ = ()

    def __init__(self, scalar: bytes) -> None:
        self._scalar = scalar


class AlignmentWork:
    """The state of one party in an alignment.

    Args:
        channel: the party's channel.
        ids: this party's ids in canonical form, all different.
        active: name of the active party.
        passives: names of the passive parties.
        journal: stores completed work; in memory by default.
        executor: runs curve operations.
        on_progress: function that receives the number of completed operations and the total number.
        granted: number of ids that the active party must ask about, by points, if the parties agreed on it before.

    Attributes:
        rows: number of ids n.
        ids: the ids in canonical form.
        keys: a digest of each id, as two words of 64 bits (n, 2); see `id_keys`.
        nonce: nonce of the alignment.
        transfers: whether the PRF is evaluated by oblivious transfer.
        min_transfer_rows: the active party chooses transfers in place of points if a table has this number of rows.
        pair_keys: for each other party, the key that the two have in common; empty if there are only two parties.
    """

    def __init__(
        self,
        channel: Channel,
        ids: CanonicalIds,
        *,
        active: str,
        passives: Sequence[str],
        journal: Journal | None = None,
        executor: Executor | None = None,
        on_progress: Progress | None = None,
        granted: int | None = None,
    ) -> None:
        self.channel = channel
        self.me = channel.me
        self.active = active
        self.passives = tuple(passives)
        self.journal = journal or Journal()
        self.executor = executor
        self.rows = len(ids)
        self.ids = ids
        self.keys = id_keys(ids)
        self.nonce = b""
        self.transfers = False
        self.granted = granted
        self.min_transfer_rows = MIN_ROWS_FOR_TRANSFERS
        self.pair_keys: dict[str, bytes] = {}
        parties = encode_context(self.me, active, *passives)
        self._subject = hashlib.sha256(parties + self.keys.tobytes()).digest()
        self._report = on_progress
        self._recorder: IdRecorder | None = None
        self._progress = [0, 0]

    @property
    def peers(self) -> list[str]:
        """Names of all other parties."""
        return [name for name in (self.active, *self.passives) if name != self.me]

    def stream(self, kind: str, passive: str) -> str:
        """Return the name of the journal stream of this kind for one passive party."""
        return f"{kind}-{self.passives.index(passive)}"

    def saved(self) -> Secrets | None:
        """Return the secrets of an interrupted alignment with the same ids and parties, or None if there is none."""
        if not self.journal.count("secrets"):
            return None
        try:
            stored = _SECRETS.decode(self.journal.chunk("secrets", 0))
        except msgspec.DecodeError:
            return None
        return stored if stored.subject == self._subject else None

    def start(self, nonce: bytes, *, transfers: bool, resumes: bool) -> None:
        """Load the stored secrets, or create and store new ones.

        If there are three or more parties, new secrets include a common key with each other party.

        Args:
            nonce: nonce of the alignment.
            transfers: whether the PRF is evaluated by oblivious transfer.
            resumes: whether to load the secrets of an interrupted alignment.
        """
        stored = self.saved() if resumes else None
        if stored is None:
            self.journal.clear()
            keys = self._agree(nonce) if len(self.passives) > 1 else {}
            stored = Secrets(nonce, transfers, self._subject, fresh_scalar(), keys)
            self.journal.append("secrets", msgspec.msgpack.encode(stored))
        self.nonce, self.pair_keys, self.blinder = stored.nonce, stored.pair_keys, StoredBlinder(stored.scalar)
        self.transfers = transfers

    def _agree(self, nonce: bytes) -> dict[str, bytes]:
        pair = KeyPair()
        for peer in self.peers:
            self.channel.send(peer, PairKey(pair.public))  # step 0 of psi_many.py
        domain = "alignment zero sharing"
        return {
            peer: pair.agree(
                self.channel.recv(peer, PairKey).public, session=nonce.hex(), party=self.me, peer=peer, domain=domain
            )  # step 0 of psi_many.py
            for peer in self.peers
        }

    def expect(self, points: int) -> None:
        """Set the total number of operations that progress reports name, and count from 0 again."""
        self._progress = [0, points]

    def add_progress(self, points: int) -> None:
        """Report that this number of further operations is complete."""
        self._progress[0] += points
        if self._report is not None:
            self._report(*self._progress)

    def blinded(self, points: bytes) -> bytes:
        """Multiply each of this party's points by its scalar, and return the results in the same order."""
        for number, start in enumerate(range(0, len(points), ITEMS_PER_MESSAGE * POINT_BYTES)):
            chunk = points[start : start + ITEMS_PER_MESSAGE * POINT_BYTES]
            if number >= self.journal.count("mine"):
                self.journal.append("mine", self.blinder.blind(chunk, self.executor))
            self.add_progress(len(chunk) // POINT_BYTES)
        return self.journal.read("mine")

    def send_points(self, to: str, points: bytes, number: int) -> None:
        """Send chunk `number` of these concatenated points."""
        start = number * ITEMS_PER_MESSAGE * POINT_BYTES
        chunk = points[start : start + ITEMS_PER_MESSAGE * POINT_BYTES]
        self.channel.send(to, Points(chunk))

    def record_with(self, recorder: IdRecorder) -> None:
        """Set the function that records how many ids each peer can test, before any id of this party is sent."""
        self._recorder = recorder

    def record_ids(self, ids: Mapping[str, int]) -> None:
        """Record in the account how many ids each peer can test; call it before any message about this party's ids."""
        if self._recorder is not None:
            self._recorder(self.journal.name, ids)

    def permit_ids(self, to: str, ids: int) -> DisclosurePermit:
        """Return the permit for a message from which the party `to` learns whether each of `ids` ids is common."""
        return self.channel.permit(DisclosureRecord(to, "ids", ids, 1, about=(self.me,)))

    def blind_theirs(self, sender: str, rows: int) -> Iterator[bytes]:
        """Receive the sender's points, and yield them chunk by chunk, multiplied by this party's scalar.

        Points must be in ascending order. `rows` is their number.
        """
        previous = b""
        for number in range(chunks(rows)):
            if number >= self.journal.count("theirs"):
                points = self.channel.recv(sender, Points).points  # step 1 of psi_points.py
                check_size(sender, "points", points, POINT_BYTES, number, rows)
                previous = check_ascending(sender, "points", points, POINT_BYTES, previous)
                self.journal.append("theirs", self.blinder.blind(points, self.executor))
            self.add_progress(chunk_rows(rows, number))
            yield self.journal.chunk("theirs", number)

    def in_shared_order(self, rows: NDArray[np.intp]) -> NDArray[np.intp]:
        """Sort row indices by AES of their ids under the nonce, which gives the same order of ids at all parties."""
        return rows[ascending_order(keyed(self.nonce, self.keys[rows]))]

    def zero_share(self) -> Words:
        """Return a pseudorandom value s(x) of 16 bytes for each of this party's ids x, as words (n, 2).

        Other parties compute other values for x; the XOR of the values of all parties is 0.
        """
        share = np.zeros((self.rows, 2), np.uint64)
        for key in self.pair_keys.values():
            share ^= keyed(key, self.keys)
        return share


def keyed(key: bytes, blocks: Words) -> Words:
    """Encrypt n blocks (n, 2) by AES with a key of 16 or 32 bytes, as a pseudorandom function of each block."""
    octets = np.ascontiguousarray(blocks).reshape(-1).view(np.uint8).data
    raw = Cipher(algorithms.AES(key), modes.ECB()).encryptor().update(octets)  # noqa: S305
    return np.frombuffer(raw, np.uint64).reshape(-1, 2)


def ascending_order(blocks: Words) -> NDArray[np.intp]:
    """Return the indices (n,) that sort blocks (n, 2) by their first word, and equal first words by the second."""
    order: NDArray[np.intp] = np.argsort(np.ascontiguousarray(blocks[:, 0]))
    (first, second), (after, last) = blocks[order[:-1]].T, blocks[order[1:]].T
    if ((first == after) & (second > last)).any():
        order = np.lexsort((blocks[:, 1], blocks[:, 0]))
    return order


def intersect(blocks: Words, others: Words) -> NDArray[np.intp]:
    """Return the indices of those `blocks` (n, 2) that are also in `others` (m, 2). Neither contains a block twice."""
    both = np.concatenate([blocks, others])
    order = ascending_order(both)
    both = both[order]
    equal = np.flatnonzero((both[1:] == both[:-1]).all(axis=1))
    return np.sort(np.minimum(order[equal], order[equal + 1]))


def fresh_scalar() -> bytes:
    """Return a random secret number, by which a party multiplies points."""
    return secrets.token_bytes(SYMMETRIC_KEY_BYTES)


def chunks(rows: int) -> int:
    """Return the number of chunks of a list with `rows` items."""
    return -(-rows // ITEMS_PER_MESSAGE)


def chunk_rows(rows: int, number: int) -> int:
    """Return the number of items in chunk `number` of a list with `rows` items."""
    return min(ITEMS_PER_MESSAGE, rows - number * ITEMS_PER_MESSAGE)


def words(raw: bytes, width: int = 2) -> Words:
    """Read bytes as an array (n, width) of integers of 64 bits."""
    return np.frombuffer(raw, np.uint64).reshape(-1, width)


def check_count(sender: str, what: str, count: int, low: int, high: int) -> None:
    """Raise ProtocolError unless low <= count <= high; the error names the counted items `what`."""
    if not low <= count <= high:
        raise ProtocolError(
            f"{sender} stated {count} {what}, but the number must be between {low} and {high}",
            "start all parties again",
            code="SVFL-PROTOCOL-VALUES",
            party=sender,
        )


def check_granted(work: AlignmentWork, begin: AlignmentStart) -> None:
    """Raise LeakageError if the active party wants to ask about another number of ids than this party has granted.

    It must use points, one per id, because a request by oblivious transfer may contain more ids than stated.
    """
    if work.granted is not None and (begin.rows != work.granted or begin.transfers):
        flow = " by transfers" if begin.transfers else ""
        raise LeakageError(
            f"{work.me} has granted {work.active} a request about {work.granted:,} ids by points, but {work.active} "
            f"started a request about {begin.rows:,}{flow}; nothing was disclosed",
            "send the request again",
            code="SVFL-PROTOCOL-LIMIT",
            party=work.active,
        )


def check_protocol(work: AlignmentWork, begin: AlignmentStart) -> None:
    """Raise ProtocolError if the numbers of rows require the other protocol of the PRF than the active party starts.

    Large sets are aligned by transfers and small ones by points. With three parties or more, this party does not know
    the numbers of rows of all others, so it cannot refuse transfers.
    """
    large = work.granted is None and max(begin.rows, work.rows) >= work.min_transfer_rows
    if begin.transfers != large and (large or len(work.passives) == 1):
        started, needed = ("transfers", "points") if begin.transfers else ("points", "transfers")
        raise ProtocolError(
            f"{work.active} started an alignment by {started}, but these numbers of rows need {needed}",
            "install the same version of securevfl at all parties",
            code="SVFL-PROTOCOL-VALUES",
            party=work.active,
        )


def check_size(sender: str, what: str, raw: bytes, width: int, number: int, rows: int) -> None:
    """Raise ProtocolError unless chunk `number` of a list has the right size.

    Args:
        sender: the party that sent the chunk.
        what: a word for the items in the error message.
        raw: the bytes of the chunk.
        width: the number of bytes of an item.
        number: the number of the chunk.
        rows: the number of items of the list.
    """
    expected = chunk_rows(rows, number) * width
    if len(raw) != expected:
        raise ProtocolError(
            f"{sender} sent chunk {number} of {what} with {len(raw)} bytes instead of {expected}",
            code="SVFL-PROTOCOL-SIZE",
            party=sender,
        )


def check_ascending(sender: str, what: str, raw: bytes, width: int, previous: bytes) -> bytes:
    """Return the last item of `width` bytes. Raise ProtocolError unless all items ascend and are above `previous`."""
    items = np.frombuffer(raw, f"S{width}")
    if (previous and not raw[:width] > previous) or not (items[:-1] < items[1:]).all():
        raise not_ascending(sender, what)
    return raw[-width:]


def check_ascending_blocks(sender: str, what: str, blocks: Words) -> None:
    """Raise ProtocolError unless blocks of 16 bytes, as words (n, 2), are distinct and in ascending order."""
    (first, second), (after, last) = blocks[:-1].T, blocks[1:].T
    if not ((first < after) | (first == after) & (second < last)).all():
        raise not_ascending(sender, what)


def not_ascending(sender: str, what: str) -> ProtocolError:
    """Return the error for items that are not in ascending order."""
    return ProtocolError(
        f"{sender} sent {what} that are not in ascending order",
        code="SVFL-PROTOCOL-VALUES",
        party=sender,
    )
