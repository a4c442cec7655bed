"""Options of commands that read one party's table, of which nothing is sent, such as `describe` and `bins`."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated

import typer

from securevfl.cli import option_groups
from securevfl.cli import party_options as options

if TYPE_CHECKING:
    from securevfl.data.party import Party
    from securevfl.data.read_options import ReadOptions


@dataclass(frozen=True)
class OwnTableOptions:
    """Options by which a command reads a table of its user."""

    data: options.Data
    party: Annotated[
        str | None, typer.Option(metavar="NAME", help="Your name on the page; by default the name of the file.")
    ] = None
    id_column: options.IdColumn = "id"
    duplicates: options.RepeatedIds = "refuse"
    label_column: options.LabelColumn = "y"
    columns: options.ColumnTypes = None

    def read(self) -> Party:
        """Read the table. A large Parquet file is copied to a temporary file of rows and does not fill the memory."""
        from securevfl.data.load import is_large
        from securevfl.data.readers import read_party
        from securevfl.data.store import copy_to_temporary_table

        read = copy_to_temporary_table if is_large(self.data) else read_party
        return read(self._name, self.data, self._options)

    def read_partly_labelled(self) -> tuple[Party, Party | None]:
        """Read the table, and its rows with a label; of a large table all rows must have one."""
        from securevfl.data.load import is_large
        from securevfl.data.readers import read_partly_labelled

        if is_large(self.data):
            return self.read(), None
        return read_partly_labelled(self._name, self.data, self._options)

    @property
    def _name(self) -> str:
        return self.party or re.sub(r"[^\w-]", "-", self.data.name.partition(".")[0]) or "table"

    @property
    def _options(self) -> ReadOptions:
        ids = option_groups.IdOptions(self.id_column, self.duplicates).options
        return replace(ids, label_column=self.label_column, declared=option_groups.declared_in(self.columns))
