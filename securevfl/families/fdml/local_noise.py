"""Gaussian noise on local predictions before they are pushed, with a privacy account over all pushes of a row.

    every push     H_k (n, c): each row is clipped to L2 norm `clip`, then noise N(0, sigma^2) is added to every entry

A worker *pushes* (sends) its outputs H_k on a batch once in each iteration that uses the batch. Changing one row of its
table changes a push by at most 2 * clip in L2 norm, with fixed weights. `sigma` is chosen so that all pushes of a row
in a run together are (epsilon, delta)-private (RDP accountant of dp-accounting, Mironov 2017). Updates of weights use
columns without noise and are not covered.

A resumed run pushes some rows again, at most twice for each resume; `after` computes the resulting epsilon. The noise
is drawn from a ChaCha20 stream with a fresh key for each session, and must stay secret, because it could be subtracted.
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

PUSHES_PER_RESUME = 2  # maximum number of additional pushes of a row after each resume


NOISE_FEATURE = "noise on local predictions"
"""Name of the feature in errors about its optional library."""


class LocalNoise(Config):
    """A job's option for noise that makes all pushes of a row in a run together (epsilon, delta)-private."""

    epsilon: float = Field(gt=0, le=1e6)
    """Privacy budget (differential privacy, with `delta`) of all pushes of one row in a run together."""
    delta: float = Field(gt=0, lt=0.5)
    """Probability with which epsilon may fail; well below one divided by the number of rows."""
    clip: float = Field(gt=0, le=1e12)
    """L2 norm to which each row of outputs is clipped before noise is added."""

    @property
    def sensitivity(self) -> float:
        """Maximum L2 distance by which changing one row of the table changes a push, if the weights stay the same."""
        return 2.0 * self.clip

    def sigma(self, pushes: int) -> float:
        """Return the standard deviation of the noise on each entry, for `pushes` pushes of a row."""
        return self.sensitivity * _noise_multiplier(self.epsilon, self.delta, pushes)

    def after(self, pushes: int, resumed: int) -> float:
        """Return the epsilon, for the same delta, of a run with `pushes` pushes of a row and `resumed` resumes."""
        dp, rdp = _library()
        accountant = rdp.RdpAccountant()
        noise = dp.GaussianDpEvent(_noise_multiplier(self.epsilon, self.delta, pushes))
        accountant.compose(noise, pushes + PUSHES_PER_RESUME * resumed)
        return float(accountant.get_epsilon(self.delta))

    def promise(self, pushes: int) -> str:
        """Return two lines that state the privacy guarantee of a run with `pushes` pushes of each row.

        Args:
            pushes: number of pushes of each row; 0 if the run has yet to determine its epochs.

        Returns:
            The lines.
        """
        if not pushes:
            return (
                f"forward outputs are clipped to norm {self.clip:g}, and noise is added: epsilon {self.epsilon:.3g} at "
                f"delta {self.delta:g}\n"
                "for all pushes of a row, with fixed weights; the number of epochs determines sigma"
            )
        return (
            f"forward outputs are clipped to norm {self.clip:g}, and noise of sigma {self.sigma(pushes):.3g} is added: "
            f"epsilon {self.after(pushes, 0):.3g} at delta {self.delta:g}\n"
            f"for all {pushes} pushes of a row, with fixed weights; {self.after(pushes, 1):.3g} if the run is resumed "
            "once from a state at most an epoch old"
        )


class LocalNoiseSampler:
    """The noise of one party in one session.

    Args:
        noise: the noise that the job asks for.
        pushes: number of pushes of a row in the whole run.
    """

    def __init__(self, noise: LocalNoise, pushes: int) -> None:
        self._clip, self._sigma = noise.clip, noise.sigma(pushes)
        self._prg = Prg.fresh("noise on local predictions")

    def __call__(self, H: Floats) -> Floats:
        """Return the outputs H (n, c), clipped and with fresh noise."""
        return np.asarray(clip_rows(H, self._clip) + self._sigma * normals(self._prg, H.shape))


@lru_cache(maxsize=32)
def _noise_multiplier(epsilon: float, delta: float, pushes: int) -> float:
    """Return sigma / sensitivity, at which `pushes` pushes of a row are (epsilon, delta)-private."""
    dp, rdp = _library()

    def event(multiplier: float) -> Any:
        return dp.SelfComposedDpEvent(dp.GaussianDpEvent(multiplier), pushes)

    return float(dp.calibrate_dp_mechanism(rdp.RdpAccountant, event, epsilon, delta, tol=1e-6))


def _library() -> tuple[Any, Any]:
    return import_extra("dp_accounting", "dp", NOISE_FEATURE), import_extra("dp_accounting.rdp", "dp", NOISE_FEATURE)
