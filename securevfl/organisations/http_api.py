"""The HTTP interface of a gateway: scores of rows, for applications that send a token.

POST /v1/scores   {"rows": [{"id": ...}, {"id": ..., "columns": {...}}, ...]}: one score for each row. If a row has no
                  `columns`, the gateway reads them from its table by the id.

`securevfl.organisations.http_endpoints` adds /health, /metrics and /openapi.json.
"""

from __future__ import annotations

import asyncio
import hmac
import time
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, ConfigDict

from securevfl.base.extras import import_extra
from securevfl.base.version import __version__
from securevfl.errors import DataError, IdError, SecureVFLError, TableError
from securevfl.organisations.gateway import Gateway, ServiceUnavailable
from securevfl.organisations.gateway_rows import STATE_MEANINGS, RowScore
from securevfl.organisations.http_endpoints import HttpEndpoint, HttpReply, Refusal, asgi_application
from securevfl.organisations.http_requests import MAX_BODY_BYTES, ScoreRequests
from securevfl.untrusted import UntrustedInputError

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

_RETRY_SECONDS = 5  # seconds after which a client may retry


class ScoreReply(BaseModel):
    """The answers to a request for scores."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)

    scores: list[RowScore]
    """The answer to each row, in the order of the request."""


class GatewayHealth(BaseModel):
    """Whether the gateway can answer."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)

    status: Literal["ok", "away"]
    """"away" while the parties that serve cannot be reached."""
    rows_waiting: int
    """The number of rows that wait for an answer."""
    version: str
    """The version of securevfl."""


class GatewayStatus:
    """The measurements of a gateway, such as its number of requests, for /metrics and /health.

    Args:
        gateway: the gateway.

    Attributes:
        registry: the registry of prometheus-client.
        seconds: the histogram of the seconds of answered requests.
        health_type: the pydantic type of the reply to a request for /health.

    Raises:
        ConfigError: prometheus-client is not installed.
    """

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self.health_type: type[BaseModel] = GatewayHealth
        library = import_extra("prometheus_client", "serve", "--http")
        self.registry = library.CollectorRegistry()
        options: dict[str, Any] = {"registry": self.registry, "namespace": "securevfl_gateway"}
        self._requests = library.Counter("requests", "Requests for scores, by HTTP status.", ["status"], **options)
        self._rows = library.Counter("rows", "Requested rows, by state.", ["state"], **options)
        self.seconds = library.Histogram("request_seconds", "Seconds of answered requests.", **options)
        for name, meaning, value in (
            ("rows_waiting", "Waiting rows.", lambda: gateway.waiting),
            ("connected", "1 while the servers are connected.", lambda: int(gateway.connected)),
            ("blocks", "Blocks of rows that were requested.", lambda: gateway.blocks),
        ):
            library.Gauge(name, meaning, **options).set_function(value)

    @property
    def party(self) -> str:
        """The party that runs the gateway."""
        return self._gateway.party

    def count(self, status: int, answers: list[RowScore] | None = None) -> None:
        """Add one request, with its HTTP status and the states of its rows, to the counts for /metrics."""
        self._requests.labels(str(status)).inc()
        for answer in answers or ():
            self._rows.labels(answer.state).inc()

    def health(self) -> tuple[int, GatewayHealth]:
        """Return the HTTP status and the reply of /health."""
        up = self._gateway.connected
        state = GatewayHealth(status="ok" if up else "away", rows_waiting=self._gateway.waiting, version=__version__)
        return 200 if up else 503, state


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
    from starlette.requests import ClientDisconnect
    from starlette.responses import JSONResponse

    status = GatewayStatus(gateway)
    requests = ScoreRequests(gateway.types, gateway.id_columns)

    def refuse(code: int, refusal: Refusal, **headers: str) -> JSONResponse:
        status.count(code)
        names = {name.replace("_", "-"): header for name, header in headers.items()}
        return JSONResponse(refusal.model_dump(exclude_none=True), code, names)

    def retry_later(reason: str) -> JSONResponse:
        return refuse(503, Refusal(error=reason, code="SVFL-PEER-BUSY"), Retry_After=str(_RETRY_SECONDS))

    async def scores(request: Request) -> Response:
        authorization = request.headers.get("authorization", "")
        if not hmac.compare_digest(authorization.encode(), f"Bearer {token}".encode()):
            reason = "The token is missing or wrong. Send it as Authorization: Bearer ..."
            return refuse(401, Refusal(error=reason, code="SVFL-HTTP-TOKEN"), WWW_Authenticate="Bearer")
        body, start = b"", time.monotonic()
        try:
            async for piece in request.stream():
                body += piece
                if len(body) > MAX_BODY_BYTES:
                    reason = f"The request has more than {MAX_BODY_BYTES:,} bytes. Split it."
                    return refuse(413, Refusal(error=reason, code="SVFL-HTTP-REQUEST"))
        except ClientDisconnect:
            return refuse(400, Refusal(error="The client has disconnected.", code="SVFL-HTTP-REQUEST"))
        try:
            answers = gateway.ask(requests.parse(body))
            waiting = (asyncio.wrap_future(answer) for answer in answers if isinstance(answer, Future))
            results = iter(await asyncio.wait_for(asyncio.gather(*waiting), timeout))
        except UntrustedInputError as cause:
            reason = f'The body is not JSON of the form {{"rows": [{{"id": "..."}}]}}: {cause}. See /openapi.json.'
            return refuse(422, Refusal(error=reason, code="SVFL-HTTP-REQUEST"))
        except (IdError, TableError, DataError) as error:
            return refuse(422, _refusal_of(error))
        except ServiceUnavailable as error:
            return retry_later(str(error))
        except (TimeoutError, FutureTimeout):
            return retry_later("the servers (the other parties) have not answered in time")
        settled = [next(results) if isinstance(answer, Future) else answer for answer in answers]
        status.count(200, settled)
        status.seconds.observe(time.monotonic() - start)
        return JSONResponse(
            {"scores": [answer.to_plain() for answer in settled]}, headers={"Cache-Control": "no-store"}
        )

    states = " ".join(f"{name}: {meaning}" for name, meaning in STATE_MEANINGS.items())
    return asgi_application(
        "securevfl scores",
        status,
        [
            HttpEndpoint(
                "/v1/scores",
                "Scores of rows, by id",
                scores,
                {
                    200: HttpReply(f"The answer to each row. Its state is one of these. {states}", ScoreReply),
                    400: HttpReply("The client has disconnected, or the request's end is ambiguous.", Refusal),
                    401: HttpReply("The token is missing or wrong.", Refusal),
                    413: HttpReply("The request is too large.", Refusal),
                    422: HttpReply("The body or a row is invalid.", Refusal),
                    503: HttpReply(
                        "Too many rows are waiting, or the servers cannot be reached.",
                        Refusal,
                        headers={"Retry-After": "Seconds after which the client may retry."},
                    ),
                },
                method="POST",
                request=requests.type,
                needs_token=True,
            )
        ],
    )


def _refusal_of(error: SecureVFLError) -> Refusal:
    """Return the reply for an error, with the row and the column that the error names."""
    row, column = error.fields.get("row"), error.fields.get("column")
    return Refusal(
        error=str(error),
        code=error.code,
        row=row if isinstance(row, int) else None,
        column=column if isinstance(column, str) else None,
    )
