"""The cost of admitting a job if a party's disclosure ledger has many rows and jobs: `python -m benchmarks.ledger_rows`

The ledger records a training on `--rows` rows (10,000,000) and `--jobs` (100) trainings on a tenth of the rows; half of
the rows of each table are the same people. Then one more job, on a new table of the first size, is admitted in a
separate process: the ledger checks its limits and records the table. The output is the processor seconds and the
resident memory of that process. Digests of ids are computed before and read from disk, as in a training (16 bytes for
each row).
"""

from __future__ import annotations

import argparse
import hashlib
import multiprocessing
import resource
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from securevfl.data.id_keys import ID_DIGEST, Keys
from securevfl.data.register import KEYS_PER_READ, Register
from securevfl.disclosure.counts import Disclosure
from securevfl.disclosure.ledger import DisclosureLedger


def digests(path: Path, rows: int, seed: int) -> None:
    """Write digests of ids; the first half is the same in every table."""
    with path.open("wb") as file:
        for part, local in ((rows // 2, 0), (rows - rows // 2, seed)):
            draw = np.random.default_rng(local)
            for start in range(0, part, KEYS_PER_READ):
                file.write(draw.bytes(ID_DIGEST * min(KEYS_PER_READ, part - start)))


def register(path: Path, rows: int) -> Register:
    """Return a register whose digests of ids are read from disk."""

    def pieces() -> Iterator[Keys]:
        with path.open("rb") as file:
            while piece := file.read(ID_DIGEST * KEYS_PER_READ):
                yield np.frombuffer(piece, np.uint8).reshape(-1, ID_DIGEST)

    return Register(rows, hashlib.sha256(path.name.encode()).digest(), None, pieces)


def told(run: int) -> list[Disclosure]:
    """Return the disclosures of a job: equations of labels and numbers about columns."""
    labels = Disclosure("labels", "shop", ("bank",), 15, 250, numbers=15 * run)
    return [labels, Disclosure("columns", "shop", ("bank",), 3, 40, numbers=3)]


def admitted(path: Path, folder: Path, rows: int, run: int, report: bool) -> None:
    """Admit a job in a separate process; print its time and memory."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    began, since = time.process_time(), time.monotonic()
    DisclosureLedger(folder / "bank.ledger", "bank").record(register(path, rows), (f"run {run}", ""), told(run))
    if report:
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(
            f"{rows:,} rows after {run} jobs: {time.process_time() - began:.2f} s of processor, "
            f"{time.monotonic() - since:.2f} s, {most:.0f} MB resident at most ({before:.0f} MB before)",
            flush=True,
        )


def main() -> None:
    """Fill a ledger, and admit one more job."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--rows", type=int, default=10_000_000)
    arguments.add_argument("--jobs", type=int, default=100)
    options = arguments.parse_args()
    spawn = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for run in range(options.jobs + 1):
            path, last = folder / f"ids-{run}", run == options.jobs
            digests(path, options.rows if run in (0, options.jobs) else options.rows // 10, run + 1)
            rows = path.stat().st_size // ID_DIGEST
            process = spawn.Process(target=admitted, args=(path, folder, rows, run, last))
            process.start()
            process.join()
            if process.exitcode:
                raise SystemExit(process.exitcode)
            path.unlink()


if __name__ == "__main__":
    main()
