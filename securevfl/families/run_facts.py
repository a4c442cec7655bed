"""The facts about a run before it starts, for a process that has all tables or for one party.

Facts are the available tables, the *schedule* (which rows form which batch), and the *shape* of the run (its public
sizes, `securevfl.families.run_shape`). The leading party has the labels. The plan contains values that the protocol
family computes from public sizes, such as step sizes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import Any

from numpy.typing import NDArray

from securevfl.data.party import Party, register_of
from securevfl.data.schedule import Schedule
from securevfl.disclosure.counts import RunShape
from securevfl.errors import ConfigError
from securevfl.families.facts import RunFacts
from securevfl.families.family import FamilyJob
from securevfl.families.run_outputs import run_outputs
from securevfl.families.run_shape import derive_run_shape
from securevfl.families.table_preparation import prepare_rows
from securevfl.families.weights_of_evidence import encode_evidence_pooled
from securevfl.models.class_labels import classes_of
from securevfl.models.loss import check_split
from securevfl.options import JobOptions


def pooled_run_facts(job: FamilyJob, parties: Sequence[Party]) -> RunFacts:
    """Return the facts about a run whose tables are all in this process; the first party leads and has the labels.

    LabelError is raised if the loss cannot use the labels.
    """
    schedule = job.schedule(register_of(parties))
    parties = [prepare_rows(job, party, schedule) for party in parties]
    lead = parties[0]
    outputs = _count_outputs(job, lead, lead.labels, schedule)
    encoded = encode_evidence_pooled(job, parties, schedule.batch_order)
    shape = derive_run_shape(
        job,
        schedule,
        active=lead.name,
        columns={party.name: len(party.columns) for party in parties},
        outputs=outputs,
        module_parameters={
            party.name: job.model.module_parameters(party.name, party.model) for party in parties if party.columns
        },
        local_parties=parties,
        encoded_parties=encoded,
    )
    return facts_of(job, encoded, schedule, shape)


def facts_of(job: FamilyJob, parties: Sequence[Party], schedule: Schedule, shape: RunShape) -> RunFacts:
    """Return the facts of a run with this division into batches and these public sizes.

    Args:
        job: the options of the training, on which all parties agree (`securevfl.job.Job`).
        parties: the parties whose prepared tables are available here.
        schedule: which rows are in which batch.
        shape: public sizes of the run: numbers of rows, batches, model outputs and columns of each party.

    Returns:
        The facts. Their plan (`RunFacts.plan`) is computed when it is first used.
    """
    family = job.family
    plan = cache(partial(family.plan, job, schedule, shape))
    return RunFacts(tuple(parties), schedule, shape, run_outputs(family, job, shape), plan)


def in_order(job: FamilyJob, facts: RunFacts, names: Sequence[str]) -> RunFacts:
    """Return the same facts with the parties in another order, which is that of outputs and of lines in consent sheets.

    Args:
        job: the options of the training, on which all parties agree (`securevfl.job.Job`).
        facts: the facts known before the run: sizes, batches, disclosed values, and the tables in this process.
        names: names of all parties.

    Returns:
        The facts, with the same plan.
    """
    shape = facts.shape
    columns = {name: shape.columns[name] for name in names if name in shape.columns}
    parameters = {name: shape.parameters[name] for name in names if name in shape.parameters}
    bins = {name: shape.bins[name] for name in names if name in shape.bins}
    helpers = tuple(name for name in names if name in shape.helpers)
    shape = replace(shape, columns=columns, parameters=parameters, bins=bins, helpers=helpers)
    return replace(facts, shape=shape, outputs=run_outputs(job.family, job, shape))


def _count_outputs(job: JobOptions, party: Party, labels: NDArray[Any], schedule: Schedule) -> int:
    """Return c, the number of outputs of a row, from the labels (m,) of this party."""
    loss = job.model.loss
    classes = classes_of(party, loss, positive=job.positive)
    check_split(loss, labels[schedule.train], labels[schedule.test], classes)
    return loss.outputs(classes)


def local_run_facts(
    job: FamilyJob,
    party: Party,
    columns: Mapping[str, int],
    *,
    outputs: int | None = None,
    module_parameters: Mapping[str, int] | None = None,
) -> RunFacts:
    """Return the facts about a run that one party knows from its own table.

    Args:
        job: the options of the training, on which all parties agree (`securevfl.job.Job`).
        party: the party whose table is available.
        columns: d_k, number of columns of each party; the leading party is the first.
        outputs: c, number of outputs of a row; a party without labels needs it unless the loss has one output.
        module_parameters: number of weights of each party that brings a network module.

    Returns:
        The facts, with the tables of this party only.

    Raises:
        ConfigError: if `outputs` is needed and None.
    """
    schedule, lead = job.schedule(party.register), next(iter(columns))
    prepared = prepare_rows(job, party, schedule)
    if prepared.y is not None:
        outputs = _count_outputs(job, prepared, prepared.y, schedule)
    elif outputs is None and not job.model.loss.single:
        raise ConfigError(
            f"{party.name}: the number of classes is unknown at this party, because {lead} has the labels",
            "add --classes NUMBER",
            code="SVFL-COMMAND-USAGE",
            party=party.name,
        )
    modules = {prepared.name: job.model.module_parameters(prepared.name, prepared.model)}
    shape = derive_run_shape(
        job,
        schedule,
        active=lead,
        columns=dict(columns) | {prepared.name: len(prepared.columns)},
        outputs=outputs or 1,
        module_parameters=dict(module_parameters or {}) | modules,
        local_parties=[prepared],
    )
    return facts_of(job, [prepared], schedule, shape)
