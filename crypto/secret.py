"""Base class of secrets: they show nothing and refuse to be pickled or copied."""

from __future__ import annotations

from typing import Any, NoReturn


class Secret:
    """Base of everything that must stay in its process: shows nothing, refuses to be pickled or copied."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"<{type(self).__name__}, secret>"

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise TypeError(f"{type(self).__name__} holds a secret and cannot be pickled or copied")
