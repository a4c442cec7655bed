"""The serialisable state of a participant: arrays, bytes, numbers, strings, and lists and dicts of these.

A state is stored as JSON and is restored bit for bit. It contains weights and keys, so its repr lists names only.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

_ARRAY, _BYTES = "array", "bytes"  # what marks a table that stands for one of these


class State(dict[str, Any]):
    """Names to values. Equal states continue a training, or predict, in the same way."""

    def __repr__(self) -> str:
        return f"State({', '.join(self)})"

    def plain(self) -> dict[str, Any]:
        """Return the state as values that JSON can hold. Raises TypeError if there is a value of another kind."""
        return {name: _plain(value) for name, value in self.items()}

    @classmethod
    def read(cls, plain: Mapping[str, Any]) -> State:
        """Read a state back from what `plain` returned. Raises ValueError, KeyError or TypeError if it is not of that
        form."""
        return cls({str(name): _read(value) for name, value in plain.items()})


def _plain(value: Any) -> Any:
    match value:
        case np.ndarray():
            little = value.dtype.newbyteorder("<")
            return {_ARRAY: little.str, "shape": list(value.shape), "values": value.astype(little).ravel().tolist()}
        case bytes():
            return {_BYTES: value.hex()}
        case Mapping():
            return {str(name): _plain(each) for name, each in value.items()}
        case list() | tuple():
            return [_plain(each) for each in value]
        case bool() | int() | float() | str() | None:
            return value
    raise TypeError(f"{type(value).__name__} has no place in a state")


def _read(value: Any) -> Any:
    if isinstance(value, list):
        return [_read(each) for each in value]
    if not isinstance(value, dict):
        return value
    if set(value) == {_ARRAY, "shape", "values"}:
        kind = np.dtype(value[_ARRAY])
        if kind.kind not in "biuf":
            raise ValueError("an array of numbers was expected")
        return np.array(value["values"], kind).reshape(value["shape"])
    if set(value) == {_BYTES}:
        return bytes.fromhex(value[_BYTES])
    return {name: _read(each) for name, each in value.items()}
