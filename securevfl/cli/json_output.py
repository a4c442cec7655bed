"""Results of commands as JSON: the same for every command that has --json.

Each file has the keys `schema` and `version`. The schema is "securevfl.COMMAND/NUMBER"; the number rises if a key
changes its meaning or is removed. New keys may be added under the same number, so programs should ignore unknown keys.
A number that cannot be computed is null.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from securevfl.base.files import write_json
from securevfl.base.version import __version__

SCHEMAS = {
    "align": 1,
    "audit": 1,
    "bins": 1,
    "compare": 1,
    "correlate": 1,
    "describe": 1,
    "drift": 1,
    "explain": 1,
    "fairness": 1,
    "fetch": 1,
    "join": 1,
    "ledger": 1,
    "line": 1,
    "train": 1,
    "tune": 1,
    "tune-alone": 1,
}
"""The number of the schema of each command that has --json."""


def write_results(path: Path | None, command: str, results: Callable[[], Mapping[str, Any]]) -> None:
    """Write the results of a command as strict JSON, if a file is named.

    Args:
        path: the file, or None.
        command: the command, a key of `SCHEMAS`.
        results: returns the results; it is called only if a file is named.
    """
    if path is not None:
        write_json(path, {"schema": f"securevfl.{command}/{SCHEMAS[command]}", "version": __version__, **results()})
