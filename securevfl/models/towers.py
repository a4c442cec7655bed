"""Networks for tables of numbers and codes: Wide & Deep (Cheng et al. 2016) and DSSM (Huang et al. 2013), cut between
parties as CELU-VFL does (Fu et al. 2022, section 5.1). Needs the extra `torch`.

    passive party k     Z_k = WideDeep(...) or Dssm(...)                    n x w
    active party        f   = WideDeepTop(...) or DssmTop(...) of its own columns and of all Z_k

Under `Neural(joint="sum")` each party, the active one too, has a WideDeep of c outputs, and f is their sum.

A column of codes (`Preparation.texts = "codes"`) has a table with a vector for each code. Code 0 is the spare row: rare
values have it, and so has every number that the table has no row for. All of it is one table, so that a step is one
look-up; layers take each row alone, and derivatives by layer and by torch.func go through.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any

from securevfl.data.party import Party
from securevfl.models.torch_model import torch

if TYPE_CHECKING:
    from torch import Tensor

nn: Any = torch().nn


@dataclass(frozen=True)
class Fields:
    """Which columns of a party hold what: the places of those of numbers, and by place the rows of the table for each
    column of codes, its spare row counted."""

    numbers: tuple[int, ...]
    codes: Mapping[int, int]

    @classmethod
    def of(cls, party: Party) -> Fields:
        """Those of a party whose job makes codes of texts: as many rows as a column has values, and the spare one.

        A job that adds columns beside numbers (`missing = "indicator"` where some are missing, `bins`) moves places;
        name the fields yourself then.
        """
        texts = {j: len(party.categories[name]) + 1 for j, name in enumerate(party.columns) if name in party.categories}
        return cls(tuple(j for j in range(len(party.columns)) if j not in texts), texts)


class Embedded(nn.Module):  # type: ignore[misc]
    """A party's columns (n x d) as one row of numbers (n x `width`): its numbers, and `size` numbers for each code."""

    def __init__(self, fields: Fields, size: int) -> None:
        super().__init__()
        self.width = len(fields.numbers) + size * len(fields.codes)
        rows = list(fields.codes.values())
        self.table = nn.Embedding(max(1, sum(rows)), size)
        nn.init.normal_(self.table.weight, std=0.05)
        for name, whole in (
            ("numbers", list(fields.numbers)),
            ("codes", list(fields.codes)),
            ("rows", rows),
            ("first", [0, *accumulate(rows)][:-1]),
        ):
            self.register_buffer(name, torch().tensor(whole, dtype=torch().int64))

    def places(self, x: Tensor) -> Any:
        """Which row of the table each code has (n x fields)."""
        code = x[:, self.codes].round().long()
        return self.first + torch().where((code >= 0) & (code < self.rows), code, 0)

    def forward(self, x: Tensor) -> Any:
        return self.at(x, self.places(x))

    def at(self, x: Tensor, places: Tensor) -> Any:
        """Return the row of numbers where the places of the codes are known."""
        return torch().cat([x[:, self.numbers], self.table(places).flatten(1)], dim=1)


class WideDeep(nn.Module):  # type: ignore[misc]
    """Columns (n x d) to `outputs` numbers a row: a tower over embeddings (deep), and one number for each code and a
    weight for each number (wide), which are added to the first output.

    size: of an embedding. hidden: widths of the tower's layers before the last.
    """

    def __init__(self, fields: Fields, outputs: int, *, size: int = 8, hidden: tuple[int, ...] = (64,)) -> None:
        super().__init__()
        self.embedded, self.wide = Embedded(fields, size), Embedded(fields, 1)
        nn.init.zeros_(self.wide.table.weight)
        self.weights = nn.Linear(len(fields.numbers), 1) if fields.numbers else None
        self.tower = tower(self.embedded.width, hidden, outputs)

    def forward(self, x: Tensor) -> Any:
        places = self.embedded.places(x)
        deep = self.tower(self.embedded.at(x, places))
        wide = self.wide.table(places).sum(dim=1)
        if self.weights is not None:
            wide = wide + self.weights(x[:, self.wide.numbers])
        return torch().cat([deep[:, :1] + wide, deep[:, 1:]], dim=1)


class WideDeepTop(nn.Module):  # type: ignore[misc]
    """The active party's columns (n x d), and what `passives` parties feed (n x passives w), to f (n x 1): the first
    numbers of all parties added up, which hold the wide parts, and a tower over all numbers."""

    def __init__(
        self,
        fields: Fields,
        width: int,
        *,
        passives: int = 1,
        size: int = 8,
        hidden: tuple[int, ...] = (64,),
        top: tuple[int, ...] = (32,),
    ) -> None:
        super().__init__()
        self.own = WideDeep(fields, width, size=size, hidden=hidden)
        self.top = tower(width * (passives + 1), top, 1)
        self.width = width

    def forward(self, x: Tensor, z: Tensor) -> Any:
        together = torch().cat([self.own(x), z], dim=1)
        return together[:, :: self.width].sum(dim=1, keepdim=True) + self.top(torch().relu(together))


class Dssm(nn.Module):  # type: ignore[misc]
    """Columns (n x d) to a vector of `outputs` numbers between -1 and 1 a row: a tower over embeddings."""

    def __init__(self, fields: Fields, outputs: int, *, size: int = 8, hidden: tuple[int, ...] = (64,)) -> None:
        super().__init__()
        self.embedded = Embedded(fields, size)
        self.tower = tower(self.embedded.width, hidden, outputs)

    def forward(self, x: Tensor) -> Any:
        return torch().tanh(self.tower(self.embedded(x)))


class DssmTop(nn.Module):  # type: ignore[misc]
    """The active party's columns (n x d), and what the others feed (n x passives w), to f (n x 1): how well its own
    vector goes with the sum of theirs, by a cosine, and a number for each side alone."""

    def __init__(
        self, fields: Fields, width: int, *, passives: int = 1, size: int = 8, hidden: tuple[int, ...] = (64,)
    ) -> None:
        super().__init__()
        self.own = Dssm(fields, width, size=size, hidden=hidden)
        self.alone = nn.Linear(2 * width, 1)
        self.sharpness = nn.Parameter(torch().tensor(3.0))
        self.passives = passives

    def forward(self, x: Tensor, z: Tensor) -> Any:
        own, others = self.own(x), z.reshape(len(z), self.passives, -1).sum(dim=1)
        cosine = nn.functional.cosine_similarity(own, others, dim=1, eps=1e-6)
        return self.sharpness * cosine[:, None] + self.alone(torch().cat([own, others], dim=1))


def tower(width: int, hidden: tuple[int, ...], outputs: int) -> Any:
    """Dense layers with rectifiers between them."""
    widths, layers = (width, *hidden, outputs), []
    for before, after in pairwise(widths):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*layers[:-1])
