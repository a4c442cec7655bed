"""Simulators of every registered sum and residual, and of whole runs on shares."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any
from unittest import mock

import numpy as np

from securevfl.audit.run_simulators import run_views
from securevfl.audit.simulators import residual_views, sum_views
from securevfl.audit.transcript_checks import Outcome
from securevfl.data import datasets
from securevfl.families.shares import shares_plan
from securevfl.job import Job
from securevfl.models.linear import Logistic
from securevfl.models.trees import Trees
from securevfl.optim.fedbcd import FedSGD
from securevfl.protocols.number_spaces import Circle
from securevfl.protocols.protocol_options import RESIDUALS, SUMS, Protocol
from securevfl.protocols.shares.shares_options import Shares

_ROWS = 200

Check = Callable[[], Outcome]


def sum_checks() -> dict[str, Check]:
    """Return one check for each registered sum that is not too slow, and for each sum of phases that hides parts."""
    checks: dict[str, Check] = {}
    for name, kind in SUMS.items():
        for label, sums in kind.variants().items():
            if not sums.pooled:
                rounds, sessions = (3, 1) if sums.encrypts else (8, 2)
                checks[f"simulator sum {label}"] = partial(sum_views, sums, rounds=rounds, sessions=sessions)
        first = next(iter(kind.variants().values()))
        if first.hides_parts and not first.encrypts:
            checks[f"simulator phases {name}"] = partial(sum_views, first, Circle(32))
    return checks


def residual_checks() -> dict[str, Check]:
    """Return one check for each registered residual."""
    checks: dict[str, Check] = {}
    for kind in RESIDUALS.values():
        for label, residual in kind.variants().items():
            few: dict[str, int] = {"rows": 40, "batches": 5, "passives": 1} if residual.pooled else {}
            checks[f"simulator residual {label}"] = partial(residual_views, residual.with_smallest_keys, **few)
    return checks


def _check(parties: int, **keys: Any) -> Outcome:
    tables = [party.take(np.arange(_ROWS, dtype=np.intp)) for party in datasets.breast_cancer(parties=parties)]
    return run_views(
        Job(protocol=Protocol(shares=Shares(chunk=10)), batch_size="all", test_fraction=0.25, **keys), tables
    )


def _lifted() -> Outcome:
    """Check with table entries that are lifted (converted to L bits), as for more rows, and
    a party that holds no shares.
    """
    with mock.patch.object(shares_plan, "MIN_LIFTED_ROWS", 1):
        return _check(3, model=Logistic(), optimizer=FedSGD(lr=0.3), epochs=10)


CHECKS: dict[str, Check] = {
    **sum_checks(),
    **residual_checks(),
    "simulator shares": partial(_check, 3, model=Logistic(), optimizer=FedSGD(lr=0.3), epochs=10),
    "simulator shares, lifted": _lifted,
    "simulator shares, trees": partial(_check, 2, model=Trees(trees=4, depth=2), epochs=12),
}
