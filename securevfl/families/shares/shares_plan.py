"""The coefficients of a training on shares, from its optimizer: how weights are combined of gradients, known ahead.

An optimizer fits if its steps are linear in the residual of a visit with numbers that are fixed beforehand. All Q local
steps of a visit are taken on the residual of that visit, at the active party as well, so they are one linear map: a
local step more costs nothing, and is worth no more than a larger step. Each visit leaves

    theta' = a theta - b u,      u = X^T g / n

with a, b from the update rule run on numbers, and where the rule remembers earlier visits (momentum), theta is a
combination of all u whose coefficients come from the same rule run on vectors with one entry a visit.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from types import TracebackType
from typing import Any, Generic, TypeGuard, TypeVar

import numpy as np

from securevfl.base.arrays import Floats
from securevfl.base.config import misfits
from securevfl.crypto.share_ring import ShareRing
from securevfl.data.load import MAX_IN_MEMORY_BYTES
from securevfl.data.schedule import Iteration, Schedule
from securevfl.disclosure.counts import Sizes
from securevfl.disclosure.exposure import code_bits
from securevfl.errors import ConfigError
from securevfl.models.inputs import InputShape
from securevfl.models.linear import LinearModel
from securevfl.models.rounding_error import SumRounding
from securevfl.optim.fedbcd import FedBCD
from securevfl.optim.rules import BlockDescent
from securevfl.options import JobOptions
from securevfl.protocols.choice import Protocol
from securevfl.protocols.shares.fixed_point import Numbers
from securevfl.protocols.shares.opened_weights import WeightLevels
from securevfl.protocols.shares.shares_options import Shares
from securevfl.protocols.shares.shares_params import BLOCK
from securevfl.protocols.shares.update_rules import Coefficients, Descent, FixedCoefficients, LinearRule, Paced
from securevfl.runtime.channel import Channel
from securevfl.runtime.threads import BackgroundTask

RESIDUAL_BITS = 8  # of residuals up to 64
SMOOTHED = 2  # the power of the number of a visit that its point counts by in the mean
CARRIED = 1.4  # times what is rounded in a visit is in the next ones (simulated: 1.24 to 1.55)
MOST_REMEMBERED = 2048  # visits of a rule that remembers all of them


class SharesHide(Protocol, defer_build=True):
    """The messages of a job on shares."""

    shares: Shares


class SharesJob(JobOptions, defer_build=True):
    """A job on shares: a linear model by steps that are linear in residuals."""

    model: LinearModel
    optimizer: FedBCD | BlockDescent
    protocol: SharesHide


def on_shares(job: JobOptions) -> TypeGuard[SharesJob]:
    """Whether a job trains on shares."""
    return not any(misfits(job, SharesJob))


@dataclass(frozen=True)
class Plan:
    """rate: the step size that is in W; rule: what its changes are combined by; numbers: the bits of everything."""

    rate: float
    rule: LinearRule
    numbers: Numbers


def check_optimizer(job: JobOptions) -> None:
    """ValueError, with the remedy, if its steps are not linear or not taken by all parties at once."""
    optimizer = job.optimizer
    if isinstance(optimizer, BlockDescent):
        if job.model.loss.curvature is None:
            raise ValueError(f"loss {job.model.loss.name} states no curvature, which steps rest on; use fedsgd")
        own = isinstance(job.model, LinearModel) and job.model.ridge_of(1) is not None
        if own and optimizer.ridge != BlockDescent().ridge:
            raise ValueError(f"a {job.model.name} model has a ridge of its own; set model.ridge in place of this one")
        return
    if not isinstance(optimizer, FedBCD):
        raise ValueError(
            f"optimizer {optimizer.name}: steps that are linear in the residual were expected under shares; "
            "use fedsgd, fedpbcd, fedbcd or block_descent"
        )
    optimizer.check_set()
    if optimizer.mode != "parallel":
        raise ValueError('under shares all parties step on one residual; use mode = "parallel"')
    if not optimizer.update.linear:
        raise ValueError(
            f"rule {optimizer.update.name} is not linear in gradients, and nobody sees one under shares; use sgd, "
            "momentum or proximal"
        )


Turned = Sequence[tuple[int, int]]  # by turn: the visits so far, and of them those gone back to


def plan(job: SharesJob, *, rows: int, batches: int, parties: int, turned: Turned = ()) -> Plan:
    """Make the plan of a job whose largest batch has `rows` rows, and that has turned back so often. Raises ConfigError
    if its numbers need more bits than there are, or a rule would have to remember more visits than MOST_REMEMBERED."""
    optimizer, visits = job.optimizer, job.epochs * batches
    rate, rule = (
        _block_descent(optimizer, visits, parties, turned, smoothed=job.model.loss.reports_standard_errors)
        if isinstance(optimizer, BlockDescent)
        else _steps(job, optimizer, batches, parties)
    )
    shares = job.protocol.shares
    curved = job.loss.curvature if isinstance(optimizer, BlockDescent) else None
    numbers = Numbers.fitting(
        rows,
        rate,
        steep=curved or 1.0,
        m=rule.m,
        table_bits=shares.table_bits,
        f_g=_residual_bits(job.residual_bound),
        step=shares.step_bits(job.model.loss.spacing),
        clip=shares.clip,
        spare=job.model.spare_bits,
        step_bits=job.model.step_bits,
    )
    return Plan(rate, rule, numbers)


def rounding(job: SharesJob) -> SumRounding:
    """Return how sums of f are rounded: each visit by sqrt(1/6) steps of the table, which the mean over late visits
    takes most of out again. What momentum carries from one visit to the next adds two fifths."""
    step = 2.0 ** job.protocol.shares.step_bits(job.model.loss.spacing)
    remedy = (
        f"to have less of it, set a smaller protocol.shares.step than {step:g} and table_bits = 8, which cover sums of "
        "128 steps; amounts, and counts that vary far more than Poisson's, are as exact as labels in model = 'gamma'"
    )
    return SumRounding(CARRIED * step / math.sqrt(6) * math.sqrt(2 / max(2, job.epochs)), remedy)


def weight_levels(job: SharesJob, rows: int) -> WeightLevels:
    """Return the levels in which weights that were trained on so many rows are told."""
    return WeightLevels.of(rows, job.model.loss.curvature or 1.0)


def bits_of_codes(job: SharesJob, name: str, columns: int) -> float:
    """How many bits of a scored row a party of so many columns leaves for its reason codes; 0 where it gives none."""
    return code_bits(columns, job.reason_codes) if name in job.protocol.shares.open_weights else 0.0


def _residual_bits(bound: float) -> int:
    """f_g: a bit less for each doubling of a residual's bound beyond that of scaled numbers."""
    return RESIDUAL_BITS - max(0, math.ceil(math.log2(bound / 64)))


def _steps(job: SharesJob, optimizer: FedBCD, batches: int, parties: int) -> tuple[float, LinearRule]:
    l2, visits = job.model.l2, job.epochs * batches
    etas = [optimizer.eta(t, parties) for t in range(visits)]
    if _remembers(optimizer):
        _limit(visits)
        rows, last = _responses(optimizer, etas, l2), _responses(optimizer, etas, 0.0) if l2 else None
        rate = float(rows[1][0])
        return rate, FixedCoefficients(_scaled(rows, rate), last=None if last is None else _scaled(last, rate))
    moves: dict[float, tuple[float, float]] = {}
    for eta in etas:
        if eta not in moves:
            moves[eta] = _visit(optimizer, eta, l2, 1.0, 0.0)[0], -_visit(optimizer, eta, l2, 0.0, 1.0)[0]
    taken = [moves[eta][1] for eta in etas]
    rate = max(taken)
    rates = tuple(each / rate for each in taken) if len(moves) > 1 else ()
    decays: tuple[float, ...] = ()
    if l2:
        kept = np.array([moves[eta][0] for eta in etas]).reshape(job.epochs, batches)
        decays = tuple(kept.prod(axis=1).tolist())
    if not rates and not decays:
        return rate, Descent()
    return rate, Paced(rates, decays, batches, rate_bits=6 if decays else 8)


def _visit(optimizer: FedBCD, eta: float, l2: float, theta: Any, g: Any, memory: Any = None) -> tuple[Any, Any]:
    """theta and the rule's memory after the local steps of one visit, on a gradient that stays."""
    rule = optimizer.update
    memory = rule.begin(rule.init(theta) if memory is None else memory)
    for _ in range(optimizer.steps):
        change, memory = rule.step(g + l2 * theta, memory, eta)
        theta = theta + change
    return theta, memory


def _remembers(optimizer: FedBCD) -> bool:
    """Whether a visit still moves weights in the next one."""
    first, memory = _visit(optimizer, 1.0, 0.0, 0.0, 1.0)
    return bool(_visit(optimizer, 1.0, 0.0, first, 0.0, memory)[0] != first)


def _responses(optimizer: FedBCD, etas: Sequence[float], l2: float) -> list[Floats]:
    """Row t: what each of the first t gradients has taken off theta."""
    visits, memory = len(etas), None
    theta, rows = np.zeros(visits), [np.zeros(0)]
    for s, eta in enumerate(etas):
        theta, memory = _visit(optimizer, eta, l2, theta, np.eye(1, visits, s)[0], memory)
        rows.append(-theta[: s + 1])
    return rows


def plan_of(job: SharesJob, sizes: Mapping[str, Any], parties: int) -> Plan:
    """Return the plan of a training by the sizes that its states keep."""
    rows, batches = sizes["rows"], sizes["batches"]
    return plan(job, rows=rows, batches=batches, parties=parties, turned=sizes.get("turned", ()))


def turns_back(job: SharesJob, turned: Turned = ()) -> bool:
    """Whether the training turns back at an evaluation that shows it lost: its steps are longer than those that are
    safe whatever the columns, and it is evaluated in between."""
    step = job.optimizer.first / 2 ** len(turned)
    optimizer = job.optimizer
    return isinstance(optimizer, BlockDescent) and optimizer.momentum and step > 1 and job.evaluation_interval > 0


def _block_descent(
    optimizer: BlockDescent, visits: int, parties: int, turned: Turned, *, smoothed: bool
) -> tuple[float, LinearRule]:
    """Gradients are taken at the extrapolated point y, and y is what the last visit leaves.

    smoothed: it leaves the mean of all points instead (Polyak and Juditsky 1992), each counted by the square of its
    number: so most of what sums were rounded by comes out again, and little of where the training began stays in
    (`rounding`).

    A training that turns back goes on from the y of an earlier visit with half the step and no momentum yet, so the
    gradients since then have no part in it any more.
    """
    rate, turns = optimizer.first / parties, dict(turned)
    if not optimizer.momentum:
        return rate, Descent()
    _limit(visits)
    step, start, before, y, rows = 1.0, 0, np.zeros(visits), np.zeros(visits), [np.zeros(0)]
    for s in range(visits + 1):
        if s in turns:
            step, start = step / 2, s
            before = y = -np.pad(rows[turns[s]], (0, visits - turns[s]))
            rows[s] = -y[:s]
        if s == visits:
            break
        after = y - step * np.eye(1, visits, s)[0]
        y = after + optimizer.extrapolation(s + 1 - start) * (after - before)
        before = after
        rows.append(-y[: s + 1])
    if smoothed:
        late = rows[min(start + 1, visits) :]
        padded = [np.pad(row, (0, visits - len(row))) for row in late]
        rows[visits] = np.average(padded, axis=0, weights=np.arange(1.0, len(late) + 1) ** SMOOTHED)
    return rate, FixedCoefficients(_scaled(rows, 1.0))


def _scaled(rows: Sequence[Floats], rate: float) -> Coefficients:
    return lambda t: (rows[t] / rate).tolist()


def _limit(visits: int) -> None:
    if visits > MOST_REMEMBERED:
        raise ConfigError(
            f"momentum on shares remembers every visit, up to {MOST_REMEMBERED}, and there are {visits}; use larger "
            'batches (batch_size = "all") or fewer epochs'
        )


# What a training on shares takes of its parties, from public sizes alone: said before anything is aligned or sent.

# The chunks of a training on shares in turn: each is made while the visits of the one before go on.


T = TypeVar("T")


class Turns(Generic[T]):
    """Chunks of one party, ready when their turn comes.

    make: makes a chunk, in a thread of its own for all but the first. room: whether a chunk may be made while the one
    before it is kept; otherwise it is made when that has gone. Parties may differ in that.

    Used in a `with`: what is being made when it is left is finished if the training has stopped early and well, as the
    others rely on this party's part in it, and ends with the channel if the training has failed.
    """

    def __init__(self, channel: Channel, chunks: Sequence[T], make: Callable[[T], None], room: Callable[[T], bool]):
        self._channel, self._chunks, self._make, self._room = channel, chunks, make, room
        self._making: BackgroundTask[None] | None = None

    def __iter__(self) -> Iterator[T]:
        for number, chunk in enumerate(self._chunks):
            if self._making is None:
                self._make(chunk)
            else:
                self._making.join()
            self._making, after = None, self._chunks[number + 1 : number + 2]
            if after and self._room(after[0]):
                self._making = BackgroundTask(self._channel, partial(self._make, after[0]), "work ahead")
            yield chunk

    def __enter__(self) -> Turns[T]:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._making is None:
            return
        if error is not None and not isinstance(error, GeneratorExit):
            self._channel.fail(error)
        with suppress(Exception):  # it has failed the channel, or the channel has failed it
            self._making.join()


AHEAD = 1 << 29  # bytes of work ahead
EPOCHS_AHEAD = 32


def epochs_ahead(job: SharesJob, rows: int, outputs: int) -> int:
    """Return for how many epochs work is done ahead at a time, for so many training rows and outputs."""
    options = job.protocol.shares
    if options.chunk is not None:
        return options.chunk
    kept = min(job.epochs, EPOCHS_AHEAD) * rows * outputs * 16 * (1 + options.table_bits)
    return EPOCHS_AHEAD if kept <= AHEAD else EPOCHS_AHEAD // 2


def chunks_of(visits: Sequence[Iteration], start: int, epochs: int) -> Iterator[tuple[int, list[Iteration]]]:
    """Yield the visits from `start` on in chunks of so many whole epochs, each with the number of its first visit."""
    for _, stretch in groupby(enumerate(visits), key=lambda item: item[1].epoch // epochs):
        part = list(stretch)
        left = [visit for number, visit in part if number >= start]
        if left:
            yield max(start, part[0][0]), left


# Measured, 16 visits to 40,000 rows at once, a row, output and visit
PRODUCT_BYTES = 47  # of a holder's query and its reply, from each other party
PROCESSOR = 7.4e-6, 4.8e-8, 1.8e-6  # seconds at all parties: of two, of each column, of each party more
WIDE, WIDE_COLUMN, WIDE_BYTES = 100, 1.3e-8, 0.35  # columns beyond which one more takes so many seconds, and bytes
# Of processes between organisations at their largest, trainings of 100,000 to 5,000,000 rows
MEMORY, ROW, ENTRY, TABLES = 3.4e8, 100, 12, 8  # bytes; of a row of the table; of an entry of a block; times its tables
INTEGERS = 6  # bytes of an entry as integers, on disk
LINE = 300e6 / 8  # bytes a second


def needs(job: SharesJob, schedule: Schedule, sizes: Sizes) -> list[str]:
    """Describe in lines the visits of a run, the bits of its numbers, and what goes over the line, is kept and takes
    time; or why it would be refused."""
    visits, parties = list(schedule.iterations()), len(sizes.columns)
    rows = max((len(part) for part in schedule.partition(0)), default=0)
    widths = {
        name: job.model.breadth(InputShape(name == sizes.active, d, sizes.outputs, parties, len(schedule.train)))
        for name, d in sizes.columns.items()
    }
    if not (visits and rows):
        return []
    try:
        numbers = plan(job, rows=rows, batches=schedule.batches, parties=parties).numbers
    except ConfigError as error:
        return [f"more bits than there are, so it would be refused: {error}"]
    by_rows = Counter(len(visit.rows) for visit in visits)
    several = len(by_rows) > 1 and max(by_rows) > min(by_rows) + 1
    visited = " then ".join(f"{times:,} to {each:,}" for each, times in sorted(by_rows.items())) if several else ""
    total = sum(len(visit.rows) for visit in visits) * sizes.outputs
    epochs = epochs_ahead(job, len(schedule.train), sizes.outputs)
    chunk = max(sum(len(visit.rows) for visit in part) for _, part in chunks_of(visits, 0, epochs))
    octets = ShareRing(numbers.bits).octets
    sent = float(numbers.entries * octets + octets + 1 + 16 * numbers.table_bits)
    sent += 2 * (parties - 1) * (PRODUCT_BYTES + WIDE_BYTES * max(0, sum(widths.values()) / parties - WIDE))
    sent += 2 * octets * (parties - 2)
    seconds = total * _processor(sum(widths.values()), parties)
    kept = chunk * sizes.outputs * (2 * octets + 16 * numbers.table_bits)
    n, widest = len(schedule.train) + len(schedule.test), max(widths.values())
    own = 8 * n * max(sizes.columns.values())
    tables = TABLES * numbers.entries * octets * sizes.outputs
    memory = MEMORY + ROW * n + (own if own < MAX_IN_MEMORY_BYTES else 0) + min(BLOCK, rows) * (ENTRY * widest + tables)
    disk = kept + INTEGERS * rows * widest + (own / 2 if own >= MAX_IN_MEMORY_BYTES else 0)
    return [
        f"{len(visits):,} visits at most, {visited or f'to {rows:,} rows'}; {numbers.bits} bits a number, "
        f"w = {numbers.w}",
        f"some {_size(total * sent)} sent, {_size(kept)} of work ahead at the active party at a time "
        f"(chunk = {epochs}), {seconds:,.0f} s of processor at all parties; evaluations come on top",
        f"between organisations some {_size(memory)} of memory and {_size(disk)} of disk a party at most, "
        f"{seconds / parties:,.0f} s by the clock with a core each, or {total * sent / LINE:,.0f} s where a line of "
        "300 Mbit/s takes longer",
    ]


def _processor(columns: int, parties: int) -> float:
    """Return the seconds of processor that a row and visit take at all parties, of so many columns in all."""
    first, column, more = PROCESSOR
    return first + column * min(columns, WIDE) + WIDE_COLUMN * max(0, columns - WIDE) + more * (parties - 2)


def _size(count: float) -> str:
    units: Sequence[tuple[float, str]] = ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"))
    return next((f"{count / unit:.3g} {name}" for unit, name in units if count >= unit), f"{count:.0f} B")
