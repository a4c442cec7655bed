"""Mutants (deliberate errors) of weights of evidence."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from securevfl.data import preparation
from securevfl.data import woe as bins
from securevfl.families import run_shape
from securevfl.families.rounds import rounds_outputs
from securevfl.protocols import bin_classes
from securevfl.protocols.residuals.open_residual import OpenResidual
from selfcheck.mutants.mutant import Mutant, patched

_agreed = bin_classes._agreement
_tell, _ask, _number_bins = bin_classes.send_classes, bin_classes.receive_counts, bins.number_bins


def _tells_in_the_clear(context: Any, residual: Any, later: Any) -> None:
    _tell(context, OpenResidual(), later)


def _asks_in_the_clear(context: Any, residual: Any, bins: Any, rows: Any) -> Any:
    return _ask(context, OpenResidual(), bins, rows)


def _opens_whole(rows: int) -> Any:
    return replace(_agreed(rows), word=None)


def _a_row_apart(column: str, values: Any, gaps: bool, options: Any, codes: Any = ()) -> Any:
    """Give the largest value a separate bin."""
    bins = _number_bins(column, values, gaps, options, codes)
    return bins.model_copy(update={"edges": (*bins.edges[:-1], float(np.nanmax(values)))})


def _counts_nothing(job: Any, sizes: Any) -> list[Any]:
    return []


def _sees_nobody(*_: Any) -> int:
    return 0


MUTANTS = [
    Mutant(
        "bins: labels in the clear",
        "y is sent in the clear before a training under encryption",
        "classes in bins",
        "declared",
        patched(
            (bin_classes, "send_classes", _tells_in_the_clear), (bin_classes, "receive_counts", _asks_in_the_clear)
        ),
    ),
    Mutant(
        "bins: opened whole",
        "counts are opened as whole numbers, which name many labels each to a party that weighs rows",
        "classes in bins",
        "words",
        patched((bin_classes, "_agreement", _opens_whole)),
    ),
    Mutant(
        "bins: a single row",
        "the largest value of a column is a bin, and the count its label",
        "classes in bins",
        "bins",
        patched((preparation, "number_bins", _a_row_apart)),
    ),
    Mutant(
        "bins: not counted",
        "counts of bins are missing in a run's disclosures about labels",
        "classes in bins guarded",
        "count",
        patched((rounds_outputs, "bin_outputs", _counts_nothing)),
    ),
    Mutant(
        "bins: single rows unseen",
        "nobody looks whether bins of several columns differ by one row",
        "classes in bins guarded",
        "count",
        patched((run_shape, "count_singled_out_rows", _sees_nobody)),
    ),
]
