"""Types that the interfaces of a protocol family (a way to train a model together) have in common."""

from __future__ import annotations

from typing import TypeVar

from securevfl.options import JobOptions
from securevfl.protocols.residuals.base import ResidualProtocol
from securevfl.protocols.sums.base import SumProtocol

MessageProtocol = SumProtocol | ResidualProtocol
SheetStatement = tuple[str, str]  # a statement of a consent sheet: word and text, such as ("learns", "its gradient")
J = TypeVar("J", bound=JobOptions)
# type variable: the type of the job options of a family, which `Family.check_types` has checked
O = TypeVar("O", bound=JobOptions)
