"""Values that must repeat from one job to the next, and disclosures that count because they do not repeat.

Batches repeat under every seed, and a replayed round repeats its noise. A party's ledger records every run before the
run discloses anything, and a recorded run limits the next one.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from builders import CKKS_JOB, cancer_parties, make_job

from securevfl.audit.transcript_checks import Outcome
from securevfl.disclosure.ledger import DisclosureLedger
from securevfl.disclosure.limits import Limit
from securevfl.errors import LeakageError
from securevfl.protocols.protocol_options import Protocol
from securevfl.protocols.residuals.defences import Gaussian
from securevfl.protocols.residuals.open_residual import OpenResidual, Residual
from securevfl.runtime.observer import Event
from securevfl.training.checkpoint import Checkpoints
from securevfl.training.simulate import simulate


class _Cut(Exception):
    """Raised in place of a lost process."""


def _ledgers(folder: str, leased_iterations: int | None = None) -> dict[str, DisclosureLedger]:
    return {
        name: DisclosureLedger(Path(folder) / f"{name}.ledger", name, leased_iterations) for name in ("bank", "shop")
    }


def batches() -> Outcome:
    """Check that jobs with different seeds use the same batches, in another order."""
    outcome = Outcome()
    register = cancer_parties(rows=120)[0].register
    visits = [
        [visit.rows.tobytes() for visit in make_job(CKKS_JOB, seed=s, batch_size=10).schedule(register).iterations()]
        for s in (0, 1)
    ]
    if set(visits[0]) != set(visits[1]):
        outcome.add("repeat", "all", "another seed opens other equations about the labels")
    if visits[0] == visits[1]:
        outcome.add("repeat", "all", "the seed does not order the visits")
    return outcome


def noise() -> Outcome:
    """Check that a run that is cut after two rounds and taken up again releases the residuals of both rounds
    unchanged."""
    outcome = Outcome()
    job = make_job(CKKS_JOB, protocol=Protocol(residual=OpenResidual(defence=Gaussian(sigma=1.0))))
    released: list[list[bytes]] = [[], []]

    def on_round(done: int, of: int) -> None:
        if done == 2:
            raise _Cut

    with TemporaryDirectory() as folder:
        for got, cut in zip(released, (on_round, None), strict=True):
            states = {name: Checkpoints(Path(folder) / name, name) for name in ("bank", "shop")}
            try:
                simulate(job, cancer_parties(rows=120), checkpoints=states, on_round=cut, observe=_keeps(got))
            except _Cut:
                continue
    if released[0][:2] != released[1][:2]:
        outcome.add("repeat", "active", "a replayed round releases the same residual under other noise")
    if len(set(released[1])) != len(released[1]):
        outcome.add("repeat", "active", "two rounds release the same")
    return outcome


def _keeps(got: list[bytes]) -> Callable[[Event], None]:
    def observe(event: Event) -> None:
        if event.direction == "recv" and isinstance(event.message, Residual):
            got.append(event.message.g.tobytes())

    return observe


def ledger() -> Outcome:
    """Check that each ledger records a run before any disclosure, and refuses a second one with new equations."""
    outcome = Outcome()
    late: set[str] = set()
    with TemporaryDirectory() as folder:
        ledgers = _ledgers(folder)

        def observe(event: Event) -> None:
            if event.direction == "send" and type(event.message).__name__ != "RunHello":
                late.update(() if ledgers[event.me].read().entries else (event.me,))

        ledgers["bank"].trust("shop")
        simulate(make_job(CKKS_JOB), cancer_parties(rows=120), ledgers=ledgers, observe=observe)
        for name in sorted(late):
            outcome.add("count", name, "discloses something before it is in the ledger")
        simulate(make_job(CKKS_JOB, seed=1), cancer_parties(rows=120), ledgers=ledgers)
        for name, item in ledgers.items():
            if len({entry.run for entry in item.read().entries}) != 2:
                outcome.add("count", name, "two runs are not two in the ledger")
        try:
            simulate(make_job(CKKS_JOB, batch_size=60), cancer_parties(rows=120), ledgers=ledgers)
            outcome.add("count", "bank", "new equations about the labels are asked without a word")
        except LeakageError:
            pass
    return outcome


def rows() -> Outcome:
    """Check that a job on other rows of a table counts together with earlier ones, whichever ids are left out."""
    outcome = Outcome()
    parties = cancer_parties(rows=120)
    by_digest = parties[0].register.order
    assert by_digest is not None, "these tables have ids"
    with TemporaryDirectory() as folder:
        ledgers = _ledgers(folder)
        for first in (0, 40):
            try:
                simulate(
                    make_job(CKKS_JOB, batch_size=35),
                    [party.take(np.sort(by_digest[first:])) for party in parties],
                    ledgers=ledgers,
                )
            except LeakageError:
                return outcome
    outcome.add("count", "bank", "a table without a few ids counts as another one")
    return outcome


def at_once() -> Outcome:
    """Check that a run that conflicts with another one is refused during that one, as it would be afterwards."""
    outcome = Outcome()
    refused = list[LeakageError]()
    with TemporaryDirectory() as folder:
        ledgers = _ledgers(folder, leased_iterations=16)  # so that few iterations are recorded at first
        ledgers["bank"].trust("shop")
        ledgers["shop"].set_limit("columns", Limit(17))  # a run discloses 9 numbers about each row

        def another(done: int, of: int) -> None:
            if done == 1 and not refused:
                try:
                    simulate(job, cancer_parties(rows=120), ledgers=ledgers)
                except LeakageError as error:
                    refused.append(error)

        job = make_job(CKKS_JOB, batch_size=10, epochs=8, accepts=("columns", "rank", "label_auc"))
        simulate(job, cancer_parties(rows=120), ledgers=ledgers, on_round=another)
    if not refused:
        outcome.add("count", "shop", "two runs at once come to more than one after the other")
    return outcome


CHECKS = {
    "batches repeat": batches,
    "replayed noise repeats": noise,
    "ledgers count": ledger,
    "ledgers know rows": rows,
    "ledgers reserve": at_once,
}
