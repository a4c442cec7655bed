"""Numbers about a party's columns that another party received in a run, whatever sum they arrived through."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np

from securevfl.audit.recording.party_record import PartyRecord, Total
from securevfl.audit.recording.party_recording import Recording
from securevfl.audit.recording.party_view import as_numbers, fields
from securevfl.audit.recording.real_ideal_pair import RealIdealPair
from securevfl.base.arrays import Floats
from securevfl.data.schedule import Rows
from securevfl.protocols.observations import OthersSumLearned, OutputsPushed
from securevfl.protocols.residuals.open_residual import OpenResidual

BATCHES = 8  # of a partition that are looked at


@dataclass(frozen=True)
class ColumnNumbers:
    """Numbers (n x T c) that `learner` received about these rows of the columns of the parties `about`.

    truth (n x d): those columns, scaled as in training, with their names. dimensions: of the space that the numbers lie
    in, but for noise.
    """

    learner: str
    about: tuple[str, ...]
    rows: Rows
    numbers: Floats
    truth: Floats
    names: tuple[str, ...]
    dimensions: int


Numbers = Iterator[tuple[Rows, list[Floats]]]  # of rows, so many times

T = TypeVar("T", Total, OthersSumLearned, OutputsPushed)


def by_batch(numbers: Iterable[T]) -> dict[int, list[T]]:
    """Group numbers about rows by the batch that they are of."""
    groups: dict[int, list[T]] = defaultdict(list)
    for each in numbers:
        groups[each.index].append(each)
    return groups


def received(pair: RealIdealPair, tape: Recording) -> list[ColumnNumbers]:
    """Return what was received: by learner, by the parties whose columns it adds up, by batch, and of held-out rows."""
    names = [party.name for party in pair.passives]
    active = pair.active.name
    workers = (active, *names)
    others = {name: tuple(other for other in workers if other != name) for name in workers}
    if pair.job.protocol.sum_for(len(names)).hides_parts and len(names) > 1:
        shown = [(active, others[active])]
    else:
        shown = [(name, (name,)) for name in names]
    sources = [(active, about, _sums(pair, tape, source)) for source, about in shown]
    residual = pair.job.protocol.residual
    if isinstance(residual, OpenResidual) and residual.defence is None:
        sources += [(name, others[name], _undone(pair, tape[name])) for name in names]
    for name, seen in tape.items():
        for index, sums in sorted(by_batch(seen.told).items())[:BATCHES]:
            rows, alone = pair.rows[index], defaultdict[str, list[Floats]](list)
            sources.append((name, others[name], iter([(rows, [told.values for told in sums])])))
            for before, after in pairwise(sums):
                moved = [other for other in others[name] if before.versions.get(other) != after.versions.get(other)]
                if len(moved) == 1 < len(others[name]):
                    alone[moved[0]].append(after.values - before.values)
            sources += [(name, (other,), iter([(rows, changes)])) for other, changes in alone.items()]
    helpers = [party.name for party in pair.parties if not party.columns]
    for helper in helpers:
        sources += [(helper, (name,), _helper_numbers(pair, tape, helper, name)) for name in workers]
    parties, parts = {party.name: party for party in pair.parties}, pair.real_run[0].parts
    batches = []
    for learner, about, source in sources:
        columns = tuple(column for name in about for column in parties[name].columns)
        labels = learner != active and pair.job.loss.retains_targets
        for rows, numbers in source:
            truth = np.hstack([parts[name].scaling(parties[name].X[rows]) for name in about])
            dimensions = len(columns) + labels
            batches.append(ColumnNumbers(learner, about, rows, np.hstack(numbers), truth, columns, dimensions))
    return batches


def _sums(pair: RealIdealPair, tape: Recording, source: str) -> Numbers:
    """Yield what this party collected, or gave in the clear: by batch, and of the held-out rows."""
    schedule = pair.schedule
    asked = schedule.test if len(schedule.test) else schedule.batch_order
    told = tape.evaluated(source).reshape(-1, len(asked), pair.real_run[0].parts[source].outputs)
    if len(schedule.test):
        yield schedule.test, list(told)
    place = np.empty(len(pair.active), np.intp)
    place[asked] = np.arange(len(asked))
    for index, totals in sorted(by_batch(tape[source].totals).items())[:BATCHES]:
        rows = pair.rows[index]
        evaluated = [] if len(schedule.test) else [values[place[rows]] for values in told]
        yield rows, [total.values for total in totals] + evaluated


def _undone(pair: RealIdealPair, seen: PartyRecord) -> Numbers:
    """Yield what the residuals that this passive party read tell of f, less its own part, by batch."""
    loss = pair.job.loss
    own = {total.visit: total for total in reversed(seen.totals)}  # as it was at the first exchange of the visit
    pushed = iter(seen.pushed)  # of a party that goes ahead: residuals come in the order of what it pushed
    told: dict[int, list[Floats]] = defaultdict(list)
    for receipt in seen.receipts:
        g: Any = getattr(receipt.message, "g", None)
        if g is not None and receipt.visit >= 0:
            part = next(pushed, None) or own.get(receipt.visit)
            if part is not None:
                told[part.index].append(loss.invert_residual(g).sums - loss.revealed_outputs(part.values))
    for index, numbers in sorted(told.items())[:BATCHES]:
        known, complete_numbers = complete(numbers)
        if complete_numbers:
            yield pair.rows[index][known], complete_numbers


def complete(numbers: list[Floats]) -> tuple[Rows, list[Floats]]:
    """Numbers (n x c) of as many visits as can be while half of the rows are known in all of them, on these rows.

    The rows are given as their places. A loss that is flat somewhere leaves rows open, NaN, that lie there.
    """
    known = [np.isfinite(each).all(axis=1) for each in numbers]
    rows, visits = np.ones(len(numbers[0]), bool), []
    for visit in sorted(range(len(numbers)), key=lambda visit: -int(known[visit].sum())):
        if 2 * (rows & known[visit]).sum() >= len(rows):
            rows &= known[visit]
            visits.append(visit)
    return np.flatnonzero(rows), [numbers[visit][rows] for visit in sorted(visits)]


def _helper_numbers(pair: RealIdealPair, tape: Recording, helper: str, name: str) -> Numbers:
    """Yield what a party without a table was sent of this one about a batch and can read as numbers, by batch."""
    outputs = pair.real_run[0].parts[name].outputs
    sent: dict[int, list[Floats]] = defaultdict(list)
    for event in tape[helper].events:
        batch = getattr(event.message, "batch", None)
        if event.direction == "recv" and event.peer == name and batch in pair.rows:
            read = (as_numbers(value, len(pair.rows[batch]), outputs) for value in fields(event.message))
            sent[batch] += [numbers for numbers in read if numbers is not None]
    for index, numbers in [each for each in sorted(sent.items()) if each[1]][:BATCHES]:
        yield pair.rows[index], numbers
