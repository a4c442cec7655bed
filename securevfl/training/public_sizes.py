"""The public sizes of a training that a party agreed to, with which each of its later sessions is compared.

A comparison or a search asks for consent once, and then trains several models in sessions of their own. At the start of
each session all parties send their sizes again (`securevfl.protocols.handshake`). How much a training discloses follows
from these sizes: a peer that announced other ones after the consent, such as three classes in place of two, would
receive more than the consent sheet states. The same holds for the order of rows, which determines the held-out rows: a
peer that announced another order would have models measured on rows that this party has not counted as measured.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from securevfl.base.conversion import convert
from securevfl.disclosure.counts import RunShape
from securevfl.errors import ProtocolError


@dataclass(frozen=True)
class PublicSizes:
    """The sizes of a training that its parties announce.

    Attributes:
        rows: number of training rows.
        held_out: number of rows that are not trained on.
        partition: name of the division of rows into held-out rows and batches (`RunShape.partition`).
        outputs: number of outputs of the model.
        columns: number of columns of each party, after preparation.
        parameters: for each party without labels, the number of its parameters.
    """

    rows: int
    held_out: int
    partition: str
    outputs: int
    columns: dict[str, int]
    parameters: dict[str, int]

    @classmethod
    def of(cls, shape: RunShape) -> PublicSizes:
        """Return the sizes in a run's shape."""
        return cls(
            shape.rows, shape.held_out, shape.partition, shape.outputs, dict(shape.columns), dict(shape.parameters)
        )

    @classmethod
    def read(cls, plain: Mapping[str, Any]) -> PublicSizes:
        """Return the sizes from plain data. Raises msgspec.ValidationError if the data is not of this form."""
        return convert(plain, cls)

    def plain(self) -> dict[str, Any]:
        """Return the sizes as dicts and numbers."""
        return asdict(self)

    def check(self, me: str, shape: RunShape) -> None:
        """Check that a session has these sizes.

        Args:
            me: name of this party.
            shape: the shape of the session's run.

        Raises:
            ProtocolError: if a size differs.
        """
        now = PublicSizes.of(shape)
        if now == self:
            return
        differing = [
            *(f"number of {name}" for name, key in _TOTALS.items() if getattr(self, key) != getattr(now, key)),
            *(["which rows are held out, and the batches"] if self.partition != now.partition else []),
            *(
                f"number of {kind} of {party}"
                for kind in ("columns", "parameters")
                for party in sorted({*getattr(self, kind), *getattr(now, kind)})
                if getattr(self, kind).get(party) != getattr(now, kind).get(party)
            ),
        ]
        raise ProtocolError(
            f"{me}: this training has other sizes than those that this party agreed to before the first training: "
            f"{', '.join(differing)}",
            "ask the operators of all parties whether someone changed or replaced a table; to agree to the new sizes, "
            "start again with another folder of checkpoints at every party",
            code="SVFL-PROTOCOL-VALUES",
            party=me,
        )


_TOTALS = {"training rows": "rows", "held-out rows": "held_out", "classes or outputs": "outputs"}
"""The attributes of `PublicSizes` that are one number, by the words of the message."""
