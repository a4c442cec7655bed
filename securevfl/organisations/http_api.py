"""The gateway's HTTP interface as an ASGI application, with its description in OpenAPI.

POST /v1/scores   {"rows": [{"id": ...}, ...]}: scores by id, of rows of the gateway's table, or of rows with `columns`.
                  The request needs a token
/health           200 while the servers are connected, else 503
/metrics          counts and seconds for Prometheus
/openapi.json     the description of requests and answers

No id appears in a URL, a log or a metric.
"""

from __future__ import annotations

import asyncio
import copy
import hmac
import time
from collections.abc import Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from typing import Any

from securevfl.base.extras import import_extra
from securevfl.base.version import __version__
from securevfl.data.column_types import ColumnType, Kind
from securevfl.errors import DataError, IdError, TableError
from securevfl.organisations.gateway import Gateway, ServiceUnavailable
from securevfl.organisations.http_requests import MAX_BODY_BYTES, ROW_SCHEMA, parse_rows
from securevfl.untrusted import UntrustedInputError

_RETRY_SECONDS = 5  # seconds after which a client may retry

_STATES = {
    "scored": "The row has a score. A repeated request returns the same score.",
    "trained": "The model was trained on this row. It has no score.",
    "changed": "The row was requested before with other values of its columns. It has no score.",
    "refused": "Another party refuses to score the row. It states no reason.",
    "beyond": "The score is outside the range that scores cover. The row has no score.",
    "unknown": "Not all parties have this id.",
    "no_columns": "The gateway's table has no such row, and the request has no columns. No party was asked.",
}


def application(gateway: Gateway, token: str, *, timeout: float = 60.0) -> Any:
    """Create the ASGI application of a gateway.

    Args:
        gateway: the gateway.
        token: the token that clients send.
        timeout: seconds that a client waits for an answer.

    Returns:
        The application.

    Raises:
        ConfigError: starlette or prometheus-client is not installed.
    """
    import_extra("starlette", "serve", "--http")
    library = import_extra("prometheus_client", "serve", "--http")
    from starlette.applications import Starlette
    from starlette.requests import ClientDisconnect
    from starlette.responses import JSONResponse, Response
    from starlette.routing import Route

    registry = library.CollectorRegistry()
    options: dict[str, Any] = {"registry": registry, "namespace": "securevfl_gateway"}
    requests = library.Counter("requests", "Requests for scores, by HTTP status.", ["status"], **options)
    rows_by_state = library.Counter("rows", "Requested rows, by state.", ["state"], **options)
    seconds = library.Histogram("request_seconds", "Seconds of answered requests.", **options)
    for name, meaning, value in (
        ("rows_waiting", "Waiting rows.", lambda: gateway.waiting),
        ("connected", "1 while the servers are connected.", lambda: int(gateway.connected)),
        ("blocks", "Blocks of rows that were requested.", lambda: gateway.blocks),
    ):
        library.Gauge(name, meaning, **options).set_function(value)

    def refuse(status: int, reason: str, code: str, **headers: str) -> JSONResponse:
        requests.labels(str(status)).inc()
        return JSONResponse(
            {"error": reason, "code": code},
            status,
            {name.replace("_", "-"): header for name, header in headers.items()},
        )

    def retry_later(reason: str) -> JSONResponse:
        return refuse(503, reason, "SVFL-PEER-BUSY", Retry_After=str(_RETRY_SECONDS))

    async def scores(request: Any) -> Response:
        authorization = request.headers.get("authorization", "")
        if not hmac.compare_digest(authorization.encode(), f"Bearer {token}".encode()):
            reason = "The token is missing or wrong. Send it as Authorization: Bearer ..."
            return refuse(401, reason, "SVFL-HTTP-TOKEN", WWW_Authenticate="Bearer")
        body, start = b"", time.monotonic()
        try:
            async for piece in request.stream():
                body += piece
                if len(body) > MAX_BODY_BYTES:
                    reason = f"The request has more than {MAX_BODY_BYTES:,} bytes. Split it."
                    return refuse(413, reason, "SVFL-HTTP-REQUEST")
        except ClientDisconnect:
            return refuse(400, "The client has disconnected.", "SVFL-HTTP-REQUEST")
        try:
            rows = parse_rows(body)
        except UntrustedInputError as cause:
            reason = f'The body is not JSON of the form {{"rows": [{{"id": "..."}}]}}: {cause}. See /openapi.json.'
            return refuse(422, reason, "SVFL-HTTP-REQUEST")
        try:
            answers = gateway.ask(rows)
            waiting = (asyncio.wrap_future(answer) for answer in answers if isinstance(answer, Future))
            results = iter(await asyncio.wait_for(asyncio.gather(*waiting), timeout))
        except (IdError, TableError, DataError) as error:
            return refuse(422, str(error), error.code)
        except ServiceUnavailable as error:
            return retry_later(str(error))
        except (TimeoutError, FutureTimeout):
            return retry_later("the servers (the other parties) have not answered in time")
        settled = [next(results) if isinstance(answer, Future) else answer for answer in answers]
        requests.labels("200").inc()
        seconds.observe(time.monotonic() - start)
        for answer in settled:
            rows_by_state.labels(answer["state"]).inc()
        return JSONResponse({"scores": settled}, headers={"Cache-Control": "no-store"})

    async def health(request: Any) -> Response:
        state = {
            "status": "ok" if gateway.connected else "away",
            "rows_waiting": gateway.waiting,
            "version": __version__,
        }
        return JSONResponse(state, 200 if gateway.connected else 503)

    async def metrics(request: Any) -> Response:
        return Response(library.generate_latest(registry), media_type=library.CONTENT_TYPE_LATEST)

    async def description(request: Any) -> Response:
        return JSONResponse(openapi(gateway.types))

    return Starlette(
        routes=[
            Route("/v1/scores", scores, methods=["POST"]),
            Route("/health", health),
            Route("/metrics", metrics),
            Route("/openapi.json", description),
        ]
    )


_JSON_TYPES: dict[Kind, dict[str, Any]] = {
    "number": {"type": ["number", "null"]},
    "category": {"type": ["string", "number", "null"]},
    "date": {"type": ["string", "null"], "format": "date"},
    "percent": {"type": ["string", "null"], "description": "A percentage with its sign, as in 12.5%."},
    "currency": {"type": ["string", "null"], "description": "An amount with its unit."},
}


def openapi(types: Mapping[str, ColumnType] | None = None) -> dict[str, Any]:
    """Return the gateway's description in OpenAPI 3.1.

    Args:
        types: the types of the columns of the model.

    Returns:
        The description.
    """
    row = copy.deepcopy(ROW_SCHEMA)
    if types:
        columns = {name: _JSON_TYPES[kind.kind] for name, kind in types.items()}
        row["properties"]["columns"] |= {
            "properties": columns,
            "required": list(columns),
            "additionalProperties": False,
        }
    answer = {
        "type": "object",
        "required": ["id", "state"],
        "properties": {
            "id": {"type": ["string", "integer", "object"]},
            "state": {
                "enum": list(_STATES),
                "description": " ".join(f"{name}: {meaning}" for name, meaning in _STATES.items()),
            },
            "prediction": {"description": "The likeliest class, or the predicted number."},
            "probability": {"type": "number", "description": "Probability of the positive class, for two classes."},
            "probabilities": {"type": "object", "description": "Probability of each class, for more than two."},
            "reasons": {"type": "object", "description": "Reason codes by party, largest contribution first."},
        },
    }

    def content_of(schema: Any) -> dict[str, Any]:
        return {"content": {"application/json": {"schema": schema}}}

    def list_of(name: str, items: Any) -> dict[str, Any]:
        return {"type": "object", "required": [name], "properties": {name: {"type": "array", "items": items}}}

    answers = {
        "200": {"description": "The result of each row, in the same order."} | content_of(list_of("scores", answer)),
        "401": {"description": "The token is missing or wrong."},
        "413": {"description": "The request is too large."},
        "422": {"description": "Invalid request body or invalid row."},
        "503": {"description": "Too many rows are waiting, or the servers cannot be reached. Retry after Retry-After."},
    }
    return {
        "openapi": "3.1.0",
        "info": {"title": "securevfl scores", "version": __version__},
        "paths": {
            "/v1/scores": {
                "post": {
                    "summary": "Scores of rows, by id",
                    "security": [{"token": []}],
                    "requestBody": {"required": True} | content_of(list_of("rows", row)),
                    "responses": answers,
                }
            }
        },
        "components": {"securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}},
    }
