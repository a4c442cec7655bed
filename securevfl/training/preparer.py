"""A party's own preparation as a scikit-learn object: columns as they come in, scaled features of its model out."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from securevfl.base.arrays import Floats
from securevfl.base.extras import extra
from securevfl.training.model_part import ModelPart

extra("sklearn", "sklearn", "a preparation for scikit-learn")

from sklearn.base import BaseEstimator, TransformerMixin  # noqa: E402


class Preparer(TransformerMixin, BaseEstimator):  # type: ignore[misc]  # scikit-learn comes without types
    """What a training has fitted to a party's columns; nothing is left to fit."""

    def __init__(self, part: ModelPart) -> None:
        self.part = part

    def fit(self, X: Any = None, y: Any = None) -> Preparer:
        """Leaves everything as the training has it."""
        return self

    def transform(self, X: Any) -> Floats:
        """Prepare and scale new rows (m x d), as the model takes them. TableError names what is wrong."""
        return self.part.rows(X)

    def get_feature_names_out(self, input_features: Any = None) -> NDArray[Any]:
        """Return the names of the features (d,)."""
        return np.array(self.part.features, dtype=object)

    def __sklearn_is_fitted__(self) -> bool:
        return True
