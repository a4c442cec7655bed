"""Base class of everything that users configure: typed and frozen options, without values in error messages."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar, NamedTuple, Self, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_core import PydanticCustomError

from securevfl.errors import ConfigError
from securevfl.untrusted import shortened


class Config(BaseModel):
    """Base class of a set of options, which are keyword-only.

    Args:
        **options: the options by name.

    Raises:
        ConfigError: if options are missing, unknown or of the wrong type or range, with one line for each problem. Its
            field `option` is the full key of the first option that one of these lines names.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True, arbitrary_types_allowed=True)

    def __init__(self, /, **options: Any) -> None:
        try:
            super().__init__(**options)
        except ValidationError as cause:
            problems = find_problems(cause, type(self))
            option = next((problem.option for problem in problems if problem.option), None)
            text = "\n".join(problem.text for problem in problems)
            raise ConfigError(text, code="SVFL-JOB-OPTION", option=option) from None

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """Return a validated copy with some options replaced.

        Args:
            update: new values by the name of the field or of the option.
            deep: True for a deep copy. It has an effect only if `update` is empty.

        Returns:
            The copy.

        Raises:
            ConfigError: if the options do not fit, with one line for each problem.
        """
        if not update:
            return super().model_copy(deep=deep)
        fields = type(self).model_fields
        current = {field.alias or name: getattr(self, name) for name, field in fields.items()}
        new = {fields[name].alias or name if name in fields else name: value for name, value in update.items()}
        return type(self)(**current | new)


class NamedOption(Config):
    """Base class of options that a job file selects by name, as in `sum = "tree"` or `[sum] name = "tree"`."""

    name: ClassVar[str]


N = TypeVar("N", bound=NamedOption)
MAX_PROBLEMS = 50
"""Number of problems of options that one error lists."""

LEADING_KEY = re.compile(r"([a-z_][\w.]*): ")
"""The key of an option at the beginning of a message."""


class Registry(dict[str, type[N]]):
    """The classes that an option of a job can select, by name.

    Args:
        what: name of the option, for error messages.
        *kinds: the classes.

    Attributes:
        more: loads classes that other packages provide, and returns a hint about packages that are not allowed.
    """

    def __init__(self, what: str, *kinds: type[N]) -> None:
        super().__init__({kind.name: kind for kind in kinds})
        self.what = what
        self.more: Callable[[], str] = str

    def read(self, value: Any) -> Any:
        """Read an option, for a pydantic validator.

        Args:
            value: the option itself, its name, or a mapping with `name` and further keys.

        Returns:
            The option; a value of another type is returned unchanged and fails in pydantic's validation.

        Raises:
            ValueError: if no class has this name.
        """
        if isinstance(value, str):
            value = {"name": value}
        if not isinstance(value, Mapping):
            return value
        keys = dict(value)
        name = keys.pop("name", None)
        if not isinstance(name, str) or name not in self:
            hint = self.more()
            if not isinstance(name, str) or name not in self:
                raise ValueError(f"there is no {self.what} of this name; choose one of {', '.join(self)}{hint}")
        return read_nested(self[name], keys)


def read_nested(kind: type[Config], keys: Any) -> Any:
    """Create an option that a job file contains as a nested table, and report problems with their full keys.

    Args:
        kind: the class of the option.
        keys: the keys and values of the table.

    Returns:
        The option. If `keys` is not a mapping, it is returned unchanged.

    Raises:
        PydanticCustomError: if the options do not fit; `find_problems` adds the key of the table.
    """
    if not isinstance(keys, Mapping):
        return keys
    try:
        return kind(**keys)
    except ConfigError as cause:
        option = cause.fields.get("option") or ""
        raise PydanticCustomError("nested", "{lines}", {"lines": cause.problem, "option": option}) from None


def to_plain(option: Config) -> dict[str, Any]:
    """Return an option as the keys and values of a job file, with its name if it has one."""
    keys: dict[str, Any] = {"name": option.name} if isinstance(option, NamedOption) else {}
    for key, field in type(option).model_fields.items():
        value = getattr(option, key)
        if value is not None:
            keys[field.alias or key] = (
                to_plain(value) if isinstance(value, Config) else list(value) if isinstance(value, tuple) else value
            )
    return keys


def mismatched_fields(option: Config, kind: type[Config], prefix: str = "") -> Iterator[str]:
    """Yield the names of fields whose values do not have the narrower types that `kind` declares.

    Args:
        option: the option.
        kind: a class that redeclares fields of the option with narrower types.
        prefix: text before each name, such as the key of the table with a dot.

    Yields:
        Names such as "protocol.sum".
    """
    for name, field in kind.model_fields.items():
        value: Any = getattr(option, name)
        required: Any = field.annotation
        if required == type(option).model_fields[name].annotation:
            continue
        if isinstance(value, Config) and isinstance(required, type) and issubclass(required, type(value)):
            yield from mismatched_fields(value, required, f"{prefix}{name}.")
        elif not isinstance(value, required):
            yield f"{prefix}{name}"


def flatten(keys: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Return nested keys on one level, with values as text: `{"protocol.sum": "auto"}`.

    Args:
        keys: keys and values as `to_plain` returns them.
        prefix: text before each key.

    Returns:
        The values by full key.
    """
    flat: dict[str, str] = {}
    for key, value in keys.items():
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
    return flat


class OptionProblem(NamedTuple):
    """One or more lines about options that cannot be used.

    Args:
        option: the full key of the option, such as "optimizer.lr"; empty if several options contradict each other.
        text: the problem, beginning with the key and without values of the options.
    """

    option: str
    text: str


def find_problems(error: ValidationError, kind: type[Config]) -> list[OptionProblem]:
    """Return the first problems that pydantic found in the options of class `kind`.

    A validator of several options names one of them by a message that begins with its key, as in "lr: is missing".
    """
    problems: list[OptionProblem] = []
    for item in error.errors(include_input=False, include_url=False):
        if sum(problem.text.count("\n") + 1 for problem in problems) >= MAX_PROBLEMS:
            problems.append(OptionProblem("", "further problems are not listed"))
            break
        option = shortened(".".join(str(part) for part in item["loc"]))
        key = option or kind.__name__
        match item["type"]:
            case "nested":
                inner = item["ctx"]["option"]
                text = "\n".join(f"{key}{_joint(line)}{line}" for line in item["msg"].splitlines())
                option = f"{option}.{inner}" if inner else option
            case "extra_forbidden":
                known = ", ".join(field.alias or name for name, field in kind.model_fields.items())
                text = f"{key}: unknown option (known: {known})"
            case "missing":
                text = f"{key}: the option is missing"
            case _:
                message = item["msg"].removeprefix("Value error, ").removeprefix("Input ")
                text = f"{key}: {message}"
                if not option and (first := LEADING_KEY.match(message)):
                    option, text = first[1], message
        problems.append(OptionProblem(option, text))
    return problems


def _joint(line: str) -> str:
    """Return what separates a key from its problem `line`: "." if the line begins with a nested key, otherwise ": "."""
    return "." if re.match(r"[\w.]+: ", line) else ": "
