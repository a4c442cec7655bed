"""Bounded staleness: the server answers no worker that is further ahead than agreed, with any timing of threads."""

import random
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import securevfl as vfl
from securevfl.base.roles import Roles
from securevfl.errors import ProtocolError, TransportError
from securevfl.families.fdml.open_store import StoredOpen
from securevfl.families.fdml.peer_pulls import PeerPullClient
from securevfl.families.fdml.pull_server import PayloadTable, PullObservation, PullServer
from securevfl.families.fdml.pulls import PullClient, PullReply, Push, RestoredOutputs, ServerPullClient, StartIteration
from securevfl.families.fdml.worker_pace import WorkerPace
from securevfl.protocols.party_context import PartyContext
from securevfl.protocols.permits import permit_sizes
from securevfl.runtime.channel import Channel
from securevfl.runtime.clock import VirtualClock, WallClock
from securevfl.runtime.costs import Kind
from securevfl.runtime.meter import Meter
from securevfl.runtime.observer import Event, Observer
from securevfl.runtime.party_threads import run_threads
from tests.builders import raises_code

WORKERS = ("bank", "shop", "telco", "post")
EPOCH = 10


Idle = Callable[[str, int, "Watch"], None]


class Watch(Observer):
    """Record of every answered pull."""

    def __init__(self) -> None:
        self.pulls: list[PullObservation] = []
        self.furthest = 0  # largest number of iterations that a worker was ahead of the slowest

    def __call__(self, event: Event) -> None:
        """Messages are not kept."""

    def note(self, me: str, fact: object) -> None:
        if isinstance(fact, PullObservation):
            self.pulls.append(fact)
            self.furthest = max(self.furthest, fact.iteration - fact.slowest)

    def until(self, seen: Callable[[], bool]) -> None:
        """Wait until this has been recorded, for a minute at most."""
        ends = time.monotonic() + 60
        while not seen():
            assert time.monotonic() < ends
            time.sleep(0.001)


def pace(iterations: int, tau: int, **options: int) -> WorkerPace:
    generator = np.random.default_rng(0)
    batches = [int(index) for _ in range(iterations // EPOCH) for index in generator.permutation(EPOCH)]
    return WorkerPace(batches, EPOCH, tau, **options)


def seat_of(channel: Channel, lead: str) -> PartyContext:
    return PartyContext(channel, Roles.sum(lead, WORKERS), Meter(channel.clock, channel.counters), subchannel="stored")


def work(pulls: PullClient, pace: WorkerPace, idle: Callable[[int], None], start: int = 0) -> int:
    """Run a worker whose output encodes its iteration; return the largest number of unanswered pushes."""
    opened, most = 0, 0
    pulls.begin(start, ())
    for t in range(start, len(pace.batches)):
        idle(t)
        pulls.push(t, np.array([[t / 8]]), t - opened)
        opened += 1
        while opened and pulls.pull((1, 1), wait=opened > pace.max_unanswered(t)) is not None:
            opened -= 1
        most = max(most, opened)
    return most


def at_server(pace: WorkerPace, idle: Idle, clock: Any = WallClock) -> Watch:
    watch = Watch()

    def serve(channel: Channel) -> int:
        context = seat_of(channel, "server")
        server = PullServer(
            context, pace, StoredOpen().server(context, WORKERS), lead="bank", readers=WORKERS, needs_all=False
        )
        done = list(server.serve())
        assert done == list(range(1, len(pace.batches) + 1))
        return 0

    def take(channel: Channel) -> int:
        context = seat_of(channel, "server")
        pulls = ServerPullClient(context, pace, StoredOpen().worker(context, WORKERS), readers=WORKERS)
        return work(pulls, pace, lambda t: idle(channel.me, t, watch))

    run_threads({"server": serve, **dict.fromkeys(WORKERS, take)}, clock, timeout=60, observe=watch)
    return watch


def at_peers(pace: WorkerPace, idle: Idle, clock: Any = WallClock) -> Watch:
    watch = Watch()

    def take(channel: Channel) -> int:
        return work(
            PeerPullClient(seat_of(channel, "bank"), pace, lead="bank"), pace, lambda t: idle(channel.me, t, watch)
        )

    run_threads(dict.fromkeys(WORKERS, take), clock, timeout=60, observe=watch)
    return watch


def restless(seed: int, *, often: float, paused: int, lead: int) -> Idle:
    """Let every worker pause at random, and one worker until another is this far ahead of it."""
    generators = {name: random.Random(f"{seed} {name}") for name in WORKERS}

    def idle(me: str, t: int, watch: Watch) -> None:
        if (me, t) == ("telco", paused):
            watch.until(lambda: watch.furthest >= lead)
        elif generators[me].random() < often:
            time.sleep(generators[me].uniform(0, 0.002))

    return idle


def check(watch: Watch, pace: WorkerPace) -> None:
    """Check that every pull respects the bound, that some pull reaches it, and that sums have the declared versions."""
    T = len(pace.batches)
    assert len(watch.pulls) == T * len(WORKERS)
    leads = [pull.iteration - pull.slowest for pull in watch.pulls]
    assert max(leads) == pace.tau
    for pull in watch.pulls:
        assert pull.iteration - pull.slowest <= pace.max_lead(pull.iteration)
        assert pull.versions[pull.worker] == pull.iteration
        for version in pull.versions.values():
            if version < 0:  # nothing was pushed yet
                assert pull.slowest < EPOCH - 1
                continue
            assert pace.batches[version] == pace.batches[pull.iteration]
            assert version > pull.slowest - 2 * EPOCH


@pytest.mark.parametrize("run", [at_server, at_peers])
@pytest.mark.parametrize("tau", [0, 3, 25])
def test_no_worker_exceeds_the_maximum_lead(run: Callable[..., Watch], tau: int) -> None:
    worker_pace = pace(300, tau, synchronous=EPOCH)
    check(run(worker_pace, restless(tau, often=0.02, paused=120, lead=tau)), worker_pace)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("run", [at_server, at_peers])
def test_no_worker_exceeds_the_maximum_lead_in_a_long_run(run: Callable[..., Watch]) -> None:
    """Each of the workers pulls 100,000 times."""
    worker_pace = pace(25_000, 8, synchronous=EPOCH)
    check(run(worker_pace, restless(1, often=0.01, paused=9000, lead=8)), worker_pace)


@pytest.mark.parametrize("run", [at_server, at_peers])
def test_without_the_bound_it_does_not_hold(run: Callable[..., Watch], monkeypatch: pytest.MonkeyPatch) -> None:
    worker_pace = pace(200, 3)
    monkeypatch.setattr(WorkerPace, "max_lead", lambda self, t: 1000)
    watch = run(worker_pace, restless(0, often=0.02, paused=50, lead=worker_pace.tau + 1))
    assert max(pull.iteration - pull.slowest for pull in watch.pulls) > worker_pace.tau


@pytest.mark.parametrize("run", [at_server, at_peers])
def test_all_meet_at_joint_evaluations(run: Callable[..., Watch]) -> None:
    worker_pace = pace(200, 5, meeting_interval=20)
    assert [t for t in range(200) if worker_pace.meets_after(t)] == list(range(19, 200, 20))
    assert all(worker_pace.max_unanswered(t) == 0 for t in range(19, 200, 20))
    check(run(worker_pace, restless(0, often=0.0, paused=90, lead=5)), worker_pace)


def test_a_worker_has_no_two_pushes_of_one_batch_open() -> None:
    worker_pace = pace(400, 8)
    for t in range(399):
        open_at_most = worker_pace.batches[t + 1 - worker_pace.max_unanswered(t) : t + 1]
        assert worker_pace.batches[t + 1] not in open_at_most
    assert max(map(worker_pace.max_unanswered, range(399))) == 8


def test_a_sum_of_all_workers_waits_for_missing_outputs() -> None:
    """The server waits for all workers' outputs, with each kind of stored sum, if the
    first epoch is not synchronous.
    """
    worker_pace, seen = pace(50, 4), {}

    def late(me: str, t: int, needs_all: bool, watch: Watch) -> None:
        """Shop pushes when others have been answered without it; where they are not, after a while."""
        if (me, t) == ("shop", 0) and needs_all:
            time.sleep(0.05)
        elif (me, t) == ("shop", 0):
            watch.until(lambda: any(min(pull.versions.values()) < 0 for pull in list(watch.pulls)))

    def run(*, needs_all: bool) -> None:
        watch = Watch()

        def serve(channel: Channel) -> int:
            context = seat_of(channel, "server")
            server = PullServer(
                context,
                worker_pace,
                StoredOpen().server(context, WORKERS),
                lead="bank",
                readers=WORKERS,
                needs_all=needs_all,
            )
            return len(list(server.serve()))

        def take(channel: Channel) -> int:
            context = seat_of(channel, "server")
            pulls = ServerPullClient(context, worker_pace, StoredOpen().worker(context, WORKERS), readers=WORKERS)
            return work(pulls, worker_pace, lambda t: late(channel.me, t, needs_all, watch))

        run_threads({"server": serve, **dict.fromkeys(WORKERS, take)}, WallClock, timeout=60, observe=watch)
        seen[needs_all] = [min(pull.versions.values()) for pull in watch.pulls if pull.iteration < EPOCH]

    run(needs_all=True)
    run(needs_all=False)
    assert min(seen[True]) >= 0
    assert min(seen[False]) == -1


def test_a_slow_worker_is_slow_in_a_simulation_too() -> None:
    """By simulated time, others are as far ahead of it as permitted, although all threads are equally fast."""
    worker_pace = pace(100, 6)
    clocks = {name: VirtualClock(vfl.Network(rtt_ms=1)) for name in (*WORKERS, "server")}

    def idle(me: str, t: int, _: Watch) -> None:
        clocks[me].offloaded(Kind.LOCAL, 0.4 if me == "post" else 0.1)

    watch = at_server(worker_pace, idle, clocks)
    check(watch, worker_pace)
    late = [pull for pull in watch.pulls if pull.worker == "bank" and 30 <= pull.iteration < 90]
    assert all(pull.iteration - pull.slowest == worker_pace.tau for pull in late)
    assert clocks["bank"].path().sum() == pytest.approx(clocks["post"].path().sum(), rel=0.1)
    assert clocks["post"].path().sum() == pytest.approx(100 * 0.4, rel=0.1)  # it never waits for the line


def test_latency_is_hidden_as_far_as_staleness_is_allowed() -> None:
    def seconds(tau: int) -> float:
        clocks = {name: VirtualClock(vfl.Network(rtt_ms=100)) for name in (*WORKERS, "server")}
        at_server(pace(100, tau), lambda me, *_: clocks[me].offloaded(Kind.LOCAL, 0.01), clocks)
        return float(clocks["bank"].path().sum())

    # processor time on a busy machine only adds to the clock, so the shortest of three runs is compared
    assert min(seconds(0) for _ in range(3)) == pytest.approx(100 * 0.11, rel=0.1)
    assert min(seconds(4) for _ in range(3)) == pytest.approx(100 * 0.11 / 5, rel=0.25)
    assert min(seconds(20) for _ in range(3)) < 100 * 0.025


BEGUN: list[list[Any]] = [
    [StartIteration(-1)],
    [StartIteration(21)],
    [RestoredOutputs(7, 0, bytes(8)), StartIteration(1)],
    [RestoredOutputs(0, 20, bytes(8)), StartIteration(20)],
    [RestoredOutputs(0, -1, bytes(8)), StartIteration(1)],
]


@pytest.mark.parametrize("crafted", BEGUN)
def test_a_start_outside_the_schedule_is_refused(crafted: list[Any]) -> None:
    worker_pace = pace(20, 2)

    def serve(channel: Channel) -> None:
        PayloadTable(channel, "stored/pulls", worker_pace, ("shop",)).begin("shop")

    def shop(channel: Channel) -> None:
        for message in crafted:
            channel.send("server", message, "stored/pulls", permit=permit_sizes(channel, "server"))

    with raises_code(ProtocolError, "SVFL-PROTOCOL-MESSAGE", peer="shop"):
        run_threads({"server": serve, "shop": shop}, WallClock, timeout=60)


CRAFTED: dict[str, Callable[[WorkerPace], Iterator[Push]]] = {
    "an iteration left out": lambda worker_pace: iter([Push(1, worker_pace.batches[1], 0, bytes(8))]),
    "an iteration again": lambda worker_pace: iter([Push(0, worker_pace.batches[0], 0, bytes(8))] * 2),
    "another batch": lambda worker_pace: iter([Push(0, worker_pace.batches[1], 0, bytes(8))]),
    "more finished than pushed": lambda worker_pace: iter([Push(0, worker_pace.batches[0], 5, bytes(8))]),
    "fewer finished than before": lambda worker_pace: iter(
        [Push(t, worker_pace.batches[t], finished, bytes(8)) for t, finished in enumerate((0, 1, 0))]
    ),
    "another length": lambda worker_pace: iter([Push(0, worker_pace.batches[0], 0, bytes(7))]),
}


@pytest.mark.parametrize("crafted", CRAFTED.values(), ids=CRAFTED)
def test_a_server_refuses_what_no_worker_pushes(crafted: Callable[[WorkerPace], Iterator[Push]]) -> None:
    worker_pace = pace(20, 2)

    def serve(channel: Channel) -> None:
        context = PartyContext(
            channel, Roles.sum("server", ("bank", "shop")), Meter(channel.clock, channel.counters), subchannel="stored"
        )
        server = PullServer(
            context, worker_pace, StoredOpen().server(context, WORKERS), lead="bank", readers=("bank",), needs_all=False
        )
        list(server.serve())

    def shop(channel: Channel) -> None:
        channel.send("server", StartIteration(0), "stored/pulls", permit=permit_sizes(channel, "server"))
        for push in crafted(worker_pace):
            channel.send("server", push, "stored/pulls", permit=permit_sizes(channel, "server"))
        channel.recv("server", PullReply, "stored/pulls")
        channel.recv("server", PullReply, "stored/pulls")

    def bank(channel: Channel) -> None:
        channel.send("server", StartIteration(0), "stored/pulls", permit=permit_sizes(channel, "server"))
        channel.send(
            "server",
            Push(0, worker_pace.batches[0], 0, bytes(8)),
            "stored/pulls",
            permit=permit_sizes(channel, "server"),
        )
        for _ in range(2):
            channel.recv("server", PullReply, "stored/pulls")

    with pytest.raises(ProtocolError) as caught:
        run_threads({"server": serve, "shop": shop, "bank": bank}, WallClock, timeout=60)
    assert caught.value.code in ("SVFL-PROTOCOL-MESSAGE", "SVFL-PROTOCOL-SIZE")


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        (PullReply(1, bytes(8), (0, 0), 0), "SVFL-PROTOCOL-MESSAGE"),
        (PullReply(0, bytes(8), (0,), 0), "SVFL-PROTOCOL-MESSAGE"),
        (PullReply(0, bytes(8), (-1, 0), 0), "SVFL-PROTOCOL-CHEATING"),
        (PullReply(0, bytes(16), (0, 0), 0), "SVFL-PROTOCOL-SIZE"),
        (PullReply(0, np.array([np.nan]).tobytes(), (0, 0), 0), "SVFL-PROTOCOL-VALUES"),
    ],
)
def test_a_worker_refuses_what_no_server_answers(answer: PullReply, code: str) -> None:
    worker_pace = pace(20, 2)

    def server(channel: Channel) -> None:
        for kind in (StartIteration, Push):
            channel.recv("bank", kind, "stored/pulls")
        channel.send("bank", answer, "stored/pulls", permit=permit_sizes(channel, "bank"))

    def bank(channel: Channel) -> None:
        context = PartyContext(
            channel, Roles.sum("server", ("bank", "shop")), Meter(channel.clock, channel.counters), subchannel="stored"
        )
        pulls = ServerPullClient(context, worker_pace, StoredOpen().worker(context, WORKERS), readers=WORKERS)
        pulls.begin(0, ())
        pulls.push(0, np.zeros((1, 1)), 0)
        pulls.pull((1, 1), wait=True)

    with raises_code(ProtocolError, code):
        run_threads({"server": server, "bank": bank}, WallClock, timeout=60)


@pytest.mark.parametrize("finished", [(0, 2, 1), (3, 2), (20, 0)])
def test_a_server_takes_back_no_finished_iteration(finished: tuple[int, ...]) -> None:
    worker_pace = pace(20, 2)

    def server(channel: Channel) -> None:
        channel.recv("bank", StartIteration, "stored/pulls")
        for t, number in enumerate(finished):
            channel.recv("bank", Push, "stored/pulls")
            answer = PullReply(t, bytes(8), (t,) * len(WORKERS), number)
            channel.send("bank", answer, "stored/pulls", permit=permit_sizes(channel, "bank"))

    def bank(channel: Channel) -> None:
        context = seat_of(channel, "server")
        pulls = ServerPullClient(context, worker_pace, StoredOpen().worker(context, WORKERS), readers=())
        pulls.begin(0, ())
        for t in range(len(finished)):
            pulls.push(t, np.zeros((1, 1)), 0)
            if t == len(finished) - 1:
                with raises_code(ProtocolError, "SVFL-PROTOCOL-VALUES", peer="server"):
                    pulls.pull((1, 1), wait=True)
            else:
                pulls.pull((1, 1), wait=True)

    run_threads({"server": server, "bank": bank}, WallClock, timeout=60)


def test_waiting_for_a_stopped_worker_fails() -> None:
    worker_pace, began = pace(100, 2), threading.Event()

    def serve(channel: Channel) -> None:
        context = PartyContext(
            channel, Roles.sum("server", ("bank", "shop")), Meter(channel.clock, channel.counters), subchannel="stored"
        )
        list(
            PullServer(
                context,
                worker_pace,
                StoredOpen().server(context, WORKERS),
                lead="bank",
                readers=("bank",),
                needs_all=False,
            ).serve()
        )

    def bank(channel: Channel) -> None:
        context = PartyContext(
            channel, Roles.sum("server", ("bank", "shop")), Meter(channel.clock, channel.counters), subchannel="stored"
        )
        began.set()
        with raises_code(TransportError, "SVFL-PEER-STOPPED"):
            work(
                ServerPullClient(context, worker_pace, StoredOpen().worker(context, WORKERS), readers=WORKERS),
                worker_pace,
                lambda _: None,
            )

    def shop(channel: Channel) -> None:
        channel.send("server", StartIteration(0), "stored/pulls", permit=permit_sizes(channel, "server"))
        began.wait(60)
        raise ProtocolError("shop: it has had enough")

    with raises_code(ProtocolError, "SVFL-PROTOCOL-MESSAGE"):
        run_threads({"server": serve, "bank": bank, "shop": shop}, WallClock, timeout=60)
