"""The kinds of numbers that sum protocols add: reals up to a bound, or phases of a circle."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

Phases = NDArray[np.uint32]


@dataclass(frozen=True)
class Reals:
    """Vectors of real numbers v with |v| <= bound.

    Numbers in the clear are sent in floating point, masked numbers in fixed point modulo 2^bits. Encrypted numbers have
    the precision of their engine.

    Attributes:
        bound: largest absolute value.
        bits: size of a number in a message.
    """

    bound: float = 2.0**12
    bits: Literal[32, 64] = 64


@dataclass(frozen=True)
class Circle:
    """Vectors of phases in Z_2^bits, which stands for [0, 2 pi); stored as uint32."""

    bits: Literal[16, 32] = 32


Space = Reals | Circle

DOUBLES = Reals()


KindOfSpace: TypeAlias = "type[Reals] | type[Circle]"
