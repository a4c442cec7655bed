"""The models that a job can name. Adding one is one line here."""

from __future__ import annotations

from securevfl.config import Registry
from securevfl.models.linear import LinearModel, Logistic, SmoothHinge, Softmax, Square

MODELS: Registry[LinearModel] = Registry("model", Logistic, SmoothHinge, Square, Softmax)
