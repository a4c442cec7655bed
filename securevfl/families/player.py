"""One party at work: what trains, predicts and is kept, whatever its method.

Whoever knows labels watches whether a training still moves towards a model (`Divergence`): its loss against that of no
model at all, f = 0 on the same rows. A loss that is not finite ends the training at once; one that is FAR above that of
f = 0 as soon as it is so over as many rows as tell it from a few odd ones. The watcher's error ends the run of all.
"""

from __future__ import annotations

import math
import os
import warnings
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from securevfl.base.arrays import Floats, RowSlices
from securevfl.base.chunked_matrix import Tall
from securevfl.crypto.key_derivation import KEY_BYTES, derive_key
from securevfl.crypto.prg import Prg
from securevfl.crypto.secret import Secret
from securevfl.data.baseline import SCORE, Baseline, of_numbers
from securevfl.data.bin_edges import DEVIATION
from securevfl.data.external_table import ExternalTable
from securevfl.data.location_scale import LocationScale, fitted, moments, quartiles
from securevfl.data.party import Party
from securevfl.data.preparation import FittedPreparation, SourceColumn
from securevfl.data.scaling import Scaling
from securevfl.data.schedule import Iteration, Rows, Schedule
from securevfl.data.validation import some
from securevfl.errors import ConfigError, DataNotice, DivergenceError, LabelError, TableError
from securevfl.models import metrics
from securevfl.models.class_labels import classes_of
from securevfl.models.exposure import offsets
from securevfl.models.loss import Loss, check_split
from securevfl.models.row_weights import Weights, row_weights
from securevfl.options import JobOptions
from securevfl.protocols.link import AskedRows
from securevfl.protocols.notes import Began
from securevfl.protocols.party_context import PartyContext
from securevfl.protocols.residuals.base import Batch

# One party's side of the data as a player sees it: columns scaled when they are asked for, targets, and the schedule.
#
# Of a party whose columns stay on disk no more is read than is asked for.


_ROUNDED = 1e-9  # of a column's range: what rounding may take a value beyond an end


class TrainingData:
    """The rows, targets and schedule that one party trains on.

    columns: d. rows: n of the whole table. scaling: by the training rows, cut off at `clip` if that is not None.
    classes, targets (m x c), weights (m,), offsets (m,) of a party with labels; `counted` are the classes that targets
    are made by, `classes` those that predictions are read by, for one unit of exposure. evaluated: the rows that
    metrics are taken on.
    """

    def __init__(
        self,
        party: Party,
        schedule: Schedule,
        loss: Loss,
        *,
        scale: str,
        clip: float | None = None,
        weights: Weights | None = None,
        exposure: str | None = None,
        positive: str | None = None,
    ) -> None:
        self.schedule = schedule
        self.columns = party.X.shape[1]
        self.rows = len(party)
        self._party = party
        self.scaling = _scaling(party, schedule.flow, scale, clip)
        self.classes: NDArray[Any] | None = None
        self.targets: Floats | None = None
        self.weights: Floats | None = None
        self.offsets: Floats | None = None
        self.counted: NDArray[Any] | None = None
        if party.y is not None:
            # a class may have few rows; numbers are scaled by the rows that are trained on, as columns are
            trained = party.y if loss.classifies else party.y[np.sort(schedule.flow)]
            self.counted = self.classes = classes_of(party.name, loss, trained, positive)
            check_split(loss, party.y[schedule.train], party.y[schedule.test], self.classes)
            self.targets = loss.targets(party.y, self.classes)
            if exposure is not None and party.exposure is not None:
                self.offsets, mean = offsets(party.name, exposure, party.exposure, schedule.flow)
                self.classes = self.counted / mean
            if weights is not None:
                self.weights = row_weights(
                    party.name, weights, loss, party.y, self.classes, party.weights, schedule.flow
                )
        self.stays = False  # whether rows stay where they are: batches may then be tall
        self._only: Batch | None = None
        self.evaluated = ScaledRows(self, schedule.test if len(schedule.test) else schedule.flow)

    def starting(self, most: int) -> tuple[Rows, Floats | None]:
        """Return what first weights may follow from: the first training rows in the order of ids, `most` at most, and
        the targets of all training rows in that order, None for a party without labels."""
        trained = self.schedule.by_ids
        return trained[:most], None if self.targets is None else self.targets[trained]

    def raw(self, rows: Rows) -> Floats:
        """Return these rows (k x d) as they are in the table; (k x 0) for a party without a table."""
        return self._party.X[rows] if self.columns else np.empty((len(rows), 0))

    def scaled(self, rows: Rows) -> Floats:
        """Scale these rows and return them (k x d)."""
        return self.scaling(self.raw(rows))

    def labels(self, rows: Rows) -> NDArray[Any] | None:
        """Return the labels of these rows (k,); None for a party without labels."""
        return None if self._party.y is None else self._party.y[rows]

    def counts(self, rows: Rows) -> Floats | None:
        """Return what each of these rows (k,) counts in metrics: its weight, if the job names a column of weights;
        those of classes change what is trained alone.

        TableError if none of them counts.
        """
        own = self._party.weights
        if own is not None and not np.any(own[rows]):
            raise TableError(
                f"party {self._party.name}: weights above 0 among the rows that metrics are taken on were expected, "
                "all are 0; hold out other rows (split) or more of them"
            )
        return None if own is None else np.asarray(own[rows], np.float64)

    def rated(self, rows: Rows) -> Floats | None:
        """Return the targets of these rows as the job's loss takes them: k x c, and beside them their offsets and
        weights."""
        if self.targets is None:
            return None
        beside = [each[rows] for each in (self.offsets, self.weights) if each is not None]
        return np.column_stack([self.targets[rows], *beside]) if beside else self.targets[rows]

    def rated_outputs(self, rows: Rows, outputs: int) -> Floats | None:
        """Return what each row and output goes by, one after the other: `rated` with a line for each of n x c."""
        rated = self.rated(rows)
        if rated is None:
            return None
        return np.column_stack([rated[:, :outputs].ravel(), np.repeat(rated[:, outputs:], outputs, axis=0)])

    def shifted(self, f: Floats, rows: Rows) -> Floats:
        """f (k x c) of these rows with their offsets, if they have any."""
        return f if self.offsets is None else f + self.offsets[rows][:, None]

    def matrix(self, rows: Rows) -> Floats:
        """Return these rows, scaled: as an array, or as a `Tall` in its place where the rows stay outside."""
        table: Floats | ExternalTable = self._party.X
        if self.stays and isinstance(table, ExternalTable):
            tall = table.tall(rows, self.scaling)
            if tall is not None:
                return cast(Floats, tall)
        return self.scaled(rows)

    @property
    def apart(self) -> bool:
        """Whether the rows of the table lie at workers."""
        table: Floats | ExternalTable = self._party.X
        return isinstance(table, ExternalTable) and table.apart

    def at_workers(self, rows: Rows, *, raw: bool = False) -> Tall:
        """Return these rows where they lie at workers, scaled, or `raw` as they are in the table.

        TableError if they lie there in another order.
        """
        table: Floats | ExternalTable = self._party.X
        assert isinstance(table, ExternalTable), "rows lie at workers"
        tall = table.tall(rows, Scaling.none(self.columns) if raw else self.scaling)
        if tall is None:
            raise TableError(
                f"party {self._party.name}: rows in the order of this job's batches were expected at the workers, the "
                "table was stored in another one; store it by store_table(..., job=job)"
            )
        return tall

    @property
    def sources(self) -> tuple[SourceColumn, ...]:
        """What its columns were before they were prepared."""
        by = self._party.preparation
        return tuple((by or FittedPreparation(self._party.columns)).sources)

    @property
    def named(self) -> bool:
        """Whether the rows of the table have ids."""
        return self._party.named

    def ids(self, rows: Rows) -> list[bytes]:
        """Return what names each of these rows (k): digests of their ids, or their numbers in a table without ids."""
        return self._party.keys_of(rows)

    def batch(self, visit: Iteration, *, columns: bool = True) -> Batch:
        """Return this party's side of a batch; without `columns` none of its rows is read. Where an epoch has one batch
        alone, that batch is kept."""
        if self._only is not None and columns:
            return replace(self._only, index=visit.index, epoch=visit.epoch, rows=visit.rows)
        shown = visit.rows if columns else visit.rows[:0]
        batch = Batch(visit.index, visit.epoch, self.matrix(shown), self.rated(visit.rows), visit.rows)
        if columns and self.schedule.batches == 1:
            self._only = batch
        return batch

    def first(self, rows: int) -> list[Iteration]:
        """Return the first batches of the partition that together hold `rows` rows, or all batches if they hold
        fewer."""
        taken: list[Iteration] = []
        held = 0
        for index, part in enumerate(self.schedule.partition(0)):
            if held >= rows:
                break
            taken.append(Iteration(index, 0, part))
            held += len(part)
        return taken


class ScaledRows:
    """Some rows of a party's columns, scaled when they are read by slices."""

    def __init__(self, data: TrainingData, rows: Rows) -> None:
        self.rows = rows
        self.of = data

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, rows: slice, /) -> Floats:
        return self.of.matrix(self.rows[rows])


def _scaling(party: Party, train: Rows, scale: str, clip: float | None) -> Scaling:
    """Fit the scale of each column on the training rows; (0, 1) without scaling, and of codes; those of bins all spread
    as far. A DataNotice names columns of which training rows are cut off.

    A column that does not vary has an infinite deviation: it is 0 in every row, whatever new rows hold.
    """
    if not party.X.shape[1]:
        return Scaling.none(0)
    if scale == "none" and clip is None:
        return Scaling(np.zeros(party.X.shape[1]), np.where(np.isin(party.columns, party.constant), np.inf, 1.0))
    lie = (quartiles if scale == "robust" else moments)(party.X, train)
    made = party.preparation or FittedPreparation(party.columns)
    coded = np.isin(party.columns, made.codes) | (scale == "none")
    deviation = np.where(lie.deviation > 0, lie.deviation, np.inf)
    deviation = np.where(np.isin(party.columns, made.stepped) & np.isfinite(deviation), DEVIATION, deviation)
    lie = lie._replace(deviation=deviation)
    if clip is not None:
        lie = fitted(lie, clip)
    constant = np.isin(party.columns, party.constant) if scale == "none" else ~coded & np.isinf(lie.deviation)
    deviation = np.where(constant, np.inf, np.where(coded, 1.0, lie.deviation))
    found = Scaling(np.where(coded, 0.0, lie.mean), deviation, clip)
    if clip is not None:
        _tell_cut(party, lie, found)
    return found


def _tell_cut(party: Party, lie: LocationScale, scaling: Scaling) -> None:
    """Say in a DataNotice which columns are cut off within the training rows, and where."""
    ends = zip(party.columns, *scaling.ends, lie.low - lie.high, lie.low, lie.high, strict=True)
    cut = [
        f"{column} outside {first:.6g} to {last:.6g}"
        for column, first, last, wide, low, high in ends
        if low < first + _ROUNDED * wide or high > last - _ROUNDED * wide
    ]
    if cut:
        notice = f"party {party.name}: on shares values far out count as the last one that is covered: {some(cut)}"
        remedy = 'prepare.tails = "squash" or bins keep them apart'
        warnings.warn(f"{notice}; {remedy}", DataNotice, stacklevel=2)


# What a player keeps between two sittings, as data: arrays, bytes, numbers, texts, and lists and tables of these.
#
# A state goes to disk as JSON and comes back equal, bit for bit. Weights and keys are in it, so its repr names what is
# there and shows none of it.


_ARRAY, _BYTES = "array", "bytes"  # what marks a table that stands for one of these


class State(dict[str, Any]):
    """Names to values. Equal states continue a training, or predict, in the same way."""

    def __repr__(self) -> str:
        return f"State({', '.join(self)})"

    def plain(self) -> dict[str, Any]:
        """Return the state as values that JSON can hold. Raises TypeError if there is a value of another kind."""
        return {name: _plain(value) for name, value in self.items()}

    @classmethod
    def read(cls, plain: Mapping[str, Any]) -> State:
        """Read a state back from what `plain` returned. Raises ValueError, KeyError or TypeError if it is not of that
        form."""
        return cls({str(name): _read(value) for name, value in plain.items()})


def _plain(value: Any) -> Any:
    match value:
        case np.ndarray():
            little = value.dtype.newbyteorder("<")
            return {_ARRAY: little.str, "shape": list(value.shape), "values": value.astype(little).ravel().tolist()}
        case bytes():
            return {_BYTES: value.hex()}
        case Mapping():
            return {str(name): _plain(each) for name, each in value.items()}
        case list() | tuple():
            return [_plain(each) for each in value]
        case bool() | int() | float() | str() | None:
            return value
    raise TypeError(f"{type(value).__name__} has no place in a state")


def _read(value: Any) -> Any:
    if isinstance(value, list):
        return [_read(each) for each in value]
    if not isinstance(value, dict):
        return value
    if set(value) == {_ARRAY, "shape", "values"}:
        kind = np.dtype(value[_ARRAY])
        if kind.kind not in "biuf":
            raise ValueError("an array of numbers was expected")
        return np.array(value["values"], kind).reshape(value["shape"])
    if set(value) == {_BYTES}:
        return bytes.fromhex(value[_BYTES])
    return {name: _read(each) for name, each in value.items()}


FAR = 10.0  # times the loss of f = 0
ROWS = 64  # over at least so many rows, or all there are


class Divergence:
    """Watches the losses of the latest batches of a table of `rows` training rows."""

    def __init__(self, loss: Loss, rows: int) -> None:
        self._loss = loss
        self._rows = min(ROWS, rows)
        self._seen: deque[tuple[int, float, float]] = deque()  # rows, loss, loss of f = 0; the latest last

    def see(self, round_number: int, f: Floats, y: Floats) -> float:
        """Take in the forward output f (n x c) of a batch with targets y (n x c), and return its mean loss.
        DivergenceError names the round."""
        own, none = _sums(self._loss, f, y)
        self._seen.append((len(f), own, none))
        while sum(rows for rows, _, _ in self._seen) - self._seen[0][0] >= self._rows:
            self._seen.popleft()
        rows, total, start = (sum(each) for each in zip(*self._seen, strict=True))
        if not np.isfinite(own) or (rows >= self._rows and total > FAR * start):
            raise diverged(round_number)
        return own / len(f)

    def check_sealable(self, round_number: int, g: Floats, y: Floats) -> None:
        """Check that no entry of g (n x c) is beyond the loss's bound, up to which residuals are encrypted.

        LabelError if it is so without any model, for targets y (n x c); else DivergenceError.
        """
        bound = self._loss.bound
        if np.abs(g).max(initial=0.0) <= bound:
            return
        if np.abs(self._loss.residual(np.zeros_like(g), y)).max() > bound:
            raise LabelError(
                f"{self._loss.name} loss: labels within {bound:g} {self._loss.label_scale} were expected "
                "under encryption, some are farther; trim them, or train on their logarithm"
            )
        raise diverged(round_number)


def check_outcome(loss: Loss, f: Floats, y: Floats, rounds: int) -> None:
    """DivergenceError if f (n x c), of a model after so many rounds, is far worse than none for targets y (n x c)."""
    own, none = _sums(loss, f, y)
    if not own <= FAR * none:
        raise diverged(rounds)


def diverged(round_number: int) -> DivergenceError:
    """Return the error of a training that diverges at this round."""
    return DivergenceError(
        f"round {round_number}: a loss near or below that of its start was expected, it is not finite or far above: "
        "the training diverges and no model is kept; lower lr"
    )


def _sums(loss: Loss, f: Floats, y: Floats) -> tuple[float, float]:
    """Add up the losses over the rows, for f and for f = 0."""
    with np.errstate(over="ignore", invalid="ignore"):
        return float(loss.value(f, y).sum()), float(loss.value(np.zeros_like(f), y).sum())


@dataclass(frozen=True)
class KnownRows:
    """What whoever asks knows of new rows (m,) before it asks: those that the model was `trained` on, those that it has
    asked about with other columns (`changed`), and scores that it has been told (m x c), nan elsewhere."""

    trained: NDArray[np.bool_]
    changed: NDArray[np.bool_]
    scores: Floats


@dataclass(frozen=True)
class AnsweredRows:
    """Which rows of a block (m,) were scored, and for which of these the score was made, not told again."""

    scored: NDArray[np.bool_]
    fresh: NDArray[np.bool_]


@dataclass(frozen=True)
class Round:
    """One round that is over. number counts from 1, those before a resume included; loss: its mean, where known."""

    number: int
    of: int
    epoch: int
    loss: float | None = None


class Player(ABC):
    """One party at work under one method."""

    calibration: Sequence[list[float]] = ()  # as of the last measurement (`metrics.calibration`)
    spread: Mapping[str, float] = {}  # of the metrics of the last measurement (`metrics.spread`)
    scored: Baseline | None = None  # of the scores of the last measurement, where these are told

    @abstractmethod
    def train(self, data: TrainingData, start: int = 0) -> Generator[Round]:
        """Trains, `start` rounds having been done before, and hands over after every round.

        In between all parties may evaluate, keep their states, or stop for good, which closes this generator.
        """

    @abstractmethod
    def decision(self, rows: RowSlices, asked: AskedRows | None = None) -> Floats | None:
        """F (m x c) on these rows, of which every party brings its columns; None where it is not for this party. nan
        for rows that a party has refused.

        asked: their ids and columns as they are, where there are any.
        """

    def answered(self, rows: int) -> AnsweredRows:
        """Return which of the rows of the last `decision`, so many, were scored."""
        return AnsweredRows(np.ones(rows, np.bool_), np.ones(rows, np.bool_))

    def known(self, asked: AskedRows) -> KnownRows:
        """Return what this party, which asks, knows of new rows (m,) before it asks about them."""
        nothing = np.zeros(len(asked.ids), np.bool_)
        return KnownRows(nothing, nothing, np.full((len(nothing), 1), np.nan))

    def measure(self, loss: Loss, data: TrainingData, rounds: int, *, last: bool) -> dict[str, float]:
        """Metrics on the rows that are evaluated, with all other parties; empty where they are not for this party.

        rounds: done so far. last: the training is over. DivergenceError if it has left the numbers.
        """
        rows = data.evaluated
        f, labels = self.decision(rows), data.labels(rows.rows)
        if f is None or labels is None or data.counted is None:
            return {}
        f = data.shifted(f, rows.rows)
        check_outcome(loss, f, loss.targets(labels, data.counted), rounds)
        counts = data.counts(rows.rows)
        if not loss.classifies or len(data.counted) == 2:
            said = loss.proba(f)[:, 1] if loss.classifies else loss.mean(f, data.counted)
            found = labels == data.counted[1] if loss.classifies else labels
            self.calibration = metrics.calibration(found, said, weights=counts).tolist()
            self.scored = of_numbers(SCORE, said)
        if last:
            self.spread = metrics.spread(loss, f, labels, data.counted, counts)
        return metrics.evaluate(loss, f, labels, data.counted, counts)

    def prepare(self, data: TrainingData) -> Generator[Round]:
        """Do all work that can be done before the training, together with all other parties; yields after each step as
        `train` does.

        ConfigError for a method that has none.
        """
        raise ConfigError(f"{type(self).__name__} has nothing to prepare; start the training at once")

    @property
    def turns_back(self) -> bool:
        """Whether the player can go back from where it has lost its way, to go on with shorter steps."""
        return False

    def is_lost(self, losses: Sequence[float]) -> bool:
        """Whether the losses of all evaluations so far say to turn back, the last one being of this model."""
        return False

    def turn_back(self, best: State | None) -> None:
        """Go back to the outcome of an earlier evaluation, or to the start, and on from there with shorter steps; all
        parties do so at the same point, between two rounds. Only where `turns_back`."""
        raise NotImplementedError(f"{type(self).__name__} does not turn back")

    @property
    def row_bits(self) -> float:
        """How many bits of a new row this party lets its scores and codes tell; no end where scores are exact."""
        return float("inf")

    @property
    def exchanges(self) -> int:
        """How often all parties have exchanged something so far, before a resume included."""
        return 0

    @property
    def constant(self) -> bool:
        """Whether one state serves any round before it: it is the same at every round, or the player goes at a pace of
        its own and knows by its state how far it is."""
        return False

    @abstractmethod
    def state(self) -> State:
        """All that a resume needs beside the training data."""

    def outcome(self) -> State:
        """Return what predicting needs of the state: the party's part of the model."""
        return self.state()

    def going_back(self, best: State, anew: Callable[[State], Player]) -> Player:
        """Who ends the training with an earlier outcome of this player; all parties go back at the same point.

        anew: makes a player of an outcome, which is enough for methods whose ends need nothing of the training.
        """
        return anew(best)


class BatchPlayer(Player):
    """A player that goes through the batches of the schedule; what its optimizer sees of the party."""

    def __init__(self, job: JobOptions, context: PartyContext) -> None:
        self.parties = len(context.parties)  # K
        self.seed = job.seed
        self.start = 0  # rounds done before, where it goes on from a state
        self._job = job
        self._channel = context.channel
        self.loss = job.loss
        self._seals = job.protocol.seals
        self._visit: Iteration | None = None
        self._booked: float | None = None
        self._watch: Divergence | None = None
        self._round = 0  # the one that is being done, from 1
        self._secret = b""  # of the run
        self._sends = context.me in context.passives
        self._rounding: RoundedOutputs | None = None

    @property
    def data(self) -> TrainingData:
        """The training data of this party, once it has begun."""
        return self._data

    def begin(self, data: TrainingData, start: int) -> None:
        """Start on the training data, at round `start`; this is called before anything else."""
        self._data = data
        self.start = start
        self._watch = None if data.targets is None else Divergence(self.loss, len(data.schedule.train))

    def keep_secret(self, key: bytes | None) -> None:
        """Go by the secret of the run that a state has, or by a fresh one."""
        self._secret = key or os.urandom(KEY_BYTES)

    def shown(self, H: Floats, rows: Rows, table: int, trained: int) -> Floats:
        """H (n x c) of these rows of a table of so many, of which so many are trained on, as this party may send it:
        rounded, where it follows from weights that a key holder has a hand in."""
        if not (self._seals and self._sends and self._job.model.static_jacobian):
            return H
        if self._rounding is None:
            self._rounding = RoundedOutputs(self._secret, table, H.shape[1], step_for(trained))
        return self._rounding(H, rows)

    def shown_batch(self, H: Floats, batch: Batch) -> Floats:
        """H (n x c) of a batch as this party may send it."""
        assert batch.rows is not None, "a batch of a table has its rows"
        return self.shown(H, batch.rows, self._data.rows, len(self._data.schedule.train))

    def shown_of(self, rows: RowSlices) -> Callable[[Floats, slice], Floats]:
        """Return how H of these rows may be sent: rounded, where they are of the table that is trained on."""
        if not isinstance(rows, ScaledRows):
            return lambda H, block: H
        return lambda H, block: self.shown(H, rows.rows[block], rows.of.rows, len(rows.of.schedule.train))

    def batches(self) -> Iterator[Batch]:
        """Yield this party's side of every batch still to come, in the order that all parties share."""
        for number, visit in enumerate(islice(self._data.schedule.iterations(), self.start, None), self.start + 1):
            self._round, self._visit, self._booked = number, visit, None
            self._channel.gate.began(number)
            self._channel.note(Began(visit.index))
            yield self.batch(visit)

    def visited(self, number: int) -> Batch:
        """Return this party's side of the batch of an earlier round, counted from 0."""
        return self.batch(next(islice(self._data.schedule.iterations(), number, None)))

    def later(self, k: int) -> Batch | None:
        """Return this party's side of the batch k rounds after the one being done, or done last; None after the end."""
        visit = next(islice(self._data.schedule.iterations(), self._round - 1 + k, None), None)
        return None if visit is None else self.batch(visit)

    def batch(self, visit: Iteration) -> Batch:
        """Return this party's side of the batch of a visit."""
        return self._data.batch(visit)

    def residual(self, f: Floats, batch: Batch) -> Floats:
        """G (n x c) of the loss at f (n x c); the first of a batch also books its loss. Only with labels.

        DivergenceError if the loss is that of no model; LabelError if a label is too far from the others to be sealed.
        """
        y = batch.labels
        assert self._watch is not None, "it has begun"
        if self._booked is None:
            self._booked = self._watch.see(self._round, f, y)
        g = self.loss.residual(f, y)
        if self._seals:
            self._watch.check_sealable(self._round, g, y)
        return g

    def book(self, loss: float) -> None:
        """Note the mean loss of a batch, the first time in a visit."""
        if self._booked is None:
            self._booked = loss

    def rounds(self, work: Iterator[None]) -> Iterator[Round]:
        """Yield a round for each step of an optimizer's work."""
        of = len(self._data.schedule)
        for number, _ in enumerate(work, self.start + 1):
            assert self._visit is not None, "an optimizer takes a batch before it is done with one"
            yield Round(number, of, self._visit.epoch, self._booked)


# H as a party without labels sends it up where residuals come down sealed: rounded, by a dither that it keeps.
#
# A key holder that deviates may move each value that it opens by as much as the checks let through (docs/proof.md).
# Under a sealed g of zeros nothing else moves, so a change of H from one exchange to the next would be a raw column of
# its choice, however small it is, and the changes of all exchanges of a run add up in the weights. So H goes up as a
# multiple of s, rounded down after a number below s was added that is secret, uniform, and the same for one row in all
# exchanges of a run: H shows by how many steps a row has moved and no more, whoever asks how often. A fresh dither each
# time would be averaged away.
#
#     s = the power of two at or below min(1/8, 1.26 n^(-1/4)), n the training rows
#
# The mean of what is sent is H. Rounding acts as noise of deviation s / sqrt(6) in f at most: for logistic loss it
# moves weights by 0.03 standard errors at n <= 10,000 and less beyond, and shrinks them by 0.15 s^2 / 6. Labels that
# follow f closely show more of it: at 3,000 rows it moves weights of counts of 2 in the mean by 0.5 standard errors,
# and of counts of 100,000 by 150, whose standard errors are 1e-4 of a deviation (`tests/models/test_right_numbers.py`).

COARSEST = 0.125
AT_ONE = 1.26  # what s would be at one row


def step_for(rows: int) -> float:
    """Return s for a training of so many rows."""
    return float(2.0 ** math.floor(math.log2(min(COARSEST, AT_ONE * rows**-0.25))))


class RoundedOutputs(Secret):
    """The rounding of one party's H in one run, by row of its table."""

    __slots__ = ("_below", "_step")

    def __init__(self, key: bytes, rows: int, outputs: int, step: float) -> None:
        """key: of the run, kept with this party's states. rows: of the whole table. step: s."""
        words = Prg(derive_key(key, "dither of outputs"), "outputs").array((rows, outputs), np.uint16)
        self._below, self._step = words, step

    def __call__(self, H: Floats, rows: Rows) -> Floats:
        """H (n x c) of these rows, rounded."""
        below = (self._below[rows] + 0.5) * 2.0**-16
        return np.floor(H / self._step + below) * self._step
