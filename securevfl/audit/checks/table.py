"""The checks by name: each runs a protocol, an engine or a guard as it is, and says what it found.

A name is what the table of mutants refers to and what a test of the suite is called by. An empty outcome passes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from securevfl.audit.checks import (
    alignment,
    answers,
    bindings,
    chosen,
    engines,
    evidence,
    hygiene,
    lattice_draws,
    paillier_draws,
    recompute_psi,
    recompute_sums,
    repeats,
    session,
    shares,
    simulators,
    simulators_shares,
    stored,
    theorem,
)
from securevfl.audit.checks.draws import watched
from securevfl.audit.checks.transcripts import Outcome, check_transcript, same_shape
from securevfl.audit.recording.transcript import Transcript, record, record_residual, record_sum
from securevfl.data import samples
from securevfl.data.party import Helper, Party
from securevfl.job import Job
from securevfl.methods import METHODS
from securevfl.protocols.base import Circle, Reals, ResidualProtocol, Space, SumProtocol
from securevfl.protocols.defences import Gaussian, Rounding
from securevfl.protocols.engines import ENGINES, Ckks
from securevfl.protocols.open_residual import OpenResidual
from securevfl.protocols.registry import RESIDUALS, SUMS
from securevfl.protocols.sealed_residual import SealedResidual
from securevfl.protocols.tree_sum import TreeSum
from securevfl.roles import ACTIVE

Check = Callable[[], Outcome]

_PASSIVES = ("P1", "P2", "P3", "P4")


def parts(seed: int, space: Space, *, rounds: int = 4, rows: int = 120) -> list[dict[str, NDArray[Any]]]:
    """What passive parties contribute: nearly the same in every round, so that a mask used twice shows."""
    generator = np.random.default_rng(seed)
    base = {name: generator.normal(size=(rows, 1)) for name in _PASSIVES}
    found: list[dict[str, NDArray[Any]]] = []
    for _ in range(rounds):
        own: dict[str, NDArray[Any]] = {
            name: values + 1e-3 * generator.normal(size=values.shape) for name, values in base.items()
        }
        if isinstance(space, Circle):
            own = {name: (values * 100).astype(np.int64).astype(np.uint32) & 0xFFFF for name, values in own.items()}
        found.append(own)
    return found


def sum_check(protocol: SumProtocol, space: Space | None = None, *, rounds: int = 4) -> Outcome:
    """A sum protocol over two sessions: transcripts, sizes, and the randomness behind them."""
    chosen = space or Reals()
    with watched() as draws:
        runs = [record_sum(protocol, parts(seed, chosen, rounds=rounds), chosen) for seed in range(2)]
    return _judge(runs).merge(draws.outcome())


def residual_check(protocol: ResidualProtocol, *, passives: int = 2, rows: int = 60) -> Outcome:
    """A residual protocol over two sessions of two epochs."""
    with watched() as draws:
        runs = []
        for seed in range(2):
            generator = np.random.default_rng(seed)
            g = [generator.uniform(-1, 1, (rows, 1)) for _ in range(3)]
            J = {name: [generator.normal(size=(rows, 5)) for _ in g] for name in _PASSIVES[:passives]}
            runs.append(record_residual(protocol, g, J, epochs=2))
    return _judge(runs).merge(draws.outcome())


def _judge(runs: Sequence[Transcript]) -> Outcome:
    return check_transcript(*runs).merge(same_shape(runs[0], runs[1]))


def small_job(**keys: Any) -> Job:
    """Six rounds on the table of `small_parties`."""
    return Job(**({"batch_size": 60, "epochs": 2} | keys))


def small_parties(count: int = 4) -> list[Party]:
    """180 rows of the breast cancer table."""
    return [party.take(np.arange(180, dtype=np.intp)) for party in samples.breast_cancer(parties=count)]


def job_check(*, labelled: int = 1, **keys: Any) -> Outcome:
    """A whole job over two sessions, handshake and evaluation included, in which so many parties have labels."""
    method = small_job(**keys).method
    lead, *others = small_parties() if method.most is None else small_parties(method.most)
    table = [
        lead,
        *(Party(each.name, each.X, lead.y, aligned=True) for each in others[: labelled - 1]),
        *others[labelled - 1 :],
        *(Helper(name, role) for name, role in method.helpers),
    ]
    with watched() as draws:
        runs = [record(small_job(**keys), table)[0] for _ in range(2)]
    return _judge(runs).merge(draws.outcome())


def sum_checks() -> dict[str, Check]:
    """One a registered sum, and some of phases."""
    found: dict[str, Check] = {}
    for name, kind in SUMS.items():
        for label, sums in kind.variants().items():
            found[f"sum {label}"] = partial(sum_check, sums.quick, rounds=2 if sums.encrypts else 4)
        first = next(iter(kind.variants().values()))
        if not first.encrypts:
            found[f"phases {name}"] = partial(sum_check, first, Circle(32))
    return found | {"phases of 16 bits": partial(sum_check, TreeSum(), Circle(16))}


def residual_checks() -> dict[str, Check]:
    """One a registered residual."""
    found: dict[str, Check] = {}
    for kind in RESIDUALS.values():
        for label, residual in kind.variants().items():
            few: dict[str, int] = {"passives": 1, "rows": 40} if residual.pooled else {}
            found[f"residual {label}"] = partial(residual_check, residual.quick, **few)
    blurred = SealedResidual(engine=Ckks(), defence=Rounding())
    return found | {
        "residual open, blurred": partial(residual_check, OpenResidual(defence=Gaussian(sigma=0.5))),
        "residual ckks, blurred": partial(residual_check, blurred, rows=30),
    }


def method_checks() -> dict[str, Check]:
    """Small jobs of every registered method, the last one among several parties with labels where it admits them."""
    found: dict[str, Check] = {}
    for kind in METHODS.values():
        method = kind()
        for name, example in method.examples().items():
            found[f"job {name}"] = partial(job_check, **example)
        if method.admits(ACTIVE, leads=False):
            found[f"job {name}, three with labels"] = partial(job_check, labelled=3, **example)
    return found


def engine_checks() -> dict[str, Check]:
    """One a registered engine, for products and for sums."""
    found: dict[str, Check] = {}
    for name, kind in ENGINES.items():
        for label, engine in kind.variants().items():
            found[f"engine {label}"] = partial(_watch, partial(engines.linear, engine.quick.scheme()))
        found[f"engine {name} sums"] = partial(_watch, partial(engines.additive, kind().quick.sums()))
    return found


def _watch(work: Check) -> Outcome:
    with watched() as draws:
        outcome = work()
    return outcome.merge(draws.outcome())


CHECKS: dict[str, Check] = {
    **sum_checks(),
    **residual_checks(),
    **method_checks(),
    **engine_checks(),
    **chosen.CHECKS,
    **session.CHECKS,
    **hygiene.CHECKS,
    **alignment.CHECKS,
    **answers.CHECKS,
    **bindings.CHECKS,
    **recompute_sums.CHECKS,
    **recompute_psi.CHECKS,
    **lattice_draws.CHECKS,
    **paillier_draws.CHECKS,
    **repeats.CHECKS,
    **evidence.CHECKS,
    **theorem.CHECKS,
    **shares.CHECKS,
    **stored.CHECKS,
    **simulators.CHECKS,
    **simulators_shares.CHECKS,
}
