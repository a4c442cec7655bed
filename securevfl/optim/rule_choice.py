"""The update rules that a job can name. To add a rule, add it to `STEP_RULES`."""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator, SerializeAsAny

from securevfl.base.config import Registry
from securevfl.optim.proximal import Proximal
from securevfl.optim.rules import Rule
from securevfl.optim.step_rules import STEP_RULES

RULES: Registry[Rule] = Registry("rule", *STEP_RULES.values(), Proximal)

AnyRule = Annotated[SerializeAsAny[Rule], BeforeValidator(RULES.read)]
