"""The arrays that all rooms pass to each other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, Protocol, Self, get_args

import msgspec
import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


class RowSlices(Protocol):
    """Rows (n x d) that are read by slices; an array is one."""

    def __len__(self) -> int: ...

    def __getitem__(self, rows: slice, /) -> Floats: ...


class SerializableFields:
    """A dataclass of arrays, numbers, texts and others of its kind, which a party keeps as plain values.

    Its own `__repr__` shows nothing: declare the dataclass with repr=False where what it holds is secret.
    """

    def __repr__(self) -> str:
        return f"<{type(self).__name__}, secret>"

    def state(self, *, whole: bool = True) -> dict[str, Any]:
        """Return its fields as plain arrays, numbers, texts, tables and lists, what is infinite as the largest number;
        with `whole` also what only the training rows need."""
        return {each.name: _plain(getattr(self, each.name), whole) for each in fields(self)}  # type: ignore[arg-type]

    @classmethod
    def read(cls, state: Mapping[str, Any]) -> Self:
        """Restore what `state` gave. ValueError if it is of another form."""
        return msgspec.convert(state, cls, dec_hook=_array)


def _plain(value: Any, whole: bool) -> Any:
    match value:
        case SerializableFields():
            return value.state(whole=whole)
        case tuple():
            return [_plain(each, whole) for each in value]
        case np.ndarray() if value.dtype.kind == "f":
            most = np.finfo(value.dtype).max
            return np.clip(value, -most, most)
    return value


def _array(kind: Any, value: Any) -> NDArray[Any]:
    return np.asarray(value, get_args(get_args(kind)[1])[0])
