"""What a mutant is, and how one is applied."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock


@dataclass(frozen=True)
class Mutant:
    """One way to break the code.

    `apply` breaks it while its block runs; `caught_by` names the check that then finds something of kind `finding`.
    """

    name: str
    what: str
    caught_by: str
    finding: str
    apply: Callable[[], AbstractContextManager[None]]


Patch = tuple[Any, str, Any]


def patched(*patches: Patch) -> Callable[[], AbstractContextManager[None]]:
    """Set attributes while a block runs, each given as (owner, name, value)."""

    @contextmanager
    def apply() -> Iterator[None]:
        with ExitStack() as stack:
            for owner, name, value in patches:
                stack.enter_context(mock.patch.object(owner, name, value))
            yield

    return apply


def edited(owner: Any, name: str, *changes: tuple[str, str]) -> Patch:
    """Return the patch that changes the text of a function or method of a class or module: in each change the first
    text becomes the second.

    AssertionError unless the first stands in it once, so that a mutant does not outlive what it mutates.
    """
    found = inspect.getattr_static(owner, name)
    kind = type(found) if isinstance(found, staticmethod | classmethod | property) else None
    function: Any = found.fget if isinstance(found, property) else getattr(found, "__func__", found)
    source = textwrap.dedent(inspect.getsource(function))
    source = "\n".join(line for line in source.split("\n") if not line.startswith("@"))
    for old, new in changes:
        assert source.count(old) == 1, f"{name}: {old!r} stands there {source.count(old)} times; correct the mutant"
        source = source.replace(old, new)
    source = source.replace("super()", f"super({getattr(owner, '__name__', '')}, self)")
    place = dict(function.__globals__)
    exec(compile(f"from __future__ import annotations\n{source}", f"<mutant of {name}>", "exec"), place)  # noqa: S102
    changed = place[function.__name__]
    return owner, name, changed if kind is None else kind(changed)


class Stand:
    """A module with other attributes where given."""

    def __init__(self, inner: Any, **others: Any) -> None:
        self._inner = inner
        self.__dict__.update(others)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)
