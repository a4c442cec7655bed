"""The rows of a benchmark table: every size, measured with the baselines and with this library's engines.

An engine is an encryption scheme of this library; a baseline is another library, such as phe (python-paillier).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from importlib.util import find_spec

from securevfl.bench.result_file import Row
from securevfl.errors import ConfigError
from securevfl.runtime import worker_processes
from securevfl.runtime.executor import TimedExecutor


@contextmanager
def process_pool() -> Iterator[TimedExecutor | None]:
    """Yield a pool of one process for each core, or None on a single core."""
    cores = os.cpu_count() or 1
    if cores < 2:
        yield None
        return
    with worker_processes.process_pool(cores) as pool:
        yield TimedExecutor(pool, cores)


def rows_of(
    sizes: Sequence[tuple[int, int]],
    baselines: Mapping[str, Callable[[int, int], Row]],
    engines: Mapping[str, Callable[[int, int, TimedExecutor | None], Row]],
    on_row: Callable[[str], None],
) -> list[Row]:
    """Measure every size by the baselines and by this library's engines.

    Args:
        sizes: the two sizes of each problem, such as rows and columns.
        baselines: for each baseline, by name, a function that measures it.
        engines: for each engine, by name, a function that measures it.
        on_row: called with a description of the next measurement.

    Returns:
        Rows by size, the baselines first. `ratio_to_phe` of a row is phe's total time divided by that of the row.
    """
    rows: list[Row] = []
    with process_pool() if "paillier" in engines else nullcontext() as pool:
        for size in sizes:
            of_size: list[Row] = []
            for name, baseline in baselines.items():
                on_row(f"{name} {size[0]} x {size[1]}")
                of_size.append(baseline(*size))
            for name, measure in engines.items():
                on_row(f"{name} {size[0]} x {size[1]}")
                of_size.append(measure(*size, pool))
            phe: Row = next((row for row in of_size if row["engine"] == "phe"), {})
            for row in of_size:
                for ratio, of in (("ratio_to_phe", "total_ms"), ("cpu_ratio_to_phe", "cpu_ms")):
                    row[ratio] = phe[of] / row[of] if phe and row[of] else None
            rows += of_size
    return rows


def check_names(option: str, names: Sequence[str], known: Sequence[str]) -> None:
    """Check names on the command line.

    Args:
        option: the option, for the message.
        names: the chosen names.
        known: all possible names.

    Raises:
        ConfigError: if a name is unknown, or if phe is chosen and not installed.
    """
    for name in names:
        if name not in known:
            raise ConfigError(
                f"{option}: unknown name {name!r}",
                f"choose from {', '.join(known)}",
                code="SVFL-COMMAND-USAGE",
                option=option,
            )
    if "phe" in names and find_spec("phe") is None:
        raise ConfigError(
            "--against phe: phe is not installed; it is an extra because of its licence (GPL-3.0)",
            "run pip install 'securevfl[phe]'",
            code="SVFL-EXTRA-MISSING",
            extra="phe",
        )
