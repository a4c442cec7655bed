"""A search for the values of options: each *alternative* is trained and measured once, the best one is trained again.

The measurement of an alternative *opens* (discloses) one sum of losses on the held-out rows to the party with labels,
which chooses the smallest. The chosen alternative is also measured with all metrics, from pairs of a score and a label,
and its model is stored. Its metrics are slightly too good, because the choice used the same rows.

All tables are in one process here. `securevfl.organisations.tune` does the same between organisations, and
`securevfl.training.cross_validation` on the columns of the party with labels alone.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from securevfl.data.party import Party, check_parties, register_of
from securevfl.disclosure.counts import RunShape
from securevfl.disclosure.ledger import DisclosureLedger
from securevfl.display import html
from securevfl.errors import DivergenceError
from securevfl.families.run_facts import pooled_run_facts
from securevfl.job import Job
from securevfl.protocols.score_ledger.row_ledger import ScoreLedger
from securevfl.runtime.network import Network
from securevfl.training.model_part import ModelPart
from securevfl.training.search_disclosures import (
    check_search,
    choice_disclosures,
    column_bits,
    column_outputs,
    measured_rows,
    most_disclosing,
)
from securevfl.training.simulate import simulate
from securevfl.training.text_table import format_table
from securevfl.training.tuning_grid import Grid, alternative_jobs, final_job, tuned_job

SEARCH_NOTE = (
    "All alternatives are measured on the same held-out rows. The chosen one is measured on these rows too, so its "
    "metrics are slightly too good."
)


@dataclass(frozen=True)
class Alternative:
    """One alternative of a search.

    Attributes:
        name: the values of its options.
        loss: its mean loss on the measured rows; None at a party that does not learn it.
        bits: the number of bits about columns that measuring it has opened.
        diverged: whether its training diverged, so that it cannot be chosen.
    """

    name: str
    loss: float | None
    bits: int
    diverged: bool = False


@dataclass(frozen=True)
class Tuning:
    """The result of a search.

    Attributes:
        alternatives: the alternatives, in the order of the grid.
        chosen: name of the chosen one.
        job: the chosen alternative's job for the final training, with all metrics.
        part: this party's part of the chosen model.
        rows: number of measured rows.
        bits: number of bits about columns that the chosen model's training opened, in addition to the alternatives'.
        entered: what this party's ledger has counted for the search, as sentences; empty without a ledger.
    """

    alternatives: tuple[Alternative, ...]
    chosen: str
    job: Job
    part: ModelPart
    rows: int
    bits: int
    entered: tuple[str, ...] = ()

    @property
    def opened_bits(self) -> int:
        """Number of bits about columns that the whole search opened."""
        return self.bits + sum(alternative.bits for alternative in self.alternatives)

    @property
    def account(self) -> str:
        """The entries of the search in a party's ledger, in one sentence."""
        entered = f" This party's ledger has entered: {'; '.join(self.entered)}." if self.entered else ""
        return (
            f"Opened and counted: {len(self.alternatives)} sums of losses, one for each alternative, and the "
            f"measurement of the chosen model, on the same {self.rows:,} rows: {len(self.alternatives) + 1} "
            f"measurements and at most {self.opened_bits:,} bits about columns.{entered}"
        )

    @property
    def conclusion(self) -> str:
        """A text that states which alternative was chosen, and why."""
        return f"Chosen: {self.chosen}. {self.account}"

    def __str__(self) -> str:
        """Return the table of alternatives and the choice."""
        return f"{format_table(self._cells())}\n\n{self.conclusion}"

    def _cells(self) -> list[dict[str, str | int | float | None]]:
        return [
            {"alternative": item.name, "loss": item.loss, "opened bits": item.bits, "chosen": self._mark(item)}
            for item in self.alternatives
        ]

    def _mark(self, alternative: Alternative) -> str:
        if alternative.diverged:
            return "diverged"
        return "yes" if alternative.name == self.chosen else ""

    def _repr_html_(self) -> str:
        heads, *_ = cells = self._cells()
        table = html.table(list(heads), [[html.cell_text(value) for value in row.values()] for row in cells])
        return f"{table}<p>{html.escape(self.conclusion)}</p>"

    def plain(self) -> dict[str, Any]:
        """Return the search as lists and dicts that can be written as JSON."""
        return {
            "alternatives": [
                {"name": item.name, "loss": item.loss, "opened_bits": item.bits, "diverged": item.diverged}
                for item in self.alternatives
            ],
            "chosen": self.chosen,
            "job": self.job.to_dict(),
            "metrics": dict(self.part.metrics),
            "measured_rows": self.rows,
            "opened_bits": self.opened_bits,
            "entered": list(self.entered),
            "conclusion": self.conclusion,
        }

    def page(self) -> str:
        """Return the table and the choice as a page of HTML."""
        return html.page("Search", ["<h1>Search</h1>", self._repr_html_(), f"<p class='soft'>{SEARCH_NOTE}</p>"])


def tune(
    job: Job,
    grid: Grid,
    parties: Sequence[Party],
    *,
    network: Network | None = None,
    ledgers: Mapping[str, DisclosureLedger] | None = None,
    on_model: Callable[[str], object] = lambda name: None,
) -> Tuning:
    """Choose values of numeric options by the loss on the held-out rows, on secret shares.

    Each alternative opens one sum of losses. The best one is trained again and measured with all metrics. The ledgers
    are checked first, for all trainings together.

    Args:
        job: the options that all alternatives have in common.
        grid: the values of each option, such as `{"l2": (0.01, 0.1, 1)}`; all combinations are tried.
        parties: the parties, each with its name and its table.
        network: see `simulate`.
        ledgers: see `simulate`.
        on_model: called with the name of each alternative before it is trained.

    Returns:
        The search, with the chosen model at the party with labels.

    Raises:
        ConfigError: the job cannot be tuned, or the grid contains an option or a value that cannot be used.
        LeakageError: all trainings together would disclose too much. Nothing has been sent then.
        DivergenceError: the trainings of all alternatives diverge.
    """
    alternatives = alternative_jobs(job, grid)
    finals = {name: final_job(tuned_job(job), alternative) for name, alternative in alternatives.items()}
    lead, others = check_parties(parties)
    everyone = [lead, *others]
    shapes = {name: pooled_run_facts(final, everyone).shape for name, final in finals.items()}
    largest = most_disclosing(finals, shapes)
    check_search(alternatives, finals, shapes, everyone, ledgers or {})
    rows = measured_rows(finals[largest].schedule(register_of(everyone)), shapes[largest].outputs)
    for party in others:
        if party.name in (ledgers or {}) and party.has_ids and "small_metrics" not in job.accepts:
            scores = ScoreLedger((ledgers or {})[party.name].path)
            scores.check_evaluations(lead.name, party.keys_of(rows), len(alternatives) + 1)
    losses, diverged = dict[str, float](), list[str]()
    for name, alternative in alternatives.items():
        on_model(name)
        try:
            losses[name] = simulate(alternative, everyone, network=network, ledgers=ledgers).metrics["loss"]
        except DivergenceError:
            diverged.append(name)
    chosen = best_alternative(losses)
    if ledgers is not None and lead.name in ledgers:
        search = secrets.token_hex(16)
        ledgers[lead.name].record(lead.register, (search, ""), choice_disclosures(len(alternatives), shapes[chosen]))
    on_model(f"{chosen}, chosen")
    run = simulate(finals[chosen], everyone, network=network, ledgers=ledgers)
    return build_tuning(alternatives, losses, chosen, finals[chosen], run.active, shapes, diverged=diverged)


def best_alternative(losses: Mapping[str, float]) -> str:
    """Return the name of the alternative with the smallest loss; of equal ones the first in the grid.

    Args:
        losses: the losses of the alternatives whose trainings did not diverge.

    Returns:
        The name.

    Raises:
        DivergenceError: no loss is finite.
    """
    finite = {name: loss for name, loss in losses.items() if math.isfinite(loss)}
    if not finite:
        raise DivergenceError(
            "the trainings of all alternatives of this search diverge",
            "list smaller values of lr, or scale the columns",
            code="SVFL-TRAINING-DIVERGED",
        )
    return min(finite, key=lambda name: finite[name])


def build_tuning(
    alternatives: Mapping[str, Job],
    losses: Mapping[str, float],
    chosen: str,
    final: Job,
    part: ModelPart,
    shapes: Mapping[str, RunShape],
    *,
    diverged: Collection[str] = (),
) -> Tuning:
    """Return the result of a search.

    Args:
        alternatives: the job of each alternative.
        losses: the losses of the alternatives; empty at a party that does not learn them.
        chosen: name of the chosen alternative.
        final: its job with all metrics.
        part: this party's part of its model.
        shapes: the public sizes of each alternative's run.
        diverged: names of the alternatives whose trainings diverged.

    Returns:
        The result.
    """
    items = [
        Alternative(name, losses.get(name), column_bits(alternative, shapes[name]), name in diverged)
        for name, alternative in alternatives.items()
    ]
    rows = max(output.rows for output in column_outputs(final, shapes[chosen]) if output.occasion == "evaluation")
    return Tuning(tuple(items), chosen, final, part, rows, column_bits(final, shapes[chosen]))
