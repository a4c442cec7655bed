"""Interface of the reasons that parties may send with scores, such as the reason codes of `securevfl.credit`.

A *reason* names a column that raised or lowered a score. This module defines how many bits reasons reveal at most, and
when a party records them (`admit`), sends them and receives them. A package registers how they are computed
(`securevfl.base.extensions`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from securevfl.base.arrays import Floats
from securevfl.base.extensions import find_tool, require_tool
from securevfl.base.roles import Roles
from securevfl.protocols.declarations import MessageDeclaration
from securevfl.protocols.score_ledger.row_ledger import ScoreLedger
from securevfl.runtime.channel import Channel
from securevfl.training.model_part import ModelPart

SCORE_REASON_ENTRY_POINTS = "securevfl.score_reasons"
REASON_CODES_ENTRY = "reason_codes"


class ReasonProvider(ABC):
    """What a party's operator has chosen to disclose as reasons for each scored row.

    Attributes:
        codes_per_row: number of codes for each row.
    """

    codes_per_row: int

    @abstractmethod
    def check(self, part: ModelPart) -> None:
        """Raise ConfigError unless the part and the job allow these reasons."""

    @abstractmethod
    def bits(self, part: ModelPart) -> float:
        """Return the maximum number of bits that the reasons reveal about a row."""

    @abstractmethod
    def fingerprint(self) -> str:
        """Return a text that is different for every setting that would give other reasons for the same rows."""

    @abstractmethod
    def admit(
        self, part: ModelPart, ledger: ScoreLedger, ids: Sequence[Any] | None, X: Floats, max_bits: float
    ) -> NDArray[np.bool_]:
        """Record the reasons of rows in the score ledger, before anything about the rows is disclosed.

        Args:
            part: this party's part of the model.
            ledger: this party's score ledger.
            ids: ids of the rows.
            X: this party's columns (n, d).
            max_bits: maximum number of bits that scores and reasons may reveal about a row.

        Returns:
            A mask (n,) of the rows whose scores and reasons together stay within `max_bits`.

        Raises:
            ConfigError: the rows have no ids, so their reasons cannot be counted.
        """

    @abstractmethod
    def reasons(self, part: ModelPart, scaled: Floats) -> list[list[str]]:
        """Return `codes_per_row` reasons for each of m rows with d scaled columns, as texts to show to users."""

    @abstractmethod
    def send(self, part: ModelPart, channel: Channel, scaled: Floats) -> None:
        """Send the reasons of scaled rows (m, d) to the requesting party."""


class ScoreReasons(ABC):
    """One kind of reasons, such as reason codes. A package registers it."""

    @abstractmethod
    def provider(self, codes_per_row: int, codes: Mapping[str, str]) -> ReasonProvider:
        """Return the reasons that a party discloses.

        Args:
            codes_per_row: number of codes for each row.
            codes: a code for each of the party's columns.

        Returns:
            The reasons.
        """

    @abstractmethod
    def declares(self, roles: Roles) -> list[MessageDeclaration]:
        """Declare sender, receiver and disclosure of the messages with reasons."""

    @abstractmethod
    def receive(self, name: str, channel: Channel, rows: int, codes_per_row: int) -> list[list[str]]:
        """Receive the reasons of a party.

        Args:
            name: name of the party.
            channel: channel to the other parties.
            rows: number of rows.
            codes_per_row: number of codes for each row.

        Returns:
            The reasons of each row.

        Raises:
            ProtocolError: the message has another size or invalid codes.
        """


def score_reasons(party: str = "") -> ScoreReasons:
    """Return the registered kind of reasons, or raise PackageMissingError, which names the package and this party."""
    return cast(ScoreReasons, require_tool(SCORE_REASON_ENTRY_POINTS, REASON_CODES_ENTRY, "reason_codes", party))


def declares(roles: Roles) -> list[MessageDeclaration]:
    """Declare the messages with reasons; none if no package provides reasons."""
    kind: ScoreReasons | None = find_tool(SCORE_REASON_ENTRY_POINTS, REASON_CODES_ENTRY)
    return [] if kind is None else kind.declares(roles)
