"""The facts of one training on secret shares: sizes that its stored states contain, and values that follow from them.

A *rollback* returns the training to the model of an earlier iteration. The *plan* contains the coefficients of the
updates and the number format (`securevfl.families.shares.shares_plan`). A *chunk* is a number of epochs whose random
material is generated at once. The share holders are the party with labels and its partner.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from securevfl.families.shares.chunk_division import chunk_ends
from securevfl.families.shares.shares_job import SharesJob
from securevfl.families.shares.shares_plan import Plan, Rollbacks, make_plan, pair_params
from securevfl.protocols.shares.pair_weights import PairParams
from securevfl.protocols.shares.shares_params import SharesParams, rows_per_block


@dataclass(frozen=True, eq=False)
class SharesFacts:
    """The facts of one training on shares.

    Attributes:
        job: the options of the training, on which all parties agree (`securevfl.job.Job`).
        parties: number of parties in the training.
        columns: for each party, the number of its inputs.
        rows: number of rows of the largest batch.
        batches: number of batches of an epoch.
        trained_rows: number of training rows.
        has_ids: whether the rows of the table have ids.
        information_bits: the number of bits of information in one row of this party's columns (estimated entropy).
        rollbacks: for each rollback, the iteration after which it took place, and the iteration that it returned to.
        first_plan: the plan of the training before any rollback, if it is already known.
        components: the numbers of components of the active party and of its partner, if the model has pairs.
        pair_numbers: the number of bits of the ring of pairs and the integer for a coefficient of 1, if they come from
            a stored state: another version of this program may choose others for the same job.
    """

    job: SharesJob
    parties: int
    columns: Mapping[str, int]
    rows: int
    batches: int
    trained_rows: int
    has_ids: bool
    information_bits: float
    rollbacks: Rollbacks = ()
    first_plan: Plan | None = None
    components: tuple[int, int] | None = None
    pair_numbers: tuple[int, float] | None = None

    @classmethod
    def restore(cls, job: SharesJob, stored: Mapping[str, Any], parties: int) -> SharesFacts:
        """Restore the facts of a training from a stored state, which contains the dict that `plain` returned."""
        numbers = stored.get("pair_numbers")
        return cls(
            job,
            parties,
            stored["columns"],
            stored["rows"],
            stored["batches"],
            stored["trained_rows"],
            stored["has_ids"],
            float(stored["information_bits"]),
            tuple((iteration, target) for iteration, target in stored["rollbacks"]),
            components=(int(components[0]), int(components[1])) if (components := stored.get("components")) else None,
            pair_numbers=None if numbers is None else (int(numbers[0]), float(numbers[1])),
        )

    def plain(self) -> dict[str, Any]:
        """Return the facts as a dict for a stored state; the job is not in it."""
        pairs = self.pair_params
        return {
            "columns": dict(self.columns),
            "rows": self.rows,
            "batches": self.batches,
            "trained_rows": self.trained_rows,
            "has_ids": self.has_ids,
            "information_bits": self.information_bits,
            "rollbacks": [list(rollback) for rollback in self.rollbacks],
        } | (
            {}
            if pairs is None
            else {"components": [pairs.active, pairs.partner], "pair_numbers": [pairs.bits, pairs.scale]}
        )

    def rolled_back(self, iteration: int, target: int) -> SharesFacts:
        """Return a copy of the facts that lists one more rollback, from one iteration to an earlier one."""
        return replace(self, rollbacks=(*self.rollbacks, (iteration, target)))

    @cached_property
    def plan(self) -> Plan:
        """The coefficients and the number format of the training, computed once."""
        if self.first_plan is not None and not self.rollbacks:
            return self.first_plan
        return make_plan(
            self.job,
            rows=self.rows,
            batches=self.batches,
            parties=self.parties,
            inputs=self.inputs,
            rollbacks=self.rollbacks,
        )

    @cached_property
    def pair_params(self) -> PairParams | None:
        """The parameters of products of the share holders' components; None if the model has none."""
        if self.components is None:
            return None
        params = pair_params(self.job, self.plan, self.components, self.trained_rows)
        if self.pair_numbers is None:
            return params
        bits, scale = self.pair_numbers
        return replace(params, bits=bits, shift=self.plan.numbers.bits - bits, scale=scale)

    @property
    def inputs(self) -> int:
        """The number of inputs of all parties together, with the intercept."""
        return sum(self.columns.values())

    def chunk_ends(self, outputs: int) -> tuple[int, ...]:
        """Return for each chunk the number of the epoch after its last one; `outputs` is that of a row."""
        return chunk_ends(self.job, self.trained_rows, outputs)

    def params(self, batch_rows: tuple[int, ...], *, partner: str, active: str, outputs: int) -> SharesParams:
        """Return the agreed parameters of the training for batches of these sizes.

        Args:
            batch_rows: number of rows of each batch.
            partner: the share holder without labels.
            active: the share holder with labels.
            outputs: c, number of outputs of a row.

        Returns:
            The parameters on which all parties agree (`securevfl.protocols.shares.shares_params`).
        """
        plan = self.plan
        return SharesParams(
            plan.numbers,
            batch_rows,
            dict(self.columns),
            partner,
            plan.rule,
            outputs,
            len(self.chunk_ends(outputs)),
            active,
            block=rows_per_block(max(batch_rows)),
            pairs=self.pair_params,
            has_nested_batches=self.batches == 1,
        )
