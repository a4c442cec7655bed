"""The update rules that take a step by themselves, which others are put around. Adding one is one line here."""

from __future__ import annotations

from securevfl.base.config import Registry
from securevfl.optim.adagrad import AdaGrad
from securevfl.optim.adam import Adam
from securevfl.optim.momentum import Momentum
from securevfl.optim.sgd import Sgd
from securevfl.optim.update import Rule

STEP_RULES: Registry[Rule] = Registry("rule", Sgd, Momentum, AdaGrad, Adam)
