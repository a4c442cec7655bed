"""Messages are received in the order of arrival, and an error in one thread of a party ends its other threads."""

import threading
import time

import pytest
from builders import raises_code

from securevfl.errors import CryptoError, ProtocolError, TransportError
from securevfl.runtime.background_task import BackgroundTask
from securevfl.runtime.channel import Channel
from securevfl.runtime.clock import Stamp, VirtualClock, WallClock
from securevfl.runtime.codec import Message, encode_frame
from securevfl.runtime.costs import CostCounters, Kind
from securevfl.runtime.inbox import Inbox
from securevfl.runtime.network import Network
from securevfl.runtime.party_threads import run_threads

pytestmark = pytest.mark.usefixtures("no_collection")  # which would count as work of a party

SESSION = b"s" * 16
SOON = 30.0  # seconds; without the other thread's error it would take an hour


class Ping(Message, frozen=True):
    number: int


class Pong(Message, frozen=True):
    number: int


class Done(Message, frozen=True):
    pass


class Nowhere:
    def post(self, to: str, frame: bytes, stamp: Stamp | None) -> None:
        raise TransportError(f"{to} is away")


def frame(sender: str, number: int, subchannel: str = "") -> bytes:
    return encode_frame(
        Ping(number), session=SESSION, sender=sender, receiver="bank", subchannel=subchannel, seq=number
    )


def alone(timeout: float = 0.05) -> tuple[Inbox, Channel]:
    inbox = Inbox("bank", ["shop", "telco", "gym"], SESSION)
    return inbox, Channel(Nowhere(), inbox, WallClock(), CostCounters(), timeout=timeout)


def test_messages_are_taken_in_order_of_arrival() -> None:
    inbox, channel = alone()
    for sender, number in (("telco", 0), ("shop", 0), ("telco", 1), ("gym", 0)):
        inbox.deliver(frame(sender, number))
    inbox.deliver(frame("shop", 0, subchannel="other"))
    received = [channel.recv_any(["shop", "telco"], Ping) for _ in range(3)]
    assert received == [("telco", Ping(0)), ("shop", Ping(0)), ("telco", Ping(1))]
    assert channel.recv("gym", Ping) == Ping(0)


def test_virtual_time_orders_messages_by_departure() -> None:
    inbox = Inbox("bank", ["shop", "telco"], SESSION)
    channel = Channel(Nowhere(), inbox, VirtualClock(Network()), CostCounters(), timeout=0.05)
    stamps = []
    for seconds in (2.0, 1.0):
        clock = VirtualClock(Network())
        clock.offloaded(Kind.LOCAL, seconds)
        stamps.append(clock.departs(100))
    for sender, stamp in zip(("shop", "telco"), stamps, strict=True):
        inbox.deliver(frame(sender, 0), stamp)
    assert [channel.recv_any(["shop", "telco"], Ping)[0] for _ in range(2)] == ["telco", "shop"]
    assert 2.0 < channel.clock.path().sum() < 2.1


def test_messages_of_other_classes_are_rejected() -> None:
    inbox, channel = alone()
    inbox.deliver(frame("shop", 0))
    inbox.deliver(frame("telco", 0))
    assert channel.recv_any(["shop", "telco"], (Pong, Ping)) == ("shop", Ping(0))
    with raises_code(ProtocolError, "SVFL-PROTOCOL-MESSAGE"):
        channel.recv_any(["shop", "telco"], (Pong, Done))


def test_silence_of_all_ends_in_a_timeout_that_names_them() -> None:
    inbox, channel = alone()
    inbox.deliver(frame("gym", 0))
    with raises_code(TransportError, "SVFL-PEER-AWAY"):
        channel.recv_any(["telco", "shop"], Ping)
    with raises_code(TransportError, "SVFL-PEER-AWAY"):
        channel.recv_any(["shop"], Ping, timeout=0.01)


def test_messages_before_a_failure_are_still_received() -> None:
    inbox, channel = alone(timeout=60)
    inbox.deliver(frame("telco", 0))
    channel.fail(CryptoError("a key that cannot be used"))
    assert channel.recv_any(["shop", "telco"], Ping) == ("telco", Ping(0))
    with raises_code(CryptoError, "SVFL-CRYPTO-CIPHERTEXT"):
        channel.recv_any(["shop", "telco"], Ping)


def test_a_server_answers_each_of_several_parties() -> None:
    clients = ["shop", "telco", "gym"]
    served: list[str] = []

    def bank(ch: Channel) -> None:
        here = set(clients)
        while here:
            sender, message = ch.recv_any(here, (Ping, Done), "work")
            if isinstance(message, Ping):
                served.append(sender)
                ch.send(sender, Pong(message.number + 1), "work")
            else:
                here.discard(sender)

    def client(ch: Channel) -> None:
        for number in range(20):
            ch.send("bank", Ping(number), "work")
            assert ch.recv("bank", Pong, "work") == Pong(number + 1)
        ch.send("bank", Done(), "work")

    run_threads({"bank": bank, **dict.fromkeys(clients, client)}, WallClock, timeout=SOON)
    assert sorted(served) == sorted(clients * 20)


def test_a_party_that_stops_ends_a_server_that_waits_for_any() -> None:
    def bank(ch: Channel) -> None:
        ch.recv_any(["shop", "telco"], Ping)

    def shop(ch: Channel) -> None:
        raise ProtocolError("shop: something is wrong")

    def telco(ch: Channel) -> None:
        ch.recv("bank", Pong)

    with raises_code(ProtocolError, "SVFL-PROTOCOL-MESSAGE"):
        run_threads({"bank": bank, "shop": shop, "telco": telco}, WallClock, timeout=3600)


def test_an_error_of_the_second_thread_is_the_partys_at_once() -> None:
    began = time.monotonic()

    def bank(ch: Channel) -> None:
        def broken() -> None:
            raise CryptoError("bank: a key that cannot be used")

        BackgroundTask(ch, broken, "second")
        ch.recv("shop", Ping)

    def shop(ch: Channel) -> None:
        with raises_code(TransportError, "SVFL-PEER-STOPPED"):
            ch.recv("bank", Ping)

    with raises_code(CryptoError, "SVFL-CRYPTO-CIPHERTEXT"):
        run_threads({"bank": bank, "shop": shop}, WallClock, timeout=3600)
    assert time.monotonic() - began < SOON


def test_join_reports_completion_and_raises_the_threads_error() -> None:
    _, channel = alone(timeout=3600)
    go = threading.Event()
    slow = BackgroundTask(channel, lambda: go.wait(SOON), "slow")
    assert not slow.join(0.01)
    go.set()
    assert slow.join(SOON)

    def broken() -> None:
        raise ValueError("second")

    failing = BackgroundTask(channel, broken, "failing")
    with pytest.raises(ValueError, match="second"):
        failing.join(SOON)


def test_a_party_that_stops_takes_its_second_thread_along() -> None:
    threads: list[BackgroundTask] = []

    def bank(ch: Channel) -> None:
        threads.append(BackgroundTask(ch, lambda: ch.recv("shop", Ping, "own"), "second"))
        raise ProtocolError("bank: the first thread stops")

    def shop(ch: Channel) -> None:
        ch.recv("bank", Ping)

    with raises_code(ProtocolError, "SVFL-PROTOCOL-MESSAGE"):
        run_threads({"bank": bank, "shop": shop}, WallClock, timeout=3600)
    with raises_code(TransportError, "SVFL-PEER-STOPPED"):
        threads[0].join(SOON)
