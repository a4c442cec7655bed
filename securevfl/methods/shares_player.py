"""One party of a training on shares: makes work ahead, goes through visits, and takes part in what is opened."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import groupby
from typing import Any

import numpy as np

from securevfl.crypto.lattice_shares import LatticeShares
from securevfl.crypto.scheme import Floats
from securevfl.data.schedule import Visit
from securevfl.errors import ConfigError
from securevfl.methods.base import AskedRows, OwnRows, Player, Round
from securevfl.methods.data import ScaledRows, TrainingData
from securevfl.methods.divergence import FAR as FAR_ABOVE
from securevfl.methods.divergence import diverged
from securevfl.methods.shares_plan import Plan, plan
from securevfl.methods.shares_turns import Turns
from securevfl.methods.state import State
from securevfl.models.losses import Loss
from securevfl.optim.block_descent import BlockDescent
from securevfl.optim.curvature import of_rows
from securevfl.options import JobOptions
from securevfl.protocols import shares, shares_predict
from securevfl.protocols.base import Seat
from securevfl.protocols.notes import Began
from securevfl.protocols.share_numbers import LookUp
from securevfl.protocols.shares import Columns, SharesActive, SharesPartner, SharesPassive, Side
from securevfl.protocols.shares_ahead import Ahead, Terms
from securevfl.protocols.shares_chunks import all_ended, is_ready
from securevfl.protocols.shares_ledger import FEWEST_VISITS, Ledger
from securevfl.protocols.shares_measure import FEWEST, MOST, Measured, measure
from securevfl.protocols.shares_met import Met
from securevfl.protocols.shares_opened import opened
from securevfl.protocols.shares_predict import Asking, Scores
from securevfl.protocols.shares_store import NAME_BYTES, InMemory, OnDisk, Ready
from securevfl.roles import PARTNER
from securevfl.runtime import eventlog
from securevfl.runtime.clock import Stage

BLOCK = 16_384  # rows that are scored at a time
COUNTED = 1024  # rows of which those near the end of the table are counted after each chunk
NEAR_END = 0.01  # part of the rows beyond half of the table's reach from which a party is warned


@dataclass
class _Training:
    """What a player needs while it trains."""

    data: TrainingData
    ahead: Ahead
    side: Side
    visits: list[Visit]


class SharesPlayer(Player):
    """One party's shares: of its own weights, and as a holder of every other party's."""

    def __init__(self, job: JobOptions, seat: Seat, columns: int, state: State | None) -> None:
        self._job, self._seat = job, seat
        self._active, self._partner = seat.me == seat.active, seat.roles.the(PARTNER)
        own = State() if state is None else state
        self._sizes: dict[str, Any] = own.get("sizes", {})
        self._state = None if "own" not in own else shares.State(own["visits"], own["own"], own["others"])
        self._run: str = own.get("run", seat.desk.run)
        self._training: _Training | None = None
        self._scores: Scores | None = None
        self._weights: Floats | None = own.get("theta")
        self._blocks = 0
        if self._sizes and len(self._sizes["columns"]) != len(seat.parties):
            raise ConfigError(f"{seat.me}: the parties of the training were expected, others have met; bring the same")

    @property
    def exchanges(self) -> int:
        return 0 if self._state is None else self._state.visits

    def train(self, data: TrainingData, start: int = 0) -> Generator[Round]:
        training = self._begin(data)
        channel, ahead, chunks = self._seat.channel, training.ahead, list(self._chunks(training.visits, start))
        turns = Turns(
            channel, chunks, lambda chunk: self._make(training, *chunk), lambda chunk: ahead.fits(len(chunk[1]))
        )
        try:
            with turns:
                for first, part in turns:
                    channel.clock.stage = Stage.TRAIN
                    channel.note(Began(part[0].index))
                    states = training.side.train(first, len(part))
                    for number, (visit, self._state) in enumerate(zip(part, states, strict=True), first + 1):
                        yield Round(number, len(data.schedule), visit.epoch)
                        if number - first < len(part):
                            channel.note(Began(part[number - first].index))
                    ahead.drop(first)
                    self._count_far(training, part[-1])
        except GeneratorExit:  # stopped early, and well: what is left serves nobody
            ahead.drop_from(0)
            raise

    def outcome(self) -> State:
        state = self.state()
        return state if self._weights is None else State(state, theta=self._weights)

    def prepare(self, data: TrainingData) -> Generator[Round]:
        """Makes every chunk of the training, on disk, as far as that is not done."""
        if self._seat.desk.ahead is None:
            raise ConfigError(f"{self._seat.me}: a folder for work done ahead was expected; name one")
        training = self._begin(data)
        for first, part in self._chunks(training.visits, 0):
            self._make(training, first, part)
            yield Round(first + len(part), len(data.schedule), part[-1].epoch)

    def measure(self, loss: Loss, data: TrainingData, rounds: int, *, last: bool) -> dict[str, float]:
        """Metrics of the scores of held-out rows once the training is over; else what one opened sum tells."""
        rows, held_out = data.evaluated, len(data.schedule.test) > 0
        if last and self._training is not None:
            self._end()
        if last and held_out and self.exchanges >= FEWEST_VISITS:
            return super().measure(loss, data, rounds, last=last)
        if self._training is None or self._state is None:
            return {}
        few = ScaledRows(data, rows.rows[: MOST // self._seat.outputs])
        if len(few) < FEWEST:
            return {}
        targets = None if data.targets is None else (loss.value, data.targets[few.rows])
        number, met, terms = 2 * self.exchanges + last, self._met, self._terms
        found = measure(met.products, met.transfers, terms, self._state, number, self._own(few[:]), targets)
        if found is None or targets is None:
            return {}
        none = float(loss.value(np.zeros_like(targets[1]), targets[1]).mean())
        if found.loss * self._seat.outputs > FAR_ABOVE * none:
            raise diverged(rounds)
        return self._metrics(loss, found, targets[1])

    def _count_far(self, training: _Training, visit: Visit) -> None:
        """Counts, of some rows of the last visit, those whose sums come near the end of the table; warns of many."""
        rows, state, met = visit.rows[:COUNTED], self._state, self._met
        if len(rows) < FEWEST or state is None:
            return
        self._seat.channel.clock.stage = Stage.EVALUATE
        X, none = self._own(training.data.scaled(rows)), np.zeros((len(rows), self._seat.outputs))
        table = (lambda f, y: np.zeros(len(f)), none) if self._active else None
        found = measure(met.products, met.transfers, self._terms, state, self.exchanges, X, table, occasion="range")
        if found is not None:
            self._warn(found)

    def _warn(self, found: Measured) -> None:
        if found.far > NEAR_END:
            why = "sums come near the end of the table and would wrap beyond it; lower lr, or raise table_bits or step"
            facts: dict[str, str | int | float] = {"part": round(found.far, 4), "reason": why}
            eventlog.emit(self._seat.me, "far", facts, logging.ERROR)

    def decision(self, rows: OwnRows, asked: AskedRows | None = None) -> Floats | None:
        if self._state is None:
            raise ConfigError(f"{self._seat.me}: a model was expected, this party has none yet; train first")
        if self._scores is None:
            self._scores = self._begin_scores(min(BLOCK, len(rows)))
        found = []
        for start in range(0, len(rows), BLOCK):
            X = rows[start : start + BLOCK]
            block = self._asked(rows, asked, slice(start, start + len(X)), X)
            scores = self._scores.block(self._blocks, self._own(X), block)
            self._blocks += 1
            if scores is not None:
                found.append(scores)
        return np.concatenate(found) if found else None

    def state(self) -> State:
        state = self._state
        if state is None:
            return State(run=self._run)
        return State(own=state.own, others=dict(state.others), visits=state.visits, sizes=self._sizes, run=self._run)

    @cached_property
    def _met(self) -> Met:
        """What the session has for questions about the model."""
        numbers = self._plan.numbers
        return Met(self._seat, self._partner, LatticeShares(numbers.bits), numbers.table_bits)

    def _begin(self, data: TrainingData) -> _Training:
        seat, schedule = self._seat, data.schedule
        parts = schedule.partition(0)
        columns = {name: d + (name == seat.active) for name, d in seat.columns.items()}
        self._sizes = {"columns": columns, "rows": max(map(len, parts)), "batches": len(parts)}
        self._sizes["named"] = data.named
        terms = self._terms_for(tuple(map(len, parts)))
        own = Columns(
            terms.numbers, self._plan.rate, lambda batch: self._own(data.scaled(parts[batch])), self._turn(data)
        )
        ready: Ready = InMemory() if seat.desk.ahead is None else OnDisk(seat.desk.ahead)
        ahead = Ahead(seat, terms, LatticeShares(terms.numbers.bits), own.integers, ready)
        side: Side
        if self._active:
            targets = data.targets
            assert targets is not None, "the active party has labels"
            loss, numbers = self._job.model.loss, terms.numbers

            @lru_cache(maxsize=64)
            def tables(batch: int) -> LookUp:
                return LookUp(numbers, loss.residual, targets[parts[batch]].ravel())

            side = SharesActive(seat, terms, own, ahead, tables, self._state)
        elif seat.me == self._partner:
            side = SharesPartner(seat, terms, own, ahead, self._state)
        else:
            side = SharesPassive(seat, terms, own, ahead, self._state)
        self._state = side.state
        self._training = _Training(data, ahead, side, list(schedule.visits()))
        return self._training

    def _chunks(self, visits: Sequence[Visit], start: int) -> Iterator[tuple[int, list[Visit]]]:
        """The visits still to come in stretches of whole epochs, each with the number of its first."""
        shares_ = self._job.protocol.shares
        assert shares_ is not None, "its method says so"
        stretches = groupby(enumerate(visits), key=lambda item: item[1].epoch // shares_.chunk)
        for _, stretch in stretches:
            part = list(stretch)
            left = [visit for number, visit in part if number >= start]
            if left:
                yield max(start, part[0][0]), left

    def _make(self, training: _Training, first: int, part: Sequence[Visit]) -> None:
        """Makes a chunk, unless all parties have it."""
        ahead = training.ahead
        self._seat.channel.clock.stage = Stage.AHEAD
        if is_ready(ahead.meet(), ahead, first, len(part)):
            ahead.pass_over(first)
        else:
            ahead.make(first, [visit.index for visit in part])

    def _turn(self, data: TrainingData) -> Floats | None:
        """P (d x d), the matrix that this party's steps are turned by, if its optimizer has one."""
        optimizer, loss = self._job.optimizer, self._job.model.loss
        if not isinstance(optimizer, BlockDescent):
            return None
        d, rows = self._sizes["columns"][self._seat.me], data.schedule.flow
        starts = range(0, len(rows), BLOCK)
        stretches = (self._own(data.scaled(rows[at : at + BLOCK])).clip(-self._clip, self._clip) for at in starts)
        held_back = np.full((d, 1), optimizer.ridge + self._job.model.l2)
        return of_rows(stretches, lambda X: X.T @ X, loss, held_back, who=self._seat.me)

    def _own(self, X: Floats) -> Floats:
        """This party's columns, with those of ones behind them at the active party."""
        return np.column_stack([X, np.ones(len(X))]) if self._active else X

    @property
    def _clip(self) -> float:
        shares_ = self._job.protocol.shares
        assert shares_ is not None, "its method says so"
        return shares_.clip

    @property
    def _plan(self) -> Plan:
        sizes = self._sizes
        return plan(self._job, rows=sizes["rows"], batches=sizes["batches"], parties=len(self._seat.parties))

    @property
    def _terms(self) -> Terms:
        """Without the rows of single batches."""
        return self._terms_for((self._sizes["rows"],))

    def _terms_for(self, rows: tuple[int, ...]) -> Terms:
        seat, made, shares_ = self._seat, self._plan, self._job.protocol.shares
        assert shares_ is not None, "its method says so"
        chunks = -(-self._job.epochs // shares_.chunk)
        columns = self._sizes["columns"]
        return Terms(made.numbers, rows, columns, self._partner, made.rule, seat.outputs, chunks, seat.active)

    def _end(self) -> None:
        """The training is over: notes the model, and opens the weights that the job names."""
        state, shares_ = self._state, self._job.protocol.shares
        assert state is not None and shares_ is not None, "it has been trained"  # noqa: PT018
        all_ended(self._seat)
        self._noted()
        self._weights = opened(self._seat, self._terms, state, shares_.open_weights)

    def _begin_scores(self, rows: int) -> Scores:
        state = self._state
        assert state is not None, "it has been asked"
        ledger, model = self._noted()
        products, terms = self._met.products, self._terms
        shares_ = self._job.protocol.shares
        assert shares_ is not None, "its method says so"
        to = shares_.scores_to if self._training is None and shares_.scores_to else self._seat.active
        return Scores(products, terms, state, Asking(model, ledger, to), number=state.visits, rows=rows)

    def _noted(self) -> tuple[Ledger, bytes]:
        """This party's ledger, in which the finished model is noted, and the model's name in it."""
        state, training, path = self._state, self._training, self._seat.desk.scores
        assert state is not None, "it has been asked"
        ledger, digest = Ledger(path), hashlib.sha256(self._run.encode())
        for words in (state.own, *(state.others[name] for name in sorted(state.others))):
            digest.update(np.ascontiguousarray(words, "<u8").tobytes())
        model = digest.digest()[:NAME_BYTES]
        if (training is not None or path is None) and not ledger.knows(model):
            ids = [] if training is None else training.data.ids(training.data.schedule.train)
            ledger.trained(model, state.visits, ids)
        return ledger, model

    def _asked(self, rows: OwnRows, asked: AskedRows | None, block: slice, X: Floats) -> shares_predict.Rows:
        """Ids and columns of a block. Rows of the training's table have theirs, others bring them or are new here."""
        if asked is not None and self._seat.desk.scores is not None and not self._sizes["named"]:
            raise ConfigError(
                f"{self._seat.me}: a model of rows with ids was expected, this one's had none, so nobody can tell them "
                "from new ones; align the tables by ids, and train again"
            )
        if asked is not None:
            return shares_predict.Rows(asked.ids[block], asked.raw[block])
        if isinstance(rows, ScaledRows) and self._training is not None:
            of = rows.rows[block]
            return shares_predict.Rows(self._training.data.ids(of), self._training.data.raw(of))
        if self._seat.desk.scores is not None:
            raise ConfigError(f"{self._seat.me}: rows with ids were expected, as each is scored once; bring ids")
        return shares_predict.Rows([b"new %d" % place for place in range(block.start, block.stop)], X)

    def _metrics(self, loss: Loss, found: Measured, y: Floats) -> dict[str, float]:
        """What the party with labels makes of two opened sums."""
        self._warn(found)
        value = found.loss * self._seat.outputs
        told = {"loss": value, "far": found.far}
        if loss.name == "square":
            told |= {"r2": 1 - 2 * value / float(y.var()), "rmse": float((2 * value) ** 0.5)}
        return told
