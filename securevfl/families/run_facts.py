"""What is known of a run before it starts: its tables, its schedule and its sizes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from securevfl.base.arrays import Floats
from securevfl.data.party import Party, register_of
from securevfl.data.schedule import Schedule
from securevfl.disclosure.counts import RunShape
from securevfl.errors import ConfigError
from securevfl.families.run_shape import derive_run_shape
from securevfl.families.table_preparation import prepare_parties, prepare_party
from securevfl.families.weights_of_evidence import encode_evidence_pooled
from securevfl.models.class_labels import find_classes
from securevfl.models.loss import check_split
from securevfl.options import JobOptions


@dataclass(frozen=True)
class RunFacts:
    """What is known of a run before it: the parties whose tables are at hand, the leading one first if it is
    among them, the sizes of all, and which rows come when."""

    parties: tuple[Party, ...]
    schedule: Schedule
    sizes: RunShape

    def table(self, name: str) -> Floats | None:
        """Return the columns (n x d) of the party of this name; None where they are not at hand."""
        return next((party.X for party in self.parties if party.name == name), None)


def pooled_run_facts(job: JobOptions, parties: Sequence[Party]) -> RunFacts:
    """Sizes and schedule of a run of these parties, the leading one first. LabelError if the loss has no use for y."""
    parties = prepare_parties(job, parties)
    lead, schedule = parties[0], job.schedule(register_of(parties))
    outputs = _outputs(job, lead, lead.labels, schedule)
    weighed = encode_evidence_pooled(job, parties, schedule.batch_order)
    sizes = derive_run_shape(
        job,
        schedule,
        active=lead.name,
        columns={party.name: len(party.columns) for party in parties},
        outputs=outputs,
        brought={
            party.name: job.model.module_parameters(party.name, party.model) for party in parties if party.columns
        },
        here=parties,
        weighed=weighed,
    )
    return RunFacts(tuple(weighed), schedule, sizes)


def _outputs(job: JobOptions, party: Party, labels: NDArray[Any], schedule: Schedule) -> int:
    """Return c, which follows from the labels (m,) of this party. LabelError if the loss has no use for them."""
    loss = job.model.loss
    classes = find_classes(party.name, loss, labels, job.positive)
    check_split(loss, labels[schedule.train], labels[schedule.test], classes)
    return loss.outputs(classes)


def local_run_facts(
    job: JobOptions,
    own: Party,
    columns: Mapping[str, int],
    *,
    outputs: int | None = None,
    brought: Mapping[str, int] | None = None,
) -> RunFacts:
    """Return what a party knows of a run from its own table, and from `columns`, the number of columns d_k of each
    party by name, the leading one first.

    outputs: c, which a party without labels is told by others; 1 for a loss that has one. ConfigError without it for
    another loss, LabelError as `pooled_run_facts`.
    """
    party = prepare_party(job, own, own.register)
    lead, schedule = next(iter(columns)), job.schedule(party.register)
    if party.y is not None:
        outputs = _outputs(job, party, party.y, schedule)
    elif outputs is None and not job.model.loss.single:
        raise ConfigError(f"{own.name}: the number of classes was expected, which {lead} knows; give --classes NUMBER")
    sizes = derive_run_shape(
        job,
        schedule,
        active=lead,
        columns=dict(columns) | {party.name: len(party.columns)},
        outputs=outputs or 1,
        brought=dict(brought or {}) | {party.name: job.model.module_parameters(party.name, party.model)},
        here=[party],
    )
    return RunFacts((party,), schedule, sizes)
