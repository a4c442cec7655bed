"""Statements of a consent sheet about opened weights, stop decisions, unique rows and repeats of a defence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import securevfl as vfl
from securevfl.audit.recording.party_recording import record_parties
from securevfl.disclosure.ledger import DisclosureLedger
from securevfl.disclosure.limits import Limit
from securevfl.errors import ConfigError, LeakageError
from securevfl.protocols.residuals.defences import Gaussian, zcdp_epsilon
from securevfl.protocols.residuals.open_residual import OpenResidual
from tests.builders import raises_code, sheet_part


def noise_tables(rows: int, columns: int) -> list[vfl.Party]:
    rng = np.random.default_rng(0)
    columns_of_bank, noise = rng.normal(size=(rows, 3)), rng.normal(size=(rows, columns))
    y = (columns_of_bank.sum(axis=1) + rng.normal(size=rows) > 0).astype(int)
    return [vfl.Party("bank", columns_of_bank, y, ids=np.arange(rows)), vfl.Party("shop", noise, ids=np.arange(rows))]


def trains_on_shares(**keys: Any) -> vfl.Job:
    shares = vfl.Shares(**{"chunk": 1, "open_weights": ("shop",)} | keys)
    return vfl.Job(
        model=vfl.Logistic(),
        optimizer=vfl.FedSGD(lr=0.3),
        protocol=vfl.Protocol(shares=shares),
        batch_size=80,
        epochs=2,
    )


@pytest.mark.long
@pytest.mark.parametrize(("rows", "refused"), [(160, True), (200, True), (201, False), (400, False)])
def test_opened_weights_as_many_as_labels_are_refused(rows: int, refused: bool) -> None:
    """200 opened weights could reveal 200 labels, so they are refused for a table of few rows.

    The same rule holds for an encrypted gradient of 200 columns, which is opened once for all rows.
    """
    sheet = vfl.explain(trains_on_shares(), noise_tables(rows, 200))
    assert ("would be refused: disclosure to shop: its opened weights are 200 numbers" in sheet) == refused
    if refused:
        with raises_code(LeakageError, "SVFL-LEAK-NOT-ACCEPTED", leaks=("rank",)):
            vfl.simulate(trains_on_shares(), noise_tables(rows, 200))
    assert "its opened weights are" not in vfl.explain(trains_on_shares(open_weights=()), noise_tables(rows, 200))


def test_a_sheet_says_what_scores_are_to_who_knows_its_weights() -> None:
    both = noise_tables(120, 4)
    sentence = "learns its own weights and scores: a score without its own part is the sum of the"
    assert sentence in vfl.explain(trains_on_shares(open_weights=("shop",), scores_to="shop"), both)
    assert sentence in vfl.explain(trains_on_shares(open_weights=("bank",)), both)
    assert sentence not in vfl.explain(trains_on_shares(open_weights=("shop",)), both)


def test_a_sheet_states_what_reason_codes_disclose() -> None:
    both = noise_tables(1200, 30)
    without = trains_on_shares(score_bits=3)
    job = without.model_copy(update={"reason_codes": 2})
    bank, shop = (sheet_part(vfl.explain(job, both), name) for name in ("bank", "shop"))
    assert "shop: at most 9.8 bits of a row, in addition to its score" in bank  # log2(30 * 29)
    assert "may send" not in bank  # its knowledge about its rows stays local
    assert "up to 2 codes, at most 9.8 bits of a row, under names that it chooses" in shop
    assert "reason codes" not in vfl.explain(without, both)
    alone = vfl.explain(job, [both[1]], others={"bank": 3})
    assert "at most 9.8 bits" in alone


def test_codes_and_scores_are_weighed_together_before_a_run() -> None:
    """Ten normal columns hold about 50 bits, and a fourth is twelve: levels of three fit, five codes do not."""
    both = noise_tables(1200, 10)
    few, many = (trains_on_shares(score_bits=3).model_copy(update={"reason_codes": k}) for k in (1, 5))
    assert "reason codes" in vfl.explain(few, both)
    assert "disclose up to 3 bits and 1 reason codes" not in vfl.explain(few, both)
    assert "disclose up to 3 bits and 5 reason codes 14.9 more" in vfl.explain(many, both)


@pytest.mark.parametrize(
    "keys",
    [
        {"protocol": "shares"},
        {"protocol": "open", "model": vfl.Softmax()},
        {"protocol": "shares", "model": "trees"},
    ],
    ids=["nobody knows weights", "several outputs", "no weights of columns"],
)
def test_reason_codes_that_nobody_could_give_are_refused(keys: dict[str, Any]) -> None:
    with raises_code(ConfigError, "SVFL-JOB-OPTION", option="reason_codes"):
        vfl.Job(**({"model": vfl.Logistic()} | keys | {"reason_codes": 2}))


def test_a_sheet_says_that_a_verdict_follows_from_labels() -> None:
    both = noise_tables(120, 4)
    early = trains_on_shares(open_weights=()).model_copy(
        update={"target": vfl.Target(metric="loss", value=0.3), "evaluate_every": 1}
    )
    assert "yes-or-no answers that depend on labels" in vfl.explain(early, both)
    assert "yes-or-no answers that depend on labels" not in vfl.explain(trains_on_shares(open_weights=()), both)


def test_the_party_with_labels_is_told_of_rows_that_stand_alone() -> None:
    bank, shop = noise_tables(120, 4)
    X = shop.X.copy()
    X[:, 3] = 0
    X[7, 3] = 1  # one row in all
    odd = vfl.Party("shop", X, ids=shop.ids)
    job = vfl.Job(
        model=vfl.Logistic(),
        optimizer=vfl.FedBCD(lr=0.1),
        protocol="ckks",
        batch_size=40,
        epochs=1,
        accepts=["columns"],
    )

    def of_bank(sheet: str) -> str:
        return sheet_part(sheet, "bank")

    assert "shop: 1 rows of 120 are nearly unique" in of_bank(vfl.explain(job, [bank, odd]))
    assert "are nearly unique" not in of_bank(vfl.explain(job, [bank, shop]))
    alone = vfl.explain(job, [bank], others={"shop": 4})
    assert "only that party can count them" in of_bank(alone)


def test_the_epsilon_of_repeats_is_that_of_all_runs(tmp_path: Path) -> None:
    parties = noise_tables(120, 4)
    ledgers = {party.name: DisclosureLedger(tmp_path / f"{party.name}.ledger", party.name) for party in parties}
    defence = Gaussian(sigma=20.0)
    job = vfl.Job(
        model=vfl.Logistic(),
        optimizer=vfl.FedBCD(lr=0.1),
        protocol=vfl.Protocol(residual=OpenResidual(defence=defence)),
        batch_size=40,
        epochs=2,
        accepts=["columns"],
    )
    ledgers["bank"].set_limit("labels", Limit(10.0, share=True))
    for done in range(3):
        epsilon = zcdp_epsilon(defence.rho(2 * (done + 1)), 1e-6)
        assert f"epsilon {epsilon:.3g} at delta 1e-06" in vfl.explain(job, parties, ledgers=ledgers)
        vfl.simulate(job, parties, ledgers=ledgers)


def test_runs_of_a_defence_compose_like_an_accountant() -> None:
    dp = pytest.importorskip("dp_accounting")
    rdp = pytest.importorskip("dp_accounting.rdp")
    defence, accountant = Gaussian(sigma=40.0), rdp.RdpAccountant()
    accountant.compose(dp.GaussianDpEvent(defence.sigma / defence.sensitivity), 300 * 10)
    assert zcdp_epsilon(300 * defence.rho(10), 1e-6) == pytest.approx(accountant.get_epsilon(1e-6), rel=0.02)


def test_the_sheet_that_counts_a_ledger_has_its_own_digest(tmp_path: Path) -> None:
    bank, shop = noise_tables(120, 4)
    job = vfl.Job(
        model=vfl.Logistic(),
        optimizer=vfl.FedBCD(lr=0.1),
        protocol="open",
        batch_size=40,
        epochs=1,
        accepts=["columns"],
    )
    ledgers = {party.name: DisclosureLedger(tmp_path / f"{party.name}.ledger", party.name) for party in (bank, shop)}
    seen = [vfl.explain(job, [shop], others={"bank": 3}, ledgers=ledgers).digest]
    assert seen == [vfl.explain(job, [shop], others={"bank": 3}).digest]
    for _ in range(2):
        vfl.simulate(job, [bank, shop], ledgers=ledgers)
        seen.append(vfl.explain(job, [shop], others={"bank": 3}, ledgers=ledgers).digest)
    assert len(set(seen)) == 3


def test_what_bins_tell_is_seen_by_who_observes() -> None:
    """Counts of classes in bins pass the same check as gradients, for every requesting party."""
    kinds = vfl.families.FAMILIES["rounds"]().example_jobs()["evidence"]
    job = vfl.Job(**{"batch_size": 40, "epochs": 1} | kinds | {"accepts": ["columns"]})
    _, tape = record_parties(job, noise_tables(120, 3))
    (opened,) = tape["shop"].bin_counts
    assert opened.J.shape[0] == 120
    assert [(entry.to, entry.numbers) for entry in tape["bank"].disclosures if entry.group == "bins"] == [
        ("shop", opened.J.shape[1])
    ]
