"""The update rules that take a step by themselves, which others are put around. Adding one is one line here."""

from __future__ import annotations

from securevfl.base.config import Registry
from securevfl.optim.adagrad import AdaGrad
from securevfl.optim.adam import Adam
from securevfl.optim.base import Rule, Sgd
from securevfl.optim.momentum import Momentum

STEP_RULES: Registry[Rule] = Registry("rule", Sgd, Momentum, AdaGrad, Adam)
