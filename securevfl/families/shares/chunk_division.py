"""The division of a training on secret shares into chunks of epochs, and the epochs after which rows are counted.

The random material of all epochs of a *chunk* is generated together. The parties count the training rows with model
outputs beyond the lookup tables after some chunks. All parties obtain the same division, because it depends on public
sizes only.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import groupby

from securevfl.data.schedule import Iteration, batches_of_epoch, rows_of_epochs
from securevfl.families.shares.shares_job import SharesJob

MAX_PREPROCESSING_BYTES = 1 << 31  # maximum size of a chunk's preprocessing with its transfers, in bytes
MAX_CHUNK_EPOCHS = 40
MIN_CHUNK_ITERATIONS = 8
FIRST_CHUNK_SHARE = 7
"""The number of rows of all iterations, divided by this number, is about that of the first chunk. Two further chunks,
with two and four times this number, then contain most of the other rows."""


def chunk_ends(job: SharesJob, rows: int, outputs: int) -> tuple[int, ...]:
    """Divide the epochs of a training into chunks.

    The first chunk is short, so that the iterations begin early. Each further chunk has at most twice the rows of the
    one before, counted once for every iteration, or eight iterations. Its preprocessing is generated during the
    iterations of the one before: preprocessing takes about half of the time of an iteration on a slow line.

    Args:
        job: the options of the training, on which all parties agree (`securevfl.job.Job`).
        rows: number of training rows.
        outputs: c, number of outputs of a row.

    Returns:
        For each chunk, the number of the epoch after its last one.
    """
    interval, options = _count_interval(job), job.protocol.shares
    if options.chunk is not None:
        return (*range(interval, job.epochs, interval), job.epochs)
    rows_by_epoch = rows_of_epochs(rows, job.epochs, job.batch_size)
    max_rows = MAX_PREPROCESSING_BYTES // (outputs * 16 * (1 + options.table_bits))
    min_epochs = -(-MIN_CHUNK_ITERATIONS // batches_of_epoch(rows, job.batch_size))
    ends, start, target_rows = list[int](), 0, sum(rows_by_epoch) // FIRST_CHUNK_SHARE
    while start < job.epochs:
        next_count = min(job.epochs, (start // interval + 1) * interval)
        stop, chunk_rows = start + 1, rows_by_epoch[start]
        while stop < next_count:
            total = chunk_rows + rows_by_epoch[stop]
            # a training with few iterations more than the first chunk needs no second one
            is_short = stop - start < min_epochs or (not ends and job.epochs - stop < min_epochs)
            if total > max_rows or (total > target_rows and not is_short):
                break
            stop, chunk_rows = stop + 1, total
        ends.append(stop)
        start, target_rows = stop, 2 * chunk_rows
    return tuple(ends)


def split_chunks(
    iterations: Sequence[Iteration], start: int, ends: Sequence[int]
) -> Iterator[tuple[int, list[Iteration]]]:
    """Yield the iterations from `start` on in chunks of whole epochs, with the number of each chunk's first iteration.

    Args:
        iterations: all iterations of the training.
        start: number of the first iteration.
        ends: for each chunk, the number of the epoch after its last one.

    Yields:
        (number of the chunk's first iteration, iterations of the chunk).
    """
    for _, group in groupby(enumerate(iterations), key=lambda item: bisect_right(ends, item[1].epoch)):
        chunk = list(group)
        remaining = [iteration for number, iteration in chunk if number >= start]
        if remaining:
            yield max(start, chunk[0][0]), remaining


def counts_rows_after(job: SharesJob, epochs: int) -> bool:
    """Return whether the parties count rows beyond the lookup tables after this number of epochs.

    They do after every 40 epochs, or after every chunk if the job sets `chunk`, and after the last epoch. A chunk ends
    after each of these epochs.
    """
    return epochs % _count_interval(job) == 0 or epochs == job.epochs


def number_of_counts(job: SharesJob) -> int:
    """Return how often a complete training counts rows beyond the lookup tables."""
    return -(-job.epochs // _count_interval(job))


def _count_interval(job: SharesJob) -> int:
    """Return the number of epochs from one count to the next."""
    return job.protocol.shares.chunk or MAX_CHUNK_EPOCHS
