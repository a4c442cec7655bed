"""What a partner is worth, with the other parties on their own machines: one consent, then training after training.

    1. all <-> all   meet for each of the jobs; every party checks all of them together by its guards and its ledger,
                     and asks its people once, with one sheet for all
    2. each party    enters all measurements in its ledger, before the first of them
    3. all <-> all   trains the jobs of `securevfl.training.comparison.compared_jobs`, each in a conversation of its own

Step 1 ends when all have agreed, so nobody enters anything for a comparison that another party has refused. What was
entered stays where a training breaks off. Parts of the models are dropped as soon as they are measured.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

from securevfl.base.file_locks import exclusive_lock as only_user
from securevfl.consent.consent_sheet import ConsentSheet
from securevfl.consent.forecast import check_together
from securevfl.data.party import Party
from securevfl.disclosure.ledger import DisclosureLedger
from securevfl.errors import ConfigError, TransportError
from securevfl.job import Job
from securevfl.organisations.join import check_role, talk
from securevfl.organisations.peer_session import run_session
from securevfl.organisations.peer_settings import PeerSettings
from securevfl.protocols.score_ledger.ledger import ScoreLedger
from securevfl.protocols.shares.opened_loss import MAX_LOSS_ROWS
from securevfl.runtime.channel import Channel
from securevfl.runtime.costs import Stage
from securevfl.training.comparison import Comparison, alone, build_comparison, compared_jobs, joint_row
from securevfl.training.session import PreConsentView, take_part, view_before_consent
from securevfl.training.simulate import pool_for

HEAD = (
    "{count} trainings for a comparison, one after the other. Each measures once how good a model is, on the same\n"
    "held-out rows; no model is kept, and none scores a row. You agree to all of them or to none."
)
_BROKEN = (
    "{error} (the training of {name} has broken off; all {count} measurements of this comparison stay counted, and the "
    "same command again counts {count} more)"
)


def compare_with(
    job: Job,
    party: Party,
    venue: PeerSettings,
    *,
    ledger: DisclosureLedger | str | Path | None = None,
    consent: Callable[[ConsentSheet], None] | None = None,
    workers: int | None = None,
    on_model: Callable[[str], object] = lambda what: None,
    on_round: Callable[[int, int], None] | None = None,
) -> Comparison | None:
    """Compare models of the labelled party's own columns with those of all parties' columns, with the parties of
    `venue`, all of whom call this; the comparison at the party with labels, None elsewhere.

    consent: is given one sheet for all trainings, as in `join`; the rest as there. on_model: is told what is trained
    next. TransportError where a training breaks off: the measurements of all stay counted. ConfigError for a job that
    cannot be compared, LeakageError where the trainings together would tell too much; nothing of a table is told then.
    """
    jobs, own_ledger, everyone = compared_jobs(job), DisclosureLedger.open(party.name, ledger), venue.peers.parties
    for each in jobs.values():
        check_role(each, party, venue.peers)
    with _only(own_ledger):
        lines = list(alone(jobs, party, on_model)) if party.active else []
        terms = {"jobs": {name: each.to_dict() for name, each in jobs.items()}, "parties": list(everyone)}

        def agree(channel: Channel) -> list[PreConsentView]:
            channel.clock.stage = Stage.SETUP
            known = [
                view_before_consent(each, party, channel, parties=everyone, ledger=own_ledger) for each in jobs.values()
            ]
            check_together([(each.job, each.sizes) for each in known], [party], {party.name: own_ledger})
            _measures(known, own_ledger, venue.peers.active, reserve=False)
            if consent is not None:
                consent(_one_sheet(list(jobs), known))
            return known

        known = run_session(party.name, venue, terms | {"task": "compare"}, agree, ledger=own_ledger, resumes=True)
        _measures(known, own_ledger, venue.peers.active, reserve=True)
        together = ", ".join(everyone)
        with pool_for(job, None, workers) as (pool, size):
            for name, each in jobs.items():
                on_model(f"{name}, {together}")
                train = partial(
                    take_part,
                    each,
                    party,
                    parties=everyone,
                    executor=pool,
                    workers=size,
                    ledger=own_ledger.with_reserved_measurements(),
                )
                own = terms | {"task": "compare", "model": name}
                try:
                    part = run_session(party.name, venue, own, partial(talk, train, on_round), ledger=own_ledger)
                except TransportError as error:
                    said = _BROKEN.format(error=error, name=name, count=len(jobs))
                    raise TransportError(said, away=error.away) from error
                if party.active:
                    lines.append(joint_row(together, name, part, float(part.path.sum())))
        return build_comparison(lines, job, party) if party.active else None


@contextmanager
def _only(ledger: DisclosureLedger) -> Iterator[None]:
    """Let no other comparison of the party run meanwhile: two would meet each other's partners between trainings.
    ConfigError if one does."""
    mark = ledger.path.with_name(f"{ledger.path.name}.comparing")
    mark.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    mark.touch(0o600)
    with ExitStack() as held:
        try:
            held.enter_context(only_user(mark))
        except ConfigError:
            raise ConfigError(
                f"{ledger.party}: no other comparison by this ledger was expected, one is under way; wait for its end"
            ) from None
        yield


def _measures(known: list[PreConsentView], ledger: DisclosureLedger, active: str, *, reserve: bool) -> None:
    """Check that the rows held out may be measured for all models, or enter that they are. LeakageError if not."""
    first = known[0]
    if first.party.name == active:
        return
    limited = "small_metrics" not in first.job.accepts
    own, ids = ScoreLedger(ledger.scores_path), first.party.keys_of(first.schedule.test[:MAX_LOSS_ROWS])
    if reserve:
        own.record_evaluation(active, ids, limited=limited, me=first.party.name, times=len(known))
    elif limited:
        own.check_evaluations(active, ids, len(known))


def _one_sheet(names: list[str], known: list[PreConsentView]) -> ConsentSheet:
    """Put the sheets of all trainings into one."""
    head = HEAD.format(count=len(known))

    def joined(texts: list[str]) -> str:
        return "\n\n".join([head, *(f"{name}:\n{text}" for name, text in zip(names, texts, strict=True))])

    return ConsentSheet(
        joined([str(each.sheet) for each in known]), joined([each.sheet.first_screen for each in known])
    )
