"""The base of everything a user configures: typed, frozen, no unknown keys, no values in error texts."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar, Self, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_core import PydanticCustomError

from securevfl.errors import ConfigError


class Config(BaseModel):
    """Keyword-only options. Raises ConfigError, one line a problem, when they do not fit."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True, arbitrary_types_allowed=True)

    def __init__(self, /, **options: Any) -> None:
        try:
            super().__init__(**options)
        except ValidationError as cause:
            raise ConfigError(describe_problems(cause, type(self))) from None

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """Return the same options but for those in `update`, checked as at the start. ConfigError, a line a problem."""
        if not update:
            return super().model_copy(deep=deep)
        fields = type(self).model_fields
        own = {field.alias or name: getattr(self, name) for name, field in fields.items()}
        new = {fields[name].alias or name if name in fields else name: value for name, value in update.items()}
        return type(self)(**own | new)


class NamedOption(Config):
    """An option that a job file can name: `sum = "tree"` or `[sum] name = "tree"` with its own keys."""

    name: ClassVar[str]


N = TypeVar("N", bound=NamedOption)


class Registry(dict[str, type[N]]):
    """Names to kinds of one option. Adding a kind is adding it here."""

    def __init__(self, what: str, *kinds: type[N]) -> None:
        super().__init__({kind.name: kind for kind in kinds})
        self.what = what
        self.more: Callable[[], str] = str  # loads what other packages bring, and says what it may not load

    def read(self, value: Any) -> Any:
        """Read an option from its object, its name, or a table with `name` and keys; for a pydantic validator."""
        if isinstance(value, str):
            value = {"name": value}
        if not isinstance(value, Mapping):
            return value
        keys = dict(value)
        name = keys.pop("name", None)
        if not isinstance(name, str) or name not in self:
            rest = self.more()
            if not isinstance(name, str) or name not in self:
                raise ValueError(f"{self.what} name must be one of {', '.join(self)}; choose one of these{rest}")
        return read_nested(self[name], keys)


def read_nested(kind: type[Config], keys: Any) -> Any:
    """Read a nested table through its own constructor, so that each of its problems is told with its full key."""
    if not isinstance(keys, Mapping):
        return keys
    try:
        return kind(**keys)
    except ConfigError as cause:
        raise PydanticCustomError("nested", "{lines}", {"lines": str(cause)}) from None


def to_plain(option: Config) -> dict[str, Any]:
    """Return an option as a job file would hold it: its name where it has one, and its keys."""
    keys: dict[str, Any] = {"name": option.name} if isinstance(option, NamedOption) else {}
    for key, field in type(option).model_fields.items():
        value = getattr(option, key)
        if value is not None:
            keys[field.alias or key] = (
                to_plain(value) if isinstance(value, Config) else list(value) if isinstance(value, tuple) else value
            )
    return keys


def mismatched_fields(option: Config, kind: type[Config], before: str = "") -> Iterator[str]:
    """Yield the names of the fields of an option that hold something else than the same fields of `kind` ask for.

    kind: a class with the option's fields, some of them of narrower types.
    """
    for name, field in kind.model_fields.items():
        value: Any = getattr(option, name)
        asked: Any = field.annotation
        if asked == type(option).model_fields[name].annotation:
            continue
        if isinstance(value, Config) and isinstance(asked, type) and issubclass(asked, type(value)):
            yield from mismatched_fields(value, asked, f"{before}{name}.")
        elif not isinstance(value, asked):
            yield f"{before}{name}"


def flatten(keys: Mapping[str, Any], before: str = "") -> dict[str, str]:
    """Return what `to_plain` gives as words, with nested keys on one level: {"protocol.sum": "auto"}."""
    found: dict[str, str] = {}
    for key, value in keys.items():
        if isinstance(value, Mapping):
            found |= flatten(value, f"{before}{key}.")
        else:
            found[f"{before}{key}"] = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
    return found


def describe_problems(error: ValidationError, kind: type[Config]) -> str:
    """One line for each problem: the key, what was expected, what to do."""
    lines = []
    for item in error.errors(include_input=False, include_url=False):
        key = ".".join(str(part) for part in item["loc"]) or kind.__name__
        match item["type"]:
            case "nested":
                lines += [f"{key}{_joint(line)}{line}" for line in item["msg"].splitlines()]
            case "extra_forbidden":
                known = ", ".join(field.alias or option for option, field in kind.model_fields.items())
                lines.append(f"{key}: is no option here; remove or correct it (known: {known})")
            case "missing":
                lines.append(f"{key}: is missing; add it")
            case _:
                text = item["msg"].removeprefix("Value error, ").removeprefix("Input ")
                lines.append(f"{key}: {text}" + ("" if ";" in text else "; correct it"))
    return "\n".join(lines)


def _joint(line: str) -> str:
    """Return what goes between a key and a problem below it, which names a key of its own or speaks of the whole."""
    return "." if re.match(r"[\w.]+: ", line) else ": "
