"""Leak checks are monotone in earlier disclosures, and the ledger's fast check agrees with its exact search.

The ledger first checks a job as if one row were in all tables that share rows with the job's table. If the job is
allowed, it does not search the row about which most was disclosed. That is right only if more earlier disclosures never
remove a leak.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import securevfl as vfl
from securevfl.consent.leak_check import check_leaks, leaks
from securevfl.data.id_keys import id_keys
from securevfl.data.register import Register
from securevfl.disclosure.counts import Disclosure, RunShape
from securevfl.disclosure.ledger import DisclosureLedger
from securevfl.disclosure.ledger_contents import LedgerEntry
from securevfl.disclosure.limits import KIND_TOTALS, Limit
from securevfl.errors import LeakageError
from securevfl.families import leak_kinds
from securevfl.families.run_facts import pooled_run_facts
from tests.builders import disclosures_in_run, raises_code
from tests.disclosure.disclosed_jobs import cases

SHARES = (1e-4, 0.1, 0.3, 0.3, 0.45, 0.6, 1.2)
"""Shares of everything that one earlier disclosure may have: from next to nothing to more than all."""


@cache
def shapes() -> dict[str, tuple[vfl.Job, RunShape]]:
    """Return the jobs of all families with the public sizes of their runs."""
    return {name: (job, pooled_run_facts(job, parties).shape) for name, (job, parties) in cases().items()}


@cache
def disclosed_anywhere() -> tuple[Disclosure, ...]:
    """Return the disclosures of all jobs that have a capacity, without repetitions."""
    everything = (item for job, shape in shapes().values() for item in disclosures_in_run(job, shape))
    return tuple(dict.fromkeys(item for item in everything if item.capacity))


def drawn_disclosures(draw: np.random.Generator, number: int) -> list[Disclosure]:
    """Return disclosures of random jobs with random shares; some have one of two identities."""
    known, result = disclosed_anywhere(), list[Disclosure]()
    for _ in range(number):
        item, share = known[draw.integers(len(known))], draw.choice(SHARES)
        identity = str(draw.choice(["", "", "first", "second"])) if item.kind == "labels" else ""
        result.append(replace(item, count=max(1, round(share * item.capacity)), identity=identity))
    return result


def leaking(job: vfl.Job, shape: RunShape, before: Sequence[Disclosure] = ()) -> set[tuple[str, str]]:
    """Return the name of each leak with each party that learns something by it."""
    return {(leak.name, name) for leak in leaks(job, shape, before) for name in leak.who.split(", ")}


@pytest.mark.parametrize("name", sorted(cases()))
def test_more_disclosures_never_remove_a_leak(name: str) -> None:
    """Neither earlier ones, nor those of the job itself by larger models, smaller batches or more epochs."""
    job, shape = shapes()[name]
    for seed in range(10):
        before, fewer = drawn_disclosures(np.random.default_rng(seed), 12), leaking(job, shape)
        for number in range(1, len(before) + 1):
            more = leaking(job, shape, before[-number:])
            assert fewer <= more, (seed, number)
            fewer = more
    larger = {passive: 100 * count for passive, count in shape.parameters.items()}
    assert leaking(job, shape) <= leaking(job, replace(shape, parameters=larger))
    assert leaking(job, replace(shape, smallest_batch=1000)) <= leaking(job, shape)
    assert leaking(job, shape) <= leaking(job.model_copy(update={"epochs": 40}), replace(shape, epochs=40))


def register(rows: np.ndarray) -> Register:
    return Register.of_ids(id_keys("bank", [rows.tolist()]))


def longer(shape: RunShape, times: int) -> RunShape:
    """Return the sizes of a run whose table and batches have that many times as many rows."""
    rows, batch = shape.rows * times, shape.smallest_batch * times
    return replace(shape, rows=rows, held_out=shape.held_out * times, smallest_batch=batch)


def refusals(action: Any) -> bool:
    """Return whether an action is refused because of a leak or a limit."""
    try:
        action()
    except LeakageError:
        return True
    return False


@pytest.mark.parametrize("seed", [*range(4), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(4, 8))])
def test_the_fast_check_refuses_what_the_search_refuses(seed: int, tmp_path: Path) -> None:
    """Random jobs of all families, on tables of which some share rows, with random limits and accepted leaks."""
    draw = np.random.default_rng(seed)
    ledger = DisclosureLedger(tmp_path / "bank.ledger", "bank")
    jobs, kinds = shapes(), sorted(leak_kinds())
    for number in range(5):
        rows = draw.permutation(60)[: draw.integers(5, 40)]
        disclosures = drawn_disclosures(draw, int(draw.integers(1, 3)))
        ledger.record(register(rows), (f"run {number}", ""), disclosures)
    counted = 0
    for trial in range(60):
        names = sorted(jobs) if draw.random() < 0.5 else ["shares, all weights", "rounds, new batches", "neural"]
        job, shape = jobs[str(draw.choice(names))]
        shape = longer(shape, int(draw.choice([1, 10, 100])))
        refused = draw.choice(kinds, draw.integers(1, 3))
        accepted = [kind for kind in kinds if kind not in refused]
        job = job.model_copy(update={"accepts": tuple(accepted)})
        kind = sorted(KIND_TOTALS)[draw.integers(len(KIND_TOTALS))]
        ledger.set_limit(kind, Limit(float(draw.uniform(0.2, 6)), share=True) if draw.random() < 0.5 else None)
        table, disclosures = register(draw.permutation(60)[: draw.integers(2, 20)]), disclosures_in_run(job, shape)

        def check(before: Sequence[LedgerEntry], job: vfl.Job = job, shape: RunShape = shape) -> None:
            check_leaks(job, shape, [entry.disclosure for entry in before])

        session = (f"trial {trial}", "")
        before, beyond = ledger.forecast(table, disclosures)
        exact = bool(beyond) or refusals(lambda check=check, before=before: check(before))
        fast = refusals(
            lambda table=table, session=session, disclosures=disclosures, check=check: ledger.check_admission(
                table, session, disclosures, check
            )
        )
        assert fast == exact, (trial, accepted)
        counted += exact
    assert 0 < counted < 60


def test_a_leak_that_only_the_exact_search_finds_is_refused(tmp_path: Path) -> None:
    """If one row were in all earlier tables, `rank` would be reached, which the job accepts; its real rows are not.

    Each row of the job's table is in one of two earlier tables, which disclosed 60 % of the bits of their labels each.
    """
    job, shape = shapes()["shares, all weights"]
    shape = longer(shape, 100)
    (weights, *_) = [item for item in disclosures_in_run(job, shape) if item.kind == "labels"]
    ledger = DisclosureLedger(tmp_path / "bank.ledger", "bank")
    for number, rows in enumerate((np.arange(10), np.arange(10, 20))):
        earlier = replace(weights, count=round(0.6 * weights.capacity), identity="")
        ledger.record(register(rows), (f"run {number}", ""), [earlier])
    job = job.model_copy(update={"accepts": tuple(kind for kind in leak_kinds() if kind != "opened_weights")})

    def check(before: Sequence[LedgerEntry]) -> None:
        check_leaks(job, shape, [entry.disclosure for entry in before])

    check([])
    table = register(np.arange(5, 15))
    with raises_code(LeakageError, "SVFL-LEAK-NOT-ACCEPTED", leaks=("opened_weights",) * 2):
        ledger.check_admission(table, ("job", ""), disclosures_in_run(job, shape), check)
