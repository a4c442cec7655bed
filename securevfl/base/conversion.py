"""Conversion of plain values to dataclasses, from any thread.

msgspec collects the fields of a class when the class is used for the first time. If two threads do this at once for one
class, the process can crash. So threads convert values, and create decoders, one after the other.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

T = TypeVar("T")

conversion_lock = threading.RLock()
"""A thread holds this lock while msgspec may use a class for the first time. A hook of `convert` may call it again."""


def convert(values: Any, kind: type[T], *, hook: Callable[[Any, Any], Any] | None = None) -> T:
    """Convert plain values to an instance of a class.

    Args:
        values: the values, such as a dictionary by field name.
        kind: the class.
        hook: converts values of types that msgspec does not know.

    Returns:
        The instance.

    Raises:
        ValueError: if the values do not fit the fields.
    """
    with conversion_lock:
        return msgspec.convert(values, kind, dec_hook=hook)
