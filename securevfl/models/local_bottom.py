"""A network that its owner trains alone, without labels, to bring its outputs to a linear job in place of columns.

A passive party that trains a network on opened gradients of it learns more of the labels than of anything else: p
equations in every step (`securevfl.models.neural`). A bottom that is fitted on the party's own columns needs no message
at all, and the linear model above it opens what a linear model of so many columns opens.

    autoencoder   outputs from which a linear layer gives the columns back (Hinton and Salakhutdinov 2006), in squares
    contrastive   outputs by which a row is told from others after some of its values were swapped with other rows'
                  (SCARF, Bahri et al. 2022): InfoNCE of normalised projections
    none          the module with the weights that it comes with

All rows of the table are used, those held out too: no label is read, and the columns of held-out rows are the party's
own.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from securevfl.base.arrays import Floats
from securevfl.base.files import read_checked, write_checked
from securevfl.data.party import Party
from securevfl.errors import ConfigError, DataError, TableError
from securevfl.models.torch_model import TorchModel, torch
from securevfl.models.torch_part import AT_ONCE

if TYPE_CHECKING:
    from torch import Tensor
    from torch.nn import Module

Pretext = Literal["autoencoder", "contrastive", "none"]
SWAPPED = 0.5  # share of a row's values that a contrastive view takes from other rows
TEMPERATURE = 0.5
ROWS = 256  # a batch
SCHEMA = "securevfl.bottom/2"


class LocalBottom:
    """A module from d columns to h outputs, fitted by Adam with the step `lr` over `epochs` at its owner.

    module: as of `TorchModel`. ConfigError if it cannot be used.
    """

    def __init__(
        self,
        module: Module | Any,
        pretext: Pretext = "autoencoder",
        *,
        epochs: int = 20,
        lr: float = 1e-3,
        seed: int = 0,
    ) -> None:
        if pretext not in _PRETEXTS:
            raise ConfigError(f"LocalBottom: pretext: one of {', '.join(_PRETEXTS)} was expected; choose one of these")
        self._source = module if isinstance(module, TorchModel) else TorchModel(module)
        self._pretext, self._epochs, self._lr, self._seed = pretext, epochs, lr, seed
        self._module: Module | None = None
        self._mean, self._deviation = np.zeros(0), np.ones(0)
        self.columns: list[str] = []

    def fit(self, party: Party) -> Party:
        """Fits the module on the party's columns and returns the party with its outputs (n x h) as columns.

        TableError where columns hold texts or have gaps.
        """
        X = party.X
        wrong = [*party.levels, *(name for name, column in zip(party.columns, X.T, strict=True) if _gaps(column))]
        if wrong:
            raise TableError(
                f"party {party.name}: columns of numbers without gaps were expected, a bottom prepares none; fill in "
                f"or leave out: {', '.join(dict.fromkeys(wrong))}"
            )
        self.columns = list(party.columns)
        self._mean, self._deviation = X.mean(axis=0), X.std(axis=0)
        self._deviation[self._deviation == 0] = 1.0
        module = self._source.checked(party.name, X.shape[1], None, self._seeded())
        rows = _tensor(module, (X - self._mean) / self._deviation)
        loss = _PRETEXTS[self._pretext]
        if loss is not None:
            self._descend(module, rows, loss(module, rows, self._source))
        self._module = module
        H = self.apply(X)
        fitted = Party(party.name, H, party.y, ids=party.ids, columns=outputs(H), aligned=party.ids is None)
        fitted.role = party.role
        return fitted

    def apply(self, X: ArrayLike) -> Floats:
        """Return the outputs (m x h) on new rows (m x d) of the same columns. Raises DataError before it is fitted."""
        if self._module is None:
            raise DataError("LocalBottom: a fitted bottom was expected; fit it, or load its weights")
        table = np.asarray(X, np.float64)
        if table.ndim != 2 or table.shape[1] != len(self._mean):
            raise DataError(f"LocalBottom: rows of {len(self._mean)} columns were expected, shape {table.shape} came")
        if _gaps(table):
            raise DataError("LocalBottom: rows without gaps were expected, some values are missing; fill them in")
        rows = _tensor(self._module, (table - self._mean) / self._deviation)
        with torch().no_grad():
            found = [self._module(x).to(torch().float64).numpy() for x in rows.split(AT_ONCE)]
        return np.concatenate(found)

    def save(self, path: str | Path) -> None:
        """Write the numbers of the bottom as npz: weights by name, and names, means and deviations of columns. No code
        is in it."""
        if self._module is None:
            raise DataError("LocalBottom: a fitted bottom was expected; fit it first")
        weights = {f"weight {name}": each.numpy() for name, each in self._module.state_dict().items()}
        facts = {"schema": SCHEMA, "columns": self.columns, "mean": self._mean, "deviation": self._deviation}
        whole = io.BytesIO()
        np.savez(whole, **facts, **weights)  # type: ignore[arg-type]
        write_checked(Path(path), whole.getvalue())

    def load(self, path: str | Path) -> LocalBottom:
        """Load the numbers that a bottom of the same module has saved, and return this bottom. Raises DataError if they
        do not fit."""
        try:
            with np.load(io.BytesIO(read_checked(Path(path))), allow_pickle=False) as kept:
                if str(kept["schema"]) != SCHEMA:
                    raise KeyError
                self._mean, self._deviation = kept["mean"], kept["deviation"]
                self.columns = kept["columns"].tolist()
                module = self._source.checked("LocalBottom", len(self._mean), None, self._seeded())
                names = {name.removeprefix("weight "): name for name in kept.files if name.startswith("weight ")}
                module.load_state_dict({name: torch().tensor(kept[full]) for name, full in names.items()})
        except OSError as cause:
            raise DataError(f"{path}: weights of a bottom were expected there ({cause.strerror})") from None
        except (KeyError, ValueError, RuntimeError):
            raise DataError(f"{path}: weights of schema {SCHEMA} for this module were expected; fit it again") from None
        self._module = module
        return self

    def _seeded(self) -> bytes:
        return f"securevfl bottom {self._seed}".encode()

    def _descend(self, module: Module, rows: Tensor, pretext: Autoencoder | Contrastive) -> None:
        generator = torch().Generator().manual_seed(self._seed)
        weights = [each for each in (*module.parameters(), *pretext.head.parameters()) if each.requires_grad]
        optimizer = torch().optim.Adam(weights, lr=self._lr)
        for _ in range(self._epochs):
            for batch in _batches(len(rows), generator):
                optimizer.zero_grad()
                pretext.loss(rows[batch], generator).backward()
                optimizer.step()


def outputs(H: Floats) -> list[str]:
    """Names of the outputs (n x h) as columns."""
    return [f"h{j}" for j in range(H.shape[1])]


def _gaps(X: Floats) -> bool:
    return not np.isfinite(X).all()


class Autoencoder:
    """Mean squared error of the columns that a linear layer gives back from the outputs."""

    def __init__(self, module: Module, rows: Tensor, source: TorchModel) -> None:
        self._module = module
        self.head = source.drawn(lambda: torch().nn.Linear(_width(module, rows), rows.shape[1], dtype=rows.dtype))

    def loss(self, x: Tensor, generator: Any) -> Tensor:
        found: Tensor = ((self.head(self._module(x)) - x) ** 2).mean()
        return found


class Contrastive:
    """Cross entropy of finding each row among the views of a batch, by cosines of projections."""

    def __init__(self, module: Module, rows: Tensor, source: TorchModel) -> None:
        self._module = module
        width = _width(module, rows)
        self.head = source.drawn(lambda: torch().nn.Linear(width, width, dtype=rows.dtype))

    def loss(self, x: Tensor, generator: Any) -> Tensor:
        others = torch().argsort(torch().rand(x.shape, generator=generator), dim=0)
        swapped = torch().rand(x.shape, generator=generator) < SWAPPED
        view = torch().where(swapped, x.gather(0, others), x)
        own, other = (torch().nn.functional.normalize(self.head(self._module(each))) for each in (x, view))
        found: Tensor = torch().nn.functional.cross_entropy(own @ other.T / TEMPERATURE, torch().arange(len(x)))
        return found


_PRETEXTS: dict[str, type[Autoencoder] | type[Contrastive] | None] = {
    "autoencoder": Autoencoder,
    "contrastive": Contrastive,
    "none": None,
}


def _batches(rows: int, generator: Any) -> Iterator[Tensor]:
    yield from torch().randperm(rows, generator=generator).split(ROWS)


def _width(module: Module, rows: Tensor) -> int:
    with torch().no_grad():
        return int(module(rows[:1]).shape[1])


def _tensor(module: Module, X: Floats) -> Tensor:
    found: Tensor = torch().tensor(X, dtype=next(module.parameters()).dtype)
    return found
