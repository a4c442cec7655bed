"""Estimates of time, traffic, memory and disk of a training on secret shares, from public sizes alone.

The two *share holders* are the active party (with labels) and its partner. *Preprocessing* is random material that they
generate in advance for a *chunk* of epochs. A *block* is a number of rows of a batch that are processed at a time. The
*lift* extends shares of short entries of lookup tables to full length. The constants were measured or fitted as stated.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from securevfl.crypto.share_ring import ShareRing
from securevfl.crypto.transfers.field_transfers import symbol_widths
from securevfl.data.load import MAX_IN_MEMORY_BYTES
from securevfl.data.store import StoredParty
from securevfl.families.facts import RunFacts
from securevfl.families.shares.chunk_division import chunk_ends
from securevfl.families.shares.shares_job import SharesJob
from securevfl.families.shares.shares_outputs import partner_of
from securevfl.families.shares.shares_plan import MAX_PAIR_NUMBERS, pair_params
from securevfl.models.inputs import InputShape
from securevfl.models.pair_components import component_count
from securevfl.protocols.shares.disk_store import MAX_STORED_BYTES
from securevfl.protocols.shares.fixed_point import FixedPointEncoding
from securevfl.protocols.shares.pair_columns import MIN_DISK_ROWS
from securevfl.protocols.shares.shares_params import ROWS_PER_BLOCK

# measured with 16 iterations on 40,000 rows at a time; each figure is for one row, one output and one iteration
TRANSFER_BIT_BYTES = 43 / 8  # bytes of an oblivious transfer for each bit of its index
SEEDED_PRODUCT_BYTES = 20  # bytes of a share holder's query and its reply, for each other party, with one output
PRODUCT_BYTES = 32  # the same with several outputs, because their queries cannot be shortened by seeds
BASE_SECONDS = 7.4e-6  # seconds of processor time of two parties together
COLUMN_SECONDS = 4.8e-8  # additional seconds of processor time for each column
PARTY_SECONDS = 1.8e-6  # additional seconds of processor time for each party beyond two
WIDE_COLUMNS = 100  # above this number of columns, each further column costs:
WIDE_COLUMN_SECONDS = 1.3e-8
WIDE_COLUMN_BYTES = 0.35

# memory in bytes, fitted to the peak memory of processes that trained on 100,000 to 5,000,000 rows
PROCESS_BYTES = 3.4e8
TABLE_ROW_BYTES = 100  # bytes for each row of the table
BLOCK_ENTRY_BYTES = 12  # bytes for each entry of a block
BLOCK_TABLE_FACTOR = 8  # factor on the bytes of a block's lookup tables
INTEGER_BYTES = 6  # bytes for each entry that is stored as an integer on disk
LINE_BYTES_PER_SECOND = 300e6 / 8  # of a line of 300 Mbit/s, for the estimated time of a run between organisations

# pairs: bytes and seconds of processor time of both share holders for one row and product (measured on 22,500 rows with
# 256 products), or for one row, product and iteration
PAIR_SHARE_BYTES = 0.55  # for each bit of a product's share
PAIR_SHARE_SECONDS = 4e-7
PAIR_ITERATION_SECONDS = 1.5e-7
PAIR_QUERY_BYTES = 320  # bytes of queries and replies for one row and iteration

# fitted to measurements of `securevfl train` with all tables in one process (`python -m benchmarks.estimates`)
ONE_PROCESS_BYTES = 2.75e8
ONE_PROCESS_ROW_BYTES = 200  # bytes for each row of each table: mostly ids
ONE_PROCESS_TABLE_FACTOR = 4.6  # factor on the bytes of the tables whose rows are prepared when they are read
ORIGINAL_TABLE_FACTOR = 3.0  # factor on the bytes of original columns if prepared columns are in memory, too
PREPARED_TABLE_FACTOR = 1.6  # factor on the bytes of prepared columns in memory
ONE_PROCESS_SECONDS = 2.8  # seconds that a process needs besides reading and training
READ_SECONDS = 4.2e-7  # seconds for each value of a table that is read, described and evaluated
PREPARED_SECONDS = 1.8e-7  # seconds for each value of the prepared columns beyond the number of original ones
PREPARED_ON_READ_SECONDS = 2.4e-7  # the same if these columns are computed whenever their rows are read


def _rows_of(sizes: Counter[int]) -> int:
    """Return the total number of rows of all iterations; `sizes` counts the iterations of each batch size."""
    return sum(size * times for size, times in sizes.items())


def resource_lines(job: SharesJob, facts: RunFacts) -> list[str]:
    """Estimate the resources of a run.

    Args:
        job: the options of the training, on which all parties agree (`securevfl.job.Job`).
        facts: the facts known before the run: sizes, batches, disclosed values, and the tables in this process.

    Returns:
        Lines about iterations and number formats, traffic and processor time, memory and disk.

    Raises:
        ConfigError: the run would be refused, because its numbers need too many bits, or it has too many iterations or
            products.
    """
    schedule, shape = facts.schedule, facts.shape
    sizes, parties = schedule.count_sizes(range(job.epochs)), len(shape.columns)
    rows = max((len(batch) for batch in schedule.partition(0)), default=0)
    widths = {
        name: job.model.breadth(InputShape(name == shape.active, d, shape.outputs, parties, len(schedule.train)))
        for name, d in shape.columns.items()
    }
    if not (sizes and rows):
        return []
    numbers = facts.plan().numbers
    varies = len(sizes) > 1 and max(sizes) > min(sizes) + 1
    by_size = " then ".join(f"{times:,} on {size:,}" for size, times in sorted(sizes.items())) + " rows"
    row_iterations = _rows_of(sizes) * shape.outputs
    epochs = max(map(len, _stored_epochs(job, facts)))
    octets = ShareRing(numbers.bits).octets
    wide_columns = max(0, sum(widths.values()) / parties - WIDE_COLUMNS)
    choice_bits, lifts = numbers.table_bits, numbers.lift_bits > 0
    transfer_bytes = TRANSFER_BIT_BYTES * (choice_bits + lifts)
    entry_octets = numbers.lift_bits // 8 or octets
    row_bytes = float(numbers.entries * entry_octets + octets + 1 + transfer_bytes)
    # the lift takes further bytes, if table entries are sent with fewer bits than residuals have
    row_bytes += 2 * (octets - entry_octets)
    product_bytes = SEEDED_PRODUCT_BYTES if shape.outputs == 1 else PRODUCT_BYTES
    row_bytes += 2 * (parties - 1) * (product_bytes + WIDE_COLUMN_BYTES * wide_columns)
    row_bytes += 2 * octets * (parties - 2)
    traffic = row_iterations * row_bytes
    seconds = row_iterations * _processor_seconds(sum(widths.values()), parties)
    preprocessing = preprocessing_bytes(job, facts)
    n, widest = len(schedule.train) + len(schedule.test), max(widths.values())
    table = 8 * n * max(shape.columns.values())
    in_memory = table < MAX_IN_MEMORY_BYTES
    lookup_tables = BLOCK_TABLE_FACTOR * numbers.entries * entry_octets * shape.outputs
    block = min(ROWS_PER_BLOCK, rows) * (BLOCK_ENTRY_BYTES * widest + lookup_tables)
    memory = PROCESS_BYTES + TABLE_ROW_BYTES * n + (table if in_memory else 0) + block
    disk = preprocessing + INTEGER_BYTES * rows * widest + (0 if in_memory else table / 2)
    made_columns = sum(max(0, width - shape.columns[name]) for name, width in widths.items())
    made_bytes = BLOCK_ENTRY_BYTES * min(ROWS_PER_BLOCK, rows) * made_columns
    # in one process, chunks contain no transfers; those of one iteration at least are in memory at both share holders
    material_bytes = _stored_rows(job, facts) * shape.outputs * octets * (parties + 2)
    material_bytes += rows * shape.outputs * (_transfer_bytes(numbers) + transfer_bytes)
    one_process = (
        [_one_process_line(facts, seconds, made_bytes + material_bytes)] if len(facts.parties) == parties else []
    )
    return [
        *one_process,
        *_pair_lines(job, facts, row_iterations),
        f"at most {sizes.total():,} iterations, {by_size if varies else f'on {rows:,} rows'}; {numbers.bits} bits a "
        f"number, w = {numbers.w}",
        f"about {_format_bytes(traffic)} sent, {_format_bytes(preprocessing)} of preprocessing at the active party at "
        f"a time (for at most {epochs} epochs), {seconds:,.0f} s of processor time at all parties, plus evaluations",
        f"between organisations at most about {_format_bytes(memory)} of memory and {_format_bytes(disk)} of disk at "
        f"each party, {seconds / parties:,.0f} s with one core for each party, or "
        f"{traffic / LINE_BYTES_PER_SECOND:,.0f} s if a line of 300 Mbit/s takes longer",
    ]


def _pair_lines(job: SharesJob, facts: RunFacts, row_iterations: int) -> list[str]:
    """Return a line about the shared products of two parties' components; none if the model has no pairs.

    Args:
        job: the options of the training, on which all parties agree (`securevfl.job.Job`).
        facts: the facts of the run.
        row_iterations: the number of rows of all iterations together.

    Returns:
        The lines.

    Raises:
        ConfigError: if there are more products than can be shared.
    """
    if not job.model.pair_rank:
        return []
    shape, plan, rows = facts.shape, facts.plan(), len(facts.schedule.train)
    partner = partner_of(job, shape.passives, shape.columns)
    active, other = (component_count(job.model.pair_rank, shape.columns[name]) for name in (shape.active, partner))
    params = pair_params(job, plan, (active, other), rows)
    products = params.products
    seconds = rows * products * PAIR_SHARE_SECONDS + row_iterations * products * PAIR_ITERATION_SECONDS
    traffic = rows * products * params.bits * PAIR_SHARE_BYTES + row_iterations * PAIR_QUERY_BYTES
    stored = "in memory" if rows < MIN_DISK_ROWS else "on disk"
    octets = 8 if rows < MIN_DISK_ROWS else params.bits // 8
    return [
        f"pairs: {active} x {other} products of {rows:,} rows, of at most {MAX_PAIR_NUMBERS:,} numbers; they add about "
        f"{_format_bytes(rows * products * octets)} {stored} at each share holder, {_format_bytes(traffic)} sent and "
        f"{seconds:,.0f} s of processor time"
    ]


def _one_process_line(facts: RunFacts, seconds: float, made_bytes: float) -> str:
    """Return a line about a run of all parties in one process, as `securevfl train` does it.

    Args:
        facts: the facts of the run, with the tables of all parties.
        seconds: the processor time of the training.
        made_bytes: bytes of the columns that the model computes from the tables, such as the leaves of trees, for the
            rows that are in memory at a time, and of preprocessing.

    Returns:
        The line.
    """
    total, tables = ONE_PROCESS_SECONDS + seconds, 0.0
    for party in facts.parties:
        columns = party.columns if party.preparation is None else party.preparation.columns
        total += READ_SECONDS * len(party) * len(columns)
        prepared_seconds = PREPARED_SECONDS if isinstance(party.X, np.ndarray) else PREPARED_ON_READ_SECONDS
        total += prepared_seconds * len(party) * max(0, len(party.columns) - len(columns))
        original_bytes = 8 * len(party) * len(columns)
        if isinstance(party.X, np.ndarray):
            tables += ORIGINAL_TABLE_FACTOR * original_bytes + PREPARED_TABLE_FACTOR * party.X.nbytes
            continue
        # only one block of rows at a time is read from disk or converted
        tables += BLOCK_ENTRY_BYTES * ROWS_PER_BLOCK * len(party.columns)
        tables += 0 if isinstance(party, StoredParty) else ONE_PROCESS_TABLE_FACTOR * original_bytes
    rows = sum(len(party) for party in facts.parties)
    memory = ONE_PROCESS_BYTES + ONE_PROCESS_ROW_BYTES * rows + tables + made_bytes
    return (
        f"with all tables in one process (train) about {_format_bytes(memory)} of memory and {total:,.0f} s of "
        "processor time, reading included"
    )


def preprocessing_bytes(job: SharesJob, facts: RunFacts) -> int:
    """Estimate the preprocessing that the active party stores at a time: that of two consecutive chunks of epochs.

    Args:
        job: the options of the training, on which all parties agree (`securevfl.job.Job`).
        facts: the facts known before the run: sizes, batches, disclosed values, and the tables in this process.

    Returns:
        The number of bytes.
    """
    return _stored_rows(job, facts) * facts.shape.outputs * record_bytes(facts.plan().numbers)


def prepared_bytes(job: SharesJob, facts: RunFacts) -> int:
    """Estimate the preprocessing that the active party stores if `prepare` computes all of it in advance, in bytes."""
    rows = _rows_of(facts.schedule.count_sizes(range(job.epochs)))
    return min(MAX_STORED_BYTES, rows * facts.shape.outputs * record_bytes(facts.plan().numbers))


def record_bytes(numbers: FixedPointEncoding) -> int:
    """Return the bytes that the active party stores for one row, output and iteration."""
    return 2 * ShareRing(numbers.bits).octets + _transfer_bytes(numbers)


def _transfer_bytes(numbers: FixedPointEncoding) -> int:
    """Return the bytes of `record_bytes` that are keys of oblivious transfers."""
    return 16 * (len(symbol_widths(numbers.table_bits)) + (numbers.lift_bits > 0))


def _stored_rows(job: SharesJob, facts: RunFacts) -> int:
    """Return the largest number of rows, counted once for every iteration, whose preprocessing is stored at a time."""
    return max(_rows_of(facts.schedule.count_sizes(epochs)) for epochs in _stored_epochs(job, facts))


def _stored_epochs(job: SharesJob, facts: RunFacts) -> list[range]:
    """Return the epochs whose preprocessing is stored during each chunk: those of the chunk and of the next one."""
    ends = chunk_ends(job, len(facts.schedule.train), facts.shape.outputs)
    starts, last = (0, *ends[:-1]), (*ends[1:], ends[-1])
    return [range(start, stop) for start, stop in zip(starts, last, strict=True)]


def _processor_seconds(columns: int, parties: int) -> float:
    """Return the seconds of processor time of all parties for one row, output and iteration."""
    seconds = BASE_SECONDS + COLUMN_SECONDS * min(columns, WIDE_COLUMNS)
    return seconds + WIDE_COLUMN_SECONDS * max(0, columns - WIDE_COLUMNS) + PARTY_SECONDS * (parties - 2)


def _format_bytes(count: float) -> str:
    units: Sequence[tuple[float, str]] = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"))
    rounded = float(f"{count:.3g}")
    return next((f"{rounded / unit:.3g} {name}" for unit, name in units if rounded >= unit), f"{count:.0f} B")
