"""How a party's table is read: the ids, the labels, the columns with their types, and what happens to repeated ids."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from securevfl.data.column_types import Types
from securevfl.data.duplicates import Duplicates


@dataclass(frozen=True)
class ReadOptions:
    """How one table is read: its id column, label column, types of columns, and repeated ids.

    Attributes:
        id_column: the id column, or a list of columns as `--id` accepts it.
        label_column: the label column, at the active party.
        drop: columns that are not read.
        declared: the declared types of columns.
        duplicates: what happens to several rows of one id (`securevfl.data.duplicates`).
        chosen: the columns to read, in this order, for a prediction; by default all. Labels are not read then.
        known: the types of the columns in the training of a model, which replace all others.
        unlabelled: whether rows without a label are allowed; `FileTable.labelled` then states which rows have one.
    """

    id_column: str = "id"
    label_column: str = "y"
    drop: Sequence[str] = ()
    declared: Types = field(default_factory=dict)
    duplicates: Duplicates = "refuse"
    chosen: Sequence[str] | None = None
    known: Types = field(default_factory=dict)
    unlabelled: bool = False

    @property
    def facts(self) -> list[object]:
        """The options that determine the stored copy of a large table, as JSON values; a change makes a new copy."""
        types = sorted((name, kind.model_dump(mode="json")) for name, kind in self.declared.items())
        return [self.id_column, self.label_column, sorted(self.drop), types, self.duplicates]
