"""One party of a training on shares: makes work ahead, goes through visits, measures, and takes part in what is opened.

Pairs of a level and a label come out in an order that nobody knows; of losses that pairs do not serve one sum is
opened; and after each chunk it is counted how many sums are beyond the end of the table.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import chain
from typing import Any, cast

import numpy as np

from securevfl.base.arrays import Floats, RowSlices
from securevfl.base.checked_files import write_checked_json
from securevfl.base.chunked_matrix import ChunkedMatrix
from securevfl.base.machine import release_freed_memory, single_threaded_blas
from securevfl.base.roles import PARTNER
from securevfl.crypto.share_scheme import ShareScheme
from securevfl.data.schedule import Iteration, Rows
from securevfl.disclosure.column_recovery import MAX_SAMPLE_ROWS
from securevfl.disclosure.information_content import InformationContent
from securevfl.errors import ConfigError, LeakageError
from securevfl.families.participant import Participant, Round
from securevfl.families.score_results import Measurement, RowHistory, ScoreResult
from securevfl.families.shares.chunk_pipeline import ChunkPipeline, chunk_epochs, split_chunks
from securevfl.families.shares.shares_inputs import INPUTS_FILE, InputRows, fitted_positions, read_inputs, remote_inputs
from securevfl.families.shares.shares_job import SharesJob
from securevfl.families.shares.shares_measures import Measurements
from securevfl.families.shares.shares_plan import (
    Plan,
    Rollbacks,
    can_roll_back,
    plan_of,
    reason_code_bits,
    weight_levels,
)
from securevfl.families.state import State
from securevfl.families.training_data import ScaledRows, TrainingData
from securevfl.models.inputs import FittingData, Inputs, InputShape, inputs_at, private_stream
from securevfl.models.loss import Loss
from securevfl.optim.block_descent import BlockDescent
from securevfl.optim.curvature import preconditioner_of_rows
from securevfl.protocols.joint_prediction import RowsToScore
from securevfl.protocols.observations import IterationStarted
from securevfl.protocols.party_context import PartyContext
from securevfl.protocols.score_ledger.ledger import REFUSED, SELF, ScoreLedger
from securevfl.protocols.score_ledger.limits import SCORE_BIT_BUDGET
from securevfl.protocols.shares import iteration as shares
from securevfl.protocols.shares import opened_weights
from securevfl.protocols.shares.chunk_agreement import agree_on_chunk, wait_for_all
from securevfl.protocols.shares.column_blocks import ColumnBlocks, LocalColumns
from securevfl.protocols.shares.disk_store import DiskStore
from securevfl.protocols.shares.fixed_point import FixedPointEncoding
from securevfl.protocols.shares.forward_sums import ColumnSource
from securevfl.protocols.shares.iteration import FeatureParty, LabelParty, PartnerParty, TrainingRole
from securevfl.protocols.shares.offline_phase import OfflinePhase
from securevfl.protocols.shares.opened_scores import ScoringParams, ScoringSession
from securevfl.protocols.shares.preprocessing_store import NAME_BYTES, MemoryStore, PreprocessingStore
from securevfl.protocols.shares.quantizer import Quantizer
from securevfl.protocols.shares.remote_columns import RemoteColumns
from securevfl.protocols.shares.residual_tables import ResidualTables
from securevfl.protocols.shares.share_schemes import SHARE_SCHEMES
from securevfl.protocols.shares.shares_params import RowBlock, SharesParams
from securevfl.protocols.shares.shares_session import SharesSession
from securevfl.runtime import eventlog
from securevfl.runtime.costs import Stage
from securevfl.runtime.worker_backend import RemotePart

# One party.


SCORE_BLOCK_ROWS = 16_384  # rows that are scored at a time
INPUT_BLOCK_ROWS = 4096  # rows of which inputs are made at a time
INPUT_KEY_BYTES = 32
_ROLLBACK_REASON = "the loss rose: steps of twice the safe size were too long for these columns, and half of it follows"
IMPORTANCE_ROWS = 512  # training rows by which columns are said to matter, to a party that is told its weights


def _shared_weights(kept: State) -> shares.SharedState | None:
    """Return the shares in what was kept, if there are any."""
    return None if "own" not in kept else shares.SharedState(kept["visits"], kept["own"], kept["others"])


def _nothing() -> FittingData:
    raise AssertionError("a model keeps its inputs")


LARGE_TABLE_NUMBERS = 1 << 18  # numbers of a table


@dataclass
class _TrainingResources:
    """What a player needs while it trains."""

    data: TrainingData
    ahead: OfflinePhase
    side: TrainingRole
    visits: list[Iteration]
    rows: tuple[int, ...]

    def give_back(self) -> None:
        """Return freed memory to the system where there is much of it: of few numbers that costs more than it gives."""
        if self.data.rows * self.data.columns > LARGE_TABLE_NUMBERS:
            release_freed_memory()


class SharesParticipant(Participant):
    """One party's shares: of its own weights, and as a holder of every other party's."""

    def __init__(self, job: SharesJob, context: PartyContext, columns: int, state: State | None) -> None:
        self._job, self._context = job, context
        self._model, self._options = job.model, job.protocol.shares
        self._active, self._partner = context.me == context.active, context.roles.only(PARTNER)
        own = State() if state is None else state
        self._sizes: dict[str, Any] = own.get("sizes", {})
        self._state = _shared_weights(own)
        self._run: str = own.get("run", context.resources.run)
        self._training: _TrainingResources | None = None
        self._scores: ScoringSession | None = None
        self._weights: Floats | None = own.get("theta")
        self._blocks = 0
        self._measured: dict[int, Measurement] = {}
        self._inputs: Inputs | None = None
        self._importance = {"importance": own["importance"]} if "importance" in own else {}
        if self._sizes:
            self._inputs = self._model.inputs(self._spread(columns, 0), own.get("inputs"), _nothing)
        if self._sizes and len(self._sizes["columns"]) != len(context.parties):
            raise ConfigError(
                f"{context.me}: the parties of the training were expected, others have met; bring the same"
            )

    @property
    def max_bits_per_row(self) -> float:
        free = "scores" in self._job.accepts or self._options.scores == "exact" or self._context.resources.simulated
        return float("inf") if free else SCORE_BIT_BUDGET * float(self._sizes["held"])

    @property
    def exchanges(self) -> int:
        return 0 if self._state is None else self._state.iterations

    def train(self, data: TrainingData, start: int = 0) -> Generator[Round]:
        with single_threaded_blas():
            self._measures.check(data, start)
            training = self._begin(data)
            training.give_back()  # what reading the table took
            try:
                while start < len(training.visits):
                    yield from self._stretch(training, start)
                    start = self.exchanges
            except GeneratorExit:  # stopped early, and well: what is left serves nobody
                training.ahead.drop_from(0)
                raise
            finally:
                training.ahead.store.close()

    def model_state(self) -> State:
        state = self._kept(whole=False)
        return state if self._weights is None else State(state, theta=self._weights, **self._importance)

    def resume_from(self, best: State, anew: Callable[[State], Participant]) -> Participant:
        """Stay, with the shares of then: the end notes the rows of the training, and opens weights."""
        self._state = _shared_weights(best)
        return self

    def precompute(self, data: TrainingData) -> Generator[Round]:
        """Make every chunk of the training, on disk, as far as that is not done yet."""
        if self._context.resources.preprocessing is None:
            raise ConfigError(f"{self._context.me}: a folder for work done ahead was expected; name one")
        with single_threaded_blas():
            training = self._begin(data)
            training.give_back()
            try:
                for first, part in split_chunks(training.visits, 0, self._epochs_ahead):
                    self._make(training, first, part)
                    yield Round(first + len(part), len(data.schedule), part[-1].epoch)
            finally:
                training.ahead.store.close()

    def measure(self, loss: Loss, data: TrainingData, rounds: int, *, last: bool) -> Measurement:
        """Metrics of pairs (level, label) of the evaluated rows, in a hidden order."""
        if last and self._training is not None:
            self._end()
        if self._state is None:
            return Measurement()
        if self.exchanges not in self._measured:
            self._measured[self.exchanges] = self._measures.measure(loss, data, self._state, rounds)
        return self._measured[self.exchanges]

    @cached_property
    def _measures(self) -> Measurements:
        return Measurements(self, self._job, self._context)

    def model_outputs(self, rows: RowSlices, request: RowsToScore | None = None) -> Floats | None:
        return self.score(rows, request).outputs

    def score(self, rows: RowSlices, asked: RowsToScore | None = None) -> ScoreResult:
        if self._state is None:
            raise ConfigError(f"{self._context.me}: a model was expected, this party has none yet; train first")
        if self._scores is None:
            self._scores = self._begin_scores(min(SCORE_BLOCK_ROWS, len(rows)))
        found, agreed = [], []
        for start in range(0, len(rows), SCORE_BLOCK_ROWS):
            X = rows[start : start + SCORE_BLOCK_ROWS]
            block = self._asked(rows, asked, slice(start, start + len(X)), X)
            assert self._inputs is not None, "a model has its inputs"
            scores = self._scores.block(self._blocks, self._inputs(X), block)
            self._blocks += 1
            agreed.append(self._scores.decisions)
            if scores is not None:
                found.append(scores)
        return ScoreResult(
            np.concatenate(found) if found else None,
            np.concatenate([block.scored for block in agreed]),
            np.concatenate([block.fresh for block in agreed]),
        )

    def _stretch(self, training: _TrainingResources, start: int) -> Generator[Round]:
        """Go through the visits from `start` on, to the last one or to where the training turns back."""
        channel, ahead, of, turns_before = (
            self._context.channel,
            training.ahead,
            len(training.visits),
            len(self.rollbacks),
        )

        def make(chunk: tuple[int, list[Iteration]]) -> None:
            self._make(training, *chunk)
            self._measures.prepare(training.ahead.session, training.data, chunk[0], len(chunk[1]), of)

        chunks = list(split_chunks(training.visits, start, self._epochs_ahead))
        turns = ChunkPipeline(channel, chunks, make, lambda chunk: ahead.has_room(len(chunk[1])))
        with turns:
            for first, part in turns:
                chunk = self._chunk(training, first)
                self._measures.enter(first)
                channel.clock.stage = Stage.TRAIN
                channel.gate.begin_iteration(first + 1)
                channel.note(IterationStarted(part[0].index))
                states = training.side.train(chunk, len(part))
                for number, (visit, self._state) in enumerate(zip(part, states, strict=True), first + 1):
                    yield Round(number, of, visit.epoch)
                    if len(self.rollbacks) > turns_before:
                        break
                    if number - first < len(part):
                        channel.gate.begin_iteration(number + 1)
                        channel.note(IterationStarted(part[number - first].index))
                else:
                    ahead.store.drop(chunk)
                    training.give_back()
                    self._measures.count_far(training.data, self._state, part[-1])
                    continue
                break
        if len(self.rollbacks) > turns_before:  # what was made rests on the steps before
            ahead.drop_from(0)
            training.side.set_params(self._terms_for(training.rows))

    def _chunk(self, training: _TrainingResources, first: int) -> int:
        """Return the number of a chunk by its first visit: no two of a session have one number, nor so their keys."""
        return first + len(training.visits) * len(self.rollbacks)

    @property
    def can_roll_back(self) -> bool:
        return can_roll_back(self._job, self.rollbacks)

    def should_roll_back(self, losses: Sequence[float]) -> bool:
        return not losses[-1] <= min([self._measures.none, *(self._model.risen * loss for loss in losses[:-1])])

    def roll_back(self, best: State | None) -> None:
        turned = [*self.rollbacks, [self.exchanges, 0 if best is None else best["visits"]]]
        self._sizes = self._sizes | {"turned": turned}
        self._measured.pop(self.exchanges, None)
        eventlog.warn(
            self._context.me, "turned back", {"visit": self.exchanges, "to": turned[-1][1], "reason": _ROLLBACK_REASON}
        )

    def row_history(self, asked: RowsToScore) -> RowHistory:
        ledger = self.ledger
        question = ledger.query(self._noted(), SELF, asked.ids, ledger.commitments(asked.ids, asked.raw))
        states, trained = ledger.row_states(question), ledger.is_trained_on(question)
        scores = np.full((len(states), self._context.outputs), np.nan)
        for at, score in enumerate(ledger.stored(question, of="score")):
            if score is not None:
                scores[at] = np.frombuffer(score, "<f8")
        return RowHistory(trained, (states == REFUSED) & ~trained, scores)

    def state(self) -> State:
        return self._kept(whole=True)

    def _kept(self, *, whole: bool) -> State:
        """Return what is kept of the training; with `whole` also what only this party's own rows need."""
        state = self._state
        if state is None:
            return State(run=self._run)
        kept = State(
            own=state.own_share,
            others=dict(state.peer_shares),
            visits=state.iterations,
            sizes=self._sizes,
            run=self._run,
        )
        own = {} if self._inputs is None else self._inputs.state(whole=whole)
        return State(kept, inputs=own) if own else kept

    @cached_property
    def met(self) -> SharesSession:
        """What the session has for questions about the model."""
        numbers = self.plan.numbers
        return SharesSession(self._context, self._partner, self._scheme(numbers), numbers)

    def _scheme(self, numbers: FixedPointEncoding) -> ShareScheme:
        """Return what multiplies shared vectors. ConfigError where this machine's linear algebra is not exact."""
        return SHARE_SCHEMES[self._options.library](numbers.bits)

    def _begin(self, data: TrainingData) -> _TrainingResources:
        context, schedule = self._context, data.schedule
        if data.is_remote and self._options.library != "own":
            raise ConfigError(
                f'{context.me}: protocol.shares.library = "own" was expected, as its rows lie at workers, where '
                "products "
                "are made without keys; leave it out, or use open_table"
            )
        if data.is_remote:
            data.remote_rows(schedule.batch_order)
        parts = schedule.partition(0)
        n = len(schedule.train)
        columns = {name: self._model.breadth(self._spread(d, n, name)) for name, d in context.columns.items()}
        turned = self.rollbacks
        self._sizes = {"turned": turned, "columns": columns, "rows": max(map(len, parts)), "batches": schedule.batches}
        self._sizes["named"], self._sizes["trained"] = data.has_ids, n
        self._sizes["held"] = InformationContent.of(data.raw(schedule.sample(MAX_SAMPLE_ROWS))).bits
        if self._inputs is None:
            self._inputs = self._made(data)
        terms = self._terms_for(tuple(map(len, parts)))
        own = self._columns(data, terms.encoding, parts)
        ready: PreprocessingStore = (
            MemoryStore() if context.resources.preprocessing is None else DiskStore(context.resources.preprocessing)
        )
        ahead = OfflinePhase(
            context, terms, self._scheme(terms.encoding), own.integers, ready, remote=data.is_remote, base=self.met.base
        )
        side: TrainingRole
        if self._active:
            loss, numbers = self._job.loss, terms.encoding

            @lru_cache(maxsize=64)
            def tables(piece: RowBlock) -> ResidualTables:
                rated = data.loss_targets_by_output(parts[piece.batch][piece.start : piece.stop], context.outputs)
                assert rated is not None, "the active party has labels"
                return ResidualTables(numbers, loss.residual, rated, loss.minimizer, smooth=loss.smooth)

            side = LabelParty(context, terms, own, ahead, tables, self._state)
        elif context.me == self._partner:
            side = PartnerParty(context, terms, own, ahead, self._state)
        else:
            side = FeatureParty(context, terms, own, ahead, self._state)
        self._state = side.state
        self._training = _TrainingResources(data, ahead, side, list(schedule.iterations()), terms.rows)
        return self._training

    def _columns(self, data: TrainingData, numbers: FixedPointEncoding, parts: Sequence[Rows]) -> ColumnBlocks:
        """Return this party's columns in all batches, wherever they lie."""
        rate, P = self.plan.rate, self._turn(data)
        if data.is_remote:
            return RemoteColumns(
                numbers, rate, lambda batch: self._at_workers(data, parts[batch]), self._context.meter, P
            )
        rows = lambda batch: InputRows(self._features, data, parts[batch])  # noqa: E731
        return LocalColumns(numbers, rate, rows, P, self._context.resources.preprocessing)

    def inputs_of(self, data: TrainingData, rows: Rows) -> ColumnSource:
        """Return this party's inputs of rows of its table, where they lie."""
        if not data.is_remote:
            return InputRows(self._features, data, rows)
        tall = self._at_workers(data, rows)
        return RemoteColumns(self.plan.numbers, self.plan.rate, lambda _: tall, self._context.meter)

    def _at_workers(
        self, data: TrainingData, rows: Rows, root: Floats | None = None, clip: float = np.inf
    ) -> ChunkedMatrix:
        """Return this party's inputs (n x breadth) of rows that lie at workers, there; cut off at `clip`, and each by
        its `root` (n,)."""
        assert self._inputs is not None, "they are made first"
        at, parts, breadth = fitted_positions(data, rows), list[RemotePart](), self._sizes["columns"][self._context.me]
        for part in data.remote_rows(rows).parts:
            assert isinstance(part, RemotePart), "they lie at workers"
            own = slice(part.start, part.stop)
            roots = None if root is None else root[own]
            placed = part.derive(remote_inputs, self._inputs, at[own], roots, clip, breadth)
            parts.append(RemotePart(part.start, part.stop - part.start, placed))
        return ChunkedMatrix(parts, breadth)

    def _make(self, training: _TrainingResources, first: int, part: Sequence[Iteration]) -> None:
        """Make a chunk, unless all parties have it already."""
        ahead, number = training.ahead, self._chunk(training, first)
        self._context.channel.clock.stage = Stage.OFFLINE
        if ahead.is_holder:  # in the first chunk, before work goes on beside questions about the model
            self.met.base.establish()
        if agree_on_chunk(ahead.greet(), ahead, number, len(part)):
            ahead.skip_chunk(number)
        else:
            ahead.generate(number, [visit.index for visit in part])

    def _turn(self, data: TrainingData) -> Floats | None:
        """P (d x d), the matrix that this party's steps are turned by, if its optimizer has one."""
        optimizer, loss = self._job.optimizer, self._job.loss
        if not isinstance(optimizer, BlockDescent):
            return None
        d, rows, clip = self._sizes["columns"][self._context.me], data.schedule.batch_order, self._options.clip
        roots = None if data.weights is None else np.sqrt(data.weights[rows])
        stretches: Iterable[Floats]
        if data.is_remote:
            tall = self._at_workers(data, rows, roots, clip)
            stretches = [cast(Floats, tall)]
        else:
            blocks = (slice(at, at + INPUT_BLOCK_ROWS) for at in range(0, len(rows), INPUT_BLOCK_ROWS))
            own = ((self._features(data, rows[block]).clip(-clip, clip), block) for block in blocks)
            stretches = (X if roots is None else X * roots[block][:, None] for X, block in own)
        if data.weights is not None:  # who has labels knows what each row counts; others allow for the most
            loss = self._job.model.loss
        ridge = self._model.ridge_of(len(rows))
        held_back = np.full((d, 1), (optimizer.ridge if ridge is None else ridge) + self._job.model.l2)
        assert self._inputs is not None, "they are made first"
        constant = self._inputs.constant(d)
        P = preconditioner_of_rows(
            stretches, lambda X: X.T @ X, loss, held_back, who=self._context.me, constant=constant
        )
        if data.is_remote:
            self._context.meter.add_worker_seconds(tall.makespan())
        return P

    def _features(self, data: TrainingData, rows: Rows) -> Floats:
        """Return this party's inputs (m x d) of rows of its table."""
        assert self._inputs is not None, "they are made first"
        return inputs_at(self._inputs, data.scaled(rows), fitted_positions(data, rows))

    def _made(self, data: TrainingData) -> Inputs:
        """Return this party's inputs: those on which work done ahead rests, if there is any, or new ones."""
        rows, folder = data.schedule.fitting_rows, self._context.resources.preprocessing
        file = None if folder is None else folder / INPUTS_FILE
        kept = None if file is None or not file.exists() else read_inputs(file)

        def seen() -> FittingData:
            targets = None if data.targets is None else data.targets[rows]
            weights = None if data.weights is None else data.weights[rows]
            by_ids = data.schedule.by_ids
            order, X = np.searchsorted(rows, by_ids[np.isin(by_ids, rows)]), data.scaled(rows)
            own = [each[order] for each in (X, targets, weights) if each is not None]
            key = private_stream(f"inputs of {self._context.me} {self._job.seed}", *own)(INPUT_KEY_BYTES)
            return FittingData(self._context.me, X, data.sources, targets, weights, key, order)

        made = self._model.inputs(self._spread(data.columns, len(data.schedule.train)), kept, seen)
        own = made.state(whole=True)
        if file is not None and kept is None and own:
            write_checked_json(file, State(own).plain())
        return made

    def _spread(self, columns: int, rows: int, name: str | None = None) -> InputShape:
        """Return the sizes of a party, its own if none is named."""
        context, party = self._context, name or self._context.me
        opened = party in self._options.open_weights
        return InputShape(party == context.active, columns, context.outputs, len(context.parties), rows, opened)

    @property
    def plan(self) -> Plan:
        return plan_of(self._job, self._sizes, len(self._context.parties))

    @property
    def _epochs_ahead(self) -> int:
        return chunk_epochs(self._job, self._sizes["trained"], self._context.outputs)

    @property
    def rollbacks(self) -> Rollbacks:
        """Return where the training has turned back."""
        turned: Rollbacks = self._sizes.get("turned", ())
        return turned

    @property
    def terms(self) -> SharesParams:
        """The terms of the training, without the rows of single batches."""
        return self._terms_for((self._sizes["rows"],))

    def _terms_for(self, rows: tuple[int, ...]) -> SharesParams:
        context, made = self._context, self.plan
        chunks = -(-self._job.epochs // self._epochs_ahead)
        columns = self._sizes["columns"]
        return SharesParams(
            made.numbers, rows, columns, self._partner, made.rule, context.outputs, chunks, context.active
        )

    def _end(self) -> None:
        """End the training: open the weights that the job names, and note the model, which has these, in the ledger."""
        state = self._state
        assert state is not None, "it has been trained"
        terms, named, levels = self.terms, self._options.open_weights, weight_levels(self._job, self._sizes["trained"])
        leave = opened_weights.record_weights(self._context, terms, levels, named)
        wait_for_all(self._context)
        self._state = state = opened_weights.open_weights(self._context, terms, state, levels, leave, named)
        self._noted()
        if self._context.me in named:
            theta = terms.rule_of(self._context.me).theta(state.own_share, state.iterations)
            self._weights = terms.encoding.decode_weights(theta)
        if self._weights is not None and self._training is not None and self._inputs is not None:
            data = self._training.data
            found = self._inputs.importance(self._weights, data.scaled(data.schedule.sample(IMPORTANCE_ROWS)))
            self._importance = {"importance": found} if found else {}

    def _begin_scores(self, rows: int) -> ScoringSession:
        state, resources = self._state, self._context.resources
        assert state is not None, "it has been asked"
        options = self._options
        if options.scores == "none" and not resources.simulated:
            raise LeakageError(
                f"{self._context.me}: a job whose scores are told was expected, this one's are told to nobody; agree "
                "to "
                'scores = "levels" and train again'
            )
        exact = resources.simulated or options.scores == "exact"
        spacing, to = self._job.loss.spacing, options.scores_to or self._context.active
        numbers = self.plan.numbers
        levels = Quantizer.exact(numbers) if exact else options.score_quantizer(spacing).within(numbers)
        left = self.max_bits_per_row - reason_code_bits(
            self._job, self._context.me, self.terms.columns[self._context.me]
        )
        rounded = None if exact else options.permitted_quantizer(spacing, left / self._context.outputs).within(numbers)
        ledger = None if resources.simulated else self.ledger
        asking = ScoringParams(
            self._noted(), ledger, levels, to, self.max_bits_per_row, rounded, resources.charge_scores
        )
        tops = None if exact else lambda: self.met.top_transfers
        return ScoringSession(
            self.met.products, self.terms, state, asking, top_transfers=tops, number=state.iterations, rows=rows
        )

    @cached_property
    def ledger(self) -> ScoreLedger:
        return ScoreLedger(self._context.resources.score_ledger)

    def _noted(self) -> bytes:
        """Note the finished model in this party's ledger, and return the name under which it is noted."""
        state, training, resources = self._state, self._training, self._context.resources
        assert state is not None, "it has been asked"
        digest = hashlib.sha256(self._run.encode())
        for words in (state.own_share, *(state.peer_shares[name] for name in sorted(state.peer_shares))):
            digest.update(np.ascontiguousarray(words, "<u8").tobytes())
        model = digest.digest()[:NAME_BYTES]
        if (
            not resources.simulated
            and (training is not None or resources.score_ledger is None)
            and not self.ledger.knows_model(model)
        ):
            if training is None:
                self.ledger.record_model(model, state.iterations, [])
            else:
                data, rows = training.data, training.data.schedule.batch_order
                X = data.remote_rows(rows, raw=True) if data.is_remote else InputRows(TrainingData.raw, data, rows)
                stretches = (rows[at : at + INPUT_BLOCK_ROWS] for at in range(0, len(rows), INPUT_BLOCK_ROWS))
                ids = chain.from_iterable(map(data.ids, stretches))
                self.ledger.record_model(model, state.iterations, ids, X)
        return model

    def _asked(self, rows: RowSlices, asked: RowsToScore | None, block: slice, X: Floats) -> RowsToScore:
        """Ids and columns of a block. Rows of the training's table have theirs, others bring them or are new here."""
        if asked is not None and self._context.resources.score_ledger is not None and not self._sizes["named"]:
            raise ConfigError(
                f"{self._context.me}: a model of rows with ids was expected, this one's had none, so nobody can tell "
                "them "
                "from new ones; align the tables by ids, and train again"
            )
        if asked is not None:
            barred = None if asked.barred is None else asked.barred[block]
            return RowsToScore(asked.ids[block], asked.raw[block], barred)
        if isinstance(rows, ScaledRows) and self._training is not None:
            of = rows.rows[block]
            return RowsToScore(self._training.data.ids(of), self._training.data.raw(of))
        if self._context.resources.score_ledger is not None:
            raise ConfigError(f"{self._context.me}: rows with ids were expected, as each is scored once; bring ids")
        return RowsToScore([b"new %d" % place for place in range(block.start, block.stop)], X)
