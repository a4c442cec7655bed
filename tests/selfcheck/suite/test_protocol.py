"""The audit of one protocol: checker and simulators. Add one fixture to audit another protocol.

In a test file for your protocol:

    import pytest
    import securevfl as vfl
    from selfcheck.suite.test_protocol import *  # the tests

    @pytest.fixture
    def protocol_under_test():
        return vfl.Protocol(sum=MySum(), residual=MyResidual())

`sum` is any `SumProtocol` for two passive parties or more, `residual` any `ResidualProtocol`. The tests play both with
several parties over two sessions, compare every message with `declares`, and compare every role's view with
a simulated one. Without that fixture, the tests use the protocol of the job file that SECUREVFL_JOB names:

    SECUREVFL_JOB=job.toml pytest tests/selfcheck/suite/test_protocol.py
"""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from securevfl.audit import simulators
from securevfl.audit.statistics import MAX_TESTS
from securevfl.audit.transcript_checks import Outcome
from securevfl.job import Job
from securevfl.models.linear import Logistic
from securevfl.optim.fedbcd import FedBCD
from securevfl.protocols.engines import Ckks
from securevfl.protocols.protocol_options import Protocol
from selfcheck.checks import check_table as checks
from selfcheck.suite.budget import Budget, budget

__all__ = [
    "budget",
    "test_job_shows_what_is_declared",
    "test_residual_shows_what_is_declared",
    "test_residual_views_can_be_simulated",
    "test_sum_shows_what_is_declared",
    "test_sum_views_can_be_simulated",
]


@pytest.fixture
def protocol_under_test() -> Protocol:
    """Return the protocol of the job file given, or the library's default under CKKS."""
    job = os.environ.get("SECUREVFL_JOB")
    return Protocol(residual=Ckks()) if job is None else Job.load(job).protocol


def _clean(budget: Budget, work: Callable[[], Outcome]) -> None:
    outcome = work()
    budget.spend(outcome.tests, most=MAX_TESTS)
    assert not outcome.findings, "\n".join(map(str, outcome.findings))


def test_sum_shows_what_is_declared(protocol_under_test: Protocol, budget: Budget) -> None:
    _clean(budget, lambda: checks.sum_check(protocol_under_test.sum_for(4), rounds=3))


def test_residual_shows_what_is_declared(protocol_under_test: Protocol, budget: Budget) -> None:
    residual = protocol_under_test.residual
    if residual is None:
        pytest.skip("this protocol sends no residual")
    _clean(budget, lambda: checks.residual_check(residual))


def test_job_shows_what_is_declared(protocol_under_test: Protocol, budget: Budget) -> None:
    if protocol_under_test.residual is None:
        pytest.skip("linear models need a residual")
    model, optimizer = Logistic(l2=1e-3), FedBCD(local_steps=3, lr=0.2)
    _clean(budget, lambda: checks.job_check(model=model, optimizer=optimizer, protocol=protocol_under_test))


def test_sum_views_can_be_simulated(protocol_under_test: Protocol, budget: Budget) -> None:
    _clean(budget, lambda: simulators.sum_views(protocol_under_test.sum_for(4), rounds=3, sessions=1))


def test_residual_views_can_be_simulated(protocol_under_test: Protocol, budget: Budget) -> None:
    residual = protocol_under_test.residual
    if residual is None:
        pytest.skip("this protocol sends no residual")
    _clean(budget, lambda: simulators.residual_views(residual))
