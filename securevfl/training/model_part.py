"""What a party takes home from a run: its own weights, its own scaling, its own books. One file a party."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from securevfl.crypto.scheme import Floats
from securevfl.data.given import check_finite, column_names
from securevfl.errors import DataError, TableError
from securevfl.files import write_whole
from securevfl.methods.state import State
from securevfl.runtime.books import Books
from securevfl.runtime.clock import Kind, Stage
from securevfl.runtime.clock import Path as CriticalPath

SCHEMA = "securevfl.part/3"


@dataclass
class ModelPart:
    """One party's outcome: its role, and its part of the model as its player keeps it (`securevfl.methods`).

    `parties` are those of the run, the leading one first. `state` may hold secrets, such as the key that features are
    drawn from; its file holds them too. `run` is the same in all parts of one training, and in no others.
    """

    name: str
    role: str
    job: dict[str, Any]
    parties: list[str]
    columns: list[str]
    mean: Floats
    deviation: Floats
    state: State
    outputs: int
    classes: NDArray[Any] | None = None
    metrics: dict[str, float] = field(default_factory=dict)
    history: list[dict[str, float]] = field(default_factory=list)
    rounds: int = 0
    books: Books = field(default_factory=Books, repr=False)
    path: CriticalPath = field(default_factory=lambda: np.zeros((len(Stage), len(Kind))), repr=False)
    run: str = ""

    def __repr__(self) -> str:
        return f"ModelPart({self.name!r}, {self.role}, {len(self.columns)} columns)"

    @property
    def leads(self) -> bool:
        """Whether it is the part of the party that leads: the one with metrics, history and predictions."""
        return self.name == self.parties[0]

    @property
    def theta(self) -> Floats:
        """Its weights (d x c), an intercept as the last row; DataError of a model that keeps none of this kind."""
        if "theta" not in self.state:
            raise DataError(f"{self.name}: weights were expected in its part of the model, it has {self.state!r}")
        theta: Floats = self.state["theta"]
        return theta

    def rows(self, X: ArrayLike) -> Floats:
        """New rows (m x d), checked and scaled as in training. TableError names what is wrong."""
        return self.scaled(self.table(X))

    def scaled(self, table: Floats) -> Floats:
        """Rows (m x d) as the training scaled them."""
        scaled: Floats = (table - self.mean) / self.deviation
        return scaled

    def table(self, X: ArrayLike) -> Floats:
        """New rows (m x d) or one (d,), checked: the columns of the training, by name where X has names. TableError."""
        named = column_names(X)
        if named is not None and named != self.columns:
            lacking = [column for column in self.columns if column not in named]
            if lacking:
                raise TableError(
                    f"party {self.name}: columns of the training were expected, missing: {lacking}; add them"
                )
            X = X[self.columns]  # type: ignore[index, call-overload]
        try:
            table = np.asarray(X.toarray() if hasattr(X, "toarray") else X, dtype=np.float64)
        except (TypeError, ValueError):
            raise TableError(f"party {self.name}: numbers were expected, the new rows hold text; encode them") from None
        if table.ndim == 1:
            table = table[None]
        if table.ndim != 2 or table.shape[1] != len(self.columns):
            raise TableError(
                f"party {self.name}: rows of {len(self.columns)} columns were expected, shape {table.shape} came"
            )
        check_finite(self.name, np.asarray(np.isfinite(table).all(axis=0)), self.columns)
        return table

    def save(self, path: str | Path) -> None:
        """Writes this party's own part as JSON, whole or not at all."""
        state = {
            "schema": SCHEMA,
            "name": self.name,
            "role": self.role,
            "job": self.job,
            "parties": self.parties,
            "columns": self.columns,
            "mean": self.mean.tolist(),
            "deviation": [each if np.isfinite(each) else None for each in self.deviation.tolist()],
            "outputs": self.outputs,
            "classes": None if self.classes is None else self.classes.tolist(),
            "state": self.state.plain(),
            "metrics": self.metrics,
            "history": self.history,
            "rounds": self.rounds,
            "run": self.run,
        }
        write_whole(Path(path), json.dumps(state).encode())

    @classmethod
    def load(cls, path: str | Path) -> ModelPart:
        """The opposite of `save`. DataError if the file is no part of this schema."""
        try:
            state = json.loads(Path(path).read_text(encoding="utf-8"))
            if state.pop("schema") != SCHEMA:
                raise KeyError
            mean = np.array(state.pop("mean"), dtype=np.float64)
            deviation = np.array([np.inf if each is None else each for each in state.pop("deviation")], np.float64)
            classes, own = state.pop("classes"), State.read(state.pop("state"))
            return cls(
                **state,
                mean=mean,
                deviation=deviation,
                state=own,
                classes=None if classes is None else np.array(classes),
            )
        except OSError as cause:
            raise DataError(f"{path}: a party's model file was expected there ({cause.strerror})") from None
        except (KeyError, TypeError, ValueError, AttributeError):
            raise DataError(f"{path}: a model file of schema {SCHEMA} was expected; train or save again") from None
