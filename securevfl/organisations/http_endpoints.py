"""The ASGI application of a service, and its description in OpenAPI, both from one list of endpoints.

A gateway and the status port of a serving party (`--monitor`) have the same application, with different endpoints:

/health           whether the service can answer: 200 or 503
/metrics          counts and seconds for Prometheus
/openapi.json     the description of requests and replies
others            see `securevfl.organisations.http_api` and `securevfl.organisations.monitor`

Requests and replies have types (pydantic models). The schemas in the description are generated from these types. No
message of an error contains a value of a request, and no id appears in a URL, a log or a metric.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from pydantic import BaseModel, ConfigDict
from pydantic.json_schema import models_json_schema

from securevfl.base.extras import import_extra
from securevfl.base.version import __version__
from securevfl.organisations.http_framing import refuse_ambiguous_framing
from securevfl.runtime import eventlog

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

_JSON = "application/json"


class Refusal(BaseModel):
    """The body of an error reply: the service refused the request, or could not process it."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)

    error: str
    """The problem and the remedy, without a value of the request."""
    code: str
    """The stable code of the error."""
    row: int | None = None
    """The number of the row, starting with 1, if the problem is in a row."""
    column: str | None = None
    """The column, if the problem is in a column."""


@dataclass(frozen=True)
class HttpReply:
    """One possible reply of an endpoint.

    Attributes:
        meaning: when this reply is sent.
        type: the type of the body; None for text that has no schema.
        media_type: the media type of the body.
        headers: the meaning of further headers by name.
    """

    meaning: str
    type: type[BaseModel] | None = None
    media_type: str = _JSON
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class HttpEndpoint:
    """A path of the application.

    Attributes:
        path: the path of its URL, such as /health.
        summary: what it returns.
        answer: handles a request.
        replies: the possible replies by HTTP status.
        method: GET or POST.
        request: the type of the request's body; None if it has no body.
        needs_token: whether clients send a token.
    """

    path: str
    summary: str
    answer: Callable[[Request], Awaitable[Response]]
    replies: Mapping[int, HttpReply]
    method: str = "GET"
    request: type[BaseModel] | None = None
    needs_token: bool = False


class ServiceStatus(Protocol):
    """The state of a service, as its application shows it."""

    @property
    def party(self) -> str:
        """The party that runs the service."""

    @property
    def registry(self) -> Any:
        """The registry of prometheus-client with the figures of /metrics."""

    @property
    def health_type(self) -> type[BaseModel]:
        """The pydantic type of the reply to a request for /health."""

    def health(self) -> tuple[int, BaseModel]:
        """Return the HTTP status and the reply of /health."""


def asgi_application(title: str, status: ServiceStatus, endpoints: Sequence[HttpEndpoint]) -> Any:
    """Create the ASGI application of a service.

    Args:
        title: the title of the description.
        status: the state of the service.
        endpoints: the endpoints in addition to /health, /metrics and /openapi.json.

    Returns:
        The application. Requests with ambiguous framing are refused.

    Raises:
        ConfigError: starlette or prometheus-client is not installed.
    """
    import_extra("starlette", "serve", title)
    library = import_extra("prometheus_client", "serve", title)
    from starlette.applications import Starlette
    from starlette.exceptions import HTTPException
    from starlette.responses import JSONResponse, Response
    from starlette.routing import Route

    async def health(request: Request) -> Response:
        code, state = status.health()
        return JSONResponse(state.model_dump(), code)

    async def metrics(request: Request) -> Response:
        return Response(library.generate_latest(status.registry), media_type=library.CONTENT_TYPE_LATEST)

    async def description(request: Request) -> Response:
        return JSONResponse(described)

    async def refuse(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        known = ", ".join(endpoint.path for endpoint in listed)
        refusal = Refusal(error=f"{error.detail}. The paths are {known}.", code="SVFL-HTTP-REQUEST")
        return JSONResponse(refusal.model_dump(exclude_none=True), error.status_code, error.headers)

    def guarded(endpoint: HttpEndpoint) -> Callable[[Request], Awaitable[Response]]:
        async def answer(request: Request) -> Response:
            try:
                return await endpoint.answer(request)
            except HTTPException:
                raise
            except Exception as error:  # log only its type, because its message may contain values
                eventlog.emit(status.party, "request failed", {"reason": type(error).__name__}, logging.ERROR)
                refusal = Refusal(error="The service has failed; its log has the time.", code="SVFL-INTERNAL")
                return JSONResponse(refusal.model_dump(exclude_none=True), 500)

        return answer

    listed = [
        *endpoints,
        HttpEndpoint(
            "/health",
            "Whether the service can answer",
            health,
            {
                200: HttpReply("The service can answer.", status.health_type),
                503: HttpReply("The service cannot answer at present.", status.health_type),
            },
        ),
        HttpEndpoint(
            "/metrics",
            "Counts and seconds for Prometheus",
            metrics,
            {200: HttpReply("The figures.", media_type=library.CONTENT_TYPE_LATEST.partition(";")[0])},
        ),
        HttpEndpoint("/openapi.json", "This description", description, {200: HttpReply("The description.")}),
    ]
    described = openapi(title, listed)
    routes = [Route(endpoint.path, guarded(endpoint), methods=[endpoint.method]) for endpoint in listed]
    return refuse_ambiguous_framing(Starlette(routes=routes, exception_handlers={HTTPException: refuse}))


def openapi(title: str, endpoints: Sequence[HttpEndpoint]) -> dict[str, Any]:
    """Return the description of an application in OpenAPI 3.1.

    Args:
        title: the title of the description.
        endpoints: all endpoints.

    Returns:
        The description. Its schemas are generated from the types of requests and replies.
    """
    replied = {
        kind: None for endpoint in endpoints for reply in endpoint.replies.values() if (kind := reply.type) is not None
    }
    requested = [endpoint.request for endpoint in endpoints if endpoint.request is not None]
    _, schemas = models_json_schema(
        [*((kind, "validation") for kind in requested), *((kind, "serialization") for kind in replied)],
        ref_template="#/components/schemas/{model}",
    )
    components: dict[str, Any] = {"schemas": schemas.get("$defs", {})}
    if any(endpoint.needs_token for endpoint in endpoints):
        components["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
    paths: dict[str, Any] = {}
    for endpoint in endpoints:
        operation: dict[str, Any] = {"summary": endpoint.summary}
        if endpoint.needs_token:
            operation["security"] = [{"token": []}]
        if endpoint.request is not None:
            operation["requestBody"] = {"required": True, "content": _content(endpoint.request)}
        operation["responses"] = {str(code): _response(reply) for code, reply in endpoint.replies.items()}
        paths.setdefault(endpoint.path, {})[endpoint.method.lower()] = operation
    return {
        "openapi": "3.1.0",
        "info": {"title": title, "version": __version__},
        "paths": paths,
        "components": components,
    }


def _content(kind: type[BaseModel]) -> dict[str, Any]:
    return {_JSON: {"schema": {"$ref": f"#/components/schemas/{kind.__name__}"}}}


def _response(reply: HttpReply) -> dict[str, Any]:
    response: dict[str, Any] = {"description": reply.meaning}
    response["content"] = {reply.media_type: {}} if reply.type is None else _content(reply.type)
    if reply.headers:
        response["headers"] = {
            name: {"description": meaning, "schema": {"type": "string"}} for name, meaning in reply.headers.items()
        }
    return response
