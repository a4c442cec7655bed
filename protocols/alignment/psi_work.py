"""What both flows of private alignment share: one party's points, secrets and journal, and the checks of what comes.

Lists travel in chunks of 65,536 items, so that frames stay small, work and lines overlap, and an alignment that broke
off can go on from the last whole chunk. A journal holds chunks in named streams:

    secrets         nonce, scalar, pair keys            mine    own points, blinded once
    theirs          the other's points, blinded twice   back    PRF of own ids, by points that came back
                    or corrections as they came         own     the store that asks
    chosen, pairs   seeds of transfers                  store   stores that answer, own or received
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor

import msgspec
import numpy as np
from numpy.typing import NDArray

from securevfl.crypto.curve import POINT_BYTES, Blinder, hash_ids, hash_to_group
from securevfl.crypto.masking import KeyPair
from securevfl.crypto.prg import KEY_BYTES, encode_context
from securevfl.crypto.transfers.okvs import Words, digests
from securevfl.errors import LeakageError, ProtocolError
from securevfl.runtime.channel import Channel
from securevfl.runtime.codec import Message
from securevfl.runtime.door import Entry, Leave, Telling

CHUNK = 1 << 16  # points, slots or tags in one message
TAG_BYTES = 16

Progress = Callable[[int, int], None]


class AlignmentHello(Telling, frozen=True):
    """A passive party's rows; the nonce of an alignment it can go on with, and how many chunks of 1 it has done."""

    rows: int
    saved: bytes
    done: int


class Begin(Telling, frozen=True):
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


class KeptBlinder(Blinder):
    """A blinder whose scalar may outlive the process, for this one alignment."""

    __slots__ = ()

    def __init__(self, scalar: bytes) -> None:
        self._scalar = scalar


class AlignmentWork:
    """One party at an alignment: its line, its ids, its journal.

    keys: 32 bytes for each id once it has started: the point H(x), with transfers a digest.
    """

    def __init__(
        self,
        channel: Channel,
        ids: Sequence[bytes],
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
        self.keys = b""
        self.nonce = b""
        self.transfers = False
        self.granted = granted
        self._ids: Sequence[bytes] = ids
        self.pair_keys: dict[str, bytes] = {}
        self._subject = hashlib.sha256(encode_context(self.me, active, *passives, *ids)).digest()
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
        self.nonce, self.pair_keys, self.blinder = kept.nonce, kept.pair_keys, KeptBlinder(kept.scalar)
        self.transfers = transfers
        self.keys = (hash_ids if transfers else hash_to_group)(self._ids, self.executor)
        self._ids = ()

    def _agree(self, nonce: bytes) -> dict[str, bytes]:
        pair = KeyPair()
        for peer in self.peers:
            self.channel.send(peer, PairKey(pair.public))  # 0
        domain = "alignment zero sharing"
        return {
            peer: pair.agree(
                self.channel.recv(peer, PairKey).public, session=nonce.hex(), own=self.me, peer=peer, domain=domain
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

    def blinded(self) -> bytes:
        """Blind each of this party's ids with its scalar, and return the points in its own order."""
        for number, start in enumerate(range(0, len(self.keys), CHUNK * POINT_BYTES)):
            chunk = self.keys[start : start + CHUNK * POINT_BYTES]
            if number >= self.journal.count("mine"):
                self.journal.append("mine", self.blinder.blind(chunk, self.executor))
            self.did(len(chunk) // POINT_BYTES)
        return self.journal.whole("mine")

    def send_points(self, to: str, points: bytes, number: int) -> None:
        start = number * CHUNK * POINT_BYTES
        sent = points[start : start + CHUNK * POINT_BYTES]
        self.channel.send(to, Points(sent))

    def names(self, to: str, ids: int) -> Leave:
        """Enters that a party learns of so many ids whether they are common."""
        return self.channel.tell(Entry(to, "ids", ids, 1, about=(self.me,)))

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

    def digests(self, rows: bytes, key: bytes, purpose: bytes, width: int = POINT_BYTES) -> Words:
        """16 bytes a row."""
        return digests(rows, 16, key=key, purpose=purpose, width=width, executor=self.executor)

    def tags(self, values: Words) -> NDArray[np.bytes_]:
        """Hash(nonce, F(x)) of these values F(x) (n, 2), 16 bytes each."""
        return self.digests(values.astype("<u8", copy=False).tobytes(), self.nonce, b"common id", 16).view(
            f"S{TAG_BYTES}"
        )[:, 0]

    def in_shared_order(self, rows: NDArray[np.intp]) -> NDArray[np.intp]:
        """Return rows by Hash(nonce, H(x)) of their ids: the order that all parties share."""
        order = self.digests(take(self.keys, rows), self.nonce, b"row order").view(f"S{TAG_BYTES}")[:, 0]
        return rows[np.argsort(order, kind="stable")]

    def zero_share(self) -> Words:
        """s(x) for each of this party's ids; over all parties they cancel."""
        share = np.zeros((self.rows, 2), np.uint64)
        for key in self.pair_keys.values():
            share ^= self.digests(self.keys, key, b"zero share")
        return share


def fresh_scalar() -> bytes:
    return secrets.token_bytes(KEY_BYTES)


def chunks(rows: int) -> int:
    """Messages that carry this many rows."""
    return -(-rows // CHUNK)


def chunk_rows(rows: int, number: int) -> int:
    return min(CHUNK, rows - number * CHUNK)


def as_rows(raw: bytes, width: int) -> NDArray[np.uint8]:
    return np.frombuffer(raw, np.uint8).reshape(-1, width)


def take(points: bytes, rows: NDArray[np.intp]) -> bytes:
    return as_rows(points, POINT_BYTES)[rows].tobytes()


def words(raw: bytes) -> Words:
    return np.frombuffer(raw, "<u8").reshape(-1, 2).astype(np.uint64, copy=False)


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
        raise ProtocolError(f"{sender}: {what} in ascending order were expected, as their order could show rows")
    return raw[-width:]
