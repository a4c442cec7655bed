"""What a training on shares takes of its parties, from public sizes alone: said before anything is aligned or sent."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from securevfl.crypto.share_ring import ShareRing
from securevfl.data.schedule import Schedule
from securevfl.disclosure.counts import Sizes
from securevfl.errors import ConfigError
from securevfl.methods.shares.shares_plan import SharesJob, plan
from securevfl.methods.shares.shares_turns import chunks_of

__all__ = ["needs"]

# Measured, 16 visits to 40,000 rows at once, a row, output and visit
PRODUCT_BYTES = 47  # of a holder's query and its reply, from each other party
PROCESSOR = 7.4e-6, 4.8e-8, 1.8e-6  # seconds at all parties: of two, of each column, of each party more


def needs(job: SharesJob, schedule: Schedule, sizes: Sizes) -> list[str]:
    """Describe in lines the visits of a run, the bits of its numbers, and what goes over the line, is kept and takes
    time; or why it would be refused."""
    visits, parties = list(schedule.visits()), len(sizes.columns)
    rows = max((len(part) for part in schedule.partition(0)), default=0)
    if not (visits and rows):
        return []
    try:
        numbers = plan(job, rows=rows, batches=schedule.batches, parties=parties).numbers
    except ConfigError as error:
        return [f"more bits than there are, so it would be refused: {error}"]
    by_rows = Counter(len(visit.rows) for visit in visits)
    several = len(by_rows) > 1 and max(by_rows) > min(by_rows) + 1
    visited = " then ".join(f"{times:,} to {each:,}" for each, times in sorted(by_rows.items())) if several else ""
    total = sum(len(visit.rows) for visit in visits) * sizes.outputs
    chunk = max(sum(len(visit.rows) for visit in part) for _, part in chunks_of(visits, 0, job.protocol.shares.chunk))
    octets = ShareRing(numbers.bits).octets
    sent = numbers.entries * octets + octets + 1 + 16 * numbers.table_bits + PRODUCT_BYTES * 2 * (parties - 1)
    sent += 2 * octets * (parties - 2)
    first, column, more = PROCESSOR
    seconds = total * (first + column * sum(sizes.columns.values()) + more * (parties - 2))
    kept = chunk * sizes.outputs * (2 * octets + 16 * numbers.table_bits)
    return [
        f"{len(visits):,} visits at most, {visited or f'to {rows:,} rows'}; {numbers.bits} bits a number, "
        f"w = {numbers.w}",
        f"some {_size(total * sent)} sent, {_size(kept)} of work ahead at the active party at a time "
        f"(chunk = {job.protocol.shares.chunk}), {seconds:,.0f} s of processor at all parties; evaluations come on top",
    ]


def _size(count: float) -> str:
    units: Sequence[tuple[float, str]] = ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"))
    return next((f"{count / unit:.3g} {name}" for unit, name in units if count >= unit), f"{count:.0f} B")
