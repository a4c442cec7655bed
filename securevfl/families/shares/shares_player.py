"""One party of a training on shares: makes work ahead, goes through visits, and takes part in what is opened."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import chain
from pathlib import Path
from typing import Any, cast

import numpy as np

from securevfl.base.arrays import Floats
from securevfl.base.files import read_checked_json, write_checked_json
from securevfl.base.machine import give_back, one_thread
from securevfl.base.roles import PARTNER
from securevfl.base.tall import Tall
from securevfl.crypto.share_ring import ShareScheme
from securevfl.data.schedule import Rows, Visit
from securevfl.disclosure.exposure import ROWS, Holds
from securevfl.errors import ConfigError, LeakageError
from securevfl.families.player import (
    AnsweredRows,
    AskedRows,
    KnownRows,
    OwnRows,
    Player,
    Round,
    ScaledRows,
    State,
    TrainingData,
)
from securevfl.families.shares.shares_leaks import bits_of_codes
from securevfl.families.shares.shares_measures import Found, InputRows, MeasuredModel, Measures, worker_inputs
from securevfl.families.shares.shares_plan import (
    Plan,
    SharesJob,
    Turned,
    Turns,
    chunks_of,
    epochs_ahead,
    plan_of,
    turns_back,
    weight_levels,
)
from securevfl.models.base import Inputs, Seen, Spread, inputs_at, own_stream
from securevfl.models.linear import LinearModel
from securevfl.models.loss import Loss
from securevfl.optim.curvature import of_rows
from securevfl.optim.rules import BlockDescent
from securevfl.protocols.notes import Began
from securevfl.protocols.seat import Seat
from securevfl.protocols.shares import opened_scores, opened_weights
from securevfl.protocols.shares import visits as shares
from securevfl.protocols.shares.new_sums import NewRows
from securevfl.protocols.shares.opened_scores import Asking, Scores
from securevfl.protocols.shares.placed_columns import PlacedColumns
from securevfl.protocols.shares.score_ledger import BUDGET, OWN, REFUSED, Ledger
from securevfl.protocols.shares.share_numbers import Levels, LookUp, Numbers
from securevfl.protocols.shares.share_products import SHARE_SCHEMES
from securevfl.protocols.shares.shares_options import Shares
from securevfl.protocols.shares.table_transfers import Met
from securevfl.protocols.shares.visits import (
    ColumnBlocks,
    SharesActive,
    SharesPartner,
    SharesPassive,
    Side,
    VisitColumns,
)
from securevfl.protocols.shares.work_ahead import (
    NAME_BYTES,
    Ahead,
    InMemory,
    OnDisk,
    Ready,
    RowBlock,
    Terms,
    all_ended,
    is_ready,
)
from securevfl.runtime import eventlog
from securevfl.runtime.clock import Stage
from securevfl.runtime.placing import PlacedPart

BLOCK = 16_384  # rows that are scored at a time
STRETCH = 4096  # rows of which inputs are made at a time
KEY_BYTES = 32
INPUTS = "inputs.json"  # beside work done ahead, which rests on them
_TURNED = "the loss rose: steps of twice the safe size were too long for these columns, and half of it follows"
EXPLAINED = 512  # training rows by which columns are said to matter, to a party that is told its weights


def _read_inputs(file: Path) -> State:
    """Read the inputs that work done ahead rests on. ConfigError if the file is not what was written."""
    try:
        kept, checked = read_checked_json(file)
        if checked:
            return State.read(kept)
    except (ValueError, KeyError, TypeError, AttributeError):
        pass
    raise ConfigError(
        f"{file}: the inputs that work done ahead rests on were expected, the file is damaged or of an earlier "
        "version; remove its folder (--ahead) and do the work anew"
    )


def _shared(kept: State) -> shares.SharedState | None:
    """Return the shares in what was kept, if there are any."""
    return None if "own" not in kept else shares.SharedState(kept["visits"], kept["own"], kept["others"])


def _places(data: TrainingData, rows: Rows) -> Rows:
    """Return the places of rows (k,) among those by which a party makes its inputs; -1 of others."""
    seen = data.schedule.looked_at
    at = np.minimum(np.searchsorted(seen, rows), len(seen) - 1)
    return np.where(seen[at] == rows, at, -1)


def _nothing() -> Seen:
    raise AssertionError("a model keeps its inputs")


@dataclass
class _Training:
    """What a player needs while it trains."""

    data: TrainingData
    ahead: Ahead
    side: Side
    visits: list[Visit]
    rows: tuple[int, ...]


class SharesPlayer(Player):
    """One party's shares: of its own weights, and as a holder of every other party's."""

    def __init__(self, job: SharesJob, seat: Seat, columns: int, state: State | None) -> None:
        self._job, self._seat = job, seat
        self._active, self._partner = seat.me == seat.active, seat.roles.the(PARTNER)
        own = State() if state is None else state
        self._sizes: dict[str, Any] = own.get("sizes", {})
        self._state = _shared(own)
        self._run: str = own.get("run", seat.desk.run)
        self._training: _Training | None = None
        self._scores: Scores | None = None
        self._weights: Floats | None = own.get("theta")
        self._blocks = 0
        self._answered = AnsweredRows(np.zeros(0, np.bool_), np.zeros(0, np.bool_))
        self._measured: dict[int, Found] = {}
        self._inputs: Inputs | None = None
        self._importance = {"importance": own["importance"]} if "importance" in own else {}
        if self._sizes:
            self._inputs = self._model.inputs(self._spread(columns, 0), own.get("inputs"), _nothing)
        if self._sizes and len(self._sizes["columns"]) != len(seat.parties):
            raise ConfigError(f"{seat.me}: the parties of the training were expected, others have met; bring the same")

    @property
    def row_bits(self) -> float:
        free = "scores" in self._job.accepts or self._options.scores == "exact" or self._seat.desk.together
        return float("inf") if free else BUDGET * float(self._sizes["held"])

    @property
    def exchanges(self) -> int:
        return 0 if self._state is None else self._state.visits

    def train(self, data: TrainingData, start: int = 0) -> Generator[Round]:
        with one_thread():
            yield from self._trained(data, start)

    def _trained(self, data: TrainingData, start: int) -> Generator[Round]:
        self._measures.check(data, start)
        training = self._begin(data)
        ahead, of = training.ahead, len(training.visits)
        give_back()  # what reading the table took
        try:
            while start < of:
                yield from self._stretch(training, start)
                start = self.exchanges
        except GeneratorExit:  # stopped early, and well: what is left serves nobody
            ahead.drop_from(0)
            raise
        finally:
            ahead.store.close()

    def outcome(self) -> State:
        state = self._kept(whole=False)
        return state if self._weights is None else State(state, theta=self._weights, **self._importance)

    def going_back(self, best: State, anew: Callable[[State], Player]) -> Player:
        """Stay, with the shares of then: the end notes the rows of the training, and opens weights."""
        self._state = _shared(best)
        return self

    def prepare(self, data: TrainingData) -> Generator[Round]:
        """Make every chunk of the training, on disk, as far as that is not done yet."""
        if self._seat.desk.ahead is None:
            raise ConfigError(f"{self._seat.me}: a folder for work done ahead was expected; name one")
        with one_thread():
            yield from self._prepared(data)

    def _prepared(self, data: TrainingData) -> Generator[Round]:
        training = self._begin(data)
        give_back()
        try:
            for first, part in chunks_of(training.visits, 0, self._epochs_ahead):
                self._make(training, first, part)
                yield Round(first + len(part), len(data.schedule), part[-1].epoch)
        finally:
            training.ahead.store.close()

    def measure(self, loss: Loss, data: TrainingData, rounds: int, *, last: bool) -> dict[str, float]:
        """Metrics of pairs (level, label) of the evaluated rows, in a hidden order."""
        if last and self._training is not None:
            self._end()
        if self._state is None:
            return {}
        if self.exchanges not in self._measured:
            self._measured[self.exchanges] = self._measures.measure(loss, data, self._state, rounds)
        found, self.calibration, self.spread = self._measured[self.exchanges]
        return found

    @cached_property
    def _measures(self) -> Measures:
        known = MeasuredModel(
            self._inputs_of, lambda: self._met, lambda: self._terms, lambda: self._plan, lambda: self._turned
        )
        return Measures(self._job, self._seat, known, self._ledger)

    def decision(self, rows: OwnRows, asked: AskedRows | None = None) -> Floats | None:
        if self._state is None:
            raise ConfigError(f"{self._seat.me}: a model was expected, this party has none yet; train first")
        if self._scores is None:
            self._scores = self._begin_scores(min(BLOCK, len(rows)))
        found, agreed = [], []
        for start in range(0, len(rows), BLOCK):
            X = rows[start : start + BLOCK]
            block = self._asked(rows, asked, slice(start, start + len(X)), X)
            assert self._inputs is not None, "a model has its inputs"
            scores = self._scores.block(self._blocks, self._inputs(X), block)
            self._blocks += 1
            agreed.append(self._scores.agreed)
            if scores is not None:
                found.append(scores)
        self._answered = AnsweredRows(
            np.concatenate([each.scored for each in agreed]), np.concatenate([each.fresh for each in agreed])
        )
        return np.concatenate(found) if found else None

    def _stretch(self, training: _Training, start: int) -> Generator[Round]:
        """Go through the visits from `start` on, to the last one or to where the training turns back."""
        channel, ahead, of, turns_before = self._seat.channel, training.ahead, len(training.visits), len(self._turned)

        def make(chunk: tuple[int, list[Visit]]) -> None:
            self._make(training, *chunk)
            self._measures.prepare(training.ahead.met, training.data, chunk[0], len(chunk[1]), of)

        chunks = list(chunks_of(training.visits, start, self._epochs_ahead))
        turns = Turns(channel, chunks, make, lambda chunk: ahead.fits(len(chunk[1])))
        with turns:
            for first, part in turns:
                chunk = self._chunk(training, first)
                self._measures.enter(first)
                channel.clock.stage = Stage.TRAIN
                channel.door.began(first + 1)
                channel.note(Began(part[0].index))
                states = training.side.train(chunk, len(part))
                for number, (visit, self._state) in enumerate(zip(part, states, strict=True), first + 1):
                    yield Round(number, of, visit.epoch)
                    if len(self._turned) > turns_before:
                        break
                    if number - first < len(part):
                        channel.door.began(number + 1)
                        channel.note(Began(part[number - first].index))
                else:
                    ahead.store.drop(chunk)
                    give_back()
                    self._measures.count_far(training.data, self._state, part[-1])
                    continue
                break
        if len(self._turned) > turns_before:  # what was made rests on the steps before
            ahead.drop_from(0)
            training.side.go_by(self._terms_for(training.rows))

    def _chunk(self, training: _Training, first: int) -> int:
        """Return the number of a chunk by its first visit: no two of a session have one number, nor so their keys."""
        return first + len(training.visits) * len(self._turned)

    @property
    def turns_back(self) -> bool:
        return turns_back(self._job, self._turned)

    def is_lost(self, losses: Sequence[float]) -> bool:
        return not losses[-1] <= min([self._measures.none, *(self._model.risen * loss for loss in losses[:-1])])

    def turn_back(self, best: State | None) -> None:
        turned = [*self._turned, [self.exchanges, 0 if best is None else best["visits"]]]
        self._sizes = self._sizes | {"turned": turned}
        self._measured.pop(self.exchanges, None)
        eventlog.warn(self._seat.me, "turned back", {"visit": self.exchanges, "to": turned[-1][1], "reason": _TURNED})

    def answered(self, rows: int) -> AnsweredRows:
        return self._answered

    def known(self, asked: AskedRows) -> KnownRows:
        ledger = self._ledger
        question = ledger.question(self._noted(), OWN, asked.ids, ledger.commitments(asked.ids, asked.raw))
        states, trained = ledger.look(question), ledger.trained_on(question)
        scores = np.full((len(states), self._seat.outputs), np.nan)
        for at, score in enumerate(ledger.kept_scores(question)):
            if score is not None:
                scores[at] = np.frombuffer(score, "<f8")
        return KnownRows(trained, (states == REFUSED) & ~trained, scores)

    def state(self) -> State:
        return self._kept(whole=True)

    def _kept(self, *, whole: bool) -> State:
        """Return what is kept of the training; with `whole` also what only this party's own rows need."""
        state = self._state
        if state is None:
            return State(run=self._run)
        kept = State(own=state.own, others=dict(state.others), visits=state.visits, sizes=self._sizes, run=self._run)
        own = {} if self._inputs is None else self._inputs.state(whole=whole)
        return State(kept, inputs=own) if own else kept

    @cached_property
    def _met(self) -> Met:
        """What the session has for questions about the model."""
        numbers = self._plan.numbers
        return Met(self._seat, self._partner, self._scheme(numbers), numbers)

    def _scheme(self, numbers: Numbers) -> ShareScheme:
        """Return what multiplies shared vectors. ConfigError where this machine's linear algebra is not exact."""
        return SHARE_SCHEMES[self._options.library](numbers.bits)

    def _begin(self, data: TrainingData) -> _Training:
        seat, schedule = self._seat, data.schedule
        if data.apart and self._options.library != "own":
            raise ConfigError(
                f'{seat.me}: protocol.shares.library = "own" was expected, as its rows lie at workers, where products '
                "are made without keys; leave it out, or use open_table"
            )
        if data.apart:
            data.at_workers(schedule.flow)
        parts = schedule.partition(0)
        n = len(schedule.train)
        columns = {name: self._model.breadth(self._spread(d, n, name)) for name, d in seat.columns.items()}
        turned = self._turned
        self._sizes = {"turned": turned, "columns": columns, "rows": max(map(len, parts)), "batches": schedule.batches}
        self._sizes["named"], self._sizes["trained"] = data.named, n
        self._sizes["held"] = Holds.of(data.raw(schedule.sample(ROWS))).bits
        if self._inputs is None:
            self._inputs = self._made(data)
        terms = self._terms_for(tuple(map(len, parts)))
        own = self._columns(data, terms.numbers, parts)
        ready: Ready = InMemory() if seat.desk.ahead is None else OnDisk(seat.desk.ahead)
        ahead = Ahead(
            seat, terms, self._scheme(terms.numbers), own.integers, ready, apart=data.apart, base=self._met.base
        )
        side: Side
        if self._active:
            loss, numbers = self._job.loss, terms.numbers

            @lru_cache(maxsize=64)
            def tables(piece: RowBlock) -> LookUp:
                rated = data.rated_outputs(parts[piece.batch][piece.start : piece.stop], seat.outputs)
                assert rated is not None, "the active party has labels"
                return LookUp(numbers, loss.residual, rated, loss.least)

            side = SharesActive(seat, terms, own, ahead, tables, self._state)
        elif seat.me == self._partner:
            side = SharesPartner(seat, terms, own, ahead, self._state)
        else:
            side = SharesPassive(seat, terms, own, ahead, self._state)
        self._state = side.state
        self._training = _Training(data, ahead, side, list(schedule.visits()), terms.rows)
        return self._training

    def _columns(self, data: TrainingData, numbers: Numbers, parts: Sequence[Rows]) -> ColumnBlocks:
        """Return this party's columns in all batches, wherever they lie."""
        rate, P = self._plan.rate, self._turn(data)
        if data.apart:
            return PlacedColumns(numbers, rate, lambda batch: self._at_workers(data, parts[batch]), self._seat.meter, P)
        rows = lambda batch: InputRows(self._features, data, parts[batch])  # noqa: E731
        return VisitColumns(numbers, rate, rows, P, self._seat.desk.ahead)

    def _inputs_of(self, data: TrainingData, rows: Rows) -> NewRows:
        """Return this party's inputs of rows of its table, where they lie."""
        if not data.apart:
            return InputRows(self._features, data, rows)
        tall = self._at_workers(data, rows)
        return PlacedColumns(self._plan.numbers, self._plan.rate, lambda _: tall, self._seat.meter)

    def _at_workers(self, data: TrainingData, rows: Rows, root: Floats | None = None, clip: float = np.inf) -> Tall:
        """Return this party's inputs (n x breadth) of rows that lie at workers, there; cut off at `clip`, and each by
        its `root` (n,)."""
        assert self._inputs is not None, "they are made first"
        at, parts, breadth = _places(data, rows), list[PlacedPart](), self._sizes["columns"][self._seat.me]
        for part in data.at_workers(rows).parts:
            assert isinstance(part, PlacedPart), "they lie at workers"
            own = slice(part.start, part.stop)
            roots = None if root is None else root[own]
            placed = part.derive(worker_inputs, self._inputs, at[own], roots, clip, breadth)
            parts.append(PlacedPart(part.start, part.stop - part.start, placed))
        return Tall(parts, breadth)

    def _make(self, training: _Training, first: int, part: Sequence[Visit]) -> None:
        """Make a chunk, unless all parties have it already."""
        ahead, number = training.ahead, self._chunk(training, first)
        self._seat.channel.clock.stage = Stage.AHEAD
        if ahead.holds:  # in the first chunk, before work goes on beside questions about the model
            self._met.base.meet()
        if is_ready(ahead.meet(), ahead, number, len(part)):
            ahead.pass_over(number)
        else:
            ahead.make(number, [visit.index for visit in part])

    def _turn(self, data: TrainingData) -> Floats | None:
        """P (d x d), the matrix that this party's steps are turned by, if its optimizer has one."""
        optimizer, loss = self._job.optimizer, self._job.loss
        if not isinstance(optimizer, BlockDescent):
            return None
        d, rows, clip = self._sizes["columns"][self._seat.me], data.schedule.flow, self._options.clip
        stretches: Iterable[Floats]
        if data.apart:
            tall = self._at_workers(data, rows, None if data.weights is None else np.sqrt(data.weights[rows]), clip)
            stretches = [cast(Floats, tall)]
        else:
            starts = range(0, len(rows), STRETCH)
            stretches = (self._own_weighted(data, rows[at : at + STRETCH], clip) for at in starts)
        if data.weights is not None:  # who has labels knows what each row counts; others allow for the most
            loss = self._job.model.loss
        ridge = self._model.ridge_of(len(rows))
        held_back = np.full((d, 1), (optimizer.ridge if ridge is None else ridge) + self._job.model.l2)
        assert self._inputs is not None, "they are made first"
        constant = self._inputs.constant(d)
        P = of_rows(stretches, lambda X: X.T @ X, loss, held_back, who=self._seat.me, constant=constant)
        if data.apart:
            self._seat.meter.elsewhere(tall.makespan())
        return P

    def _own_weighted(self, data: TrainingData, rows: Rows, clip: float) -> Floats:
        """Return inputs (m x d) of these rows by the root of what each row counts, where this party knows that."""
        own = self._features(data, rows).clip(-clip, clip)
        return own if data.weights is None else own * np.sqrt(data.weights[rows])[:, None]

    def _features(self, data: TrainingData, rows: Rows) -> Floats:
        """Return this party's inputs (m x d) of rows of its table."""
        assert self._inputs is not None, "they are made first"
        return inputs_at(self._inputs, data.scaled(rows), _places(data, rows))

    def _made(self, data: TrainingData) -> Inputs:
        """Return this party's inputs: those on which work done ahead rests, if there is any, or new ones."""
        rows, folder = data.schedule.looked_at, self._seat.desk.ahead
        file = None if folder is None else folder / INPUTS
        kept = None if file is None or not file.exists() else _read_inputs(file)

        def seen() -> Seen:
            targets = None if data.targets is None else data.targets[rows]
            weights = None if data.weights is None else data.weights[rows]
            by_ids = data.schedule.by_ids
            order, X = np.searchsorted(rows, by_ids[np.isin(by_ids, rows)]), data.scaled(rows)
            own = [each[order] for each in (X, targets, weights) if each is not None]
            key = own_stream(f"inputs of {self._seat.me} {self._job.seed}", *own)(KEY_BYTES)
            return Seen(self._seat.me, X, data.sources, targets, weights, key, order)

        made = self._model.inputs(self._spread(data.columns, len(data.schedule.train)), kept, seen)
        own = made.state(whole=True)
        if file is not None and kept is None and own:
            write_checked_json(file, State(own).plain())
        return made

    def _spread(self, columns: int, rows: int, name: str | None = None) -> Spread:
        """Return the sizes of a party, its own if none is named."""
        seat, party = self._seat, name or self._seat.me
        opened = party in self._options.open_weights
        return Spread(party == seat.active, columns, seat.outputs, len(seat.parties), rows, opened)

    @property
    def _model(self) -> LinearModel:
        return self._job.model

    @property
    def _options(self) -> Shares:
        return self._job.protocol.shares

    @property
    def _plan(self) -> Plan:
        return plan_of(self._job, self._sizes, len(self._seat.parties))

    @property
    def _epochs_ahead(self) -> int:
        return epochs_ahead(self._job, self._sizes["trained"], self._seat.outputs)

    @property
    def _turned(self) -> Turned:
        """Return where the training has turned back."""
        turned: Turned = self._sizes.get("turned", ())
        return turned

    @property
    def _terms(self) -> Terms:
        """The terms of the training, without the rows of single batches."""
        return self._terms_for((self._sizes["rows"],))

    def _terms_for(self, rows: tuple[int, ...]) -> Terms:
        seat, made = self._seat, self._plan
        chunks = -(-self._job.epochs // self._epochs_ahead)
        columns = self._sizes["columns"]
        return Terms(made.numbers, rows, columns, self._partner, made.rule, seat.outputs, chunks, seat.active)

    def _end(self) -> None:
        """End the training: open the weights that the job names, and note the model, which has these, in the ledger."""
        state = self._state
        assert state is not None, "it has been trained"
        terms, named, levels = self._terms, self._options.open_weights, weight_levels(self._job, self._sizes["trained"])
        leave = opened_weights.enter(self._seat, terms, levels, named)
        all_ended(self._seat)
        self._state = state = opened_weights.opened(self._seat, terms, state, levels, leave, named)
        self._noted()
        if self._seat.me in named:
            theta = terms.rule_of(self._seat.me).theta(state.own, state.visits)
            self._weights = terms.numbers.weights(theta)
        if self._weights is not None and self._training is not None and self._inputs is not None:
            data = self._training.data
            found = self._inputs.importance(self._weights, data.scaled(data.schedule.sample(EXPLAINED)))
            self._importance = {"importance": found} if found else {}

    def _begin_scores(self, rows: int) -> Scores:
        state, desk = self._state, self._seat.desk
        assert state is not None, "it has been asked"
        options = self._options
        if options.scores == "none" and not desk.together:
            raise LeakageError(
                f"{self._seat.me}: a job whose scores are told was expected, this one's are told to nobody; agree to "
                'scores = "levels" and train again'
            )
        exact = desk.together or options.scores == "exact"
        spacing, to = self._job.loss.spacing, options.scores_to or self._seat.active
        numbers = self._plan.numbers
        levels = Levels.exact(numbers) if exact else options.score_levels(spacing).within(numbers)
        left = self.row_bits - bits_of_codes(self._job, self._seat.me, self._terms.columns[self._seat.me])
        rounded = None if exact else options.allowed_levels(spacing, left / self._seat.outputs).within(numbers)
        ledger = None if desk.together else self._ledger
        asking = Asking(self._noted(), ledger, levels, to, self.row_bits, rounded, desk.account)
        tops = None if exact else lambda: self._met.tops
        return Scores(self._met.products, self._terms, state, asking, tops=tops, number=state.visits, rows=rows)

    @cached_property
    def _ledger(self) -> Ledger:
        return Ledger(self._seat.desk.scores)

    def _noted(self) -> bytes:
        """Note the finished model in this party's ledger, and return the name under which it is noted."""
        state, training, desk = self._state, self._training, self._seat.desk
        assert state is not None, "it has been asked"
        digest = hashlib.sha256(self._run.encode())
        for words in (state.own, *(state.others[name] for name in sorted(state.others))):
            digest.update(np.ascontiguousarray(words, "<u8").tobytes())
        model = digest.digest()[:NAME_BYTES]
        if not desk.together and (training is not None or desk.scores is None) and not self._ledger.knows(model):
            if training is None:
                self._ledger.trained(model, state.visits, [])
            else:
                data, rows = training.data, training.data.schedule.flow
                X = data.at_workers(rows, raw=True) if data.apart else InputRows(TrainingData.raw, data, rows)
                stretches = (rows[at : at + STRETCH] for at in range(0, len(rows), STRETCH))
                ids = chain.from_iterable(map(data.ids, stretches))
                self._ledger.trained(model, state.visits, ids, X)
        return model

    def _asked(self, rows: OwnRows, asked: AskedRows | None, block: slice, X: Floats) -> opened_scores.QueriedRows:
        """Ids and columns of a block. Rows of the training's table have theirs, others bring them or are new here."""
        if asked is not None and self._seat.desk.scores is not None and not self._sizes["named"]:
            raise ConfigError(
                f"{self._seat.me}: a model of rows with ids was expected, this one's had none, so nobody can tell them "
                "from new ones; align the tables by ids, and train again"
            )
        if asked is not None:
            barred = None if asked.barred is None else asked.barred[block]
            return opened_scores.QueriedRows(asked.ids[block], asked.raw[block], barred)
        if isinstance(rows, ScaledRows) and self._training is not None:
            of = rows.rows[block]
            return opened_scores.QueriedRows(self._training.data.ids(of), self._training.data.raw(of))
        if self._seat.desk.scores is not None:
            raise ConfigError(f"{self._seat.me}: rows with ids were expected, as each is scored once; bring ids")
        return opened_scores.QueriedRows([b"new %d" % place for place in range(block.start, block.stop)], X)
