"""Kernel models by random Fourier features (FDSKL, Gu et al. 2020; Rahimi and Recht 2007).

    f(x) = sum over workers of sum_k alpha_k . phi_k(x),    phi(x) = sqrt(2) cos(2 pi (b + sum_l x_l w_l))

Features come in K blocks of D. Phases are counted in turns on the circle Z_2^32 (or Z_2^16), and x_l w_l is computed by
the party that holds the columns x_l. rbf exp(-gamma |x - z|_2^2) has Gaussian frequencies, laplace
exp(-gamma |x - z|_1) Cauchy ones.

**Each party draws its own w_l from a key that nobody else has.** In the paper all parties draw w from a shared seed.
Then whoever receives the sum of the others' phases has M linear equations with known coefficients about their d columns
in every row, and solves them. The feature map is as good with private rows of w: they are independent anyway. With
several workers every party draws for each of them anew. b is uniform and drawn by the worker that the features belong
to; it completes the feature map and hides nothing.
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
_known = partial(known_loss, single=True)


class Kernel(Model):
    """A kernel machine: `kernel` of width `gamma`, its loss by name, K = `blocks` blocks of D = `block_size` features.

    `bits` of a phase on the wire: 32 takes 4 bytes; 16 takes 2 and rounds each party's part to 4.8e-5 radians.
    A worker's memory is 2 bytes a training row and feature. `l2` weighs ||alpha||^2 / 2.
    """

    model_config = ConfigDict(populate_by_name=True)
    name: ClassVar[str] = "kernel"
    kernel: Literal["rbf", "laplace"] = "rbf"
    """Gaussian (rbf) or Laplace kernel."""
    gamma: float = Field(gt=0)
    """Width: exp(-gamma |x - z|^2) for rbf, exp(-gamma |x - z|_1) for laplace, on scaled columns."""
    loss_name: Annotated[str, AfterValidator(partial(known_loss, single=True))] = Field(
        default="logistic", alias="loss"
    )
    """Which [loss](#loss); one with a single output."""
    blocks: int = Field(default=8, ge=1)
    """K, blocks of random features; a round moves the coefficients of one."""
    block_size: int = Field(default=256, ge=1)
    """D, random features a block."""
    bits: Bits = 32
    """Bits of a phase in messages: 32 takes 4 bytes, 16 takes 2 and rounds to 4.8e-5 radians."""

    @property
    def loss(self) -> Loss:
        return LOSSES[self.loss_name]

    @property
    def features(self) -> int:
        """M = K D, the features of one worker."""
        return self.blocks * self.block_size

    def parameters(self, columns: int, outputs: int) -> int:
        return 0  # coefficients are with the workers

    def frequencies(self, uniform: Floats) -> Floats:
        """W in turns per unit of x, from uniform numbers in (0, 1) of any shape."""
        if self.kernel == "rbf":
            return normal_quantile(uniform) * (math.sqrt(2 * self.gamma) / (2 * math.pi))
        cauchy: Floats = np.tan(math.pi * (uniform - 0.5))
        return cauchy * (self.gamma / (2 * math.pi))
