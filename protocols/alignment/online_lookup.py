"""Which of some ids a standing party has, asked as often as one likes: an oblivious function of each id, by points.

A asks, B stands with a table. H hashes an id to the curve, b is a scalar that B draws for A and this table as long as
its process lasts, a one of A's for each question (Jarecki, Kiayias, Krawczyk 2014). F(x) is a digest of x and b H(x),
of two halves.

once, and for each conversation
0. B -> A     sort(first half of F(y)) for y in Y

for each question
1. A -> B     a H(x) for x in X
2. B -> A     b (a H(x)), in the same order
   A          takes a off, and finds the first halves of F(x) in 0
3. A -> B     the second halves of those that it has found, sorted

B sees points that are uniform, then which of its own ids are common. A sees digests under a key that it does not have;
of an id that it asks about it learns whether B has it. A second half shows that F was evaluated at that id, so A marks
no row that it has not asked about, and none at all beyond the points that it was granted: B needs to trust no count.
What B works out for its table, 0.1 ms a row, it works out once and not for every question.

The order of 3 is the order of the common rows, at both.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from concurrent.futures import Executor

import numpy as np
from numpy.typing import NDArray

from securevfl.crypto.curve import POINT_BYTES, Blinder, hash_to_group
from securevfl.crypto.identifiers import canonical_ids
from securevfl.errors import LeakageError, ProtocolError
from securevfl.protocols.declarations import MessageDeclaration, Reveal
from securevfl.runtime.channel import Channel
from securevfl.runtime.codec import Message
from securevfl.runtime.disclosure_gate import DisclosingMessage, DisclosureRecord

_HALF = 16  # bytes
_CHUNK = 1 << 20  # tags a message


class TableTags(Message, frozen=True):
    """First halves, ascending; `rest` more come in further messages."""

    tags: bytes
    rest: int


class QueryPoints(Message, frozen=True):
    """The message with the ids asked about, each blinded."""

    points: bytes


class EvaluatedPoints(DisclosingMessage, frozen=True):
    """The receiver's points with the sender's scalar on, in the receiver's order."""

    points: bytes


class NamedRows(DisclosingMessage, frozen=True):
    """Second halves of what both have, ascending."""

    proofs: bytes


def declares() -> list[MessageDeclaration]:
    """Declare what each message of standing questions reveals."""
    both = Reveal("output", "which of the receiver's ids both have")
    return [
        MessageDeclaration(TableTags, "passive", "active", Reveal("ciphertext", "passive"), structured=True),
        MessageDeclaration(QueryPoints, "active", "passive", Reveal("ciphertext", "active"), structured=True),
        MessageDeclaration(EvaluatedPoints, "passive", "active", both, structured=True),
        MessageDeclaration(NamedRows, "active", "passive", both, structured=True),
    ]


class TableServer:
    """B's side: a table of ids, as one party may ask about it. IdError if an id cannot be one or comes twice."""

    def __init__(self, ids: Sequence[object], executor: Executor | None = None) -> None:
        """Work out the function of each id; executor: processes of this party that take the work."""
        canonical = canonical_ids(ids)
        self._key = Blinder()
        points = self._key.blind(hash_to_group(canonical, executor), executor)
        tags = _tags(canonical, points)
        self._first = np.sort(tags[:, 0])
        self._rows = {proof: row for row, proof in enumerate(tags[:, 1].tolist())}

    def open(self, channel: Channel, asker: str) -> None:
        """Let a conversation begin."""
        for start in range(0, len(self._first), _CHUNK):
            part = self._first[start : start + _CHUNK]
            channel.send(asker, TableTags(part.tobytes(), len(self._first) - start - len(part)))  # 0

    def answer(self, channel: Channel, asker: str, granted: int, executor: Executor | None = None) -> NDArray[np.intp]:
        """Answer one question about `granted` ids; return the rows (m,) that both have, in the order that both share.

        LeakageError, before anything is told, if it is about another number.
        """
        points = channel.recv(asker, QueryPoints).points  # 1
        if len(points) != granted * POINT_BYTES:
            raise LeakageError(
                f"{channel.me} has granted {asker} to ask about {granted:,} ids, points of {len(points)} bytes came; "
                "nothing of the table was told, ask anew"
            )
        permit = channel.permit(DisclosureRecord(asker, "ids", granted, 1, about=(channel.me,)))
        channel.send(asker, EvaluatedPoints(self._key.blind(points, executor)), permit=permit)  # 2
        proofs = channel.recv(asker, NamedRows).proofs  # 3
        named = [proofs[at : at + _HALF] for at in range(0, len(proofs), _HALF)]
        if len(named) > granted or named != sorted(set(named)) or not all(each in self._rows for each in named):
            raise ProtocolError(f"{asker}: proofs of ids that both have were expected, others came; use one version")
        return np.array([self._rows[each] for each in named], np.intp)


class TableClient:
    """The asking party's side of a conversation about ids."""

    def __init__(self, channel: Channel, standing: str) -> None:
        """Receive what a standing party says of its table."""
        self._channel, self._standing = channel, standing
        parts, rest = list[bytes](), 1
        while rest:
            message = channel.recv(standing, TableTags)  # 0
            if len(message.tags) % _HALF or not message.tags or not 0 <= message.rest < 1 << 40:
                raise ProtocolError(f"{standing}: tags of 16 bytes were expected, others came; use one version")
            parts.append(message.tags)
            rest = message.rest
        words = np.frombuffer(b"".join(parts), ">u8").astype(np.uint64).reshape(-1, 2)
        self._known = np.ascontiguousarray(words[:, 0]), np.ascontiguousarray(words[:, 1])

    def ask(self, ids: Sequence[object], executor: Executor | None = None) -> NDArray[np.intp]:
        """Return the rows (m,) of these ids that the other party has, in the order that both share."""
        canonical, blinder, channel = canonical_ids(ids), Blinder(), self._channel
        channel.send(self._standing, QueryPoints(blinder.blind(hash_to_group(canonical, executor), executor)))  # 1
        points = channel.recv(self._standing, EvaluatedPoints).points  # 2
        if len(points) != len(canonical) * POINT_BYTES:
            raise ProtocolError(f"{self._standing}: {len(canonical)} points were expected, others came; ask anew")
        tags = _tags(canonical, blinder.unblind(points, executor))
        high, low = np.ascontiguousarray(tags[:, 0]).view(">u8").astype(np.uint64).reshape(-1, 2).T
        place = np.minimum(np.searchsorted(self._known[0], high), len(self._known[0]) - 1)
        common = np.flatnonzero((self._known[0][place] == high) & (self._known[1][place] == low))
        order = common[np.argsort(tags[common, 1], kind="stable")]
        permit = channel.permit(DisclosureRecord(self._standing, "ids", len(ids), 1, about=(channel.me,)))
        channel.send(self._standing, NamedRows(tags[order, 1].tobytes()), permit=permit)  # 3
        return order


def _tags(canonical: Sequence[bytes], points: bytes) -> NDArray[np.void]:
    """Return F(x) of ids, from b H(x) (n x 32 bytes): both halves (n, 2)."""
    digests = b"".join(
        hashlib.blake2b(
            points[at * POINT_BYTES : (at + 1) * POINT_BYTES] + each, digest_size=2 * _HALF, person=b"standing"
        ).digest()
        for at, each in enumerate(canonical)
    )
    return np.frombuffer(digests, f"V{_HALF}").reshape(-1, 2)
