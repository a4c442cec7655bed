"""Gaussian noise on local predictions before they are concealed, with an account over all pushes of a row.

    every push     H_k (n x c): each row is cut to the length `clip`, then N(0, sigma^2) is added to every entry

Neighbours are two tables of one party that differ in one row. A push of that row moves by at most 2 clip (L2), given
the weights it was computed from; every visit pushes it once. `sigma` is what makes all pushes of a row in a run
(epsilon, delta)-private together, by the RDP accountant of dp-accounting (Mironov 2017; the library composes and
converts). What the account does not cover: a party steps with its clean columns, and through its weights one row has a
small say in other rows' later predictions. Read epsilon as the loss of a row through its own pushes.

A run that goes on after a kill pushes rows again: those of batches that were visited before, and visits that had not
been saved. That is at most two more pushes of a row each time, of weights that may differ, where states are at most an
epoch apart; `after` says what it costs.

Noise is a secret: whoever could repeat it would take it off. It is drawn from a ChaCha20 stream under a key of the
operating system for each session, which is never kept, so no two pushes share it.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
from pydantic import Field

from securevfl.base.arrays import Floats
from securevfl.base.config import Config
from securevfl.base.extras import import_extra
from securevfl.crypto.prg import Prg
from securevfl.protocols.residuals.defences import clip_rows, normals

PUSHES_PER_RESUME = 2  # further pushes of a row, at most, each time a run is taken up again


class LocalNoise(Config):
    """Noise on local predictions, as much as an (epsilon, delta) of a row over the run asks for."""

    epsilon: float = Field(gt=0)
    """What all pushes of one row in a run may tell of it together (differential privacy), with `delta`."""
    delta: float = Field(gt=0, lt=0.5)
    """The probability with which epsilon may fail; well below one in the number of rows."""
    clip: float = Field(gt=0)
    """Length (L2) that each row of forward outputs is cut to first."""

    @property
    def sensitivity(self) -> float:
        """The farthest a push moves (L2) with one row, given the weights."""
        return 2.0 * self.clip

    def sigma(self, visits: int) -> float:
        """Return the standard deviation of the noise on each entry, for so many pushes of a row. ConfigError without
        `dp`."""
        return self.sensitivity * _noise_multiplier(self.epsilon, self.delta, visits)

    def after(self, visits: int, resumed: int) -> float:
        """Epsilon, at the same delta, of a run of so many visits that was taken up again so many times."""
        dp, rdp = _library()
        accountant = rdp.RdpAccountant()
        noise = dp.GaussianDpEvent(_noise_multiplier(self.epsilon, self.delta, visits))
        accountant.compose(noise, visits + PUSHES_PER_RESUME * resumed)
        return float(accountant.get_epsilon(self.delta))

    def promise(self, visits: int) -> str:
        """One line for people."""
        return (
            f"forward outputs are cut to length {self.clip:g} and blurred by sigma {self.sigma(visits):.3g}: epsilon "
            f"{self.after(visits, 0):.3g} at delta {self.delta:g}\n"
            f"for all {visits} pushes of a row, given the weights; {self.after(visits, 1):.3g} if the run is taken up "
            "again once from a state at most an epoch old"
        )


class LocalNoiseSampler:
    """The noise of one party in one session."""

    def __init__(self, noise: LocalNoise, visits: int) -> None:
        """visits: how often a row is pushed in the whole run. ConfigError without the extra."""
        self._clip, self._sigma = noise.clip, noise.sigma(visits)
        self._prg = Prg.fresh("noise on local predictions")

    def __call__(self, H: Floats) -> Floats:
        """H (n x c) as it may be pushed, under noise of its own."""
        return np.asarray(clip_rows(H, self._clip) + self._sigma * normals(self._prg, H.shape))


@lru_cache(maxsize=32)
def _noise_multiplier(epsilon: float, delta: float, visits: int) -> float:
    """sigma over the sensitivity."""
    dp, rdp = _library()

    def event(multiplier: float) -> Any:
        return dp.SelfComposedDpEvent(dp.GaussianDpEvent(multiplier), visits)

    return float(dp.calibrate_dp_mechanism(rdp.RdpAccountant, event, epsilon, delta, tol=1e-6))


def _library() -> tuple[Any, Any]:
    what = "noise on local predictions"
    return import_extra("dp_accounting", "dp", what), import_extra("dp_accounting.rdp", "dp", what)
