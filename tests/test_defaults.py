"""Every limit, constant and default of the package equals the one in `tests/vectors/defaults.json`.

Defaults are part of what parties agree to and of what the documentation states, and no test notices a limit that moves
from 64 to 65. Constants of modules, defaults of arguments, fields of options with their bounds, and options of commands
are compared by their names; new and removed names pass. After a deliberate change:

    PYTHONPATH=.:tests python -m tests.test_defaults
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import json
import math
import pkgutil
import re
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from types import ModuleType
from typing import Any

import typer
from pydantic import BaseModel

import securevfl

FILE = Path(__file__).parent / "vectors" / "defaults.json"
MAX_COMPARED_TEXT = 60
"""Longer texts are words for people, which other tests compare."""
OF_THE_MACHINE = re.compile(
    r"WORKER_TIMEOUT|cpu|cores|threads|workers|NAME$|_PATH|FOLDER|VERSION|version", re.IGNORECASE
)


def plain(value: Any) -> Any:
    """Return a simple value as JSON represents it, or None if it is not simple."""
    if isinstance(value, Enum):
        return f"{type(value).__name__}.{value.name}"
    if isinstance(value, bool | int):
        return value if abs(value) < 2**53 else str(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, str):
        return value if len(value) <= MAX_COMPARED_TEXT and "\n" not in value else None
    if isinstance(value, bytes):
        return f"bytes {value.hex()}" if len(value) <= MAX_COMPARED_TEXT else None
    if isinstance(value, frozenset | set):
        items = [plain(item) for item in value]
        return None if None in items else sorted(items, key=str)
    if isinstance(value, tuple | list):
        items = [plain(item) for item in value]
        return None if None in items else items
    if isinstance(value, dict):
        entries = {str(plain(key)): plain(item) for key, item in value.items()}
        return None if None in entries.values() else entries
    return None


def modules() -> Iterator[ModuleType]:
    for module in pkgutil.walk_packages(securevfl.__path__, "securevfl."):
        if not module.name.endswith("__main__"):
            yield importlib.import_module(module.name)


def constants(module: ModuleType) -> Iterator[tuple[str, Any]]:
    imported = {
        name
        for line in inspect.getsource(module).splitlines()
        if line.startswith(("from ", "import ", "    "))
        for name in re.findall(r"[A-Z_][A-Z0-9_]+", line.split("=")[0])
    }
    for name, value in list(vars(module).items()):
        if re.fullmatch(r"_?[A-Z][A-Z0-9_]*", name) and name not in imported:
            yield f"{module.__name__}.{name}", plain(value)


def arguments(module: ModuleType) -> Iterator[tuple[str, Any]]:
    for name, member in list(vars(module).items()):
        if getattr(member, "__module__", "") != module.__name__:
            continue
        functions = [(name, member)] if inspect.isfunction(member) else []
        if inspect.isclass(member):
            functions = [
                (f"{name}.{key}", getattr(value, "__func__", value))
                for key, value in list(vars(member).items())
                if inspect.isfunction(getattr(value, "__func__", value))
            ]
        for path, function in functions:
            function = inspect.unwrap(function)
            code, values = function.__code__, function.__defaults__ or ()
            positional = code.co_varnames[: code.co_argcount]
            defaults = dict(zip(positional[len(positional) - len(values) :], values, strict=True))
            for parameter, value in (defaults | (function.__kwdefaults__ or {})).items():
                yield f"{module.__name__}.{path}({parameter})", plain(value)


def fields(module: ModuleType) -> Iterator[tuple[str, Any]]:
    for name, member in list(vars(module).items()):
        if getattr(member, "__module__", "") != module.__name__ or not inspect.isclass(member):
            continue
        path = f"{module.__name__}.{name}"
        if issubclass(member, BaseModel):
            for key, field in member.model_fields.items():
                limits = sorted(str(item) for item in field.metadata if " at 0x" not in str(item))
                default = plain(field.default)
                yield f"{path}[{key}]", {"default": default, "limits": limits, "required": field.is_required()}
        elif dataclasses.is_dataclass(member):
            for item in dataclasses.fields(member):
                if item.default is not dataclasses.MISSING:
                    yield f"{path}[{item.name}]", plain(item.default)
        for key, value in list(vars(member).items()):
            if not key.startswith(("__", "model_config", "_abc")) and key not in getattr(member, "model_fields", {}):
                yield f"{path}.{key}", plain(value)


def commands() -> Iterator[tuple[str, Any]]:
    from securevfl.cli.main import app

    def walk(path: str, command: Any) -> Iterator[tuple[str, Any]]:
        for parameter in command.params:
            default = plain(parameter.default) if not callable(parameter.default) else None
            bounds = [getattr(parameter, name, None) for name in ("min", "max")]
            flags = {"names": sorted(parameter.opts), "off": sorted(parameter.secondary_opts), "bounds": bounds}
            many = {"multiple": bool(getattr(parameter, "multiple", False)), "required": bool(parameter.required)}
            yield f"{path} {parameter.name}", {"default": default, **flags, **many}
        if hasattr(command, "list_commands"):  # with the commands of entry points
            context = typer.Context(command, info_name=path)
            for name in command.list_commands(context):
                yield from walk(f"{path} {name}", command.get_command(context, name))

    yield from walk("securevfl", typer.main.get_command(app))


def measured() -> dict[str, Any]:
    values = dict(commands())
    for module in modules():
        for kind in (constants, arguments, fields):
            values |= dict(kind(module))
    return {
        name: value for name, value in sorted(values.items()) if value is not None and not OF_THE_MACHINE.search(name)
    }


def test_no_limit_constant_or_default_has_changed() -> None:
    stored, now = json.loads(FILE.read_text()), json.loads(json.dumps(measured()))
    common = stored.keys() & now.keys()
    assert len(common) > 0.6 * len(stored)
    changed = {name: (stored[name], now[name]) for name in sorted(common) if stored[name] != now[name]}
    assert not changed, f"{changed}; after a deliberate change write the file again, as the head of this test says"


if __name__ == "__main__":
    lines = [f"{json.dumps(name)}: {json.dumps(value, sort_keys=True)}" for name, value in measured().items()]
    FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
