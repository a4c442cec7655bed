"""Another engine: here the lattice again under another name."""

from __future__ import annotations

from typing import ClassVar

from securevfl.crypto.lattice.lattice_gradient import LatticeGradient
from securevfl.crypto.lattice.lattice_sum import LatticeSum
from securevfl.crypto.scheme import AdditiveScheme, LinearScheme
from securevfl.protocols.engines import Engine


class OtherEngine(Engine):
    """The members that an engine must define, and no more."""

    name: ClassVar[str] = "other"
    assumption: ClassVar[str] = "RLWE, 128-bit standard, under another name"

    def scheme(self) -> LinearScheme:
        return LatticeGradient()

    def sums(self) -> AdditiveScheme:
        return LatticeSum()
