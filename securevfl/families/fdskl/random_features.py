"""Random Fourier features of a kernel model: frequencies of one party, and features and coefficients of a worker.

A phase is party l's product x_l w_l of columns and random frequencies, as an integer modulo 2^bits that stands for a
fraction of a turn. A feature is sqrt(2) times the cosine of the phases summed over all parties. A worker is a party
with labels; it has K blocks of D features and coefficients alpha (K, D).
"""

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

_COSINE_SCALE = np.float32(2**15 - 1)  # the integer that stands for a cosine of 1 in the cache
_COSINES: Cosines = np.rint(cos_circle(np.arange(2**16, dtype=np.uint16)) * _COSINE_SCALE).astype(np.int16)
_COSINES.flags.writeable = False


class RandomFrequencies(Secret):
    """The frequencies w_l of one party for every worker's features, drawn from the party's key.

    Args:
        model: the options of the kernel model, such as its number of features.
        key: the secret key that determines this party's frequencies.
        columns: d, number of columns of this party.
    """

    def __init__(self, model: Kernel, key: bytes, columns: int) -> None:
        self.key = key
        self.model = model
        self._columns = columns
        self._cache: dict[tuple[str, int], Floats] = {}

    def w(self, worker: str, k: int) -> Floats:
        """Return the frequencies (d, D) of block k for a worker, in turns per unit of x."""
        if (worker, k) not in self._cache:
            prg = Prg(derive_key(self.key, "fdskl", worker, k), "frequencies")
            bits = prg.array((self._columns, self.model.block_size), np.uint64) >> np.uint64(11)
            self._cache[worker, k] = self.model.frequencies((bits.astype(np.float64) + 0.5) * 2.0**-53)
        return self._cache[worker, k]

    def offset(self, worker: str, k: int) -> Phases:
        """Return the offsets b (D,) of block k, which only the worker itself adds to its phases."""
        return Prg(derive_key(self.key, "fdskl", worker, k), "offset").array(self.model.block_size, np.uint32)

    def phases(self, X: Floats, worker: str, k: int, bits: Bits) -> Phases:
        """Return the phases (n, D) of rows X, rounded to the nearest integer modulo 2^bits.

        Args:
            X: scaled columns (n, d).
            worker: the worker whose features are computed.
            k: number of the block of features.
            bits: number of bits of a phase.

        Returns:
            The phases (n, D).
        """
        w = self.w(worker, k)
        steps: Floats = X @ w
        steps *= 2.0**bits
        if float(np.abs(X).sum(axis=1).max(initial=0.0)) * float(np.abs(w).max()) * 2.0**bits >= 2.0**51:
            # Cauchy frequencies may be large, so phases are reduced modulo a turn before they are rounded
            np.remainder(steps, 2.0**bits, out=steps)
        # adding 1.5 * 2^52 rounds: the low bits of the sum's mantissa are the nearest integer, in two's complement
        steps += 1.5 * 2.0**52
        circle = steps.view(np.uint64).astype(np.uint32)
        if bits == 16:
            circle &= np.uint32(2**16 - 1)
        return circle


def cosines(phases: Phases, bits: Bits) -> Cosines:
    """Return the cosine of each phase in units of 1 / (2^15 - 1); the error is at most (pi + 1) * 2^-16."""
    steps = phases if bits == 16 else (phases + np.uint32(2**15)) >> np.uint32(16)
    return np.take(_COSINES, steps, mode="clip")  # "clip" is fastest, and all indices are within the table


class KernelExpansion:
    """A worker's coefficients alpha (K, D) and its cached features, which take 2 bytes each.

    Args:
        model: the options of the kernel model, such as its number of features.
        alpha: coefficients (M, 1); zeros if None.
    """

    def __init__(self, model: Kernel, alpha: Floats | None = None) -> None:
        self.model = model
        shape = model.blocks, model.block_size
        self.alpha: Floats32 = np.zeros(shape, np.float32) if alpha is None else alpha.reshape(shape).astype(np.float32)
        self._cosines: dict[Hashable, Cosines] = {}

    @property
    def theta(self) -> Floats:
        """The coefficients alpha of all features, as a column (M, 1)."""
        return self.alpha.astype(np.float64).reshape(-1, 1)

    def keep(self, rows: Hashable, k: int, cos: Cosines) -> None:
        """Cache the cosines (n, D) of block k under the name `rows`."""
        if rows not in self._cosines:
            self._cosines[rows] = np.empty((self.model.blocks, *cos.shape), np.int16)
        self._cosines[rows][k] = cos

    def drop(self, rows: Hashable) -> None:
        """Remove the rows with this name from the cache."""
        del self._cosines[rows]

    def phi(self, rows: Hashable, k: int) -> Floats32:
        """Return the features phi_k (n, D) of block k for cached rows."""
        return np.multiply(self._cosines[rows][k], np.float32(math.sqrt(2)) / _COSINE_SCALE, dtype=np.float32)

    def forward(self, rows: Hashable) -> Floats:
        """Return the outputs f (n, 1) of this worker's features on these rows."""
        f = np.zeros(self._cosines[rows].shape[1], np.float32)
        for k in np.flatnonzero(self.alpha.any(axis=1)).tolist():
            f += self.phi(rows, k) @ self.alpha[k]
        return f.astype(np.float64)[:, None]


class KernelModelPart:
    """One party's part of a kernel model: its frequencies and, at a worker, coefficients and cached features.

    `rows` is a name that the caller gives to a set of rows; all parties use the same names in the same order.

    Args:
        frequencies: the frequencies of this party.
        expansion: the coefficients and features of a worker; None at other parties.
    """

    def __init__(self, frequencies: RandomFrequencies, expansion: KernelExpansion | None) -> None:
        self.frequencies = frequencies
        self.expansion = expansion
        self._rows: dict[Hashable, int] = {}

    @property
    def model(self) -> Kernel:
        """The kernel model."""
        return self.frequencies.model

    @property
    def theta(self) -> Floats:
        """Alpha as a column (M, 1); without entries at a party that is not a worker."""
        return self.expansion.theta if self.expansion is not None else np.zeros((0, 1))

    def knows(self, rows: Hashable) -> bool:
        """Whether the features of these rows are cached, because their phases were summed before."""
        return rows in self._rows

    def exchange(self, sums: PhaseSums, rows: Hashable, X: Floats) -> None:
        """Sum the phases of these rows for every worker in turn; each worker caches their cosines.

        Args:
            sums: this party's side of the sums.
            rows: the name of the rows.
            X: scaled columns (n, d) of this party.
        """
        model = self.model
        for worker in sums.workers:

            def local_phases(k: int, worker: str = worker) -> Phases:
                phases = self.frequencies.phases(X, worker, k, sums.bits)
                if worker == sums.me:
                    phases += self.frequencies.offset(worker, k) >> np.uint32(32 - sums.bits)
                return phases

            for k, phases in sums.phases(worker, model.blocks, len(X), model.block_size, local_phases):
                assert self.expansion is not None, "only a worker receives phases"
                self.expansion.keep(rows, k, cosines(phases, sums.bits))
        self._rows[rows] = len(X)

    def drop(self, rows: Hashable) -> None:
        """Remove the rows with this name from the cache."""
        del self._rows[rows]
        if self.expansion is not None:
            self.expansion.drop(rows)

    def forward(self, rows: Hashable) -> Floats:
        """Return this party's outputs f_l (n, 1) on cached rows; zeros without coefficients."""
        return self.expansion.forward(rows) if self.expansion is not None else np.zeros((self._rows[rows], 1))
