"""Write predictions as CSV, block by block: id, prediction, probability, and further columns such as scorecard points.

The rows of a file are predicted in blocks of some thousands, so that a large file need not fit in memory. A party's
part of the model is the file with the weights of its columns.
"""

from __future__ import annotations

import csv
import io
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TypedDict

import numpy as np

from securevfl.base.arrays import Floats
from securevfl.base.files import atomic_writer, write_atomic

if TYPE_CHECKING:
    from securevfl.data.read_options import ReadOptions
    from securevfl.organisations.prediction import OnUnscored, Prediction
    from securevfl.training.model_part import ModelPart
    from securevfl.training.new_rows import IndexedRows, NewRows
    from securevfl.training.run import Run


ScoreColumns = Mapping[str, Callable[[Floats], Floats]]


class PredictionCallbacks(TypedDict):
    """Keyword arguments of `predict_rows` and `score_rows` that write the results."""

    on_block: Callable[[list[Any] | None, Prediction], None]
    on_unscored: OnUnscored | None


@contextmanager
def write_predictions(
    part: ModelPart,
    out: Path | None,
    score_columns: ScoreColumns | None = None,
    unscored: Path | None = None,
    *,
    rows: NewRows | IndexedRows | None = None,
) -> Iterator[PredictionCallbacks]:
    """Write predictions block by block, to stdout or atomically to a CSV file.

    Args:
        part: this party's part of the model.
        out: the file for predictions; stdout if None.
        score_columns: columns to add. Each is a name with a function that computes the values (m,) for m rows from
            their decision values (m, c); c is the number of outputs of the model.
        unscored: a file for the ids of rows without a score, each with the reason.
        rows: the rows, to write their ids as their file spells them; None to write the ids of the blocks unchanged.

    Yields:
        Functions that receive the predictions block by block and write them.
    """
    states = io.StringIO()
    unscored_rows = csv.writer(states, lineterminator="\n")
    names = _IdNames(rows)
    unscored_rows.writerow([*names.heads, "state"])

    def write_unscored(row_id: Any, state: str) -> None:
        unscored_rows.writerow([*(column[0] for column in names.columns([row_id]).values()), state])

    on_unscored = None if unscored is None else write_unscored
    if part.name != part.asker:
        yield {"on_block": lambda ids, prediction: None, "on_unscored": on_unscored}
    else:
        with nullcontext(sys.stdout.buffer) if out is None else atomic_writer(out) as file:
            write = _CsvWriter(file, score_columns, names)
            yield {"on_block": write, "on_unscored": on_unscored}
            if not write.started:  # no block arrived because there were no rows: write a file with only the header
                from securevfl.organisations.prediction import prediction_of

                write([], prediction_of(part, np.empty((0, part.outputs))))
    if unscored is not None:
        write_atomic(unscored, states.getvalue().encode())


class _IdNames:
    """The id columns of the predictions: one column, or the columns that together form the ids of the rows' file.

    Args:
        rows: the rows with the values of their id columns; None if ids are written unchanged.
    """

    def __init__(self, rows: NewRows | IndexedRows | None) -> None:
        key, self._written = (None, {}) if rows is None else (rows.key, rows.written)
        self.heads = ["id"] if key is None else key.prediction_names

    def columns(self, ids: Sequence[Any]) -> dict[str, list[Any]]:
        """Return the id columns by name. Each is a list with one value for each of these ids, in their order."""
        values = [self._written.get(row_id, row_id) for row_id in ids]
        if len(self.heads) == 1:
            return {self.heads[0]: values}
        return {head: [value[column] for value in values] for column, head in enumerate(self.heads)}


class _CsvWriter:
    """Writes the header of a CSV file once, and then appends each block of predictions."""

    def __init__(self, file: BinaryIO, score_columns: ScoreColumns | None, names: _IdNames) -> None:
        self._file, self._score_columns, self._names, self.started = file, score_columns or {}, names, False

    def __call__(self, ids: list[Any] | None, prediction: Prediction) -> None:
        assert ids is not None, "rows of a file have ids"
        columns = self._names.columns(ids) | {"prediction": prediction.label.tolist()}
        if (positive_proba := prediction.positive_proba) is not None:
            columns["probability"] = positive_proba.tolist()
        elif prediction.proba is not None:
            by_class = zip(prediction.classes, prediction.proba.T, strict=True)
            columns |= {f"probability {name}": column.tolist() for name, column in by_class}
        for name, compute in self._score_columns.items():
            columns[name] = compute(prediction.decision).tolist()
        for name, codes in prediction.reasons.items():
            columns |= {f"reason {name} {k}": list(column) for k, column in enumerate(zip(*codes, strict=True), 1)}
        text = io.StringIO()
        lines = csv.writer(text, lineterminator="\n")
        if not self.started:
            lines.writerow(columns)
            self.started = True
        lines.writerows(zip(*columns.values(), strict=True))
        self._file.write(text.getvalue().encode())


def predict_files(run: Run, files: Mapping[str, Path], out: Path | None, *, options: Mapping[str, ReadOptions]) -> None:
    """Predict the common rows of new tables of all parties of a run, in the order of the first table.

    Args:
        run: the finished training of all parties.
        files: the table of each party.
        out: the file for predictions; stdout if None.
        options: how each party's file is read.

    Raises:
        PartiesError: the files are not those of the parties with columns.
        DataError: a table cannot be used.
    """
    from securevfl.data.id_keys import id_keys
    from securevfl.data.join_tables import join_ids
    from securevfl.errors import PartiesError
    from securevfl.organisations.prediction import prediction_of
    from securevfl.training.new_rows import IndexedRows, rows_of_file

    parties = [name for name, part in run.parts.items() if part.columns]
    if set(files) != set(parties):
        raise PartiesError(
            f"--predict names the tables of {', '.join(files)}",
            f"give the tables of {', '.join(parties)}",
            code="SVFL-PARTIES-NAME",
        )
    tables = {
        name: IndexedRows.of(name, rows_of_file(run.parts[name], path, options[name])) for name, path in files.items()
    }
    first = next(iter(files))
    rows, _ = join_ids({name: (table.ids, id_keys(name, [table.ids])) for name, table in tables.items()}, first)
    scaled = {name: run.parts[name].scaling(table.X[rows[name]]) for name, table in tables.items()}
    file_rows = tables[first].file_rows
    file_rows = rows[first] if file_rows is None else file_rows[rows[first]]
    f = run.decision_of(scaled, first, file_rows)
    part = run.parts[run.active.asker]
    ids = [tables[first].ids[row] for row in rows[first].tolist()]
    with write_predictions(part, out, rows=tables[first]) as callbacks:
        callbacks["on_block"](ids, prediction_of(part, f))
