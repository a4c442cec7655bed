"""What can be done to g before it goes down, where a protocol cannot hide it. Each costs accuracy.

Gaussian    clips each row of g to a length and adds normal noise; the only one with a guarantee (Dwork and Roth 2014)
Marvell     noise of another size for each class, so that their residuals look as alike as a budget allows (Li et al.
            2022, section 4.2, in one dimension)
MaxNorm     noise along g that gives every row the norm of the largest (Li et al. 2022, section 4.1)
Rounding    to a grid, up or down at random so that the mean stays (stochastic rounding)

Noise is a secret: whoever could repeat it would take it off. It is drawn from ChaCha20 streams under a key that is
drawn for each training and kept with the party's own state (`securevfl.training.checkpoint`), one stream a release of
g: rounds that are replayed after a cut release the same g under the same noise. Fresh noise would be averaged away.

What the guarantee of `Gaussian` covers. Neighbours are two tables that differ in the label of one row. One release of g
for a batch is a Gaussian mechanism whose sensitivity is 2 clip, the farthest a clipped row can move, given the weights
that g was computed from; T releases compose in zCDP (Bun and Steinke 2016). The active party goes on to train its own
weights on the clean g. Through them one label has a small say in other rows' later residuals, which this does not
count: read epsilon as the loss of a row's label through its own residuals.
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
    """An option of a residual protocol."""

    @abstractmethod
    def apply(self, g: Floats, prg: Prg) -> Floats:
        """g (n x c) as it goes down."""

    def reach(self, bound: float) -> float:
        """Return the largest |g| that is sent, for |g| <= bound before; ConfigError if there is none to agree on."""
        raise ConfigError(f"defence {self.name}: fits an open residual only; use gaussian or rounding under encryption")

    def check(self, outputs: int) -> None:
        """ConfigError if the defence is not made for so many outputs."""

    @property
    def promise(self) -> str:
        """The guarantee that the defence gives, in one line for people."""
        return "no guarantee"


class Gaussian(Defence):
    """N(0, sigma^2) on every entry, after rows of g are clipped to the length `clip`."""

    name: ClassVar[str] = "gaussian"
    sigma: float = Field(gt=0)
    """Standard deviation of the noise on every entry of g."""
    clip: float = Field(default=1.0, gt=0)
    """Length that rows of g are clipped to first."""

    def apply(self, g: Floats, prg: Prg) -> Floats:
        return np.asarray(cut(g, self.clip) + self.sigma * normals(prg, g.shape))

    def reach(self, bound: float) -> float:
        return min(bound, self.clip) + 9.0 * self.sigma  # no draw of `normals` is larger than 8.3

    @property
    def sensitivity(self) -> float:
        """The farthest g moves (L2) with one label, given the weights."""
        return 2.0 * self.clip

    def rho(self, releases: int) -> float:
        """zCDP of so many releases of a row's residual (Bun and Steinke 2016, proposition 1.6, lemma 2.3)."""
        return releases * self.sensitivity**2 / (2.0 * self.sigma**2)

    def epsilon(self, releases: int, delta: float) -> float:
        """(epsilon, delta) from zCDP, optimised over the order (Canonne, Kamath and Steinke 2020, corollary 13)."""
        return zcdp_epsilon(self.rho(releases), delta)

    @property
    def promise(self) -> str:
        return f"label zCDP of {self.rho(1):.3g} a release, through a row's own residuals"


class Marvell(Defence):
    """Normal noise for each class, of total power `power` times the squared gap between the classes' mean g."""

    name: ClassVar[str] = "marvell"
    power: float = Field(default=4.0, gt=0)
    """Total power of the noise, in squared gaps between the classes' mean g."""

    def check(self, outputs: int) -> None:
        if outputs != 1:
            raise ConfigError(f"defence marvell: one output (two classes) was expected, {outputs} came; use gaussian")

    def apply(self, g: Floats, prg: Prg) -> Floats:
        positive = g[:, 0] < 0  # the label, which the active party knows
        if positive.all() or not positive.any():
            return g + sqrt(self.power * float(np.mean(g**2))) * normals(prg, g.shape)
        p = float(positive.mean())
        one, zero = g[positive, 0], g[~positive, 0]
        gap = float((one.mean() - zero.mean()) ** 2)
        budget = self.power * gap
        shares = np.linspace(0.0, 1.0, 201)
        lambda1, lambda0 = shares * budget / p, (1 - shares) * budget / (1 - p)
        a, b = one.var() + lambda1 + 1e-12, zero.var() + lambda0 + 1e-12
        best = int(np.argmin(a / b + b / a + (1 / a + 1 / b) * gap))  # twice the sum of both KL divergences, plus 2
        variance = np.where(positive, lambda1[best], lambda0[best])[:, None]
        return np.asarray(g + np.sqrt(variance) * normals(prg, g.shape))


class MaxNorm(Defence):
    """g_i + z_i sqrt(max_j |g_j|^2 / |g_i|^2 - 1) g_i with z_i ~ N(0, 1): every row of the largest norm on average."""

    name: ClassVar[str] = "max_norm"

    def apply(self, g: Floats, prg: Prg) -> Floats:
        squares = np.maximum((g**2).sum(axis=1, keepdims=True), 1e-30)
        spread = np.sqrt(np.maximum(squares.max() / squares - 1.0, 0.0))
        return np.asarray(g * (1.0 + spread * normals(prg, (len(g), 1))))


class Rounding(Defence):
    """A defence that rounds g to multiples of `step`, up or down at random with the mean kept."""

    name: ClassVar[str] = "rounding"
    step: float = Field(default=0.5, gt=0)
    """The grid that g is rounded to."""

    def apply(self, g: Floats, prg: Prg) -> Floats:
        return np.asarray(np.floor(g / self.step + uniforms(prg, g.shape)) * self.step)

    def reach(self, bound: float) -> float:
        return bound + self.step


def zcdp_epsilon(rho: float, delta: float) -> float:
    """(epsilon, delta) from zCDP, which adds up over releases and runs, optimised over the order (Canonne, Kamath and
    Steinke 2020, corollary 13). rho above 0."""

    def at(z: float) -> float:
        alpha = 1.0 + exp(z)
        return rho * alpha + log(1.0 / (alpha * delta)) / (alpha - 1.0) + log(1.0 - 1.0 / alpha)

    # the minimum lies near alpha - 1 = sqrt(log(1 / delta) / rho)
    near = log(sqrt(log(1.0 / delta) / rho))
    return max(0.0, _least(at, near - 4, near + 4))


class Noise(Secret):
    """The streams of one training on one subchannel, one a release of g, the first of them number `first`."""

    __slots__ = ("_key", "_next")

    def __init__(self, key: bytes, subchannel: str, first: int) -> None:
        """Take the noise from `key`, or from a fresh key if it is empty. CryptoError if it is not KEY_BYTES long."""
        self._key = derive_key(key or os.urandom(SYMMETRIC_KEY_BYTES), "noise of a defence", subchannel)
        self._next = first

    def take(self, again: int | None = None) -> Prg:
        """Return the stream of the next release, or of one that goes `again`."""
        number = self._next if again is None else again
        self._next += again is None
        return Prg(derive_key(self._key, number), "defence of a residual")


def cut(H: Floats, clip: float) -> Floats:
    """H (n x c) with rows longer than `clip` scaled down to it."""
    length = np.linalg.norm(H, axis=1, keepdims=True)
    return np.asarray(H * np.minimum(1.0, clip / np.maximum(length, 1e-300)))


def uniforms(prg: Prg, shape: tuple[int, ...]) -> Floats:
    """Uniform in (0, 1), 53 bits."""
    return ((prg.array(shape, np.uint64) >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53


def normals(prg: Prg, shape: tuple[int, ...]) -> Floats:
    """Draw standard normal numbers, by the inverse of the normal distribution function."""
    return normal_quantile(uniforms(prg, shape))


def _least(of: Callable[[float], float], low: float, high: float) -> float:
    """Find where a function that falls and then rises is smallest, by golden sections (Kiefer 1953)."""
    part = (sqrt(5.0) - 1.0) / 2.0
    one, other = high - part * (high - low), low + part * (high - low)
    left, right = of(one), of(other)
    while high - low > 1e-7:
        if left < right:
            high, other, right = other, one, left
            one = high - part * (high - low)
            left = of(one)
        else:
            low, one, left = one, other, right
            other = low + part * (high - low)
            right = of(other)
    return min(left, right)


DEFENCES: Registry[Defence] = Registry("defence", Gaussian, Marvell, MaxNorm, Rounding)
AnyDefence = Annotated[SerializeAsAny[Defence], BeforeValidator(DEFENCES.read)]
