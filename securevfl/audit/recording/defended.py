"""What goes down of g where a defence blurs it: noted as it goes, or given, so that two runs can be told the same.

The ideal functionality of a residual with a defence hands out what the defence has made of g. Noise is drawn anew in
every run; an ideal run that drew its own would differ from the real one by chance, as if messages had told something.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import ClassVar

import numpy as np
from pydantic import PrivateAttr, SerializeAsAny

from securevfl.base.arrays import Floats
from securevfl.crypto.prg import Prg
from securevfl.protocols.residuals.base import ResidualProtocol
from securevfl.protocols.residuals.defences import Defence

Note = Callable[[Floats], None]


class Noted(Defence):
    """Another defence of which every outcome is noted."""

    name: ClassVar[str] = "noted"
    inner: SerializeAsAny[Defence]
    _note: Note = PrivateAttr()

    def apply(self, g: Floats, prg: Prg) -> Floats:
        blurred = self.inner.apply(g, prg)
        self._note(np.array(blurred))
        return blurred

    def reach(self, bound: float) -> float:
        return self.inner.reach(bound)

    def check(self, outputs: int) -> None:
        self.inner.check(outputs)

    @property
    def promise(self) -> str:
        return self.inner.promise


class Given(Defence):
    """Hands out, in order, what another run has noted; beyond it, or where the shape is another, g as `inner` does."""

    name: ClassVar[str] = "given"
    inner: SerializeAsAny[Defence]
    _outcomes: Iterator[Floats] = PrivateAttr()

    def apply(self, g: Floats, prg: Prg) -> Floats:
        outcome = next(self._outcomes, None)
        return self.inner.apply(g, prg) if outcome is None or outcome.shape != g.shape else outcome

    def reach(self, bound: float) -> float:
        return self.inner.reach(bound)

    def check(self, outputs: int) -> None:
        self.inner.check(outputs)


def defence_of(residual: ResidualProtocol) -> Defence | None:
    """Return the defence of a residual that has one."""
    found = getattr(residual, "defence", None)
    return found if isinstance(found, Defence) else None


def noting(residual: ResidualProtocol, note: Note) -> ResidualProtocol:
    """Return the same residual, each outcome of its defence told to `note`; itself where it has none."""
    defence = defence_of(residual)
    if defence is None:
        return residual
    noted = Noted(inner=defence)
    noted._note = note
    return residual.model_copy(update={"defence": noted})


def given(defence: Defence, outcomes: Iterable[Floats]) -> Given:
    """Make a defence that hands out these outcomes, for the run of an ideal functionality."""
    found = Given(inner=defence)
    found._outcomes = iter(outcomes)
    return found


def giving(residual: ResidualProtocol, outcomes: Iterable[Floats]) -> ResidualProtocol:
    """Return the same residual, whose defence hands these out; itself where it has none."""
    defence = defence_of(residual)
    return residual if defence is None else residual.model_copy(update={"defence": given(defence, outcomes)})
