"""The kinds of numbers that sum protocols add: reals up to a bound, or phases.

A phase is an angle between 0 and 2 pi, stored as an integer modulo 2^bits, so that integer addition modulo 2^bits adds
angles. Kernel methods with random Fourier features (FDSKL) use phases.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

Phases = NDArray[np.uint32]


@dataclass(frozen=True)
class Reals:
    """Vectors of real numbers whose absolute values are at most `bound`.

    Unencrypted numbers are sent in floating point. Numbers with a mask are sent in fixed point modulo 2^bits. The
    precision of encrypted numbers depends on the encryption scheme.

    Attributes:
        bound: largest absolute value.
        bits: size of a number in a message, in bits.
    """

    bound: float = 2.0**12
    bits: Literal[32, 64] = 64


@dataclass(frozen=True)
class Circle:
    """Vectors of phases: integers modulo 2^bits that represent angles in [0, 2 pi), stored as uint32."""

    bits: Literal[16, 32] = 32


Space = Reals | Circle

DOUBLES = Reals()


KindOfSpace: TypeAlias = "type[Reals] | type[Circle]"
