"""The models that a job can name, by name. To add a model, add its class to `MODELS`."""

from __future__ import annotations

from securevfl.base.config import Registry
from securevfl.models.base import Model
from securevfl.models.linear import (
    Gamma,
    GeneralLinear,
    Huber,
    Logistic,
    NegativeBinomial,
    OneVsRest,
    Poisson,
    Quantile,
    SmoothHinge,
    Softmax,
    Square,
    Tweedie,
)
from securevfl.models.neural import Neural
from securevfl.models.trees import Trees

MODELS: Registry[Model] = Registry(
    "model",
    Logistic,
    SmoothHinge,
    Square,
    Softmax,
    OneVsRest,
    Poisson,
    Gamma,
    Tweedie,
    NegativeBinomial,
    Quantile,
    Huber,
    GeneralLinear,
    Trees,
    Neural,
)
