"""Every check passes on the library as it is."""

from __future__ import annotations

import pytest

from securevfl.audit.statistics import MAX_TESTS
from securevfl.audit.transcript_checks import Outcome
from selfcheck.checks.check_table import CHECKS
from selfcheck.suite.budget import Budget, budget

__all__ = ["budget", "test_check"]

_SLOW = ("simulator", "paillier", "whole digests of lattice")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * any(word in name for word in _SLOW)) for name in CHECKS]
)
def test_check(name: str, budget: Budget) -> None:
    outcome: Outcome = CHECKS[name]()
    budget.spend(outcome.tests, most=MAX_TESTS)
    assert not outcome.findings, "\n".join(map(str, outcome.findings))
