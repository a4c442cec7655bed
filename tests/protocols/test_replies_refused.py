"""Requests without remaining openings, and errors on either side of an exchange."""

import threading
import time
from typing import Any

import msgspec
import numpy as np
import pytest
from builders import raises_code

from securevfl.crypto.kernel import row_plaintexts
from securevfl.errors import CryptoError, LimitError, ProtocolError, TransportError
from securevfl.protocols.message_protocol import Release
from securevfl.protocols.residuals.base import (
    ActiveResidual,
    Agreement,
    PassiveResidual,
)
from securevfl.protocols.residuals.sealed_residual import BlindedProduct, OpenedProduct, ResidualCiphertext
from securevfl.runtime.channel import Channel
from securevfl.runtime.codec import Message
from tests.protocols.test_replies import SEALED, SOON, Batch, Given, batch, check, drawn, play, published

LONG_MESSAGE_ROWS = 6000  # rows: two sample blocks


def test_a_party_requests_no_more_gradients_than_agreed() -> None:
    gs, Js = drawn(1)

    def ask(role: PassiveResidual, channel: Channel) -> None:
        reply = role.reply()
        for _ in range(2):
            check(reply, Js[0], gs[0], static=False)
        with raises_code(LimitError, "SVFL-PROTOCOL-LIMIT"):
            reply.gradient(Given(Js[0], static=False), batch(0))

    play(SEALED, Agreement(openings=2), published(gs), {"shop": ask})


@pytest.mark.parametrize(
    ("openings", "gives_up", "used"),
    [(1, False, 0), (3, False, 0), (3, True, 0), (3, False, 2)],
    ids=["one", "three", "after it was closed", "after a resume"],
)
def test_a_request_beyond_the_agreement_ends_the_run(openings: int, gives_up: bool, used: int) -> None:
    gs, Js = drawn(1)
    began = time.monotonic()

    def publish(role: ActiveResidual, channel: Channel) -> None:
        role.publish(gs[0], epoch=0, to=["shop"], resend_of=Release(0, used) if used else None)
        channel.recv("shop", OpenedProduct)  # the training thread waits for something else

    def ask(role: PassiveResidual, channel: Channel) -> None:
        reply = role.reply()
        for _ in range(openings - used - gives_up):
            check(reply, Js[0], gs[0], static=False)
        if gives_up:
            reply.close()
        channel.send("bank", BlindedProduct(0, b"anything"), "/opening")
        with raises_code(TransportError, "SVFL-PEER-STOPPED"):
            channel.recv("bank", OpenedProduct, "/opening")
        raise ProtocolError("shop was stopped")

    with raises_code(LimitError, "SVFL-PROTOCOL-LIMIT", party="shop"):
        play(SEALED, Agreement(openings=openings), publish, {"shop": ask})
    assert time.monotonic() - began < SOON


def test_an_exchange_of_another_party_is_refused() -> None:
    gs, Js = drawn(2)

    def publish(role: ActiveResidual, channel: Channel) -> None:
        role.publish(gs[0], epoch=0, to=["shop"])
        role.publish(gs[1], epoch=0, to=["telco"])

    def shop(role: PassiveResidual, channel: Channel) -> None:
        check(role.reply(), Js[0], gs[0])

    def telco(role: PassiveResidual, channel: Channel) -> None:
        role.reply()
        channel.send("bank", BlindedProduct(0, b"anything"), "/opening")
        channel.recv("bank", OpenedProduct, "/opening")

    with raises_code(LimitError, "SVFL-PROTOCOL-LIMIT"):
        play(SEALED, Agreement(), publish, {"shop": shop, "telco": telco})


def test_an_error_of_the_serving_thread_is_the_runs_at_once() -> None:
    gs, _ = drawn(1)
    began = time.monotonic()

    def publish(role: ActiveResidual, channel: Channel) -> None:
        role.publish(gs[0], epoch=0, to=["shop"])
        channel.recv("shop", OpenedProduct)

    def ask(role: PassiveResidual, channel: Channel) -> None:
        role.reply()
        channel.send("bank", BlindedProduct(0, b"no ciphertext of anything"), "/opening")
        channel.recv("bank", OpenedProduct, "/opening")

    with pytest.raises(CryptoError):
        play(SEALED, Agreement(), publish, {"shop": ask})
    assert time.monotonic() - began < SOON


@pytest.mark.parametrize("who", ["bank", "shop"])
def test_a_party_that_stops_in_an_exchange_ends_all_threads(who: str) -> None:
    gs, _ = drawn(1)

    def publish(role: ActiveResidual, channel: Channel) -> None:
        role.publish(gs[0], epoch=0, to=["shop"])
        if who == "bank":
            raise ProtocolError("bank gives up")
        channel.recv("shop", OpenedProduct)

    def ask(role: PassiveResidual, channel: Channel) -> None:
        role.reply()
        if who == "shop":
            raise ProtocolError("shop gives up")
        channel.recv("bank", OpenedProduct)

    with pytest.raises(ProtocolError) as caught:
        play(SEALED, Agreement(), publish, {"shop": ask})
    assert caught.value.problem == f"{who} gives up"
    until = time.monotonic() + SOON
    while any(thread.name == "bank: openings" for thread in threading.enumerate()):
        assert time.monotonic() < until
        time.sleep(0.01)


def test_publishing_waits_for_open_exchanges_and_times_out() -> None:
    gs, _ = drawn(4)
    begun = threading.Event()

    def publish(role: ActiveResidual, channel: Channel) -> None:
        for g in gs:
            role.publish(g, epoch=0, to=["shop"])
            begun.set()

    def ask(role: PassiveResidual, channel: Channel) -> None:
        assert begun.wait(SOON)
        role.reply()
        channel.recv("bank", OpenedProduct, timeout=SOON)

    with raises_code(TransportError, "SVFL-PEER-AWAY"):
        play(SEALED, Agreement(), publish, {"shop": ask}, timeout=1.0)


def test_a_party_that_never_closes_is_named() -> None:
    gs, _ = drawn(1)
    begun = threading.Event()

    def publish(role: ActiveResidual, channel: Channel) -> None:
        role.publish(gs[0], epoch=0, to=["shop"])
        begun.set()

    def ask(role: PassiveResidual, channel: Channel) -> None:
        assert begun.wait(SOON)
        role.reply()
        channel.recv("bank", OpenedProduct, timeout=SOON)

    with raises_code(TransportError, "SVFL-PEER-AWAY"):
        play(SEALED, Agreement(), publish, {"shop": ask}, timeout=1.0)


@pytest.mark.parametrize("kind", [ResidualCiphertext, OpenedProduct])
def test_messages_of_another_exchange_are_rejected(kind: type, monkeypatch: pytest.MonkeyPatch) -> None:
    """A piece of g or an opening with another number must not be used for this exchange."""
    gs, Js = drawn(1)
    monkeypatch.setattr(row_plaintexts, "BLOCKS_PER_PIECE", 1)  # one message for each sample block

    def publish(role: ActiveResidual, channel: Channel) -> None:
        send, seen = channel.send, list[object]()

        def altered(to: str, message: Message, *args: Any, **keys: Any) -> None:
            seen.extend([message] * isinstance(message, kind))
            if isinstance(message, kind) and len(seen) == (2 if kind is ResidualCiphertext else 1):
                message = msgspec.structs.replace(message, exchange=message.exchange + 1)
            send(to, message, *args, **keys)

        monkeypatch.setattr(channel, "send", altered)
        role.publish(np.resize(gs[0], (LONG_MESSAGE_ROWS, 1)), epoch=0, to=["shop"])

    def ask(role: PassiveResidual, channel: Channel) -> None:
        J = np.resize(Js[0], (LONG_MESSAGE_ROWS, Js[0].shape[1]))
        role.reply().gradient(Given(J), Batch(0, 0, np.empty((LONG_MESSAGE_ROWS, 0))))

    with raises_code(ProtocolError, "SVFL-PROTOCOL-MESSAGE", party="bank"):
        play(SEALED, Agreement(), publish, {"shop": ask})
