"""Products of a matrix in chunks (blocks of rows) equal those of the whole array, however its rows are divided."""

from concurrent.futures import Future
from itertools import pairwise

import numpy as np
import pytest

from securevfl.base import chunked_matrix
from securevfl.base.chunked_matrix import ChunkedMatrix, LocalPart, MatrixPart
from securevfl.protocols.residuals.base import Batch


class CountingRows:
    """Rows of an array that record the largest number of rows read at once."""

    def __init__(self, X: np.ndarray) -> None:
        self.X = X
        self.shape = X.shape
        self.most_rows = 0

    def __len__(self) -> int:
        return len(self.X)

    def __getitem__(self, rows: slice) -> np.ndarray:
        self.most_rows = max(self.most_rows, len(self.X[rows]))
        return self.X[rows]


class WorkerPart(MatrixPart):
    """Rows at a named worker whose every call takes one second."""

    def __init__(self, start: int, X: np.ndarray, worker: str) -> None:
        self._local = LocalPart(start, X)
        self.start, self.stop = self._local.start, self._local.stop
        self._worker = worker
        self._seconds = 0.0

    @property
    def worker(self) -> str:
        return self._worker

    def run(self, work, /, *args, **kwargs) -> Future:
        self._seconds += 1.0
        return self._local.run(work, *args, **kwargs)

    def spent(self) -> float:
        seconds, self._seconds = self._seconds, 0.0
        return seconds


def chunked(X: np.ndarray, *edges: int) -> ChunkedMatrix:
    bounds = [0, *edges, len(X)]
    parts = [LocalPart(start, X[start:stop]) for start, stop in pairwise(bounds)]
    return ChunkedMatrix(parts, X.shape[1])


@pytest.mark.parametrize("edges", [(), (400,), (1, 2, 999)])
def test_products_equal_those_of_the_array(edges: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunked_matrix, "BLOCK_NUMBERS", 64 * 7)
    generator = np.random.default_rng(0)
    X, theta, g = generator.normal(size=(1000, 7)), generator.normal(size=(7, 2)), generator.normal(size=(1000, 2))
    matrix = chunked(X, *edges)
    assert (len(matrix), matrix.shape) == (1000, X.shape)
    np.testing.assert_allclose(matrix @ theta, X @ theta, atol=1e-12)
    np.testing.assert_allclose(matrix.T @ g, X.T @ g, atol=1e-12)
    np.testing.assert_allclose(matrix.T @ matrix, X.T @ X, atol=1e-12)
    np.testing.assert_allclose(matrix.sum(axis=0), X.sum(axis=0), atol=1e-12)


def test_rows_are_read_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunked_matrix, "BLOCK_NUMBERS", 64 * 7)
    rows = CountingRows(np.ones((1000, 7)))
    matrix = ChunkedMatrix.local(rows)
    assert (matrix @ np.ones((7, 1))).shape == (1000, 1)
    assert (matrix.T @ matrix)[0, 0] == 1000
    assert rows.most_rows == 64


def test_a_product_of_two_different_matrices_is_refused() -> None:
    X = np.ones((4, 2))
    with pytest.raises(TypeError):
        ChunkedMatrix.local(X).T @ ChunkedMatrix.local(X)


def test_parallel_workers_cost_the_time_of_the_busiest() -> None:
    X = np.ones((6, 2))
    matrix = ChunkedMatrix([WorkerPart(0, X[:2], "one"), WorkerPart(2, X[2:4], "two"), WorkerPart(4, X[4:], "one")], 2)
    matrix @ np.ones((2, 1))
    assert Batch(0, 0, matrix).worker_seconds == 2.0
    assert Batch(0, 0, matrix).worker_seconds == 0.0
    assert Batch(0, 0, ChunkedMatrix.local(X)).worker_seconds == Batch(0, 0, X).worker_seconds == 0.0
