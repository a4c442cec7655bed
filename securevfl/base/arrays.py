"""Types of the arrays that modules pass to each other, and dataclasses of arrays that can be stored."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, Protocol, Self, get_args

import numpy as np
from numpy.typing import NDArray

from securevfl.base.conversion import convert

Floats = NDArray[np.float64]


class RowSlices(Protocol):
    """Interface of n rows of d numbers that are read with slices, such as an array."""

    def __len__(self) -> int: ...

    def __getitem__(self, rows: slice, /) -> Floats: ...


class SerializableFields:
    """Base class of dataclasses that convert to and from plain values for storage.

    Fields are arrays, numbers, strings, and tuples or instances of other such classes. `__repr__` shows no value:
    declare the dataclass with `repr=False` if its fields are secret.
    """

    def __repr__(self) -> str:
        return f"<{type(self).__name__}, secret>"

    def state(self, *, whole: bool = True) -> dict[str, Any]:
        """Return the fields by name, as arrays, numbers, strings, lists and dictionaries.

        Infinite floats in arrays become the largest finite number.

        Args:
            whole: False to leave out values that only training needs.

        Returns:
            The values by field name.
        """
        return {field.name: _plain(getattr(self, field.name), whole) for field in fields(self)}  # type: ignore[arg-type]

    @classmethod
    def read(cls, state: Mapping[str, Any]) -> Self:
        """Restore an instance from the values that `state` returned.

        Args:
            state: the values by field name.

        Returns:
            The instance.

        Raises:
            ValueError: if the values do not fit the fields.
        """
        return convert(state, cls, hook=_array)


def _plain(value: Any, whole: bool) -> Any:
    match value:
        case SerializableFields():
            return value.state(whole=whole)
        case tuple():
            return [_plain(item, whole) for item in value]
        case np.ndarray() if value.dtype.kind == "f":
            largest = np.finfo(value.dtype).max
            return np.clip(value, -largest, largest)
    return value


def _array(kind: Any, value: Any) -> NDArray[Any]:
    return np.asarray(value, get_args(get_args(kind)[1])[0])
