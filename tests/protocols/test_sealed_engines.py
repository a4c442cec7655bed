"""Which products seal gradients: small residues where every party's numpy is exact, else SEAL's; models are alike."""

from __future__ import annotations

import logging

import msgspec
import numpy as np
import pytest
from scipy.stats import ks_2samp

import securevfl as vfl
from securevfl.protocols.engines import Engine, OnSeal
from securevfl.protocols.residuals.sealed_residual import SealedG
from securevfl.protocols.shares import share_engines
from securevfl.runtime.channel import Event
from securevfl.training import session

SEEDS = 20


def tables() -> list[vfl.Party]:
    return [party.take(np.arange(120)) for party in vfl.datasets.breast_cancer(2)]


def job(protocol: vfl.Protocol) -> vfl.Job:
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
        if isinstance(event.message, SealedG):
            seen.add(event.message.ciphertext[:4])

    vfl.simulate(job(vfl.Protocol(residual=engine)), tables(), workers=1, observe=observe)
    return seen


def test_products_are_of_small_residues_where_everyone_is_exact() -> None:
    assert magics(vfl.Ckks()) == {b"SGG2"}
    assert magics(OnSeal()) == {b"SLG2"}


@pytest.mark.parametrize("inexact", ["bank", "shop"])
def test_one_party_that_is_not_exact_puts_all_on_seal_and_that_is_said(
    inexact: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    introduce = session._introduce

    def own(given: vfl.Job, party: vfl.Party, *rest: object) -> object:
        found = introduce(given, party, *rest)  # type: ignore[arg-type]
        return msgspec.structs.replace(found, exact=party.name != inexact)

    monkeypatch.setattr(session, "_introduce", own)
    with caplog.at_level(logging.WARNING):
        assert magics(vfl.Ckks()) == {b"SLG2"}
    said = [record.getMessage() for record in caplog.records if "products on a slower engine" in record.getMessage()]
    assert len(said) == 2
    assert all(inexact in line for line in said)


@pytest.mark.slow
def test_losses_on_either_engine_are_drawn_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    """Over 20 runs each, whose masks, noise and rounding are fresh; Kolmogorov and Smirnov's test."""

    def losses(protocol: vfl.Protocol) -> list[float]:
        return [vfl.simulate(job(protocol), tables(), workers=1).metrics["loss"] for _ in range(SEEDS)]

    assert ks_2samp(losses(vfl.Protocol(residual=vfl.Ckks())), losses(vfl.Protocol(residual=OnSeal()))).pvalue > 1e-7
    shares = vfl.Protocol(shares=vfl.Shares(chunk=3))
    on_kernel = losses(shares)
    monkeypatch.setattr(share_engines, "ENGINES", share_engines.ENGINES[1:])
    on_seal = losses(shares)
    assert ks_2samp(on_kernel, on_seal).pvalue > 1e-7
    assert np.std(on_kernel) > 0
