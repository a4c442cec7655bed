"""Mutants (deliberate errors) of repeated requests about an earlier exchange (`securevfl.optim.celu`)."""

from __future__ import annotations

from typing import Any

from securevfl.protocols.residuals.sealed_residual import SealedReply
from selfcheck.mutants.mutant import Mutant, patched


def _same_bytes(self: Any) -> None:
    if not hasattr(self, "before"):
        self.before = self._evaluator.blind(self._residual.products[self.exchange])[0]
    self._spend()
    self._residual.ask_to_open(self.exchange, self.before)


MUTANTS = [
    Mutant(
        "kept: the same blinded product",
        "what needs no product is asked with one ciphertext again and again",
        "job kept exchanges",
        "fresh",
        patched((SealedReply, "repeat", _same_bytes)),
    ),
]
