"""Replies are used late, repeatedly, with a variable J and in other threads, while exchanges and keys change."""

import gc
import threading
import weakref
from collections.abc import Callable, Mapping

import numpy as np
import pytest
from builders import raises_code

import securevfl as vfl
from securevfl.base.arrays import Floats
from securevfl.base.roles import Roles
from securevfl.errors import LimitError
from securevfl.protocols.differentiable import Jacobian
from securevfl.protocols.party_context import PartyContext
from securevfl.protocols.residuals.base import (
    ActiveResidual,
    Agreement,
    Batch,
    PassiveResidual,
    Reply,
    ResidualProtocol,
)
from securevfl.protocols.residuals.open_residual import OpenResidual
from securevfl.protocols.residuals.sealed_residual import BlindedProduct, ResidualClosed, SealedActive, SealedResidual
from securevfl.runtime.background_task import BackgroundTask
from securevfl.runtime.channel import Channel
from securevfl.runtime.clock import WallClock
from securevfl.runtime.meter import Meter
from securevfl.runtime.observer import Event
from securevfl.runtime.party_threads import run_threads
from tests.small_keys import SMALL

TESTED_RESIDUALS = [
    OpenResidual(),
    SealedResidual(engine=vfl.Ckks()),
    SealedResidual(engine=SMALL),
]
SEALED = TESTED_RESIDUALS[1]
ROWS, COLUMNS = 40, 3
TOLERANCE = 1e-3  # tolerance of the engines
SOON = 60.0  # seconds; a wait that nobody ends would take an hour

Publish = Callable[[ActiveResidual, Channel], None]
Ask = Callable[[PassiveResidual, Channel], None]


class Given:
    """A model with a given Jacobian, which can be replaced."""

    def __init__(self, J: Floats, *, static: bool = True) -> None:
        self.J, self.static_jacobian = J, static
        self.shares_outputs = True
        self.parameters = J.shape[1]

    def rows(self, X: Floats) -> int:
        return len(X)

    def vjp(self, X: Floats, g: Floats) -> Floats:
        return self.J.T @ g

    def jacobian(self, X: Floats) -> Jacobian:
        return Jacobian(self.J)


def play(
    residual: ResidualProtocol,
    agreement: Agreement,
    publish: Publish,
    ask: Mapping[str, Ask],
    *,
    timeout: float = 3600.0,
) -> list[Event]:
    """Run the scripts of the active party and of each passive party over one channel; return all messages."""

    def context(channel: Channel) -> PartyContext:
        return PartyContext(
            channel=channel,
            roles=Roles.labelled("bank", ask),
            meter=Meter(channel.clock, channel.counters),
            parameters=dict.fromkeys(ask, COLUMNS),
        )

    def active(channel: Channel) -> None:
        role = residual.active(context(channel), agreement)
        publish(role, channel)
        role.close()

    def passive(channel: Channel) -> None:
        role = residual.passive(context(channel), agreement)
        ask[channel.me](role, channel)
        role.close()

    events: list[Event] = []
    roles = {"bank": active, **dict.fromkeys(ask, passive)}
    run_threads(roles, WallClock, timeout=timeout, observe=events.append)
    return events


def drawn(count: int, seed: int = 0) -> tuple[list[Floats], list[Floats]]:
    """Return some residuals (n x 1) below 1, and the same number of Jacobians (n x d)."""
    generator = np.random.default_rng(seed)
    return (
        [generator.uniform(-1, 1, size=(ROWS, 1)) for _ in range(count)],
        [generator.normal(size=(ROWS, COLUMNS)) for _ in range(count)],
    )


def batch(index: int) -> Batch:
    return Batch(index, 0, np.empty((ROWS, 0)))


def published(residuals: list[Floats], *, each_epoch: int = 10**6, to: tuple[str, ...] = ("shop",)) -> Publish:
    def run(role: ActiveResidual, channel: Channel) -> None:
        for t, g in enumerate(residuals):
            role.publish(g, epoch=t // each_epoch, to=to)

    return run


def check(reply: Reply, J: Floats, g: Floats, *, static: bool = True) -> None:
    gradient = reply.gradient(Given(J, static=static), batch(reply.exchange))
    np.testing.assert_allclose(gradient, J.T @ g, atol=TOLERANCE)


@pytest.mark.parametrize("each_epoch", [1, 2, 100], ids=lambda epochs: f"a key for {epochs}")
@pytest.mark.parametrize("residual", TESTED_RESIDUALS, ids=lambda r: getattr(r, "engine", r).name)
def test_replies_can_be_used_late_repeatedly_and_in_any_order(residual: ResidualProtocol, each_epoch: int) -> None:
    gs, Js = drawn(5)

    def ask(role: PassiveResidual, channel: Channel) -> None:
        replies = [role.reply() for _ in gs]
        assert [reply.exchange for reply in replies] == list(range(len(gs)))
        for t in (3, 0, 4, 1, 2, 0, 3):
            check(replies[t], Js[t], gs[t])
        first = replies[0].gradient(Given(Js[0]), batch(0))
        assert replies[0].gradient(Given(Js[0]), batch(0)) is first or not residual.seals

    events = play(
        residual, Agreement(openings=1, max_open_exchanges=5), published(gs, each_epoch=each_epoch), {"shop": ask}
    )
    requests = sum(isinstance(event.message, BlindedProduct) for event in events if event.direction == "recv")
    assert requests == (len(gs) if residual.seals else 0)  # a constant J is requested once


@pytest.mark.parametrize("residual", TESTED_RESIDUALS, ids=lambda r: getattr(r, "engine", r).name)
def test_a_variable_jacobian_is_opened_in_every_step(residual: ResidualProtocol) -> None:
    gs, _ = drawn(3)
    _, moving = drawn(9, seed=1)

    def ask(role: PassiveResidual, channel: Channel) -> None:
        replies = [role.reply() for _ in gs]
        for q, J in enumerate(moving):
            check(replies[2 - q % 3], J, gs[2 - q % 3], static=False)

    play(residual, Agreement(openings=3, max_open_exchanges=3), published(gs, each_epoch=1), {"shop": ask})


@pytest.mark.parametrize("residual", TESTED_RESIDUALS, ids=lambda r: getattr(r, "engine", r).name)
def test_another_thread_asks_while_exchanges_and_keys_go_on(residual: ResidualProtocol) -> None:
    gs, Js = drawn(8)
    late = threading.Event()

    def ask(role: PassiveResidual, channel: Channel) -> None:
        first = role.reply()

        def local() -> None:
            check(first, Js[5], gs[0], static=False)
            assert late.wait(SOON)
            check(first, Js[6], gs[0], static=False)

        other = BackgroundTask(channel, local, "local steps")
        for t in range(1, len(gs)):
            check(role.reply(), Js[t], gs[t])
        late.set()
        check(first, Js[7], gs[0], static=False)
        assert other.join(SOON)

    play(residual, Agreement(openings=3, max_open_exchanges=8), published(gs, each_epoch=2), {"shop": ask})


@pytest.mark.parametrize("residual", TESTED_RESIDUALS, ids=lambda r: getattr(r, "engine", r).name)
def test_each_party_is_served_at_its_pace(residual: ResidualProtocol) -> None:
    gs, _ = drawn(4)
    names = ("shop", "telco", "gym")
    batches = {name: drawn(4, seed=seed)[1] for seed, name in enumerate(names, 10)}
    turn = threading.Event()

    def at_once(role: PassiveResidual, channel: Channel) -> None:
        for g, J in zip(gs, batches[channel.me], strict=True):
            check(role.reply(), J, g)
        turn.set()

    def backwards(role: PassiveResidual, channel: Channel) -> None:
        replies = [role.reply() for _ in gs]
        assert turn.wait(SOON)
        for reply, J, g in reversed(list(zip(replies, batches[channel.me], gs, strict=True))):
            check(reply, J, g)

    asks = {"shop": at_once, "telco": backwards, "gym": backwards}
    play(residual, Agreement(max_open_exchanges=4), published(gs, each_epoch=2, to=names), asks)


def test_some_exchanges_are_for_some_parties_alone() -> None:
    gs, Js = drawn(4)

    def publish(role: ActiveResidual, channel: Channel) -> None:
        for t, g in enumerate(gs):
            role.publish(g, epoch=t, to=[("shop", "telco")[t % 2]])

    def ask(role: PassiveResidual, channel: Channel) -> None:
        for t in range(0 if channel.me == "shop" else 1, 4, 2):
            reply = role.reply()
            assert reply.exchange == t
            check(reply, Js[t], gs[t])

    play(SEALED, Agreement(), publish, {"shop": ask, "telco": ask})


def test_a_key_lives_as_long_as_an_exchange_under_it_is_open() -> None:
    gs, Js = drawn(3)
    barrier = threading.Barrier(2, timeout=SOON)
    keys: list[weakref.ref[object]] = []

    def publish(role: ActiveResidual, channel: Channel) -> None:
        assert isinstance(role, SealedActive)
        for t, g in enumerate(gs):
            role.publish(g, epoch=t, to=["shop"])
            keys.append(weakref.ref(role._holder))
        barrier.wait()  # nothing was requested, and the third key is in use
        assert all(key() for key in keys)
        barrier.wait()
        barrier.wait()
        gc.collect()
        assert [key() is None for key in keys] == [True, False, False]
        barrier.wait()

    def ask(role: PassiveResidual, channel: Channel) -> None:
        replies = [role.reply() for _ in gs]
        for _ in range(2):
            barrier.wait()
        check(replies[0], Js[0], gs[0])
        for _ in range(2):
            barrier.wait()
        check(replies[1], Js[1], gs[1])

    play(SEALED, Agreement(max_open_exchanges=3), publish, {"shop": ask})
    gc.collect()
    assert not any(key() for key in keys)


def test_a_newer_reply_closes_the_oldest_exchange() -> None:
    gs, Js = drawn(4)
    open_at: list[list[int]] = []

    def publish(role: ActiveResidual, channel: Channel) -> None:
        assert isinstance(role, SealedActive)
        for g in gs:
            role.publish(g, epoch=0, to=["shop"])
            open_at.append(sorted(role._exchanges.open))

    def ask(role: PassiveResidual, channel: Channel) -> None:
        replies = [role.reply() for _ in gs]
        for t in (2, 3):
            check(replies[t], Js[t], gs[t])
        with raises_code(LimitError, "SVFL-PROTOCOL-LIMIT"):
            replies[1].gradient(Given(Js[1]), batch(1))

    events = play(SEALED, Agreement(max_open_exchanges=2), publish, {"shop": ask})
    closed = [
        event.message.exchange for event in events if isinstance(event.message, ResidualClosed) and event.me == "bank"
    ]
    assert closed == [0, 1, None]
    assert all(len(numbers) <= 3 for numbers in open_at)


def test_unused_replies_are_closed_and_used_ones_need_no_message() -> None:
    gs, Js = drawn(2)

    def ask(role: PassiveResidual, channel: Channel) -> None:
        given_up, spent = role.reply(), role.reply()
        given_up.close()
        check(spent, Js[1], gs[1])
        spent.close()
        check(spent, Js[1], gs[1])  # its earlier gradients are still available
        with raises_code(LimitError, "SVFL-PROTOCOL-LIMIT"):
            given_up.gradient(Given(Js[0]), batch(0))

    events = play(SEALED, Agreement(max_open_exchanges=2), published(gs), {"shop": ask})
    closed = [
        event.message.exchange for event in events if isinstance(event.message, ResidualClosed) and event.me == "bank"
    ]
    assert closed == [0, None]
