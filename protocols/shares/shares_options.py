"""What a job says of a training on shares."""

from __future__ import annotations

import math
from typing import ClassVar, Literal

from pydantic import Field, field_validator

from securevfl.protocols.engines import Library
from securevfl.protocols.message_protocol import MessageProtocol
from securevfl.protocols.shares.fixed_point import FixedPointEncoding
from securevfl.protocols.shares.quantizer import Quantizer

MIN_COVERED_SUM = 16.0  # sums that levels tell, on either side
MIN_SCORE_BITS = 4  # of a score that is told coarser than the job asks


class Shares(MessageProtocol):
    """Weights, sums, residuals and gradients stay shared, so that a run opens sizes and the agreed scores alone.

    The table of the loss covers sums up to (2^(table_bits - 1) - 1) step on either side.
    """

    name: ClassVar[str] = "shares"
    partner: str | None = None
    """Who holds shares beside the party with labels; the party with the most columns if left out."""
    table_bits: int = Field(default=6, ge=3, le=8)
    """The loss is read from a table of 2^table_bits entries."""
    step: float | None = Field(default=None, gt=0)
    """The distance of two entries, a power of two; if left out 1 for classes, 1/4 for numbers, 1/8 for a quantile."""
    clip: float = Field(default=8.0, ge=1, le=64)
    """Scaled columns are cut off at this size."""
    chunk: int | None = Field(default=None, ge=1)
    """How many epochs work is done ahead for at a time; if left out 32, or 16 where the work ahead of 32 would take
    more than half a GiB."""

    metrics_step: float | None = Field(default=None, gt=0)
    """How finely sums are told for metrics, with labels and in a hidden order, a power of two; 1/16 for classes and
    1/64 of a deviation for numbers if left out."""
    metrics_range: float | None = Field(default=None, ge=1, le=1024)
    """Metrics are of sums up to this size on either side, beyond three fourths of which those of classes count as
    there; others wrap, and the party with labels is warned. 16, or what the table covers if that is more, if left
    out."""

    score_step: float = Field(default=0.5, gt=0)
    """How finely scores of new rows are told, a power of two: they are levels that lie so far apart."""
    score_bits: int | None = Field(default=None, ge=3, le=16)
    """How many bits a score has at most. Levels cover the table, and sums of 16 at least, so fewer bits put them
    further apart; of a sum beyond 5/8 of that it is told that it is beyond. If left out as many as score_step asks for;
    between organisations fewer, but no fewer than 4, where whoever rounds the scores (the partner, as a rule) has
    columns that allow no more."""
    scores: Literal["levels", "exact", "none"] = "levels"
    """What is told of new rows: levels; exact sums, which must be accepted by name; or nothing."""

    library: Library = "own"
    """Whose code multiplies encrypted vectors: "own" is this package's arithmetic in residues, which tests hold against
    SEAL; "seal" is SEAL through tenseal, slower, for those whose rules ask for a library that others have read."""
    open_weights: tuple[str, ...] = ()
    """Parties that are told their own weights at the end; each can then rank the labels by itself."""

    scores_to: str | None = None
    """Who is told the scores of new rows; the party with labels if left out."""

    @field_validator("step", "metrics_step", "score_step")
    @classmethod
    def _check_step(cls, value: float | None) -> float | None:
        if value is not None and (math.frexp(value)[0] != 0.5 or not 2.0**-6 <= value <= 4):
            raise ValueError("must be a power of two from 1/64 to 4; choose one of these")
        return value

    @property
    def encrypts(self) -> bool:
        return True

    @property
    def strength(self) -> str:
        return (
            "RLWE ring N=4096 (HomomorphicEncryption.org: 128 bits), computational Diffie-Hellman on Ed25519, "
            "ChaCha20, AES as a correlation-robust hash"
        )

    def step_bits(self, spacing: float) -> int:
        """log2 of the distance between two entries, of a loss with this spacing (`securevfl.models.loss.Loss`)."""
        return math.frexp(spacing if self.step is None else self.step)[1] - 1

    def metric_quantizer(self, numbers: FixedPointEncoding, *, classifies: bool) -> Quantizer:
        """Return the levels that metrics are taken of."""
        step = self.metrics_step if self.metrics_step is not None else 2.0**-4 if classifies else 2.0**-6
        covered = max(MIN_COVERED_SUM, 2.0 ** (numbers.table_bits - 1 + numbers.step))
        return Quantizer.over(numbers, step, covered if self.metrics_range is None else self.metrics_range)

    def score_quantizer(self, spacing: float) -> Quantizer:
        """Return the levels that are told of new rows, over all sums that the table covers and 16 at least; spacing: as
        `step_bits`."""
        reach = max(self.table_bits - 1 + self.step_bits(spacing), int(math.log2(MIN_COVERED_SUM)))  # log2
        finest = math.frexp(self.score_step)[1] - 1
        bits = max(3, 1 + reach - finest)
        bits = bits if self.score_bits is None else min(bits, self.score_bits)
        return Quantizer(1 + reach - bits, bits)

    def permitted_quantizer(self, spacing: float, most: float) -> Quantizer:
        """Return the levels that whoever rounds tells, where its columns allow `most` bits of a score: those of the job
        if that names their bits or they are too few to be of use."""
        levels = self.score_quantizer(spacing)
        if self.score_bits is not None or not MIN_SCORE_BITS <= most < levels.bits:
            return levels
        bits = int(most)
        return Quantizer(levels.step + levels.bits - bits, bits)
