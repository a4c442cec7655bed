"""The page of optimizers and protocols covers all of them, and the nearest setting that a refusal names runs."""

from __future__ import annotations

from typing import Any

import pytest
from builders import SHARES_JOB, cancer_parties, make_job

import securevfl as vfl
from docs import optimizers_page
from securevfl.families.shares.shares_job import WHY_NOT
from securevfl.optim import OPTIMIZERS
from securevfl.optim.step_rules import STEP_RULES

NEAREST: dict[str, tuple[str, dict[str, Any]]] = {
    "FedSGD without `lr`": ("optimizer.lr: is missing; add it", {"name": "fedsgd", "lr": 0.05}),
    "FedBCD, sequential": ('mode = "parallel"', {"name": "fedbcd", "lr": 0.05, "mode": "parallel"}),
    "FedBCD with AdaGrad": ('use rule = "momentum"', {"name": "fedbcd", "lr": 0.05, "rule": "momentum"}),
    "FedBCD with Adam": ('use rule = "momentum"', {"name": "fedbcd", "lr": 0.05, "rule": "momentum"}),
    "FedPBCD with Adam": (
        'on shares no party sees a gradient; use the rule "momentum" or "sgd" with the proximal term',
        {"name": "fedpbcd", "lr": 0.05, "mu": 0.1, "rule": "momentum"},
    ),
    "CELU-VFL": ('use "fedbcd" with lr', {"name": "fedbcd", "lr": 0.05}),
    "Pipeline": ('use "fedsgd" with lr', {"name": "fedsgd", "lr": 0.05}),
    "BlockNewton": ('use "block_descent"', {"name": "block_descent"}),
    "FDML": ('use "fedsgd" with lr', {"name": "fedsgd", "lr": 0.05}),
    "FDML, all know the labels": ('use "fedsgd" with lr', {"name": "fedsgd", "lr": 0.05}),
    "FDSKL": ('use protocol = {sum = "auto"}', {}),
}
"""For each setting that shares refuse: a part of the remedy, and the optimizer that it names."""
CELLS = [
    (setting, protocol)
    for setting in optimizers_page.SETTINGS
    for protocol in optimizers_page.PROTOCOLS
    if protocol != "paillier" and not optimizers_page.refusal(setting, protocol)
]
"""The cells of the table that say yes, without Paillier, whose trainings are those under CKKS with another engine."""


def test_every_optimizer_and_rule_has_a_row() -> None:
    optimizers = [keys["optimizer"] for keys in optimizers_page.SETTINGS.values()]
    assert {options["name"] for options in optimizers} >= set(OPTIMIZERS)
    assert {options.get("rule", "sgd") for options in optimizers if isinstance(options.get("rule", "sgd"), str)} >= set(
        STEP_RULES
    )
    assert set(WHY_NOT) <= set(OPTIMIZERS)


def test_each_refusal_on_shares_names_the_nearest_setting() -> None:
    """The table of this test lists exactly the settings that are refused, with what their messages recommend."""
    refusals = {name: optimizers_page.refusal(name, "shares") for name in optimizers_page.SETTINGS}
    assert {name for name, text in refusals.items() if text} == set(NEAREST)
    for name, (remedy, _) in NEAREST.items():
        assert remedy in refusals[name]


def test_the_nearest_settings_train() -> None:
    """The nearest setting is in a cell of the table that trains (`test_every_accepted_setting_trains`), or trains."""
    trained = [job_of(setting, protocol).optimizer for setting, protocol in CELLS if protocol == "shares"]
    assert len(trained) >= 6
    for _, options in NEAREST.values():
        job = make_job(SHARES_JOB, optimizer=options or {"name": "fedsgd", "lr": 0.05}, epochs=1)
        if job.optimizer not in trained:
            trained.append(job.optimizer)
            assert vfl.simulate(job, cancer_parties(2, 120)).active.rounds


def job_of(setting: str, protocol: str) -> vfl.Job:
    """Return the job of a cell, with short steps for few rows."""
    keys = {"model": "logistic", "batch_size": 100, "epochs": 1, **optimizers_page.SETTINGS[setting]}
    if "lr" in keys["optimizer"]:
        keys["optimizer"] = keys["optimizer"] | {"lr": 0.05}
    if setting == "BlockNewton":
        keys["batch_size"] = "all"
    accepts = ("columns", "rank", "fresh_equations", "sequential")
    return vfl.Job.from_dict(keys | {"protocol": protocol, "accepts": accepts})


def test_ckks_and_paillier_accept_the_same_settings() -> None:
    for setting in optimizers_page.SETTINGS:
        assert optimizers_page.refusal(setting, "ckks") == optimizers_page.refusal(setting, "paillier")


@pytest.mark.parametrize(("setting", "protocol"), CELLS, ids=[" under ".join(cell) for cell in CELLS])
def test_every_accepted_setting_trains(setting: str, protocol: str) -> None:
    helpers = [vfl.Helper("server", "server")] if setting == "FDML" else []
    parties = [*cancer_parties(3 if helpers else 2, 120), *helpers]
    assert vfl.simulate(job_of(setting, protocol), parties).active.rounds


@pytest.mark.parametrize("protocol", ["ckks", "open"])
def test_block_descent_names_an_optimizer_that_runs_under(protocol: str) -> None:
    text = optimizers_page.refusal("BlockDescent", protocol)
    assert '"block_newton"' in text
    assert 'protocol = "shares"' in text
    job = make_job(protocol=protocol, optimizer={"name": "block_newton"}, batch_size="all", epochs=2)
    assert vfl.simulate(job, cancer_parties(2))


@pytest.mark.parametrize("setting", ["FDSKL", "FDML, all know the labels"])
def test_a_residual_that_nobody_sends_is_refused(setting: str) -> None:
    """The remedy of the refusal, a job without a residual, trains."""
    for protocol in ("ckks", "paillier", "open"):
        assert "leave it out" in optimizers_page.refusal(setting, protocol)
    keys = {"model": "logistic", **optimizers_page.SETTINGS[setting], "protocol": {"sum": "auto"}, "epochs": 1}
    job = vfl.Job.from_dict(keys | {"batch_size": 100, "accepts": ("columns", "rank", "fresh_equations")})
    helpers = [vfl.Helper("server", "server")] if setting != "FDSKL" else []
    assert vfl.simulate(job, [*cancer_parties(3, 120), *helpers]).active.rounds
