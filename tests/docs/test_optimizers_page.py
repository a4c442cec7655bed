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
    "CELU-VFL": ('use "fedbcd" with lr', {"name": "fedbcd", "lr": 0.05}),
    "Pipeline": ('use "fedsgd" with lr', {"name": "fedsgd", "lr": 0.05}),
    "BlockNewton": ('use "block_descent"', {"name": "block_descent"}),
    "FDML": ('use "fedsgd" with lr', {"name": "fedsgd", "lr": 0.05}),
    "FDSKL": ('use protocol = {sum = "auto"}', {}),
}
"""For each setting that shares refuse: a part of the remedy, and the optimizer that it names."""


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
    trained: list[dict[str, Any]] = []
    for _, optimizer in NEAREST.values():
        if optimizer and optimizer not in trained:
            trained.append(optimizer)
            assert vfl.simulate(make_job(SHARES_JOB, optimizer=optimizer, epochs=1), cancer_parties(2))
    kernel = {key: value for key, value in optimizers_page.SETTINGS["FDSKL"].items() if key != "protocol"}
    accepts = {"accepts": ("columns", "rank"), "batch_size": 100, "epochs": 1}
    assert vfl.simulate(vfl.Job.from_dict(kernel | accepts | {"protocol": {"sum": "auto"}}), cancer_parties(3))


@pytest.mark.parametrize("protocol", ["ckks", "open"])
def test_block_descent_names_an_optimizer_that_runs_under(protocol: str) -> None:
    text = optimizers_page.refusal("BlockDescent", protocol)
    assert '"block_newton"' in text
    assert 'protocol = "shares"' in text
    job = make_job(protocol=protocol, optimizer={"name": "block_newton"}, batch_size="all", epochs=2)
    assert vfl.simulate(job, cancer_parties(2))


def test_fdskl_refuses_a_residual() -> None:
    assert "leave it out" in optimizers_page.refusal("FDSKL", "ckks")
