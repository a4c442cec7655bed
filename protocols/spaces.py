"""The numbers that a sum is made of: reals up to a bound, or phases of a circle."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from securevfl.errors import ProtocolError
from securevfl.runtime.codec import Numbers

Phases = NDArray[np.uint32]


@dataclass(frozen=True)
class Reals:
    """Sums of real vectors, |v| <= bound, of `bits` a number on the line: floating point where they go in the clear,
    fixed point in Z_2^bits where they are masked. What is encrypted has the precision of its engine."""

    bound: float = 2.0**12
    bits: Literal[32, 64] = 64


@dataclass(frozen=True)
class Circle:
    """Sums of phases in Z_2^bits = [0, 2 pi); carried as uint32."""

    bits: Literal[16, 32] = 32


Space = Reals | Circle
DOUBLES = Reals()


def carried(values: NDArray[Any], space: Reals) -> Numbers:
    """Round values to as many bits each as the space has, as they go in the clear; too large ones become infinite."""
    if space.bits == 64:
        return values.astype(np.float64)
    with np.errstate(over="ignore"):
        return values.astype(np.float32)


def check_bits(sender: str, values: NDArray[Any], space: Reals) -> None:
    """ProtocolError unless numbers that came in the clear have as many bits each as was agreed."""
    if 8 * values.itemsize != space.bits:
        raise ProtocolError(
            f"{sender} was expected to send numbers of {space.bits} bits, {8 * values.itemsize} came; do both run the "
            "same job?"
        )


KindOfSpace: TypeAlias = "type[Reals] | type[Circle]"
