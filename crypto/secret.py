"""Base class of objects that contain secrets: `repr` shows only the class, and they cannot be pickled or copied."""

from __future__ import annotations

from typing import Any, NoReturn


class Secret:
    """Base class of objects that must not leave their process: `repr` shows only the class, and pickling fails."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"<{type(self).__name__}, secret>"

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise TypeError(f"{type(self).__name__} holds a secret and cannot be pickled or copied")
