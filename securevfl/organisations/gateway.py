"""The gateway of the requesting party: it collects the requests of many clients into blocks and requests their scores.

Clients, which are applications of the requesting party, request scores of rows. The servers are the other parties; all
parties together compute the scores (`securevfl.organisations.scoring`). Rows that arrive within a few milliseconds are
requested in one block. Requests wait in a queue of limited length. If it is full or the servers cannot be reached,
clients are asked to retry. `securevfl.organisations.http_api` is the HTTP interface.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from securevfl.base.arrays import Floats
from securevfl.crypto.identifiers import canonical_id
from securevfl.data.column_types import KIND_NAMES, ColumnType
from securevfl.data.composite_ids import IdColumns, requested_id
from securevfl.data.validation import name_list
from securevfl.disclosure.ledger import DisclosureLedger
from securevfl.errors import PeerStopped, SecureVFLError, TableError
from securevfl.organisations.gateway_rows import RequestedRow, RowScore
from securevfl.organisations.peer_session import run_session
from securevfl.organisations.peer_settings import PeerSettings
from securevfl.organisations.preconditions import SessionNeeds, check_preconditions
from securevfl.organisations.predict import check_parties_of
from securevfl.organisations.prediction import prediction_of
from securevfl.organisations.scoring import ScoreClient, scoring_handshake, scoring_settings
from securevfl.runtime import eventlog
from securevfl.runtime.channel import Channel
from securevfl.training.model_part import ModelPart
from securevfl.training.new_rows import IndexedRows

_KEEPALIVE_SECONDS = 10.0  # seconds after which an idle session sends a message, so that the servers do not end it
_END_SECONDS = 5.0  # seconds for the sessions to end
_POLL_SECONDS = 0.05
_RECONNECT_PAUSE = 1.0  # seconds between attempts to connect to the servers
_AWAY = "the servers (the other parties) cannot be reached"


class ServiceUnavailable(SecureVFLError):
    """The gateway cannot process a request at the moment; the client should retry."""

    default_code = "SVFL-PEER-BUSY"


@dataclass
class _QueuedRow:
    """A row whose score a client has requested and waits for.

    Attributes:
        key: the id in the form in which all parties compare ids.
        row_id: the id as the client writes it.
        X: the features (d,).
        answer: a future that will contain the answer.
    """

    key: bytes
    row_id: Any
    X: Floats
    answer: Future[RowScore]

    def settle(self, result: RowScore | ServiceUnavailable) -> None:
        """Set the answer to this row or its error, unless it already has one or its client has stopped waiting."""
        if self.answer.done() or not self.answer.set_running_or_notify_cancel():
            return
        if isinstance(result, ServiceUnavailable):
            self.answer.set_exception(result)
        else:
            self.answer.set_result(result)


class Gateway:
    """Requests scores from the servers, for any number of threads, in blocks over several sessions.

    Args:
        part: this party's part of the model.
        rows: rows that clients can request by id.
        settings: addresses, certificates and time limits.
        ledger: this party's disclosure ledger, as in `join`.
        executor: worker processes for the elliptic-curve operations.
        window: seconds that a block waits for more rows.
        max_waiting_rows: maximum number of waiting rows.
        max_sessions: number of sessions with the servers; each requests one block at a time.

    Attributes:
        blocks: number of blocks that the servers have answered.
        scored: number of rows with a score.
        unscored: number of rows that the servers have answered without a score.
    """

    def __init__(
        self,
        part: ModelPart,
        rows: IndexedRows,
        settings: PeerSettings,
        *,
        ledger: DisclosureLedger | str | Path | None = None,
        executor: Executor | None = None,
        window: float = 0.004,
        max_waiting_rows: int = 4096,
        max_sessions: int = 4,
    ) -> None:
        check_parties_of(part, settings.peers)
        self._part, self._settings, self._executor, self._window = part, settings, executor, window
        self._ledger = DisclosureLedger.open(part.name, ledger)
        check_preconditions(self._ledger, SessionNeeds(rows=len(rows.ids)))
        self._X, self._key = rows.X, rows.key
        self._row_of = {canonical_id(row_id): row for row, row_id in enumerate(rows.ids)}
        self._queue: queue.Queue[_QueuedRow | None] = queue.Queue(max_waiting_rows)
        self._held_over: list[_QueuedRow] = []
        self._entering = threading.Lock()
        self._gathering = threading.Lock()  # only the session with this lock takes rows from the queue
        self._counting = threading.Lock()
        self._stopping = False
        self._connected = set[int]()
        self.blocks = 0
        self.scored = self.unscored = self._unanswered = 0
        several = bool(scoring_settings(settings).session_id)
        self._threads = [
            threading.Thread(target=self._run, args=(number,), name=f"gateway {number}", daemon=True)
            for number in range(max_sessions if several else 1)
        ]

    def start(self) -> None:
        """Start the threads that hold sessions with the servers."""
        for thread in self._threads:
            thread.start()

    @property
    def sessions(self) -> int:
        """Number of sessions with the servers."""
        return len(self._connected)

    @property
    def max_sessions(self) -> int:
        """Maximum number of sessions with the servers."""
        return len(self._threads)

    @property
    def ledger(self) -> DisclosureLedger:
        """The ledger of this party."""
        return self._ledger

    @property
    def connected(self) -> bool:
        """Whether the servers are connected."""
        return bool(self._connected)

    def stop(self, timeout: float = 30.0) -> None:
        """Answer the waiting rows and end the sessions.

        Args:
            timeout: maximum number of seconds for the waiting rows. The sessions then have `_END_SECONDS` to end. If
                the servers cannot be reached, this function waits for neither.
        """
        self._stopping = True
        self._queue.put(None)
        self._wait_while(lambda: bool(self._connected and self._unanswered), timeout)
        self._wait_while(lambda: bool(self._connected), _END_SECONDS)

    @staticmethod
    def _wait_while(condition: Callable[[], bool], timeout: float) -> None:
        deadline = time.monotonic() + timeout
        while condition() and time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS)

    def _count_answered(self, answer: Future[RowScore]) -> None:
        with self._counting:
            self._unanswered -= 1

    def ask(self, rows: Sequence[RequestedRow]) -> list[RowScore | Future[RowScore]]:
        """Request scores.

        Args:
            rows: the rows, with the application's ids and values.

        Returns:
            For each row its answer, or a future that will contain the answer.

        Raises:
            ServiceUnavailable: too many rows are waiting, or the servers cannot be reached.
            IdError: an id is invalid.
            TableError: the columns of a row are invalid.
        """
        waiting: list[_QueuedRow] = []
        answers: list[RowScore | Future[RowScore]] = []
        prepared = self._prepare({number: row.columns for number, row in enumerate(rows, 1) if row.columns is not None})
        for row in rows:
            key = canonical_id(requested_id(self._key, row.id))
            if row.columns is not None:
                X = next(prepared)
            elif key in self._row_of:
                X = self._X[self._row_of[key]]
            else:
                answers.append(_row_score(row.id, state="no_columns"))
                continue
            waiting.append(_QueuedRow(key, row.id, X, Future()))
            answers.append(waiting[-1].answer)
        if waiting and (not self.connected or self._stopping):
            raise ServiceUnavailable(_AWAY)
        with self._entering:  # queue all rows of the request or none, so that a refused request has no scored rows
            if self._queue.maxsize - self._queue.qsize() <= len(waiting):
                raise ServiceUnavailable("too many rows are waiting")
            with self._counting:
                self._unanswered += len(waiting)
            for queued in waiting:
                queued.answer.add_done_callback(self._count_answered)
                self._queue.put_nowait(queued)
        return answers

    def _prepare(self, rows: Mapping[int, Any]) -> Iterator[Floats]:
        """Check the columns that a client has sent, and compute the features (d,) of each row.

        Args:
            rows: the columns of each row by its number in the request; they may be of any type.

        Returns:
            The features of the rows, in the same order.

        Raises:
            TableError: a column is missing or unknown, or has a value of another type.
        """
        names = self._part.columns
        for number, columns in rows.items():
            present = columns if isinstance(columns, Mapping) else {}
            missing = [name for name in names if name not in present]
            if missing or len(present) != len(names):
                surplus = [str(name) for name in present if name not in names]
                problems = [f"lacks the columns {name_list(missing)}"] if missing else []
                problems += [f"has columns that the model lacks: {name_list(surplus)}"] if surplus else []
                raise TableError(
                    f"row {number} {', and '.join(problems)}",
                    f"send exactly the columns {', '.join(names)}",
                    code="SVFL-TABLE-COLUMNS",
                    row=number,
                )
        if not rows:
            return iter(())
        try:
            return iter(self._features(list(rows.values())))
        except TableError:
            for number, columns in rows.items():
                self._check_row(number, columns)
            raise

    def _features(self, rows: Sequence[Mapping[str, Any]]) -> Floats:
        return self._part.table({name: [columns[name] for columns in rows] for name in self._part.columns})

    def _check_row(self, number: int, columns: Mapping[str, Any]) -> None:
        """Raise an error if this row of the request cannot be used; the error names the row and the column."""
        try:
            self._features([columns])
        except TableError as error:
            column = error.fields.get("column")
            if error.code != "SVFL-TABLE-TYPE" or column not in self.types:
                raise TableError(
                    f"row {number}: {error.problem}", error.remedy, code=error.code, **error.fields | {"row": number}
                ) from None
            raise TableError(
                f"row {number}: the value of column {column!r} does not fit {KIND_NAMES[self.types[str(column)].kind]}",
                "send the value as the table of the training writes it",
                code="SVFL-TABLE-TYPE",
                row=number,
                column=column,
            ) from None

    @property
    def party(self) -> str:
        """The party that runs the gateway."""
        return self._part.name

    @property
    def id_columns(self) -> IdColumns | None:
        """The columns that form an id; None if the table's file has one id column, or the rows are from an array."""
        return self._key

    @property
    def types(self) -> dict[str, ColumnType]:
        """The types of the columns that applications send."""
        return self._part.preparation.types

    @property
    def waiting(self) -> int:
        """Number of requested rows that wait for a score."""
        return self._queue.qsize() + len(self._held_over)

    def _run(self, number: int) -> None:
        while not self._stopping:
            try:
                talk = partial(self._talk, number)
                settings = scoring_settings(self._settings)
                run_session(self._part.name, settings, scoring_handshake(self._part), talk, ledger=self._ledger)
            except SecureVFLError as error:
                limited = isinstance(error, PeerStopped) and error.stopped == "limit"
                event = "request refused" if limited else "servers unreachable"
                eventlog.warn(self._part.name, event, {"reason": str(error)})
            except BaseException as error:  # this error ends the thread, and nobody else would report it
                eventlog.emit(self._part.name, "scoring thread failed", {"reason": type(error).__name__}, logging.ERROR)
            finally:
                self._connected.discard(number)
                if not self._connected:
                    self._refuse_waiting()
            if not self._stopping:
                time.sleep(_RECONNECT_PAUSE)

    def _talk(self, number: int, channel: Channel) -> None:
        client = ScoreClient(self._part, channel, self._ledger, self._executor)
        self._connected.add(number)
        eventlog.emit(self._part.name, "connected", {"rows_per_block": client.max_ids})
        while (block := self._next_block(client.max_ids)) is not None:
            # leave out rows whose client has stopped waiting
            block = [queued for queued in block if not queued.answer.cancelled()]
            if not block:
                client.stay()
                continue
            try:
                self._answer(client, block)
            except PeerStopped as error:
                limited = f"{error.party} has reached a limit that its operator has set"
                _refuse(block, limited if error.stopped == "limit" else _AWAY)
                raise
            except BaseException:
                _refuse(block)
                raise
        client.end()

    def _next_block(self, max_rows: int) -> list[_QueuedRow] | None:
        """Wait for the rows of the next block. No two of them have the same id.

        Args:
            max_rows: the largest number of rows of a block.

        Returns:
            The rows; an empty list if none arrive for a while, None when the gateway stops.
        """
        if not self._gathering.acquire(timeout=_KEEPALIVE_SECONDS):
            return []
        try:
            block = {queued.key: queued for queued in reversed(self._held_over)}
            self._held_over = [queued for queued in self._held_over if block[queued.key] is not queued]
            deadline = time.monotonic() + (self._window if block else _KEEPALIVE_SECONDS)
            while len(block) < max_rows:
                queued = self._queue.get(timeout=max(0.0, deadline - time.monotonic()))
                if queued is None:
                    self._queue.put(None)  # None ends a session; the other sessions must read it, too
                    return list(block.values()) or None
                if queued.key in block:
                    # the block contains this id already, perhaps with other columns, so this row must wait
                    self._held_over.append(queued)
                else:
                    block[queued.key] = queued
                deadline = min(deadline, time.monotonic() + self._window)
        except queue.Empty:
            pass
        finally:
            self._gathering.release()
        return list(block.values())

    def _answer(self, client: ScoreClient, block: Sequence[_QueuedRow]) -> None:
        result = client.ask([queued.key for queued in block], np.array([queued.X for queued in block]))
        assert result.f is not None, "the gateway is at the requesting party"
        prediction = prediction_of(self._part, np.nan_to_num(result.f))
        states, positive_proba = result.states, prediction.positive_proba
        self.blocks += 1
        scored = states.count("scored")
        with self._counting:
            self.scored, self.unscored = self.scored + scored, self.unscored + len(states) - scored
        for index, queued in enumerate(block):
            facts: dict[str, Any] = {"state": states[index]}
            if states[index] == "scored":
                facts["prediction"] = prediction.label[index].item()
                if positive_proba is not None:
                    facts["probability"] = float(positive_proba[index])
                elif prediction.proba is not None:
                    classes, proba = map(str, prediction.classes.tolist()), prediction.proba[index].tolist()
                    facts["probabilities"] = dict(zip(classes, proba, strict=True))
                facts["reasons"] = {
                    name: codes[index] for name, codes in result.reasons.items() if codes[index]
                } or None
            queued.settle(_row_score(queued.row_id, **facts))

    def _refuse_waiting(self) -> None:
        refused, self._held_over = self._held_over, []
        with suppress(queue.Empty):
            while True:
                queued = self._queue.get_nowait()
                refused += [] if queued is None else [queued]
        if self._stopping:
            self._queue.put(None)
        _refuse(refused)


def _refuse(rows: Sequence[_QueuedRow], reason: str = _AWAY) -> None:
    for queued in rows:
        queued.settle(ServiceUnavailable(reason))


def _row_score(row_id: Any, **facts: Any) -> RowScore:
    """Return the answer to a row, with the id exactly as the application writes it."""
    return RowScore.model_construct(id=row_id, **facts)
