"""Encrypted gradients use the library that the job names, and models of both libraries are alike."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import ks_2samp

import securevfl as vfl
from securevfl.protocols.engines import Engine
from securevfl.protocols.residuals.sealed_residual import ResidualCiphertext
from securevfl.runtime.observer import Event

SEEDS = 20


def engine_parties() -> list[vfl.Party]:
    return [party.take(np.arange(120)) for party in vfl.datasets.breast_cancer(2)]


def engine_job(protocol: vfl.Protocol) -> vfl.Job:
    return vfl.Job(
        model=vfl.Logistic(),
        optimizer=vfl.FedSGD(lr=0.3),
        protocol=protocol,
        batch_size="all",
        epochs=3,
        accepts=["columns", "small_metrics"],
    )


def magics(engine: Engine) -> set[bytes]:
    seen = set()

    def observe(event: Event) -> None:
        if isinstance(event.message, ResidualCiphertext):
            seen.add(event.message.ciphertext[:4])

    vfl.simulate(engine_job(vfl.Protocol(residual=engine)), engine_parties(), workers=1, observe=observe)
    return seen


def test_products_are_of_the_library_that_the_job_names() -> None:
    assert magics(vfl.Ckks()) == {b"SGG2"}
    assert magics(vfl.Ckks(library="seal")) == {b"SLG3"}


@pytest.mark.slow
def test_losses_on_either_engine_are_drawn_alike() -> None:
    """Losses of 20 runs with each library have the same distribution, by the test of Kolmogorov and Smirnov."""

    def losses(protocol: vfl.Protocol) -> list[float]:
        return [vfl.simulate(engine_job(protocol), engine_parties(), workers=1).metrics["loss"] for _ in range(SEEDS)]

    assert (
        ks_2samp(
            losses(vfl.Protocol(residual=vfl.Ckks())), losses(vfl.Protocol(residual=vfl.Ckks(library="seal")))
        ).pvalue
        > 1e-7
    )
    on_kernel, on_seal = (
        losses(vfl.Protocol(shares=vfl.Shares(chunk=3, library=library))) for library in ("own", "seal")
    )
    assert ks_2samp(on_kernel, on_seal).pvalue > 1e-9
    assert np.std(on_kernel) > 0
