"""A party's table from a file, in the row order that all parties share.

Private alignment writes this order to a file next to the data file. A CSV or Parquet file with more than
MAX_IN_MEMORY_BYTES of numbers is copied once into a file of fixed-size rows (`securevfl.data.store`), from which
batches are read; other tables are held in memory. Training gives the same model, bit for bit, in both cases.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from securevfl.data.arrow_dataset import is_arrow
from securevfl.data.csv_file import CsvFile
from securevfl.data.id_keys import Keys
from securevfl.data.join_tables import join_ids
from securevfl.data.party import Party
from securevfl.data.read_options import ReadOptions
from securevfl.data.readers import (
    column_names,
    errors_name,
    open_parquet,
    party_of_table,
    read_party,
    read_table,
)
from securevfl.data.row_order import read_rows, rows_path
from securevfl.data.schedule import Batched, Rows
from securevfl.data.source_type import source_type
from securevfl.data.store import OnProgress, StoredParty, copy_to_temporary_table, store_table, table_path
from securevfl.data.table_source import TableSource
from securevfl.data.validation import name_list
from securevfl.errors import ConfigError, PartiesError, TableError

MAX_IN_MEMORY_BYTES = 256 << 20
"""Bytes of numbers that are held in memory; reading them takes about four times as much."""
_MAX_COMPRESSION = 64  # a compressed CSV file is assumed to contain at most this many bytes of numbers per byte


def is_large(path: Path, max_in_memory_bytes: int | None = None) -> bool:
    """Return whether the table of a file is too large for memory, so that its rows are read from disk.

    Args:
        path: the file.
        max_in_memory_bytes: the limit, in bytes of float64 numbers; `MAX_IN_MEMORY_BYTES` by default.

    Returns:
        True if the table has more bytes of numbers than are held in memory.
    """
    limit = MAX_IN_MEMORY_BYTES if max_in_memory_bytes is None else max_in_memory_bytes
    try:
        with errors_name(path):
            if is_arrow(path):
                with open_parquet(path) as file:
                    return bool(file.metadata.num_rows * file.metadata.num_columns * 8 > limit)
            if path.suffix == ".npz" or path.stat().st_size * _MAX_COMPRESSION < limit:
                return False
            file = CsvFile(path)
            return file.max_rows * len(file.names) * 8 > limit
    except TableError:
        return False  # the file cannot be opened; reading it as a small table raises the error with its reason


def read_order(data: Path, rows: int) -> Rows | None:
    """Read the row order that an alignment wrote next to the data file; None if there is none."""
    return read_rows(data, of=rows) if rows_path(data).exists() else None


def read_in_order(name: str, data: Path, options: ReadOptions) -> Party:
    """Read a party's table into memory, in the row order of an alignment if there is one; see `read_aligned`."""
    table = read_table(data, options)
    party = party_of_table(name, data, table)
    order = read_order(data, len(party) if table.unique is None else table.unique.total)
    if order is None:
        return party
    with errors_name(data):
        return party.take(order if table.unique is None else table.unique.positions_of(order))


def read_aligned(
    name: str,
    data: Path,
    job: Batched,
    options: ReadOptions,
    *,
    on_progress: OnProgress | None = None,
    max_in_memory_bytes: int | None = None,
) -> Party:
    """Read the table of one party of a run between organisations, in the row order of an alignment.

    The copy of a large table is stored next to the data file until `delete_table_copy` removes it, so that an
    interrupted run can use it again.

    Args:
        name: name of the party.
        data: the file.
        job: the job whose batches are read.
        options: the columns to read, their types, and what happens to several rows of one id.
        on_progress: called repeatedly while a large table is copied.
        max_in_memory_bytes: see `is_large`.

    Returns:
        The party. A DataError (or a subclass) is raised if the file cannot be used.
    """
    if not is_large(data, max_in_memory_bytes):
        return read_in_order(name, data, options)
    rows = source_type(data)(name, data, options).rows
    order = read_order(data, rows)
    return store_table(name, data, table_path(data), options, rows=order, job=job, on_progress=on_progress)


def delete_table_copy(party: Party, data: Path) -> None:
    """Delete the copy of a large table that `read_aligned` created for this party."""
    if isinstance(party, StoredParty):
        table_path(data).unlink(missing_ok=True)


def read_parties(
    files: Mapping[str, str | Path],
    options: ReadOptions | Mapping[str, ReadOptions] = ReadOptions(),
    *,
    job: Batched | None = None,
    on_progress: OnProgress | None = None,
    max_in_memory_bytes: int | None = None,
) -> tuple[list[Party], dict[str, list[str]]]:
    """Read all parties of a job, each from one file, and keep the rows whose ids all parties have.

    Args:
        files: the file of each party.
        options: the options of all files, or of each party's file. Columns to drop may be any party's.
        job: large tables are read from disk in the order of this job's batches; without a job, into memory.
        on_progress: called repeatedly while a large table is copied.
        max_in_memory_bytes: see `is_large`.

    Returns:
        The parties with the shared rows, in the order of the active party; and for each party the ids that others have
        and it lacks.

    Raises:
        ConfigError: if a column to drop is in no file.
        PartiesError: unless exactly one file has labels.
        IdError: if no id is shared. A DataError (or a subclass) is raised if a file cannot be used.
    """
    paths = {name: Path(path) for name, path in files.items()}
    by_party = dict.fromkeys(paths, options) if isinstance(options, ReadOptions) else options
    if drop := list(dict.fromkeys(column for party_options in by_party.values() for column in party_options.drop)):
        _check_dropped(drop, {name: column_names(path, by_party[name].id_column) for name, path in paths.items()})
    tables: dict[str, Party | TableSource] = {}
    for name, path in paths.items():
        read = source_type(path) if job is not None and is_large(path, max_in_memory_bytes) else read_party
        tables[name] = read(name, path, by_party[name])
    labelled = [
        name for name, table in tables.items() if (table.active if isinstance(table, Party) else table.labelled)
    ]
    if len(labelled) != 1:
        raise _labels_error(labelled, files, by_party, {name: table.columns for name, table in tables.items()})
    ids = {name: _ids(table) for name, table in tables.items()}
    by_rule = any("," in party_options.id_column for party_options in by_party.values())
    rows, missing = join_ids(ids, labelled[0], by_rule)
    del ids
    parties = [
        table.take(rows[name])
        if isinstance(table, Party)
        else copy_to_temporary_table(
            name,
            paths[name],
            by_party[name],
            rows=rows[name] if table.unique is None else table.unique.rows[rows[name]],
            job=job,
            on_progress=on_progress,
        )
        for name, table in tables.items()
    ]
    return parties, missing


def _check_dropped(drop: Sequence[str], names: Mapping[str, Sequence[str]]) -> None:
    """Raise ConfigError if a column to drop is in none of the tables."""
    if unknown := [column for column in drop if not any(column in columns for columns in names.values())]:
        raise ConfigError(
            f"prepare.drop names columns that no table has: {name_list(unknown)}",
            "correct their names",
            code="SVFL-TABLE-COLUMNS",
            columns=unknown,
        )


def _labels_error(
    labelled: list[str],
    files: Mapping[str, str | Path],
    options: Mapping[str, ReadOptions],
    columns: Mapping[str, Sequence[str]],
) -> PartiesError:
    """Return the error of a job in which no file or several files have labels."""
    label_column = next(iter(options.values())).label_column
    if labelled:
        named = ", ".join(f"{name} ({files[name]})" for name in labelled)
        problem = f"several files have the label column {label_column!r} (npz: array y): {named}"
        remedy = "remove it from all but one, or name another column with --label"
    else:
        names = "; ".join(f"{name}: {name_list(list(party_columns), 10)}" for name, party_columns in columns.items())
        problem = f"no file has the label column {label_column!r} (npz: array y). The columns are {names}"
        remedy = "name the label column with --label"
    return PartiesError(problem, remedy, code="SVFL-PARTIES-LABELS", parties=labelled)


def _ids(table: Party | TableSource) -> tuple[np.ndarray, Keys]:
    if isinstance(table, TableSource):
        ids, keys = table.ids().to_numpy(), table.keys()
        return (ids, keys) if table.unique is None else (ids[table.unique.rows], keys[table.unique.rows])
    assert table.ids is not None and table.keys is not None, "tables from files have ids"  # noqa: PT018
    return table.ids, table.keys
