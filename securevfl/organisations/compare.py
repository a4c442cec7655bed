"""Measure how much a partner's columns improve a model, with the parties on separate machines.

Several models are trained, with and without the partner's columns, after one consent to all of them. Steps:

    1. all <-> all   connect; every party checks all jobs together with its leak checks and its ledger, and asks its
                     operator once, with one consent sheet for all
    2. each party    records all measurements in its ledger, before the first of them
    3. all <-> all   train the jobs of `securevfl.training.comparison.compared_jobs`, one after the other; a party
                     stops if the public sizes of a training differ from those in step 1

A measurement is one evaluation of a model on the held-out rows. Step 1 ends when all parties have agreed, so no party
records anything for a comparison that another party has refused. The records stay if a training is interrupted. The
models are discarded as soon as they are measured.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

from securevfl.base.file_locks import exclusive_lock
from securevfl.consent.consent_sheet import ConsentSheet, combined_sheet
from securevfl.consent.forecast import check_together
from securevfl.data.party import Party
from securevfl.disclosure.ledger import DisclosureLedger
from securevfl.errors import ConfigError, TransportError
from securevfl.job import Job
from securevfl.organisations.join import check_role, train_over
from securevfl.organisations.peer_session import run_session
from securevfl.organisations.peer_settings import PeerSettings
from securevfl.organisations.preconditions import SessionNeeds, check_preconditions
from securevfl.organisations.reserved_measurements import ReservedMeasurements
from securevfl.protocols.score_ledger.row_ledger import ScoreLedger
from securevfl.protocols.shares.opened_loss import select_measured
from securevfl.runtime.channel import Channel
from securevfl.runtime.costs import Stage
from securevfl.training.comparison import Comparison, alone, build_comparison, compared_jobs, joint_row
from securevfl.training.public_sizes import PublicSizes
from securevfl.training.session import PreConsentView, take_part, view_before_consent
from securevfl.training.simulate import pool_for

SHEET_HEAD = (
    "This comparison trains {count} models, one after the other. Each model is measured once, on the same\n"
    "held-out rows. No model is stored, and none scores a row. You agree to all of them or to none."
)


def compare_with(
    job: Job,
    party: Party,
    settings: PeerSettings,
    *,
    ledger: DisclosureLedger | str | Path | None = None,
    consent: Callable[[ConsentSheet], None] | None = None,
    workers: int | None = None,
    on_model: Callable[[str], object] = lambda name: None,
    on_round: Callable[[int, int], None] | None = None,
    interactions: bool = False,
) -> Comparison | None:
    """Compare models of the labelled party's columns alone with models of all parties' columns.

    All parties call this function at the same time.

    Args:
        job: the options of the trainings, which must be the same at all parties.
        party: this party's table.
        settings: addresses, certificates and time limits.
        ledger: this party's disclosure ledger, as in `join`.
        consent: called with one consent sheet for all trainings; raises ConsentError to refuse.
        workers: number of expensive calls that run at a time.
        on_model: is called before each training with a description of its model.
        on_round: called after each round with the number of finished rounds and the number of all rounds.
        interactions: whether joint trees with pairs are compared as well; the same at all parties.

    Returns:
        The comparison at the party with labels, None at the others.

    Raises:
        TransportError: a training was interrupted. The ledger still counts the measurements of all trainings.
        ConfigError: the job cannot be compared; nothing about a table has been disclosed.
        LeakageError: the trainings together would disclose too much; nothing about a table has been disclosed.
    """
    party_ledger, everyone = DisclosureLedger.open(party.name, ledger), settings.peers.parties
    jobs = compared_jobs(job, interactions=interactions, parties=len(everyone))
    for compared in jobs.values():
        check_role(compared, party, settings.peers)
    # check before `alone` trains this party's baseline models without peers, because that takes time
    check_preconditions(party_ledger, SessionNeeds(rows=len(party)))
    with exclusive_comparison(party_ledger):
        lines = list(alone(jobs, party, on_model)) if party.active else []
        handshake = {
            "jobs": {name: compared.to_dict() for name, compared in jobs.items()},
            "parties": list(everyone),
            "task": "compare",
        }

        def agree(channel: Channel) -> list[PreConsentView]:
            channel.clock.stage = Stage.SETUP
            views = [
                view_before_consent(compared, party, channel, parties=everyone, ledger=party_ledger)
                for compared in jobs.values()
            ]
            check_together([(view.job, view.sizes) for view in views], [party], {party.name: party_ledger})
            _count_measurements(views, party_ledger, settings.peers.active, reserve=False)
            if consent is not None:
                consent(_one_sheet(list(jobs), views))
            return views

        views = run_session(party.name, settings, handshake, agree, ledger=party_ledger, resumes=True)
        reserved = ReservedMeasurements(party.name, dict.fromkeys(jobs, 1))
        _count_measurements(views, party_ledger, settings.peers.active, reserve=True)
        names = ", ".join(everyone)
        with pool_for(job, None, workers) as (pool, size):
            for (name, compared), view in zip(jobs.items(), views, strict=True):
                on_model(f"{name}, {names}")
                train = partial(
                    take_part,
                    compared,
                    party,
                    parties=everyone,
                    executor=pool,
                    workers=size,
                    ledger=party_ledger.with_reserved_measurements(reserved.of(name)),
                    consent=PublicSizes.of(view.sizes),
                )
                talk = partial(train_over, train, on_round)
                try:
                    part = run_session(party.name, settings, handshake | {"model": name}, talk, ledger=party_ledger)
                except TransportError as error:
                    raise TransportError(
                        f"{error.problem}. This interrupted the training of {name}. All {len(jobs)} measurements of "
                        f"the comparison stay counted, and running the command again counts {len(jobs)} more",
                        "run the same command again at every party",
                        code=error.code,
                        away=error.away,
                    ) from error
                if party.active:
                    lines.append(joint_row(names, name, part, float(part.path.sum())))
        return build_comparison(lines, job, party) if party.active else None


@contextmanager
def exclusive_comparison(ledger: DisclosureLedger) -> Iterator[None]:
    """Prevent two comparisons with one ledger at a time, because messages of one could reach the sessions of the other.

    Args:
        ledger: this party's ledger, next to which the lock file is stored.

    Yields:
        Nothing; the lock is released afterwards.

    Raises:
        ConfigError: another comparison is running.
    """
    lock = ledger.path.with_name(f"{ledger.path.name}.comparing")
    lock.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    lock.touch(0o600)
    with ExitStack() as stack:
        try:
            stack.enter_context(exclusive_lock(lock))
        except ConfigError:
            raise ConfigError(
                f"another comparison with the ledger of {ledger.party} is running",
                "wait until it has finished",
                code="SVFL-LEDGER-BUSY",
                party=ledger.party,
            ) from None
        yield


def _count_measurements(views: list[PreConsentView], ledger: DisclosureLedger, active: str, *, reserve: bool) -> None:
    """Check that the held-out rows may be measured once for each model, or record that this will happen.

    Args:
        views: for each model's job, the data that its consent sheet is computed from; all have the same held-out rows.
        ledger: this party's ledger.
        active: name of the party with labels, which receives the metrics.
        reserve: True to record the measurements, False to check the limit only.

    Raises:
        LeakageError: the limit on measurements would be exceeded.
    """
    first = views[0]
    if first.party.name == active:
        return
    limited = "small_metrics" not in first.job.accepts
    scores, rows = ScoreLedger(ledger.path), select_measured(first.schedule.test, first.sizes.outputs)
    ids = first.party.keys_of(rows)
    if reserve:
        scores.record_evaluation(active, ids, limited=limited, me=first.party.name, times=len(views))
    elif limited:
        scores.check_evaluations(active, ids, len(views))


def _one_sheet(names: list[str], views: list[PreConsentView]) -> ConsentSheet:
    """Combine the consent sheets of all trainings into one, which states once what the trainings have in common."""
    sheets = {name: view.sheet for name, view in zip(names, views, strict=True)}
    return combined_sheet(sheets, SHEET_HEAD.format(count=len(sheets)))
