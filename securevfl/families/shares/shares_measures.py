"""How good a model on shares is, as one party takes part in saying it.

Pairs of a level and a label come out in an order that nobody knows; of losses that pairs do not serve one sum is
opened; and after each chunk it is counted how many sums are beyond the end of the table.
"""

from __future__ import annotations

import logging
import warnings
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from securevfl.base.arrays import Floats
from securevfl.base.roles import PARTNER
from securevfl.base.tall import Rows as RowsHere
from securevfl.base.tall import Stretch
from securevfl.data.schedule import Rows, Visit
from securevfl.errors import DataNotice
from securevfl.families.player import FAR as FAR_ABOVE
from securevfl.families.player import ScaledRows, TrainingData, diverged
from securevfl.families.shares.shares_plan import Plan, SharesJob, Turned, turns_back
from securevfl.models import metrics
from securevfl.models.base import Inputs, inputs_at
from securevfl.models.loss import Loss
from securevfl.protocols.seat import Seat
from securevfl.protocols.shares.new_sums import MOST as COUNTED
from securevfl.protocols.shares.new_sums import NewRows, counted
from securevfl.protocols.shares.score_ledger import Ledger
from securevfl.protocols.shares.share_measures import (
    FEW_ALIKE,
    FEWEST,
    MOST,
    LevelPairs,
    LossTable,
    Marked,
    Shuffle,
    measure,
    pairs,
    prepared,
)
from securevfl.protocols.shares.share_numbers import END, Levels
from securevfl.protocols.shares.table_transfers import Met
from securevfl.protocols.shares.visits import SharedState
from securevfl.protocols.shares.work_ahead import Terms
from securevfl.runtime import eventlog
from securevfl.runtime.clock import Stage

# What the party with labels brings to a measurement on shares, and makes of the pairs that come out of it.
#
# Of classes each pair is marked by its label. Of numbers the targets are taken off the sums, so that levels are
# residuals; as these wrap where a target lies far out, rows whose target does, on the side where most do, are marked
# instead, if they are not too few, and their residuals are looked for on the other side.


@dataclass(frozen=True)
class MeasuredLabels:
    """The labels of the rows that are measured: targets (n x c), marks (n x c), and what is taken off the sums (n x c),
    if anything; reach: how far the levels go on either side."""

    loss: Loss
    classes: NDArray[Any]
    targets: Floats
    marks: NDArray[np.bool_]
    less: Floats | None
    reach: float
    side: float = 1.0

    @classmethod
    def of(cls, loss: Loss, labels: NDArray[Any], classes: NDArray[Any], reach: float) -> MeasuredLabels:
        """Make the targets and marks from labels (n,) and the classes of the training."""
        targets = loss.targets(labels, classes)
        if loss.classifies:
            return cls(loss, classes, targets, targets > 0, None, reach)
        side = 1.0 if targets.max() >= -targets.min() else -1.0
        wide = side * targets > reach / 2
        return cls(loss, classes, targets, wide & (wide.sum() >= FEW_ALIKE), targets, reach, side)

    @property
    def none(self) -> float:
        """The mean loss without a model."""
        return float(self.loss.value(np.zeros_like(self.targets), self.targets).mean())

    def metrics(self, found: LevelPairs) -> tuple[dict[str, float], list[list[float]]]:
        """All metrics that pairs tell, and of two classes the calibration."""
        if self.less is not None:
            return metrics.of_residuals(self.loss, self._residuals(found), self.targets, self.classes), []
        told = metrics.of_classes(self.loss, found.f, found.marked, self.classes)
        if not self.loss.single:
            return told, []
        proba = self.loss.proba(found.f)[:, 1]
        return told, metrics.calibration(found.marked[:, 0], proba).tolist()

    def spread(self, found: LevelPairs) -> dict[str, float]:
        """Return the standard errors of the metrics that pairs tell."""
        if self.less is not None:
            return metrics.spread_of_residuals(self.loss, self._residuals(found), self.targets, self.classes)
        return metrics.spread_of_classes(self.loss, found.f, found.marked, self.classes)

    def _residuals(self, found: LevelPairs) -> Floats:
        """Read the residuals (n x c) off the levels."""
        r = self.side * found.f
        return self.side * np.where(found.marked & (r > self.reach / 2), r - 2 * self.reach, r)


AHEAD = 4  # shuffles of a chunk that are made with it
NEAR_END = 0.01  # part of the rows near the end of the table from which a party is warned where none are counted
OUTER = 0.75  # of what levels cover: sums between this and the end say that others may have wrapped

_FAR = (
    "so many rows have scores beyond the largest that the training counts with, where they are taken for others and "
    "draw weights further: set protocol.shares.table_bits one higher, by which scores may be twice as large and almost "
    "twice as much is sent, or cut values off that lie far out (prepare.clip)"
)
_NEAR = (
    "so many rows have scores near the largest that the training counts with; beyond it they are taken for others, and "
    "whether some are could not be counted: set protocol.shares.table_bits one higher if metrics get worse"
)
_WRAP = (
    "so many rows have scores near the largest that metrics count with or beyond, where they are taken for others: "
    "these may be wrong; set a larger metrics_range"
)

Found = tuple[dict[str, float], Sequence[list[float]], Mapping[str, float]]


@dataclass(frozen=True)
class InputRows:
    """A party's inputs of some rows of its table, made when they are read by slices."""

    of: Callable[[TrainingData, Rows], Floats]
    data: TrainingData
    rows: Rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, rows: slice, /) -> Floats:
        return self.of(self.data, self.rows[rows])


@dataclass(frozen=True)
class _WorkerInputs:
    """A party's inputs (m x breadth) of rows at a worker, made of them (m x d) when they are read by slices."""

    of: RowsHere
    inputs: Inputs
    at: Rows
    roots: Floats | None
    clip: float
    breadth: int

    @property
    def shape(self) -> tuple[int, int]:
        return len(self), self.breadth

    def __len__(self) -> int:
        return len(self.of)

    def __getitem__(self, rows: slice, /) -> Floats:
        own = inputs_at(self.inputs, self.of[rows], self.at[rows]).clip(-self.clip, self.clip)
        return own if self.roots is None else own * self.roots[rows][:, None]


def worker_inputs(
    stretch: Stretch, inputs: Inputs, at: Rows, roots: Floats | None, clip: float, breadth: int
) -> Stretch:
    """Return a party's inputs of a stretch of its rows, where these lie; their places are as for `inputs_at`. Each is
    cut off at `clip`, and multiplied by its row's root, if there are any."""
    return Stretch(_WorkerInputs(stretch.rows, inputs, at, roots, clip, breadth))


@dataclass(frozen=True)
class MeasuredModel:
    """What a measurement needs of the model, each made when it is asked for: this party's inputs of some rows, where
    they lie, what the session has for questions, the sizes that all know, the ring's numbers, and where the training
    has turned back.
    """

    inputs: Callable[[TrainingData, Rows], NewRows]
    met: Callable[[], Met]
    terms: Callable[[], Terms]
    plan: Callable[[], Plan]
    turned: Callable[[], Turned]


class Measures:
    """The measurements of one training, with the shuffles that were made ahead of them."""

    def __init__(self, job: SharesJob, seat: Seat, model: MeasuredModel, ledger: Ledger) -> None:
        self._job, self._seat, self._model, self._ledger = job, seat, model, ledger
        self._chunk = -1
        self._shuffles: dict[int, deque[Shuffle]] = {}
        self._calibration: Sequence[list[float]] = []
        self._spread: Mapping[str, float] = {}
        self.none = np.inf  # the loss without a model, of the rows last measured; known to the party with labels
        self._far = 0.0  # the part of the rows that was warned of last
        self._uncounted = False  # whether the partner told no count of rows beyond the table

    def measure(self, loss: Loss, data: TrainingData, state: SharedState, rounds: int) -> Found:
        """Return the metrics after so many rounds, points of a calibration curve, and the metrics' standard errors; all
        empty where nobody is told.

        DivergenceError if the loss is far above that of a model that says nothing.
        """
        self._calibration, self._spread = [], {}
        return self._measure(loss, data, state, rounds), self._calibration, self._spread

    def _measure(self, loss: Loss, data: TrainingData, state: SharedState, rounds: int) -> dict[str, float]:
        rows = self._evaluated(data)
        if len(rows) < FEWEST:
            if self._seat.me == self._seat.active:
                what = f"{FEWEST} rows to take metrics of were expected, {len(rows)} came, so there are none"
                warnings.warn(f"party {self._seat.me}: {what}; hold out more (test_fraction)", DataNotice, stacklevel=2)
            return {}
        self._note_measure(data, rows)
        if not metrics.fits(loss):
            return self._sum_of_losses(data, rows, state, rounds)
        labels, classes = data.labels(rows.rows), data.classes
        own, levels = None, self._levels(loss)
        if labels is not None and classes is not None:
            own = MeasuredLabels.of(loss, labels, classes, levels.reach)
        met = self._model.met()
        held = loss.classifies and levels.has_ends(self._model.plan().numbers)
        found = pairs(
            met.products,
            self._shuffle(len(rows)),
            self._model.terms(),
            state,
            self._model.inputs(data, rows.rows),
            levels,
            None if own is None else Marked(own.marks, own.less),
            met.tops if held else None,
        )
        if found is None or own is None:
            return {}
        told, self._calibration = own.metrics(found)
        self._spread = own.spread(found)
        self._watch(told["loss"], own.none, rounds)
        if self._uncounted and own.less is None:
            self._warn(float((np.abs(found.f) > END * levels.reach).mean()), NEAR_END, _NEAR)
        if not held:
            outer = (np.abs(found.f) > OUTER * own.reach) & ((own.less is None) | ~found.marked)
            self._warn(float(outer.mean()), 0.0, _WRAP)
        return told

    def _sum_of_losses(self, data: TrainingData, rows: ScaledRows, state: SharedState, rounds: int) -> dict[str, float]:
        """Return what one opened sum tells of a loss that pairs do not."""
        targets = (
            None
            if (rated := data.rated_outputs(rows.rows, self._seat.outputs)) is None
            else LossTable(self._job.loss.value, rated, self._job.loss.least(rated))
        )
        met, own = self._model.met(), self._model.inputs(data, rows.rows)
        found = measure(met.products, met.transfers, self._model.terms(), state, state.visits, own, targets)
        if found is None or targets is None:
            return {}
        none = float(targets.values(np.zeros_like(targets.least), targets.targets).mean())
        self._watch(found.loss * self._seat.outputs, none * self._seat.outputs, rounds)
        if self._uncounted:
            self._warn(found.far, NEAR_END, _NEAR)
        counts = 1.0 if data.weights is None else float(data.weights[rows.rows].mean())
        return {"loss": found.loss * self._seat.outputs / counts}

    def _watch(self, loss: float, none: float, rounds: int) -> None:
        """Compare the loss with that of no model. DivergenceError if it is far above, and nothing turns back for it."""
        self.none = none
        if loss > FAR_ABOVE * none and not turns_back(self._job, self._model.turned()):
            raise diverged(rounds)

    def count_far(self, data: TrainingData, state: SharedState | None, visit: Visit) -> None:
        """Count, of some rows of the last visit, those whose sums are beyond the end of their table, as often as the
        partner's ledger lets them be counted; warn of any."""
        rows, met = visit.rows[: COUNTED // self._seat.outputs], self._model.met()
        if len(rows) < FEWEST or state is None:
            return
        self._seat.channel.clock.stage = Stage.EVALUATE
        X, numbers = self._model.inputs(data, rows), self._model.plan().numbers
        rated = data.rated_outputs(rows, self._seat.outputs)
        limited = not (self._seat.desk.together or "small_metrics" in self._job.accepts)
        found = counted(
            met.products,
            met.tops,
            self._model.terms(),
            state,
            state.visits,
            X,
            np.zeros(0) if rated is None else numbers.centres(self._job.loss.least(rated)),
            allowed=lambda: not limited or self._ledger.count(data.ids(rows)),
        )
        self._uncounted = found is None
        if found is not None:
            self._warn(found / (len(rows) * self._seat.outputs), *((0.0, _FAR) if numbers.roomy else (NEAR_END, _NEAR)))

    def _warn(self, far: float, most: float, why: str) -> None:
        """Warn of a part of the rows, if it is more than `most`."""
        if far > most:
            facts: dict[str, str | int | float] = {"part": round(far, 4), "reason": why}
            level = logging.ERROR if far > 2 * self._far else logging.INFO
            eventlog.emit(self._seat.me, "far", facts, level)
            self._far = far

    def _evaluated(self, data: TrainingData) -> ScaledRows:
        """Return the rows that are measured: those to be evaluated, or as many as there is room for, spread evenly over
        the table: one that is sorted by time is not judged by its first months."""
        rows, most = np.sort(data.evaluated.rows), MOST // self._seat.outputs
        spread = np.linspace(0, len(rows) - 1, min(len(rows), most)).astype(np.intp)
        return ScaledRows(data, rows[spread])

    def _levels(self, loss: Loss) -> Levels:
        return self._job.protocol.shares.metrics_levels(self._model.plan().numbers, classifies=loss.classifies)

    def _shuffle(self, rows: int) -> Shuffle | None:
        """Take a shuffle of so many rows at a holder, made with the chunk or now."""
        made = self._shuffles.get(self._chunk)
        return made.popleft() if made else self._prepared(self._model.met(), rows)

    def _prepared(self, met: Met, rows: int) -> Shuffle | None:
        ends, holders = met.switches, (self._seat.active, self._seat.roles.the(PARTNER))
        if ends is None:
            return None
        (peer,) = (name for name in holders if name != self._seat.me)
        bits = self._levels(self._job.model.loss).bits + 1
        return prepared(met.products.seat, peer, ends, rows, bits, blocks=self._seat.outputs)

    def enter(self, chunk: int) -> None:
        """Go on to a chunk, by the number of its first visit; shuffles left from the one before serve no longer."""
        self._shuffles.pop(self._chunk, None)
        self._chunk = chunk

    def prepare(self, met: Met, data: TrainingData, first: int, visits: int, total: int) -> None:
        """Make shuffles for the evaluations that come in a chunk of so many visits, of `total` in all; some of them."""
        every, rows, last = self._job.evaluation_interval, len(self._evaluated(data)), first + visits
        due = {number for number in range(first + 1, last + 1) if every and number % every == 0}
        due |= {last} if last == total else set()
        count = min(len(due), AHEAD) if rows >= FEWEST and metrics.fits(self._job.model.loss) else 0
        made = (self._prepared(met, rows) for _ in range(count))
        self._shuffles[first] = deque(shuffle for shuffle in made if shuffle is not None)

    def _note_measure(self, data: TrainingData, rows: ScaledRows) -> None:
        """Enter at every other party that the active one measures these rows. LeakageError if that is too often."""
        seat = self._seat
        if not (seat.me == seat.active or seat.desk.together or seat.desk.reserved):
            limited = "small_metrics" not in self._job.accepts
            self._ledger.measure(seat.active, data.ids(rows.rows), limited=limited, me=seat.me)

    def check(self, data: TrainingData, start: int) -> None:
        """Raise LeakageError if the evaluations of the run from round `start` on would be too many. A DataNotice says
        where rows that count more or less than others are measured alike."""
        if data.counts(data.evaluated.rows) is not None and metrics.fits(self._job.model.loss):
            what = "on shares metrics count every row alike, as nobody knows which row a score is of"
            why = "weights.column counts in the training alone"
            warnings.warn(f"party {self._seat.me}: {what}; {why}", DataNotice, stacklevel=2)
        seat, rows, every = self._seat, self._evaluated(data), self._job.evaluation_interval
        if (
            self._seat.me == self._seat.active
            or seat.desk.together
            or seat.desk.reserved
            or "small_metrics" in self._job.accepts
            or len(rows) < FEWEST
        ):
            return
        total = len(data.schedule)
        measured_at_end = not every or total % every > 0 or (start > 0 and self._job.patience is not None)
        times = (total // every - start // every if every else 0) + measured_at_end
        self._ledger.check_measures(seat.active, data.ids(rows.rows), times)
