"""Repeated look-up of ids at a server: the client learns which of its ids are in the server's table.

Client A has ids X that change with every request, and server B has a table with ids Y. They evaluate an oblivious
pseudorandom function (PRF) F: B has its key, and A obtains F on its ids, while B does not learn these ids (Jarecki,
Kiayias, Krawczyk 2014). H hashes an id to a point of an elliptic curve. b is a secret scalar that B draws for this
client and table, and uses as long as its process runs. F(x) is a digest of x and the point b * H(x). It has two halves
of 16 bytes: the "tag" and the "proof".

once per session
0. B -> A     the tags of F(y) for all y in Y, sorted

for each request
1. A -> B     a * H(x) for all x in X; a is a secret scalar, new for each request
2. B -> A     b * (a * H(x)), in the same order
   A          divides by a, computes F(x), and looks for its tags in the list of step 0
3. A -> B     the proofs of the common ids, sorted

Comments refer to these steps by number. B sees uniform points, and learns which of its ids are common. A sees digests
under a key that it does not have, and learns for each id that it asks about whether B has it. A proof shows that F was
evaluated at that id. So A cannot name a row that it has not asked about, and not more rows than the number of points
that B has granted it. B computes F for its table once (0.1 ms per row), and not for every request.

Both parties order the common rows by their proofs, as in step 3.
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

_HALF_BYTES = 16
_TAGS_PER_MESSAGE = 1 << 20
_MAX_TAGS = 1 << 31


class TableTags(Message, frozen=True):
    """Tags of the table in ascending order (step 0); `remaining` more tags follow in further messages."""

    tags: bytes
    remaining: int


class QueryPoints(Message, frozen=True):
    """The client's blinded ids a * H(x) (step 1): points of 32 bytes each."""

    points: bytes


class EvaluatedPoints(DisclosingMessage, frozen=True):
    """The client's points, multiplied by the server's scalar b, in the client's order (step 2)."""

    points: bytes


class NamedRows(DisclosingMessage, frozen=True):
    """The proofs of the ids that both have, in ascending order (step 3)."""

    proofs: bytes


def declares() -> list[MessageDeclaration]:
    """Declare sender, receiver and disclosure of each message. The client is the active party."""
    common = Reveal("output", "which of the receiver's ids both have")
    return [
        MessageDeclaration(TableTags, "passive", "active", Reveal("ciphertext", "passive"), structured=True),
        MessageDeclaration(QueryPoints, "active", "passive", Reveal("ciphertext", "active"), structured=True),
        MessageDeclaration(EvaluatedPoints, "passive", "active", common, structured=True),
        MessageDeclaration(NamedRows, "active", "passive", common, structured=True),
    ]


class TableServer:
    """Server B: it answers one client's requests about the ids of a table.

    Args:
        ids: the ids, all different. An invalid or repeated id raises IdError.
        executor: runs curve operations.
    """

    def __init__(self, ids: Sequence[object], executor: Executor | None = None) -> None:
        canonical = canonical_ids(ids)
        self._key = Blinder()
        points = self._key.blind(hash_to_group(canonical, executor), executor)
        tags = _tags(canonical, points)
        self._first = np.sort(tags[:, 0])
        self._rows = {proof: row for row, proof in enumerate(tags[:, 1].tolist())}

    def open(self, channel: Channel, asker: str) -> None:
        """Start a session: send the tags of the table to the client (step 0)."""
        for start in range(0, len(self._first), _TAGS_PER_MESSAGE):
            chunk = self._first[start : start + _TAGS_PER_MESSAGE]
            channel.send(asker, TableTags(chunk.tobytes(), len(self._first) - start - len(chunk)))  # step 0

    def answer(self, channel: Channel, asker: str, granted: int, executor: Executor | None = None) -> NDArray[np.intp]:
        """Answer one request of the client: compute which of its ids are in the table.

        Args:
            channel: this party's channel.
            asker: name of the client.
            granted: the number of ids that the request must ask about, as agreed by both parties.
            executor: runs curve operations.

        Returns:
            Indices (m,) of the m common rows in the table, in the order that both parties use.

        Raises:
            LeakageError: if the request is about another number of ids; nothing is disclosed then.
            ProtocolError: if the client sends proofs of ids that it has not asked about.
        """
        points = channel.recv(asker, QueryPoints).points  # step 1
        if len(points) != granted * POINT_BYTES:
            raise LeakageError(
                f"{channel.me} has granted {asker} a request about {granted:,} ids, but received {len(points)} bytes "
                f"instead of {granted * POINT_BYTES}; nothing was disclosed",
                "send the request again",
                code="SVFL-PROTOCOL-LIMIT",
                party=asker,
            )
        permit = channel.permit(DisclosureRecord(asker, "ids", granted, 1, about=(channel.me,)))
        channel.send(asker, EvaluatedPoints(self._key.blind(points, executor)), permit=permit)  # step 2
        proofs = channel.recv(asker, NamedRows).proofs  # step 3
        named = [proofs[start : start + _HALF_BYTES] for start in range(0, len(proofs), _HALF_BYTES)]
        if len(named) > granted or named != sorted(set(named)) or not all(proof in self._rows for proof in named):
            raise ProtocolError(
                f"{asker} sent proofs that do not belong to common ids, or sent them in another order",
                code="SVFL-PROTOCOL-CHEATING",
                party=asker,
            )
        return np.array([self._rows[proof] for proof in named], np.intp)


class TableClient:
    """Client A: it asks the server which of its ids are in the table. The constructor receives the tags (step 0).

    Args:
        channel: this party's channel.
        server: name of the server.
    """

    def __init__(self, channel: Channel, server: str) -> None:
        self._channel, self._server = channel, server
        parts, remaining = list[bytes](), -1  # the first message states the length of the list
        while remaining:
            message = channel.recv(server, TableTags)  # step 0
            expected = message.remaining if remaining < 0 else remaining - len(message.tags) // _HALF_BYTES
            valid = 0 <= message.remaining == expected < _MAX_TAGS
            if len(message.tags) % _HALF_BYTES or not message.tags or not valid:
                raise ProtocolError(
                    f"{server} sent an invalid list of digests of ids", code="SVFL-PROTOCOL-VALUES", party=server
                )
            parts.append(message.tags)
            remaining = message.remaining
        words = np.frombuffer(b"".join(parts), ">u8").astype(np.uint64).reshape(-1, 2)
        self._known = np.ascontiguousarray(words[:, 0]), np.ascontiguousarray(words[:, 1])

    def ask(self, ids: Sequence[object], executor: Executor | None = None) -> NDArray[np.intp]:
        """Ask the server which of these ids are in its table.

        Args:
            ids: the ids, all different.
            executor: runs curve operations.

        Returns:
            Indices (m,) of the m common ids, in the order that both parties use.

        Raises:
            ProtocolError: if the server answers with another number of points.
        """
        canonical, blinder, channel = canonical_ids(ids), Blinder(), self._channel
        channel.send(self._server, QueryPoints(blinder.blind(hash_to_group(canonical, executor), executor)))  # step 1
        points = channel.recv(self._server, EvaluatedPoints).points  # step 2
        if len(points) != len(canonical) * POINT_BYTES:
            raise ProtocolError(
                f"{self._server} answered a request about {len(canonical):,} ids with {len(points)} bytes",
                code="SVFL-PROTOCOL-SIZE",
                party=self._server,
            )
        tags = _tags(canonical, blinder.unblind(points, executor))
        high, low = np.ascontiguousarray(tags[:, 0]).view(">u8").astype(np.uint64).reshape(-1, 2).T
        index = np.minimum(np.searchsorted(self._known[0], high), len(self._known[0]) - 1)
        common = np.flatnonzero((self._known[0][index] == high) & (self._known[1][index] == low))
        order = common[np.argsort(tags[common, 1], kind="stable")]
        permit = channel.permit(DisclosureRecord(self._server, "ids", len(ids), 1, about=(channel.me,)))
        channel.send(self._server, NamedRows(tags[order, 1].tobytes()), permit=permit)  # step 3
        return order


def _tags(canonical: Sequence[bytes], points: bytes) -> NDArray[np.void]:
    """Return tag and proof (n, 2) of F(x) for n ids x and their points b * H(x), which have 32 bytes each."""
    digests = b"".join(
        hashlib.blake2b(
            points[k * POINT_BYTES : (k + 1) * POINT_BYTES] + identifier,
            digest_size=2 * _HALF_BYTES,
            person=b"standing",
        ).digest()
        for k, identifier in enumerate(canonical)
    )
    return np.frombuffer(digests, f"V{_HALF_BYTES}").reshape(-1, 2)
