"""Which engine a session's products are on: the kernel if all can run it, SEAL if one cannot, and then it is said."""

from __future__ import annotations

import logging

import numpy as np
import pytest
from selfcheck.whole_weights import whole_weights

import securevfl as vfl
from securevfl.crypto.kernel import check
from securevfl.crypto.kernel.shares import KernelShares
from securevfl.crypto.lattice.bfv_product import LatticeShares
from securevfl.errors import ProtocolError
from securevfl.protocols.shares import share_engines
from securevfl.protocols.shares.share_engines import agreed, available
from securevfl.protocols.shares.share_products import Products, Query
from securevfl.runtime.channel import Event

BOTH = KernelShares(48), LatticeShares(48)


def test_the_first_that_all_can_run_is_taken():
    for told, name in (
        ({"b": ("kernel", "lattice"), "c": ("lattice", "kernel")}, "kernel"),
        ({"b": ("kernel", "lattice"), "c": ("lattice",)}, "lattice"),
        ({"b": ("lattice", "of a later release")}, "lattice"),
        ({"b": ("kernel",)}, "kernel"),
    ):
        assert agreed(BOTH, told, "a").name == name
        assert agreed(BOTH[::-1], told, "a").name == name
    assert agreed(BOTH[1:], {"b": ("kernel", "lattice")}, "a").name == "lattice"


@pytest.mark.parametrize("names", [(), ("kernel",), ("of a later release",)])
def test_parties_without_an_engine_in_common_are_told(names):
    with pytest.raises(ProtocolError, match="lattice"):
        agreed(BOTH[1:], {"b": names}, "a")


def test_a_machine_whose_blas_is_odd_has_seal_alone(monkeypatch):
    assert [scheme.name for scheme in available(48)] == ["kernel", "lattice"]
    monkeypatch.setattr(check, "fault", lambda: "odd; install another")
    assert [scheme.name for scheme in available(48)] == ["lattice"]


@pytest.fixture(scope="module")
def game():
    job = vfl.Job(
        model=vfl.Logistic(),
        optimizer=vfl.FedSGD(lr=0.3),
        protocol=vfl.Protocol(shares=vfl.Shares(chunk=5)),
        batch_size="all",
        epochs=10,
        test_fraction=0.3,
    )
    return job, [party.take(np.arange(120)) for party in vfl.datasets.breast_cancer(3)]


def magics(game):
    """The weights of a run, and the magics of the queries in it."""
    seen = set()

    def observe(event: Event) -> None:
        if isinstance(event.message, Query):
            seen.add(event.message.ciphertext[:4])

    run = vfl.simulate(*game, workers=1, observe=observe)
    weights = whole_weights(game[0], {name: part.state for name, part in run.parts.items()}, "bank")
    return np.concatenate([weights[name] for name in sorted(weights)]), seen


def test_one_party_that_cannot_puts_all_on_seal_which_is_said_and_gives_the_same_model(game, monkeypatch, caplog):
    on_kernel, seen = magics(game)
    assert seen == {b"SKV2"}
    init = Products.__init__

    def without(self, seat, partner, schemes):
        init(self, seat, partner, schemes[1:] if seat.me == "telco" else schemes)

    monkeypatch.setattr(Products, "__init__", without)
    with caplog.at_level(logging.WARNING, logger="securevfl"):
        on_seal, seen = magics(game)
    assert seen == {b"SSV1"}
    said = [record for record in caplog.records if "slower engine" in record.getMessage()]
    assert said
    assert all("telco" in record.getMessage() for record in said)
    assert {record.levelno for record in said} == {logging.WARNING}
    np.testing.assert_allclose(on_kernel, on_seal, atol=0.1)  # the table rounds at random in either


def test_engines_are_in_the_order_of_preference():
    assert [engine.name for engine in share_engines.ENGINES] == ["kernel", "lattice"]


@pytest.mark.parametrize("times", [2, 3])
def test_a_holder_that_asks_with_other_vectors_than_agreed_is_refused(game, monkeypatch, times):
    """Each vector more would be a product more of the others' columns with whatever the holder likes."""
    ask = Products.ask

    def more(self, work, names, holder, vectors, **keys):
        own = {batch: np.hstack([V] * times) for batch, V in vectors.items()} if self.seat.me == "bank" else vectors
        ask(self, work, names, holder, own, **keys)

    monkeypatch.setattr(Products, "ask", more)
    with pytest.raises(ProtocolError, match=r"a query of 5 vectors about batch 0 was expected, one of \d+ came"):
        vfl.simulate(*game, workers=1)
