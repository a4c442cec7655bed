"""An HTTP gateway of the party that asks: applications ask for scores in JSON, one conversation asks the other parties.

POST /v1/scores   {"rows": [{"id": ...}, ...]}: scores by id, of rows of the gateway's table, or of rows that bring
                  their `columns`. A token goes with it
/health           200 while the parties that serve are there, else 503
/metrics          counts and seconds for Prometheus
/openapi.json     what an application may ask and gets

What comes within a few milliseconds is asked about in one block. No id stands in a URL, a log or a metric. Requests
wait in a queue of bounded length, and are told to come again when it is full or the parties are away.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor, Future
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from securevfl.base.arrays import Floats
from securevfl.crypto.identifiers import canonical_id
from securevfl.disclosure.ledger import DisclosureLedger
from securevfl.errors import SecureVFLError, TableError
from securevfl.organisations.peer_session import run_session
from securevfl.organisations.peer_settings import PeerSettings
from securevfl.organisations.predict import check_parties_of
from securevfl.organisations.prediction import prediction_of
from securevfl.organisations.scoring import ScoreClient, scoring_handshake, scoring_settings
from securevfl.runtime import eventlog
from securevfl.runtime.channel import Channel
from securevfl.training.model_part import ModelPart
from securevfl.training.new_rows import IndexedRows

_STAY = 10.0  # seconds after which a silent conversation is kept awake
_AGAIN = 1.0  # seconds before the parties are called again


_AWAY = "the parties that serve are away"


class ServiceUnavailable(SecureVFLError):
    """The gateway cannot take a request now."""


@dataclass
class _Waiting:
    """A row that an application waits for."""

    key: bytes
    row_id: Any
    X: Floats
    answer: Future[dict[str, Any]]

    def settle(self, told: dict[str, Any] | ServiceUnavailable) -> None:
        """Answer, or refuse, unless that was done or the application has given up waiting."""
        if self.answer.done() or not self.answer.set_running_or_notify_cancel():
            return
        if isinstance(told, ServiceUnavailable):
            self.answer.set_exception(told)
        else:
            self.answer.set_result(told)


class Gateway:
    """Asks the parties that serve about rows, from any number of threads, in blocks over so many conversations.

    window: seconds that a block waits for more rows. max_waiting_rows: rows that may wait in all.
    """

    def __init__(
        self,
        part: ModelPart,
        rows: IndexedRows,
        venue: PeerSettings,
        *,
        ledger: DisclosureLedger | str | Path | None = None,
        executor: Executor | None = None,
        window: float = 0.004,
        max_waiting_rows: int = 4096,
        max_sessions: int = 4,
    ) -> None:
        check_parties_of(part, venue.peers)
        self._part, self._venue, self._executor, self._window = part, venue, executor, window
        self._ledger = DisclosureLedger.open(part.name, ledger)
        self._X = rows.X
        self._place = {canonical_id(each): row for row, each in enumerate(rows.ids)}
        self._queue: queue.Queue[_Waiting | None] = queue.Queue(max_waiting_rows)
        self._held_over: list[_Waiting] = []
        self._entering = threading.Lock()
        self._gathering = threading.Lock()  # one conversation at a time takes rows for its next block
        self._stopping = False
        self._connected = set[int]()
        self.blocks = 0
        several = bool(scoring_settings(venue).conversation)
        self._threads = [
            threading.Thread(target=self._run, args=(number,), name=f"gateway {number}", daemon=True)
            for number in range(max_sessions if several else 1)
        ]

    def start(self) -> None:
        """Begin to ask."""
        for thread in self._threads:
            thread.start()

    @property
    def connected(self) -> bool:
        """Whether the parties that serve are there."""
        return bool(self._connected)

    def stop(self, timeout: float = 30.0) -> None:
        """Answer what waits, say goodbye to the parties, and end."""
        self._stopping, deadline = True, time.monotonic() + timeout
        self._queue.put(None)
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def ask(self, rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any] | Future[dict[str, Any]]]:
        """Ask about rows, each an `id` and perhaps its `columns`; return answers, or what will hold them.

        ServiceUnavailable if too many wait or the parties are away; IdError or TableError if a row cannot be one.
        """
        waiting: list[_Waiting] = []
        answers: list[dict[str, Any] | Future[dict[str, Any]]] = []
        for row in rows:
            key = canonical_id(row["id"])
            if (columns := row.get("columns")) is not None:
                X = self._part.table(_numbers(self._part, columns))[0]
            elif key in self._place:
                X = self._X[self._place[key]]
            else:
                answers.append({"id": row["id"], "state": "no_columns"})
                continue
            waiting.append(_Waiting(key, row["id"], X, Future()))
            answers.append(waiting[-1].answer)
        if waiting and (not self.connected or self._stopping):
            raise ServiceUnavailable(_AWAY)
        with self._entering:  # all or none: who is told that too many wait has no row asked about
            if self._queue.maxsize - self._queue.qsize() <= len(waiting):
                raise ServiceUnavailable("too many rows wait")
            for each in waiting:
                self._queue.put_nowait(each)
        return answers

    @property
    def waiting(self) -> int:
        """The number of rows that wait to be asked about."""
        return self._queue.qsize() + len(self._held_over)

    def _run(self, number: int) -> None:
        while not self._stopping:
            try:
                talk = partial(self._talk, number)
                run_session(
                    self._part.name,
                    scoring_settings(self._venue),
                    scoring_handshake(self._part),
                    talk,
                    ledger=self._ledger,
                )
            except SecureVFLError as error:
                eventlog.warn(self._part.name, "away", {"reason": str(error)})
            except BaseException as error:  # nobody else would see it
                eventlog.emit(self._part.name, "failed", {"reason": type(error).__name__}, logging.ERROR)
            finally:
                self._connected.discard(number)
                if not self._connected:
                    self._refuse_waiting()
            if not self._stopping:
                time.sleep(_AGAIN)

    def _talk(self, number: int, channel: Channel) -> None:
        asker = ScoreClient(self._part, channel, self._ledger, self._executor)
        self._connected.add(number)
        eventlog.emit(self._part.name, "connected", {"rows_a_block": asker.most})
        while (block := self._next_block(asker.most)) is not None:
            block = [each for each in block if not each.answer.cancelled()]  # whose application still waits
            if not block:
                asker.stay()
                continue
            try:
                self._answer(asker, block)
            except BaseException:
                _refuse(block)
                raise
        asker.end()

    def _next_block(self, most: int) -> list[_Waiting] | None:
        """Wait for rows and return those of one block, of different ids; none after a while, None at the end."""
        if not self._gathering.acquire(timeout=_STAY):
            return []
        try:
            block = {each.key: each for each in reversed(self._held_over)}
            self._held_over = [each for each in self._held_over if block[each.key] is not each]
            deadline = time.monotonic() + (self._window if block else _STAY)
            while len(block) < most:
                each = self._queue.get(timeout=max(0.0, deadline - time.monotonic()))
                if each is None:
                    self._queue.put(None)  # for the other conversations too
                    return list(block.values()) or None
                if each.key in block:
                    self._held_over.append(each)  # the same id, maybe with other columns: the next block's
                else:
                    block[each.key] = each
                deadline = min(deadline, time.monotonic() + self._window)
        except queue.Empty:
            pass
        finally:
            self._gathering.release()
        return list(block.values())

    def _answer(self, asker: ScoreClient, block: Sequence[_Waiting]) -> None:
        outcome = asker.ask([each.row_id for each in block], np.array([each.X for each in block]))
        found = prediction_of(self._part, np.nan_to_num(outcome.f))
        self.blocks += 1
        for at, each in enumerate(block):
            answer: dict[str, Any] = {"id": each.row_id, "state": outcome.state[at]}
            if outcome.state[at] == "scored":
                answer["prediction"] = found.label[at].item()
                if found.proba is not None and len(found.classes) == 2:
                    answer["probability"] = float(found.proba[at, 1])
                elif found.proba is not None:
                    answer["probabilities"] = dict(
                        zip(map(str, found.classes.tolist()), found.proba[at].tolist(), strict=True)
                    )
                reasons = {name: codes[at] for name, codes in outcome.reasons.items() if codes[at]}
                answer |= {"reasons": reasons} if reasons else {}
            each.settle(answer)

    def _refuse_waiting(self) -> None:
        refused, self._held_over = self._held_over, []
        with suppress(queue.Empty):
            while True:
                each = self._queue.get_nowait()
                refused += [] if each is None else [each]
        if self._stopping:
            self._queue.put(None)
        _refuse(refused)


def _refuse(rows: Sequence[_Waiting]) -> None:
    for each in rows:
        each.settle(ServiceUnavailable(_AWAY))


def _numbers(part: ModelPart, columns: Any) -> Floats:
    """Return a row's columns (1 x d) in the order of the model. TableError that names what is wrong, and no value."""
    if not isinstance(columns, Mapping) or set(columns) != set(part.columns):
        raise TableError(f"columns: exactly {', '.join(part.columns)} were expected")
    values = [columns[name] for name in part.columns]
    if not all(value is None or (isinstance(value, int | float) and not isinstance(value, bool)) for value in values):
        raise TableError("columns: numbers, or null where one is missing, were expected")
    return np.array([[np.nan if each is None else float(each) for each in values]])
