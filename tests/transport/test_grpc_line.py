"""Lines (connections of two parties) in memory that are cut anywhere, and a live
endpoint with messages to be refused.
"""

import contextlib
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial
from itertools import takewhile
from queue import Queue
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from securevfl.errors import FrameError, PeerLost, SecureVFLError, TransportError
from securevfl.runtime.codec import decode_message, encode_frame, encode_message
from securevfl.runtime.inbox import Inbox
from securevfl.transport.acceptor import STREAM_METHOD, Acceptor
from securevfl.transport.certificate_names import server_name
from securevfl.transport.endpoint import Endpoint
from securevfl.transport.grpc_tls13 import grpc
from securevfl.transport.line import MAX_REFUSALS, MAX_UNCONFIRMED_BYTES, SENDER_WAITS_BYTES, Line
from securevfl.transport.line_messages import Acknowledge, CloseLine, OpenStream, PacketPiece, RefuseStream
from securevfl.transport.stream import Stream
from securevfl.transport.tls import Credentials
from tests.builders import raises_code


class Ends:
    """Two ends of a link and the messages that each received."""

    def __init__(self, **options: Any) -> None:
        self.got: dict[str, list[bytes]] = {"a": [], "b": []}
        self.failures: list[SecureVFLError] = []
        options = {"patience": 60.0} | options
        self.a = Line("a", "b", self.got["a"].append, self.failures.append, start=b"a" * 16, **options)
        self.b = Line("b", "a", self.got["b"].append, self.failures.append, start=b"b" * 16, **options)

    def stream(
        self, a_to_b: int | None = None, b_to_a: int | None = None
    ) -> tuple[Stream, Stream, list[threading.Thread]]:
        """Connect the two, and disconnect after the given number of messages in one direction."""
        streams = self.a.begin(calling=True), self.b.begin(calling=False)
        pipes: tuple[Queue[bytes | None], Queue[bytes | None]] = (Queue(), Queue())

        def cut() -> None:
            for stream in streams:
                stream.end("cut")
            for pipe in pipes:
                pipe.put(None)

        def pump(stream: Stream, pipe: "Queue[bytes | None]", limit: int | None) -> None:
            for count, message in enumerate(stream.outgoing()):
                if count == limit:
                    break
                pipe.put(message)
            pipe.put(None)
            if limit is not None:
                cut()

        def read(stream: Stream, pipe: "Queue[bytes | None]") -> None:
            stream.read(iter(pipe.get, None))
            stream.end("read to the end")

        jobs = [
            threading.Thread(target=pump, args=(streams[0], pipes[0], a_to_b)),
            threading.Thread(target=pump, args=(streams[1], pipes[1], b_to_a)),
            threading.Thread(target=read, args=(streams[1], pipes[0])),
            threading.Thread(target=read, args=(streams[0], pipes[1])),
        ]
        if (a_to_b, b_to_a) != (None, None):
            jobs.append(threading.Timer(0.03, cut))  # this number of messages may never arrive
        for job in jobs:
            job.start()
        return (*streams, jobs)

    def meet(self, cause: str) -> None:
        """Connect the two until each has opened, then disconnect."""
        stream, _, jobs = self.stream()
        for line in (self.a, self.b):
            with line.changed:
                assert line.changed.wait_for(lambda line=line: line.opened, 30)
        stream.end(cause)
        for job in jobs:
            job.join(240)
            assert not job.is_alive()


def test_both_ways_and_goodbye() -> None:
    ends = Ends()
    sent = [bytes([k]) * (k * 7) for k in range(40)]
    for packet in sent:
        ends.a.send(packet)
        ends.b.send(packet[::-1])
    *_, jobs = ends.stream()
    closing = threading.Thread(target=ends.b.close, args=(60,))
    closing.start()
    assert ends.a.close(60)
    for job in [*jobs, closing]:
        job.join(240)
        assert not job.is_alive()
    assert ends.got == {"a": [packet[::-1] for packet in sent], "b": sent}
    with raises_code(TransportError, "SVFL-PEER-AWAY"):
        ends.a.send(b"late")


@settings(max_examples=40)
@given(
    cuts=st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=6),
    sizes=st.lists(st.integers(0, 70), min_size=1, max_size=25),
)
def test_cuts_lose_and_double_nothing(cuts: list[tuple[int, int]], sizes: list[int]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("securevfl.transport.stream.MAX_PIECE_BYTES", 16)
        patch.setattr("securevfl.transport.stream._CONFIRM_AFTER", 0.001)
        ends = Ends()
        sent = [bytes([k]) * size for k, size in enumerate(sizes)]
        for packet in sent:
            ends.a.send(packet)
            ends.b.send(packet[::-1])
        jobs = [job for limits in cuts for job in ends.stream(*limits)[2] if not job.join(240)]
        *_, last = ends.stream()
        closing = threading.Thread(target=ends.b.close, args=(60,))
        closing.start()
        assert ends.a.close(60)
        for job in [*jobs, *last, closing]:
            job.join(240)
            assert not job.is_alive()
        assert ends.got == {"a": [packet[::-1] for packet in sent], "b": sent}
        assert ends.failures == []


def test_a_line_fails_after_patience_and_says_why() -> None:
    ends = Ends(patience=0.05)
    ends.meet("connection refused")
    time.sleep(0.1)
    ends.a.watch()
    assert "b has been disconnected for 0.05 s (connection refused)" in str(ends.failures[0])
    with raises_code(TransportError, "SVFL-PEER-LOST"):
        ends.a.send(b"")
    with raises_code(TransportError, "SVFL-PEER-LOST"):
        ends.a.begin(calling=True)


def test_a_neighbour_that_started_anew_is_refused() -> None:
    ends = Ends()
    ends.meet("cut")
    ends.b = Line("b", "a", print, ends.failures.append, start=b"B" * 16, patience=5)
    for job in ends.stream()[2]:
        job.join(240)
    assert any("b was restarted" in str(failure) for failure in ends.failures)


def opened(line: Line) -> Stream:
    stream = line.begin(calling=False)
    stream.read([encode_message(OpenStream(b"x" * 16, b"", 0))])
    assert not stream.ended
    return stream


STREAMS: dict[str, Callable[[Line], list[Stream]]] = {
    "begun to call": lambda line: [line.begin(calling=True)],
    "begun to be called": lambda line: [line.begin(calling=False)],
    "begun twice": lambda line: [line.begin(calling=False), line.begin(calling=False)],
    "open": lambda line: [opened(line)],
    "open and begun again": lambda line: [opened(line), line.begin(calling=True)],
    "begun twice and opened": lambda line: [line.begin(calling=False), line.begin(calling=False), opened(line)],
}


@pytest.mark.parametrize("abandoned_first", [False, True])
@pytest.mark.parametrize("state", STREAMS)
def test_an_abandoned_line_hangs_up_every_stream(state: str, abandoned_first: bool) -> None:
    line, hung_up = Ends().b, list[int]()
    streams = STREAMS[state](line)
    senders = [threading.Thread(target=lambda stream=stream: [*stream.outgoing()], daemon=True) for stream in streams]
    if abandoned_first:  # the line may end before the call of a stream that has begun exists
        line.abandon(PeerLost("closed", code="SVFL-PEER-LOST"))
    for number, (stream, sender) in enumerate(zip(streams, senders, strict=True)):
        stream.set_hang_up(partial(hung_up.append, number))
        sender.start()
    line.abandon(PeerLost("closed", code="SVFL-PEER-LOST"))
    for sender in senders:
        sender.join(1)
    assert [sender.is_alive() for sender in senders] == [False] * len(streams)
    assert set(hung_up) == {*range(len(streams))}
    with raises_code(PeerLost, "SVFL-PEER-LOST"):
        line.begin(calling=False)


@pytest.mark.parametrize(
    ("message", "problem"),
    [
        (PacketPiece(1, False, 0, b"x"), "sent packet 1 instead of packet 0"),
        (PacketPiece(-1, False, 0, b"x"), "sent packet -1 instead of packet 0"),
        (PacketPiece(0, True, 0, b""), "empty piece"),
        (PacketPiece(0, True, 0, b"x" * 101), "more than 100 bytes"),
        (Acknowledge(1), "confirmed packet 1"),
        (Acknowledge(-1), "confirmed packet -1"),
        (CloseLine(3), "confirmed packet 3"),
        (OpenStream(b"x" * 16, b"", 0), "OpenStream"),
    ],
)
def test_what_cannot_be_is_refused(message: Any, problem: str) -> None:
    ends = Ends(max_packet=100)
    stream = opened(ends.b)
    stream.read([encode_message(message)])
    assert stream.ended
    *_, last = stream.outgoing()
    assert problem in decode_message(RefuseStream, last).reason
    assert ends.got["b"] == []
    opened(ends.b).read([encode_message(PacketPiece(0, False, 0, b"well"))])
    assert ends.got["b"] == [b"well"]


def test_what_is_refused_again_and_again_ends_the_line() -> None:
    ends = Ends()
    for _ in range(MAX_REFUSALS):
        assert ends.failures == []
        opened(ends.b).read([b"\xc1"])
    assert isinstance(ends.failures[0], FrameError)


def pieces_of(stream: Stream) -> Iterator[PacketPiece]:
    """Yield the pieces of packets that an open stream sends."""
    messages = stream.outgoing()
    next(messages)
    for message in messages:
        yield decode_message(PacketPiece, message)


def test_carried_packets_count_towards_no_limit_of_later_ones() -> None:
    """Packets that together exceed the size of a packet arrive, and confirmed ones do not count as waiting."""
    ends = Ends(max_packet=100)
    stream = opened(ends.b)
    for number in range(5):
        for more, piece in ((True, b"x" * 50), (False, b"y" * 50)):
            stream.read([encode_message(PacketPiece(number, more, 0, piece))])
        assert not stream.ended
    assert ends.got["b"] == [b"x" * 50 + b"y" * 50] * 5

    sizes = [7, 0, 60, 1]
    for size in sizes:
        ends.a.send(bytes(size))
    sender = opened(ends.a)
    assert [len(message.piece) for _, message in zip(sizes, pieces_of(sender), strict=False)] == sizes
    for confirmed in range(len(sizes) + 1):
        sender.read([encode_message(Acknowledge(confirmed))])
        assert ends.a.unconfirmed_bytes == sum(sizes[confirmed:]) == sum(map(len, ends.a.out))


@pytest.mark.parametrize("receives", [True, False])
def test_progress_between_refusals_keeps_the_line(receives: bool) -> None:
    """Refused messages end a line only if no packet arrives and none is confirmed between them."""
    ends = Ends()
    for number in range(2 * MAX_REFUSALS):
        stream = ends.b.begin(calling=False)
        stream.read([encode_message(OpenStream(b"x" * 16, b"", 0 if receives else number))])
        if receives:
            stream.read([encode_message(PacketPiece(number, False, 0, b"well"))])
        else:
            ends.b.send(b"well")
            next(pieces_of(stream))
            stream.read([encode_message(Acknowledge(number + 1))])
        assert not stream.ended
        stream.read([b"\xc1"])
        assert stream.ended
    assert ends.failures == []


@pytest.mark.parametrize("end", ["confirmed", "failed", "closed by the peer"])
def test_a_sender_waits_for_space_from_the_limit_to_the_end(end: str) -> None:
    """A sender waits if 64 MiB are unconfirmed, not if a byte less is, and never after the end of the line."""
    line = Ends().a
    line.send(bytes(SENDER_WAITS_BYTES - 1))
    line.wait_for_space()
    line.send(b"x")
    waiting = threading.Thread(target=line.wait_for_space, daemon=True)
    waiting.start()
    waiting.join(0.02)
    assert waiting.is_alive()
    stream = opened(line)
    if end == "confirmed":
        assert sum(1 for _ in takewhile(lambda piece: not piece.number, pieces_of(stream))) == SENDER_WAITS_BYTES >> 20
        stream.read([encode_message(Acknowledge(1))])
    elif end == "failed":
        line.fail(TransportError("gone"))
    else:
        stream.read([encode_message(CloseLine(0))])
    waiting.join(60)
    assert not waiting.is_alive()


def test_a_line_fails_from_one_byte_above_its_limit_on() -> None:
    ends, packet = Ends(), bytes(SENDER_WAITS_BYTES)
    for _ in range(MAX_UNCONFIRMED_BYTES // len(packet)):
        ends.a.send(packet)
    assert ends.failures == []
    ends.a.send(b"x")
    assert [failure.code for failure in ends.failures] == ["SVFL-PEER-AWAY"]


def test_fuzzed_messages_of_the_line() -> None:
    """100,000 altered messages cause no other errors than SecureVFLError, and nothing is
    delivered that was not sent.
    """
    draw = random.Random(5)
    good = [
        encode_message(message)
        for message in (
            OpenStream(b"x" * 16, b"", 0),
            PacketPiece(0, False, 0, b"payload"),
            Acknowledge(0),
            CloseLine(0),
            RefuseStream("no", False),
        )
    ]
    ends = Ends(max_packet=1000)
    ends.b.count_refusal = lambda error: None  # type: ignore[method-assign]
    stream = opened(ends.b)
    for _ in range(100_000):
        data = bytearray(draw.choice(good))
        for _ in range(draw.randint(1, 3)):
            match draw.randrange(3):
                case 0:
                    data[draw.randrange(len(data))] = draw.randrange(256)
                case 1:
                    del data[draw.randrange(len(data)) :]
                case 2:
                    data += draw.randbytes(draw.randrange(1, 9))
            if not data:
                data = bytearray(b"\x00")
        with contextlib.suppress(SecureVFLError):
            stream._handle(bytes(data))
        if stream.ended or ends.got["b"]:
            assert all(len(packet) <= 64 for packet in ends.got["b"])
            ends.b.expected, ends.b.peer_done, ends.b.failure = 0, False, None
            ends.got["b"].clear()
            ends.b.stream = None
            stream = opened(ends.b)
        stream._pieces.clear()
        stream._size = 0


class Caller:
    """A caller with a valid certificate that sends arbitrary messages."""

    def __init__(self, meeting: Any, start: bytes = b"s" * 16) -> None:
        options = [("grpc.ssl_target_name_override", server_name("bank")), ("grpc.max_send_message_length", -1)]
        credentials = Credentials(meeting.kit("shop"), "shop").identity.channel_credentials()
        self.channel = grpc.secure_channel(meeting.peers.address["bank"], credentials, options)
        self.start = start

    def says(self, *messages: Any, known: bytes = b"", at: int = 0) -> list[Any]:
        """Open, send raw bytes or messages, hang up after the first answer; return the answers."""
        answered = threading.Event()

        def said() -> Iterator[bytes]:
            yield encode_message(OpenStream(self.start, known, at))
            yield from (message if isinstance(message, bytes) else encode_message(message) for message in messages)
            answered.wait(60)

        call = self.channel.stream_stream(STREAM_METHOD)(said(), timeout=60, wait_for_ready=True)
        decoder = msgspec.msgpack.Decoder(OpenStream | PacketPiece | Acknowledge | CloseLine | RefuseStream)
        answers = []
        with contextlib.suppress(grpc.RpcError, StopIteration):
            while True:
                answers.append(decoder.decode(next(call)))
                answered.set()
        answered.set()
        return answers


@pytest.fixture
def bank(meet: Any) -> Iterator[Any]:
    meeting = meet(2, addressed=["bank"])
    meeting.delivered = []
    meeting.failures = []
    meeting.inbox = None

    def deliver(_: str, packet: bytes) -> None:
        if packet.startswith(b"bad"):
            raise FrameError("refused by the party")
        if meeting.inbox is not None:
            meeting.inbox.deliver(packet, peer="shop")
        meeting.delivered.append(packet)

    endpoint = Endpoint(
        Credentials(meeting.kit("bank"), "bank"), meeting.peers, deliver, lambda *_: meeting.failures.append(_)
    )
    endpoint.start()
    meeting.line = endpoint.lines["shop"]
    meeting.caller = Caller(meeting)
    yield meeting
    meeting.caller.channel.close()
    endpoint.close(0)


@pytest.mark.parametrize("opens", [False, True], ids=["begun", "open"])
@pytest.mark.parametrize("end", [Endpoint.abandon, partial(Endpoint.close, timeout=0)], ids=["abandon", "close"])
def test_a_session_that_ends_leaves_no_call_behind(end: Callable[[Endpoint], None], opens: bool, meet: Any) -> None:
    """The neighbour has accepted the call, and neither sends anything afterwards nor ends the call."""
    meeting, called = meet(2, addressed=["bank"]), threading.Event()
    other = Line("bank", "shop", print, print, start=b"b" * 16, patience=60)

    def line_of(session_id: str, name: str) -> Line:
        called.set()
        return other

    address = meeting.peers.address["bank"]
    acceptor = Acceptor(Credentials(meeting.kit("bank"), "bank"), ["shop"], address, line_of, streams=2)
    endpoint = Endpoint(Credentials(meeting.kit("shop"), "shop"), meeting.peers, print, print)
    try:
        with nullcontext() if opens else other.inward:  # the neighbour opens no stream while it delivers a packet
            endpoint.start()
            assert called.wait(30)
            line = endpoint.lines["bank"]
            with line.changed:
                assert line.changed.wait_for(lambda: line.opened, 30 if opens else 0) == opens
            end(endpoint)
            deadline = time.monotonic() + 2
            while left := [thread.name for thread in threading.enumerate() if thread.name == "call bank"]:
                assert time.monotonic() < deadline, left
                time.sleep(0.01)
    finally:
        other.abandon(PeerLost("closed", code="SVFL-PEER-LOST"))
        acceptor.stop(None)


def refusals(answers: list[Any]) -> str:
    return " ".join(answer.reason for answer in answers if isinstance(answer, RefuseStream))


def test_a_live_endpoint_refuses_and_goes_on(bank: Any, caplog: pytest.LogCaptureFixture) -> None:
    says = bank.caller.says
    assert isinstance(says(PacketPiece(0, False, 0, b"first"))[0], OpenStream)
    assert "sent packet 0 instead of packet 1" in refusals(says(PacketPiece(0, False, 0, b"first")))  # replayed
    assert "sent packet 2 instead of packet 1" in refusals(says(PacketPiece(2, False, 0, b"third")))  # out of order
    assert "malformed" in refusals(says(b"\xff\xfe garbage"))
    assert "refused by the party" in refusals(says(PacketPiece(1, False, 0, b"bad")))
    says(PacketPiece(1, False, 0, b"second"))
    bank.line.max_packet = 3 << 20
    piece = b"x" * (1 << 20)
    assert "more than" in refusals(says(*[PacketPiece(2, True, 0, piece)] * 4))  # oversized in pieces
    says(PacketPiece(2, False, 0, b"x" * (3 << 20)))  # oversized in one
    unopened = bank.caller.channel.stream_stream(STREAM_METHOD)(iter([encode_message(Acknowledge(0))]), timeout=10)
    assert "before OpenStream" in decode_message(RefuseStream, next(unopened)).reason
    assert bank.delivered == [b"first", b"second"]
    assert bank.failures == []
    assert caplog.text.count('"refused"') == 6


def test_a_second_process_of_a_party_is_refused(bank: Any) -> None:
    may_end = threading.Event()

    def first() -> Iterator[bytes]:
        yield encode_message(OpenStream(b"s" * 16, b"", 0))
        may_end.wait(60)

    call = bank.caller.channel.stream_stream(STREAM_METHOD)(first())
    next(iter(call))
    other = Caller(bank, b"t" * 16)
    assert "another process of shop is connected" in refusals(other.says())
    may_end.set()
    other.channel.close()
    assert bank.failures == []


def test_no_altered_frame_is_taken(bank: Any) -> None:
    """Flip every bit of a frame's header at a live endpoint; good frames in between arrive."""
    session = bytes(range(16))
    bank.inbox = Inbox("bank", ["shop"], session)

    def frame(seq: int) -> bytes:
        return encode_frame(Acknowledge(7), session=session, sender="shop", receiver="bank", seq=seq)

    head = frame(0).index(b"\xabAcknowledge")  # after tag, format, session, sender, receiver, subchannel, seq
    assert head == 38
    for bit in range(8 * head):
        accepted = len(bank.delivered)
        data = bytearray(frame(accepted))
        data[bit // 8] ^= 1 << bit % 8
        assert refusals(bank.caller.says(PacketPiece(accepted, False, 0, bytes(data))))
        assert len(bank.delivered) == accepted, bit
        if bit % 4 == 3:
            bank.caller.says(PacketPiece(accepted, False, 0, frame(accepted)))
            assert len(bank.delivered) == accepted + 1
    for bit in range(8 * 7):  # bits of the message around the frame, up to its number
        accepted = len(bank.delivered)
        data = bytearray(encode_message(PacketPiece(accepted, False, 0, frame(accepted))))
        data[bit // 8] ^= 1 << bit % 8
        bank.caller.says(bytes(data))
        assert len(bank.delivered) == accepted, bit
        if bit % 4 == 3:
            bank.caller.says(PacketPiece(accepted, False, 0, frame(accepted)))
            assert len(bank.delivered) == accepted + 1
    assert bank.failures == []
    assert set(bank.inbox._next) == {("shop", "")}
