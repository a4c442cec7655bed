"""A tall matrix gives what the array would, whatever parts it is in."""

from concurrent.futures import Future
from itertools import pairwise

import numpy as np
import pytest

from securevfl.base import chunked_matrix
from securevfl.base.chunked_matrix import ChunkedMatrix, LocalPart, MatrixPart
from securevfl.protocols.residuals.base import Batch


class Counted:
    """Rows of an array, and the most that were asked for at a time."""

    def __init__(self, X: np.ndarray) -> None:
        self.X = X
        self.shape = X.shape
        self.most = 0

    def __len__(self) -> int:
        return len(self.X)

    def __getitem__(self, rows: slice) -> np.ndarray:
        self.most = max(self.most, len(self.X[rows]))
        return self.X[rows]


class Away(MatrixPart):
    """A part of another process, by name, that has spent a second on each call."""

    def __init__(self, start: int, X: np.ndarray, place: str) -> None:
        self._here = LocalPart(start, X)
        self.start, self.stop = self._here.start, self._here.stop
        self._place = place
        self._seconds = 0.0

    @property
    def place(self) -> str:
        return self._place

    def run(self, work, /, *args, **kwargs) -> Future:
        self._seconds += 1.0
        return self._here.run(work, *args, **kwargs)

    def spent(self) -> float:
        seconds, self._seconds = self._seconds, 0.0
        return seconds


def cut(X: np.ndarray, *edges: int) -> ChunkedMatrix:
    bounds = [0, *edges, len(X)]
    parts = [LocalPart(start, X[start:stop]) for start, stop in pairwise(bounds)]
    return ChunkedMatrix(parts, X.shape[1])


@pytest.mark.parametrize("edges", [(), (400,), (1, 2, 999)])
def test_products_are_those_of_the_array(edges: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunked_matrix, "BLOCK_NUMBERS", 64 * 7)
    generator = np.random.default_rng(0)
    X, theta, g = generator.normal(size=(1000, 7)), generator.normal(size=(7, 2)), generator.normal(size=(1000, 2))
    matrix = cut(X, *edges)
    assert (len(matrix), matrix.shape) == (1000, X.shape)
    np.testing.assert_allclose(matrix @ theta, X @ theta, atol=1e-12)
    np.testing.assert_allclose(matrix.T @ g, X.T @ g, atol=1e-12)
    np.testing.assert_allclose(matrix.T @ matrix, X.T @ X, atol=1e-12)
    np.testing.assert_allclose(matrix.sum(axis=0), X.sum(axis=0), atol=1e-12)


def test_no_more_than_a_block_of_rows_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunked_matrix, "BLOCK_NUMBERS", 64 * 7)
    rows = Counted(np.ones((1000, 7)))
    matrix = ChunkedMatrix.local(rows)
    assert (matrix @ np.ones((7, 1))).shape == (1000, 1)
    assert (matrix.T @ matrix)[0, 0] == 1000
    assert rows.most == 64


def test_only_the_gram_of_itself_is_a_product_of_two() -> None:
    X = np.ones((4, 2))
    with pytest.raises(TypeError, match="the same tall matrix"):
        ChunkedMatrix.local(X).T @ ChunkedMatrix.local(X)


def test_processes_that_work_side_by_side_count_as_long_as_the_longest() -> None:
    X = np.ones((6, 2))
    matrix = ChunkedMatrix([Away(0, X[:2], "one"), Away(2, X[2:4], "two"), Away(4, X[4:], "one")], 2)
    matrix @ np.ones((2, 1))
    assert Batch(0, 0, matrix).worker_seconds == 2.0
    assert Batch(0, 0, matrix).worker_seconds == 0.0
    assert Batch(0, 0, ChunkedMatrix.local(X)).worker_seconds == Batch(0, 0, X).worker_seconds == 0.0
