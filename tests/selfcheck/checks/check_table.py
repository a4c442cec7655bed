"""The checks by name: each runs an unmodified protocol, engine or leak check, and reports its findings.

Checks over two sessions run without an executor in the first and with one in the second, because these take different
branches of the code.
The table of mutants and the tests of the suite refer to these names. An empty outcome passes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from functools import partial, reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray

from securevfl.audit.recording.transcript import Transcript
from securevfl.audit.recording.transcript_recording import record_residual, record_sum, record_transcript
from securevfl.audit.transcript_checks import Outcome, check_transcript
from securevfl.base.roles import ACTIVE
from securevfl.data import datasets
from securevfl.data.party import Helper, Party
from securevfl.families import FAMILIES
from securevfl.job import Job
from securevfl.protocols.engines import ENGINES, Ckks, Engine
from securevfl.protocols.number_spaces import Circle, Reals, Space
from securevfl.protocols.protocol_options import RESIDUALS, SUMS
from securevfl.protocols.residuals.base import ResidualProtocol
from securevfl.protocols.residuals.defences import Gaussian, Rounding
from securevfl.protocols.residuals.open_residual import OpenResidual
from securevfl.protocols.residuals.sealed_residual import SealedResidual
from securevfl.protocols.sums.base import SumProtocol
from securevfl.protocols.sums.tree_sum import TreeSum
from selfcheck.checks import (
    account_checks,
    alignment_checks,
    answers,
    bindings,
    carry_checks,
    derived,
    digests,
    evidence_checks,
    hygiene,
    instance_checks,
    kernel_checks,
    lattice_draws,
    opening_checks,
    paillier_draws,
    pair_checks,
    recompute_psi,
    recompute_sums,
    repeat_checks,
    session_checks,
    shares_checks,
    simulator_checks,
    stored_checks,
    theorem,
    tree_checks,
)
from selfcheck.checks import chosen_value_checks as chosen
from selfcheck.checks import engine_checks as engines
from selfcheck.checks.draws import watched
from selfcheck.checks.two_runs import WAYS, any_work, same_shape

Check = Callable[[], Outcome]

_PASSIVES = ("P1", "P2", "P3", "P4")


def parts(seed: int, space: Space, *, rounds: int = 4, rows: int = 120) -> list[dict[str, NDArray[Any]]]:
    """Return parts of passive parties that hardly change between rounds, so that a mask
    that is used twice is noticed.
    """
    generator = np.random.default_rng(seed)
    base = {name: generator.normal(size=(rows, 1)) for name in _PASSIVES}
    contributions: list[dict[str, NDArray[Any]]] = []
    for _ in range(rounds):
        parts: dict[str, NDArray[Any]] = {
            name: values + 1e-3 * generator.normal(size=values.shape) for name, values in base.items()
        }
        if isinstance(space, Circle):
            parts = {name: (values * 100).astype(np.int64).astype(np.uint32) & 0xFFFF for name, values in parts.items()}
        contributions.append(parts)
    return contributions


def sum_check(protocol: SumProtocol, space: Space | None = None, *, rounds: int = 4) -> Outcome:
    """Check a sum protocol over two sessions: transcripts, sizes, and the randomness behind them."""
    chosen = space or Reals()
    with watched() as draws:
        runs = [
            record_sum(protocol, parts(seed, chosen, rounds=rounds), chosen, executor)
            for seed, executor in enumerate(WAYS)
        ]
    return _judge(runs).merge(draws.outcome())


def residual_check(protocol: ResidualProtocol, *, passives: int = 2, rows: int = 60) -> Outcome:
    """Check a residual protocol over two sessions of two epochs."""
    with watched() as draws:
        runs = []
        for seed, executor in enumerate(WAYS):
            generator = np.random.default_rng(seed)
            g = [generator.uniform(-1, 1, (rows, 1)) for _ in range(3)]
            J = {name: [generator.normal(size=(rows, 5)) for _ in g] for name in _PASSIVES[:passives]}
            runs.append(record_residual(protocol, g, J, epochs=2, executor=executor))
    return _judge(runs).merge(draws.outcome())


def _judge(runs: Sequence[Transcript]) -> Outcome:
    return check_transcript(*runs).merge(same_shape(runs[0], runs[1]))


def small_job(**keys: Any) -> Job:
    """Return a job of six rounds on the table of `small_parties`."""
    return Job(**({"batch_size": 60, "epochs": 2} | keys))


def small_parties(count: int = 4) -> list[Party]:
    """Return parties with 180 rows of the breast cancer table."""
    return [party.take(np.arange(180, dtype=np.intp)) for party in datasets.breast_cancer(parties=count)]


def job_check(*, labelled: int = 1, **keys: Any) -> Outcome:
    """Check a whole job over two sessions, handshake and evaluation included, with labels at `labelled` parties."""
    job = small_job(**keys)
    count = 3 if job.protocol.shares is not None else 4  # on shares, all pairs of parties send the same messages
    family = job.family
    lead, *others = small_parties(min(count, family.max_parties or count))
    table = [
        lead,
        *(Party(other.name, other.X, lead.y, aligned=True) for other in others[: labelled - 1]),
        *others[labelled - 1 :],
        *(Helper(name, role) for name, role in family.example_helpers),
    ]
    with watched() as draws:
        runs = []
        for executor in WAYS:
            with any_work(executor):
                runs.append(record_transcript(small_job(**keys), table, executor)[0])
    return _judge(runs).merge(draws.outcome())


def sum_checks() -> dict[str, Check]:
    """Return one check for each registered sum, and some for sums of phases."""
    checks: dict[str, Check] = {}
    for name, kind in SUMS.items():
        for label, sums in kind.variants().items():
            checks[f"sum {label}"] = partial(sum_check, sums.with_smallest_keys, rounds=2 if sums.encrypts else 4)
        first = next(iter(kind.variants().values()))
        if not first.encrypts:
            checks[f"phases {name}"] = partial(sum_check, first, Circle(32))
    return checks | {"phases of 16 bits": partial(sum_check, TreeSum(), Circle(16))}


def residual_checks() -> dict[str, Check]:
    """Return one check for each registered residual."""
    checks: dict[str, Check] = {}
    for kind in RESIDUALS.values():
        for label, residual in kind.variants().items():
            few: dict[str, int] = {"passives": 1, "rows": 40} if residual.pooled else {}
            checks[f"residual {label}"] = partial(residual_check, residual.with_smallest_keys, **few)
    blurred = SealedResidual(engine=Ckks(), defence=Rounding())
    return checks | {
        "residual open, blurred": partial(residual_check, OpenResidual(defence=Gaussian(sigma=0.5))),
        "residual ckks, blurred": partial(residual_check, blurred, rows=30),
    }


def method_checks() -> dict[str, Check]:
    """Return checks of small jobs of every registered method, the last one with several
    parties with labels if possible.
    """
    checks: dict[str, Check] = {}
    for kind in FAMILIES.values():
        family = kind()
        for name, example in family.example_jobs().items():
            checks[f"job {name}"] = partial(job_check, **example)
        if family.accepts_role(ACTIVE, leads=False):
            checks[f"job {name}, three with labels"] = partial(job_check, labelled=3, **example)
    return checks


def engine_checks() -> dict[str, Check]:
    """Return one check for each registered engine, for products and for sums."""
    checks: dict[str, Check] = {}
    for name, kind in ENGINES.items():
        for library, engine in kind.libraries().items():
            work = [partial(engines.linear, engine.with_smallest_keys.scheme(), executor) for executor in _ways(engine)]
            checks[f"engine {name}{library}"] = partial(_watch, work)
        sums = [partial(engines.additive, kind().with_smallest_keys.sums(), executor) for executor in _ways(kind())]
        checks[f"engine {name} sums"] = partial(_watch, sums)
    return checks


def _ways(engine: Engine) -> Sequence[Executor | None]:
    """List the ways to run an engine: without an executor, and with one if the engine has work for it."""
    return WAYS if engine.pooled else WAYS[:1]


def _watch(work: Sequence[Check]) -> Outcome:
    with watched() as draws:
        outcome = reduce(Outcome.merge, (item() for item in work))
    return outcome.merge(draws.outcome())


CHECKS: dict[str, Check] = {
    **sum_checks(),
    **residual_checks(),
    **method_checks(),
    **engine_checks(),
    **chosen.CHECKS,
    **session_checks.CHECKS,
    **hygiene.CHECKS,
    **alignment_checks.CHECKS,
    **answers.CHECKS,
    **bindings.CHECKS,
    **instance_checks.CHECKS,
    **account_checks.CHECKS,
    **digests.CHECKS,
    **derived.CHECKS,
    **recompute_sums.CHECKS,
    **recompute_psi.CHECKS,
    **lattice_draws.CHECKS,
    **paillier_draws.CHECKS,
    **opening_checks.CHECKS,
    **repeat_checks.CHECKS,
    **evidence_checks.CHECKS,
    **theorem.CHECKS,
    **shares_checks.CHECKS,
    **carry_checks.CHECKS,
    **pair_checks.CHECKS,
    **tree_checks.CHECKS,
    **kernel_checks.CHECKS,
    **stored_checks.CHECKS,
    **simulator_checks.CHECKS,
}
