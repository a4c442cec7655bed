"""Every check passes on the library as it is."""

from __future__ import annotations

import pytest

from securevfl.audit.checker import Outcome
from securevfl.audit.checks import CHECKS
from securevfl.audit.statistics import MOST_TESTS

_SLOW = ("simulator", "paillier")


@pytest.fixture(scope="module")
def tally() -> list[int]:
    return []


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * any(word in name for word in _SLOW)) for name in CHECKS]
)
def test_check(name: str, tally: list[int]) -> None:
    outcome: Outcome = CHECKS[name]()
    tally.append(outcome.tests)
    assert not outcome.findings, "\n".join(map(str, outcome.findings))


def test_no_more_p_values_than_the_level_allows(tally: list[int]) -> None:
    """The suite runs its checks here and once more for a user's protocol; mutants are meant to fail."""
    assert 2 * sum(tally) <= MOST_TESTS
