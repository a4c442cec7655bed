"""What is known of a run whose parties sit in one process, before it: for the consent sheet and the audit."""

from __future__ import annotations

from collections.abc import Sequence

from securevfl.data.party import Party, register_of
from securevfl.disclosure.exposure import ROWS, enough
from securevfl.methods.base import Known
from securevfl.methods.prepared import prepare_all
from securevfl.methods.sizes import sizes_of
from securevfl.models.losses import check_split
from securevfl.options import JobOptions


def known_run(job: JobOptions, parties: Sequence[Party]) -> Known:
    """Sizes and schedule of a run of these parties, the leading one first. LabelError if the loss has no use for y."""
    parties = prepare_all(job, parties)
    lead, loss = parties[0], job.model.loss
    assert lead.y is not None, "the leading party has labels"
    schedule = job.schedule(register_of(parties))
    classes = loss.classes(lead.y)
    check_split(loss, lead.y[schedule.train], lead.y[schedule.test], classes)
    tables = [party for party in parties if party.columns]
    sizes = sizes_of(
        job,
        schedule,
        active=lead.name,
        columns={party.name: len(party.columns) for party in tables},
        outputs=loss.outputs(classes),
        brought={party.name: job.model.brought(party.name, party.model) for party in tables},
        enough={party.name: enough(party.X[schedule.flow[:ROWS]]) for party in tables},
    )
    return Known(tuple(parties), schedule, sizes)
