"""Arrow IPC files, and folders of Parquet or IPC files, with the interface of `pyarrow.parquet.ParquetFile`.

A folder is one table: the rows of its files in the order of their paths. Files whose names begin with "." or "_" are no
part of it, and folders such as `year=2024` inside it become columns. All files must have the same columns, because rows
of a file that lacks one would otherwise get missing values in silence.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from securevfl.errors import TableError

IPC_SUFFIXES = ".arrow", ".feather", ".ipc"
"""Names of Arrow IPC files end with one of these."""
_FORMATS = {".parquet": "parquet", **dict.fromkeys(IPC_SUFFIXES, "ipc")}


def is_arrow(path: Path) -> bool:
    """Return whether a path is a file or folder with typed columns: Parquet, Arrow IPC, or a folder of these."""
    return path.suffix in _FORMATS or path.is_dir()


def parts_of(path: Path) -> list[Path]:
    """Return the files of a table: the file itself, or the files of a folder in the order of their paths."""
    if not path.is_dir():
        return [path]
    inside = (part.relative_to(path) for part in path.rglob("*") if part.is_file())
    return [path / part for part in sorted(inside) if not any(name[0] in "._" for name in part.parts)]


class DatasetFile:
    """An IPC file, or a folder of Parquet or IPC files.

    Args:
        path: the file or folder.

    Attributes:
        schema_arrow: the schema of the table.
        metadata: the numbers of rows and columns, and the metadata of the first file.

    Raises:
        TableError: if the folder has no files, files of other formats, or files with different columns.
    """

    def __init__(self, path: Path) -> None:
        dataset = import_module("pyarrow.dataset")
        paths = parts_of(path)
        formats = {_FORMATS.get(part.suffix, "") for part in paths}
        if not paths or len(formats) > 1 or "" in formats:
            raise TableError(
                "the folder contains no Parquet or Arrow files, or files of several formats",
                f"name a folder whose files all end in .parquet, or all in one of {', '.join(IPC_SUFFIXES)}",
                code="SVFL-TABLE-UNREADABLE",
            )
        (self._format,) = formats
        partitions = dataset.partitioning(flavor="hive") if path.is_dir() else None
        opened = dataset.dataset(
            list(map(str, paths)),
            format=self._format,
            partitioning=partitions,
            partition_base_dir=str(path) if path.is_dir() else None,
        )
        self.schema_arrow = opened.schema
        self._fragments = list(opened.get_fragments())
        self._check_columns(paths)
        metadata = self._fragments[0].metadata.metadata if self._format == "parquet" else {}
        rows = sum(fragment.count_rows() for fragment in self._fragments)
        self.metadata = SimpleNamespace(num_rows=rows, num_columns=len(self.schema_arrow.names), metadata=metadata)

    def _check_columns(self, paths: Sequence[Path]) -> None:
        """Raise TableError if a file has other columns than the first one."""
        first, *others = (fragment.physical_schema for fragment in self._fragments)
        for path, schema in zip(paths[1:], others, strict=True):
            if set(schema.names) != set(first.names):
                raise TableError(
                    f"the files {paths[0].name} and {path.name} of the folder have different columns",
                    "write all files with the same columns",
                    code="SVFL-TABLE-COLUMNS",
                    columns=sorted(set(schema.names) ^ set(first.names)),
                )
            changed = [name for name in first.names if schema.field(name).type != first.field(name).type]
            if changed:
                raise TableError(
                    f"the files {paths[0].name} and {path.name} of the folder have different types of column "
                    f"{changed[0]!r}",
                    "write all files with the same types",
                    code="SVFL-TABLE-TYPE",
                    column=changed[0],
                )

    def iter_batches(self, batch_size: int, columns: Sequence[str]) -> Iterator[Any]:
        """Yield these columns of all rows in record batches of at most `batch_size` rows."""
        for fragment in self._fragments:
            yield from fragment.to_batches(
                schema=self.schema_arrow,
                columns=list(columns),
                batch_size=batch_size,
                batch_readahead=1,
                use_threads=False,
            )

    def read(self, columns: Sequence[str], *, use_threads: bool = False) -> Any:
        """Read these columns of all rows as an Arrow table, on one thread."""
        pa = import_module("pyarrow")
        schema = pa.schema([self.schema_arrow.field(name) for name in columns])
        return pa.Table.from_batches(self.iter_batches(1 << 17, columns), schema)

    def __enter__(self) -> DatasetFile:
        """Return the file; nothing stays open between two reads."""
        return self

    def __exit__(self, *_: object) -> None:
        """Do nothing, because every read has closed its files."""
