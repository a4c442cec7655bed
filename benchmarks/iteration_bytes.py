"""Traffic and processor time per row of an iteration on secret shares: `python -m benchmarks.iteration_bytes`.

It trains the default job of a logistic model twice in this process, with two numbers of iterations, and divides the
difference by the additional rows and iterations. Set-up and the evaluation at the end, which both trainings have,
cancel out. A third training with one more evaluation shows what an evaluation adds. Bytes are those of messages as they
are sent, with their headers, by the kind of message. Processor seconds are those of this process, which runs both
parties. Only the public interface is used, so the module also measures older commits:

    git worktree add /tmp/old COMMIT
    PYTHONPATH=/tmp/old python benchmarks/iteration_bytes.py --data FOLDER
"""

from __future__ import annotations

import argparse
import csv
import gzip
import threading
import time
import warnings
from collections import Counter
from pathlib import Path

import numpy as np

import securevfl as vfl

MEASURED_ITERATIONS = 10, 30
ONLY_AT_END = 1000  # a number of iterations between evaluations that no training reaches


def default_credit(folder: Path) -> list[vfl.Party]:
    """Return the two files of default_credit, joined."""
    tables = []
    for name, side in (("bank", "guest"), ("shop", "host")):
        with gzip.open(folder / f"default_credit_hetero_{side}.csv.gz", "rt") as file:
            names, *rows = csv.reader(file)
        X = np.array(rows)
        selected = [j for j, column in enumerate(names) if column.startswith("x")]
        y = X[:, names.index("y")].astype(float).astype(int) if "y" in names else None
        tables.append(vfl.Party(name, X[:, selected].astype(float), y, ids=X[:, 0].tolist()))
    return vfl.align(tables)


def generated(rows: int, columns: int) -> list[vfl.Party]:
    """Return tables of noise with this number of columns at each party, and labels that depend on them."""
    rng = np.random.default_rng(0)
    X = [rng.normal(size=(rows, columns)) for _ in range(2)]
    y = (X[0][:, 0] + X[1][:, 0] + rng.normal(size=rows) > 0).astype(int)
    return [
        vfl.Party(name, x, y if not k else None, aligned=True) for k, (name, x) in enumerate(zip("ab", X, strict=True))
    ]


def measure(
    parties: list[vfl.Party], iterations: int, evaluate_every: int = ONLY_AT_END
) -> tuple[Counter[str], float, dict[str, float], int]:
    """Train once.

    Args:
        parties: the parties.
        iterations: the number of iterations, each on all training rows.
        evaluate_every: the number of iterations between evaluations; there is always one at the end.

    Returns:
        The bytes of each kind of message, processor seconds, the metrics, and the number of training rows.
    """
    job = vfl.Job(model=vfl.Logistic(), batch_size="all", epochs=iterations, evaluate_every=evaluate_every)
    sizes, lock = Counter[str](), threading.Lock()

    def note(event: object) -> None:
        if getattr(event, "direction", "") == "send":
            with lock:
                sizes[type(event.message).__name__] += event.nbytes  # type: ignore[attr-defined]

    started = time.process_time()
    run = vfl.simulate(job, parties, workers=1, observe=note)
    return sizes, time.process_time() - started, run.metrics, len(job.schedule(parties[0].register).train)


def main() -> None:
    """Print bytes and processor time for each row and iteration."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="the folder of real tables; generated tables without it")
    parser.add_argument("--rows", type=int, default=20_000, help="rows of generated tables")
    parser.add_argument("--columns", type=int, default=12, help="columns of each party's generated table")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    parties = default_credit(options.data) if options.data else generated(options.rows, options.columns)
    measure(parties, 2)  # imports modules and fills caches
    (few, before, _, rows), (many, after, metrics, _) = (measure(parties, count) for count in MEASURED_ITERATIONS)
    evaluated, with_evaluation, _, _ = measure(parties, MEASURED_ITERATIONS[0], MEASURED_ITERATIONS[0] // 2)
    work = rows * (MEASURED_ITERATIONS[1] - MEASURED_ITERATIONS[0])
    kinds = {name: (many[name] - few[name]) / work for name in many if many[name] > few[name]}
    print(f"{rows:,} training rows; AUC {metrics['auc']:.4f}, log loss {metrics['loss']:.4f}")
    for name, size in sorted(kinds.items(), key=lambda item: -item[1]):
        print(f"{name:24}{size:8.1f} bytes a row and iteration")
    print(f"{'all messages':24}{sum(kinds.values()):8.1f} bytes a row and iteration")
    print(f"{'processor, both parties':24}{1e6 * (after - before) / work:8.2f} us a row and iteration")
    more = sum(evaluated.values()) - sum(few.values())
    print(f"one more evaluation: {more / 1e6:.1f} MB, {with_evaluation - before:.2f} s of processor time")


if __name__ == "__main__":
    main()
