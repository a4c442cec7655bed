"""Random Fourier features of a kernel model: frequencies of one party, and features and coefficients of a worker."""

from __future__ import annotations

import math
from collections.abc import Hashable

import numpy as np
from numpy.typing import NDArray

from securevfl.base.arrays import Floats
from securevfl.crypto.fixed_point_ring import cos_circle
from securevfl.crypto.key_derivation import derive_key
from securevfl.crypto.prg import Prg
from securevfl.crypto.secret import Secret
from securevfl.families.fdskl.kernel_model import Bits, Kernel
from securevfl.families.fdskl.phase_sums import PhaseSums
from securevfl.protocols.number_spaces import Phases

Floats32 = NDArray[np.float32]

Cosines = NDArray[np.int16]

_COS = np.float32(2**15 - 1)  # cos 0 in the cache

_COSINES: Cosines = np.rint(cos_circle(np.arange(2**16, dtype=np.uint16)) * _COS).astype(np.int16)

_COSINES.flags.writeable = False


class RandomFrequencies(Secret):
    """One party's own rows w_l of every worker's features, from its key."""

    def __init__(self, model: Kernel, key: bytes, columns: int) -> None:
        self.key = key
        self.model = model
        self._columns = columns
        self._known: dict[tuple[str, int], Floats] = {}

    def w(self, worker: str, k: int) -> Floats:
        """Block k for this worker (d x D), in turns per unit of x."""
        if (worker, k) not in self._known:
            prg = Prg(derive_key(self.key, "fdskl", worker, k), "frequencies")
            bits = prg.array((self._columns, self.model.block_size), np.uint64) >> np.uint64(11)
            self._known[worker, k] = self.model.frequencies((bits.astype(np.float64) + 0.5) * 2.0**-53)
        return self._known[worker, k]

    def offset(self, worker: str, k: int) -> Phases:
        """B of block k (D,), for the worker's own use."""
        return Prg(derive_key(self.key, "fdskl", worker, k), "offset").array(self.model.block_size, np.uint32)

    def phases(self, X: Floats, worker: str, k: int, bits: Bits) -> Phases:
        """x_l w_l of each row (n x D) on the circle Z_2^bits, rounded to the nearest."""
        w = self.w(worker, k)
        steps: Floats = X @ w
        steps *= 2.0**bits
        if float(np.abs(X).sum(axis=1).max(initial=0.0)) * float(np.abs(w).max()) * 2.0**bits >= 2.0**51:
            np.remainder(steps, 2.0**bits, out=steps)  # draws far out, as Cauchy's may be
        steps += 1.5 * 2.0**52  # leaves the nearest integer in the low bits, in two's complement
        circle = steps.view(np.uint64).astype(np.uint32)
        if bits == 16:
            circle &= np.uint32(2**16 - 1)
        return circle


def cosines(phases: Phases, bits: Bits) -> Cosines:
    """Cos of each phase in units of 1 / (2^15 - 1), off by at most pi 2^-16 + 2^-16."""
    steps = phases if bits == 16 else (phases + np.uint32(2**15)) >> np.uint32(16)
    return np.take(_COSINES, steps, mode="clip")  # always in range; clip spares a check


class KernelExpansion:
    """A worker's coefficients alpha (K x D) and the features it has kept, which take 2 bytes each."""

    def __init__(self, model: Kernel, alpha: Floats | None = None) -> None:
        self.model = model
        shape = model.blocks, model.block_size
        self.alpha: Floats32 = np.zeros(shape, np.float32) if alpha is None else alpha.reshape(shape).astype(np.float32)
        self._kept: dict[Hashable, Cosines] = {}

    @property
    def theta(self) -> Floats:
        """Alpha as a column (M x 1)."""
        return self.alpha.astype(np.float64).reshape(-1, 1)

    def keep(self, rows: Hashable, k: int, cos: Cosines) -> None:
        """Keep the cosines of block k (n x D) for these rows."""
        if rows not in self._kept:
            self._kept[rows] = np.empty((self.model.blocks, *cos.shape), np.int16)
        self._kept[rows][k] = cos

    def drop(self, rows: Hashable) -> None:
        """Forgets what it kept of these rows."""
        del self._kept[rows]

    def phi(self, rows: Hashable, k: int) -> Floats32:
        """phi_k of these rows (n x D)."""
        return np.multiply(self._kept[rows][k], np.float32(math.sqrt(2)) / _COS, dtype=np.float32)

    def forward(self, rows: Hashable) -> Floats:
        """F of this worker's features on these rows (n x 1)."""
        kept = self._kept[rows]
        f = np.zeros(kept.shape[1], np.float32)
        for k in np.flatnonzero(self.alpha.any(axis=1)).tolist():
            f += self.phi(rows, k) @ self.alpha[k]
        return f.astype(np.float64)[:, None]


class KernelModelPart:
    """What one party holds of a kernel model: its frequencies and, at a worker, coefficients and features kept.

    Rows are named by the caller; every party uses the same names in the same order.
    """

    def __init__(self, frequencies: RandomFrequencies, expansion: KernelExpansion | None) -> None:
        self.frequencies = frequencies
        self.expansion = expansion
        self._rows: dict[Hashable, int] = {}

    @property
    def model(self) -> Kernel:
        """What it is a share of."""
        return self.frequencies.model

    @property
    def theta(self) -> Floats:
        """Alpha as a column (M x 1), without entries at a party that is no worker."""
        return self.expansion.theta if self.expansion is not None else np.zeros((0, 1))

    def knows(self, rows: Hashable) -> bool:
        """Whether the phases of these rows have been exchanged and kept."""
        return rows in self._rows

    def exchange(self, sums: PhaseSums, rows: Hashable, X: Floats) -> None:
        """Sum the phases of these rows X (n x d) to every worker in turn; each worker keeps their cosines."""
        model = self.model
        for worker in sums.workers:

            def own(k: int, worker: str = worker) -> Phases:
                part = self.frequencies.phases(X, worker, k, sums.bits)
                if worker == sums.me:
                    part += self.frequencies.offset(worker, k) >> np.uint32(32 - sums.bits)
                return part

            for k, phases in sums.phases(worker, model.blocks, len(X), model.block_size, own):
                assert self.expansion is not None, "only a worker receives phases"
                self.expansion.keep(rows, k, cosines(phases, sums.bits))
        self._rows[rows] = len(X)

    def drop(self, rows: Hashable) -> None:
        """Forgets these rows."""
        del self._rows[rows]
        if self.expansion is not None:
            self.expansion.drop(rows)

    def forward(self, rows: Hashable) -> Floats:
        """Return this party's f_l (n x 1) on rows that it knows; zeros where it has no coefficients."""
        return self.expansion.forward(rows) if self.expansion is not None else np.zeros((self._rows[rows], 1))
