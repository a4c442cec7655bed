"""Measurements of every size by the baselines and by this library's engines."""

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
    """One process a core, or None on one core."""
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
    """All rows, size by size, baselines first, with their ratios to phe. `on_row` is told what is measured next."""
    rows: list[Row] = []
    with process_pool() if "paillier" in engines else nullcontext() as pool:
        for size in sizes:
            own: list[Row] = []
            for name, baseline in baselines.items():
                on_row(f"{name} {size[0]} x {size[1]}")
                own.append(baseline(*size))
            for name, measure in engines.items():
                on_row(f"{name} {size[0]} x {size[1]}")
                own.append(measure(*size, pool))
            phe: Row = next((row for row in own if row["engine"] == "phe"), {})
            for row in own:
                for ratio, of in (("ratio_to_phe", "total_ms"), ("cpu_ratio_to_phe", "cpu_ms")):
                    row[ratio] = phe[of] / row[of] if phe and row[of] else None
            rows += own
    return rows


def check_names(option: str, names: Sequence[str], known: Sequence[str]) -> None:
    """ConfigError for a name that is not known, or phe if it is not installed."""
    for name in names:
        if name not in known:
            raise ConfigError(f"{option}: names among {', '.join(known)} were expected, {name!r} came; correct it")
    if "phe" in names and find_spec("phe") is None:
        raise ConfigError(
            "--against phe: phe is not installed (it is GPL-3.0 and so an extra); pip install 'securevfl[phe]'"
        )
