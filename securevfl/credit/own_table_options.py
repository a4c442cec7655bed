"""Options of commands that read one party's table and send nothing, such as `describe` and `bins`."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, NamedTuple, TypeVar

import typer

from securevfl.cli import option_groups
from securevfl.cli import party_options as options
from securevfl.errors import TableError

if TYPE_CHECKING:
    from securevfl.data.party import Party
    from securevfl.data.read_options import ReadOptions

_Read = TypeVar("_Read")


class PartlyLabelled(NamedTuple):
    """A table whose rows may lack labels.

    Attributes:
        party: the party with all rows. It has no labels if any row lacks one.
        labelled: the party with only the rows that have a label; None if all rows or no rows have one.
        empty: names of the file's columns without values, which the party does not have.
    """

    party: Party
    labelled: Party | None
    empty: list[str]


@dataclass(frozen=True)
class OwnTableOptions:
    """Options by which a command reads a table of its user."""

    data: options.Data
    party: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Your party's name in the output; by default the name of the file."),
    ] = None
    id_column: options.IdColumn = "id"
    duplicates: options.RepeatedIds = "refuse"
    label_column: options.LabelColumn = "y"
    columns: options.ColumnTypes = None
    positive: Annotated[
        str | None,
        typer.Option(
            metavar="CLASS",
            help="The positive class of your labels, as a job names it; by default 1, true, yes or the rarer one.",
        ),
    ] = None

    def read(self, needed: str) -> Party:
        """Read the table without columns that have no values; a `Party` cannot have such columns.

        A large Parquet file is copied to a temporary file with fixed-size rows, so that it need not fit in memory.

        Args:
            needed: the column that the command needs.

        Returns:
            The party. TableError is raised if the table cannot be used, or the needed column has no values.
        """
        party, _ = self._without_empty(self._read, needed)
        return party

    def _read(self, read_options: ReadOptions) -> Party:
        from securevfl.data.load import is_large
        from securevfl.data.readers import read_party
        from securevfl.data.store import copy_to_temporary_table

        read = copy_to_temporary_table if is_large(self.data) else read_party
        return read(self._name, self.data, read_options)

    def read_partly_labelled(self) -> PartlyLabelled:
        """Read the table, and also only its rows with a label. All rows of a table that stays on disk must have one."""
        (party, labelled), empty = self._without_empty(self._read_partly_labelled)
        return PartlyLabelled(party, labelled, empty)

    def _read_partly_labelled(self, read_options: ReadOptions) -> tuple[Party, Party | None]:
        from securevfl.data.load import is_large
        from securevfl.data.readers import read_partly_labelled

        if is_large(self.data):
            return self._read(read_options), None
        return read_partly_labelled(self._name, self.data, read_options)

    def _without_empty(self, read: Callable[[ReadOptions], _Read], needed: str = "") -> tuple[_Read, list[str]]:
        """Call `read` with options that leave out columns without values; return its result and their names."""
        try:
            return read(self._options), []
        except TableError as error:
            empty = error.fields.get("columns")
            if error.code != "SVFL-TABLE-EMPTY-COLUMN" or not isinstance(empty, list) or needed in empty:
                raise
        return read(replace(self._options, drop=empty)), empty

    @property
    def _name(self) -> str:
        return self.party or re.sub(r"[^\w-]", "-", self.data.name.partition(".")[0]) or "table"

    @property
    def _options(self) -> ReadOptions:
        ids = option_groups.IdOptions(self.id_column, self.duplicates).options
        return replace(ids, label_column=self.label_column, declared=option_groups.declared_in(self.columns))
