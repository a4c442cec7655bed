"""The serialisable state of a participant: arrays, bytes, numbers, strings, and lists and dicts of these.

A state is stored as JSON and is restored bit for bit. It contains weights and keys, so its repr lists names only.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

_ARRAY, _BYTES = "array", "bytes"  # the key of the JSON object that stands for an array or for bytes


class State(dict[str, Any]):
    """Named values from which a participant (one party's side of a run) continues a training or predicts."""

    def __repr__(self) -> str:
        """Return the names of the values, without the values."""
        return f"State({', '.join(self)})"

    def plain(self) -> dict[str, Any]:
        """Encode the state as values that JSON can represent.

        Returns:
            A dict of numbers, strings, booleans, None, lists and dicts.
        """
        return {name: _encode(value) for name, value in self.items()}

    @classmethod
    def read(cls, plain: Mapping[str, Any]) -> State:
        """Decode a state that `plain` has encoded. Malformed input raises ValueError, KeyError or TypeError."""
        return cls({str(name): _decode(value) for name, value in plain.items()})


def _encode(value: Any) -> Any:
    match value:
        case np.ndarray():
            little = value.dtype.newbyteorder("<")
            return {_ARRAY: little.str, "shape": list(value.shape), "values": value.astype(little).ravel().tolist()}
        case bytes():
            return {_BYTES: value.hex()}
        case Mapping():
            return {str(name): _encode(item) for name, item in value.items()}
        case list() | tuple():
            return [_encode(item) for item in value]
        case bool() | int() | float() | str() | None:
            return value
    raise TypeError(f"a state cannot contain values of type {type(value).__name__}")


def _decode(value: Any) -> Any:
    if isinstance(value, list):
        return [_decode(item) for item in value]
    if not isinstance(value, dict):
        return value
    if set(value) == {_ARRAY, "shape", "values"}:
        dtype = np.dtype(value[_ARRAY])
        if dtype.kind not in "biuf":
            raise ValueError("an array of a state does not contain numbers")
        return np.array(value["values"], dtype).reshape(value["shape"])
    if set(value) == {_BYTES}:
        return bytes.fromhex(value[_BYTES])
    return {name: _decode(item) for name, item in value.items()}
