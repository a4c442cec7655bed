"""The parts of a masked sum as residues, in memory and in a message.

Reals(bits=64)  Z_2^64, fixed point: 8 bytes a value
Reals(bits=32)  Z_2^32, fixed point: 4 bytes a value
Circle(32)      Z_2^32: 4 bytes a phase
Circle(16)      Z_2^16: 2 bytes a phase
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

Residues = NDArray[Any]  # uint64, uint32 or uint16


def residue_type(space: Space) -> type[np.uint64] | type[np.uint32] | type[np.uint16]:
    """Return the numpy type that one residue of the space is held in."""
    if isinstance(space, Reals):
        return np.uint64 if space.bits == 64 else np.uint32
    return np.uint32 if space.bits == 32 else np.uint16


def to_residues(values: Floats | Phases, space: Space, terms: int) -> Residues:
    """Convert a part (any shape) of a sum of at most `terms`. RangeError if a real is beyond the bound or not
    finite."""
    if isinstance(space, Reals):
        return to_ring(np.asarray(values, np.float64), space.bound, terms, space.bits)
    return np.asarray(values).astype(residue_type(space), order="C")


def from_residues(total: Residues, space: Space, terms: int) -> NDArray[Any]:
    """Convert residues added up to the sum behind them: float64, or phases as uint32."""
    if isinstance(space, Reals):
        return from_ring(total, space.bound, terms)
    return total.astype(np.uint32)


def pack(residues: Residues) -> bytes:
    """Little-endian, row by row."""
    return residues.astype(residues.dtype.newbyteorder("<"), copy=False).tobytes()


def unpack(data: bytes, shape: tuple[int, ...], space: Space, sender: str) -> Residues:
    """Read what `pack` wrote, read-only. ProtocolError if the length does not fit the agreed shape."""
    dtype = np.dtype(residue_type(space)).newbyteorder("<")
    if len(data) != prod(shape) * dtype.itemsize:
        raise ProtocolError(
            f"{sender} was expected to send a masked part of shape {shape} ({prod(shape) * dtype.itemsize} bytes), "
            f"{len(data)} bytes came; do both run the same job?"
        )
    return np.frombuffer(data, dtype).reshape(shape)
