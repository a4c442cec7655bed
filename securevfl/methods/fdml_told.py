"""What training at everyone's own pace adds up to, counted, and what a party can tell from it, in words."""

from __future__ import annotations

from securevfl.disclosure.counts import Disclosure, Group, Sizes
from securevfl.methods.base import Known, Told
from securevfl.methods.rounds_told import passive_learns
from securevfl.methods.sizes import evaluations, scores
from securevfl.options import JobOptions
from securevfl.protocols.stored_masks import StoredMasks
from securevfl.protocols.stored_sum import StoredSum
from securevfl.roles import ACTIVE, SERVER, Roles


def _stored(job: JobOptions) -> StoredSum:
    return job.protocol.stored or StoredMasks()


def counts(job: JobOptions, sizes: Sizes) -> list[Disclosure]:
    """What a run discloses if it goes to its end, all pulls and evaluations counted."""
    residual, passives = job.protocol.residual, sizes.passives
    about, of = (sizes.active,), sizes.residuals
    if residual is not None and residual.seals:
        found = [Disclosure("labels", name, about, job.equations * p, of) for name, p in sizes.parameters.items()]
    else:
        found = [Disclosure("labels", name, about, of, of, "every residual") for name in passives]
    c, pulls = sizes.outputs, sizes.epochs
    knowing = [sizes.active] if residual is not None else [sizes.active, *passives]
    if residual is not None and not residual.seals:
        knowing += passives  # label and g give f
    for learner in knowing:
        others = tuple(name for name in sizes.columns if name != learner)
        d = sum(sizes.columns[name] for name in others)
        found.append(Disclosure("columns", learner, others, c * pulls, d))
    groups: tuple[Group, ...] = ("held out",) if sizes.held_out else ("training",)
    hides = job.protocol.sum_for(len(passives)).hides_parts and len(passives) > 1
    for group in groups:
        for who in [passives] if hides else [(name,) for name in passives]:
            d = sum(sizes.columns[name] for name in who)
            found.append(Disclosure("columns", sizes.active, who, c * evaluations(job, sizes), d, group=group))
    return [*found, *scores(job, sizes)]


def tells(job: JobOptions, roles: Roles, party: str, known: Known | None) -> list[Told]:
    """What a party learns, by its role."""
    role = roles.role(party)
    if role == SERVER:
        return [("learns", f"everyone's pace, and what is stored: {_stored(job).pushed}")]
    pulled = "the sum of all others' forward outputs on the batches it visits, once an epoch"
    if role == ACTIVE:
        return [("learns", f"f = sum_k H_k on the rows predicted, and {pulled}")]
    if job.protocol.residual is None:
        return [("learns", f"the labels of all training rows, and {pulled}")]
    return passive_learns(job, party, known)


def strength(job: JobOptions) -> str:
    """Assumption and key strength, one line for people."""
    residual = job.protocol.residual
    down = "labels are shown to all" if residual is None else f"residuals: {residual.strength}"
    return f"payloads: {_stored(job).strength}; {down}"


def pooling(job: JobOptions, roles: Roles) -> str:
    """Who must pool what they hold to learn more than is declared."""
    if not roles.having(SERVER) and job.protocol.residual is None:
        return "every worker learns the forward outputs of every other by itself, as there is no server"
    return _stored(job).pooling
