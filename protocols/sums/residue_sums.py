"""Conversion of summands to residues (integers modulo 2^bits, to which random masks can be added) and to bytes.

Reals(bits=64)  real numbers in fixed point, modulo 2^64: 8 bytes a number
Reals(bits=32)  real numbers in fixed point, modulo 2^32: 4 bytes a number
Circle(32)      phases, angles in units of 2 pi / 2^32, modulo 2^32: 4 bytes a phase
Circle(16)      phases, angles in units of 2 pi / 2^16, modulo 2^16: 2 bytes a phase
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from securevfl.base.arrays import Floats
from securevfl.crypto.fixed_point_ring import from_ring, to_ring
from securevfl.errors import ProtocolError
from securevfl.protocols.number_spaces import Phases, Reals, Space

Residues = NDArray[Any]  # an array of uint64, uint32 or uint16


def residue_type(space: Space) -> type[np.uint64] | type[np.uint32] | type[np.uint16]:
    """Return the numpy type of the residues for this kind of numbers."""
    if isinstance(space, Reals):
        return np.uint64 if space.bits == 64 else np.uint32
    return np.uint32 if space.bits == 32 else np.uint16


def to_residues(values: Floats | Phases, space: Space, terms: int) -> Residues:
    """Convert a summand to residues, for a sum of at most `terms` summands.

    Raise RangeError if a real number exceeds the bound of the space or is not finite.
    """
    if isinstance(space, Reals):
        return to_ring(np.asarray(values, np.float64), space.bound, terms, space.bits)
    return np.asarray(values).astype(residue_type(space), order="C")


def from_residues(total: Residues, space: Space, terms: int) -> NDArray[Any]:
    """Convert a sum of `terms` summands' residues back to numbers: float64 for reals, uint32 for phases."""
    if isinstance(space, Reals):
        return from_ring(total, space.bound, terms)
    return total.astype(np.uint32)


def pack(residues: Residues) -> bytes:
    """Return the residues as little-endian bytes, row by row."""
    return residues.astype(residues.dtype.newbyteorder("<"), copy=False).tobytes()


def unpack(data: bytes, shape: tuple[int, ...], space: Space, sender: str) -> Residues:
    """Read the bytes that `pack` returned, without copying them. Raise ProtocolError if they have the wrong length."""
    dtype = np.dtype(residue_type(space)).newbyteorder("<")
    if len(data) != prod(shape) * dtype.itemsize:
        raise ProtocolError(
            f"{sender} sent {len(data)} bytes of masked outputs instead of {prod(shape) * dtype.itemsize}",
            code="SVFL-PROTOCOL-SIZE",
            party=sender,
        )
    return np.frombuffer(data, dtype).reshape(shape)
