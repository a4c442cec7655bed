"""Summands of a masked sum as residues, in memory and in messages.

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
    """Return the numpy type of a residue."""
    if isinstance(space, Reals):
        return np.uint64 if space.bits == 64 else np.uint32
    return np.uint32 if space.bits == 32 else np.uint16


def to_residues(values: Floats | Phases, space: Space, terms: int) -> Residues:
    """Convert a summand of a sum of at most `terms` summands.

    Raise RangeError if a real number exceeds the bound or is not finite.
    """
    if isinstance(space, Reals):
        return to_ring(np.asarray(values, np.float64), space.bound, terms, space.bits)
    return np.asarray(values).astype(residue_type(space), order="C")


def from_residues(total: Residues, space: Space, terms: int) -> NDArray[Any]:
    """Convert a sum of residues to the sum of the summands: float64, or phases as uint32."""
    if isinstance(space, Reals):
        return from_ring(total, space.bound, terms)
    return total.astype(np.uint32)


def pack(residues: Residues) -> bytes:
    """Return the residues as little-endian bytes, row by row."""
    return residues.astype(residues.dtype.newbyteorder("<"), copy=False).tobytes()


def unpack(data: bytes, shape: tuple[int, ...], space: Space, sender: str) -> Residues:
    """Read the result of `pack` without copying it. Raise ProtocolError if it has another length than agreed."""
    dtype = np.dtype(residue_type(space)).newbyteorder("<")
    if len(data) != prod(shape) * dtype.itemsize:
        raise ProtocolError(
            f"{sender} sent masked outputs of {len(data)} bytes, shape {shape} has {prod(shape) * dtype.itemsize}",
            code="SVFL-PROTOCOL-SIZE",
            party=sender,
        )
    return np.frombuffer(data, dtype).reshape(shape)
