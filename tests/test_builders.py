"""The shared tables of tests contain what real tables do: zeros, ties, few whole numbers, repeats, a rare class."""

from __future__ import annotations

import numpy as np
import pytest

from tests.builders import labels_for, random_blocks, random_parties


@pytest.mark.parametrize("rows", [60, 240, 1001])
@pytest.mark.parametrize("columns", [2, 3, (2, 5, 4)])
@pytest.mark.parametrize("seed", [0, 1, 7])
def test_blocks_have_zeros_ties_and_repeated_rows(rows: int, columns: int | tuple[int, ...], seed: int) -> None:
    for block in random_blocks(3, rows, columns, seed):
        values, counts = np.unique(block[:, 0], return_counts=True)
        assert set(values) <= {-2, -1, 0, 1, 2}
        assert len(values) >= 4
        assert counts.min() >= 2
        assert (block[:, 0] == 0).any()
        assert len(np.unique(block[:, 1])) > rows / 2  # the other columns have hardly any ties
        assert len(block) - len(np.unique(block, axis=0)) >= rows // 10


@pytest.mark.parametrize("seed", [0, 1, 7])
@pytest.mark.parametrize("classes", [2, 3, 5])
def test_the_last_class_is_the_rarest_and_all_occur(classes: int, seed: int) -> None:
    labels = labels_for(random_blocks(2, 240, 3, seed), classes, seed)
    _, counts = np.unique(labels, return_counts=True)
    assert len(counts) == classes
    assert counts[-1] == counts.min()
    assert counts[0] >= 1.9 * counts[-1]


@pytest.mark.parametrize("kind", ["numbers", "counts", "amounts"])
def test_numeric_labels_are_of_their_kind(kind: str) -> None:
    labels = np.asarray(random_parties(rows=240, labels=kind)[0].labels)
    assert len(np.unique(labels)) >= 5
    assert {"numbers": labels.min() < 0, "counts": (labels == 0).any(), "amounts": labels.min() > 0}[kind]
    assert (kind == "counts") == bool((labels == np.round(labels)).all())


@pytest.mark.parametrize("party", [0, 1])
def test_labels_depend_on_the_columns_of_every_party(party: int) -> None:
    """So that a training that loses a party's columns is worse."""
    blocks = random_blocks(2, 1000)
    labels = labels_for(blocks)
    score = blocks[party].sum(axis=1)
    difference = score[labels == 1].mean() - score[labels == 0].mean()
    assert difference > 6 * score.std() * np.sqrt(1 / (labels == 1).sum() + 1 / (labels == 0).sum())
