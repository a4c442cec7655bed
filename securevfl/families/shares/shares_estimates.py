"""Estimates of time, traffic, memory and disk of a training on shares, from public sizes alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from securevfl.crypto.share_ring import ShareRing
from securevfl.data.load import MAX_IN_MEMORY_BYTES
from securevfl.data.schedule import Schedule
from securevfl.disclosure.counts import RunShape
from securevfl.errors import ConfigError
from securevfl.families.shares.chunk_pipeline import chunk_epochs, split_chunks
from securevfl.families.shares.shares_job import SharesJob
from securevfl.families.shares.shares_plan import make_plan
from securevfl.models.inputs import InputShape
from securevfl.protocols.shares.shares_params import ROWS_PER_BLOCK

# Measured, 16 visits to 40,000 rows at once, a row, output and visit
PRODUCT_BYTES = 47  # of a holder's query and its reply, from each other party

PROCESSOR = 7.4e-6, 4.8e-8, 1.8e-6  # seconds at all parties: of two, of each column, of each party more

WIDE, WIDE_COLUMN, WIDE_BYTES = 100, 1.3e-8, 0.35  # columns beyond which one more takes so many seconds, and bytes

# Of processes between organisations at their largest, trainings of 100,000 to 5,000,000 rows
MEMORY, ROW, ENTRY, TABLES = 3.4e8, 100, 12, 8  # bytes; of a row of the table; of an entry of a block; times its tables

INTEGERS = 6  # bytes of an entry as integers, on disk

LINE = 300e6 / 8  # bytes a second


def resource_lines(job: SharesJob, schedule: Schedule, sizes: RunShape) -> list[str]:
    """Describe in lines the visits of a run, the bits of its numbers, and what goes over the line, is kept and takes
    time; or why it would be refused."""
    visits, parties = list(schedule.iterations()), len(sizes.columns)
    rows = max((len(part) for part in schedule.partition(0)), default=0)
    widths = {
        name: job.model.breadth(InputShape(name == sizes.active, d, sizes.outputs, parties, len(schedule.train)))
        for name, d in sizes.columns.items()
    }
    if not (visits and rows):
        return []
    try:
        numbers = make_plan(job, rows=rows, batches=schedule.batches, parties=parties).numbers
    except ConfigError as error:
        return [f"more bits than there are, so it would be refused: {error}"]
    by_rows = Counter(len(visit.rows) for visit in visits)
    several = len(by_rows) > 1 and max(by_rows) > min(by_rows) + 1
    visited = " then ".join(f"{times:,} to {each:,}" for each, times in sorted(by_rows.items())) if several else ""
    total = sum(len(visit.rows) for visit in visits) * sizes.outputs
    epochs = chunk_epochs(job, len(schedule.train), sizes.outputs)
    chunk = max(sum(len(visit.rows) for visit in part) for _, part in split_chunks(visits, 0, epochs))
    octets = ShareRing(numbers.bits).octets
    sent = float(numbers.entries * octets + octets + 1 + 16 * numbers.table_bits)
    sent += 2 * (parties - 1) * (PRODUCT_BYTES + WIDE_BYTES * max(0, sum(widths.values()) / parties - WIDE))
    sent += 2 * octets * (parties - 2)
    seconds = total * _processor_seconds(sum(widths.values()), parties)
    kept = chunk * sizes.outputs * (2 * octets + 16 * numbers.table_bits)
    n, widest = len(schedule.train) + len(schedule.test), max(widths.values())
    own = 8 * n * max(sizes.columns.values())
    tables = TABLES * numbers.entries * octets * sizes.outputs
    memory = (
        MEMORY
        + ROW * n
        + (own if own < MAX_IN_MEMORY_BYTES else 0)
        + min(ROWS_PER_BLOCK, rows) * (ENTRY * widest + tables)
    )
    disk = kept + INTEGERS * rows * widest + (own / 2 if own >= MAX_IN_MEMORY_BYTES else 0)
    return [
        f"{len(visits):,} visits at most, {visited or f'to {rows:,} rows'}; {numbers.bits} bits a number, "
        f"w = {numbers.w}",
        f"some {_format_bytes(total * sent)} sent, {_format_bytes(kept)} of work ahead at the active party at a time "
        f"(chunk = {epochs}), {seconds:,.0f} s of processor at all parties; evaluations come on top",
        f"between organisations some {_format_bytes(memory)} of memory and {_format_bytes(disk)} of disk a party at "
        f"most, {seconds / parties:,.0f} s by the clock with a core each, or {total * sent / LINE:,.0f} s where a line "
        "of "
        "300 Mbit/s takes longer",
    ]


def _processor_seconds(columns: int, parties: int) -> float:
    """Return the seconds of processor that a row and visit take at all parties, of so many columns in all."""
    first, column, more = PROCESSOR
    return first + column * min(columns, WIDE) + WIDE_COLUMN * max(0, columns - WIDE) + more * (parties - 2)


def _format_bytes(count: float) -> str:
    units: Sequence[tuple[float, str]] = ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"))
    return next((f"{count / unit:.3g} {name}" for unit, name in units if count >= unit), f"{count:.0f} B")
