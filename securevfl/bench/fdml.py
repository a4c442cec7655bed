"""FDML on a9a: against models of all columns in one place and of one party's alone, and where a party is slow.

As in Table I and Figures 2 and 3 of Hu et al. 2019, on rows that are held out, another quarter for each repetition:

auc           at the end, the mean; auc_sd its deviation over the repetitions
rounds        iterations until the AUC is within WITHIN of that of the pooled columns, the mean; none if it never is
virtual_s     seconds of training until then, each party on a computer of its own, on the network given

The split of the columns is that of the table's file: 66 and 57, the first with the labels; three parties share the 66.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from securevfl.bench.tables import archive
from securevfl.crypto.scheme import Floats
from securevfl.data.party import Helper, Party
from securevfl.errors import ConfigError
from securevfl.extras import extra
from securevfl.job import Job
from securevfl.models.linear import Logistic
from securevfl.models.metrics import area_under_curve
from securevfl.models.neural import Neural
from securevfl.models.torch_model import TorchModel, torch
from securevfl.optim.fdml import FDML
from securevfl.protocols.choice import Protocol
from securevfl.runtime.clock import Network
from securevfl.training.run import Run
from securevfl.training.simulate import simulate

SCHEMA = "securevfl.bench.fdml/1"
WITHIN = 0.007  # of the pooled AUC
TEST = 0.25
L2 = 1e-4
EPOCHS = 8
BATCH = 256
EVERY = 48  # iterations between evaluations
STEP = 3.0  # of a grid of 1, 3 and 6 one at which all settings come to the pooled AUC
UNITS = 16  # of each party's hidden layer
SLOW = 4.0

Kind = Literal["linear", "network"]
TABLES = {"a9a-2": 2, "a9a-3": 3}


@dataclass(frozen=True)
class Setting:
    """One row: what the parties' models are, how far they go apart, where predictions and labels lie, who is slow."""

    kind: Kind
    tau: int
    stored: str = "open"
    residual: str | None = None
    slow: bool = False
    first: bool = True  # whether the first epoch is taken in step
    server: bool = True

    @property
    def name(self) -> str:
        """In words."""
        labels = "labels at all" if self.residual is None else f"labels at one, {self.residual} residual"
        where = f"{self.stored} at a server" if self.server else "no server"
        slow = f", one party {SLOW:g} x slower" if self.slow else ""
        first = "" if self.first else " from the start"
        return f"tau {self.tau}{first}, {where}, {labels}{slow}"


PLAIN = (
    *(Setting("linear", tau) for tau in (0, 8)),
    *(Setting("linear", tau, slow=True) for tau in (0, 8)),
    Setting("linear", 8, slow=True, first=False),
    Setting("linear", 8, server=False),
    Setting("linear", 8, residual="open"),
    Setting("linear", 8, "masks"),
)
NETWORKS = (*(Setting("network", tau) for tau in (0, 8)), Setting("network", 8, residual="open"))
SEALED = (Setting("linear", 8, "ckks"), Setting("linear", 8, "ckks", "ckks"))


def run(
    data: Path,
    tables: Sequence[str] = (),
    *,
    networks: bool = True,
    sealed: bool = True,
    repetitions: int = 3,
    network: Network | None = None,
    on_row: Callable[[str], None] = lambda what: None,
) -> list[dict[str, Any]]:
    """The rows of the tables named, of all if none is. ConfigError for a name that is not known, DataError for a table
    that is missing."""
    if unknown := [name for name in tables if name not in TABLES]:
        raise ConfigError(f"table must be one of {', '.join(TABLES)}, {unknown[0]} came; choose one of these")
    settings = [*PLAIN, *(NETWORKS if networks else ()), *(SEALED if sealed else ())]
    rows = []
    for name in tables or TABLES:
        parties = split(data, TABLES[name])
        pooled: dict[str, list[float]] = {}
        for kind in dict.fromkeys(setting.kind for setting in settings):
            on_row(f"{name}, {kind} models of all columns")
            pooled[kind] = [central(kind, parties, split) for split in range(repetitions)]
            alone = [[central(kind, [own], split, parties[0]) for split in range(repetitions)] for own in parties]
            best = max(alone, key=lambda aucs: float(np.mean(aucs)))
            rows += [
                _row(f"{kind}, {what}", "", name, aucs) for what, aucs in (("pooled", pooled[kind]), ("alone", best))
            ]
        for setting in settings:
            on_row(f"{name}, {setting.kind}, {setting.name}")
            runs = [train(setting, parties, index, network) for index in range(repetitions)]
            reached = [first(each, auc - WITHIN) for each, auc in zip(runs, pooled[setting.kind], strict=True)]
            aucs = [each.metrics["auc"] for each in runs]
            rows.append(_row(f"{setting.kind}, fdml", setting.name, name, aucs, reached))
    return rows


def split(data: Path, parties: int) -> list[Party]:
    """The columns of a9a as its file splits them (g, h): those of h with the labels, shared by all but the last."""
    file = archive(data / "a9a.npz")
    X, y = file["X"].astype(np.float64), (file["y"] > 0).astype(np.intp)
    hands = [*np.array_split(file["h"], parties - 1), file["g"]]
    return [Party(f"p{k}", X[:, hand], None if k else y, aligned=True) for k, hand in enumerate(hands)]


def job_of(setting: Setting, split: int, parties: Sequence[Party]) -> Job:
    """What is trained for a row; split numbers the repetition."""
    return Job(
        model=Logistic(l2=L2) if setting.kind == "linear" else Neural(l2=L2),
        optimizer=FDML(
            lr=STEP,
            decay="sqrt_t",
            tau=setting.tau,
            synchronous_first=setting.first,
            shows_labels=setting.residual is None,
        ),
        protocol=Protocol(stored=setting.stored, residual=setting.residual),
        batch_size=BATCH,
        epochs=EPOCHS,
        test_fraction=TEST,
        split=split,
        seed=split,
        evaluate_every=EVERY,
        scale="none",  # columns are 0 and 1
        accepts=("columns", "rank", "fresh_equations"),
    )


def train(setting: Setting, parties: Sequence[Party], split: int, network: Network | None = None) -> Run:
    """One repetition of a row. The last party is the slow one."""
    table = [_with_module(party) for party in parties] if setting.kind == "network" else list(parties)
    if setting.server:
        table.append(Helper("server", "server"))
    slowed = {parties[-1].name: SLOW} if setting.slow else {}
    return simulate(job_of(setting, split, parties), table, network=network, slowed=slowed)


def _with_module(party: Party) -> Party:
    """The same party with a hidden layer of its own."""
    nn, d = torch().nn, party.X.shape[1]

    def make() -> Any:
        return nn.Sequential(nn.Linear(d, UNITS), nn.ReLU(), nn.Linear(UNITS, 1)).double()

    return Party(party.name, party.X, party.y, aligned=True, model=TorchModel(make))


def first(run: Run, auc: float) -> tuple[float, float] | None:
    """Iterations and seconds until the AUC is this high; None if it never is."""
    return next(((record["round"], record["seconds"]) for record in run.history if record.get("auc", 0.0) >= auc), None)


def central(kind: Kind, parties: Sequence[Party], split: int, labelled: Party | None = None) -> float:
    """The AUC of scikit-learn's model on the columns of these parties, on the rows held out in this repetition."""
    lead = labelled or parties[0]
    linear_model = extra("sklearn.linear_model", "sklearn", "the baselines")
    neural_network = extra("sklearn.neural_network", "sklearn", "the baselines")
    schedule = job_of(Setting("linear", 0), split, parties).schedule(lead.register)
    X, y = np.hstack([party.X for party in parties]), np.asarray(lead.y)
    if kind == "linear":
        model = linear_model.LogisticRegression(C=1 / (L2 * len(schedule.train)), max_iter=1000)
    else:
        model = neural_network.MLPClassifier(
            (2 * UNITS,), alpha=L2, batch_size=BATCH, max_iter=EPOCHS, random_state=split, early_stopping=False
        )
    return area_under_curve(y[schedule.test] == 1, _fitted(model, X, y, schedule))


def _fitted(model: Any, X: Floats, y: Any, schedule: Any) -> Floats:
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # scikit-learn's, that it could go on
        model.fit(X[schedule.train], y[schedule.train])
    scores: Floats = model.predict_proba(X[schedule.test])[:, 1]
    return scores


def _row(
    method: str,
    setting: str,
    dataset: str,
    aucs: Sequence[float],
    reached: Sequence[tuple[float, float] | None] = (),
) -> dict[str, Any]:
    there = [each for each in reached if each is not None]
    means = np.mean(there, axis=0).tolist() if there and len(there) == len(reached) else [None, None]
    return {
        "method": method,
        "setting": setting,
        "dataset": dataset,
        "auc": float(np.mean(aucs)),
        "auc_sd": float(np.std(aucs, ddof=1)) if len(aucs) > 1 else 0.0,
        "rounds": means[0],
        "virtual_s": means[1],
    }
