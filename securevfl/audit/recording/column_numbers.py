"""The numbers about a party's columns that another party received in a run, row by row, from any kind of message.

H_k (n, c) are party k's outputs, f is their sum, and y are the labels. The active party has the labels.

- A sum in the clear reveals each party's H_k to the active party. A sum that hides its parts reveals f.
- A residual in the clear reveals y and f to a passive party as far as the loss can be inverted
  (`Loss.invert_residual`), and the passive party subtracts its own output.
- If outputs are stored at a server, a party that pulls learns the sum of all other parties' outputs. If only one of
  them changed between two pulls, it learns that change. The server that stores outputs learns each one that is in the
  clear.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np

from securevfl.audit.recording.party_record import PartyRecord, SumValues
from securevfl.audit.recording.party_recording import Recording
from securevfl.audit.recording.party_view import as_numbers, fields
from securevfl.audit.recording.real_ideal_pair import RealIdealPair
from securevfl.base.arrays import Floats
from securevfl.data.schedule import Rows
from securevfl.protocols.observations import OthersSumLearned, OutputsPushed
from securevfl.protocols.residuals.open_residual import OpenResidual

MAX_BATCHES = 8
"""Maximum number of batches of a partition that are examined."""


@dataclass(frozen=True)
class ColumnNumbers:
    """Numbers (n, T * c) that one party received about the columns of others.

    Attributes:
        learner: the party that received the numbers.
        about: the parties whose columns the numbers depend on.
        rows: the rows that the numbers belong to.
        numbers: the numbers, c outputs of each of T exchanges.
        truth: the columns (n, d), scaled as in training.
        names: names of these columns.
        dimensions: dimension of the space that contains the numbers, apart from noise.
    """

    learner: str
    about: tuple[str, ...]
    rows: Rows
    numbers: Floats
    truth: Floats
    names: tuple[str, ...]
    dimensions: int


BatchNumbers = Iterator[tuple[Rows, list[Floats]]]
"""Rows, and the numbers (n, c) of each exchange about them."""

T = TypeVar("T", SumValues, OthersSumLearned, OutputsPushed)


def by_batch(sums: Iterable[T]) -> dict[int, list[T]]:
    """Return the values in a dict of lists, by the index of the batch that they belong to."""
    groups: dict[int, list[T]] = defaultdict(list)
    for values in sums:
        groups[values.index].append(values)
    return groups


def column_numbers(pair: RealIdealPair, recording: Recording) -> list[ColumnNumbers]:
    """Return the numbers about columns that parties received.

    There is one item for each learner, each set of parties whose outputs are summed, and each batch; the held-out rows
    count as a batch.
    """
    names = [party.name for party in pair.passives]
    active = pair.active.name
    workers = (active, *names)
    others = {name: tuple(other for other in workers if other != name) for name in workers}
    if pair.job.protocol.sum_for(len(names)).hides_parts and len(names) > 1:
        collected = [(active, others[active])]
    else:
        collected = [(name, (name,)) for name in names]
    sources = [(active, about, _sums(pair, recording, source)) for source, about in collected]
    residual = pair.job.protocol.residual
    if isinstance(residual, OpenResidual) and residual.defence is None:
        sources += [(name, others[name], _inverted_residuals(pair, recording[name])) for name in names]
    for name, record in recording.items():
        for index, sums in sorted(by_batch(record.pulled_sums).items())[:MAX_BATCHES]:
            rows, single_changes = pair.rows[index], defaultdict[str, list[Floats]](list)
            sources.append((name, others[name], iter([(rows, [pulled.values for pulled in sums])])))
            for before, after in pairwise(sums):
                moved = [other for other in others[name] if before.versions.get(other) != after.versions.get(other)]
                if len(moved) == 1 < len(others[name]):
                    single_changes[moved[0]].append(after.values - before.values)
            sources += [(name, (other,), iter([(rows, changes)])) for other, changes in single_changes.items()]
    helpers = [party.name for party in pair.parties if not party.columns]
    for helper in helpers:
        sources += [(helper, (name,), _helper_numbers(pair, recording, helper, name)) for name in workers]
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


def _sums(pair: RealIdealPair, recording: Recording, source: str) -> BatchNumbers:
    """Yield the totals that a party collected, or the summands that it contributed in the clear.

    There is one item for the held-out rows and one for each batch.
    """
    schedule = pair.schedule
    evaluated = schedule.test if len(schedule.test) else schedule.batch_order
    outputs = pair.real_run[0].parts[source].outputs
    evaluations = recording.evaluation_sums(source).reshape(-1, len(evaluated), outputs)
    if len(schedule.test):
        yield schedule.test, list(evaluations)
    position = np.empty(len(pair.active), np.intp)
    position[evaluated] = np.arange(len(evaluated))
    for index, sums in sorted(by_batch(recording[source].sums).items())[:MAX_BATCHES]:
        rows = pair.rows[index]
        of_batch = [] if len(schedule.test) else [values[position[rows]] for values in evaluations]
        yield rows, [values.values for values in sums] + of_batch


def _inverted_residuals(pair: RealIdealPair, record: PartyRecord) -> BatchNumbers:
    """Yield by batch the sums f that a passive party computes from residuals in the clear, minus its own outputs."""
    loss = pair.job.loss
    # an iteration may have several sums; going backwards, the first one is stored last and remains in the dict
    outputs = {values.iteration: values for values in reversed(record.sums)}
    # if parties push outputs to a store, each at its own pace, they receive residuals in the order of their pushes
    pushed = iter(record.pushed)
    inverted: dict[int, list[Floats]] = defaultdict(list)
    for receipt in record.receipts:
        g: Any = getattr(receipt.message, "g", None)
        if g is not None and receipt.iteration >= 0:
            output = next(pushed, None) or outputs.get(receipt.iteration)
            if output is not None:
                inverted[output.index].append(loss.invert_residual(g).sums - loss.revealed_outputs(output.values))
    for index, numbers in sorted(inverted.items())[:MAX_BATCHES]:
        rows, complete = complete_rows(numbers)
        if complete:
            yield pair.rows[index][rows], complete


def complete_rows(numbers: list[Floats]) -> tuple[Rows, list[Floats]]:
    """Select exchanges and rows without missing values, so that at least half of the rows remain.

    Args:
        numbers: (n, c) for each exchange. A row is NaN if the loss is flat there and cannot be inverted.

    Returns:
        The positions of the remaining rows, and the numbers of the remaining exchanges on these rows.
    """
    finite = [np.isfinite(values).all(axis=1) for values in numbers]
    rows, exchanges = np.ones(len(numbers[0]), bool), []
    for exchange in sorted(range(len(numbers)), key=lambda exchange: -int(finite[exchange].sum())):
        if 2 * (rows & finite[exchange]).sum() >= len(rows):
            rows &= finite[exchange]
            exchanges.append(exchange)
    return np.flatnonzero(rows), [numbers[exchange][rows] for exchange in sorted(exchanges)]


def _helper_numbers(pair: RealIdealPair, recording: Recording, helper: str, name: str) -> BatchNumbers:
    """Yield the numbers in the clear that a party sent to a helper without a table, by batch."""
    outputs = pair.real_run[0].parts[name].outputs
    received: dict[int, list[Floats]] = defaultdict(list)
    for event in recording[helper].events:
        batch = getattr(event.message, "batch", None)
        if event.direction == "recv" and event.peer == name and batch in pair.rows:
            values = (as_numbers(value, len(pair.rows[batch]), outputs) for value in fields(event.message))
            received[batch] += [numbers for numbers in values if numbers is not None]
    for index, numbers in [item for item in sorted(received.items()) if item[1]][:MAX_BATCHES]:
        yield pair.rows[index], numbers
