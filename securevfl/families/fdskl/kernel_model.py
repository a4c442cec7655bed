"""Kernel models by random Fourier features (FDSKL, Gu et al. 2020; Rahimi and Recht 2007).

    f(x) = sum over workers and blocks k of alpha_k . phi_k(x),    phi(x) = sqrt(2) * cos(2 pi * (b + sum_l x_l w_l))

A worker is a party with labels; it stores the coefficients alpha of K blocks of D features and draws the offsets b. x_l
w_l is the *phase* that party l computes from its columns x_l and its random frequencies w_l, in turns, stored as an
integer modulo 2^32 (or 2^16). The rbf kernel exp(-gamma * |x - z|_2^2) has Gaussian frequencies, and the Laplace kernel
exp(-gamma * |x - z|_1) has Cauchy frequencies.

Each party draws its w_l from a key that no other party has. With the paper's shared seed, a receiver of summed phases
could solve for the columns.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Annotated, ClassVar, Literal

import numpy as np
from pydantic import AfterValidator, ConfigDict, Field

from securevfl.base.arrays import Floats
from securevfl.base.normal_distribution import normal_quantile
from securevfl.models.base import Model
from securevfl.models.loss import Loss
from securevfl.models.losses import LOSSES, known_loss

Bits = Literal[16, 32]


class Kernel(Model):
    """A kernel machine of K = `blocks` blocks of D = `block_size` random features.

    A worker caches 2 bytes for each training row and feature. The penalty is l2 / 2 * ||alpha||^2.
    """

    model_config = ConfigDict(populate_by_name=True)
    name: ClassVar[str] = "kernel"
    kernel: Literal["rbf", "laplace"] = "rbf"
    """Gaussian (rbf) or Laplace kernel."""
    gamma: float = Field(gt=0, le=1e12)
    """Inverse width, on scaled columns: exp(-gamma * |x - z|_2^2) for rbf, exp(-gamma * |x - z|_1) for laplace."""
    loss_name: Annotated[str, AfterValidator(partial(known_loss, single=True))] = Field(
        default="logistic", alias="loss"
    )
    """The name of the [loss](#loss), one with a single output."""
    blocks: int = Field(default=8, ge=1, le=10_000)
    """K, number of blocks of random features; a round updates the coefficients of one block."""
    block_size: int = Field(default=256, ge=1, le=65_536)
    """D, number of random features in a block."""
    bits: Bits = 32
    """Bits of a phase in messages: 32 takes 4 bytes; 16 takes 2 bytes and rounds each party's phases with an error of
    up to 4.8e-5 radians."""

    @property
    def loss(self) -> Loss:
        """The loss of the model."""
        return LOSSES[self.loss_name]

    @property
    def features(self) -> int:
        """M = K * D, number of features of one worker."""
        return self.blocks * self.block_size

    def parameters(self, columns: int, outputs: int) -> int:
        """Return 0: only workers have coefficients."""
        return 0

    def frequencies(self, uniform: Floats) -> Floats:
        """Convert uniform numbers in (0, 1) of any shape into frequencies, in turns per unit of x."""
        if self.kernel == "rbf":
            return normal_quantile(uniform) * (math.sqrt(2 * self.gamma) / (2 * math.pi))
        cauchy: Floats = np.tan(math.pi * (uniform - 0.5))
        return cauchy * (self.gamma / (2 * math.pi))
