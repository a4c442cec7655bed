"""The models that a job can name. Adding one is one line here."""

from __future__ import annotations

from securevfl.config import Registry
from securevfl.models.base import Model
from securevfl.models.kernel import Kernel
from securevfl.models.linear import GeneralLinear, Logistic, OneVsRest, SmoothHinge, Softmax, Square
from securevfl.models.neural import Neural
from securevfl.models.transfer import Transfer

MODELS: Registry[Model] = Registry(
    "model", Logistic, SmoothHinge, Square, Softmax, OneVsRest, GeneralLinear, Neural, Kernel, Transfer
)
