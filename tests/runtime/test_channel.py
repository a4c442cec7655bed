"""Channels and inboxes: the order of frames, and the refusal of frames that do not fit."""

import itertools
import pickle
import re
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from builders import raises_code
from numpy.typing import NDArray

from securevfl.errors import STOP_REASONS, FrameError, ProtocolError, TransportError
from securevfl.runtime.abort import Abort
from securevfl.runtime.channel import Channel
from securevfl.runtime.clock import Stamp, VirtualClock
from securevfl.runtime.codec import Message, encode_frame
from securevfl.runtime.costs import CostCounters, Kind, Stage
from securevfl.runtime.inbox import Inbox
from securevfl.runtime.network import Network
from securevfl.runtime.party_threads import run_threads

pytestmark = pytest.mark.usefixtures("no_collection")  # which would count as work of a party

SESSION = b"s" * 16
STAMP = Stamp(0.0, np.zeros((3, 3)))


class Ping(Message, frozen=True):
    data: bytes


class Pong(Message, frozen=True):
    values: NDArray[np.float64]


def ping(seq: int = 0, **changes: object) -> bytes:
    place: dict[str, object] = {"session": SESSION, "sender": "shop", "receiver": "bank", "seq": seq} | changes
    return encode_frame(Ping(b"hello"), **place)  # type: ignore[arg-type]


class Nowhere:
    def post(self, to: str, frame: bytes, stamp: Stamp | None) -> None:
        raise TransportError(f"{to} is away")


def channel(inbox: Inbox) -> Channel:
    return Channel(Nowhere(), inbox, VirtualClock(Network()), CostCounters(), timeout=0.05)


def test_frames_arrive_in_order_by_subchannel() -> None:
    inbox = Inbox("bank", ["shop"], SESSION)
    for seq in range(2):
        inbox.deliver(ping(seq), STAMP)
        inbox.deliver(ping(seq, subchannel="b"), STAMP)
    bank = channel(inbox)
    assert [bank.recv("shop", Ping, subchannel).data for subchannel in ("", "b", "b", "")] == [b"hello"] * 4


@pytest.mark.parametrize(
    ("frame", "error"),
    [
        (ping(1), FrameError),
        (ping(session=b"x" * 16), ProtocolError),
        (ping(receiver="shop"), ProtocolError),
        (ping(sender="mallory"), ProtocolError),
        (ping()[:-3], FrameError),
        (b"", FrameError),
        (b"\xc1" * 40, FrameError),
        (bytes(2000), FrameError),
    ],
)
def test_a_rejected_frame_changes_nothing(frame: bytes, error: type[ProtocolError]) -> None:
    inbox = Inbox("bank", ["shop"], SESSION, max_frame=1000)
    with raises_code(error, "SVFL-FRAME"):
        inbox.deliver(frame, STAMP)
    inbox.deliver(ping(), STAMP)
    assert channel(inbox).recv("shop", Ping).data == b"hello"


def test_a_replayed_frame_is_refused() -> None:
    inbox = Inbox("bank", ["shop"], SESSION)
    inbox.deliver(ping(), STAMP)
    with pytest.raises(FrameError):
        inbox.deliver(ping(), STAMP)


def test_a_frame_with_another_sender_is_rejected() -> None:
    inbox = Inbox("bank", ["shop", "telco"], SESSION)
    with pytest.raises(ProtocolError):
        inbox.deliver(ping(), STAMP, peer="telco")


def test_another_message_than_expected_names_both() -> None:
    inbox = Inbox("bank", ["shop"], SESSION)
    inbox.deliver(ping(), STAMP)
    with raises_code(ProtocolError, "SVFL-PROTOCOL-MESSAGE"):
        channel(inbox).recv("shop", Pong)


def test_silence_ends_in_a_timeout_that_names_the_peer() -> None:
    with raises_code(TransportError, "SVFL-PEER-AWAY"):
        channel(Inbox("bank", ["shop"], SESSION)).recv("shop", Ping)


def test_an_error_stops_all_parties_and_is_raised() -> None:
    stopped = threading.Event()

    def bank(ch: Channel) -> None:
        raise ProtocolError("bank: something is wrong")

    def shop(ch: Channel) -> None:
        with raises_code(TransportError, "SVFL-PEER-STOPPED"):
            ch.recv("bank", Ping)
        stopped.set()

    with raises_code(ProtocolError, "SVFL-PROTOCOL-MESSAGE"):
        run_threads({"bank": bank, "shop": shop}, lambda: VirtualClock(Network()), timeout=5)
    assert stopped.is_set()


@pytest.mark.parametrize(
    "lost", [{"shop"}, {"telco"}, {"gym"}, {"shop", "telco"}, set()], ids=lambda lost: " ".join(sorted(lost))
)
def test_an_abort_reaches_each_peer_that_is_connected(lost: set[str]) -> None:
    """A disconnected peer keeps the reason from no other one, whatever their order."""

    class Posted:
        def __init__(self) -> None:
            self.frames: dict[str, bytes] = {}

        def post(self, to: str, frame: bytes, stamp: Stamp | None) -> None:
            if to in lost:
                raise TransportError(f"{to} is away")
            self.frames[to] = frame

    peers = ["shop", "telco", "gym"]
    wire = Posted()
    bank = Channel(wire, Inbox("bank", peers, SESSION), VirtualClock(Network()), CostCounters(), timeout=0.05)
    bank.abort(peers, ProtocolError("bank: something is wrong"))
    assert wire.frames.keys() == set(peers) - lost
    for peer, frame in wire.frames.items():
        inbox = Inbox(peer, ["bank"], SESSION)
        inbox.deliver(frame, STAMP)
        with raises_code(TransportError, "SVFL-PEER-STOPPED"):
            channel(inbox).recv("bank", Ping)


def test_peers_learn_only_the_reason_of_an_unexpected_error() -> None:
    heard: list[str] = []

    def bank(ch: Channel) -> None:
        raise ValueError("balance 1234.56")

    def shop(ch: Channel) -> None:
        with pytest.raises(TransportError) as caught:
            ch.recv("bank", Ping)
        heard.append(str(caught.value))

    with pytest.raises(ValueError, match="balance"):
        run_threads({"bank": bank, "shop": shop}, lambda: VirtualClock(Network()), timeout=5)
    assert heard == [f"bank has stopped: {STOP_REASONS['failed']}"]


def test_virtual_time_of_two_parties_by_hand() -> None:
    """8 Mbps is 1 byte a microsecond; 10 ms one way.

    bank computes 1 s, sends; shop has computed .2 s and waits; shop encrypts 2 s, answers.
    """
    sizes: dict[str, int] = {}
    paths: dict[str, NDArray[np.float64]] = {}

    def bank(ch: Channel) -> None:
        ch.clock.stage = Stage.TRAIN
        ch.clock.offloaded(Kind.LOCAL, 1.0)
        ch.send("shop", Ping(bytes(5000)))
        ch.recv("shop", Pong)
        sizes["ping"] = ch.counters.bytes_sent()
        paths["bank"] = ch.clock.path()

    def shop(ch: Channel) -> None:
        ch.clock.stage = Stage.TRAIN
        ch.clock.offloaded(Kind.LOCAL, 0.2)
        ch.recv("bank", Ping)
        ch.clock.offloaded(Kind.ENCRYPTION, 2.0)
        ch.send("bank", Pong(np.zeros(1000)))
        sizes["pong"] = ch.counters.bytes_sent()
        paths["shop"] = ch.clock.path()

    run_threads({"bank": bank, "shop": shop}, lambda: VirtualClock(Network(mbps=8, rtt_ms=19, message_ms=0.5)))
    assert 5000 < sizes["ping"] < 5100
    assert 8000 < sizes["pong"] < 8100
    arrived = 1.0 + 0.010 + sizes["ping"] * 1e-6
    finished = arrived + 2.0 + 0.010 + sizes["pong"] * 1e-6
    own_cpu = 0.05  # the threads' own milliseconds are real and counted
    assert paths["shop"].sum() == pytest.approx(arrived + 2.0, abs=own_cpu)
    assert paths["bank"].sum() == pytest.approx(finished, abs=own_cpu)
    local, encryption, communication = (
        paths["bank"][Stage.TRAIN, kind] for kind in (Kind.LOCAL, Kind.ENCRYPTION, Kind.COMMUNICATION)
    )
    assert local == pytest.approx(1.0, abs=own_cpu)
    assert encryption == 2.0
    assert communication == pytest.approx(0.020 + (sizes["ping"] + sizes["pong"]) * 1e-6, abs=1e-9)


def test_two_messages_at_once_follow_each_other_on_the_line() -> None:
    clock = VirtualClock(Network(mbps=8, rtt_ms=19, message_ms=0.5))
    first, second = clock.departs(1000), clock.departs(1000)
    receiver = VirtualClock(Network(mbps=8, rtt_ms=19, message_ms=0.5))
    receiver.arrives(first, 1000)
    assert receiver.path().sum() == pytest.approx(0.011)
    receiver.arrives(second, 1000)
    assert receiver.path().sum() == pytest.approx(0.012)


def aborted(inbox: Inbox) -> None:
    inbox.deliver(encode_frame(Abort("limit"), session=SESSION, sender="shop", receiver="bank", seq=0), STAMP)


FAILURES: dict[str, Callable[[Inbox], None]] = {
    STOP_REASONS["limit"]: aborted,
    "the line is closed": lambda inbox: inbox.fail(TransportError("the line is closed")),
    "the disk is full": lambda inbox: inbox.fail(TransportError("the disk is full")),
}


@pytest.mark.parametrize("order", list(itertools.permutations(FAILURES)))
def test_the_first_failure_is_the_one_that_is_reported(order: tuple[str, ...]) -> None:
    """A peer that stops sends its reason and closes the connection, which is a failure too."""
    inbox = Inbox("bank", ["shop", "telco"], SESSION)
    for name in order:
        FAILURES[name](inbox)
        for sender in ("shop", "telco"):
            with pytest.raises(TransportError, match=re.escape(order[0])):
                inbox.take([sender], "", 0.01)
        assert order[0] in str(inbox.reason(TransportError("another")))


READERS: dict[str, Callable[[CostCounters], object]] = {
    "seconds": lambda counters: counters.seconds(Stage.TRAIN),
    "bytes": lambda counters: counters.bytes_sent(),
    "bytes of a stage": lambda counters: counters.bytes_sent(Stage.TRAIN),
    "messages": lambda counters: counters.messages_sent(),
    "copy": pickle.dumps,
}


class Watched(dict[Any, Any]):
    """A dictionary that reports whether a lock is held while it is read."""

    def __init__(self, lock: threading.Lock) -> None:
        super().__init__()
        self.lock = lock
        self.is_held = list[bool]()

    def items(self) -> Any:
        self.is_held.append(self.lock.locked())
        return super().items()

    def keys(self) -> Any:
        self.is_held.append(self.lock.locked())
        return super().keys()

    def __iter__(self) -> Any:  # so that a copy calls `keys`
        return iter(self.keys())


@pytest.mark.parametrize("name", READERS)
def test_counters_are_read_while_no_thread_adds_to_them(name: str) -> None:
    counters = CostCounters()
    lock = counters._lock
    counters.ops, counters.traffic = Watched(lock), Watched(lock)
    READERS[name](counters)
    for counts in (counters.ops, counters.traffic):
        assert isinstance(counts, Watched)
        assert all(counts.is_held)
    assert any(counts.is_held for counts in (counters.ops, counters.traffic))
