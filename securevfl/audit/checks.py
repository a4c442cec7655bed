"""The checks by name: each runs a protocol, an engine or a guard as it is, and says what it found.

A name is what the table of mutants refers to and what a test of the suite is called by. An empty outcome passes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from securevfl import datasets
from securevfl.audit import align, engines, hygiene, lines, repeats, simulators, theorem
from securevfl.audit.checker import Outcome, check_transcript, same_shape
from securevfl.audit.entropy import watched
from securevfl.audit.transcript import Transcript, record, record_residual, record_sum
from securevfl.crypto.lattice import LatticeScheme
from securevfl.crypto.lattice_sum import LatticeSum
from securevfl.crypto.paillier import PaillierScheme
from securevfl.crypto.paillier_sum import PaillierSum
from securevfl.job import Job, Protocol
from securevfl.models.kernel import Kernel
from securevfl.models.linear import Logistic
from securevfl.optim.fdskl import FDSKL
from securevfl.optim.fedbcd import FedBCD
from securevfl.party import Party
from securevfl.protocols.base import Circle, Reals, ResidualProtocol, Space, SumProtocol
from securevfl.protocols.cipher_sum import CipherSum
from securevfl.protocols.direct_sum import DirectSum
from securevfl.protocols.engines import Ckks, Paillier
from securevfl.protocols.open_residual import OpenResidual
from securevfl.protocols.pairwise_sum import PairwiseSum
from securevfl.protocols.sealed_residual import SealedResidual
from securevfl.protocols.tree_sum import TreeSum

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


def small_job(protocol: Protocol, **keys: Any) -> Job:
    """Six rounds on the table of `small_parties`."""
    own: dict[str, Any] = {"model": Logistic(l2=1e-3), "optimizer": FedBCD(local_steps=3, lr=0.2), "batch_size": 60}
    return Job(**(own | {"epochs": 2, "protocol": protocol} | keys))


def small_parties(count: int = 4) -> list[Party]:
    """180 rows of the breast cancer table."""
    return [party.take(np.arange(180, dtype=np.intp)) for party in datasets.breast_cancer(parties=count)]


def job_check(protocol: Protocol, parties: Sequence[Party] | None = None, **keys: Any) -> Outcome:
    """A whole job over two sessions, handshake and evaluation included."""
    table = list(parties or small_parties())
    with watched() as draws:
        runs = [record(small_job(protocol, **keys), table)[0] for _ in range(2)]
    return _judge(runs).merge(draws.outcome())


def kernel_check(sums: SumProtocol) -> Outcome:
    """A whole FDSKL job over two sessions."""
    model = Kernel(gamma=0.01, blocks=2, block_size=32)
    return job_check(Protocol(sum=sums), model=model, optimizer=FDSKL())


def sum_checks() -> dict[str, Check]:
    """One a sum protocol and space."""
    phases = Circle(32)
    return {
        "sum direct": partial(sum_check, DirectSum()),
        "sum tree": partial(sum_check, TreeSum()),
        "sum tree star": partial(sum_check, TreeSum(topology="star")),
        "sum tree ring": partial(sum_check, TreeSum(topology="ring")),
        "sum pairwise": partial(sum_check, PairwiseSum()),
        "sum pairwise tree": partial(sum_check, PairwiseSum(topology="tree")),
        "sum pairwise ring": partial(sum_check, PairwiseSum(topology="ring")),
        "sum dropout": partial(sum_check, PairwiseSum(threshold=2 / 3)),
        "sum cipher ckks": partial(sum_check, CipherSum(engine=Ckks()), rounds=2),
        "sum cipher paillier": partial(sum_check, CipherSum(engine=Paillier(bits=2048)), rounds=2),
        "phases direct": partial(sum_check, DirectSum(), phases),
        "phases tree": partial(sum_check, TreeSum(), phases),
        "phases pairwise": partial(sum_check, PairwiseSum(), phases),
        "phases of 16 bits": partial(sum_check, TreeSum(), Circle(16)),
    }


def residual_checks() -> dict[str, Check]:
    """One a residual protocol, and whole jobs."""
    return {
        "residual open": partial(residual_check, OpenResidual()),
        "residual ckks": partial(residual_check, SealedResidual(engine=Ckks())),
        "residual ckks lean": partial(residual_check, SealedResidual(engine=Ckks(profile="lean"))),
        "residual paillier": partial(residual_check, SealedResidual(engine=Paillier(bits=2048)), passives=1, rows=40),
        "job ckks": partial(job_check, Protocol(residual=Ckks())),
        "job tree open": partial(job_check, Protocol(sum=TreeSum(), residual=OpenResidual())),
        "job kernel tree": partial(kernel_check, TreeSum()),
        "job kernel direct": partial(kernel_check, DirectSum()),
    }


def engine_checks() -> dict[str, Check]:
    """One an engine."""
    return {
        "engine ckks": lambda: _watch(lambda: engines.linear(LatticeScheme())),
        "engine ckks lean": lambda: _watch(lambda: engines.linear(LatticeScheme("lean"))),
        "engine paillier": lambda: _watch(lambda: engines.linear(PaillierScheme(2048))),
        "engine ckks sums": lambda: _watch(lambda: engines.additive(LatticeSum())),
        "engine paillier sums": lambda: _watch(lambda: engines.additive(PaillierSum(2048))),
    }


def _watch(work: Check) -> Outcome:
    with watched() as draws:
        outcome = work()
    return outcome.merge(draws.outcome())


CHECKS: dict[str, Check] = {
    **sum_checks(),
    **residual_checks(),
    **engine_checks(),
    **lines.CHECKS,
    **hygiene.CHECKS,
    **align.CHECKS,
    **repeats.CHECKS,
    **theorem.CHECKS,
    **simulators.CHECKS,
}
