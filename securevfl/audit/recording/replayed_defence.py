"""A defence of residuals whose outcomes are recorded or replayed, so that two runs publish the same residuals.

A defence adds noise to residuals before they are sent. The real and the ideal run of an audit must send the same
residuals. If the ideal run drew fresh noise, it would differ from the real run by chance, as if the messages had
disclosed something.
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


class ReplayedDefence(Defence):
    """A wrapper of a defence that reports every outcome and replays the outcomes of another run.

    It returns the outcomes to replay in their order. If none is left, or if the shape differs, it applies the wrapped
    defence, `inner`.
    """

    name: ClassVar[str] = "replayed"
    inner: SerializeAsAny[Defence]
    _on_outcome: Callable[[Floats], None] = PrivateAttr()
    _outcomes: Iterator[Floats] = PrivateAttr()

    def apply(self, g: Floats, prg: Prg) -> Floats:
        """Return the next outcome to replay, or else the residuals g with the wrapped defence's noise."""
        outcome = next(self._outcomes, None)
        if outcome is None or outcome.shape != g.shape:
            outcome = self.inner.apply(g, prg)
        self._on_outcome(np.array(outcome))
        return outcome

    def output_bound(self, bound: float) -> float:
        """Return the wrapped defence's bound on the absolute value of the residuals that it returns."""
        return self.inner.output_bound(bound)

    def check(self, outputs: int) -> None:
        """Let the wrapped defence raise its error if it does not support this number of outputs."""
        self.inner.check(outputs)

    @property
    def guarantee(self) -> str:
        """The privacy guarantee that the wrapped defence states."""
        return self.inner.guarantee


def defence_of(residual: ResidualProtocol | None) -> Defence | None:
    """Return the defence of a residual protocol; None if it has none."""
    defence = getattr(residual, "defence", None)
    return defence if isinstance(defence, Defence) else None


def with_replayed_defence(
    residual: ResidualProtocol,
    *,
    on_outcome: Callable[[Floats], None] = lambda g: None,
    outcomes: Iterable[Floats] = (),
) -> ResidualProtocol:
    """Return the residual protocol with a defence that replays outcomes; one without a defence is returned unchanged.

    Args:
        residual: the residual protocol.
        on_outcome: called with every outcome of the defence.
        outcomes: outcomes to replay, in their order.

    Returns:
        A residual protocol of the same kind.
    """
    defence = defence_of(residual)
    if defence is None:
        return residual
    replay = ReplayedDefence(inner=defence)
    replay._on_outcome, replay._outcomes = on_outcome, iter(outcomes)
    return residual.model_copy(update={"defence": replay})
