"""A live endpoint in a separate process that receives altered bytes, from its authenticated peer and from strangers.

A mutant is an altered message. The endpoint is a party's real `SecureTransport`: mutual TLS 1.3, offers of a session, a
signed session, then frames (encoded messages). Its peer agrees on the session as usual and gives its connection to the
fuzzer, which then sends mutants as the peer. Kinds of mutants:

    handshake   a ClientHello, altered or random, from a client without a certificate; TLS is never established
    record      a valid message of the peer, with one TLS record altered on its way
    http2       the peer's bytes altered before they are encrypted
    line        altered messages of the line, the connection of two parties
    letter      altered packets (session offers, proofs and aborts) in valid messages of the line
    frame       altered frames in valid messages of the line

After every third mutant a valid frame must arrive. A mutant of the last four kinds may happen to be a well-formed
message. Then it passes, or ends the session, because the peer might have sent it. The fields of a row are: sent,
refused and passed mutants; ended sessions; altered (mutants that were accepted although they were altered on the way or
sent by a stranger); good and lost frames; crashed; grown_bytes (growth of the endpoint's memory after the first tenth);
seconds. After a session has ended, a new one begins, for which the endpoint needs about 25 kB.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import random
import socket
import ssl
import struct
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from securevfl.errors import SecureVFLError
from securevfl.job import Job
from securevfl.organisations.kit import init_certs, write_kit
from securevfl.protocols.sums.direct_sum import Summand
from securevfl.runtime.abort import Abort
from securevfl.runtime.codec import FRAME_FORMAT, SESSION_BYTES, decode_message, encode_frame, encode_message
from securevfl.transport.acceptor import STREAM_METHOD
from securevfl.transport.certificate_names import server_name
from securevfl.transport.grpc_tls13 import grpc
from securevfl.transport.line_messages import Acknowledge, CloseLine, OpenStream, PacketPiece, RefuseStream
from securevfl.transport.packets import EncryptedPacket, SessionOffer, SessionProof
from securevfl.transport.peers import Peers
from securevfl.transport.secure_transport import SecureTransport
from securevfl.transport.tls import Credentials

VALID_SUMMAND = Summand(np.arange(6.0).reshape(3, 2))
FUZZED_KINDS = ("handshake", "record", "http2", "line", "letter", "frame")
TERMS = {"task": "fuzz"}
LETTERS = (
    SessionOffer(FRAME_FORMAT, bytes(32), '{"task": "fuzz"}', False),
    SessionProof(bytes(SESSION_BYTES), bytes(300), bytes(64)),
    EncryptedPacket("shop", "bank", bytes(100)),
    Abort("enough"),
)
SILENCE = 0.2  # seconds to wait for an endpoint that expects more bytes


Mutate = Callable[[bytes, random.Random], bytes]


class State(NamedTuple):
    """The state that the endpoint reports, with the numbers of intact and altered frames since the last report."""

    packet: int
    seq: int
    over: bool
    intact: int
    altered: int
    crashed: int
    resident: int


def resident() -> int:
    """Return the resident memory of this process in bytes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def serve(kit: Path, pipe: Any) -> None:
    """Run the endpoint: it answers "state" and starts a new session at "anew", until it is stopped."""
    crashes: list[object] = []
    threading.excepthook = crashes.append
    handler = logging.Handler(logging.ERROR)
    handler.addFilter(lambda record: "Invalid encoding" not in record.msg)  # a header's name in invalid UTF-8, ignored
    handler.emit = crashes.append  # type: ignore[method-assign]
    logging.getLogger("grpc").addHandler(handler)
    peers, credentials = Peers.load(kit / "peers.toml"), Credentials(kit, "bank")
    good = encode_message(VALID_SUMMAND)
    post = inbox = None
    while (word := pipe.recv()) != "end":
        if word == "anew":
            if post is not None:
                post.abandon()
            post = SecureTransport(credentials, peers, TERMS, patience=3600)
            inbox = post.open(60)
        assert post is not None
        assert inbox is not None
        line = post._endpoint.lines["shop"]
        counts = [0, 0]
        with inbox._changed:
            for queue in inbox._queues.values():
                while queue:
                    frame = queue.popleft().frame
                    with suppress(SecureVFLError):
                        decode_message(Summand, frame.payload)
                        counts[bytes(frame.payload) != good] += 1
            seq = inbox._next.get(("shop", ""), 0)
        odd = line.failure is not None and "cannot take" in str(line.failure)
        over = line.finished or inbox._failure is not None
        pipe.send(State(line.expected, seq, over, *counts, len(crashes) + odd, resident()))
    assert post is not None
    post.abandon()


class Peer:
    """The shop, whose connection the fuzzer uses."""

    def __init__(self, kit: Path, pipe: Any) -> None:
        self._pipe = pipe
        self._peers, self.credentials = Peers.load(kit / "peers.toml"), Credentials(kit, "shop")
        host, _, port = self._peers.address["bank"].rpartition(":")
        self.address = host, int(port)
        options = [("grpc.ssl_target_name_override", server_name("bank"))]
        self._channel = grpc.secure_channel(f"{host}:{port}", self.credentials.identity.channel_credentials(), options)
        self.anew()

    def anew(self) -> State:
        """Start a new session and connection."""
        self._pipe.send("anew")
        post = SecureTransport(self.credentials, self._peers, TERMS, patience=60)
        self.session = post.open(60).session
        line = post._endpoint.lines["bank"]
        with line.changed:
            line.changed.wait_for(lambda: not line.out, 5)
            self.open = OpenStream(line.start, line.peer_start, line.expected)
        post.abandon()
        state: State = self._pipe.recv()
        while self.state().seq or self.state().packet < 2:
            time.sleep(0.01)
        return state

    def state(self) -> State:
        """Return the state of the endpoint."""
        self._pipe.send("state")
        state: State = self._pipe.recv()
        return state

    def frame(self, state: State) -> bytes:
        """Return the next good frame."""
        return encode_frame(VALID_SUMMAND, session=self.session, sender="shop", receiver="bank", seq=state.seq)

    def packet(self, state: State, full: bytes | None = None) -> bytes:
        """Return a message of the transport with the next packet, by default with a good frame."""
        full = self.frame(state) if full is None else full
        return encode_message(PacketPiece(state.packet, False, self.open.expected, full))

    def says(self, *messages: bytes) -> None:
        """Send these messages on one stream; return when the endpoint has ended it or confirmed one."""
        call = self._channel.stream_stream(STREAM_METHOD)(iter(messages), timeout=10)
        with suppress(grpc.RpcError):
            for _ in call:
                pass

    def bytes_of(self, state: State) -> bytes:
        """Return the bytes of a valid packet as HTTP/2, from the start of the connection to the end of the stream."""

        def header(name: bytes, value: bytes) -> bytes:
            return b"\0" + bytes([len(name)]) + name + bytes([len(value)]) + value

        def block(kind: int, flags: int, stream: int, body: bytes) -> bytes:
            return struct.pack(">I", len(body))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + body

        headers = (
            b"\x83\x87\x04"
            + bytes([len(STREAM_METHOD)])
            + STREAM_METHOD.encode()
            + header(b":authority", b"bank")
            + header(b"content-type", b"application/grpc")
            + header(b"te", b"trailers")
        )
        messages = [encode_message(self.open), self.packet(state)]
        body = b"".join(b"\0" + struct.pack(">I", len(message)) + message for message in messages)
        return (
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + block(4, 0, 0, b"") + block(1, 4, 1, headers) + block(0, 1, 1, body)
        )

    def dial(self, plain: bytes, tamper: Callable[[bytes], bytes] | None) -> None:
        """Connect, send these bytes after the handshake, and return the answer up to the end or a silence."""
        context, inward, outward = self.credentials.context(), ssl.MemoryBIO(), ssl.MemoryBIO()
        tls = context.wrap_bio(inward, outward, server_hostname=server_name("bank"))
        with socket.create_connection(self.address, 5) as line, suppress(OSError, ssl.SSLError):
            line.settimeout(5)
            while True:
                try:
                    tls.do_handshake()
                    break
                except ssl.SSLWantReadError:
                    line.sendall(outward.read())
                    inward.write(line.recv(65536))
            tls.write(plain)
            sealed = outward.read()
            line.settimeout(SILENCE)
            line.sendall(sealed if tamper is None else tamper(sealed))
            answer = b""
            while not _ended(answer) and (data := line.recv(65536)):
                inward.write(data)
                with suppress(ssl.SSLWantReadError):
                    while part := tls.read(65536):
                        answer += part


def _ended(answer: bytes) -> bool:
    """Return whether these HTTP/2 frames end a stream or the connection."""
    while len(answer) >= 9:
        size, kind, flags = int.from_bytes(answer[:3], "big"), answer[3], answer[4]
        if kind in (3, 7) or (kind == 1 and flags & 1):
            return True
        answer = answer[9 + size :]
    return False


def attempt(kind: str, peer: Peer, state: State, mutate: Mutate, draw: random.Random) -> None:
    """Send one mutant."""
    opened = encode_message(peer.open)
    match kind:
        case "handshake":
            outward = ssl.MemoryBIO()
            tls = ssl.create_default_context().wrap_bio(ssl.MemoryBIO(), outward, server_hostname="bank")
            with suppress(ssl.SSLWantReadError):
                tls.do_handshake()
            hello = outward.read()
            data = mutate(hello, draw) if draw.random() < 0.7 else draw.randbytes(draw.randint(1, 400))
            with socket.create_connection(peer.address, 5) as line, suppress(OSError):
                line.settimeout(5)
                line.sendall(data)
                line.shutdown(socket.SHUT_WR)
                while line.recv(65536):
                    pass
        case "record":

            def flip(sealed: bytes) -> bytes:
                data, at = bytearray(sealed), draw.randrange(len(sealed))
                data[at] ^= 1 << draw.randrange(8)
                return bytes(data)

            peer.dial(peer.bytes_of(state), flip)
        case "http2":
            peer.dial(mutate(peer.bytes_of(state), draw), lambda sealed: sealed)
        case "line":
            kinds = [peer.packet(state), encode_message(Acknowledge(peer.open.expected))]
            rare = [opened, encode_message(CloseLine(peer.open.expected)), encode_message(RefuseStream("no", False))]
            data = mutate(draw.choice(rare if draw.random() < 0.1 else kinds), draw)
            peer.says(*([data] if draw.random() < 0.1 else [opened, data]))
        case "letter":
            letter = draw.choice(LETTERS)
            peer.says(opened, peer.packet(state, mutate(encode_message(letter), draw)))
        case "frame":
            peer.says(opened, peer.packet(state, mutate(peer.frame(state), draw)))


def live(count: int, mutate: Mutate, seed: int) -> list[dict[str, str | int | float]]:
    """Send `count` mutants of every kind to one endpoint; return a row for each kind."""
    os.environ["GRPC_VERBOSITY"] = "NONE"  # one connection for each altered record, otherwise
    with tempfile.TemporaryDirectory() as place, socket.socket() as probe:
        folder = Path(place)
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
        probe.close()
        peers = Peers(active="bank", passives=("shop",), address={"bank": f"127.0.0.1:{port}"})
        init_certs(folder / "authority", peers)
        job = Job.from_dict(
            {
                "model": {"name": "logistic"},
                "optimizer": {"name": "fedbcd", "lr": 0.1},
                "protocol": {"residual": "open"},
            }
        )
        for name in peers.parties:
            write_kit(folder / name, name, job, peers, folder / "authority")
        pipe, other = multiprocessing.Pipe()
        process = multiprocessing.get_context("spawn").Process(target=serve, args=(folder / "bank", other), daemon=True)
        process.start()
        peer = Peer(folder / "shop", pipe)
        try:
            return [_kind(kind, peer, count, mutate, random.Random(f"{seed} {kind}")) for kind in FUZZED_KINDS]
        finally:
            pipe.send("end")
            process.join(10)


def _kind(kind: str, peer: Peer, count: int, mutate: Mutate, draw: random.Random) -> dict[str, str | int | float]:
    row: dict[str, str | int | float] = {"kind": kind}
    row |= dict.fromkeys(("sent", "refused", "passed", "ended", "altered", "good", "lost"), 0)

    def add(name: str, more: int = 1) -> None:
        row[name] = int(row[name]) + more

    started, first = time.perf_counter(), peer.state()
    early = first.resident
    for k in range(count):
        state = peer.state()
        if state.over:
            add("ended")
            state = peer.anew()
        attempt(kind, peer, state, mutate, draw)
        after = peer.state()
        add("sent")
        add("passed" if kind not in ("handshake", "record") else "altered", after.altered)
        add("passed", after.intact)  # the two changes of the mutant cancelled out
        add("refused", int(not after.over and not after.altered and not after.intact))
        if after.over:
            add("ended")
            peer.anew()
        if k % 3 == 2 or k == count - 1:
            before = peer.state()
            if kind in ("record", "http2"):
                peer.dial(peer.bytes_of(before), None)
            else:
                peer.says(encode_message(peer.open), peer.packet(before))
            deadline = time.monotonic() + 2
            while (arrived := peer.state()).intact == 0 and time.monotonic() < deadline:
                time.sleep(0.001)
            add("good")
            add("lost", int(arrived.intact == 0))
        if k == count // 10:
            early = peer.state().resident
    last = peer.state()
    row["crashed"] = last.crashed - first.crashed
    row["grown_bytes"] = last.resident - early
    row["seconds"] = round(time.perf_counter() - started, 1)
    return row
