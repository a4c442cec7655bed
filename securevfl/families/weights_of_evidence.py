"""Weights of evidence of a party's bins, computed before a training.

The weight of evidence of a bin is the logarithm of the odds of the positive class among its rows, relative to all rows.
A party without labels requests the class counts of its bins from the party with labels, which computes its own weights
from its labels.
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
    """Replace the 0/1 columns of a party's bins by weights of evidence, together with the other parties.

    Args:
        job: the options of the training, on which all parties agree (`securevfl.job.Job`).
        party: the party with its prepared columns.
        train: positions of the training rows, in the order that all parties share.
        context: the party's channel to the others, the roles of all parties, and the meter of its costs.

    Returns:
        The party with encoded columns, or unchanged if the job does not use weights of evidence.

    Raises:
        ProtocolError: if the numbers from the active party cannot be counts of rows.
    """
    options, residual = job.prepare.woe, job.protocol.residual
    if options is None or residual is None:
        return party
    bins = _bin_indicators(party, train, options)
    widths = {name: options.counts(context.columns[name]) for name in context.passives}
    bin_context = replace(context, subchannel=EVIDENCE_SUBCHANNEL, outputs=1, residual_bound=1.0, parameters=widths)
    if party.y is not None:
        positive = positive_rows(job, party.name, party.y, train)
        bin_classes.send_classes(bin_context, residual, positive)
        return _with_evidence(party, bins, bins.positives(positive), options)
    requested = bins.requested
    positives = requested.expand(bin_classes.receive_counts(bin_context, residual, requested, requested.rows))
    if (positives < 0).any() or (positives > bins.rows).any():
        raise ProtocolError(
            f"{party.name}: the class counts from {context.active} cannot be right, because the rows of the positive "
            "class do not add up to the same number in every column",
            "check that both parties have the same rows",
            code="SVFL-PROTOCOL-VALUES",
            peer=context.active,
        )
    return _with_evidence(party, bins, positives, options)


def encode_evidence_pooled(job: JobOptions, parties: Sequence[Party], train: Rows) -> list[Party]:
    """Replace bins by weights of evidence for parties in one process, from the labels of the first party."""
    options = job.prepare.woe
    if options is None:
        return list(parties)
    lead = parties[0]
    positive = positive_rows(job, lead.name, lead.labels, train)
    encoded = []
    for party in parties:
        bins = _bin_indicators(party, train, options)
        encoded.append(_with_evidence(party, bins, bins.positives(positive), options))
    return encoded


def _bin_indicators(party: Party, train: Rows, options: Woe) -> BinIndicators:
    return BinIndicators(party.X[train], options.slots)


def _with_evidence(party: Party, bins: BinIndicators, positives: NDArray[np.intp], options: Woe) -> Party:
    assert party.preparation is not None, "only a preparation creates bins"
    steps = apply_class_counts(party.preparation.steps, bins, positives, options)
    return party.with_woe_weights(
        FittedPreparation(party.preparation.columns, steps, decided=party.preparation.decided)
    )
