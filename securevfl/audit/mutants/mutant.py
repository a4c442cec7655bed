"""What a mutant is, and how one is applied."""

from __future__ import annotations

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
    """Sets attributes while a block runs: (owner, name, value)."""

    @contextmanager
    def apply() -> Iterator[None]:
        with ExitStack() as stack:
            for owner, name, value in patches:
                stack.enter_context(mock.patch.object(owner, name, value))
            yield

    return apply


class Stand:
    """A module with other attributes where given."""

    def __init__(self, inner: Any, **others: Any) -> None:
        self._inner = inner
        self.__dict__.update(others)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)
