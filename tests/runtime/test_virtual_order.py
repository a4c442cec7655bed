"""Messages in the order of virtual time, messages that are due, and slowed parties."""

import threading
import time

import numpy as np
import pytest
from builders import raises_code

from securevfl.errors import TransportError
from securevfl.runtime.channel import Channel
from securevfl.runtime.clock import Clock, Stamp, VirtualClock, WallClock
from securevfl.runtime.codec import Message, encode_frame
from securevfl.runtime.costs import CostCounters, Kind
from securevfl.runtime.inbox import Inbox
from securevfl.runtime.network import Network
from securevfl.runtime.party_threads import run_threads

pytestmark = pytest.mark.usefixtures("no_collection")  # which would count as work of a party

SESSION = b"s" * 16
NETWORK = Network(mbps=1e6, rtt_ms=20, message_ms=0)  # 10 ms one way


class Ping(Message, frozen=True):
    number: int


class Nowhere:
    def post(self, to: str, frame: bytes, stamp: Stamp | None) -> None:
        raise TransportError(f"{to} is away")


def bank(clock: Clock, timeout: float = 0.2) -> tuple[Channel, Inbox]:
    inbox = Inbox("bank", ["shop", "telco"], SESSION)
    return Channel(Nowhere(), inbox, clock, CostCounters(), timeout=timeout), inbox


def come(inbox: Inbox, sender: str, number: int, start: float | None, seq: int = 0) -> None:
    stamp = None if start is None else Stamp(start, np.zeros((4, 3)))
    inbox.deliver(encode_frame(Ping(number), session=SESSION, sender=sender, receiver="bank", seq=seq), stamp)


BOTH = ("shop", "telco")


def test_simulated_messages_are_taken_in_order_of_departure() -> None:
    channel, inbox = bank(VirtualClock(NETWORK), timeout=60)
    come(inbox, "shop", 1, 5.0)
    late = threading.Timer(0.05, lambda: come(inbox, "telco", 2, 1.0))
    late.start()
    assert channel.recv_first(BOTH, Ping, awaited=BOTH) == ("telco", Ping(2))
    assert channel.recv_first(BOTH, Ping, awaited=("shop",)) == ("shop", Ping(1))


def test_only_awaited_senders_are_awaited() -> None:
    channel, inbox = bank(VirtualClock(NETWORK))
    come(inbox, "shop", 1, 5.0)
    assert channel.recv_first(BOTH, Ping, awaited=("shop",)) == ("shop", Ping(1))
    come(inbox, "telco", 2, 1.0)
    with raises_code(TransportError, "SVFL-PEER-AWAY"):
        channel.recv_first(BOTH, Ping, awaited=BOTH)


def test_a_wall_clock_takes_messages_that_have_arrived() -> None:
    channel, inbox = bank(WallClock())
    come(inbox, "shop", 1, None)
    assert channel.recv_first(BOTH, Ping, awaited=BOTH) == ("shop", Ping(1))


def test_a_message_in_flight_in_virtual_time_is_not_due() -> None:
    channel, inbox = bank(VirtualClock(NETWORK))
    assert channel.recv_due(BOTH, Ping) is None
    come(inbox, "shop", 1, 1.0)
    come(inbox, "telco", 2, 0.5)
    assert channel.recv_due(BOTH, Ping) is None
    channel.clock.offloaded(Kind.LOCAL, 0.6)
    assert channel.recv_due(BOTH, Ping) == ("telco", Ping(2))
    assert channel.recv_due(BOTH, Ping) is None
    channel.clock.offloaded(Kind.LOCAL, 0.5)
    assert channel.recv_due(BOTH, Ping) == ("shop", Ping(1))
    assert channel.clock.path().sum() == pytest.approx(1.1, abs=0.05)  # it waited for nothing


def test_messages_that_have_arrived_are_due_on_a_wall_clock() -> None:
    channel, inbox = bank(WallClock())
    assert channel.recv_due(BOTH, Ping) is None
    come(inbox, "shop", 1, None)
    assert channel.recv_due(BOTH, Ping) == ("shop", Ping(1))
    channel.fail(TransportError("shop has stopped"))
    with raises_code(TransportError, "SVFL-PEER-AWAY"):
        channel.recv_due(BOTH, Ping)


def test_a_slowed_party_computes_slower_and_sends_as_fast() -> None:
    clocks = {"shop": VirtualClock(NETWORK, slowed=4.0), "bank": VirtualClock(NETWORK)}

    def burn() -> float:
        since = time.thread_time()
        while time.thread_time() < since + 0.05:
            pass
        return time.thread_time() - since

    def shop(channel: Channel) -> float:
        took = burn()
        channel.clock.offloaded(Kind.ENCRYPTION, 1.0)
        channel.send("bank", Ping(1))
        return took

    def wait(channel: Channel) -> float:
        channel.recv("shop", Ping)
        return 0.0

    took = run_threads({"shop": shop, "bank": wait}, clocks)["shop"]
    path = clocks["bank"].path().sum(axis=0)
    assert path[Kind.ENCRYPTION] == pytest.approx(4.0)
    assert path[Kind.LOCAL] == pytest.approx(4 * took, rel=0.2)
    assert path[Kind.COMMUNICATION] == pytest.approx(0.01, rel=0.1)
