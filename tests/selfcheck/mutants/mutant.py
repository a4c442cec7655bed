"""Definition and application of mutants."""

from __future__ import annotations

import inspect
import sys
import textwrap
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock


@dataclass(frozen=True)
class Mutant:
    """One deliberate error in the code.

    `apply` introduces it while its block runs; `caught_by` names the check that then reports a finding of kind
    `finding`.
    """

    name: str
    what: str
    caught_by: str
    finding: str
    apply: Callable[[], AbstractContextManager[None]]


class Edit:
    """A change of the text of a function.

    It is computed when it is applied, so an outdated change fails one mutant only.
    """

    def __init__(self, owner: Any, name: str, changes: Sequence[tuple[str, str]]) -> None:
        self._owner, self._name, self._changes = owner, name, changes

    def __iter__(self) -> Iterator[Any]:
        return iter((self._owner, self._name, self.made))

    def __getitem__(self, place: int) -> Any:
        return (self._owner, self._name, self.made)[place]

    @property
    def made(self) -> Any:
        """Return the changed function. Raise AssertionError unless each old text occurs once in its source."""
        owner, name = self._owner, self._name
        attribute = inspect.getattr_static(owner, name)
        kind = type(attribute) if isinstance(attribute, staticmethod | classmethod | property) else None
        function: Any = attribute.fget if isinstance(attribute, property) else getattr(attribute, "__func__", attribute)
        source = textwrap.dedent(inspect.getsource(function))
        source = "\n".join(line for line in source.split("\n") if not line.startswith("@"))
        for old, new in self._changes:
            assert source.count(old) == 1, f"{name}: {old!r} occurs {source.count(old)} times; correct the mutant"
            source = source.replace(old, new)
        source = source.replace("super()", f"super({getattr(owner, '__name__', '')}, self)")
        place = dict(function.__globals__)
        exec(compile(f"from __future__ import annotations\n{source}", f"<mutant of {name}>", "exec"), place)
        changed = place[function.__name__]
        return changed if kind is None else kind(changed)


Patch = tuple[Any, str, Any] | Edit


def edited(owner: Any, name: str, *changes: tuple[str, str]) -> Edit:
    """Return the patch that changes the text of a function or method of a class or module: in each change the first
    text becomes the second.
    """
    return Edit(owner, name, changes)


def patched(*patches: Patch) -> Callable[[], AbstractContextManager[None]]:
    """Set attributes while a block runs, each given as (owner, name, value); the value may be an `Edit` of another."""

    @contextmanager
    def apply() -> Iterator[None]:
        with ExitStack() as stack:
            for owner, name, value in patches:
                stack.enter_context(mock.patch.object(owner, name, value.made if isinstance(value, Edit) else value))
            yield

    return apply


def clear_caches() -> None:
    """Forget the results that functions of the package have cached, such as those that a mutant has computed."""
    modules = [module for name, module in sys.modules.items() if name.partition(".")[0] == "securevfl"]
    for value in [value for module in modules for value in vars(module).values()]:
        if callable(clear := getattr(value, "cache_clear", None)):
            clear()


def touched(mutant: Mutant) -> set[str]:
    """Name the modules whose attributes a mutant sets."""
    modules, original = set[str](), mock.patch.object

    def noting(owner: Any, *args: Any, **keys: Any) -> Any:
        modules.add(str(getattr(owner, "__module__", None) or getattr(owner, "__name__", "")))
        return original(owner, *args, **keys)

    with mock.patch.multiple(mock.patch, object=noting), mutant.apply():
        pass
    return modules


class Stand:
    """A copy of a module in which given attributes are replaced."""

    def __init__(self, inner: Any, **others: Any) -> None:
        self._inner = inner
        self.__dict__.update(others)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)
