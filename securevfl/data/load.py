"""A party's table from a file, in the order that all parties share: in memory, or where it is large read from disk.

A Parquet file of more than `MAX_IN_MEMORY_BYTES` bytes as numbers is copied once into a file of plain rows
(`securevfl.data.store`),
from which batches are read. The party is the same either way, and so is the model, bit for bit.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from securevfl.data.composite_ids import alike
from securevfl.data.id_keys import Keys
from securevfl.data.join import join_ids
from securevfl.data.parquet_source import ParquetSource
from securevfl.data.party import Party
from securevfl.data.readers import named, open_parquet, read_party
from securevfl.data.row_order import read_rows, rows_path
from securevfl.data.schedule import Batched, Rows
from securevfl.data.store import OnProgress, StoredParty, copy_to_temporary_table, store_table, table_path
from securevfl.errors import IdError, PartiesError, TableError

MAX_IN_MEMORY_BYTES = 256 << 20  # bytes of numbers in memory; reading them whole takes some four times as much


def large(path: Path) -> bool:
    """Whether the table of this file is to be read from disk."""
    if path.suffix != ".parquet":
        return False
    try:
        with named(path), open_parquet(path) as file:
            return bool(file.metadata.num_rows * file.metadata.num_columns * 8 > MAX_IN_MEMORY_BYTES)
    except TableError:
        return False  # whoever reads it says what it is


def read_order(data: Path, rows: int) -> Rows | None:
    """Read the row order that an alignment has left beside the data, if there is one."""
    return read_rows(data, of=rows) if rows_path(data).exists() else None


def read_in_order(name: str, data: Path, *, id_column: str, label_column: str) -> Party:
    """Read a party's whole table into memory, its rows as an alignment has left them if it has."""
    party = read_party(name, data, id_column=id_column, label_column=label_column)
    order = read_order(data, len(party))
    return party if order is None else party.take(order)


def read_aligned(
    name: str, data: Path, job: Batched, *, id_column: str, label_column: str, on_progress: OnProgress | None = None
) -> Party:
    """One party among several organisations, its rows as an alignment has left them. DataError as `read_party`.

    The copy of a large table stays beside the data, for a run that goes on, until `forget`.
    """
    if not large(data):
        return read_in_order(name, data, id_column=id_column, label_column=label_column)
    rows = ParquetSource(name, data, id_column=id_column, label_column=label_column).rows
    return store_table(
        name,
        data,
        table_path(data),
        rows=read_order(data, rows),
        job=job,
        id_column=id_column,
        label_column=label_column,
        on_progress=on_progress,
    )


def forget(own: Party, data: Path) -> None:
    """Remove the copy that `read_aligned` has made for this party, if it has."""
    if isinstance(own, StoredParty):
        table_path(data).unlink(missing_ok=True)


def read_parties(
    files: Mapping[str, str | Path],
    *,
    id_column: str | Mapping[str, str] = "id",
    label_column: str = "y",
    job: Batched | None = None,
    on_progress: OnProgress | None = None,
) -> tuple[list[Party], dict[str, list[str]]]:
    """All parties of a job from a file each, joined on their ids.

    Returns the parties with the shared rows in the active party's order, and for each party the ids that others have
    and it lacks. id_column: of all files, or by the name of the party. job: large tables are read from disk, where they
    lie in the order of its batches; in memory without. on_progress(rows read, of) of each large table. PartiesError
    unless
    exactly one file has labels, DataError as `read_party` and `align`.
    """
    paths = {name: Path(path) for name, path in files.items()}
    id_columns = dict.fromkeys(paths, id_column) if isinstance(id_column, str) else id_column
    held: dict[str, Party | ParquetSource] = {
        name: ParquetSource(name, path, id_column=id_columns[name], label_column=label_column)
        if job is not None and large(path)
        else read_party(name, path, id_column=id_columns[name], label_column=label_column)
        for name, path in paths.items()
    }
    labelled = [name for name, own in held.items() if (own.active if isinstance(own, Party) else own.labelled)]
    if len(labelled) != 1:
        found = ", ".join(f"{name} ({files[name]})" for name in labelled) or "none"
        raise PartiesError(
            f"exactly one party with labels was expected (column {label_column!r}, in npz the array y), "
            f"with labels: {found}; remove it from the others, or name the right column with --label"
        )
    ids = {name: _ids(own) for name, own in held.items()}
    try:
        rows, missing = join_ids(ids, labelled[0])
    except IdError:
        if near := alike(own for own, _ in ids.values()):
            raise IdError(
                f"at least one shared id was expected, there is none, but {near:,} that differ by capitals, blanks, "
                "hyphens or accents alone; --id COLUMN, with a comma behind it leaves these out"
            ) from None
        raise
    del ids
    parties = [
        own.take(rows[name])
        if isinstance(own, Party)
        else copy_to_temporary_table(
            name,
            paths[name],
            rows=rows[name],
            job=job,
            id_column=id_columns[name],
            label_column=label_column,
            on_progress=on_progress,
        )
        for name, own in held.items()
    ]
    return parties, missing


def _ids(own: Party | ParquetSource) -> tuple[np.ndarray, Keys]:
    if isinstance(own, ParquetSource):
        return own.ids().to_numpy(), own.keys()
    assert own.ids is not None and own.keys is not None, "tables from files have ids"  # noqa: PT018
    return own.ids, own.keys
