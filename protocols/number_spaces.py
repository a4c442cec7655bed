"""The numbers that a sum is made of: reals up to a bound, or phases of a circle."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

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


KindOfSpace: TypeAlias = "type[Reals] | type[Circle]"
