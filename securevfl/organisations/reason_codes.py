"""Reason codes across parties: which columns of a party cost a scored row most, under names that this party chooses.

Off unless the job says how many codes there may be (`reason_codes`), so that every consent sheet has said what they
tell, and a party's owner asks for it where it predicts or serves. For each block of rows, beside the score:

1. B         asks its ledger of scores: the codes count with the levels of the row's scores, and are limited with them
2. all       the scores of the block (`securevfl.organisations.predict`)
3. B -> asker  the names of all codes in the order of their letters, and k places among them a row, the heaviest first

B ranks its own columns by their Shapley values (`securevfl.training.explanations`), so it needs its own weights: on
shares it is one that `open_weights` names. It tells k codes of every row, also where a column lowers f, so that their
number says nothing; k of n columns in order are one of n! / (n - k)! cases, so they tell log2 of that in bits at most.
Nothing is said of how much a column weighs. Who asks again for the same row, with the same columns at B, gets the same.
The disclosure ledger counts them as one score more a row.
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
from securevfl.data.id_keys import id_digest
from securevfl.disclosure.information_content import code_bits
from securevfl.errors import ConfigError, ProtocolError
from securevfl.job import Job
from securevfl.protocols.declarations import MessageDeclaration, Reveal
from securevfl.protocols.score_ledger.ledger import ScoreLedger
from securevfl.runtime.channel import Channel
from securevfl.runtime.disclosure_gate import DisclosingMessage, DisclosureRecord
from securevfl.training.explanations import check_single, check_weights, heaviest
from securevfl.training.model_part import ModelPart

MOST = 100  # codes a row
_NAME = re.compile(r"\w[\w .:/-]{0,63}")  # nothing that a spreadsheet would run
_PLACES = np.dtype("<u2")


class ReasonCodes(DisclosingMessage, frozen=True):
    """Codes of the columns that cost each row of a block most: (n x k) places among the names."""

    names: tuple[str, ...]
    places: bytes


@dataclass(frozen=True)
class ReasonCodePolicy:
    """What a party's owner lets others know of each scored row: `most` codes, by a name for each column of its own."""

    most: int
    codes: Mapping[str, str]

    def check(self, part: ModelPart) -> None:
        """ConfigError unless the party knows its weights, and codes are of its columns and no more than the job lets it
        tell."""
        check_weights(part, "reasons")
        check_single(part)
        lacking = [column for column in part.columns if column not in self.codes]
        unknown = [column for column in self.codes if column not in part.columns]
        if lacking or unknown:
            what = f"without one: {', '.join(lacking[:5])}" if lacking else f"unknown: {', '.join(unknown[:5])}"
            raise ConfigError(f"codes: one for each of {part.name}'s columns was expected, {what}; correct the file")
        if not 1 <= self.most <= min(MOST, len(part.columns)):
            raise ConfigError(
                f"reasons: 1 to {min(MOST, len(part.columns))} codes a row were expected, {self.most} came; correct it"
            )
        agreed = Job.from_dict(part.job).reason_codes
        if self.most > agreed:
            raise ConfigError(
                f"reasons: at most {agreed} codes a row were expected, as all parties agreed to in the consent sheet "
                f"of the training, {self.most} came; give fewer, or train with reason_codes = {self.most}"
            )
        if not all(_NAME.fullmatch(name) for name in self.codes.values()):
            raise ConfigError("codes: names of up to 64 letters, digits and spaces were expected; rename the others")

    def names(self) -> list[str]:
        """Return the names of all codes, in an order that does not follow from the columns."""
        return sorted(set(self.codes.values()))

    def bits(self, part: ModelPart) -> float:
        """How much they tell of a row at most."""
        return code_bits(len(part.columns), self.most)


def declares(roles: Roles) -> list[MessageDeclaration]:
    """Return what the message reveals."""
    said = Reveal("plain", "codes of the sender's columns that cost a row most, if its owner gives any; all names")
    return [MessageDeclaration(ReasonCodes, *pair, said) for pair in roles.pairs()]


def admit(
    part: ModelPart, given: ReasonCodePolicy, ledger: ScoreLedger, ids: Sequence[Any] | None, X: Floats, most: float
) -> NDArray[np.bool_]:
    """Enter the codes of these rows X (n x d) before anything of them is told, and return of which rows (n,) they may
    be told: those of which scores and codes tell no more than `most` bits. ConfigError if rows have no ids to be
    counted by."""
    if ids is None:
        raise ConfigError(f"{part.name}: rows with ids were expected, as what codes tell counts by row; bring ids")
    rows = [id_digest(part.name, each) for each in ids]
    return ledger.admit_codes(part.run, rows, X, bits=given.bits(part), most=most)


def coded(part: ModelPart, given: ReasonCodePolicy, scaled: Floats) -> list[list[str]]:
    """Return the codes of each row (m x k), the heaviest first, each once."""
    names = [given.codes[column] for column in part.columns]
    return [_once([names[j] for j in own]) for own in heaviest(part, scaled, given.most).tolist()]


def give(part: ModelPart, given: ReasonCodePolicy, channel: Channel, scaled: Floats) -> None:
    """Tell the party that asks the codes of these scaled rows (n x d)."""
    names = given.names()
    place = np.array([names.index(given.codes[column]) for column in part.columns], _PLACES)
    each = math.ceil(given.bits(part))
    permit = channel.permit(DisclosureRecord(part.asker, "codes", len(scaled), each, about=(part.name,)))
    places = place[heaviest(part, scaled, given.most)].tobytes()
    channel.send(part.asker, ReasonCodes(tuple(names), places), permit=permit)  # 3


def take(name: str, channel: Channel, rows: int, most: int) -> list[list[str]]:
    """Return the codes that party `name` gives of so many rows, `most` of each. ProtocolError if they are none."""
    found = channel.recv(name, ReasonCodes)  # 3
    whole = len(found.places) == rows * most * _PLACES.itemsize
    places = np.frombuffer(found.places, _PLACES).reshape(rows, most) if whole else None
    if places is None or places.max(initial=0) >= len(found.names) or not all(map(_NAME.fullmatch, found.names)):
        raise ProtocolError(f"{name}: {most} codes for each of {rows} rows were expected, others came; use one version")
    return [_once([found.names[at] for at in own]) for own in places.tolist()]


def _once(codes: Sequence[str]) -> list[str]:
    """Each code once, and empty ones behind in place of the others."""
    found = list(dict.fromkeys(codes))
    return found + [""] * (len(codes) - len(found))
