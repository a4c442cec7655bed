"""Predictions as CSV, block by block: id, prediction and probability."""

from __future__ import annotations

import csv
import io
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TypedDict

import numpy as np

from securevfl.base.files import atomic_writer, write_atomic

if TYPE_CHECKING:
    from securevfl.organisations.prediction import OnUnscored, Prediction
    from securevfl.training.model_part import ModelPart
    from securevfl.training.run import Run
    from securevfl.training.scorecard import ScorecardScale


class PredictionCallbacks(TypedDict):
    """What writes the outcome of a prediction, as functions of the library take it."""

    on_block: Callable[[list[Any] | None, Prediction], None]
    on_unscored: OnUnscored | None


@contextmanager
def write_predictions(
    part: ModelPart, out: Path | None, scale: ScorecardScale | None = None, left: Path | None = None
) -> Iterator[PredictionCallbacks]:
    """Write predictions block by block, to a CSV file that is there whole or not at all, or to stdout; id and state of
    each row that has no score to another, if one is named.

    scale: of the points that go beside them.
    """
    states = io.StringIO()
    left_out = csv.writer(states, lineterminator="\n")
    left_out.writerow(["id", "state"])
    on_unscored = None if left is None else lambda each, state: left_out.writerow([each, state])
    if part.name != part.asker:
        yield {"on_block": lambda ids, found: None, "on_unscored": on_unscored}
    else:
        with nullcontext(sys.stdout.buffer) if out is None else atomic_writer(out) as file:
            write = _CsvWriter(file, scale)
            yield {"on_block": write, "on_unscored": on_unscored}
            if not write.begun:  # there was no row: the heading alone
                from securevfl.organisations.prediction import prediction_of

                write([], prediction_of(part, np.empty((0, part.outputs))))
    if left is not None:
        write_atomic(left, states.getvalue().encode())


class _CsvWriter:
    """Appends blocks of predictions; a heading goes before the first."""

    def __init__(self, file: BinaryIO, scale: ScorecardScale | None) -> None:
        self._file, self._scale, self.begun = file, scale, False

    def __call__(self, ids: list[Any] | None, found: Prediction) -> None:
        assert ids is not None, "rows of a file have ids"
        columns = {"id": ids, "prediction": found.label.tolist()}
        if found.proba is not None and len(found.classes) == 2:
            columns["probability"] = found.proba[:, 1].tolist()
        elif found.proba is not None:
            by_class = zip(found.classes, found.proba.T, strict=True)
            columns |= {f"probability {each}": column.tolist() for each, column in by_class}
        if self._scale is not None:
            columns["points"] = self._scale.of(found.decision[:, 0]).round(2).tolist()
        for name, codes in found.reasons.items():
            columns |= {f"reason {name} {k}": list(own) for k, own in enumerate(zip(*codes, strict=True), 1)}
        text = io.StringIO()
        lines = csv.writer(text, lineterminator="\n")
        if not self.begun:
            lines.writerow(columns)
            self.begun = True
        lines.writerows(zip(*columns.values(), strict=True))
        self._file.write(text.getvalue().encode())


def predict_files(run: Run, files: Mapping[str, Path], out: Path | None, *, id_columns: Mapping[str, str]) -> None:
    """Predicts new rows of all parties of a run, a file of each, for the ids that all have, in the order of the first
    file. id_columns: by the name of the party. PartiesError or DataError if files do not fit."""
    from securevfl.data.id_keys import id_keys
    from securevfl.data.join import join_ids
    from securevfl.errors import PartiesError
    from securevfl.organisations.prediction import prediction_of
    from securevfl.training.new_rows import IndexedRows, rows_of_file

    wanted = [name for name, part in run.parts.items() if part.columns]
    if set(files) != set(wanted):
        raise PartiesError(
            f"--predict: files of {', '.join(wanted)} were expected, {', '.join(files)} came; give these"
        )
    held = {
        name: IndexedRows.of(name, rows_of_file(run.parts[name], path, id_column=id_columns[name]))
        for name, path in files.items()
    }
    first = next(iter(files))
    rows, _ = join_ids({name: (own.ids, id_keys(name, [own.ids])) for name, own in held.items()}, first)
    f = run.decision_of({name: run.parts[name].scaling(own.X[rows[name]]) for name, own in held.items()})
    asker = run.parts[run.active.asker]
    ids = [held[first].ids[row] for row in rows[first].tolist()]
    with write_predictions(asker, out) as written:
        written["on_block"](ids, prediction_of(asker, f))
