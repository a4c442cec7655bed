"""Networks for tables of numbers and codes: Wide & Deep (Cheng et al. 2016) and DSSM (Huang et al. 2013).

They are divided between parties as in CELU-VFL (Fu et al. 2022, section 5.1). The active party has the labels, passive
parties have none; w is the number of outputs of a passive party. The extra `torch` is required.

    passive party k     Z_k = WideDeep(...) or Dssm(...)                    (n, w)
    active party        f   = WideDeepTop(...) or DssmTop(...) of its columns and of all Z_k

With `Neural(joint="sum")` each party, the active one included, has a WideDeep with c outputs, and f is their sum.

A code is an integer that stands for a text (`Preparation.texts = "codes"`). Each column of codes has an embedding table
with one row, a vector, for each code. Code 0 has the spare row, for rare texts and for all codes without a row.
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
    """The types of a party's columns.

    Attributes:
        numbers: the positions of numeric columns.
        codes: for each column of codes, by its position, the number of rows of its embedding table, with the spare row.
    """

    numbers: tuple[int, ...]
    codes: Mapping[int, int]

    @classmethod
    def of(cls, party: Party) -> Fields:
        """Return the types of columns if the job encodes texts as codes: one row for each text, plus the spare row.

        A job that adds columns (`missing = "indicator"` with missing values, or `bins`) changes the positions of
        columns; then pass the fields explicitly.
        """
        texts = {j: len(party.categories[name]) + 1 for j, name in enumerate(party.columns) if name in party.categories}
        return cls(tuple(j for j in range(len(party.columns)) if j not in texts), texts)


class Embedded(nn.Module):  # type: ignore[misc]
    """Maps columns (n, d) to numbers (n, `width`): the numeric columns, and `size` numbers for each column of codes.

    All embedding tables of a party are stored as one, so that a step takes one look-up.
    """

    def __init__(self, fields: Fields, size: int) -> None:
        super().__init__()
        self.width = len(fields.numbers) + size * len(fields.codes)
        rows = list(fields.codes.values())
        self.table = nn.Embedding(max(1, sum(rows)), size)
        nn.init.normal_(self.table.weight, std=0.05)
        for name, values in (
            ("numbers", list(fields.numbers)),
            ("codes", list(fields.codes)),
            ("rows", rows),
            ("first", [0, *accumulate(rows)][:-1]),
        ):
            self.register_buffer(name, torch().tensor(values, dtype=torch().int64))

    def positions(self, x: Tensor) -> Any:
        """Return for each code the index of its row in `table` (n, columns of codes)."""
        code = x[:, self.codes].round().long()
        return self.first + torch().where((code >= 0) & (code < self.rows), code, 0)

    def forward(self, x: Tensor) -> Any:
        """Compute the outputs of this network for the rows of a batch."""
        return self.at(x, self.positions(x))

    def at(self, x: Tensor, positions: Tensor) -> Any:
        """Return the numbers (n, width), given for each code the index of its row in `table` (n, columns of codes)."""
        return torch().cat([x[:, self.numbers], self.table(positions).flatten(1)], dim=1)


class WideDeep(nn.Module):  # type: ignore[misc]
    """Wide & Deep network from columns (n, d) to `outputs` numbers for each row.

    The deep part is a tower (dense layers with rectifiers between them) over embeddings. The wide part has one weight
    for each code and each numeric column; it is added to the first output.

    Args:
        fields: the types of the columns.
        outputs: the number of outputs.
        size: length of an embedding vector.
        hidden: widths of the tower's hidden layers.
    """

    def __init__(self, fields: Fields, outputs: int, *, size: int = 8, hidden: tuple[int, ...] = (64,)) -> None:
        super().__init__()
        self.embedded, self.wide = Embedded(fields, size), Embedded(fields, 1)
        nn.init.zeros_(self.wide.table.weight)
        self.weights = nn.Linear(len(fields.numbers), 1) if fields.numbers else None
        self.tower = tower(self.embedded.width, hidden, outputs)

    def forward(self, x: Tensor) -> Any:
        """Compute the outputs of this network for the rows of a batch."""
        positions = self.embedded.positions(x)
        deep = self.tower(self.embedded.at(x, positions))
        wide = self.wide.table(positions).sum(dim=1)
        if self.weights is not None:
            wide = wide + self.weights(x[:, self.wide.numbers])
        return torch().cat([deep[:, :1] + wide, deep[:, 1:]], dim=1)


class WideDeepTop(nn.Module):  # type: ignore[misc]
    """Top model of Wide & Deep: from columns (n, d) and the others' outputs (n, passives * w) to f (n, 1).

    f is the sum of all parties' first outputs, which contain the wide parts, plus a tower over all outputs.
    """

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
        self.bottom = WideDeep(fields, width, size=size, hidden=hidden)
        self.top = tower(width * (passives + 1), top, 1)
        self.width = width

    def forward(self, x: Tensor, z: Tensor) -> Any:
        """Compute the outputs of this network for the rows of a batch."""
        together = torch().cat([self.bottom(x), z], dim=1)
        return together[:, :: self.width].sum(dim=1, keepdim=True) + self.top(torch().relu(together))


class Dssm(nn.Module):  # type: ignore[misc]
    """Tower over embeddings, from columns (n, d) to `outputs` numbers between -1 and 1 for each row."""

    def __init__(self, fields: Fields, outputs: int, *, size: int = 8, hidden: tuple[int, ...] = (64,)) -> None:
        super().__init__()
        self.embedded = Embedded(fields, size)
        self.tower = tower(self.embedded.width, hidden, outputs)

    def forward(self, x: Tensor) -> Any:
        """Compute the outputs of this network for the rows of a batch."""
        return torch().tanh(self.tower(self.embedded(x)))


class DssmTop(nn.Module):  # type: ignore[misc]
    """Top model of DSSM, from the active party's columns (n, d) and the others' outputs (n, passives * w) to f (n, 1).

    f is the cosine similarity of the active party's vector and the sum of the others', plus a linear function of both
    vectors.
    """

    def __init__(
        self, fields: Fields, width: int, *, passives: int = 1, size: int = 8, hidden: tuple[int, ...] = (64,)
    ) -> None:
        super().__init__()
        self.bottom = Dssm(fields, width, size=size, hidden=hidden)
        self.linear = nn.Linear(2 * width, 1)
        self.sharpness = nn.Parameter(torch().tensor(3.0))
        self.passives = passives

    def forward(self, x: Tensor, z: Tensor) -> Any:
        """Compute the outputs of this network for the rows of a batch."""
        vector, others = self.bottom(x), z.reshape(len(z), self.passives, -1).sum(dim=1)
        cosine = nn.functional.cosine_similarity(vector, others, dim=1, eps=1e-6)
        return self.sharpness * cosine[:, None] + self.linear(torch().cat([vector, others], dim=1))


def tower(width: int, hidden: tuple[int, ...], outputs: int) -> Any:
    """Return dense layers with rectifiers between them."""
    widths, layers = (width, *hidden, outputs), []
    for before, after in pairwise(widths):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*layers[:-1])
