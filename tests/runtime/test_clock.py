"""Two threads of one party take as long as the longer of them, in virtual and in real time."""

import threading

import numpy as np
import pytest
from numpy.typing import NDArray

from securevfl.runtime.background_task import BackgroundTask
from securevfl.runtime.channel import Channel
from securevfl.runtime.clock import Path, VirtualClock, WallClock
from securevfl.runtime.codec import Message
from securevfl.runtime.costs import Kind, Stage
from securevfl.runtime.network import Network, Pauses
from securevfl.runtime.party_threads import run_threads

pytestmark = pytest.mark.usefixtures("no_collection")  # which would count as work of a party

NETWORK = Network(mbps=8, rtt_ms=20, message_ms=0)  # 1 byte a microsecond, 10 ms one way
OWN_CPU = 0.05  # seconds: the threads' own milliseconds are real and counted


class Ask(Message, frozen=True):
    data: bytes


class Answer(Message, frozen=True):
    values: NDArray[np.float64]


def overlapping(computing: float, answering: float) -> tuple[Path, int]:
    """Return bank's path and bytes; bank computes while its second thread waits for an answer that shop computes."""
    paths: dict[str, Path] = {}
    sizes: dict[str, int] = {}

    def bank(ch: Channel) -> None:
        ch.clock.stage = Stage.TRAIN

        def exchange() -> None:
            ch.send("shop", Ask(bytes(50_000)))
            ch.recv("shop", Answer)
            ch.clock.offloaded(Kind.LOCAL, 0.1)

        ch.clock.offloaded(Kind.LOCAL, 0.2)
        other = BackgroundTask(ch, exchange, "exchange")
        ch.clock.offloaded(Kind.LOCAL, computing)
        assert other.join(60)
        paths["bank"], sizes["bank"] = ch.clock.path(), ch.counters.bytes_sent()

    def shop(ch: Channel) -> None:
        ch.clock.stage = Stage.TRAIN
        ch.recv("bank", Ask)
        ch.clock.offloaded(Kind.ENCRYPTION, answering)
        ch.send("bank", Answer(np.zeros(5000)))
        sizes["shop"] = ch.counters.bytes_sent()

    run_threads({"bank": bank, "shop": shop}, lambda: VirtualClock(NETWORK))
    return paths["bank"], sizes["bank"] + sizes["shop"]


@pytest.mark.parametrize(("computing", "answering"), [(2.0, 0.5), (0.5, 2.0), (1.0, 1.0)])
def test_virtual_time_of_two_threads_by_hand(computing: float, answering: float) -> None:
    path, sent = overlapping(computing, answering)
    crossing = 0.020 + sent * 1e-6
    assert crossing == pytest.approx(0.110, abs=0.001)
    exchanging = crossing + answering + 0.1
    assert path.sum() == pytest.approx(0.2 + max(computing, exchanging), abs=OWN_CPU)
    if computing > exchanging:
        assert path[Stage.TRAIN, Kind.LOCAL] == pytest.approx(0.2 + computing, abs=OWN_CPU)
        assert path[Stage.TRAIN, Kind.COMMUNICATION] == 0
    else:
        assert path[Stage.TRAIN, Kind.LOCAL] == pytest.approx(0.3, abs=OWN_CPU)
        assert path[Stage.TRAIN, Kind.ENCRYPTION] == answering
        assert path[Stage.TRAIN, Kind.COMMUNICATION] == pytest.approx(crossing, abs=1e-6)


def test_a_pipeline_takes_as_long_as_its_slower_stage() -> None:
    """Ten rounds: one thread exchanges for 0.12 s, the other computes for 0.2 s. They take 2.12 s, not 3.2 s."""
    rounds, path = 10, []

    def bank(ch: Channel) -> None:
        here = threading.Semaphore(0)
        came: list[Path] = []

        def exchange() -> None:
            for _ in range(rounds):
                ch.send("shop", Ask(bytes(50_000)))
                ch.recv("shop", Answer)
                came.append(ch.clock.path())
                here.release()

        other = BackgroundTask(ch, exchange, "exchange")
        now = 0.0
        for t in range(rounds):
            here.acquire()
            ready = float(came[t].sum())
            ch.clock.offloaded(Kind.COMMUNICATION, max(0.0, ready - float(ch.clock.path().sum())))
            ch.clock.offloaded(Kind.LOCAL, 0.2)
            now = float(ch.clock.path().sum())
        assert other.join(60)
        path.append(now)

    def shop(ch: Channel) -> None:
        for _ in range(rounds):
            ch.recv("bank", Ask)
            ch.clock.offloaded(Kind.ENCRYPTION, 0.01)
            ch.send("bank", Answer(np.zeros(5000)))

    run_threads({"bank": bank, "shop": shop}, lambda: VirtualClock(NETWORK))
    assert path[0] == pytest.approx(0.12 + rounds * 0.2, abs=OWN_CPU)


def test_a_thread_without_a_path_adds_to_its_partys_path() -> None:
    clock = VirtualClock(NETWORK)
    other = threading.Thread(target=clock.offloaded, args=(Kind.LOCAL, 1.0))
    other.start()
    other.join()
    clock.offloaded(Kind.LOCAL, 1.0)
    assert clock.path().sum() == 2.0


def test_every_path_has_its_stage() -> None:
    clock = VirtualClock(NETWORK)
    clock.stage = Stage.TRAIN
    branch = clock.fork()
    clock.stage = Stage.EVALUATE
    with clock.along(branch):
        clock.offloaded(Kind.ENCRYPTION, 1.0)
        assert clock.stage == Stage.TRAIN
    assert clock.stage == Stage.EVALUATE
    assert clock.path().sum() == pytest.approx(0.0, abs=OWN_CPU)
    clock.join(branch, lambda: None)
    assert clock.path()[Stage.TRAIN, Kind.ENCRYPTION] == 1.0


def test_a_thread_that_is_ahead_does_not_delay_another() -> None:
    clock = VirtualClock(NETWORK)
    ahead = clock.fork()
    with clock.along(ahead):
        clock.offloaded(Kind.LOCAL, 5.0)
        assert clock.departs(100_000).start == pytest.approx(5.0, abs=OWN_CPU)
    first, second = clock.departs(100_000), clock.departs(100_000)
    assert first.start < OWN_CPU
    assert second.start == pytest.approx(first.start + 0.1)
    clock.offloaded(Kind.LOCAL, 4.95)
    late = clock.departs(100_000)  # it does not fit before 5.0
    assert late.start == pytest.approx(5.1, abs=2 * OWN_CPU)


class Told(WallClock):
    """A wall clock with a given time."""

    now = 0.0

    def _now(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += seconds


@pytest.mark.parametrize(("seconds", "others"), [(2.0, 3.0), (3.0, 2.0)])
def test_overlapped_work_counts_once_on_a_wall_clock(seconds: float, others: float) -> None:
    clock = Told()
    clock.tick(Kind.LOCAL)
    clock.advance(1.0)
    branch = clock.fork()

    def spend() -> None:
        with clock.along(branch):
            clock.advance(max(0.0, others - seconds))
            clock.tick(Kind.ENCRYPTION)

    clock.advance(seconds)
    other = threading.Thread(target=spend)

    def wait() -> None:
        other.start()
        other.join()

    clock.join(branch, wait)
    path = clock.path()
    assert path.sum() == pytest.approx(1.0 + max(seconds, others))
    assert path[Stage.SETUP, Kind.LOCAL] == pytest.approx(1.0 + seconds)
    assert path[Stage.SETUP, Kind.ENCRYPTION] == pytest.approx(max(0.0, others - seconds))


def test_a_serving_thread_does_not_turn_work_into_waiting() -> None:
    clock = Told()
    clock.tick(Kind.LOCAL)
    branch = clock.fork()
    through = threading.Event()

    def serve() -> None:
        with clock.along(branch):
            through.wait(60)
            clock.arrives(None, 0)  # it has only waited

    other = threading.Thread(target=serve)
    other.start()
    clock.advance(9.0)

    def wait() -> None:
        clock.advance(1.0)
        through.set()
        other.join()

    clock.join(branch, wait)
    path = clock.path()
    assert path[Stage.SETUP, Kind.LOCAL] == pytest.approx(9.0)
    assert path[Stage.SETUP, Kind.COMMUNICATION] == pytest.approx(1.0)


def test_message_cost_delays_each_message_and_blocks_none() -> None:
    network = Network(mbps=8, rtt_ms=20, message_ms=3)
    sender, receiver = VirtualClock(network), VirtualClock(network)
    stamps = [sender.departs(1000) for _ in range(5)]
    for k, stamp in enumerate(stamps, 1):
        receiver.arrives(stamp, 1000)
        assert receiver.path()[Stage.SETUP, Kind.COMMUNICATION] == pytest.approx(0.010 + 0.003 + k * 0.001)
    assert receiver.path().sum() == receiver.path()[Stage.SETUP, Kind.COMMUNICATION]
    assert sender.path().sum() == 0.0


@pytest.mark.parametrize("wrong", [{"mbps": 0}, {"rtt_ms": -1}, {"message_ms": -0.1}, {"message_ms": float("nan")}])
def test_a_network_that_cannot_be_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="message_ms >= 0, got"):
        Network(**wrong)


@pytest.mark.parametrize(("half_duplex", "both_ways"), [(False, 0.010 + 0.050), (True, 0.100)])
def test_a_line_that_is_half_duplex_carries_one_way_at_a_time(half_duplex: bool, both_ways: float) -> None:
    network = Network(mbps=8, rtt_ms=20, message_ms=0, half_duplex=half_duplex)
    one, other = VirtualClock(network), VirtualClock(network)
    up, down = one.departs(50_000), other.departs(50_000)
    other.arrives(up, 50_000)
    one.arrives(down, 50_000)
    assert max(clock.path().sum() for clock in (one, other)) == pytest.approx(both_ways)


def test_pauses_have_the_chosen_share_mean_and_seed() -> None:
    pauses = Pauses(share=0.2, seconds=0.5, seed=1)
    drawn = np.array([length for length, _ in zip(pauses.lengths(), range(4000), strict=False)])
    assert np.mean(drawn > 0) == pytest.approx(0.2, abs=0.02)
    assert drawn[drawn > 0].mean() == pytest.approx(0.5, rel=0.1)
    sender = VirtualClock(NETWORK, slowed=pauses)
    for _ in range(100):
        sender.departs(0)
    assert sender.path()[Stage.SETUP, Kind.LOCAL] == pytest.approx(drawn[:100].sum())
    with pytest.raises(ValueError, match="share in"):
        Pauses(share=1.5, seconds=1)


def test_connecting_and_closing_take_six_round_trips_by_hand() -> None:
    clock = VirtualClock(NETWORK)
    clock.connect()
    clock.stage = Stage.EVALUATE
    clock.disconnect()
    assert clock.path()[Stage.SETUP, Kind.COMMUNICATION] == pytest.approx(4 * 0.020 + 0.06)
    assert clock.path()[Stage.EVALUATE, Kind.COMMUNICATION] == pytest.approx(2 * 0.020)
