"""Trains FDML on the columns of its paper's tables, for the parts of `benchmarks.papers.fdml`.

FDML is asynchronous training by several workers, each with its own columns (`securevfl.families.fdml`). The seconds of
FDML are those of a simulated clock, on which all workers compute at the same time and messages take the time of a
network.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from benchmarks.papers.study import DIVERGED, Choice, Rows, choose, development, mean, median, spread
from benchmarks.tables import archive
from securevfl.base.arrays import Floats
from securevfl.base.extras import import_extra
from securevfl.data.party import Helper, Party
from securevfl.families.fdml.fdml_optimizer import FDML
from securevfl.job import Job
from securevfl.models.linear import Logistic
from securevfl.models.metrics import area_under_curve
from securevfl.models.neural import Neural
from securevfl.models.torch_model import TorchModel, torch
from securevfl.protocols.protocol_options import Protocol
from securevfl.runtime.network import Network, Pauses
from securevfl.training.run import Run
from securevfl.training.simulate import simulate

AUC_TOLERANCE = 0.007  # distance from the pooled AUC
TEST_FRACTION = 0.25
L2 = 1e-4
FIGURES = (
    *("auc", "auc_sd", "train_loss", "objective", "test_loss", "whole_s"),
    *("rounds", "rounds_sd", "virtual_s"),
)
"""The figures of a row: those of Table I, and rounds and virtual seconds to the target."""
UNITS = 16  # units of each party's hidden layer
SLOW_FACTOR = 4.0

Kind = Literal["linear", "network"]


@dataclass(frozen=True)
class Plan:
    """Trainings by FDML.

    Attributes:
        parties: numbers of parties.
        kinds: kinds of models.
        grid: step sizes from which one is chosen.
        epochs: number of passes over the rows.
        batch: number of rows of a batch.
        every: number of rounds between two evaluations.
        splits: number of random splits.
        sealed: number of splits that also run under CKKS; 0 for none.
    """

    parties: tuple[int, ...] = (2, 3)
    kinds: tuple[Kind, ...] = ("linear", "network")
    grid: tuple[float, ...] = (1.0, 3.0, 9.0)
    epochs: int = 8
    batch: int = 256
    every: int = 24
    splits: int = 3
    sealed: int = 1


FULL = Plan()
QUICK = Plan((2,), ("linear",), (1.0, 3.0), 2, 128, 4, 1, 0)


@dataclass(frozen=True)
class Setting:
    """The setting of one row of the results.

    Attributes:
        kind: kind of model.
        tau: staleness: by how many batches a party may be ahead of the others.
        stored: how predictions are stored, "open" or hidden.
        residual: how the party with labels sends residuals; None if all parties have the labels.
        slow: whether the last party is slower than the others.
        first: whether the first epoch is synchronous.
        server: whether a server stores the predictions, and not the parties.
    """

    kind: Kind
    tau: int
    stored: str = "open"
    residual: str | None = None
    slow: bool = False
    first: bool = True
    server: bool = True

    @property
    def name(self) -> str:
        """The setting in words."""
        labels = "labels at all" if self.residual is None else f"labels at one, {self.residual} residual"
        where = f"{self.stored} at a server" if self.server else "no server"
        slow = f", one party {SLOW_FACTOR:g} x slower" if self.slow else ""
        first = "" if self.first else " from the start"
        return f"tau {self.tau}{first}, {where}, {labels}{slow}"


def settings(kind: Kind, sealed: bool) -> list[Setting]:
    """Return the rows of one kind of model."""
    if kind == "network":
        return [*(Setting("network", tau) for tau in (0, 8)), Setting("network", 8, residual="open")]
    results = [
        *(Setting("linear", tau) for tau in (0, 8)),
        *(Setting("linear", tau, slow=True) for tau in (0, 8)),
        Setting("linear", 8, slow=True, first=False),
        Setting("linear", 8, server=False),
        Setting("linear", 8, residual="open"),
        Setting("linear", 8, "masks"),
    ]
    return [*results, Setting("linear", 8, "masks", "ckks")] if sealed else results


def run(data: Path | None, plan: Plan, on_row: Callable[[str], None]) -> Rows:
    """Return the rows of Table I. DataError if the table is missing."""
    rows: Rows = []
    for count in plan.parties:
        parties = tables(data, count)
        for kind in plan.kinds:
            on_row(f"{count} parties, {kind}: pooled and alone")
            local = [[_central(plan, kind, [party], i, parties[0]) for i in range(plan.splits)] for party in parties]
            best = max(local, key=lambda figures: float(np.mean([item["auc"] for item in figures])))
            central_runs = [_central(plan, kind, parties, split) for split in range(plan.splits)]
            pooled = [item["auc"] for item in central_runs]
            rows += [
                {"parties": count, "kind": kind, "setting": what} | _table_1(figures)
                for what, figures in (("pooled columns", central_runs), ("best party alone", best))
            ]
            choices = {tau: step(parties, plan, Setting(kind, tau), on_row) for tau in (0, 8)}
            for setting in settings(kind, plan.sealed > 0 and count == 2):
                on_row(f"{count} parties, {kind}: {setting.name}")
                splits = plan.sealed if "ckks" in setting.name else plan.splits
                row = {"parties": count, "kind": kind, "setting": setting.name, "splits": splits}
                row |= choices[0].row() | finish(parties, plan, setting, choices[0].step, pooled[:splits])
                if setting == Setting(kind, 8):
                    party = finish(parties, plan, setting, choices[8].step, pooled)
                    row |= {"tuned_step": choices[8].step, **{f"tuned_{key}": item for key, item in party.items()}}
                rows.append(row)
    return rows


def step(parties: Sequence[Party], plan: Plan, setting: Setting, on_row: Callable[[str], None]) -> Choice:
    """Return the step with the best mean AUC over a training, on validation rows of the first split."""
    inner = development(parties, job_of(plan, setting, 1.0, 0))

    def merit(eta: float) -> float:
        on_row(f"{setting.kind}, tau {setting.tau}: step {eta:g}")
        try:
            history = train(inner, plan, setting, eta, 0).history
        except DIVERGED:
            return np.inf
        return -float(np.mean([record["auc"] for record in history if "auc" in record]))

    return choose(plan.grid, merit)


def finish(
    parties: Sequence[Party], plan: Plan, setting: Setting, eta: float, pooled: Sequence[float]
) -> dict[str, Any]:
    """Return AUC, and rounds and virtual seconds to within `AUC_TOLERANCE` of the pooled AUC, on the reported rows.

    All figures are None if the training of a split diverges at this step.
    """
    try:
        runs = [train(parties, plan, setting, eta, split) for split in range(len(pooled))]
    except DIVERGED:
        return dict.fromkeys(FIGURES)
    reached = [first(run, auc - AUC_TOLERANCE) for run, auc in zip(runs, pooled, strict=True)]
    figures = [
        {
            "auc": run.metrics["auc"],
            **_training_losses(run, parties, plan, setting, split),
            "test_loss": run.metrics["log_loss"],
            "whole_s": run.costs.training,
        }
        for split, run in enumerate(runs)
    ]
    return {
        **_table_1(figures),
        "rounds": mean([None if run is None else run[0] for run in reached]),
        "rounds_sd": spread([None if run is None else run[0] for run in reached]),
        "virtual_s": mean([None if run is None else run[1] for run in reached]),
    }


def _table_1(figures: Sequence[Mapping[str, float]]) -> dict[str, Any]:
    """Return the columns of Table I: losses on training and test rows, the objective, test AUC, and seconds."""
    row = {name: mean([item[name] for item in figures]) for name in figures[0]}
    return row | {"auc_sd": spread([item["auc"] for item in figures])}


def _training_losses(run: Run, parties: Sequence[Party], plan: Plan, setting: Setting, split: int) -> dict[str, float]:
    """Return the log loss of the trained model on the rows of its training, and the regularised objective."""
    train = job_of(plan, setting, 1.0, split).schedule(parties[0].register).train
    blocks = {party.name: party.X[train] for party in parties}
    loss = run.evaluate(blocks, np.asarray(parties[0].y)[train])["log_loss"]
    trained = [run.parts[party.name] for party in parties]
    if setting.kind == "linear":
        weights = [part.theta[: len(part.features)] for part in trained]  # without the intercept
    else:
        weights = [part.state["theta"] for part in trained]
    return {"train_loss": loss, "objective": loss + _penalty(weights)}


def _penalty(weights: Sequence[Floats]) -> float:
    """Return l2 / 2 * |weights|^2, which a training adds to the mean loss."""
    return L2 / 2 * sum(float((array**2).sum()) for array in weights)


def tables(data: Path | None, parties: int) -> list[Party]:
    """Return a9a's columns as its file splits them (g, h): those of h with labels, shared by all but the last."""
    if data is None:
        generator = np.random.default_rng(0)
        X = 2.0 * generator.integers(0, 2, (1200, 24)) - 1
        y = (X.sum(axis=1) + 4 * generator.normal(size=1200) > 0).astype(int)
        hands = np.array_split(np.arange(24), parties)
    else:
        file = archive(data / "a9a.npz")
        X, y = file["X"].astype(np.float64), (file["y"] > 0).astype(np.intp)
        hands = [*np.array_split(file["h"], parties - 1), file["g"]]
    return [Party(f"p{k}", X[:, hand], None if k else y, aligned=True) for k, hand in enumerate(hands)]


def job_of(plan: Plan, setting: Setting, eta: float, split: int) -> Job:
    """Return the training of a row; split is the number of the repetition."""
    return Job(
        model=Logistic(l2=L2) if setting.kind == "linear" else Neural(l2=L2),
        optimizer=FDML(
            lr=eta,
            decay="sqrt_t",
            tau=setting.tau,
            synchronous_first=setting.first,
            shows_labels=setting.residual is None,
            stored=setting.stored,
        ),
        protocol=Protocol(residual=setting.residual),
        batch_size=plan.batch,
        epochs=plan.epochs,
        test_fraction=TEST_FRACTION,
        split=split,
        seed=split,
        evaluate_every=plan.every,
        scale="none",  # columns are binary
        accepts=("columns", "rank", "fresh_equations"),
    )


def train(
    parties: Sequence[Party],
    plan: Plan,
    setting: Setting,
    eta: float,
    split: int,
    network: Network | None = None,
    slowed: dict[str, float | Pauses] | None = None,
) -> Run:
    """Train one repetition of a row. The last party is the slow one."""
    table = [_with_module(party) for party in parties] if setting.kind == "network" else list(parties)
    if setting.server:
        table.append(Helper("server", "server"))
    slow = slowed or ({parties[-1].name: SLOW_FACTOR} if setting.slow else {})
    return simulate(job_of(plan, setting, eta, split), table, network=network, slowed=slow)


def _with_module(party: Party) -> Party:
    """Return the same party with a hidden layer."""
    nn, d = torch().nn, party.X.shape[1]

    def make() -> Any:
        return nn.Sequential(nn.Linear(d, UNITS), nn.ReLU(), nn.Linear(UNITS, 1)).double()

    return Party(party.name, party.X, party.y, aligned=True, model=TorchModel(make))


def first(run: Run, auc: float) -> tuple[float, float] | None:
    """Return iterations and seconds until the AUC reaches this value; None if it never does."""
    return next(((record["round"], record["seconds"]) for record in run.history if record.get("auc", 0.0) >= auc), None)


def central(plan: Plan, kind: Kind, parties: Sequence[Party], split: int) -> float:
    """Return the AUC of scikit-learn's model on these parties' columns and this repetition's held-out rows."""
    return _central(plan, kind, parties, split)["auc"]


def _central(
    plan: Plan, kind: Kind, parties: Sequence[Party], split: int, labelled: Party | None = None
) -> dict[str, float]:
    """Return AUC, losses and processor seconds of scikit-learn's model on these parties' columns."""
    lead = labelled or parties[0]
    linear_model = import_extra("sklearn.linear_model", "sklearn", "the baselines")
    neural_network = import_extra("sklearn.neural_network", "sklearn", "the baselines")
    schedule = job_of(plan, Setting("linear", 0), 1.0, split).schedule(lead.register)
    X, y = np.hstack([party.X for party in parties]), np.asarray(lead.y)
    if kind == "linear":
        model = linear_model.LogisticRegression(C=1 / (L2 * len(schedule.train)), max_iter=1000)
    else:
        model = neural_network.MLPClassifier(
            (2 * UNITS,), alpha=L2 * plan.batch, batch_size=plan.batch, max_iter=plan.epochs, random_state=split
        )  # scikit-learn divides the penalty of a network by the rows of a batch
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # scikit-learn's warning that it has not converged
        started = time.process_time()
        model.fit(X[schedule.train], y[schedule.train])
        spent = time.process_time() - started
    losses = {}
    for name, rows in (("train_loss", schedule.train), ("test_loss", schedule.test)):
        chances = model.predict_proba(X[rows])[:, 1].clip(1e-15, 1 - 1e-15)
        losses[name] = float(-np.log(np.where(y[rows] == 1, chances, 1 - chances)).mean())
    auc = area_under_curve(y[schedule.test] == 1, model.predict_proba(X[schedule.test])[:, 1])
    weights = [model.coef_] if kind == "linear" else [*model.coefs_, *model.intercepts_]
    objective = losses["train_loss"] + _penalty(weights)
    return {"auc": auc, **losses, "objective": objective, "whole_s": spent}


def orders(data: Path | None, plan: Plan, on_row: Callable[[str], None]) -> Rows:
    """Return rounds and AUC of synchronous linear models for both orders of pull, update and push, by plain loops."""
    parties = tables(data, plan.parties[0])
    choice = step(parties, plan, Setting("linear", 0), on_row)
    pooled = [central(plan, "linear", parties, split) for split in range(plan.splits)]
    rows = []
    for order in ("push, pull, update", "pull, update, push"):
        results = [
            plain(parties, plan, choice.step, i, pushes_first=order.startswith("push")) for i in range(plan.splits)
        ]
        reached = [
            next((t for t, auc in curve if auc >= goal - AUC_TOLERANCE), None)
            for (curve, _), goal in zip(results, pooled, strict=True)
        ]
        aucs = [curve[-1][1] for curve, _ in results]
        rows.append(
            {
                "order": order,
                **choice.row(),
                "auc": mean(aucs),
                "auc_sd": spread(aucs),
                "rounds": mean(reached),
                "rounds_sd": spread(reached),
            }
        )
    return rows


def times(data: Path | None, plan: Plan, on_row: Callable[[str], None]) -> Rows:
    """Return the seconds that trainings with the same sequence of steps need until they reach an AUC.

    Returns:
        Rows on one training with all columns, one with the labelled party's columns (both in processor seconds), and on
        FDML (in seconds of the simulated clock).
    """
    parties = tables(data, plan.parties[0])
    choice = step(parties, plan, Setting("linear", 0), on_row)
    goals = [central(plan, "linear", parties, split) - AUC_TOLERANCE for split in range(plan.splits)]
    rows = []
    for name, local in (("centralised", parties), ("the labelled party alone", parties[:1])):
        results = []
        for split, goal in enumerate(goals):
            curve, spent = plain(local, plan, choice.step, split, pushes_first=True, pooled=True)
            reached = next((t for t, auc in curve if auc >= goal), None)
            seconds = None if reached is None else spent * reached / curve[-1][0]
            results.append((reached, seconds, spent, curve[-1][1]))
        rows.append(_timed(name, results))
    for tau in (0, 8):
        for rtt in (0.2, 20.0):
            results = []
            for split, goal in enumerate(goals):
                on_row(f"tau {tau}, round trip {rtt:g} ms, split {split + 1} of {plan.splits}")
                setting = Setting("linear", tau, first=tau == 0)
                done = train(parties, plan, setting, choice.step, split, Network(rtt_ms=rtt))
                at = first(done, goal) or (None, None)
                results.append((*at, done.costs.training, done.metrics["auc"]))
            rows.append(_timed(f"FDML, tau = {tau}, round trip {rtt:g} ms", results))
    return [row | {"step": choice.step} for row in rows]


def _timed(training: str, results: Sequence[tuple[float | None, float | None, float, float]]) -> dict[str, Any]:
    """Return a row of times.

    Args:
        training: description of the training.
        results: for each split, the rounds and the seconds to the target (None if it is not reached), the seconds of
            the whole training, and the AUC.
    """
    rounds, seconds, spent, aucs = zip(*results, strict=True)
    return {
        "training": training,
        "rounds": mean(rounds),
        "rounds_sd": spread(rounds),
        "rounds_median": median(rounds),
        "reached": sum(number is not None for number in rounds),
        "seconds": median(seconds),
        "whole_s": mean(spent),
        "auc": mean(aucs),
        "auc_sd": spread(aucs),
    }


def plain(
    parties: Sequence[Party], plan: Plan, eta: float, split: int, *, pushes_first: bool, pooled: bool = False
) -> tuple[list[tuple[int, float]], float]:
    """Return rounds and AUC of synchronous logistic regression by a plain loop, and its processor seconds.

    pushes_first: a sum contains the others' predictions of this iteration, or else those of the last iteration on the
    batch, which were pushed after the update. pooled: one party has all columns.
    """
    schedule = job_of(plan, Setting("linear", 0), eta, split).schedule(parties[0].register)
    y = np.asarray(parties[0].y)
    sides: list[Floats] = [party.X for party in parties]
    if pooled:
        sides = [np.hstack(sides)]
    sides = [np.ascontiguousarray(np.column_stack([sides[0], np.ones(len(y))])), *sides[1:]]
    signs, weights = np.where(y == 1, 1.0, -1.0), [np.zeros(side.shape[1]) for side in sides]
    pushed: dict[int, list[Floats]] = {}
    curve: list[tuple[int, float]] = []
    spent, visits = 0.0, list(schedule.iterations())
    for t, visit in enumerate(visits):
        started = time.process_time()
        selected = [side[visit.rows] for side in sides]
        now = [X @ w for X, w in zip(selected, weights, strict=True)]
        others = now if pushes_first else pushed.get(visit.index, [np.zeros(len(visit.rows))] * len(selected))
        for k, X in enumerate(selected):
            f = now[k] + sum((others[j] for j in range(len(selected)) if j != k), np.zeros(len(X)))
            g = -signs[visit.rows] / (1 + np.exp(signs[visit.rows] * f))
            weights[k] = weights[k] - eta / np.sqrt(t + 1) * (X.T @ g / len(X) + L2 * weights[k])
        if not pushes_first:
            pushed[visit.index] = [X @ w for X, w in zip(selected, weights, strict=True)]
        spent += time.process_time() - started
        if (t + 1) % plan.every == 0 or t + 1 == len(visits):
            scores = sum(side[schedule.test] @ w for side, w in zip(sides, weights, strict=True))
            curve.append((t + 1, area_under_curve(y[schedule.test] == 1, np.asarray(scores))))
    return curve, spent
