"""A slow, simple version of trees on shares, to compare: loops over rows, trees and
questions (comparisons at nodes).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np


def asked_of(row: Any, source: Any, order: Sequence[int]) -> float | None:
    """Return the value of one source in one row; None if it is missing."""
    if source.missing is not None and row[source.missing] == 1:
        return None
    if not source.categories:
        return float(row[source.at[0]])
    place = 0
    for k, j in enumerate(source.at):
        if row[j] == 1:
            place = 1 + k
    return float(order[place])


def leaf(row: Any, forest: Any, tree: int) -> int:
    """Return the leaf of one row in one tree, question by question."""
    number = 0
    for level in range(forest.columns.shape[1]):
        j = forest.columns[tree, level]
        value = asked_of(row, forest.sources[j], forest.orders[j])
        above = bool(forest.sides[tree, level]) if value is None else value > forest.cuts[tree, level]
        number += above * 2**level
    return int(forest.merged[tree, number])


def leaves(X: Any, forest: Any) -> Any:
    """Return the leaf columns (m x trees 2^depth) of rows X (m x d)."""
    trees, leaves_per_tree = forest.merged.shape
    features = np.zeros((len(X), trees * leaves_per_tree))
    for i, row in enumerate(X):
        for tree in range(trees):
            features[i, tree * leaves_per_tree + leaf(row, forest, tree)] = 1 / trees**0.5
    return features


def lines(X: Any, train: Any, weight: float) -> Any:
    """Return the linear columns of rows X, fitted on the rows `train`."""
    features = np.zeros(X.shape)
    for j in range(X.shape[1]):
        train_column, column = train[:, j].copy(), X[:, j].copy()
        low, high = np.quantile(train_column, [0.01, 0.99])
        if len(set(train_column.tolist())) > 2 and low < high:
            train_column, column = np.clip(train_column, low, high), np.clip(column, low, high)
        if train_column.std() > 0:
            features[:, j] = weight * np.clip((column - train_column.mean()) / train_column.std(), -3, 3)
    return np.vectorize(lambda value: round(256 * value) / 256)(features)


def descend(inputs: Sequence[Any], residual: Any, curvature: float, ridge: float, visits: int) -> list[Any]:
    """Return the weights of every party after `visits` iterations of block descent with Nesterov's points, by solves.

    residual: g (n x c) of f (n x c).
    """
    n, parties = len(inputs[0]), len(inputs)
    at = [np.zeros((X.shape[1], residual(np.zeros((n, 1))).shape[1])) for X in inputs]
    before = [theta.copy() for theta in at]
    for t in range(1, visits + 1):
        g = residual(sum(X @ theta for X, theta in zip(inputs, at, strict=True)))
        after = [
            theta - np.linalg.solve(curvature * X.T @ X / n + ridge * np.eye(X.shape[1]), X.T @ g / n) / parties
            for X, theta in zip(inputs, at, strict=True)
        ]
        at = [new + (t - 1) / (t + 2) * (new - old) for new, old in zip(after, before, strict=True)]
        before = after
    return at
