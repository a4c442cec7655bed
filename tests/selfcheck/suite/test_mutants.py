"""Every mutant is caught by the check that the table names, which passes on the code as it is (test_checks.py)."""

from __future__ import annotations

import pytest

from selfcheck.checks.check_table import CHECKS
from selfcheck.mutants.mutant import Mutant
from selfcheck.mutants.mutant_table import MUTANTS

_SLOW = (
    "simulator",
    "engine paillier",
    "Paillier recomputed",
    "bits of Paillier",
    "secret keys stay home",
    "whole digests of paillier",
    "whole digests of lattice",
)


@pytest.mark.parametrize(
    "mutant",
    [pytest.param(each, id=each.name, marks=[pytest.mark.slow] * each.caught_by.startswith(_SLOW)) for each in MUTANTS],
)
def test_mutant_is_caught(mutant: Mutant) -> None:
    with mutant.apply():
        outcome = CHECKS[mutant.caught_by]()
    kinds = {finding.check for finding in outcome.findings}
    assert mutant.finding in kinds, f"{mutant.name}: expected {mutant.finding}, found {kinds or 'nothing'}"


def test_there_are_forty_and_names_differ() -> None:
    assert len(MUTANTS) >= 40
    assert len({each.name for each in MUTANTS}) == len(MUTANTS)
    assert {each.caught_by for each in MUTANTS} <= set(CHECKS)
