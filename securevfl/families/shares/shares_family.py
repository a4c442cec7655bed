"""Training on additive shares: weights, forward sums, residuals and gradients are seen by nobody, first to last.

    ahead     every product of a stretch of visits, of random vectors with columns, and transfers for its tables
    a visit   one round trip of the two holders of shares, the active party and its partner (three messages in a row
              with more parties): the residual comes out of a table of the loss, in shares
    scores    of rows that were agreed on, to the active party

Who learns what: sizes, and the agreed scores at the active party. See `securevfl.protocols.shares.iteration` and its
siblings for the messages, `securevfl.families.shares.shares_plan` for which optimizers fit,
`securevfl.families.shares.shares_participant` for a party.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from securevfl.base.arrays import Floats
from securevfl.base.roles import ACTIVE, PARTNER, PASSIVE, Role, Roles
from securevfl.crypto.share_ring import ShareRing
from securevfl.disclosure.counts import Disclosure, RunShape
from securevfl.disclosure.leaks import Leak
from securevfl.errors import PartiesError
from securevfl.families.evaluations import evaluation_rows
from securevfl.families.family import Family, J, MessageProtocol, SheetStatement
from securevfl.families.participant import Participant
from securevfl.families.run_facts import RunFacts
from securevfl.families.shares.shares_disclosures import (
    LARGE_SCORES,
    count_chunks,
    count_measurements,
    disclosed_score_bits,
    measured_rows,
    partner_of,
    rounding_party,
    weight_disclosures,
)
from securevfl.families.shares.shares_estimates import resource_lines
from securevfl.families.shares.shares_facts import SharesFacts
from securevfl.families.shares.shares_job import SharesJob, check_optimizer
from securevfl.families.shares.shares_leaks import (
    EXACT_SCORES,
    OPENED_WEIGHTS,
    SMALL_METRICS,
    metric_leaks,
    score_leaks,
    weight_leaks,
)
from securevfl.families.shares.shares_participant import SharesParticipant
from securevfl.families.shares.shares_plan import sum_rounding
from securevfl.families.shares.shares_statements import (
    SCORE_PARTS_TEXT,
    quality_text,
    scores_text,
    stop_decisions_text,
    table_error,
    weights_text,
)
from securevfl.families.state import State
from securevfl.models import pair_metrics
from securevfl.models.linear import Logistic, Poisson
from securevfl.models.rounding_error import SumRounding
from securevfl.models.trees import Trees
from securevfl.optim.fedbcd import FedSGD
from securevfl.options import JobOptions
from securevfl.protocols.declarations import MessageDeclaration
from securevfl.protocols.party_context import PartyContext
from securevfl.protocols.protocol_options import Protocol
from securevfl.protocols.shares import (
    chunk_agreement,
    iteration,
    offline_phase,
    opened_loss,
    opened_scores,
    opened_weights,
    range_count,
    score_label_pairs,
)
from securevfl.protocols.shares.shares_options import Shares


class SharesFamily(Family[SharesJob]):
    """Shares at two holders, for linear models whose loss is a table of one sum."""

    name: ClassVar[str] = "shares"
    options: ClassVar[type[JobOptions]] = SharesJob
    supports_row_weights: ClassVar[bool] = True
    reveals_only_outputs: ClassVar[bool] = True
    admits_rows_itself: ClassVar[bool] = True
    leak_kinds = (*Family.leak_kinds, SMALL_METRICS, LARGE_SCORES, EXACT_SCORES, OPENED_WEIGHTS)

    def check_job(self, job: JobOptions) -> None:
        if job.protocol.shares is None:
            if job.model.family == self.name:
                raise ValueError(
                    f"a {job.model.name} model trains on shares alone, as a residual, open or sealed, would tell each "
                    "party an equation about labels for each leaf; set protocol.shares, as in [protocol.shares]"
                )
            raise ValueError(
                f"optimizer {job.optimizer.name} trains on shares; set protocol.shares, as in [protocol.shares]"
            )
        if not job.model.loss.elementwise:
            raise ValueError(
                f"loss {job.model.loss.name} mixes the sums of all classes in each residual, which no table of one sum "
                "gives; use one_vs_rest"
            )
        check_optimizer(job)
        reach = 0.0 if not isinstance(job.model, Trees) else job.model.reach
        if job.protocol.shares.clip < reach:
            raise ValueError(
                f"protocol.shares.clip: {reach:g} or more was expected, as columns of a {job.model.name} model "
                "reach so far; leave it out, or lower model.linear"
            )
        if job.reshuffle:
            raise ValueError("shares prepare batches ahead, which stay the same; set reshuffle = false")
        told = pair_metrics.pair_metric_names(job.model.loss)
        for key, stop in (("target", job.target), ("patience", job.patience)):
            if stop is not None and stop.metric not in told:
                raise ValueError(
                    f"{key}.metric must be one of {', '.join(told)} under shares, where no row's scores of several "
                    "classes come together; choose one of these"
                )

    def accepts_role(self, role: Role, *, leads: bool) -> bool:
        return role == (ACTIVE if leads else PASSIVE)

    def complete_roles(self, job: SharesJob, roles: Roles, columns: Mapping[str, int]) -> Roles:
        """Assign the role of partner to the passive party that the job names, or else to the one with the most columns,
        the first of several."""
        passives, chosen = roles.with_role(PASSIVE), job.protocol.shares.partner
        if PARTNER in roles.kinds:
            return roles
        if chosen is not None and chosen not in passives and columns:
            raise PartiesError(f"protocol.shares.partner: one of {', '.join(passives)} was expected; name one of these")
        asks = job.protocol.shares.scores_to
        for key, named in (("open_weights", job.protocol.shares.open_weights), ("scores_to", (asks,) if asks else ())):
            if columns and (strange := set(named) - set(roles.parties)):
                raise PartiesError(
                    f"protocol.shares.{key}: some of {', '.join(roles.parties)} were expected, {', '.join(strange)} "
                    "came; correct the names"
                )
        partner = partner_of(job, passives, columns)
        return Roles.of((name, PARTNER if name == partner else role) for name, role in roles.cast)

    def score_requester(self, job: SharesJob, lead: str) -> str:
        return job.protocol.shares.scores_to or lead

    def score_bits(self, job: SharesJob, sizes: RunShape | None = None) -> int:
        options = job.protocol.shares
        if options.scores == "levels":
            if sizes is not None:
                return disclosed_score_bits(job, sizes, rounding_party(job, sizes))
            return options.score_quantizer(job.model.loss.spacing).bits
        return 0 if options.scores == "none" else super().score_bits(job)

    def column_clip(self, job: SharesJob) -> float | None:
        return job.protocol.shares.clip if job.model.scales else None

    def example_jobs(self) -> dict[str, dict[str, Any]]:
        own = {"model": Logistic(), "optimizer": FedSGD(lr=0.3)}
        opened = Protocol(shares=Shares(open_weights=("shop",)))
        counts = {"model": Poisson(), "optimizer": FedSGD(lr=0.03), "protocol": Protocol(shares=Shares())}
        trees = {"model": Trees(trees=2, depth=2), "protocol": Protocol(shares=Shares()), "batch_size": "all"}
        return {
            "shares": own | {"protocol": Protocol(shares=Shares(chunk=1))},
            "shares, weights opened": own | {"protocol": opened},
            "shares, counts": own | counts,
            "shares, trees": trees | {"epochs": 10},
            "shares, scores to another": own | {"protocol": Protocol(shares=Shares(scores_to="shop"))},
        }

    def sum_rounding(self, job: SharesJob, rows: int, parties: int) -> SumRounding | None:
        return sum_rounding(job)

    def declarations(self, job: SharesJob, roles: Roles) -> list[MessageDeclaration]:
        asks = self.score_requester(job, roles.lead)
        found = [
            *chunk_agreement.declares(),
            *offline_phase.declares(),
            *iteration.declares(),
            *(score_label_pairs.declares if pair_metrics.supports_pairs(job.model.loss) else opened_loss.declares)(),
            *range_count.declares_counts(),
            *opened_scores.declares(roles.role(asks) if asks in roles.parties else PASSIVE),
            *(opened_weights.declares() if job.protocol.shares.open_weights else ()),
        ]
        return [each for each in dict.fromkeys(found) if roles.may_send(each.sender, each.receiver)]

    def disclosures(self, job: SharesJob, sizes: RunShape) -> list[Disclosure]:
        """Count what a whole run discloses: a level of each output of each row, from the partner, or one sum of losses,
        whenever metrics are taken, and one count a chunk; and the bits of weights that are told, about labels and
        about the columns of each other party."""
        fits, times, opened = (
            pair_metrics.supports_pairs(job.model.loss),
            count_measurements(job, sizes),
            count_chunks(job, sizes),
        )
        found = [Disclosure("scores", sizes.active, sizes.passives, opened if fits else opened + 2 * times, 0)]
        if fits and (told := times * measured_rows(sizes) * sizes.outputs):
            rows, giver = evaluation_rows(job, sizes)[0], partner_of(job, sizes.passives, sizes.columns)
            levels = Disclosure("scores", sizes.active, sizes.passives, told, 0, group=rows, numbers=told, sender=giver)
            found.append(levels)
        return [*found, *weight_disclosures(job, sizes)]

    def leaks(self, job: SharesJob, sizes: RunShape, before: Sequence[Disclosure] = ()) -> list[Leak]:
        return [
            *super().leaks(job, sizes, before),
            *weight_leaks(job, self.disclosures(job, sizes), sizes, before),
            *metric_leaks(job, sizes),
            *score_leaks(job, sizes, rounding_party(job, sizes)),
        ]

    def message_protocols(self, job: SharesJob, roles: Roles) -> list[MessageProtocol]:
        return []

    def title(self, job: SharesJob, roles: Roles) -> str:
        return "additive shares"

    def strength(self, job: SharesJob) -> str:
        options, loss = job.protocol.shares, job.model.loss
        step = 2.0 ** options.step_bits(loss.spacing)
        reach = (2 ** (options.table_bits - 1) - 1) * step
        return (
            f"{options.strength}; residuals are read from tables of sums {step:g} apart, up to {reach:g} either side "
            f"of each row's centre: near 0 to {table_error(loss, step):.2g}"
        )

    def opened_values(self, job: SharesJob, sizes: RunShape) -> str:
        rows, times = measured_rows(sizes), count_measurements(job, sizes)
        each = " of each class" if sizes.outputs > 1 else ""
        if not pair_metrics.supports_pairs(job.model.loss):
            return (
                f"{times} sums of losses; {count_chunks(job, sizes)} counts of rows near the table's end, one a chunk"
            )
        return (
            f"(level, label) pairs{each} of {rows} rows in a hidden order, {times} times; "
            f"{count_chunks(job, sizes)} counts of rows near the table's end, one a chunk"
        )

    def resource_estimates(self, job: SharesJob, known: RunFacts) -> list[str]:
        return resource_lines(job, known.schedule, known.shape)

    def statements(self, job: SharesJob, roles: Roles, party: str, known: RunFacts | None) -> list[SheetStatement]:
        shares_, asker = job.protocol.shares, self.score_requester(job, roles.lead)
        own = [("learns", weights_text(job, party, known))] if party in shares_.open_weights else []
        parts = [("", SCORE_PARTS_TEXT.format(asker=asker))] if asker in shares_.open_weights else []
        scores = (
            [("learns", scores_text(job, None if known is None else known.shape))]
            if party == asker and shares_.scores != "none"
            else []
        )
        if roles.role(party) != ACTIVE:
            told = f"sizes: rows, columns of each party, batches, visits{stop_decisions_text(job)}; nothing else"
        elif known is None:
            told = "(level, label) pairs in a hidden order, counts; sizes; nothing else"
        else:
            told = f"{quality_text(job, known.shape)}; sizes; nothing else"
        return [*own, *scores, ("learns", told), *parts]

    def coalitions(self, job: SharesJob, roles: Roles) -> str:
        partner = roles.with_role(PARTNER) or ("its partner",)
        return (
            f"{roles.lead} and {partner[0]} together learn every residual and sum, and their own weights; any others,\n"
            "however many, learn nothing without both"
        )

    def participant(self, job: SharesJob, context: PartyContext, columns: int, state: State | None) -> Participant:
        return SharesParticipant(job, context, columns, state)

    def ideal_job(self, job: J) -> J:
        """Return the job itself: what a party holds after it, messages aside, is uniform words and the agreed
        scores."""
        return job

    def final_weights(self, job: SharesJob, state: State, parties: int) -> Floats:
        """Return a party's share of its own weights, read as if it were the weights; the weights themselves if the job
        opens them."""
        if "theta" in state:
            return super().final_weights(job, state, parties)
        plan = SharesFacts.restore(job, state["sizes"], parties).plan
        words = plan.rule.theta(state["own"], state["visits"])
        return plan.numbers.decode_weights(ShareRing(plan.numbers.bits).reduce(words))
