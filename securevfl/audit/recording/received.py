"""The numbers about columns that a party received in a run, row by row, whatever sum they came through.

A sum in the clear tells the active party each part H_k, a sum that hides its parts their total. A residual that is not
sealed tells a passive party y and f as far as the loss can be undone (`Loss.undo`), less its own part. Where sums
are stored, whoever pulls them is told the sum of all others, the change of one of them where that one alone has moved
between two pulls, and who stores them each part, if it is in the clear.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from securevfl.audit.recording.views import Tape, Worlds, as_numbers, fields
from securevfl.base.arrays import Floats
from securevfl.data.schedule import Rows
from securevfl.protocols.notes import ToldSum
from securevfl.protocols.residuals.open_residual import OpenResidual

BATCHES = 8  # of a partition that are looked at


@dataclass(frozen=True)
class Received:
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


def received(worlds: Worlds, tape: Tape) -> list[Received]:
    """Return what was received: by learner, by the parties whose columns it adds up, by batch, and of held-out rows."""
    names = [party.name for party in worlds.passives]
    active = worlds.active.name
    if worlds.job.protocol.sum_for(len(names)).hides_parts and len(names) > 1:
        shown: list[tuple[str, tuple[str, ...]]] = [(active, tuple(names))]
    else:
        shown = [(name, (name,)) for name in names]
    found = []
    for source, about in shown:
        found += [_made(worlds, active, about, rows, columns) for rows, columns in _sums(worlds, tape, source)]
    residual = worlds.job.protocol.residual
    if isinstance(residual, OpenResidual) and residual.defence is None:
        everyone = (active, *names)
        for name in names:
            others = tuple(other for other in everyone if other != name)
            found += [_made(worlds, name, others, rows, columns) for rows, columns in _undone(worlds, tape, name)]
    workers = (active, *names)
    for name in tape.told:
        others = tuple(other for other in workers if other != name)
        found += [
            _made(worlds, name, about, rows, columns) for about, rows, columns in _told(worlds, tape, name, others)
        ]
    for helper in (party.name for party in worlds.parties if not party.columns):
        for name in workers:
            parts = _kept(worlds, tape, helper, name)
            found += [_made(worlds, helper, (name,), rows, columns) for rows, columns in parts]
    return found


def _made(worlds: Worlds, learner: str, about: tuple[str, ...], rows: Rows, numbers: list[Floats]) -> Received:
    parties = {party.name: party for party in worlds.parties}
    parts = worlds.real_run[0].parts
    truth = np.hstack([parts[name].scaling(parties[name].X[rows]) for name in about])
    columns = tuple(column for name in about for column in parties[name].columns)
    labels = learner != worlds.active.name and worlds.job.loss.keeps_targets
    return Received(learner, about, rows, np.hstack(numbers), truth, columns, len(columns) + labels)


def _sums(worlds: Worlds, tape: Tape, source: str) -> Iterator[tuple[Rows, list[Floats]]]:
    """Yield what this party collected, or gave in the clear: by batch, and of the held-out rows."""
    schedule = worlds.schedule
    by_batch: dict[int, list[Floats]] = defaultdict(list)
    for total in tape.totals[source]:
        by_batch[total.index].append(total.values)
    asked = schedule.test if len(schedule.test) else schedule.flow
    told = tape.evaluated(source).reshape(-1, len(asked), worlds.real_run[0].parts[source].outputs)
    if len(schedule.test):
        yield schedule.test, list(told)
    place = np.empty(len(worlds.active), np.intp)
    place[asked] = np.arange(len(asked))
    rows = {visit.index: visit.rows for visit in schedule.visits()}
    for index in sorted(by_batch)[:BATCHES]:
        own = rows[index]
        yield own, by_batch[index] + ([] if len(schedule.test) else [values[place[own]] for values in told])


def _undone(worlds: Worlds, tape: Tape, name: str) -> Iterator[tuple[Rows, list[Floats]]]:
    """Yield what the residuals that this passive party read tell of f, less its own part, by batch."""
    loss = worlds.job.loss
    own = {}
    for total in reversed(tape.totals[name]):
        own[total.visit] = total.values  # as it was at the first exchange of the visit
    rows = {visit.index: visit.rows for visit in worlds.schedule.visits()}
    by_batch: dict[int, list[Floats]] = defaultdict(list)
    pushed = iter(tape.pushed[name])  # of a party that goes ahead: residuals come in the order of what it pushed
    for receipt in tape.receipts[name]:
        g: Any = getattr(receipt.message, "g", None)
        if g is None or receipt.visit < 0:
            continue
        if (part := next(pushed, None)) is not None:
            index, values = part.index, part.values
        elif receipt.visit in own:
            index, values = tape.visits[name][receipt.visit], own[receipt.visit]
        else:
            continue
        by_batch[index].append(loss.undo(g).sums - loss.shown(values))
    for index in sorted(by_batch)[:BATCHES]:
        known, numbers = complete(by_batch[index])
        if numbers:
            yield rows[index][known], numbers


def complete(numbers: list[Floats]) -> tuple[Rows, list[Floats]]:
    """Numbers (n x c) of as many visits as can be while half of the rows are known in all of them, on these rows.

    The rows are given as their places. A loss that is flat somewhere leaves rows open, NaN, that lie there.
    """
    known = [np.isfinite(each).all(axis=1) for each in numbers]
    rows, kept = np.ones(len(numbers[0]), bool), []
    for number in sorted(range(len(numbers)), key=lambda number: -int(known[number].sum())):
        if 2 * (rows & known[number]).sum() >= len(rows):
            rows &= known[number]
            kept.append(number)
    return np.flatnonzero(rows), [numbers[number][rows] for number in sorted(kept)]


def _told(
    worlds: Worlds, tape: Tape, name: str, others: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], Rows, list[Floats]]]:
    """Yield the sums of all others that this party has pulled, by batch, and differences where one alone has moved."""
    rows = {visit.index: visit.rows for visit in worlds.schedule.visits()}
    by_batch: dict[int, list[ToldSum]] = defaultdict(list)
    for told in tape.told[name]:
        by_batch[told.index].append(told)
    for index in sorted(by_batch)[:BATCHES]:
        sums, alone = by_batch[index], defaultdict[str, list[Floats]](list)
        yield others, rows[index], [told.values for told in sums]
        for before, after in pairwise(sums):
            moved = [other for other in others if before.versions.get(other) != after.versions.get(other)]
            if len(moved) == 1 < len(others):
                alone[moved[0]].append(after.values - before.values)
        yield from (((other,), rows[index], changes) for other, changes in alone.items())


def _kept(worlds: Worlds, tape: Tape, helper: str, name: str) -> Iterator[tuple[Rows, list[Floats]]]:
    """Yield what a party without a table was sent of this one about a batch and can read as numbers, by batch."""
    rows = {visit.index: visit.rows for visit in worlds.schedule.visits()}
    outputs = worlds.real_run[0].parts[name].outputs
    by_batch: dict[int, list[Floats]] = defaultdict(list)
    for event in tape.events[helper]:
        batch = getattr(event.message, "batch", None)
        if event.direction == "recv" and event.peer == name and batch in rows:
            read = (as_numbers(value, len(rows[batch]), outputs) for value in fields(event.message))
            by_batch[batch] += [numbers for numbers in read if numbers is not None]
    for index in sorted(index for index, numbers in by_batch.items() if numbers)[:BATCHES]:
        yield rows[index], by_batch[index]
