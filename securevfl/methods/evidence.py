"""Weights of evidence of a party's bins, before a training: told by the party with labels, or by one's own labels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from securevfl.data.evidence import BinRows, Woe, weighed
from securevfl.data.party import Party
from securevfl.data.preparation import Prepared
from securevfl.data.schedule import Rows
from securevfl.methods.sizes import later_rows
from securevfl.options import JobOptions
from securevfl.protocols import evidence
from securevfl.protocols.base import Seat
from securevfl.protocols.evidence import LANE


def weigh(job: JobOptions, party: Party, train: Rows, seat: Seat) -> Party:
    """The party with weights in place of the numbers of its bins, by these training rows, which all parties name in the
    same order. A party as it is where the job asks for none.

    ProtocolError if the party with labels answers with something else than counts.
    """
    options, residual = job.prepare.woe, job.protocol.residual
    if options is None or residual is None:
        return party
    bins = _bins(party, train, options)
    widths = {name: seat.columns[name] * options.slots for name in seat.passives}
    own = replace(seat, lane=LANE, outputs=1, residual_bound=1.0, parameters=widths)
    if party.y is not None:
        later = later_rows(job, party.y, train)
        evidence.tell(own, residual, later)
        return _weighed(party, bins, bins.positives(later), options)
    return _weighed(party, bins, evidence.ask(own, residual, bins, bins.rows), options)


def weigh_pooled(job: JobOptions, parties: Sequence[Party], train: Rows) -> list[Party]:
    """The same of parties that sit in one process, the leading one first, by its labels as they are."""
    options = job.prepare.woe
    if options is None:
        return list(parties)
    lead, found = parties[0], []
    assert lead.y is not None, "the leading party has labels"
    later = later_rows(job, lead.y, train)
    for party in parties:
        bins = _bins(party, train, options)
        found.append(_weighed(party, bins, bins.positives(later), options))
    return found


def _bins(party: Party, train: Rows, options: Woe) -> BinRows:
    return BinRows(party.X[train], options.slots)


def _weighed(party: Party, bins: BinRows, positives: NDArray[np.intp], options: Woe) -> Party:
    assert party.preparation is not None, "bins come of a preparation"
    found = Prepared(party.preparation.columns, weighed(party.preparation.steps, bins, positives, options))
    return party.weighed(found)
