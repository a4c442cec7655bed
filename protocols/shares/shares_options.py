"""The options of a job that trains on secret shares.

Forward sums are the model's outputs before a logistic function. The training reads residuals (derivatives of the loss)
from a table over the range of forward sums. Scores and metrics disclose forward sums rounded to levels: equally spaced
values, which a quantizer defines. The party with labels and its partner are the share holders. Before the iterations,
an offline phase computes random material for a chunk of epochs. To *open* a shared value means to disclose it to one
party.
"""

from __future__ import annotations

import math
from typing import ClassVar, Literal, Self

from pydantic import Field, field_validator, model_validator

from securevfl.protocols.engines import Library
from securevfl.protocols.message_protocol import MessageProtocol
from securevfl.protocols.shares.fixed_point import FixedPointEncoding
from securevfl.protocols.shares.quantizer import Quantizer

MIN_COVERED_SUM = 16.0
"""Quantizers can represent at least forward sums up to this absolute value."""

METRIC_BITS = 7
"""Maximum number of bits of a rounded sum from which metrics are computed, if the label in its pair has one bit. If the
label has two bits, the sum has one bit less, so that a pair never has more than eight bits."""

MIN_SCORE_BITS = 4
"""The holder that rounds scores may reduce their number of bits to this, and no further."""


class Shares(MessageProtocol):
    """Training on secret shares, in which weights, forward sums, residuals and gradients stay shared.

    A training discloses only sizes, metrics and agreed scores. The table of the loss covers forward sums up to
    (2^(table_bits - 1) - 1) * step on either side of its centre.
    """

    name: ClassVar[str] = "shares"
    partner: str | None = None
    """The second share holder, in addition to the party with labels. Default: the party with the most columns."""
    table_bits: int = Field(default=6, ge=3, le=8)
    """The derivative of the loss is read from a table of 2^table_bits entries. Default: 6, or 8 for models with a log
    link. If you set a smaller `step` than its default, the table gets more entries, so that it covers the same sums; at
    most 2^8."""
    step: float | None = Field(default=None, gt=0, le=1024)
    """Spacing of table entries, a power of two. Default: 1 for classes, 1/4 for numbers, 1/8 for quantiles,
    1/16 for models with a log link."""
    clip: float = Field(default=8.0, ge=1, le=64)
    """Scaled columns are clipped to [-clip, clip]."""
    chunk: int | None = Field(default=None, ge=1, le=10_000)
    """Number of epochs for which preprocessing is computed at once. Default: few epochs at first, then at most twice
    the rows of the chunk before, 40 epochs and 2 GiB. If it is set, rows out of range are counted after each."""

    metrics: Literal["pairs", "loss"] = "pairs"
    """What the final evaluation opens: "loss" opens one sum of losses; "pairs" also opens one pair of a rounded score
    and a label for each row, in random order, if the loss allows it. The AUC, for example, needs pairs. Labels that are
    counts or amounts are rounded at random to one of four values first; their pairs are opened only if at least 2,000
    rows are measured, and rows have neither weights nor an exposure."""
    metrics_step: float | None = Field(default=None, gt=0, le=1024)
    """Resolution of the sums that metrics are computed from, a power of two. These sums are disclosed once, with labels
    and in a hidden order, and have at most 7 bits (6 for counts and amounts). Default: metrics_range / 64, or
    metrics_range / 32 for counts and amounts. If metrics_range is not set either: 1/8 for classes, counts and amounts,
    and 1/4 of a standard deviation of the labels for other numbers."""
    metrics_range: float | None = Field(default=None, ge=1, le=1024)
    """Range of model outputs that metrics cover: [-range, range]. Outputs beyond 0.75 * range are
    clipped for classes, counts and amounts; for other numbers they wrap around and the party with labels is warned.
    Default: the largest possible range, which is 64 * metrics_step, or 32 * metrics_step for counts and amounts."""

    score_step: float = Field(default=0.5, gt=0, le=1024)
    """Resolution of the scores of new rows, a power of two: the spacing of their levels."""
    score_bits: int | None = Field(default=None, ge=3, le=16)
    """Maximum number of bits of a score. Levels cover the table, and at least sums up to 16; fewer bits make the steps
    coarser. A score beyond 5/8 of the covered range is reported as out of range. Default: as many bits as `score_step`
    needs. Between organisations, the party that rounds the scores (normally the partner) may reduce this to as few as
    4 bits to protect its columns."""
    scores: Literal["levels", "exact", "none"] = "levels"
    """What a request for scores of new rows discloses: scores rounded to levels ("levels"), exact scores ("exact"; each
    party must accept them by the name "exact_scores"), or nothing ("none")."""

    library: Library = "own"
    """Implementation of products with encrypted vectors. "own": this package's arithmetic, which tests compare with
    SEAL. "seal": Microsoft SEAL through tenseal, which is slower, for users who require an established library."""
    open_weights: tuple[str, ...] = ()
    """Parties that receive their weights at the end. Each of them can then predict labels without the others."""

    scores_to: str | None = None
    """The party that receives the scores of new rows. Default: the party with labels."""

    @field_validator("step", "metrics_step", "score_step")
    @classmethod
    def _check_step(cls, value: float | None) -> float | None:
        if value is not None and (math.frexp(value)[0] != 0.5 or not 2.0**-6 <= value <= 4):
            raise ValueError("must be a power of two from 1/64 to 4; choose one of these")
        return value

    @model_validator(mode="after")
    def _check_levels(self) -> Self:
        if self.metrics_step is not None and self._metric_levels(classifies=True).bits > METRIC_BITS:
            raise ValueError(
                f"metrics_range may be at most {2 ** (METRIC_BITS - 1)} times metrics_step, because the sums from "
                f"which metrics are computed have at most {METRIC_BITS} bits; leave one of the two out"
            )
        return self

    @property
    def encrypts(self) -> bool:
        """Whether the training sends ciphertexts: always True, because its offline phase sends encrypted vectors."""
        return True

    @property
    def strength(self) -> str:
        """One line that names the cryptographic assumptions and the security level in bits."""
        return (
            "RLWE ring N=4096 (HomomorphicEncryption.org: 128 bits), computational Diffie-Hellman on Ed25519, "
            "ChaCha20, AES as a correlation-robust hash"
        )

    def step_bits(self, spacing: float) -> int:
        """Return log2 of the spacing of table entries; `spacing` is the loss's default, used if `step` is None."""
        return math.frexp(spacing if self.step is None else self.step)[1] - 1

    def metric_quantizer(self, encoding: FixedPointEncoding, *, classifies: bool, code_bits: int = 1) -> Quantizer:
        """Return the quantizer of the forward sums from which metrics are computed.

        Args:
            encoding: the fixed-point encoding of the sums.
            classifies: whether the model predicts classes.
            code_bits: the bits for the label in a pair, 1 or 2.

        Returns:
            The quantizer.
        """
        return self._metric_levels(classifies=classifies, code_bits=code_bits).within(encoding)

    def pair_bits(self, *, classifies: bool, code_bits: int = 1) -> int:
        """Return an upper bound of the bits of a pair of a score and a label, from which metrics are computed.

        Args:
            classifies: True if the model predicts classes.
            code_bits: the bits for the label, 1 or 2.

        Returns:
            The bits of a score and of the label together.
        """
        return code_bits + self._metric_levels(classifies=classifies, code_bits=code_bits).bits

    def _metric_levels(self, *, classifies: bool, code_bits: int = 1) -> Quantizer:
        """Return the levels to which forward sums are rounded for metrics.

        Their spacing is fixed. Levels that follow the scores, such as quantiles, would have to be disclosed first.
        """
        bits, step, largest = METRIC_BITS + 1 - code_bits, self.metrics_step, self.metrics_range
        if largest is None:
            if step is None:
                step = 2.0**-3 if classifies or code_bits > 1 else 2.0**-2
            return Quantizer.covering(step, 2 ** (bits - 1) * step)
        finest = 2.0 ** (math.ceil(math.log2(largest)) - bits + 1)
        return Quantizer.covering(finest if step is None else max(step, finest), largest)

    def score_quantizer(self, spacing: float) -> Quantizer:
        """Return the quantizer of the scores of new rows.

        It covers the range of the table, and at least forward sums up to 16.

        Args:
            spacing: the default spacing of table entries for the loss, as in `step_bits`.

        Returns:
            The quantizer.
        """
        log_reach = max(self.table_bits - 1 + self.step_bits(spacing), int(math.log2(MIN_COVERED_SUM)))
        log_step = math.frexp(self.score_step)[1] - 1
        bits = max(3, 1 + log_reach - log_step)
        bits = bits if self.score_bits is None else min(bits, self.score_bits)
        return Quantizer(1 + log_reach - bits, bits)

    def permitted_quantizer(self, spacing: float, max_bits: float) -> Quantizer:
        """Return the quantizer of a party that rounds scores and wants to disclose at most `max_bits` bits of each.

        It is the quantizer of the job if the job fixes the number of bits, or if `max_bits` is less than
        `MIN_SCORE_BITS`, too few to be useful.

        Args:
            spacing: the default spacing of table entries for the loss, as in `step_bits`.
            max_bits: the largest number of bits of a score that does not reveal too much about the party's columns.

        Returns:
            The quantizer.
        """
        quantizer = self.score_quantizer(spacing)
        if self.score_bits is not None or not MIN_SCORE_BITS <= max_bits < quantizer.bits:
            return quantizer
        bits = int(max_bits)
        return Quantizer(quantizer.step + quantizer.bits - bits, bits)
