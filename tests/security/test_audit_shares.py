"""Audits of jobs on secret shares: nothing exceeds the declaration, and a party's shares reveal no labels."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np
import pytest
from scipy import stats

import securevfl as vfl
from securevfl import errors
from securevfl.audit.attacks import ATTACKS, LabelAttack, label_auc
from securevfl.audit.recording.real_ideal_pair import RealIdealPair
from securevfl.audit.report import run_audit
from securevfl.consent.leak_check import check_leaks
from securevfl.families.run_facts import pooled_run_facts
from tests.builders import raises_code

BLIND = ("shared_residual", "partial_score", "residual_sign", "residual_norm", "residual_direction", "batch_inversion")


def shares_job(**keys: Any) -> vfl.Job:
    defaults: dict[str, Any] = {
        "model": vfl.Logistic(),
        "optimizer": vfl.FedSGD(lr=0.3),
        "batch_size": 150,
        "epochs": 6,
    }
    return vfl.Job(**(defaults | {"protocol": vfl.Protocol(shares=vfl.Shares(chunk=3)), "test_fraction": 0.25} | keys))


@pytest.mark.long
def test_nothing_exceeds_what_is_declared() -> None:
    """Metrics of 142 rows must be accepted by name."""
    parties, job = vfl.datasets.breast_cancer(2), shares_job(epochs=2)
    with raises_code(errors.LeakageError, "SVFL-LEAK-NOT-ACCEPTED"):
        check_leaks(job, pooled_run_facts(job, parties).shape)
    audit = run_audit(shares_job(epochs=2, accepts=["small_metrics"]), parties, seeds=(0,))
    assert audit.exit_code == 0, [*audit.exceeding, *audit.failed]
    assert [line.split(" of ")[0] for line in audit.leaks] == ["accepted: disclosure to bank: metrics are"]
    assert {inference.name.replace(" ", "_") for inference in audit.inferences} > set(BLIND)
    assert set(audit.roles.values()) == {"active", "partner"}


def test_weights_in_the_clear_would_rank_labels() -> None:
    """The same attack succeeds on the same job with an open residual."""
    opened = shares_job(protocol=vfl.Protocol(residual="open"), accepts=["columns"])
    assert ATTACKS["partial_score"](opened, vfl.datasets.breast_cancer(2), 0).real > 0.9


@pytest.mark.slow
def test_attacks_are_at_chance_over_twenty_seeds() -> None:
    """All means are within 0.04 of 0.5, that is, six standard errors, except that of `partial_score`.

    A share of the weights ranks rows along one random direction. So its AUC is far from 0.5 in either sense, as that of
    directions which are drawn without any training.
    """
    parties, result = vfl.datasets.breast_cancer(3), defaultdict[tuple[str, str], list[float]](list)
    drawn = defaultdict[str, list[float]](list)
    for seed in range(20):
        pair = RealIdealPair(shares_job(), parties, seed)
        for attacker in ("shop", "telco"):
            for name in BLIND:
                attack = ATTACKS[name]
                assert isinstance(attack, LabelAttack)
                result[name, attacker].append(label_auc(attack.guess(pair.real(attacker), pair), pair.labels))
            view, rng = pair.real(attacker), np.random.default_rng([seed, 7])
            for _ in range(25):
                direction = view.X @ rng.uniform(-1, 1, view.theta.shape)
                drawn[attacker].append(label_auc(direction, pair.labels))
    for (name, attacker), aucs in result.items():
        mean, error = float(np.mean(aucs)), float(np.std(aucs)) / 20**0.5
        print(f"{attacker}: {name} {mean:.3f} +- {error:.3f}")
        if name == "partial_score":
            assert stats.ks_2samp(aucs, drawn[attacker]).pvalue > 1e-9, attacker
            assert np.std(drawn[attacker]) > 0.1  # so that a mean of 20 may deviate by 0.03
        else:
            assert abs(mean - 0.5) <= 0.04, (name, attacker)
