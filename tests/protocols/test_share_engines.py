"""Products of a session use the library that the job names, and never silently another one."""

from __future__ import annotations

import numpy as np
import pytest
from selfcheck.whole_weights import whole_weights

import securevfl as vfl
from securevfl.crypto.kernel import blas_check
from securevfl.errors import ConfigError, ProtocolError
from securevfl.protocols import engines
from securevfl.protocols.shares.share_products import ProductQuery, Products
from securevfl.protocols.shares.share_schemes import SHARE_SCHEMES as LIBRARIES
from securevfl.runtime.observer import Event
from tests.builders import raises_code


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


def magics(game, library):
    """Return the weights of a run, and the first bytes of its queries, which name the library."""
    seen = set()

    def observe(event: Event) -> None:
        if isinstance(event.message, ProductQuery):
            seen.add(event.message.ciphertext[:4])

    shares = game[0].protocol.shares.model_copy(update={"library": library})
    job = game[0].model_copy(update={"protocol": vfl.Protocol(shares=shares)})
    run = vfl.simulate(job, game[1], workers=1, observe=observe)
    weights = whole_weights(job, {name: part.state for name, part in run.parts.items()}, "bank")
    return np.concatenate([weights[name] for name in sorted(weights)]), seen


def test_either_library_trains_the_same_model(game):
    on_kernel, seen = magics(game, "own")
    assert seen == {b"SKV2"}
    on_seal, seen = magics(game, "seal")
    assert seen == {b"SSV2"}
    # in both runs, entries of the lookup table are rounded at random
    np.testing.assert_allclose(on_kernel, on_seal, atol=0.1)


@pytest.mark.parametrize(
    "protocol", [vfl.Protocol(shares=vfl.Shares()), vfl.Protocol(residual=vfl.Ckks())], ids=["shares", "sealed"]
)
def test_an_inexact_blas_is_refused_with_the_other_library(game, monkeypatch, protocol):
    monkeypatch.setattr(blas_check, "blas_problem", lambda: "odd; install another")
    engines._lattice.cache_clear()
    keys = {"accepts": ["columns"], "optimizer": vfl.FedSGD(lr=0.3), "protocol": protocol, "epochs": 1}
    with raises_code(ConfigError, "SVFL-CRYPTO-LIBRARY"):
        vfl.simulate(vfl.Job(model=vfl.Logistic(), batch_size="all", **keys), game[1], workers=1)


def test_parties_agree_on_the_library():
    protocols = [vfl.Protocol(shares=vfl.Shares(library=library)) for library in LIBRARIES]
    jobs = [vfl.Job(model=vfl.Logistic(), protocol=protocol) for protocol in protocols]
    assert len({job.digest for job in jobs}) == len(LIBRARIES)


@pytest.mark.parametrize("times", [2, 3])
def test_queries_with_more_vectors_than_agreed_are_refused(game, monkeypatch, times):
    """Each further vector would give the holder a product of the others' columns with a vector of its choice."""
    ask = Products.send_queries

    def more(self, work, names, holder, vectors, **keys):
        repeated = (
            {batch: np.hstack([V] * times) for batch, V in vectors.items()} if self.context.me == "bank" else vectors
        )
        ask(self, work, names, holder, repeated, **keys)

    monkeypatch.setattr(Products, "send_queries", more)
    with raises_code(ProtocolError, "SVFL-PROTOCOL-SIZE"):
        vfl.simulate(*game, workers=1)
