"""Reason codes: the columns of a party that raise a row's score f most, under names that the party chooses.

The score f is the model's output for a row. A party's part of the model contains the weights of its columns. A job sets
the maximum number of codes (`reason_codes`), so that every consent sheet describes what they reveal. In addition, a
party's operator must enable them for a prediction or a service. B is a party that sends codes, and the asker is the
party that receives the scores. Comments refer to these steps by number, for each block of rows:

1. B           records the bits of the codes in its score ledger, which limits the bits of scores and codes of each row
2. all         compute the scores of the block (`securevfl.organisations.prediction_session`)
3. B -> asker  the names of all codes in alphabetical order, and for each row k positions among them, largest
               contribution first

B ranks its columns by their Shapley values (`securevfl.credit.explanations`), for which it needs its weights, and sends
no values. A repeated request for a row returns the same codes, unless the row's columns at B have changed.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from securevfl.base.arrays import Floats
from securevfl.base.roles import Roles
from securevfl.credit.explanations import check_single, check_weights, heaviest
from securevfl.data.id_keys import id_digest
from securevfl.disclosure.information_content import code_bits
from securevfl.errors import ConfigError, ProtocolError
from securevfl.families.facts import RunFacts
from securevfl.job import Job
from securevfl.organisations.score_reasons import ReasonProvider, ScoreReasons
from securevfl.protocols.declarations import MessageDeclaration, Reveal
from securevfl.protocols.score_ledger.row_ledger import ScoreLedger
from securevfl.runtime.channel import Channel
from securevfl.runtime.disclosure_gate import DisclosingMessage, DisclosureRecord
from securevfl.training.model_part import ModelPart

MAX_CODES = 100  # maximum number of codes per row
# the pattern of names of codes; it excludes texts that a spreadsheet would execute as formulas
_NAME = re.compile(r"\w[\w .:/-]{0,63}")
_POSITIONS = np.dtype("<u2")


class ReasonCodes(DisclosingMessage, frozen=True):
    """Codes of the columns that raise the score f of each row of a block most.

    Attributes:
        names: names of all codes of the sender, in alphabetical order.
        positions: positions (n, k) in `names` of the k codes of n rows, as unsigned integers of 2 bytes.
    """

    names: tuple[str, ...]
    positions: bytes


@dataclass(frozen=True)
class ReasonCodePolicy(ReasonProvider):
    """The reason codes that a party's operator discloses for each scored row.

    Attributes:
        codes_per_row: number of codes.
        codes: a code for each of the party's columns.
    """

    codes_per_row: int
    codes: Mapping[str, str]

    def check(self, part: ModelPart) -> None:
        """Raise ConfigError unless the part and the job allow these reason codes."""
        check_weights(part, "reasons")
        check_single(part)
        lacking = [column for column in part.columns if column not in self.codes]
        unknown = [column for column in self.codes if column not in part.columns]
        if lacking or unknown:
            problem = "columns without a code: " if lacking else "codes for unknown columns: "
            raise ConfigError(
                f"the reason codes do not fit the columns of {part.name}; {problem}"
                f"{', '.join((lacking or unknown)[:5])}",
                "give one code for each column",
                code="SVFL-TABLE-COLUMNS",
                party=part.name,
            )
        limit = min(MAX_CODES, len(part.columns))
        if not 1 <= self.codes_per_row <= limit:
            raise ConfigError(
                f"{self.codes_per_row} reason codes per row are too few or too many",
                f"choose 1 to {limit}",
                code="SVFL-JOB-OPTION",
            )
        agreed = part.parsed_job.reason_codes
        if self.codes_per_row > agreed:
            raise ConfigError(
                f"{self.codes_per_row} reason codes per row exceed the {agreed} to which all parties agreed in the "
                "consent sheet of the training",
                f"provide fewer, or train with reason_codes = {self.codes_per_row}",
                code="SVFL-LEAK-NOT-ACCEPTED",
            )
        if not all(_NAME.fullmatch(name) for name in self.codes.values()):
            raise ConfigError(
                "the name of a reason code is not allowed",
                "use up to 64 letters, digits, spaces and . : / _ -, and begin with a letter or a digit",
                code="SVFL-JOB-OPTION",
            )

    def names(self) -> list[str]:
        """Return the names of all codes, in an order that does not depend on the columns."""
        return sorted(set(self.codes.values()))

    def bits(self, part: ModelPart) -> float:
        """Return the maximum number of bits that the codes reveal about a row.

        k of n columns in order are one of n! / (n - k)! cases, so this is the base-2 logarithm of that number.
        """
        return code_bits(len(part.columns), self.codes_per_row)

    def fingerprint(self) -> str:
        """Return a text that identifies this policy: it differs if other codes would be sent about the same rows."""
        return repr((self.codes_per_row, sorted(self.codes.items())))

    def admit(
        self, part: ModelPart, ledger: ScoreLedger, ids: Sequence[Any] | None, X: Floats, max_bits: float
    ) -> NDArray[np.bool_]:
        """Record the codes of rows in the score ledger; see `ReasonProvider.admit`."""
        if ids is None:
            raise ConfigError(
                f"party {part.name} cannot provide reason codes for rows without ids, because the ledger counts them "
                "by id",
                code="SVFL-ID-MISSING",
                party=part.name,
            )
        rows = [id_digest(part.name, row_id) for row_id in ids]
        return ledger.admit_codes(part.run, rows, X, bits=self.bits(part), max_bits=max_bits)

    def reasons(self, part: ModelPart, scaled: Floats) -> list[list[str]]:
        """Return the codes of each scaled row (m, d), largest contribution first.

        Each row has k codes, even if a column lowers f, so that their number reveals nothing. Repeated codes are
        replaced by empty strings at the end.
        """
        names = [self.codes[column] for column in part.columns]
        columns = heaviest(part, scaled, self.codes_per_row).tolist()
        return [_without_repetition([names[j] for j in row]) for row in columns]

    def send(self, part: ModelPart, channel: Channel, scaled: Floats) -> None:
        """Send the codes of scaled rows (m, d) to the requesting party."""
        names = self.names()
        position = np.array([names.index(self.codes[column]) for column in part.columns], _POSITIONS)
        bits_per_row = math.ceil(self.bits(part))
        permit = channel.permit(DisclosureRecord(part.asker, "codes", len(scaled), bits_per_row, about=(part.name,)))
        positions = position[heaviest(part, scaled, self.codes_per_row)].tobytes()
        channel.send(part.asker, ReasonCodes(tuple(names), positions), permit=permit)  # step 3


class ReasonCodesOfParties(ScoreReasons):
    """Reason codes as an implementation of `ScoreReasons`, which the package registers under an entry point."""

    def provider(self, codes_per_row: int, codes: Mapping[str, str]) -> ReasonCodePolicy:
        """Return the reason codes that a party discloses; see `ScoreReasons.provider`."""
        return ReasonCodePolicy(codes_per_row, codes)

    def declares(self, roles: Roles) -> list[MessageDeclaration]:
        """Return the declarations of `ReasonCodes` for each pair of parties: what the message discloses."""
        reveals = Reveal(
            "plain",
            "codes of the sender's columns that raise a row's score most, if its operator enables them; all names",
        )
        return [MessageDeclaration(ReasonCodes, *pair, reveals) for pair in roles.pairs()]

    def receive(self, name: str, channel: Channel, rows: int, codes_per_row: int) -> list[list[str]]:
        """Receive the reason codes of a party.

        Args:
            name: name of the party.
            channel: channel to the other parties.
            rows: number of rows.
            codes_per_row: number of codes per row.

        Returns:
            The codes of each row; repeated codes are replaced by empty strings at the end.

        Raises:
            ProtocolError: the message has another size or invalid names.
        """
        message = channel.recv(name, ReasonCodes)  # step 3
        complete = len(message.positions) == rows * codes_per_row * _POSITIONS.itemsize
        positions = np.frombuffer(message.positions, _POSITIONS).reshape(rows, codes_per_row) if complete else None
        if (
            positions is None
            or positions.max(initial=0) >= len(message.names)
            or not all(map(_NAME.fullmatch, message.names))
        ):
            raise ProtocolError(
                f"{name} did not send {codes_per_row} valid reason codes for each of {rows} rows",
                code="SVFL-PROTOCOL-VALUES",
                peer=name,
            )
        return [_without_repetition([message.names[position] for position in row]) for row in positions.tolist()]


REASON_CODES = ReasonCodesOfParties()


def sheet_lines(job: Job, roles: Roles, facts: RunFacts | None, name: str) -> list[tuple[str, str]]:
    """Return which reason codes of scored rows a party may send or receive; see `consent.sheet_lines.SheetLines`.

    A reason code names one of the columns that raise the score f of a row most.
    """
    shares, max_codes = job.protocol.shares, job.reason_codes
    requester = job.family.score_requester(job, roles.lead)
    senders = [
        party for party in roles.parties if party != requester and (shares is None or party in shares.open_weights)
    ]
    if not max_codes or name not in (requester, *senders):
        return []
    formula = f"log2(d! / (d - {max_codes})!) bits"
    columns = {} if facts is None else {party: facts.shape.columns.get(party, 0) for party in senders}
    bits = {party: f"{code_bits(d, max_codes):.1f} bits" if d else formula for party, d in columns.items()}
    if name == requester:
        by_party = "\n".join(
            f"{party}: at most {value} of a row, in addition to its score" for party, value in bits.items()
        )
        head = f"up to {max_codes} reason codes of a scored row, of each party whose owner sends them"
        return [("learns", f"{head}\n{by_party}" if by_party else head)]
    text = (
        f"to {requester} which of its columns raise the score of a row most, if its owner enables it when\n"
        f"it predicts or serves: up to {max_codes} codes, at most {bits.get(name, formula)} of a row, under names that "
        "it chooses"
    )
    return [("may send", text)]


def _without_repetition(codes: Sequence[str]) -> list[str]:
    """Return a row's codes without repetitions, and with empty strings at the end in their place."""
    unique = list(dict.fromkeys(codes))
    return unique + [""] * (len(codes) - len(unique))
