"""The gateway's HTTP interface as an ASGI application, with its description in OpenAPI."""

from __future__ import annotations

import asyncio
import hmac
import json
import time
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from typing import Any

from securevfl.base.extras import import_extra
from securevfl.base.version import __version__
from securevfl.errors import DataError, IdError, TableError
from securevfl.organisations.gateway import Gateway, ServiceUnavailable

MAX_BODY_BYTES = 1 << 20  # bytes of a request

_RETRY_SECONDS = 5  # seconds after which an application may come again

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


def application(gateway: Gateway, token: str, *, timeout: float = 60.0) -> Any:
    """Return the ASGI application of a gateway. ConfigError if starlette is not installed."""
    import_extra("starlette", "serve", "--http")
    library = import_extra("prometheus_client", "serve", "--http")
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
                if len(body) > MAX_BODY_BYTES:
                    return refuse(413, f"at most {MAX_BODY_BYTES:,} bytes were expected; ask in parts")
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
        except ServiceUnavailable as error:
            return refuse(503, str(error), Retry_After=str(_RETRY_SECONDS))
        except (TimeoutError, FutureTimeout):
            return refuse(503, "the parties that serve have not answered in time", Retry_After=str(_RETRY_SECONDS))
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
