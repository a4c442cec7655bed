"""Defences: noise or rounding that the active party applies to a residual before it sends it. Each costs accuracy.

The residual g (n, c) of a batch has a row for each of n table rows and a column for each of c model outputs. It is the
derivative of the loss by the outputs, and reveals labels. A release is one residual that is sent.

Gaussian    clips each row of g and adds normal noise; the only defence with a formal guarantee (Dwork and Roth 2014)
Marvell     adds more noise to one class than to the other, so that the residuals of both classes look as similar as
            possible for a given amount of noise (Li et al. 2022, section 4.2, in one dimension)
MaxNorm     multiplies each row by a random factor, so that on average all rows have the norm of the longest one (Li et
            al. 2022, section 4.1)
Rounding    rounds to a grid, up or down at random, so that the mean is unchanged (stochastic rounding)

The noise must be secret, because a party that can reproduce it can subtract it. It is drawn from ChaCha20 streams under
a key that is created for each training and stored in the party's checkpoint (`securevfl.training.checkpoint`). The
number of a release selects its stream, so rounds that are repeated after an interruption release the same g with the
same noise. New noise would allow others to average it out.

The guarantee of `Gaussian` compares tables that differ in the label of one row. For given weights, such a change moves
a clipped row of g by at most 2 * clip, so one release is a Gaussian mechanism with this sensitivity. Several releases
compose by the rules of zero-concentrated differential privacy, zCDP (Bun and Steinke 2016). The active party trains its
weights with the residual without noise. Through these weights, one label has a small influence on later residuals of
other rows, which this analysis does not count. Epsilon therefore bounds only the privacy loss of a row's label through
the residuals of that row.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable
from math import exp, log, sqrt
from typing import Annotated, ClassVar

import numpy as np
from pydantic import BeforeValidator, Field, SerializeAsAny

from securevfl.base.arrays import Floats
from securevfl.base.config import NamedOption, Registry
from securevfl.base.normal_distribution import normal_quantile
from securevfl.crypto.key_derivation import SYMMETRIC_KEY_BYTES, derive_key
from securevfl.crypto.prg import Prg
from securevfl.crypto.secret import Secret
from securevfl.errors import ConfigError


class Defence(NamedOption, ABC):
    """Base class of defences, which add noise to a residual or round it; an option of a residual protocol."""

    @abstractmethod
    def apply(self, g: Floats, prg: Prg) -> Floats:
        """Return the residual g (n, c) with noise or rounding, drawn from the generator `prg`."""

    def output_bound(self, bound: float) -> float:
        """Return the largest absolute value that can be sent if that of g is at most `bound`.

        Raise ConfigError if the noise has no bound.
        """
        raise ConfigError(
            f"defence {self.name} cannot be used with encrypted residuals, because its noise has no bound",
            "use gaussian or rounding",
            code="SVFL-JOB-COMBINATION",
        )

    def check(self, outputs: int) -> None:
        """Raise ConfigError if the defence does not support this number of outputs."""

    @property
    def guarantee(self) -> str:
        """The formal guarantee of the defence as one line of text."""
        return "no guarantee"


class Gaussian(Defence):
    """Clipping of each row of g to the length `clip`, followed by normal noise on every entry."""

    name: ClassVar[str] = "gaussian"
    sigma: float = Field(gt=0, le=1e12)
    """Standard deviation of the noise on every entry of g."""
    clip: float = Field(default=1.0, gt=0, le=1e12)
    """Maximal length of a row of g before noise is added."""

    def apply(self, g: Floats, prg: Prg) -> Floats:
        """Return the clipped residual with normal noise; see `Defence.apply`."""
        return np.asarray(clip_rows(g, self.clip) + self.sigma * normals(prg, g.shape))

    def output_bound(self, bound: float) -> float:
        """Return the largest absolute value that can be sent; see `Defence.output_bound`."""
        # the noise is bounded, because `normals` never returns a number above 8.3
        return min(bound, self.clip) + 9.0 * self.sigma

    @property
    def sensitivity(self) -> float:
        """The largest change of the clipped residual (L2 norm) if one label changes and the weights do not."""
        return 2.0 * self.clip

    def rho(self, releases: int) -> float:
        """Return the zCDP parameter rho after this number of releases (Bun and Steinke 2016, prop. 1.6, lemma 2.3)."""
        return releases * self.sensitivity**2 / (2.0 * self.sigma**2)

    def epsilon(self, releases: int, delta: float) -> float:
        """Return the epsilon of (epsilon, delta)-differential privacy after this number of releases."""
        return zcdp_epsilon(self.rho(releases), delta)

    @property
    def guarantee(self) -> str:
        """The zCDP parameter of one release as one line of text."""
        return f"label zCDP of {self.rho(1):.3g} per release, through the residuals of the same row"


class Marvell(Defence):
    """Normal noise with a different variance for each of two classes.

    The variance that rows have on average is `power` times the squared difference between the classes' mean residuals.
    """

    name: ClassVar[str] = "marvell"
    power: float = Field(default=4.0, gt=0, le=1e6)
    """Average variance of the noise, as a multiple of the squared difference between the classes' mean residuals."""

    def check(self, outputs: int) -> None:
        """Raise ConfigError unless the model has one output."""
        if outputs != 1:
            raise ConfigError(
                f"defence marvell supports one output (two classes), but the model has {outputs}",
                "use gaussian",
                code="SVFL-JOB-UNSUPPORTED",
            )

    def apply(self, g: Floats, prg: Prg) -> Floats:
        """Return g with the noise that makes its two classes most similar; see `Defence.apply`."""
        positive = g[:, 0] < 0  # the rows of the positive class
        if positive.all() or not positive.any():
            return g + sqrt(self.power * float(np.mean(g**2))) * normals(prg, g.shape)
        p = float(positive.mean())
        one, zero = g[positive, 0], g[~positive, 0]
        gap = float((one.mean() - zero.mean()) ** 2)
        budget = self.power * gap
        shares = np.linspace(0.0, 1.0, 201)
        lambda1, lambda0 = shares * budget / p, (1 - shares) * budget / (1 - p)
        a, b = one.var() + lambda1 + 1e-12, zero.var() + lambda0 + 1e-12
        # minimise the sum of the Kullback-Leibler divergences between the classes in both directions
        best = int(np.argmin(a / b + b / a + (1 / a + 1 / b) * gap))
        variance = np.where(positive, lambda1[best], lambda0[best])[:, None]
        return np.asarray(g + np.sqrt(variance) * normals(prg, g.shape))


class MaxNorm(Defence):
    """Multiplication of each row by a random factor, so that on average all rows have the norm of the longest one.

    With z_i ~ N(0, 1), the row g_i becomes g_i * (1 + z_i * sqrt(max_j |g_j|^2 / |g_i|^2 - 1)).
    """

    name: ClassVar[str] = "max_norm"

    def apply(self, g: Floats, prg: Prg) -> Floats:
        """Return g with each row multiplied by a random factor; see `Defence.apply`."""
        squares = np.maximum((g**2).sum(axis=1, keepdims=True), 1e-30)
        noise_size = np.sqrt(np.maximum(squares.max() / squares - 1.0, 0.0))
        return np.asarray(g * (1.0 + noise_size * normals(prg, (len(g), 1))))


class Rounding(Defence):
    """Rounding of g to multiples of `step`, up or down at random, so that the mean is unchanged."""

    name: ClassVar[str] = "rounding"
    step: float = Field(default=0.5, gt=0, le=1e6)
    """Distance between two points of the grid."""

    def apply(self, g: Floats, prg: Prg) -> Floats:
        """Return g rounded up or down at random; see `Defence.apply`."""
        return np.asarray(np.floor(g / self.step + uniforms(prg, g.shape)) * self.step)

    def output_bound(self, bound: float) -> float:
        """Return the largest absolute value that can be sent; see `Defence.output_bound`."""
        return bound + self.step


def zcdp_epsilon(rho: float, delta: float) -> float:
    """Return the smallest epsilon such that rho-zCDP, for rho > 0, implies (epsilon, delta)-differential privacy.

    rho adds up over releases and runs. The function minimises over the order alpha of the Renyi divergence (Canonne,
    Kamath and Steinke 2020, corollary 13).
    """

    def epsilon_at(z: float) -> float:
        alpha = 1.0 + exp(z)
        return rho * alpha + log(1.0 / (alpha * delta)) / (alpha - 1.0) + log(1.0 - 1.0 / alpha)

    # the minimum over alpha is near 1 + sqrt(log(1 / delta) / rho), so only values around it are searched
    near = log(sqrt(log(1.0 / delta) / rho))
    return max(0.0, _minimum(epsilon_at, near - 4, near + 4))


class Noise(Secret):
    """The random streams for the noise of one training, one stream for each release.

    Args:
        key: the secret key of the training; empty for a new key.
        subchannel: name of the subchannel of the residuals; different names give different streams.
        first: number of the next release.
    """

    __slots__ = ("_key", "_next")

    def __init__(self, key: bytes, subchannel: str, first: int) -> None:
        self._key = derive_key(key or os.urandom(SYMMETRIC_KEY_BYTES), "noise of a defence", subchannel)
        self._next = first

    def take(self, number: int | None = None) -> Prg:
        """Return the stream of the next release, or that of an earlier release `number`, which is sent again."""
        if number is None:
            number, self._next = self._next, self._next + 1
        return Prg(derive_key(self._key, number), "defence of a residual")


def clip_rows(H: Floats, clip: float) -> Floats:
    """Return H (n, c) after scaling every row that is longer than `clip` down to this length."""
    length = np.linalg.norm(H, axis=1, keepdims=True)
    return np.asarray(H * np.minimum(1.0, clip / np.maximum(length, 1e-300)))


def uniforms(prg: Prg, shape: tuple[int, ...]) -> Floats:
    """Draw numbers that are uniform in (0, 1), with 53 random bits each."""
    return ((prg.array(shape, np.uint64) >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53


def normals(prg: Prg, shape: tuple[int, ...]) -> Floats:
    """Draw standard normal numbers by applying the inverse distribution function to uniform numbers."""
    return normal_quantile(uniforms(prg, shape))


def _minimum(function: Callable[[float], float], low: float, high: float) -> float:
    """Return the smallest value on [low, high] of a function with one minimum (golden-section search, Kiefer 1953)."""
    ratio = (sqrt(5.0) - 1.0) / 2.0
    one, other = high - ratio * (high - low), low + ratio * (high - low)
    left, right = function(one), function(other)
    while high - low > 1e-7:
        if left < right:
            high, other, right = other, one, left
            one = high - ratio * (high - low)
            left = function(one)
        else:
            low, one, left = one, other, right
            other = low + ratio * (high - low)
            right = function(other)
    return min(left, right)


DEFENCES: Registry[Defence] = Registry("defence", Gaussian, Marvell, MaxNorm, Rounding)
AnyDefence = Annotated[SerializeAsAny[Defence], BeforeValidator(DEFENCES.read)]
