"""What both flows of private alignment share: one party's points, secrets and journal, and the checks of what comes.

Lists travel in chunks of 65,536 items, so that frames stay small, work and lines overlap, and an alignment that broke
off can go on from the last whole chunk. A journal holds chunks in named streams:

    secrets         nonce, scalar, pair keys            mine    own points, blinded once
    theirs          the other's points, blinded twice   back    PRF of own ids, by points that came back
                    or what it asks with, as it came            or what came back on it, as it came
    chosen, pairs   seeds of transfers                  own     the store that asks
    store           values or stores that answer, own or received
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable, Iterator, Sequence
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

CHUNK = 1 << 16  # points, slots or tags in one message
TAG_BYTES = 16

Progress = Callable[[int, int], None]


class AlignmentHello(DisclosingMessage, frozen=True):
    """A passive party's rows; the nonce of an alignment it can go on with, and how many chunks of 1 it has done."""

    rows: int
    saved: bytes
    done: int


class Begin(DisclosingMessage, frozen=True):
    """The active party's rows and the nonce; which flow; whether all go on, and how many chunks of 2 it has."""

    rows: int
    nonce: bytes
    transfers: bool
    resumes: bool
    first: int
    second: int


class PairKey(Message, frozen=True):
    """An X25519 public key for this alignment."""

    public: bytes


class Points(Message, frozen=True):
    """Blinded ids, ascending: up to 65,536 points of 32 bytes."""

    points: bytes


class TwiceBlinded(Message, frozen=True):
    """The receiver's points with the sender's scalar on, in the receiver's order."""

    points: bytes


class Journal:
    """What one party has worked out so far, in named streams of chunks. This one is forgotten with the process."""

    def __init__(self) -> None:
        self._streams: dict[str, list[bytes]] = {}

    def count(self, stream: str) -> int:
        """Chunks in the stream."""
        return len(self._streams.get(stream, []))

    def append(self, stream: str, chunk: bytes) -> None:
        """Add a chunk, whole or not at all."""
        self._streams.setdefault(stream, []).append(chunk)

    def chunk(self, stream: str, number: int) -> bytes:
        return self._streams[stream][number]

    def whole(self, stream: str) -> bytes:
        """All chunks of the stream in order."""
        return b"".join(self.chunk(stream, number) for number in range(self.count(stream)))

    def clear(self) -> None:
        """Forgets everything."""
        self._streams.clear()


class Secrets(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """What a party must keep to go on with an alignment, and keep to itself."""

    nonce: bytes
    transfers: bool
    subject: bytes
    scalar: bytes
    pair_keys: dict[str, bytes]

    def __repr__(self) -> str:  # msgspec would print them
        return "<Secrets, secret>"


_SECRETS = msgspec.msgpack.Decoder(Secrets)


class StoredBlinder(Blinder):
    """A blinder whose scalar may outlive the process, for this one alignment."""

    __slots__ = ()

    def __init__(self, scalar: bytes) -> None:
        self._scalar = scalar


class AlignmentWork:
    """One party at an alignment: its line, its ids, its journal.

    ids: canonical, keys (n, 2): a block for each of them (`id_keys`).
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
        """ids: canonical, all different. on_progress(points done, of). granted: how many ids the active party has been
        let ask about, where that has been agreed before; it then asks about these and no more."""
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
        self.pair_keys: dict[str, bytes] = {}
        parties = encode_context(self.me, active, *passives)
        self._subject = hashlib.sha256(parties + self.keys.tobytes()).digest()
        self._report = on_progress
        self._progress = [0, 0]

    @property
    def peers(self) -> list[str]:
        return [name for name in (self.active, *self.passives) if name != self.me]

    def stream(self, kind: str, passive: str) -> str:
        """Name the journal's stream of what this passive party sends."""
        return f"{kind}-{self.passives.index(passive)}"

    def saved(self) -> Secrets | None:
        """Return the secrets of an alignment of these very ids with these parties that broke off, if there are any."""
        if not self.journal.count("secrets"):
            return None
        try:
            kept = _SECRETS.decode(self.journal.chunk("secrets", 0))
        except msgspec.DecodeError:
            return None
        return kept if kept.subject == self._subject else None

    def start(self, nonce: bytes, *, transfers: bool, resumes: bool) -> None:
        """Take up the kept secrets, or make and keep new ones. With three parties or more: step 0, pair keys."""
        kept = self.saved() if resumes else None
        if kept is None:
            self.journal.clear()
            keys = self._agree(nonce) if len(self.passives) > 1 else {}
            kept = Secrets(nonce, transfers, self._subject, fresh_scalar(), keys)
            self.journal.append("secrets", msgspec.msgpack.encode(kept))
        self.nonce, self.pair_keys, self.blinder = kept.nonce, kept.pair_keys, StoredBlinder(kept.scalar)
        self.transfers = transfers

    def _agree(self, nonce: bytes) -> dict[str, bytes]:
        pair = KeyPair()
        for peer in self.peers:
            self.channel.send(peer, PairKey(pair.public))  # 0
        domain = "alignment zero sharing"
        return {
            peer: pair.agree(
                self.channel.recv(peer, PairKey).public, session=nonce.hex(), party=self.me, peer=peer, domain=domain
            )  # 0
            for peer in self.peers
        }

    def expect(self, points: int) -> None:
        """How many products this party will make, for progress."""
        self._progress = [0, points]

    def did(self, points: int) -> None:
        self._progress[0] += points
        if self._report is not None:
            self._report(*self._progress)

    def blinded(self, points: bytes) -> bytes:
        """Blind each of this party's points with its scalar, and return them in its own order."""
        for number, start in enumerate(range(0, len(points), CHUNK * POINT_BYTES)):
            chunk = points[start : start + CHUNK * POINT_BYTES]
            if number >= self.journal.count("mine"):
                self.journal.append("mine", self.blinder.blind(chunk, self.executor))
            self.did(len(chunk) // POINT_BYTES)
        return self.journal.whole("mine")

    def send_points(self, to: str, points: bytes, number: int) -> None:
        start = number * CHUNK * POINT_BYTES
        sent = points[start : start + CHUNK * POINT_BYTES]
        self.channel.send(to, Points(sent))

    def names(self, to: str, ids: int) -> DisclosurePermit:
        """Enters that a party learns of so many ids whether they are common."""
        return self.channel.permit(DisclosureRecord(to, "ids", ids, 1, about=(self.me,)))

    def blind_theirs(self, sender: str, rows: int) -> Iterator[bytes]:
        """Receive the sender's ascending points, and yield them chunk by chunk, blinded with this party's scalar."""
        last = b""
        for number in range(chunks(rows)):
            if number >= self.journal.count("theirs"):
                points = self.channel.recv(sender, Points).points  # 1, 2
                check_size(sender, "points", points, POINT_BYTES, number, rows)
                last = check_ascending(sender, "points", points, POINT_BYTES, last)
                self.journal.append("theirs", self.blinder.blind(points, self.executor))
            self.did(chunk_rows(rows, number))
            yield self.journal.chunk("theirs", number)

    def in_shared_order(self, rows: NDArray[np.intp]) -> NDArray[np.intp]:
        """Return rows by PRF(nonce, x) of their ids: the order that all parties share."""
        return rows[rising(keyed(self.nonce, self.keys[rows]))]

    def zero_share(self) -> Words:
        """s(x) for each of this party's ids; over all parties they cancel."""
        share = np.zeros((self.rows, 2), np.uint64)
        for key in self.pair_keys.values():
            share ^= keyed(key, self.keys)
        return share


def keyed(key: bytes, blocks: Words) -> Words:
    """AES under this key (16 or 32 bytes) of each block (n, 2): a pseudorandom function while n is far below 2^64."""
    octets = np.ascontiguousarray(blocks).reshape(-1).view(np.uint8).data
    raw = Cipher(algorithms.AES(key), modes.ECB()).encryptor().update(octets)  # noqa: S305
    return np.frombuffer(raw, np.uint64).reshape(-1, 2)


def rising(blocks: Words) -> NDArray[np.intp]:
    """Return the places (n,) of blocks (n, 2) in rising order, the first word before the second."""
    order: NDArray[np.intp] = np.argsort(np.ascontiguousarray(blocks[:, 0]))
    (first, second), (after, last) = blocks[order[:-1]].T, blocks[order[1:]].T
    if ((first == after) & (second > last)).any():
        order = np.lexsort((blocks[:, 1], blocks[:, 0]))
    return order


def met(own: Words, others: Words) -> NDArray[np.intp]:
    """Return the rows of `own` (n, 2) that are among `others` (m, 2) too; within each all are different."""
    both = np.concatenate([own, others])
    order = rising(both)
    both = both[order]
    equal = np.flatnonzero((both[1:] == both[:-1]).all(axis=1))
    return np.sort(np.minimum(order[equal], order[equal + 1]))


def fresh_scalar() -> bytes:
    return secrets.token_bytes(SYMMETRIC_KEY_BYTES)


def chunks(rows: int) -> int:
    """Messages that carry this many rows."""
    return -(-rows // CHUNK)


def chunk_rows(rows: int, number: int) -> int:
    return min(CHUNK, rows - number * CHUNK)


def words(raw: bytes, width: int = 2) -> Words:
    """Read rows (n, width) of words."""
    return np.frombuffer(raw, np.uint64).reshape(-1, width)


def check_count(sender: str, what: str, count: int, low: int, high: int) -> None:
    """ProtocolError unless low <= count <= high."""
    if not low <= count <= high:
        raise ProtocolError(f"{sender}: {low} to {high} {what} were expected, {count} came; start all parties again")


def check_granted(work: AlignmentWork, begin: Begin) -> None:
    """LeakageError if the active party begins to ask about other than the ids that it was granted.

    It asks by points then, one an id: a store of transfers may hold more ids than the rows that it is said to have.
    """
    if work.granted is not None and (begin.rows != work.granted or begin.transfers):
        flow = " by transfers" if begin.transfers else ""
        raise LeakageError(
            f"{work.me} has granted {work.active} to ask about {work.granted:,} ids by points, it begins to ask about "
            f"{begin.rows:,}{flow}; nothing of the table was told, ask anew"
        )


def check_size(sender: str, what: str, raw: bytes, width: int, number: int, rows: int) -> None:
    """ProtocolError unless chunk `number` of `rows` items has its size."""
    expected = chunk_rows(rows, number) * width
    if len(raw) != expected:
        raise ProtocolError(
            f"{sender}: chunk {number} of {what} was expected to have {expected} bytes, {len(raw)} came; "
            "do both run the same version?"
        )


def check_ascending(sender: str, what: str, raw: bytes, width: int, last: bytes) -> bytes:
    """ProtocolError unless the items ascend and all are above `last`; returns the last one."""
    items = np.frombuffer(raw, f"S{width}")
    if (last and not raw[:width] > last) or not (items[:-1] < items[1:]).all():
        raise not_ascending(sender, what)
    return raw[-width:]


def check_rising(sender: str, what: str, blocks: Words) -> None:
    """ProtocolError unless blocks (n, 2) are in rising order and all different."""
    (first, second), (after, last) = blocks[:-1].T, blocks[1:].T
    if not ((first < after) | (first == after) & (second < last)).all():
        raise not_ascending(sender, what)


def not_ascending(sender: str, what: str) -> ProtocolError:
    return ProtocolError(f"{sender}: {what} in ascending order were expected, as their order could show rows")
