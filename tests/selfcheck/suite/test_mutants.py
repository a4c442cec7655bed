"""Every mutant is caught by the check that the table names, which passes on the code as it is (test_checks.py).

`make test` applies the first mutant of each check, and all mutants of modules that differ from the commit $BASE; `make
soak` applies all.
"""

from __future__ import annotations

import os
import subprocess
from functools import cache
from pathlib import Path

import pytest

from selfcheck.checks.check_table import CHECKS
from selfcheck.mutants.mutant import Mutant, clear_caches, touched
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


_FIRST = {mutant.caught_by: mutant.name for mutant in reversed(MUTANTS)}


@cache
def _changed() -> frozenset[str]:
    """Name the modules whose files differ from the commit that the environment names as $BASE."""
    base, root = os.environ.get("BASE"), Path(__file__).parents[3]
    if not base or not (root / ".git").exists():
        return frozenset()
    listing = subprocess.run(
        ["git", "diff", "--name-only", base, "--", "securevfl", "crypto", "protocols"],
        cwd=root,
        capture_output=True,
        text=True,
        check=True,
    )
    files = [name if name.startswith("securevfl") else f"securevfl/{name}" for name in listing.stdout.split()]
    return frozenset(name.removesuffix(".py").replace("/", ".") for name in files)


def _later(mutant: Mutant) -> bool:
    """Return whether only `make soak` applies it."""
    if mutant.caught_by.startswith(_SLOW):
        return True
    return _FIRST[mutant.caught_by] != mutant.name and not (_changed() and touched(mutant) & _changed())


@pytest.mark.parametrize(
    "mutant", [pytest.param(mutant, id=mutant.name, marks=[pytest.mark.slow] * _later(mutant)) for mutant in MUTANTS]
)
def test_mutant_is_caught(mutant: Mutant) -> None:
    try:
        with mutant.apply():
            outcome = CHECKS[mutant.caught_by]()
    finally:
        clear_caches()
    kinds = {finding.check for finding in outcome.findings}
    assert mutant.finding in kinds, f"{mutant.name}: expected {mutant.finding}, found {kinds or 'nothing'}"


def test_every_mutant_still_finds_what_it_changes() -> None:
    """Mutants that only `make soak` tests are applied here, so that changed code does not silently lose its mutants."""
    for mutant in MUTANTS:
        with mutant.apply():
            pass


def test_there_are_forty_and_names_differ() -> None:
    assert len(MUTANTS) >= 40
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)
    assert {mutant.caught_by for mutant in MUTANTS} <= set(CHECKS)
