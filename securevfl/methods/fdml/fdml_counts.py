"""What training at everyone's own pace (FDML) adds up to, counted, and what each role can tell from it, in words.

A worker that pulls sums is told, for every visit to a batch, c numbers about each of its rows: the sum of the forward
outputs of all others, of weights that move. Over d visits these span the d columns behind them, as in training by
rounds. Two things are particular here:

- With three workers or more that may be apart, it happens that between two pulls of one batch a single other worker has
  pushed it anew. The versions say so, and the difference of the two sums is then that worker's part alone. So each
  other worker is counted alone too, c numbers a row in every visit, though most visits tell less.
- The server, if local predictions lie there in the clear, is told every part of every worker: it is counted as a party
  that learns, under its name. Without a server every worker is told every part of all others.
"""

from __future__ import annotations

from securevfl.base.roles import ACTIVE, SERVER, Roles
from securevfl.disclosure.counts import Disclosure, Sizes
from securevfl.methods.base import Known, Told
from securevfl.methods.fdml.fdml_player import FdmlJob, stored_of
from securevfl.methods.rounds.rounds_counts import added_up, columns_lines, equations, kept, labels_told
from securevfl.methods.sizes import evaluated, evaluations, scores
from securevfl.runtime.door import Group


def counts(job: FdmlJob, sizes: Sizes) -> list[Disclosure]:
    """Count what a run discloses if it goes to its end, with all visits and evaluations."""
    labels, visits = job.optimizer.shows_labels, job.model.shown(sizes.outputs) * sizes.epochs
    workers = (sizes.active, *sizes.passives)
    pulling = workers if labels else (sizes.active,)
    pushed = sizes.rows * visits
    found = []
    if labels:
        about, of = (sizes.active,), sizes.residuals
        found += [
            Disclosure("labels", name, about, of, of, "every label", numbers=sizes.rows * sizes.outputs)
            for name in sizes.passives
        ]
    else:
        found += labels_told(job, sizes)
    if not sizes.helpers:  # every worker keeps what all others push, as it is
        found += [
            _columns(sizes, one, (other,), visits, pushed) for one in workers for other in workers if one != other
        ]
    else:
        for learner in pulling:
            others = tuple(name for name in workers if name != learner)
            found.append(_columns(sizes, learner, others, visits, pushed))
            if job.optimizer.tau and len(others) > 1:
                found += [_columns(sizes, learner, (other,), visits) for other in others]
        if not stored_of(job).hides_parts:
            found += [_columns(sizes, server, (name,), visits, pushed) for server in sizes.helpers for name in workers]
    if not labels and not job.protocol.seals:  # f follows from g
        for learner in sizes.passives:
            others = tuple(name for name in workers if name != learner)
            found.append(_columns(sizes, learner, others, visits))
    return [*dict.fromkeys(found), *_evaluated(job, sizes), *scores(job, sizes)]


def _columns(
    sizes: Sizes, learner: str, about: tuple[str, ...], count: int, numbers: int = 0, group: Group = "training"
) -> Disclosure:
    return Disclosure("columns", learner, about, count, added_up(sizes, about), group=group, numbers=numbers)


def _evaluated(job: FdmlJob, sizes: Sizes) -> list[Disclosure]:
    """Count what the sums of evaluations, made by the job's own sum, tell the active party."""
    passives = sizes.passives
    hides = len(passives) > 1 and job.protocol.sum_for(len(passives)).hides_parts
    told = evaluations(job, sizes) * job.model.shown(sizes.outputs)
    group, rows = evaluated(job, sizes)
    return [
        _columns(sizes, sizes.active, about, told, rows * job.model.shown(sizes.outputs), group)
        for about in ([passives] if hides else [(name,) for name in passives])
    ]


def tells(job: FdmlJob, roles: Roles, party: str, known: Known | None) -> list[Told]:
    """Describe in words what a party learns from what it receives and what it keeps; formulas stand in for numbers
    without `known`."""
    stored, role = stored_of(job), roles.role(party)
    lines = columns_lines(job, party, known, counts)
    if role == SERVER:
        said = ["everyone's pace: who pushes which batch when, and how large it is; no forward output and no sum"]
        if not stored.hides_parts:
            said = ["the forward outputs of every worker, in every visit to a batch", *lines]
        return [("learns", "\n".join(said))]
    blurs = [] if stored.noise is None else [("blurs", stored.noise.promise(job.epochs))]
    if role == ACTIVE:
        said = ["f = sum_k H_k on the rows predicted, and messages marked output or plain", *lines]
        return [("learns", "\n".join([*said, *_apart(job, roles)])), *blurs]
    residual = job.protocol.residual
    if residual is None:
        said = ["the labels of all training rows, which the active party shows to all workers", *lines]
        return [("learns", "\n".join([*said, *_apart(job, roles)])), *blurs, *kept(job)]
    said = equations(job, party, known) if residual.seals else [residual.shows, *lines]
    return [("learns", "\n".join(said)), *blurs, *kept(job)]


def _apart(job: FdmlJob, roles: Roles) -> list[str]:
    """Return a further line where the part of a single worker may show, because workers go at their own pace; empty
    otherwise."""
    workers = [name for name in roles.parties if roles.role(name) != SERVER]
    if not job.optimizer.tau or len(workers) < 3 or not roles.having(SERVER):
        return []
    return [
        "workers go at their own pace: where one other alone has moved between two pulls of a batch, the difference",
        "is the change of that worker's part",
    ]


def pooling(job: FdmlJob, roles: Roles) -> str:
    """Who must pool what they hold to learn more than is declared."""
    if not roles.having(SERVER):
        return "needs nobody: each worker is sent the forward outputs of every other one, as there is no server"
    return stored_of(job).pooling


def strength(job: FdmlJob) -> str:
    """Assumption and key strength of what is stored and of residuals, one line for people."""
    residual = job.protocol.residual
    down = "labels are shown to all" if residual is None else f"residuals: {residual.strength}"
    return f"payloads: {stored_of(job).strength}; {down}"
