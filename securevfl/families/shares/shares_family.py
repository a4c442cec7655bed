"""Training on additive secret shares: no party ever sees weights, outputs, residuals or gradients of single rows.

The two *share holders* are the active party, which has the labels, and its *partner*, one of the passive parties.
1. Offline phase: for a chunk of iterations, the share holders compute the products of random vectors with columns, and
   the oblivious transfers for lookup tables.
2. Iteration: one round trip between the two share holders (three messages in a row with more parties). A lookup table
   of the loss converts shares of the output of a row to shares of its residual.
3. Scores: the active party, or the party that the job names, receives scores of agreed rows.

All parties learn sizes; the active party also learns metrics and the agreed scores. `protocols.shares.iteration`
describes the messages, `shares_plan` the optimizers that fit, and `shares_participant` one party. A consent sheet
states what a party sends and learns. The audit runs a job on test data and compares the values that parties receive
with the declared ones. To open a value means to disclose it to a party.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

from securevfl.base.arrays import Floats
from securevfl.base.roles import ACTIVE, PARTNER, PASSIVE, Role, Roles
from securevfl.crypto.share_ring import ShareRing
from securevfl.data.schedule import Schedule
from securevfl.disclosure.counts import Disclosure, RunShape
from securevfl.disclosure.leaks import Leak
from securevfl.disclosure.outputs import Output
from securevfl.errors import PartiesError
from securevfl.families.facts import RunFacts
from securevfl.families.family import Family
from securevfl.families.family_types import J, MessageProtocol, SheetStatement
from securevfl.families.participant import Participant
from securevfl.families.run_files import RunFile
from securevfl.families.shares.shares_estimates import prepared_bytes, preprocessing_bytes, resource_lines
from securevfl.families.shares.shares_facts import SharesFacts
from securevfl.families.shares.shares_inputs import INPUTS_FILE
from securevfl.families.shares.shares_job import SharesJob, check_optimizer, opens_pairs
from securevfl.families.shares.shares_leaks import metric_leaks, score_leaks, weight_leaks
from securevfl.families.shares.shares_outputs import (
    EXACT_SCORES,
    LARGE_SCORES,
    OPENED_WEIGHTS,
    SMALL_METRICS,
    count_weights,
    disclosed_score_bits,
    partner_of,
    rounding_party,
    shares_outputs,
)
from securevfl.families.shares.shares_participant import SharesParticipant, count_trained_rows
from securevfl.families.shares.shares_plan import Plan, make_plan, sum_rounding
from securevfl.families.shares.shares_statements import (
    PAIRS_TEXT,
    SCORE_PARTS_TEXT,
    column_share_text,
    interactions_text,
    opened_text,
    score_steps_text,
    scores_texts,
    stop_decisions_text,
    table_error,
    weights_text,
)
from securevfl.families.state import State
from securevfl.models.linear import Logistic, Poisson
from securevfl.models.rounding_error import SumRounding
from securevfl.models.trees import Trees
from securevfl.optim.fedbcd import FedSGD
from securevfl.options import JobOptions
from securevfl.protocols.declarations import MessageDeclaration
from securevfl.protocols.party_context import PartyContext
from securevfl.protocols.protocol_options import Protocol
from securevfl.protocols.score_ledger.row_ledger import ScoreLedger
from securevfl.protocols.shares import (
    chunk_agreement,
    iteration,
    offline_phase,
    opened_loss,
    opened_scores,
    opened_weights,
    pair_columns,
    pair_sums,
    range_count,
    score_label_pairs,
)
from securevfl.protocols.shares.pair_columns import PAIR_FILE
from securevfl.protocols.shares.shares_options import Shares

MIN_REACH = 1.0
"""A lookup table must cover outputs up to this distance from its centre. With a smaller range, counts of rows outside
the range could not detect that it is too small."""


class SharesFamily(Family[SharesJob]):
    """Training on shares at two share holders, for linear models whose residual depends on one output."""

    name: ClassVar[str] = "shares"
    run_files: ClassVar[tuple[RunFile, ...]] = (
        RunFile(r"chunk-\d+\.(?:ready|bound|spent)", "random masks"),
        RunFile(re.escape(PAIR_FILE), "random shares of products of two parties' components"),
        RunFile("lock", "no data; the file is a lock"),
        RunFile(
            re.escape(INPUTS_FILE),
            "inputs of trees: cuts and limits of columns, numbers of rows in leaves and, at the party with labels, "
            "boosted trees that were trained on its labels",
        ),
    )
    options: ClassVar[type[JobOptions]] = SharesJob
    supports_row_weights: ClassVar[bool] = True
    trains_pairs: ClassVar[bool] = True
    reveals_only_outputs: ClassVar[bool] = True
    admits_rows_itself: ClassVar[bool] = True
    leak_kinds = (*Family.leak_kinds, SMALL_METRICS, LARGE_SCORES, EXACT_SCORES, OPENED_WEIGHTS)

    def check_job(self, job: JobOptions) -> None:
        """Check that model, loss, optimizer and stopping rules of the job work on secret shares."""
        if job.protocol.shares is None:
            if job.model.pair_rank:
                raise ValueError(
                    "model.pairs: products of two parties' components exist on shares only; use protocol = "
                    '"shares", or leave pairs out'
                )
            if job.model.family == self.name:
                raise ValueError(
                    f"protocol.shares: a {job.model.name} model can only be trained on shares, because a residual "
                    f"would disclose an equation about labels for each leaf; add a section [protocol.shares]"
                )
            raise ValueError(
                f"protocol.shares: optimizer {job.optimizer.name} trains only on shares; use protocol = "
                '"shares", or the optimizer "block_newton", which is the nearest one for encrypted or open residuals'
            )
        if not job.model.loss.elementwise:
            raise ValueError(
                f"model: loss {job.model.loss.name} needs the outputs of all classes for each residual, but lookup "
                f"tables have one output; use one_vs_rest"
            )
        check_optimizer(job)
        largest_input = 0.0 if not isinstance(job.model, Trees) else job.model.reach
        if job.protocol.shares.clip < largest_input:
            raise ValueError(
                f"protocol.shares.clip: must be at least {largest_input:g}, because inputs of a {job.model.name} model "
                "can be as large; leave clip out, or lower model.linear"
            )
        reach = (2 ** (job.protocol.shares.table_bits - 1) - 1) * 2.0 ** job.protocol.shares.step_bits(
            job.model.loss.spacing
        )
        if reach < MIN_REACH:
            raise ValueError(
                f"protocol.shares.table_bits: the lookup table with this table_bits and step covers model outputs up "
                f"to {reach:g} only, and must cover at least {MIN_REACH:g}; increase one of the two"
            )
        if job.reshuffle:
            raise ValueError(
                "reshuffle: training on shares generates random material for fixed batches in advance; set reshuffle "
                "= false"
            )
        for key, stop in (("target", job.target), ("patience", job.patience)):
            if stop is not None and stop.metric != "loss":
                raise ValueError(
                    f'{key}.metric: must be "loss" under shares, where evaluations during the training open only the '
                    "sum of the losses, and the other metrics are measured once, for the final model; choose loss"
                )

    def accepts_role(self, role: Role, *, leads: bool) -> bool:
        """Return whether a party may have a role: the leading party must be active, all others passive."""
        return role == (ACTIVE if leads else PASSIVE)

    def complete_roles(self, job: SharesJob, roles: Roles, columns: Mapping[str, int]) -> Roles:
        """Assign the role of partner to the passive party that the job names; by default the one with most columns.

        Args:
            job: the options of the training, on which all parties agree (`securevfl.job.Job`).
            roles: the roles that the parties have by their tables and labels.
            columns: number of columns of each party; empty if unknown.

        Returns:
            The roles with a partner.

        Raises:
            PartiesError: if the job names parties that are not in the run.
        """
        passives, chosen = roles.with_role(PASSIVE), job.protocol.shares.partner
        if PARTNER in roles.kinds:
            return roles
        if chosen is not None and chosen not in passives and columns:
            raise PartiesError(
                f"protocol.shares.partner names {chosen}, which is not a passive party of this run",
                f"name one of {', '.join(passives)}",
                code="SVFL-PARTIES-NAME",
                party=chosen,
            )
        requester = job.protocol.shares.scores_to
        named_parties = {
            "open_weights": job.protocol.shares.open_weights,
            "scores_to": (requester,) if requester else (),
        }
        for key, names in named_parties.items():
            if columns and (unknown := sorted(set(names) - set(roles.parties))):
                raise PartiesError(
                    f"protocol.shares.{key} names {', '.join(unknown)}, which is not in this run",
                    f"name some of {', '.join(roles.parties)}",
                    code="SVFL-PARTIES-NAME",
                )
        partner = partner_of(job, passives, columns)
        return Roles.of((name, PARTNER if name == partner else role) for name, role in roles.cast)

    def score_requester(self, job: SharesJob, lead: str) -> str:
        """Return the party that receives scores."""
        return job.protocol.shares.scores_to or lead

    def count_trained_rows(self, state: State, score_ledger: ScoreLedger, ids: Iterable[bytes]) -> int:
        """Return how many of these rows will be refused because the model was trained on them."""
        return count_trained_rows(state, score_ledger, ids)

    def score_bits(self, job: SharesJob, shape: RunShape | None = None) -> int:
        """Return the number of bits to which a score of a new row is rounded."""
        options = job.protocol.shares
        if options.scores == "levels":
            if shape is not None:
                return disclosed_score_bits(job, shape, rounding_party(job, shape))
            return options.score_quantizer(job.model.loss.spacing).bits
        return 0 if options.scores == "none" else super().score_bits(job)

    def column_clip(self, job: SharesJob) -> float | None:
        """Return the value at which scaled columns are clipped, if the model scales them."""
        return job.protocol.shares.clip if job.model.scales else None

    def example_jobs(self) -> dict[str, dict[str, Any]]:
        """Return jobs for tests, by name: with small chunks, opened weights, counts, trees, and scores for a peer."""
        base = {"model": Logistic(), "optimizer": FedSGD(lr=0.3)}
        counts = {"model": Poisson(), "optimizer": FedSGD(lr=0.03), "protocol": Protocol(shares=Shares())}
        trees = {"model": Trees(trees=2, depth=2), "protocol": Protocol(shares=Shares()), "batch_size": "all"}
        return {
            "shares": base | {"protocol": Protocol(shares=Shares(chunk=1))},
            "shares, weights opened": base | {"protocol": Protocol(shares=Shares(open_weights=("shop",)))},
            "shares, counts": counts,
            "shares, trees": trees | {"epochs": 10},
            "shares, pairs": {"model": Logistic(pairs=2), "protocol": Protocol(shares=Shares())}
            | {"batch_size": "all", "epochs": 10},
            "shares, scores to another": base | {"protocol": Protocol(shares=Shares(scores_to="shop"))},
        }

    def sum_rounding(self, job: SharesJob, rows: int, parties: int) -> SumRounding | None:
        """Return the size of the random error that lookup tables add to the model outputs."""
        return sum_rounding(job)

    def declarations(self, job: SharesJob, roles: Roles) -> list[MessageDeclaration]:
        """Declare who sends which message to whom, and what it reveals, in all phases of the training."""
        requester, has_pairs = self.score_requester(job, roles.lead), job.model.pair_rank > 0
        messages = [
            *chunk_agreement.declares(),
            *offline_phase.declares(),
            *iteration.declares(),
            *opened_loss.declares(),
            *(score_label_pairs.declares() if opens_pairs(job) else ()),
            *range_count.declares_counts(),
            *opened_scores.declares(roles.role(requester) if requester in roles.parties else PASSIVE),
            *(opened_weights.declares() if job.protocol.shares.open_weights else ()),
            *((*iteration.declares_pairs(), *pair_columns.declares(), *pair_sums.declares()) if has_pairs else ()),
        ]
        return [item for item in dict.fromkeys(messages) if roles.may_send(item.sender, item.receiver)]

    def outputs(self, job: SharesJob, shape: RunShape) -> list[Output]:
        """List the outputs of a run: sums of losses, (score, label) pairs, out-of-range counts, opened weights."""
        return shares_outputs(job, shape)

    def leaks(
        self, job: SharesJob, shape: RunShape, outputs: Sequence[Output], before: Sequence[Disclosure] = ()
    ) -> list[Leak]:
        """List the disclosures by opened weights, metrics and scores that a job must accept by name."""
        return [
            *weight_leaks(outputs, shape, before),
            *metric_leaks(outputs, shape, before),
            *score_leaks(job, shape, rounding_party(job, shape)),
        ]

    def message_protocols(self, job: SharesJob, roles: Roles) -> list[MessageProtocol]:
        """Return no protocols: the audit checks a training on shares as a whole."""
        return []

    def title(self, job: SharesJob, roles: Roles) -> str:
        """Return a title that names secret sharing."""
        return "secret shares"

    def strength(self, job: SharesJob) -> str:
        """Return one line that names the security assumptions and the accuracy of lookup tables."""
        options, loss = job.protocol.shares, job.model.loss
        step = 2.0 ** options.step_bits(loss.spacing)
        reach = (2 ** (options.table_bits - 1) - 1) * step
        return (
            f"{options.strength}; lookup tables of residuals have steps of {step:g} and reach {reach:g} to either side "
            f"of each row's centre; their error near 0 is at most {table_error(loss, step):.2g}"
        )

    def common_statements(self, job: SharesJob, roles: Roles, facts: RunFacts | None) -> dict[str, str]:
        """Return what secret shares are, how many values are opened, and which values stay shared."""
        (partner, *_) = roles.with_role(PARTNER) or ("its partner",)
        opens = bool(job.protocol.shares.open_weights)
        weight = "any weight that the job does not open" if opens else "any weight of the model"
        statements = {
            "shares": f"each number of the training is split into two parts, one for {roles.lead} and one for "
            f"{partner}; each part alone is a random number",
            "nobody": "Nobody learns the prediction error of any row, which score belongs to which measured row, or "
            f"{weight}. Each party has at most one of the two parts described under shares, and this part alone is a "
            "random number.",
        }
        if text := score_steps_text(job, None if facts is None else facts.shape):
            statements["steps"] = text
        return statements if facts is None else statements | {"openings": opened_text(facts)}

    def plan(self, job: SharesJob, schedule: Schedule, shape: RunShape) -> Plan:
        """Compute the coefficients and number formats of the training."""
        rows = max(map(len, schedule.partition(0)))
        inputs = sum(count_weights(job, shape, name) // shape.outputs for name in shape.columns)
        return make_plan(job, rows=rows, batches=schedule.batches, parties=len(shape.columns), inputs=inputs)

    def resource_estimates(self, job: SharesJob, facts: RunFacts) -> list[str]:
        """Estimate time, traffic, memory and disk of the run."""
        return resource_lines(job, facts)

    def stored_bytes(self, job: SharesJob, facts: RunFacts, *, all_at_once: bool = False) -> int:
        """Estimate the bytes of preprocessing on disk at a time."""
        return prepared_bytes(job, facts) if all_at_once else preprocessing_bytes(job, facts)

    def statements(self, job: SharesJob, roles: Roles, party: str, facts: RunFacts | None) -> list[SheetStatement]:
        """Return what a party learns from weights, scores and metrics, for its consent sheet."""
        options, requester = job.protocol.shares, self.score_requester(job, roles.lead)
        statements = []
        if party in options.open_weights:
            statements.append(("learns", weights_text(party, facts)))
        if roles.role(party) != ACTIVE:
            statements += [("learns", text)] if (text := stop_decisions_text(job)) else []
        elif facts is None:
            statements.append(("learns", PAIRS_TEXT))
        if requester in options.open_weights:
            statements.append(("scores", SCORE_PARTS_TEXT.format(asker=requester)))
        if party == requester and options.scores != "none":
            texts = scores_texts(job, None if facts is None else facts.shape, party)
            statements += [("later", text) for text in texts]
        holders = roles.lead, *roles.with_role(PARTNER)
        # a requester that is no share holder has no components, so it cannot choose what a score shows
        chooses = requester in holders and party in holders and party != requester
        if job.model.pair_rank and options.scores != "none" and chooses:
            statements.append(("scores", interactions_text(job, roles, party, facts)))
        return statements

    def gain_of_deviation(self, job: SharesJob, roles: Roles, party: str, facts: RunFacts) -> str:
        """Return what the active party could learn from evaluations with a changed program, for its consent sheet."""
        return column_share_text(job, facts, party) if roles.role(party) == ACTIVE else ""

    def coalitions(self, job: SharesJob, roles: Roles) -> str:
        """Return one line that states that only the two share holders together can reconstruct the shared values."""
        partner = roles.with_role(PARTNER) or ("its partner",)
        others = [name for name in roles.parties if name not in (roles.lead, partner[0])]
        about_others = (
            f" Of {' and '.join(others)}, they could compute the contribution to the score of each row. Other parties "
            "that put their parts together learn only what each of them learns in any case."
        )
        return (
            f"If {roles.lead} and {partner[0]} put their parts together, they could compute "
            f"{'their weights' if others else 'the weights of the model'}, and for each row its score, its prediction "
            f"error and so its label.{about_others if others else ''}"
        )

    def participant(self, job: SharesJob, context: PartyContext, columns: int, state: State | None) -> Participant:
        """Create the object that runs one party's side of the training."""
        return SharesParticipant(job, context, columns, state)

    def ideal_job(self, job: J) -> J:
        """Return the job for the audit's ideal run, in which messages disclose only declared outputs.

        It is the same job, because its messages disclose nothing else.
        """
        return job

    def final_weights(self, job: SharesJob, state: State, parties: int) -> Floats:
        """Return the party's weights if the job opens them to it; otherwise its share of them, as numbers."""
        if "theta" in state:
            return super().final_weights(job, state, parties)
        plan = SharesFacts.restore(job, state["sizes"], parties).plan
        words = plan.rule.result(state["own"], state["visits"])
        return plan.numbers.decode_weights(ShareRing(plan.numbers.bits).reduce(words))
