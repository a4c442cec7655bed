"""One party of a training on secret shares: offline phase, iterations, measurements, opened weights and scores.

Every party has a share of its own weights; the two share holders, the active party (with labels) and its partner, also
have shares of all other weights. Preprocessing is random material that is generated for a chunk of epochs at a time, in
the offline phase. A measurement (an evaluation of the model) opens, that is discloses to the active party, one sum of
losses; that of the final model also opens pairs of a rounded score and a label in random order. After a number of
epochs, the parties count the model outputs outside the lookup table's range, for which training gets wrong residuals. A
rollback returns the training to the model of an earlier iteration. A party's score ledger records the rows that were
trained on and the scores that were disclosed. A state is what a party stores of a training, to resume it or to predict.
Workers are processes (Dask) that store a party's rows. Reason codes name the columns that affect a score most.
"""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import cast

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
from securevfl.errors import ConfigError, DataNotice, LeakageError
from securevfl.families.participant import Participant, Round
from securevfl.families.score_results import Measurement
from securevfl.families.shares.chunk_division import counts_rows_after, split_chunks
from securevfl.families.shares.chunk_pipeline import ChunkPipeline
from securevfl.families.shares.shares_estimates import record_bytes
from securevfl.families.shares.shares_facts import SharesFacts
from securevfl.families.shares.shares_inputs import INPUTS_FILE, InputRows, fitted_positions, read_inputs, remote_inputs
from securevfl.families.shares.shares_job import SharesJob, takes_scalar_steps
from securevfl.families.shares.shares_measures import Measurements, loss_has_risen
from securevfl.families.shares.shares_plan import (
    Rollbacks,
    can_roll_back,
    penalised_iterations,
    reason_code_bits,
    scalar_step,
    weight_levels,
)
from securevfl.families.state import State
from securevfl.families.training_data import ScaledRows, TrainingData
from securevfl.models.inputs import FittingData, IdentityInputs, Inputs, InputShape, inputs_at, private_stream
from securevfl.models.loss import Loss
from securevfl.models.pair_components import Components, PairComponents, component_count
from securevfl.models.rounding_error import SLOPE_STEP
from securevfl.optim.block_descent import TOLERATED_SHARE, BlockDescent, iterations_for, rounded_iterations
from securevfl.optim.curvature import preconditioner_of_rows
from securevfl.protocols.joint_prediction import RowsToScore, ScoreResult
from securevfl.protocols.observations import IterationStarted
from securevfl.protocols.party_context import PartyContext
from securevfl.protocols.score_ledger.row_ledger import ROW_REFUSED, SELF, ScoreLedger
from securevfl.protocols.score_ledger.score_limits import SCORE_BIT_BUDGET
from securevfl.protocols.shares import opened_weights
from securevfl.protocols.shares.chunk_agreement import agree_on_chunk, wait_for_all
from securevfl.protocols.shares.column_blocks import ColumnBlocks, LocalColumns
from securevfl.protocols.shares.disk_store import DiskStore
from securevfl.protocols.shares.fixed_point import FixedPointEncoding
from securevfl.protocols.shares.iteration import FeatureParty, LabelParty, PartnerParty, SharedState, TrainingRole
from securevfl.protocols.shares.offline_phase import OfflinePhase
from securevfl.protocols.shares.opened_scores import ScoringParams, ScoringSession
from securevfl.protocols.shares.pair_columns import PairColumns, share_products
from securevfl.protocols.shares.pair_sums import ColumnSource, ColumnsWithPairs, PairSums
from securevfl.protocols.shares.pair_weights import PairShares
from securevfl.protocols.shares.preprocessing_store import NAME_BYTES, MemoryStore, PreprocessingStore
from securevfl.protocols.shares.quantizer import Quantizer
from securevfl.protocols.shares.remote_columns import RemoteColumns
from securevfl.protocols.shares.residual_tables import CachedTables, ResidualTables
from securevfl.protocols.shares.share_schemes import SHARE_SCHEMES
from securevfl.protocols.shares.shares_options import MIN_SCORE_BITS
from securevfl.protocols.shares.shares_params import RowBlock, SharesParams
from securevfl.protocols.shares.shares_session import SharesSession
from securevfl.runtime import eventlog
from securevfl.runtime.background_task import BackgroundTask
from securevfl.runtime.costs import Stage
from securevfl.runtime.worker_backend import RemotePart

SCORE_BLOCK_ROWS = 16_384  # number of rows that are scored at a time
INPUT_BLOCK_ROWS = 4096  # number of rows whose inputs are computed at a time
INPUT_KEY_BYTES = 32
IMPORTANCE_ROWS = 512  # number of training rows over which column importance is averaged
LARGE_TABLE_NUMBERS = 1 << 18  # for tables with more values than this, freed memory is returned to the system
_PREPARED_SHARE = 0.9  # `precompute` fills this share of a store at most, because `record_bytes` leaves out some data
_ROLLBACK_REASON = (
    "the loss increased, because steps longer than the safe step are too long for these columns. The next steps are "
    "shorter"
)


def _model_name(shares: SharedState, run: str) -> bytes:
    """Return the name of a model in this party's score ledger: a digest of this party's shares of the weights."""
    digest = hashlib.sha256(run.encode())
    pairs = () if shares.pairs is None else (shares.pairs.opened, shares.pairs.masks)
    for words in (shares.own_share, *(shares.peer_shares[name] for name in sorted(shares.peer_shares)), *pairs):
        digest.update(np.ascontiguousarray(words, "<u8").tobytes())
    return digest.digest()[:NAME_BYTES]


def count_trained_rows(state: State, score_ledger: ScoreLedger, ids: Iterable[bytes]) -> int:
    """Return how many of these rows the model was trained on, according to the party's score ledger.

    Args:
        state: the party's state of the model.
        score_ledger: the party's record of trained and scored rows.
        ids: digests of the ids.

    Returns:
        The number of rows.
    """
    shares = _restore_shares(state)
    return 0 if shares is None else score_ledger.count_trained(_model_name(shares, state["run"]), ids)


def _restore_shares(state: State) -> SharedState | None:
    """Return the shares of weights in a stored state; None if it contains none."""
    if "own" not in state:
        return None
    pairs = None if "pairs" not in state else PairShares(state["pairs"]["opened"], state["pairs"]["masks"])
    return SharedState(state["visits"], state["own"], state["others"], pairs)


def _no_data() -> FittingData:
    raise AssertionError("the state of a model contains its inputs")


@dataclass
class _TrainingResources:
    """The objects that a participant needs while it trains."""

    data: TrainingData
    offline: OfflinePhase
    role: TrainingRole
    iterations: list[Iteration]
    batch_rows: tuple[int, ...]

    def release_memory(self) -> None:
        """Return freed memory to the system. For a small table that costs more time than it is worth."""
        if self.data.rows * self.data.columns > LARGE_TABLE_NUMBERS:
            release_freed_memory()


class SharesParticipant(Participant):
    """One party's shares: of its own weights and, at a share holder, of every other party's weights.

    Args:
        job: the options of the training, on which all parties agree (`securevfl.job.Job`).
        context: the party's channel to the others, the roles of all parties, and the meter of its costs.
        columns: number of columns of this party.
        state: the stored state of a training to resume or of a model to predict with; None to start a training.

    Raises:
        ConfigError: if the state comes from a training with another number of parties.
    """

    def __init__(self, job: SharesJob, context: PartyContext, columns: int, state: State | None) -> None:
        self._job, self._context = job, context
        self._model, self._options = job.model, job.protocol.shares
        self._active, self._partner = context.me == context.active, context.roles.only(PARTNER)
        stored = State() if state is None else state
        self._facts: SharesFacts | None = None
        self._state = _restore_shares(stored)
        self._run: str = stored.get("run", context.resources.run)
        self._training: _TrainingResources | None = None
        self._recording: BackgroundTask[bytes] | None = None  # writes the finished model to the ledger
        self._scoring: ScoringSession | None = None
        self._weights: Floats | None = stored.get("theta")
        self._statements: list[str] = []
        self._scored_blocks = 0
        self._inputs: Inputs | None = None
        self._components = PairComponents.read(stored["components"]) if "components" in stored else None
        self.start: Floats | None = None  # the intercepts from which the training starts, at the party with labels
        self._importance = {"importance": stored["importance"]} if "importance" in stored else {}
        if stored.get("sizes"):
            self._facts = SharesFacts.restore(job, stored["sizes"], len(context.parties))
            self._inputs = self._model.inputs(self._input_shape(columns, 0), stored.get("inputs"), _no_data)
            if len(self._facts.columns) != len(context.parties):
                raise ConfigError(
                    f"{context.me}: the model was trained with other parties than those of this run",
                    "run the command with the parties of the training",
                    code="SVFL-MODEL-MISMATCH",
                )

    @property
    def facts(self) -> SharesFacts:
        """The facts of the training; available when it has begun."""
        assert self._facts is not None, "the training has begun"
        return self._facts

    @property
    def notes(self) -> Sequence[str]:
        """Statements about the training, such as that it has too few iterations for a rare class."""
        return self._statements

    @property
    def max_bits_per_row(self) -> float:
        """Maximum number of bits about a new row that scores and reason codes may disclose."""
        options = self._options
        if "scores" in self._job.accepts or options.scores == "exact" or self._context.resources.simulated:
            return float("inf")
        return SCORE_BIT_BUDGET * self.facts.information_bits

    @property
    def _max_pair_bits(self) -> float | None:
        """Maximum number of bits that scores may disclose about all rows of this party, if the model has pairs."""
        facts, context = self.facts, self._context
        if facts.components is None or context.me not in (context.active, self._partner):
            return None
        return self.max_bits_per_row * facts.trained_rows

    @property
    def _requester(self) -> str:
        """The party that receives the scores of new rows."""
        return self._options.scores_to or self._context.active

    @property
    def exchanges(self) -> int:
        """Number of finished iterations."""
        return 0 if self._state is None else self._state.iterations

    @property
    def model_iterations(self) -> int:
        """Number of iterations of the current model: fewer than the finished ones right after a rollback."""
        return dict(self.rollbacks).get(self.exchanges, self.exchanges)

    def train(self, data: TrainingData, start: int = 0) -> Generator[Round]:
        """Train one chunk of epochs after the other, and yield after every iteration."""
        with single_threaded_blas():
            self._measurements.check(data, start)
            training = self._begin(data)
            training.release_memory()  # the memory with which the table was read is not needed any more
            try:
                while start < len(training.iterations):
                    yield from self._train_until_rollback(training, start)
                    start = self.exchanges
            # this exception means that the training stops early, so the remaining preprocessing is not needed
            except GeneratorExit:
                training.offline.drop_from(0)
                raise
            finally:
                training.offline.store.close()

    def model_state(self) -> State:
        """Return the shares, the facts and, if they were opened, the weights, once the ledger contains the model."""
        if self._recording is not None:
            self._recording.join()
        state = self._stored_state(with_rows=False)
        return state if self._weights is None else State(state, theta=self._weights, **self._importance)

    def resume_from(self, best: State, create: Callable[[State], Participant]) -> Participant:
        """Return this participant with the shares of an earlier model; a new object would lack the training rows."""
        self._state = _restore_shares(best)
        return self

    def precompute(self, data: TrainingData) -> Generator[Round]:
        """Generate the preprocessing of every chunk on disk, unless it exists; yield after each chunk.

        Chunks that would exceed the limit of the store at the active party are left to the training. All parties leave
        out the same ones, because they depend on public sizes only.

        Args:
            data: the training data of this party.

        Yields:
            The last round of each chunk.

        Raises:
            ConfigError: if there is no folder for preprocessing.
        """
        if self._context.resources.preprocessing is None:
            raise ConfigError(
                f"{self._context.me}: preprocessing needs a folder",
                "name one with --ahead",
                code="SVFL-COMMAND-USAGE",
            )
        with single_threaded_blas():
            training = self._begin(data)
            training.release_memory()
            store, needed_bytes = training.offline.store, 0
            row_bytes = self._context.outputs * record_bytes(self.facts.plan.numbers)
            try:
                for first, chunk in split_chunks(training.iterations, 0, self._chunk_ends):
                    needed_bytes += row_bytes * sum(training.batch_rows[iteration.index] for iteration in chunk)
                    if first and needed_bytes > _PREPARED_SHARE * store.limit:
                        event = {"epochs": chunk[0].epoch, "of": self._job.epochs, "limit": store.limit}
                        eventlog.warn(self._context.me, "preprocessing limited", event)
                        break
                    self._generate_chunk(training, first, chunk)
                    yield Round(first + len(chunk), len(data.schedule), chunk[-1].epoch)
            finally:
                training.offline.store.close()

    def end_training(self) -> None:
        """Open weights to the parties that the job names, and begin to record the model in the ledger."""
        if self._training is not None:
            self._end()

    def reuse_measurement(self, rounds: int, measurement: Measurement) -> None:
        """Note a stored loss, unless a rollback may have replaced the model that it belongs to."""
        if not self.can_roll_back and rounds not in dict(self.rollbacks):
            self._measurements.reuse(rounds, measurement)

    def measure(self, loss: Loss, data: TrainingData, rounds: int, *, last: bool) -> Measurement:
        """Measure the loss of the model, or all metrics of the final model, together with the other parties."""
        if self._state is None:
            return Measurement()
        try:
            return self._measurements.measure(loss, data, self._state, rounds, last=last)
        except BaseException:
            if self._recording is not None:
                with suppress(Exception):  # the error of the measurement ends the run
                    self._recording.join()
            raise

    @cached_property
    def _measurements(self) -> Measurements:
        return Measurements(self, self._job, self._context)

    def model_outputs(self, rows: RowSlices, request: RowsToScore | None = None) -> Floats | None:
        """Return the scores of rows (m, c) at the requesting party, None at all others."""
        return self.score(rows, request).f

    def score(self, rows: RowSlices, request: RowsToScore | None = None) -> ScoreResult:
        """Score rows in blocks.

        Args:
            rows: scaled columns of this party (m, d).
            request: ids and unscaled columns of the rows; None if the rows are not new.

        Returns:
            The scores, and which rows were scored.

        Raises:
            ConfigError: if the model has not been trained.
        """
        if self._state is None:
            raise ConfigError(
                f"{self._context.me}: this party has no model yet", "train first", code="SVFL-MODEL-NOT-TRAINED"
            )
        if self._scoring is None:
            self._scoring = self._begin_scoring(min(SCORE_BLOCK_ROWS, len(rows)))
        results = []
        for start in range(0, len(rows), SCORE_BLOCK_ROWS):
            X = rows[start : start + SCORE_BLOCK_ROWS]
            block = self._rows_to_score(rows, request, slice(start, start + len(X)), X)
            assert self._inputs is not None, "a model has its inputs"
            inputs = self._inputs(X)
            scored: Floats | ColumnsWithPairs = inputs
            if self._components is not None:
                scored = ColumnsWithPairs(inputs, self._components.transform(X), self._pair_sums)
            results.append(self._scoring.block(self._scored_blocks, scored, block))
            self._scored_blocks += 1
        return results[0] if len(results) == 1 else ScoreResult.joined(results)

    def check_request(self, ids: Iterable[bytes]) -> None:
        """Check before the first block that this party's ledger permits the scores of a whole request.

        Args:
            ids: digests of the ids of all rows of the request.

        Raises:
            LeakageError: the scores of a model with pairs would exceed this party's limit.
        """
        if self._state is None or self._context.me == self._requester:
            return
        if self._max_pair_bits is None or self._max_pair_bits == float("inf"):
            return
        if not (requested := list(ids)):
            return
        if self._scoring is None:
            self._scoring = self._begin_scoring(min(SCORE_BLOCK_ROWS, len(requested)))
        self._scoring.check_request(requested)

    def _train_until_rollback(self, training: _TrainingResources, start: int) -> Generator[Round]:
        """Run the iterations from `start` on, until the last one or until the training rolls back."""
        channel, offline, total = self._context.channel, training.offline, len(training.iterations)
        rollbacks = len(self.rollbacks)

        def generate(chunk: tuple[int, list[Iteration]]) -> None:
            self._generate_chunk(training, *chunk)
            self._measurements.precompute(offline.session, training.data, chunk[0], len(chunk[1]), total)

        chunks = list(split_chunks(training.iterations, start, self._chunk_ends))

        def has_room(chunk: tuple[int, list[Iteration]]) -> bool:
            return offline.has_room([iteration.index for iteration in chunk[1]])

        with ChunkPipeline(channel, chunks, generate, has_room) as pipeline:
            for first, chunk in pipeline:
                number = self._chunk_number(training, first)
                self._measurements.enter_chunk(first)
                channel.clock.stage = Stage.TRAIN
                yield from self._train_chunk(training, number, first, chunk)
                if len(self.rollbacks) > rollbacks:
                    break
                offline.store.drop(number)
                training.release_memory()
                if counts_rows_after(self._job, chunk[-1].epoch + 1):
                    self._measurements.count_out_of_range(training.data, self._state, chunk[-1])
        # a rollback changes the step size, so preprocessing that was generated for the old step size cannot be used
        if len(self.rollbacks) > rollbacks:
            offline.drop_from(0)
            training.role.set_params(self._params_for(training.batch_rows))

    def _train_chunk(
        self, training: _TrainingResources, number: int, first: int, chunk: Sequence[Iteration]
    ) -> Iterator[Round]:
        """Run the iterations of one chunk, and yield after each; stop after a rollback."""
        channel, rollbacks = self._context.channel, len(self.rollbacks)
        channel.gate.begin_iteration(first + 1)
        channel.note(IterationStarted(chunk[0].index))
        states = training.role.train(number, len(chunk))
        for done, (iteration, self._state) in enumerate(zip(chunk, states, strict=True), first + 1):
            yield Round(done, len(training.iterations), iteration.epoch)
            if len(self.rollbacks) > rollbacks:
                return
            if done - first < len(chunk):
                channel.gate.begin_iteration(done + 1)
                channel.note(IterationStarted(chunk[done - first].index))

    def _chunk_number(self, training: _TrainingResources, first: int) -> int:
        """Return the number that identifies a chunk, from its first iteration.

        No two chunks of a session have the same number, so no two have the same keys.
        """
        return first + len(training.iterations) * len(self.rollbacks)

    @property
    def can_roll_back(self) -> bool:
        """Whether an evaluation can make the training roll back."""
        return can_roll_back(self._job, self.rollbacks)

    def should_roll_back(self, losses: Sequence[float], measurement: Measurement) -> bool:
        """Return whether the latest loss exceeds the starting model's, or the smallest earlier one by too much."""
        return loss_has_risen(losses, measurement, self._model.risen)

    def roll_back(self, best: State | None) -> None:
        """Return to an earlier model, or to the start; the next iterations use shorter steps."""
        target = 0 if best is None else best["visits"]
        self._facts = self.facts.rolled_back(self.exchanges, target)
        self._measurements.roll_back(self.exchanges, target)
        event = {"iteration": self.exchanges, "to": target, "reason": _ROLLBACK_REASON}
        eventlog.warn(self._context.me, "training rolled back", event)

    def stored_scores(self, request: RowsToScore) -> ScoreResult:
        """Return the results for these rows that this party's ledger contains, before it requests their scores."""
        ledger = self.ledger
        query = ledger.query(self._record_model(), SELF, request.ids, ledger.commitments(request.ids, request.raw))
        states, trained = ledger.row_states(query), ledger.is_trained_on(query)
        scores = np.full((len(states), self._context.outputs), np.nan)
        for row, score in enumerate(ledger.stored(query, of="score")):
            if score is not None:
                scores[row] = np.frombuffer(score, "<f8")
        changed = (states == ROW_REFUSED) & ~trained
        is_stored = ~np.isnan(scores).any(axis=1) & ~trained & ~changed
        nothing = np.zeros(len(states), np.bool_)
        return ScoreResult(scores, is_stored, nothing, trained, changed, ~nothing)

    def state(self) -> State:
        """Return the shares, the facts and the inputs of this party's rows."""
        return self._stored_state(with_rows=True)

    def _stored_state(self, *, with_rows: bool) -> State:
        """Return this party's shares and the training's facts as a state.

        Args:
            with_rows: True to add the arrays that only a resumed training needs, one entry for each training row.

        Returns:
            The state.
        """
        shares = self._state
        if shares is None:
            return State(run=self._run)
        state = State(
            own=shares.own_share,
            others=dict(shares.peer_shares),
            visits=shares.iterations,
            sizes=self.facts.plain(),
            run=self._run,
        )
        if shares.pairs is not None and self._components is not None:
            pairs = {"opened": shares.pairs.opened, "masks": shares.pairs.masks}
            state = State(state, pairs=pairs, components=self._components.state())
        inputs = {} if self._inputs is None else self._inputs.state(whole=with_rows)
        return State(state, inputs=inputs) if inputs else state

    @cached_property
    def session(self) -> SharesSession:
        """The session of encrypted products and oblivious transfers for measurements and scores."""
        numbers = self.facts.plan.numbers
        return SharesSession(self._context, self._partner, self._share_scheme(numbers), numbers)

    def _share_scheme(self, numbers: FixedPointEncoding) -> ShareScheme:
        """Return the encryption scheme of products; raise ConfigError if numpy multiplies inexactly on this machine."""
        return SHARE_SCHEMES[self._options.library](numbers.bits)

    def _begin(self, data: TrainingData) -> _TrainingResources:
        """Compute the facts and create the objects of a training."""
        context, schedule = self._context, data.schedule
        if data.is_remote and self._options.library != "own":
            raise ConfigError(
                f"{context.me}: the library {self._options.library!r} (protocol.shares.library) cannot multiply rows "
                "at workers, because it needs the keys, which workers do not have",
                "leave protocol.shares.library out, or read the table in this process with open_table",
                code="SVFL-JOB-COMBINATION",
            )
        if data.is_remote:
            data.remote_rows(schedule.batch_order)
        batches = schedule.partition(0)
        rows = len(schedule.train)
        self._facts = SharesFacts(
            self._job,
            len(context.parties),
            {name: self._model.breadth(self._input_shape(d, rows, name)) for name, d in context.columns.items()},
            max(map(len, batches)),
            schedule.batches,
            rows,
            data.has_ids,
            InformationContent.of(data.raw(schedule.sample(MAX_SAMPLE_ROWS))).bits,
            self.rollbacks,
            data.plan(),
            self._component_counts(),
            None if self._facts is None else self._facts.pair_numbers,
        )
        if self._inputs is None:
            self._inputs = self._fit_inputs(data)
        params = self._params_for(tuple(map(len, batches)))
        folder = context.resources.preprocessing
        # this locks the folder, so that no other run writes shares of pairs or preprocessing there
        store: PreprocessingStore = MemoryStore() if folder is None else DiskStore(folder)
        try:
            pairs = self._share_pairs(data, params)
        except BaseException:
            store.close()  # if a peer is lost meanwhile, the resumed session locks the folder again
            raise
        columns = self._column_blocks(data, params.encoding, batches)
        scheme = self._share_scheme(params.encoding)
        offline = OfflinePhase(
            context, params, scheme, columns.factor, store, remote=data.is_remote, base=self.session.base, pairs=pairs
        )
        role: TrainingRole
        if self._active:
            loss, numbers = self._job.loss, params.encoding

            def tables(block: RowBlock) -> ResidualTables:
                block_rows = batches[block.batch][block.start : block.stop]
                targets = data.loss_targets_by_output(block_rows, context.outputs)
                assert targets is not None, "the active party has labels"
                return ResidualTables(numbers, loss.residual, targets, loss.minimizer, smooth=loss.smooth)

            self.start = self._starting_intercepts(data)
            self._check_iterations(data, self.start)
            role = LabelParty(context, params, columns, offline, CachedTables(tables), self._state, self.start)
        elif context.me == self._partner:
            role = PartnerParty(context, params, columns, offline, self._state)
        else:
            role = FeatureParty(context, params, columns, offline, self._state)
        self._state = role.state
        self._training = _TrainingResources(data, offline, role, list(schedule.iterations()), params.rows)
        return self._training

    def _component_counts(self) -> tuple[int, int] | None:
        """Return the numbers of components of the active party and of its partner; None for a model without pairs."""
        rank, columns = self._model.pair_rank, self._context.columns
        if not rank:
            return None
        return component_count(rank, columns[self._context.active]), component_count(rank, columns[self._partner])

    def _share_pairs(self, data: TrainingData, params: SharesParams) -> PairColumns | None:
        """Share the products of components of all training rows, if the model has pairs; return this party's shares."""
        if params.pairs is None:
            return None
        self._context.channel.clock.stage = Stage.OFFLINE
        products = self.session.products  # all parties greet each other here
        if not products.is_holder:
            return None
        schedule = data.schedule
        if self._components is None:
            self._components = PairComponents.fit(data.scaled(schedule.fitting_rows), self._model.pair_rank)
        rows = schedule.batch_order[: max(params.rows) if params.has_nested_batches else sum(params.rows)]
        components = self._components_of(data, rows)
        return share_products(self.session, params.pairs, components, self._context.resources.preprocessing)

    def _components_of(self, data: TrainingData, rows: Rows) -> Components:
        """Return this party's components (n, r) of rows of its table."""
        assert self._components is not None, "components are fitted first"
        starts = range(0, len(rows), INPUT_BLOCK_ROWS)
        blocks = (data.scaled(rows[start : start + INPUT_BLOCK_ROWS]) for start in starts)
        return np.concatenate([self._components.transform(X) for X in blocks])

    @cached_property
    def _pair_sums(self) -> PairSums:
        """The forward sums of pairs in measurements and scores."""
        pairs = self.params.pairs
        assert pairs is not None, "only models with pairs have such sums"
        return PairSums(self.session, pairs)

    def _check_iterations(self, data: TrainingData, start: Floats | None) -> None:
        """Issue a notice if the job has too few iterations to reach the optimum.

        The smaller the mean curvature of the loss, the more iterations are needed. It is small if a class is rare, or
        if the weights of rows differ much.

        Args:
            data: the training data of the active party.
            start: the intercepts from which the training starts.
        """
        loss, outputs, rows = self._job.loss, self._context.outputs, data.schedule.train
        targets = data.loss_targets_by_output(rows, outputs)
        if start is None or targets is None or not loss.curvature or self._model.loss.reports_standard_errors:
            return
        f = np.tile(start, len(rows))[:, None]
        slopes = loss.residual(f + SLOPE_STEP, targets) - loss.residual(f - SLOPE_STEP, targets)
        share = float(slopes.reshape(len(rows), outputs).mean(axis=0).min()) / (2 * SLOPE_STEP * loss.curvature)
        needed = iterations_for(share, len(rows))
        if takes_scalar_steps(self._job):
            self._check_penalised_iterations()
            return
        if self._job.epochs * self.facts.batches < TOLERATED_SHARE * needed:
            flat = "the loss has little curvature for most rows"
            cause = "the rarest class has few rows" if self._model.loss.classifies else flat
            cause += "" if data.weights is None else ", or weights of rows differ much"
            statement = (
                f"{cause}, so after {self._job.epochs} iterations the coefficients may be several standard errors away "
                f"from the optimum. Set epochs to {rounded_iterations(needed)} or more."
            )
            self._statements.append(statement)
            warnings.warn(f"party {self._context.me}: {statement}", DataNotice, stacklevel=2)

    def _check_penalised_iterations(self) -> None:
        """Issue a notice if the job has too few iterations to reach the optimum, because its l2 is small."""
        needed, iterations = penalised_iterations(self._job, self.facts.inputs), self._job.epochs * self.facts.batches
        if iterations < TOLERATED_SHARE * needed:
            statement = (
                f"l2 = {self._job.model.l2:g} is small for {self.facts.inputs} columns, so {iterations} iterations may "
                f"end before the optimum. Set epochs to {rounded_iterations(needed)} or more, or l2 to 0."
            )
            self._statements.append(statement)
            warnings.warn(f"party {self._context.me}: {statement}", DataNotice, stacklevel=2)

    def _starting_intercepts(self, data: TrainingData) -> Floats | None:
        """Return the intercepts (c,) from which block descent starts, at the party with labels; None for 0.

        Rare classes would otherwise need most iterations for their intercept alone.
        """
        if not (isinstance(self._inputs, IdentityInputs) and isinstance(self._job.optimizer, BlockDescent)):
            return None
        rows = data.schedule.train
        assert data.targets is not None, "the active party has labels"
        weights = None if data.weights is None else data.weights[rows]
        return self._model.loss.constant_outputs(data.targets[rows], weights)

    def _column_blocks(self, data: TrainingData, numbers: FixedPointEncoding, batches: Sequence[Rows]) -> ColumnBlocks:
        """Return this party's columns in all batches, in this process or at the workers that store them."""
        rate, P = self.facts.plan.rate, self._preconditioner(data)
        if data.is_remote:
            return RemoteColumns(
                numbers, rate, lambda batch: self._remote_inputs(data, batches[batch]), self._context.meter, P
            )
        rows = lambda batch: InputRows(self._inputs_of_rows, data, batches[batch])  # noqa: E731
        return LocalColumns(numbers, rate, rows, P, self._context.resources.preprocessing)

    def inputs_of(self, data: TrainingData, rows: Rows) -> ColumnSource:
        """Return this party's model inputs for rows of its table; rows at workers stay there."""
        columns: RowSlices | RemoteColumns
        if data.is_remote:
            plan, inputs = self.facts.plan, self._remote_inputs(data, rows)
            columns = RemoteColumns(plan.numbers, plan.rate, lambda _: inputs, self._context.meter)
        else:
            columns = InputRows(self._inputs_of_rows, data, rows)
        if self._components is None:
            return columns
        return ColumnsWithPairs(columns, self._components_of(data, rows), self._pair_sums)

    def _remote_inputs(
        self, data: TrainingData, rows: Rows, roots: Floats | None = None, clip: float = np.inf
    ) -> ChunkedMatrix:
        """Return this party's model inputs (n, width) for rows that are stored at worker processes.

        Args:
            data: the training data of this party.
            rows: positions of the rows.
            roots: square roots of the rows' weights (n,), by which inputs are multiplied; None for equal weights.
            clip: inputs are clipped to [-clip, clip].

        Returns:
            The inputs, which stay at the workers.
        """
        assert self._inputs is not None, "inputs are fitted first"
        width = self.facts.columns[self._context.me]
        positions, parts = fitted_positions(data, rows), list[RemotePart]()
        for part in data.remote_rows(rows).parts:
            assert isinstance(part, RemotePart), "the rows are stored at workers"
            part_rows = slice(part.start, part.stop)
            part_roots = None if roots is None else roots[part_rows]
            derived = part.derive(remote_inputs, self._inputs, positions[part_rows], part_roots, clip, width)
            parts.append(RemotePart(part.start, part.stop - part.start, derived))
        return ChunkedMatrix(parts, width)

    def _generate_chunk(self, training: _TrainingResources, first: int, chunk: Sequence[Iteration]) -> None:
        """Generate the preprocessing of a chunk, unless all parties already have it."""
        offline, number = training.offline, self._chunk_number(training, first)
        self._context.channel.clock.stage = Stage.OFFLINE
        # the background thread that generates chunks and the measurements both use this session, so create it first
        if offline.is_holder:
            self.session.base.establish()
        agreement = agree_on_chunk(offline.greet(), offline, number, len(chunk))
        if agreement.usable:
            offline.skip_chunk(number)
        else:
            batches = [iteration.index for iteration in chunk]
            offline.generate(number, batches, delays_transfers=not agreement.on_disk)

    def _preconditioner(self, data: TrainingData) -> Floats | None:
        """Return P (d, d), which multiplies this party's gradients, if the optimizer has one."""
        optimizer, loss = self._job.optimizer, self._job.loss
        if not isinstance(optimizer, BlockDescent):
            return None
        d, rows, clip = self.facts.columns[self._context.me], data.schedule.batch_order, self._options.clip
        if takes_scalar_steps(self._job):
            return scalar_step(self._job, inputs=self.facts.inputs, parties=self.facts.parties) * np.eye(d)
        roots = None if data.weights is None else np.sqrt(data.weights[rows])
        chunks: Iterable[Floats]
        if data.is_remote:
            remote = self._remote_inputs(data, rows, roots, clip)
            chunks = [cast(Floats, remote)]
        else:
            blocks = (slice(start, start + INPUT_BLOCK_ROWS) for start in range(0, len(rows), INPUT_BLOCK_ROWS))
            inputs = ((self._inputs_of_rows(data, rows[block]).clip(-clip, clip), block) for block in blocks)
            chunks = (X if roots is None else X * roots[block][:, None] for X, block in inputs)
        if data.weights is not None:
            # the party with labels knows the weight of each row; the others know only an upper bound of the weights
            loss = self._job.model.loss
        ridge = self._model.ridge_of(len(rows))
        penalty = np.full((d, 1), (optimizer.ridge if ridge is None else ridge) + self._job.model.l2)
        assert self._inputs is not None, "inputs are fitted first"
        constant = self._inputs.constant(d)
        P = preconditioner_of_rows(chunks, lambda X: X.T @ X, loss, penalty, who=self._context.me, constant=constant)
        if data.is_remote:
            self._context.meter.add_worker_seconds(remote.makespan())
        return P

    def _inputs_of_rows(self, data: TrainingData, rows: Rows) -> Floats:
        """Compute this party's model inputs (m, width) for rows of its table."""
        assert self._inputs is not None, "inputs are fitted first"
        return inputs_at(self._inputs, data.scaled(rows), fitted_positions(data, rows))

    def _fit_inputs(self, data: TrainingData) -> Inputs:
        """Return this party's model inputs: those of the preprocessing on disk if it exists, or newly fitted ones."""
        rows, folder = data.schedule.fitting_rows, self._context.resources.preprocessing
        file = None if folder is None else folder / INPUTS_FILE
        stored = None if file is None or not file.exists() else read_inputs(file)

        def fitting_data() -> FittingData:
            targets = None if data.targets is None else data.targets[rows]
            weights = None if data.weights is None else data.weights[rows]
            by_ids = data.schedule.by_ids
            order, X = np.searchsorted(rows, by_ids[np.isin(by_ids, rows)]), data.scaled(rows)
            ordered = [values[order] for values in (X, targets, weights) if values is not None]
            key = private_stream(f"inputs of {self._context.me} {self._job.seed}", *ordered)(INPUT_KEY_BYTES)
            return FittingData(self._context.me, X, data.sources, targets, weights, key, order)

        shape = self._input_shape(data.columns, len(data.schedule.train))
        inputs = self._model.inputs(shape, stored, fitting_data)
        state = inputs.state(whole=True)
        if file is not None and stored is None and state:
            write_checked_json(file, State(state).plain())
        return inputs

    def _input_shape(self, columns: int, rows: int, name: str | None = None) -> InputShape:
        """Return the public sizes that determine the number of a party's model inputs; of this party by default."""
        context, party = self._context, name or self._context.me
        opened = party in self._options.open_weights
        return InputShape(party == context.active, columns, context.outputs, len(context.parties), rows, opened)

    @property
    def _chunk_ends(self) -> tuple[int, ...]:
        return self.facts.chunk_ends(self._context.outputs)

    @property
    def rollbacks(self) -> Rollbacks:
        """For each rollback so far, the iteration after which it took place, and that whose model was restored."""
        return () if self._facts is None else self._facts.rollbacks

    @property
    def params(self) -> SharesParams:
        """The parameters of the training for scores and measurements: they contain only one batch, the largest one."""
        return self._params_for((self.facts.rows,))

    def _params_for(self, batch_rows: tuple[int, ...]) -> SharesParams:
        context = self._context
        return self.facts.params(batch_rows, partner=self._partner, active=context.active, outputs=context.outputs)

    def _end(self) -> None:
        """End the training: open weights to the parties that the job names, and record the model in the ledger.

        The record of many rows takes long, so a thread writes it during the last evaluation. A ledger that cannot be
        written ends the run before that.
        """
        shares = self._state
        assert shares is not None, "the model has been trained"
        params, learners = self.params, self._options.open_weights
        levels = weight_levels(self._job, self.facts.trained_rows)
        permit = opened_weights.record_weights(self._context, params, levels, learners)
        wait_for_all(self._context)
        self._state = shares = opened_weights.open_weights(self._context, params, shares, levels, permit, learners)
        if not self._context.resources.simulated:
            self.ledger.check_writable()
            self._recording = BackgroundTask(self._context.channel, self._store_model, "ledger")
        if self._context.me in learners:
            theta = params.rule_of(self._context.me).result(shares.own_share, shares.iterations)
            self._weights = params.encoding.decode_weights(theta)
        if self._weights is not None and self._training is not None and self._inputs is not None:
            data = self._training.data
            importance = self._inputs.importance(self._weights, data.scaled(data.schedule.sample(IMPORTANCE_ROWS)))
            self._importance = {"importance": importance} if importance else {}

    def _begin_scoring(self, rows: int) -> ScoringSession:
        """Create the session in which rows are scored, in blocks of `rows` rows."""
        shares, resources = self._state, self._context.resources
        assert shares is not None, "the model has been trained"
        options = self._options
        if options.scores == "none" and not resources.simulated:
            raise LeakageError(
                f"{self._context.me}: the job of this model permits no scores of new rows",
                'agree on scores = "levels" and train again',
                code="SVFL-LEAK-NOT-ACCEPTED",
            )
        exact = resources.simulated or options.scores == "exact"
        spacing, requester = self._job.loss.spacing, self._requester
        params, numbers = self.params, self.facts.plan.numbers
        levels = Quantizer.exact(numbers) if exact else options.score_quantizer(spacing).within(numbers)
        code_bits = reason_code_bits(self._job, self._context.me, params.columns[self._context.me])
        bits_per_score = (self.max_bits_per_row - code_bits) / self._context.outputs
        rounding = None if exact else options.permitted_quantizer(spacing, bits_per_score).within(numbers)
        scoring = ScoringParams(
            self._record_model(),
            None if resources.simulated else self.ledger,
            levels,
            requester,
            self.max_bits_per_row,
            rounding,
            resources.charge_scores,
            0 if exact or options.score_bits is not None else max(0, levels.bits - MIN_SCORE_BITS),
            self._max_pair_bits,
        )
        return ScoringSession(
            self.session.products,
            params,
            shares,
            scoring,
            top_transfers=None if exact else lambda: self.session.top_transfers,
            number=shares.iterations,
            rows=rows,
        )

    @cached_property
    def ledger(self) -> ScoreLedger:
        """This party's score ledger."""
        return ScoreLedger(self._context.resources.account)

    def _record_model(self) -> bytes:
        """Record the finished model in this party's score ledger, and return its name there, a digest."""
        if self._recording is not None:
            self._recording.join()
        return self._store_model()

    def _store_model(self) -> bytes:
        """Write the model to the score ledger unless it contains it; return its name there."""
        shares, training, resources = self._state, self._training, self._context.resources
        assert shares is not None, "the model has been trained"
        model = _model_name(shares, self._run)
        can_record = not resources.simulated and (training is not None or resources.account is None)
        if can_record and not self.ledger.knows_model(model):
            if training is None:
                self.ledger.record_model(model, shares.iterations, [])
            else:
                data, rows = training.data, training.data.schedule.batch_order
                X = data.remote_rows(rows, raw=True) if data.is_remote else InputRows(TrainingData.raw, data, rows)
                blocks = (rows[start : start + INPUT_BLOCK_ROWS] for start in range(0, len(rows), INPUT_BLOCK_ROWS))
                ids = chain.from_iterable(map(data.ids, blocks))
                self.ledger.record_model(model, shares.iterations, ids, X)
        return model

    def _rows_to_score(self, rows: RowSlices, request: RowsToScore | None, block: slice, X: Floats) -> RowsToScore:
        """Return ids and columns of a block of rows.

        Rows of the training table have the table's ids. A request for scores contains ids. All other rows occur only in
        simulations, and get generated ids.
        """
        score_ledger = self._context.resources.account
        if request is not None and score_ledger is not None and not self.facts.has_ids:
            raise ConfigError(
                f"{self._context.me}: cannot score new rows: the model was trained on a table without ids, so training "
                "rows cannot be recognised",
                "align the tables by id and train again",
                code="SVFL-ID-MISSING",
            )
        if request is not None:
            barred = None if request.barred is None else request.barred[block]
            return RowsToScore(request.ids[block], request.raw[block], barred)
        if isinstance(rows, ScaledRows) and self._training is not None:
            table_rows = rows.rows[block]
            return RowsToScore(self._training.data.ids(table_rows), self._training.data.raw(table_rows))
        if score_ledger is not None:
            raise ConfigError(
                f"{self._context.me}: the rows have no ids, and each row is scored only once",
                "add ids to the rows",
                code="SVFL-ID-MISSING",
            )
        return RowsToScore([b"new %d" % position for position in range(block.start, block.stop)], X)
