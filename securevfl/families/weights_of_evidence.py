"""Weights of evidence of a party's bins, computed before a training.

A party without labels receives the class counts of its bins from the party with labels; that party computes its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from securevfl.data.party import Party
from securevfl.data.preparation import FittedPreparation
from securevfl.data.schedule import Rows
from securevfl.data.woe import BinIndicators, Woe, apply_class_counts
from securevfl.errors import ProtocolError
from securevfl.families.run_shape import positive_rows
from securevfl.options import JobOptions
from securevfl.protocols import bin_classes
from securevfl.protocols.bin_classes import EVIDENCE_SUBCHANNEL
from securevfl.protocols.party_context import PartyContext


def encode_evidence(job: JobOptions, party: Party, train: Rows, context: PartyContext) -> Party:
    """Replace the numbers of the party's bins by weights of evidence, found on these training rows, which all parties
    name in the same order. The party is returned as it is where the job asks for none.

    ProtocolError if the party with labels answers with something else than counts.
    """
    options, residual = job.prepare.woe, job.protocol.residual
    if options is None or residual is None:
        return party
    bins = _bins(party, train, options)
    widths = {name: options.counts(context.columns[name]) for name in context.passives}
    own = replace(context, subchannel=EVIDENCE_SUBCHANNEL, outputs=1, residual_bound=1.0, parameters=widths)
    if party.y is not None:
        positive = positive_rows(job, party.name, party.y, train)
        bin_classes.send_classes(own, residual, positive)
        return _weighed(party, bins, bins.positives(positive), options)
    asked = bins.requested
    found = asked.expand(bin_classes.receive_counts(own, residual, asked, asked.rows))
    if (found < 0).any() or (found > bins.rows).any():
        raise ProtocolError(
            f"{party.name}: counts that add up to one number in every column were expected of {context.active}, others "
            "came; do both hold the same rows?"
        )
    return _weighed(party, bins, found, options)


def encode_evidence_pooled(job: JobOptions, parties: Sequence[Party], train: Rows) -> list[Party]:
    """Replace bins by weights of evidence as `encode_evidence` does, for parties that sit in one process, the leading
    one first, straight from its labels."""
    options = job.prepare.woe
    if options is None:
        return list(parties)
    lead, found = parties[0], []
    positive = positive_rows(job, lead.name, lead.labels, train)
    for party in parties:
        bins = _bins(party, train, options)
        found.append(_weighed(party, bins, bins.positives(positive), options))
    return found


def _bins(party: Party, train: Rows, options: Woe) -> BinIndicators:
    return BinIndicators(party.X[train], options.slots)


def _weighed(party: Party, bins: BinIndicators, positives: NDArray[np.intp], options: Woe) -> Party:
    assert party.preparation is not None, "bins come of a preparation"
    found = FittedPreparation(
        party.preparation.columns, apply_class_counts(party.preparation.steps, bins, positives, options)
    )
    return party.with_woe_weights(found)
