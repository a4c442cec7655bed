"""The update rules that an optimizer can name. Adding one is one line here."""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator, SerializeAsAny

from securevfl.config import Registry
from securevfl.optim.adagrad import AdaGrad
from securevfl.optim.adam import Adam
from securevfl.optim.momentum import Momentum
from securevfl.optim.proximal import Proximal
from securevfl.optim.sgd import Sgd
from securevfl.optim.update import Rule

RULES: Registry[Rule] = Registry("rule", Sgd, Proximal, Momentum, AdaGrad, Adam)
AnyRule = Annotated[SerializeAsAny[Rule], BeforeValidator(RULES.read)]
