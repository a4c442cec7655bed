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

import asyncio
import hmac
import ipaddress
import json
import logging
import queue
import signal
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor, Future
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from securevfl.base.arrays import Floats
from securevfl.base.extras import extra
from securevfl.base.version import __version__
from securevfl.crypto.identifiers import canonical_id
from securevfl.disclosure.ledger import DisclosureLedger
from securevfl.errors import ConfigError, DataError, IdError, SecureVFLError, TableError
from securevfl.organisations.conversation import Venue, converse
from securevfl.organisations.predict import check_parties_of, predicted
from securevfl.organisations.scoring import ScoreAsker, terms, venue_of
from securevfl.runtime import eventlog
from securevfl.runtime.channel import Channel
from securevfl.training.model_part import ModelPart
from securevfl.training.new_rows import HeldRows
from securevfl.transport.peers import split_address

# HTTP connections that get so many seconds for a request to come whole, and so many at once.
#
# uvicorn bounds neither: whoever reaches a port, token or not, could hold each connection by a byte now and then until
# the process has no descriptor left. A request that has not come whole between one and two spans of time after the
# last, its body too, is hung up on. Where more than so many are open, those that wait longest for their requests go.


def prompt(protocol: type[Any], *, seconds: float, connections: int) -> type[Any]:
    """Return uvicorn's HTTP protocol of h11 with these bounds."""
    import h11

    class Prompt(protocol):  # type: ignore[misc]
        _requests = 0

        @property
        def _waits(self) -> bool:
            """Whether a request is to come, or has not come whole."""
            return self.conn.their_state in (h11.IDLE, h11.SEND_BODY)

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._since = self.loop.time()
            self._check = self.loop.call_later(seconds, self._hurry, 0)
            waiting = sorted(
                (connection for connection in self.connections if connection._waits), key=lambda each: each._since
            )
            for each in waiting[: max(0, len(self.connections) - connections)]:
                each.transport.abort()

        def connection_lost(self, exc: Exception | None) -> None:
            self._check.cancel()
            super().connection_lost(exc)

        def data_received(self, data: bytes) -> None:
            waited = self._waits
            super().data_received(data)
            if waited and not self._waits:
                self._requests += 1

        def on_response_complete(self) -> None:
            super().on_response_complete()
            self._since = self.loop.time()
            self._requests += 1

        def _hurry(self, requests: int) -> None:
            """Hang up if no request has come whole since the last look, at which there were so many."""
            if self._waits and self._requests == requests:
                self.transport.abort()
            else:
                self._check = self.loop.call_later(seconds, self._hurry, self._requests)

    return Prompt


BODY = 1 << 20  # bytes of a request
WHOLE = 20.0  # seconds for a request to come whole
CONNECTIONS = 512  # at once; a process has 1,024 files as a rule
_STAY = 10.0  # seconds after which a silent conversation is kept awake
_AGAIN = 1.0  # seconds before the parties are called again
_RETRY = 5  # seconds after which an application may come again

_ROW: dict[str, Any] = {
    "type": "object",
    "required": ["id"],
    "properties": {
        "id": {
            "type": ["string", "integer"],
            "description": "Of a row of the gateway's table, if it brings no columns.",
        },
        "columns": {"type": "object", "additionalProperties": {"type": ["number", "null"]}},
    },
}
_STATES = {
    "scored": "It has a score, the same whenever it is asked again.",
    "trained": "The model was trained on this row; it gets no score.",
    "changed": "It was asked about before with other columns; it gets no score.",
    "refused": "Another party refuses it, without a reason.",
    "beyond": "Its score is beyond what scores cover; it gets none.",
    "unknown": "Not all parties have this id.",
    "no_columns": "The gateway's table has no such row, and none came with the request. Nobody was asked.",
}


_AWAY = "the parties that serve are away"


class Busy(SecureVFLError):
    """The gateway cannot take a request now."""


@dataclass(frozen=True)
class HttpPlace:
    """The address at which applications ask, with its token and certificate.

    ConfigError unless it is this machine alone, or it has a certificate and key for TLS.
    token: what applications send as `Authorization: Bearer`.
    """

    address: str
    token: str = field(repr=False)
    certificate: Path | None = None
    key: Path | None = None

    def __post_init__(self) -> None:
        host, _ = self.host_port
        try:
            local = host == "localhost" or ipaddress.ip_address(host).is_loopback
        except ValueError:
            local = False
        if not local and (self.certificate is None or self.key is None):
            raise ConfigError(
                f"--http {self.address}: TLS was expected beyond this machine, no certificate came; give "
                "--http-cert and --http-key, or listen on 127.0.0.1"
            )
        if len(self.token) < 16:
            raise ConfigError("--http-token: a file with 16 characters or more was expected, fewer are in it")

    @property
    def host_port(self) -> tuple[str, int]:
        """The host and the port of the address, apart."""
        try:
            return split_address("--http", self.address)
        except ValueError:
            raise ConfigError(f"--http: host:port was expected, {self.address} came; as in 127.0.0.1:8080") from None


@dataclass
class _Waiting:
    """A row that an application waits for."""

    key: bytes
    row_id: Any
    X: Floats
    answer: Future[dict[str, Any]]

    def settle(self, told: dict[str, Any] | Busy) -> None:
        """Answer, or refuse, unless that was done or the application has given up waiting."""
        if self.answer.done() or not self.answer.set_running_or_notify_cancel():
            return
        if isinstance(told, Busy):
            self.answer.set_exception(told)
        else:
            self.answer.set_result(told)


class Gateway:
    """Asks the parties that serve about rows, from any number of threads, in blocks over so many conversations.

    window: seconds that a block waits for more rows. most_waiting: rows that may wait in all.
    """

    def __init__(
        self,
        part: ModelPart,
        rows: HeldRows,
        venue: Venue,
        *,
        ledger: DisclosureLedger | str | Path | None = None,
        executor: Executor | None = None,
        window: float = 0.004,
        most_waiting: int = 4096,
        conversations: int = 4,
    ) -> None:
        check_parties_of(part, venue.peers)
        self._part, self._venue, self._executor, self._window = part, venue, executor, window
        self._ledger = DisclosureLedger.of(part.name, ledger)
        self._X = rows.X
        self._place = {canonical_id(each): row for row, each in enumerate(rows.ids)}
        self._queue: queue.Queue[_Waiting | None] = queue.Queue(most_waiting)
        self._held_over: list[_Waiting] = []
        self._entering = threading.Lock()
        self._gathering = threading.Lock()  # one conversation at a time takes rows for its next block
        self._stopping = False
        self._connected = set[int]()
        self.blocks = 0
        several = bool(venue_of(venue).conversation)
        self._threads = [
            threading.Thread(target=self._run, args=(number,), name=f"gateway {number}", daemon=True)
            for number in range(conversations if several else 1)
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

        Busy if too many wait or the parties are away; IdError or TableError if a row cannot be one.
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
            raise Busy(_AWAY)
        with self._entering:  # all or none: who is told that too many wait has no row asked about
            if self._queue.maxsize - self._queue.qsize() <= len(waiting):
                raise Busy("too many rows wait")
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
                converse(self._part.name, venue_of(self._venue), terms(self._part), talk, ledger=self._ledger)
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
        asker = ScoreAsker(self._part, channel, self._ledger, self._executor)
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

    def _answer(self, asker: ScoreAsker, block: Sequence[_Waiting]) -> None:
        outcome = asker.ask([each.row_id for each in block], np.array([each.X for each in block]))
        found = predicted(self._part, np.nan_to_num(outcome.f))
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
        each.settle(Busy(_AWAY))


def _numbers(part: ModelPart, columns: Any) -> Floats:
    """Return a row's columns (1 x d) in the order of the model. TableError that names what is wrong, and no value."""
    if not isinstance(columns, Mapping) or set(columns) != set(part.columns):
        raise TableError(f"columns: exactly {', '.join(part.columns)} were expected")
    values = [columns[name] for name in part.columns]
    if not all(value is None or (isinstance(value, int | float) and not isinstance(value, bool)) for value in values):
        raise TableError("columns: numbers, or null where one is missing, were expected")
    return np.array([[np.nan if each is None else float(each) for each in values]])


def application(gateway: Gateway, token: str, *, timeout: float = 60.0) -> Any:
    """Return the ASGI application of a gateway. ConfigError if starlette is not installed."""
    extra("starlette", "serve", "--http")
    library = extra("prometheus_client", "serve", "--http")
    from starlette.applications import Starlette
    from starlette.requests import ClientDisconnect
    from starlette.responses import JSONResponse, Response
    from starlette.routing import Route

    registry = library.CollectorRegistry()
    own: dict[str, Any] = {"registry": registry, "namespace": "securevfl_gateway"}
    requests = library.Counter("requests", "Requests for scores, by HTTP status.", ["status"], **own)
    rows_by_state = library.Counter("rows", "Rows asked about, by what came of them.", ["state"], **own)
    seconds = library.Histogram("request_seconds", "Seconds of requests that were answered.", **own)
    for name, words, value in (
        ("rows_waiting", "Rows that wait.", lambda: gateway.waiting),
        ("connected", "1 while the parties that serve are there.", lambda: int(gateway.connected)),
        ("blocks", "Blocks of rows that were asked about.", lambda: gateway.blocks),
    ):
        library.Gauge(name, words, **own).set_function(value)

    def refuse(status: int, reason: str, **headers: str) -> JSONResponse:
        requests.labels(str(status)).inc()
        return JSONResponse({"error": reason}, status, {name.replace("_", "-"): each for name, each in headers.items()})

    async def scores(request: Any) -> Response:
        given = request.headers.get("authorization", "")
        if not hmac.compare_digest(given.encode(), f"Bearer {token}".encode()):
            return refuse(401, "a token was expected: Authorization: Bearer ...", WWW_Authenticate="Bearer")
        body, began = b"", time.monotonic()
        try:
            async for piece in request.stream():
                body += piece
                if len(body) > BODY:
                    return refuse(413, f"at most {BODY:,} bytes were expected; ask in parts")
        except ClientDisconnect:
            return refuse(400, "the caller is gone")
        try:
            wanted = json.loads(body)["rows"]
            if not (isinstance(wanted, list) and wanted and all(isinstance(each, dict) for each in wanted)):
                raise TypeError
            if not all(isinstance(each.get("id"), str | int) and not isinstance(each["id"], bool) for each in wanted):
                raise TypeError
        except (ValueError, KeyError, TypeError, RecursionError):
            return refuse(422, 'JSON as {"rows": [{"id": "..."}]} was expected; see /openapi.json')
        try:
            answers = gateway.ask(wanted)
            waiting = (asyncio.wrap_future(each) for each in answers if isinstance(each, Future))
            found = iter(await asyncio.wait_for(asyncio.gather(*waiting), timeout))
        except (IdError, TableError, DataError) as error:
            return refuse(422, str(error))
        except Busy as error:
            return refuse(503, str(error), Retry_After=str(_RETRY))
        except (TimeoutError, FutureTimeout):
            return refuse(503, "the parties that serve have not answered in time", Retry_After=str(_RETRY))
        told = [next(found) if isinstance(answer, Future) else answer for answer in answers]
        requests.labels("200").inc()
        seconds.observe(time.monotonic() - began)
        for each in told:
            rows_by_state.labels(each["state"]).inc()
        return JSONResponse({"scores": told}, headers={"Cache-Control": "no-store"})

    async def health(request: Any) -> Response:
        state = {
            "status": "ok" if gateway.connected else "away",
            "rows_waiting": gateway.waiting,
            "version": __version__,
        }
        return JSONResponse(state, 200 if gateway.connected else 503)

    async def metrics(request: Any) -> Response:
        return Response(library.generate_latest(registry), media_type=library.CONTENT_TYPE_LATEST)

    async def described(request: Any) -> Response:
        return JSONResponse(openapi())

    return Starlette(
        routes=[
            Route("/v1/scores", scores, methods=["POST"]),
            Route("/health", health),
            Route("/metrics", metrics),
            Route("/openapi.json", described),
        ]
    )


def openapi() -> dict[str, Any]:
    """Return the gateway's description in OpenAPI 3.1."""
    answer = {
        "type": "object",
        "required": ["id", "state"],
        "properties": {
            "id": {"type": ["string", "integer"]},
            "state": {
                "enum": list(_STATES),
                "description": " ".join(f"{name}: {each}" for name, each in _STATES.items()),
            },
            "prediction": {"description": "The likeliest class, or the number of a regression."},
            "probability": {"type": "number", "description": "Of the positive class, where there are two."},
            "probabilities": {"type": "object", "description": "By class, where there are more."},
            "reasons": {"type": "object", "description": "By party, codes of the columns that cost the row most."},
        },
    }

    def of(schema: Any) -> dict[str, Any]:
        return {"content": {"application/json": {"schema": schema}}}

    def several(name: str, items: Any) -> dict[str, Any]:
        return {"type": "object", "required": [name], "properties": {name: {"type": "array", "items": items}}}

    answers = {
        "200": {"description": "What came of each row, in their order."} | of(several("scores", answer)),
        "401": {"description": "The token is missing or wrong."},
        "413": {"description": "The request is too large."},
        "422": {"description": "The request is none, or a row cannot be one."},
        "503": {"description": "Too many rows wait, or the parties that serve are away; come again after Retry-After."},
    }
    return {
        "openapi": "3.1.0",
        "info": {"title": "securevfl scores", "version": __version__},
        "paths": {
            "/v1/scores": {
                "post": {
                    "summary": "Scores of rows, by id",
                    "security": [{"token": []}],
                    "requestBody": {"required": True} | of(several("rows", _ROW)),
                    "responses": answers,
                }
            }
        },
        "components": {"securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}},
    }


def serve_http(gateway: Gateway, place: HttpPlace) -> None:
    """Serve a gateway until SIGTERM or SIGINT, which let requests that wait end first. ConfigError if uvicorn is not
    installed."""
    server = http_server(application(gateway, place.token), place)
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(0))  # raised again by uvicorn once it has ended
    gateway.start()
    try:
        server.run()
    finally:
        gateway.stop()


def http_server(asked: Any, place: HttpPlace) -> Any:
    """Return uvicorn's server of an ASGI application. ConfigError if uvicorn is not installed."""
    uvicorn = extra("uvicorn", "serve", "--http")
    from uvicorn.protocols.http.h11_impl import H11Protocol

    host, port = place.host_port
    config = uvicorn.Config(
        asked,
        host=host,
        port=port,
        ssl_certfile=None if place.certificate is None else str(place.certificate),
        ssl_keyfile=None if place.key is None else str(place.key),
        access_log=False,
        log_level="warning",
        timeout_graceful_shutdown=30,
        lifespan="off",
        http=prompt(H11Protocol, seconds=WHOLE, connections=CONNECTIONS),
        ws="none",
    )
    return uvicorn.Server(config)
