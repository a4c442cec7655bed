"""Predictions as CSV, block by block: id, prediction and probability."""

from __future__ import annotations

import csv
import io
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from securevfl.files import writing_whole

if TYPE_CHECKING:
    from securevfl.organisations.predict import Predicted
    from securevfl.training.model_part import ModelPart


@contextmanager
def predictions(part: ModelPart, out: Path | None) -> Iterator[Callable[[list[Any] | None, Predicted], None]]:
    """Takes predictions block by block, to a CSV file that is there whole or not at all, or to stdout."""
    if part.name != part.asker:
        yield lambda _, __: None
    elif out is None:
        yield _CsvWriter(sys.stdout.buffer)
    else:
        with writing_whole(out) as file:
            yield _CsvWriter(file)


class _CsvWriter:
    """Appends blocks of predictions; a heading goes before the first."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._begun = False

    def __call__(self, ids: list[Any] | None, found: Predicted) -> None:
        assert ids is not None, "rows of a file have ids"
        columns = {"id": ids, "prediction": found.label.tolist()}
        if found.proba is not None and len(found.classes) == 2:
            columns["probability"] = found.proba[:, 1].tolist()
        elif found.proba is not None:
            columns |= {
                f"probability {each}": column.tolist()
                for each, column in zip(found.classes, found.proba.T, strict=True)
            }
        text = io.StringIO()
        lines = csv.writer(text, lineterminator="\n")
        if not self._begun:
            lines.writerow(columns)
            self._begun = True
        lines.writerows(zip(*columns.values(), strict=True))
        self._file.write(text.getvalue().encode())
