"""The implementations of encrypted products with shared vectors: this package's, and Microsoft SEAL (via tenseal)."""

from __future__ import annotations

from collections.abc import Callable

from securevfl.crypto.kernel.shares import KernelShares
from securevfl.crypto.lattice.lattice_shares import LatticeShares
from securevfl.crypto.share_scheme import ShareScheme
from securevfl.protocols.engines import Library

SHARE_SCHEMES: dict[Library, Callable[[int], ShareScheme]] = {"own": KernelShares, "seal": LatticeShares}
