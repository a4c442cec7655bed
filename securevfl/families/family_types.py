"""Types that the interfaces of a family have in common."""

from __future__ import annotations

from typing import TypeVar

from securevfl.options import JobOptions
from securevfl.protocols.residuals.base import ResidualProtocol
from securevfl.protocols.sums.base import SumProtocol

MessageProtocol = SumProtocol | ResidualProtocol
SheetStatement = tuple[str, str]  # such as ("learns", "its gradient")
J = TypeVar("J", bound=JobOptions)
O = TypeVar("O", bound=JobOptions)  # the job options of one family, after `Family.check_types`
