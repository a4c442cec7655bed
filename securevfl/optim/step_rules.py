"""The update rules that can be used alone or inside another rule such as `Proximal`, by name."""

from __future__ import annotations

from securevfl.base.config import Registry
from securevfl.optim.adagrad import AdaGrad
from securevfl.optim.adam import Adam
from securevfl.optim.momentum import Momentum
from securevfl.optim.rules import Rule, Sgd

STEP_RULES: Registry[Rule] = Registry("rule", Sgd, Momentum, AdaGrad, Adam)
