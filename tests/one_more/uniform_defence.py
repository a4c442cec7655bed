"""Another defence: uniform noise on every entry of g."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from securevfl.base.arrays import Floats
from securevfl.crypto.prg import Prg
from securevfl.protocols.residuals.defences import Defence, uniforms


class Uniform(Defence):
    """Noise between -size and size on every entry."""

    name: ClassVar[str] = "uniform"
    size: float = Field(gt=0)
    """The most that an entry of g is moved by."""

    def apply(self, g: Floats, prg: Prg) -> Floats:
        noisy: Floats = g + self.size * (2 * uniforms(prg, g.shape) - 1)
        return noisy

    def output_bound(self, bound: float) -> float:
        return bound + self.size
