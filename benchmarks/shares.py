"""Training on secret shares: the cost of an iteration compared with a sealed round, and accuracy against floats.

    sizes        two parties with d columns each; the offline phase (random numbers computed in advance) and the
                 iterations are measured separately. `ratio` is the total processor time of one party, divided by that
                 of a sealed round (an update with encrypted residuals under CKKS, both parties); `ratio_seal` is
                 divided by that of a sealed round with the library SEAL
    products     the products of such an iteration on both engines alternately (product_costs.py)
    tables       the accuracy on real tables, compared with the same steps in floating point with the exact residual and
                 the same initial weights; for block_descent, compared with the optimum
    prediction   the time of scores of new rows
    one epoch    the time of 100,000 rows and 330 columns, by the clock

Processor times are of this process, over all its parties, divided by iterations and parties. Virtual times assume a
link of 300 Mbps and 20 ms. `attack_auc` is the AUC with which the partner (the second party with shares of all
residuals) ranks labels by the mean of its shares of each row's residuals; 0.5 means that they reveal nothing.
"""

from __future__ import annotations

import csv
import gzip
import resource
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.memory import MemoryHeld
from benchmarks.product_costs import all_products
from securevfl.base.arrays import Floats
from securevfl.data.party import Party
from securevfl.errors import DataError
from securevfl.job import Job
from securevfl.models import metrics
from securevfl.models.linear import Logistic, OneVsRest, Square
from securevfl.models.linear_block import Linear
from securevfl.optim.block_descent import BlockDescent
from securevfl.optim.fedbcd import FedSGD
from securevfl.protocols.engines import Ckks
from securevfl.protocols.observations import SharedResidual
from securevfl.protocols.protocol_options import Protocol
from securevfl.protocols.shares.shares_options import Shares
from securevfl.runtime.clock import VirtualClock
from securevfl.runtime.costs import Stage
from securevfl.runtime.network import Network
from securevfl.runtime.observer import Event, Observer
from securevfl.runtime.party_threads import run_threads
from securevfl.training.model_part import ModelPart
from securevfl.training.run import Run
from securevfl.training.session import run_offline_phase, take_part
from securevfl.training.simulate import simulate

SHARES_SCHEMA = "securevfl.bench.shares/1"
SIZES = (256, 15), (256, 100), (4096, 100)
BATCHES = 8
_FAR = 1000.0  # seconds of a round trip; computing time is negligible compared with it
Progress = Callable[[str], None]
Measured = tuple[tuple[float, int], float, dict[str, ModelPart]]
_SGD = {"model": Logistic(), "batch_size": 256, "epochs": 10, "optimizer": FedSGD(lr=0.1)}
_BLOCKS = {"model": Logistic(), "batch_size": "all", "epochs": 12, "optimizer": BlockDescent()}
_NUMBERS = {"model": Square(), "batch_size": "all", "epochs": 40, "optimizer": FedSGD(lr=0.3)}
TABLE_JOBS: dict[str, dict[str, Any]] = {
    "breast": _SGD | {"batch_size": 128, "optimizer": FedSGD(lr=0.3)},
    "default_credit": _SGD,
    "a9a": _SGD,
    "phishing": _SGD,
    "ijcnn1": _SGD | {"batch_size": 1024, "optimizer": FedSGD(lr=0.4)},
    "motor": _NUMBERS,
    "dvisits": _NUMBERS,
    "vehicle_scale": _SGD | {"model": OneVsRest(), "epochs": 20, "optimizer": FedSGD(lr=1.0)},
    "default_credit/12": _BLOCKS,
}


def run(
    data: Path, sizes: Sequence[tuple[int, int]], tables: Sequence[str], on_row: Progress, *, large: bool = False
) -> list[dict[str, Any]]:
    """Run the chosen measurements; `large` adds one epoch of 100,000 rows x (30 + 300) columns.

    DataError if a table is missing.
    """
    rows = []
    for n, d in sizes:
        on_row(f"{n} x {d}")
        rows.append(size(n, d))
        rows += all_products([(n, d)])
    for name in tables:
        on_row(name)
        rows.append(table(data, name))
    on_row("prediction")
    rows.append(prediction())
    if large:
        on_row("100,000 rows")
        rows.append(one_epoch())
    return rows


def made_up(n: int, d: int, parties: int = 2) -> list[Party]:
    """Return tables of noise (n, d each) and labels that depend on them."""
    rng = np.random.default_rng([n, d])
    X = [rng.normal(size=(n, d)) for _ in range(parties)]
    y = (sum(x[:, 0] for x in X) + rng.normal(size=n) > 0).astype(int)
    return [Party(f"p{k}", x, y if k == 0 else None, aligned=True) for k, x in enumerate(X)]


def size(n: int, d: int, *, epochs: int = 0) -> dict[str, Any]:
    """Measure an iteration of n rows and d columns at each party, and a sealed round of the same size.

    The costs are those of a longer training minus those of a shorter one, divided by the difference of their iterations
    (`_longer`). So the start of a session and evaluations do not count. A training has 16 epochs unless `epochs` is
    another number.
    """
    epochs = epochs or 16
    batches = BATCHES if n < 1024 else 2
    parties = made_up(n * batches, d)
    options: dict[str, Any] = {"model": Logistic(), "optimizer": FedSGD(lr=0.1), "batch_size": n, "epochs": epochs}
    job = Job(**options, protocol=Protocol(shares=Shares(chunk=epochs)))
    once, (ahead, iterations) = _longer(job, parties)
    parts = once[2]
    engines = Ckks(), Ckks(library="seal")
    sealed, on_seal = (Job(**options, protocol=Protocol(residual=engine), accepts=("columns",)) for engine in engines)
    plain = Job(**options, protocol=Protocol(residual="open"), accepts=("columns",))
    spent = [_processor(partial(simulate, engine, parties, workers=1)) for engine in (sealed, on_seal, plain)]
    rounds = batches * epochs
    far = simulate(_few(job, 2), parties, network=Network(mbps=1e6, rtt_ms=1e3 * _FAR))
    counters = [part.counters for part in parts.values()]
    path = max((part.path for part in parts.values()), key=lambda path: float(path[Stage.TRAIN].sum()))
    one = 1e3 * (ahead + iterations) / rounds / len(parties)
    of_sealed, of_seal = (1e3 * (engine - spent[2][0]) / rounds for engine, _ in spent[:2])
    return {
        "what": f"{n}x{d}",
        "parties": len(parties),
        "mode": "shares",
        "cpu_ahead_ms": 1e3 * ahead / rounds / len(parties),
        "cpu_iteration_ms": 1e3 * iterations / rounds / len(parties),
        "cpu_sealed_ms": of_sealed,
        "cpu_seal_ms": of_seal,
        "ratio": one / of_sealed,
        "ratio_seal": one / of_seal,
        "bytes_ahead": once[0][1] // rounds,
        "bytes_visit": sum(engine.bytes_sent(Stage.TRAIN) for engine in counters) // rounds,
        "round_trips": round(_apart_by(far) / _FAR, 2),
        "virtual_ms": 1e3 * float(path[Stage.TRAIN].sum()) / rounds,
    }


def _longer(job: Job, parties: Sequence[Party]) -> tuple[Measured, tuple[float, float]]:
    """Return one training, and the seconds that each further training of its length adds to both phases.

    The first training of a process imports modules and fills lookup tables, so it is not measured. The longer training
    has three times the epochs, or nine times, and so on, until the times of both phases have grown by half. A smaller
    difference would be noise and could be negative.
    """
    _apart(job, parties)
    once = _apart(job, parties)
    alone, times = _without_measuring(once), 1
    while True:
        times *= 3
        more = _without_measuring(_apart(_few(job, times * job.epochs), parties))
        if all(b >= 1.5 * a for a, b in zip(alone, more, strict=True)):
            return once, ((more[0] - alone[0]) / (times - 1), (more[1] - alone[1]) / (times - 1))


def _without_measuring(result: Measured) -> tuple[float, float]:
    """Return processor seconds of the offline phase and of the iterations."""
    (ahead, _), iterations, parts = result
    return ahead, iterations - sum(part.counters.seconds(Stage.EVALUATE) for part in parts.values())


def _few(job: Job, epochs: int) -> Job:
    return job.model_copy(update={"epochs": epochs})


def _apart_by(run: Run) -> float:
    """Return the simulated seconds from the end of one iteration to the end of the next.

    Iterations are precomputed in chunks. The message at the start of a chunk does not count, because its half round
    trip is on the critical path in some runs only.
    """
    ends = [item["seconds"] for item in run.history]
    return (ends[-1] - ends[0]) / (len(ends) - 1)


def _apart(job: Job, parties: Sequence[Party]) -> Measured:
    """Run the two phases separately.

    Return processor seconds and bytes of the offline phase, processor seconds of the training, and the parties' parts
    of the model.
    """
    names = [party.name for party in parties]
    sent: list[int] = []
    with tempfile.TemporaryDirectory() as folder:

        def prepare(party: Party, channel: Any) -> None:
            channel.clock.stage = Stage.OFFLINE
            run_offline_phase(job, party, channel, parties=names, folder=Path(folder) / party.name)
            sent.append(channel.counters.bytes_sent(Stage.OFFLINE))

        def clock() -> VirtualClock:
            return VirtualClock(Network())

        ahead, _ = _processor(lambda: run_threads({p.name: partial(prepare, p) for p in parties}, clock))
        roles = {p.name: partial(take_part, job, p, parties=names, ahead=Path(folder) / p.name) for p in parties}
        iterations, parts = _processor(lambda: run_threads(roles, clock))
    return (ahead, sum(sent)), iterations, parts


def _processor(work: Callable[[], Any]) -> tuple[float, Any]:
    started = time.process_time()
    result = work()
    return time.process_time() - started, result


class _Words(Observer):
    """Records the mean of one party's shares of residuals, by batch."""

    def __init__(self, of: str) -> None:
        self._of = of
        self.by_batch: dict[int, list[Floats]] = {}

    def __call__(self, event: Event) -> None:
        """Ignore all messages."""

    def note(self, me: str, fact: object) -> None:
        """Record the mean of a party's shares of residuals."""
        if me == self._of and isinstance(fact, SharedResidual):
            self.by_batch.setdefault(fact.index, []).append(fact.words[:, :1])


def table(data: Path, name: str) -> dict[str, Any]:
    """Train on one real table: the model on secret shares, and the same steps in floating point."""
    options, parties = TABLE_JOBS[name], read(data, name.partition("/")[0])
    chunk = 10 if options["batch_size"] != "all" else options["epochs"]
    job = Job(**options, protocol=Protocol(shares=Shares(chunk=chunk)), test_fraction=0.25)
    words = _Words(parties[1].name)
    started = time.perf_counter()
    result = simulate(job, parties, workers=1, observe=words)
    seconds = time.perf_counter() - started
    exact = in_floats(job, result, parties)
    loss = job.model.loss
    ranked = "auc" if loss.classifies and loss.single else "r2" if not loss.classifies else "accuracy"
    measured = result.metrics
    if ranked not in measured:  # one-against-rest is evaluated by class; all scores are available in this process
        held_out = job.schedule(parties[0].register).test
        measured = result.evaluate(
            {party.name: party.X[held_out] for party in parties}, np.asarray(parties[0].y)[held_out]
        )
    lines: dict[str, Any] = {
        "what": name,
        "parties": len(parties),
        "mode": f"{job.optimizer.name}, {result.costs.rounds} iterations",
        "metric": ranked,
        "auc": measured[ranked],
        "auc_float": exact[ranked],
        "loss": measured["loss"],
        "loss_float": exact["loss"],
        "virtual_s": result.costs.total,
        "ahead_s": result.costs.ahead,
        "seconds": seconds,
    }
    if ranked == "auc":
        lines["attack_auc"] = _attacked(job, parties, words)
    return lines


def _attacked(job: Job, parties: Sequence[Party], words: _Words) -> float:
    rows = job.schedule(parties[0].register).partition(0)
    y = np.asarray(parties[0].y)
    results = [(y[rows[batch]], np.mean(item, axis=0)[:, 0]) for batch, item in words.by_batch.items()]
    labels, scores = (np.concatenate(item) for item in zip(*results, strict=True))
    return metrics.area_under_curve(labels == y.max(), scores)


def in_floats(job: Job, result: Run, parties: Sequence[Party]) -> dict[str, float]:
    """Return held-out metrics of the same iterations in floating point; for block_descent, of the optimum."""
    X = np.hstack([np.clip(result.parts[party.name].scaling(party.X), -8, 8) for party in parties])
    X = np.column_stack([X, np.ones(len(X))])
    loss, y = job.model.loss, np.asarray(parties[0].y)
    classes = loss.classes(y)
    targets = loss.targets(y, classes)
    schedule = job.schedule(parties[0].register)
    model = Linear(np.zeros((X.shape[1], targets.shape[1])), l2=0.0, intercept=False)
    if isinstance(job.optimizer, BlockDescent):
        rows = schedule.train
        bound = np.linalg.inv(X[rows].T @ X[rows] / (4 * len(rows)) + 1e-6 * np.eye(X.shape[1]))
        for _ in range(400):
            g = loss.residual(X[rows] @ model.theta, targets[rows])
            model.theta = model.theta - bound @ (X[rows].T @ g) / len(rows)
    else:
        steps = job.optimizer
        assert isinstance(steps, FedSGD), "all other tables are trained by it"
        for t, iteration in enumerate(schedule.iterations()):
            g = loss.residual(X[iteration.rows] @ model.theta, targets[iteration.rows])
            rate = steps.eta(t, len(parties)) / len(iteration.rows)
            model.theta = model.theta - rate * X[iteration.rows].T @ g
    return metrics.evaluate(loss, X[schedule.test] @ model.theta, y[schedule.test], classes)


def prediction(rows: int = 10_000, d: int = 15) -> dict[str, Any]:
    """Score new rows, and measure the wall-clock time, including the generation of keys."""
    parties = made_up(2000, d)
    shares = Protocol(shares=Shares(chunk=12))
    job = Job(model=Logistic(), optimizer=FedSGD(lr=0.3), protocol=shares, batch_size="all", epochs=12)
    model = simulate(job, parties)
    new = {party.name: party.X for party in made_up(rows, d)}
    started, cpu = time.perf_counter(), time.process_time()
    model.decision(new)
    return {
        "what": f"prediction {rows}x{d}",
        "parties": 2,
        "mode": "shares",
        "seconds": time.perf_counter() - started,
        "cpu_s": time.process_time() - cpu,
    }


def one_epoch(rows: int = 100_000, count: int = 30, other: int = 300) -> dict[str, Any]:
    """Run one epoch in batches of 4,096, offline phase included, by the clock, with one process for each core."""
    rng = np.random.default_rng(0)
    X, further = rng.normal(size=(rows, count)), rng.normal(size=(rows, other))
    y = (X[:, 0] + further[:, 0] + rng.normal(size=rows) > 0).astype(int)
    parties = [Party("bank", X, y, aligned=True), Party("shop", further, aligned=True)]
    shares = Protocol(shares=Shares(chunk=1))
    job = Job(model=Logistic(), optimizer=FedSGD(lr=0.3), protocol=shares, batch_size=4096, epochs=1)
    before, started = _spent(), time.perf_counter()
    with MemoryHeld() as held_out:
        result = simulate(job, parties)
    return {
        "what": f"{rows}x({count}+{other}), one epoch",
        "parties": 2,
        "mode": "shares",
        "loss": result.metrics["loss"],
        "seconds": time.perf_counter() - started,
        "cpu_s": _spent() - before,
        "memory_mb": held_out.megabytes,
    }


def _spent() -> float:
    """Return processor seconds of this process and of its ended child processes."""
    return sum(sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))


def read(folder: Path, name: str) -> list[Party]:
    """Return two parties of a table of the folder, the first one with labels. DataError if it is missing."""
    npz, guest = folder / f"{name}.npz", folder / f"{name}_hetero_guest.csv.gz"
    if npz.exists():
        with np.load(npz, allow_pickle=False) as file:
            X, y = file["X"].astype(np.float64), file["y"]
            sides = [_varying(X[:, file["g"]]), _varying(X[:, file["h"]])]
        return [Party("bank", sides[0], y, aligned=True), Party("shop", sides[1], aligned=True)]
    if not guest.exists():
        raise DataError(
            f"{folder} contains neither {name}.npz nor {guest.name}",
            "pass the folder of the tables as --data",
            code="SVFL-TABLE-UNREADABLE",
        )
    head, local = _csv(guest)
    label = next(k for k, column in enumerate(head) if column in ("y", "motor_speed", "doctorco"))
    _, other = _csv(folder / f"{name}_hetero_host.csv.gz")
    columns = [k for k in range(1, len(head)) if k != label]
    return [
        Party(
            "bank", local[:, columns], local[:, label], ids=local[:, 0].astype(int), columns=[head[k] for k in columns]
        ),
        Party("shop", other[:, 1:], ids=other[:, 0].astype(int)),
    ]


def _varying(X: Floats) -> Floats:
    return X[:, X.min(axis=0) < X.max(axis=0)]


def _csv(path: Path) -> tuple[list[str], NDArray[np.float64]]:
    """Read the heading, and the rows by ascending id."""
    with gzip.open(path, "rt") as file:
        head, *rows = csv.reader(file)
    result = np.array(rows, dtype=np.float64)
    return head, result[np.argsort(result[:, 0])]
