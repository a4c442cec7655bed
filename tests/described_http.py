"""Check of HTTP requests and replies against the description in OpenAPI that a service gives of itself."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import httpx
from jsonschema import Draft202012Validator


def violations(schema: Any, description: Any, value: Any) -> list[str]:
    """Return the violations of a schema of the description, which may refer to the others."""
    return [
        f"{error.json_path}: {error.validator}"
        for error in Draft202012Validator({**schema, "components": description["components"]}).iter_errors(value)
    ]


def checks_replies(description: Any, seen: set[tuple[str, int]]) -> Callable[[httpx.Response], None]:
    """Return an event hook of httpx that checks each reply, and each request that was answered with 200."""

    def check(response: httpx.Response) -> None:
        response.read()
        request = response.request
        operation = description["paths"].get(request.url.path, {}).get(request.method.lower())
        if operation is None:  # a wrong path or method, which is described by nothing
            return
        seen.add((request.url.path, response.status_code))
        reply = operation["responses"][str(response.status_code)]
        media_type = response.headers["content-type"].partition(";")[0]
        content = reply["content"][media_type]
        if "schema" in content:
            assert not violations(content["schema"], description, response.json())
        assert set(reply.get("headers", {})) <= {name.title() for name in response.headers}
        if "requestBody" in operation and response.status_code in (200, 422):
            try:
                body = json.loads(request.content)
            except ValueError:
                assert response.status_code == 422
                return
            wrong = violations(operation["requestBody"]["content"]["application/json"]["schema"], description, body)
            assert response.status_code == 422 or not wrong, wrong

    return check
