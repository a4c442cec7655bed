"""Training at everyone's own pace (FDML, Hu et al. 2019): local predictions lie at a server, sums of them may be stale.

    every worker k      pushes H_k (n x c) on the batch of its iteration, pulls the sum of what all pushed of it last
    the server          holds back whoever is more than tau iterations ahead of the slowest
    with labels         makes g and steps; without, steps on the g that the party with labels sends down

Workers are the parties with columns; one of them, which leads, has the labels. A `vfl.Helper(name, "server")` keeps the
predictions; without one, workers that all know the labels push to each other. See `securevfl.families.fdml.fdml_worker`
for the steps, `securevfl.families.fdml.pulls` for the messages, `securevfl.families.fdml.fdml_worker` for a party
at work.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from securevfl.base.roles import ACTIVE, COLLECTOR, CONTRIBUTOR, PASSIVE, READER, SERVER, Role, Roles
from securevfl.disclosure.counts import Disclosure, RunShape
from securevfl.errors import PartiesError
from securevfl.families.evaluations import score_disclosures
from securevfl.families.family import Family, J, MessageProtocol, SheetStatement
from securevfl.families.fdml import label_sharing, peer_pulls, pulls
from securevfl.families.fdml.fdml_disclosures import column_disclosure, evaluation_disclosures, single_worker_lines
from securevfl.families.fdml.fdml_optimizer import FDML, FdmlJob, stored_of
from securevfl.families.fdml.fdml_server import FdmlServer
from securevfl.families.fdml.fdml_worker import FdmlWorker
from securevfl.families.fdml.open_store import StoredOpen
from securevfl.families.participant import Participant
from securevfl.families.rounds.rounds_disclosures import label_disclosures
from securevfl.families.rounds.rounds_statements import classifier_statements, column_lines, equation_lines
from securevfl.families.run_facts import RunFacts
from securevfl.families.state import State
from securevfl.models.base import Model
from securevfl.models.linear import Logistic
from securevfl.optim.optimizer import Training
from securevfl.options import JobOptions
from securevfl.protocols.declarations import MessageDeclaration, Reveal, declare_in_roles
from securevfl.protocols.engines import Ckks
from securevfl.protocols.number_spaces import Reals
from securevfl.protocols.party_context import PartyContext
from securevfl.protocols.protocol_options import Protocol
from securevfl.protocols.residuals.open_residual import OpenResidual
from securevfl.protocols.sums.direct_sum import DirectSum


class FdmlFamily(Family[FdmlJob]):
    """Pushes and pulls at a server under bounded staleness."""

    name: ClassVar[str] = "fdml"
    options: ClassVar[type[JobOptions]] = FdmlJob
    components: ClassVar[tuple[type[Model] | type[Training], ...]] = (FDML,)
    uses_stored_sums: ClassVar[bool] = True
    example_helpers: ClassVar[tuple[tuple[str, Role], ...]] = (("server", SERVER),)

    def check_job(self, job: JobOptions) -> None:
        shows = isinstance(job.optimizer, FDML) and job.optimizer.shows_labels
        if shows and job.protocol.residual is not None:
            raise ValueError("every party knows the labels and makes its own residual; leave protocol.residual out")
        if not shows and job.protocol.residual is None:
            raise ValueError(
                "protocol.residual: is missing; add it, or let all parties know the labels (optimizer.shows_labels)"
            )
        if shows and job.max_label_auc is not None:
            raise ValueError("max_label_auc: all labels are shown (optimizer.shows_labels); leave one of both out")
        if stored_of(job).noise is not None and not job.test_fraction:
            raise ValueError(
                "optimizer.stored.noise: without rows held out, evaluations would tell predictions of the training "
                "rows that no noise blurs; set test_fraction"
            )
        if job.reshuffle:
            raise ValueError("predictions are stored by batch, which must stay; set reshuffle = false")
        if job.model.separates_outputs:
            raise ValueError('a top model is fed every party\'s outputs apart, and sums are pulled; use joint = "sum"')

    def accepts_role(self, role: Role, *, leads: bool) -> bool:
        return role == ACTIVE if leads else role in (PASSIVE, SERVER)

    def complete_roles(self, job: FdmlJob, roles: Roles, columns: Mapping[str, int]) -> Roles:
        """PartiesError if there are several servers, or none and the workers must not see each other's predictions."""
        servers = roles.with_role(SERVER)
        if len(servers) > 1:
            raise PartiesError(f"at most one server was expected, {', '.join(servers)} came; leave out all but one")
        if not roles.with_role(PASSIVE):
            raise PartiesError("two parties with columns were expected, there is one; add another")
        if columns and not servers and not job.optimizer.shows_labels:
            raise PartiesError(
                'a server was expected, as labels stay with one party; add vfl.Helper("server", "server"), or let all '
                "know the labels (optimizer.shows_labels)"
            )
        if columns and not servers and job.optimizer.stored is not None and job.optimizer.stored.hides_parts:
            raise PartiesError(
                f'a server was expected, from which "{job.optimizer.stored.name}" payloads are hidden; add '
                'vfl.Helper("server", "server"), or use stored = "open", which says that workers see them'
            )
        return roles

    def example_jobs(self) -> dict[str, dict[str, Any]]:
        own = {"model": Logistic(l2=1e-3), "optimizer": FDML(lr=0.2, tau=2)}
        shown = own | {"optimizer": FDML(lr=0.2, tau=2, shows_labels=True)}
        return {
            "fdml masks, sealed": own | {"protocol": Protocol(residual=Ckks())},
            "fdml masks, labels shown": shown | {"protocol": Protocol()},
            "fdml open": {
                "model": Logistic(l2=1e-3),
                "optimizer": FDML(lr=0.2, tau=2, stored=StoredOpen()),
                "protocol": Protocol(residual=OpenResidual()),
            },
        }

    def declarations(self, job: FdmlJob, roles: Roles) -> list[MessageDeclaration]:
        passives, workers = roles.with_role(PASSIVE), (ACTIVE, PASSIVE)
        stored = stored_of(job)
        parts = job.protocol.sum_for(len(passives)).declares(passives)
        found = declare_in_roles(parts, {COLLECTOR: (ACTIVE,), CONTRIBUTOR: (PASSIVE,)}, space=Reals)
        told = workers if job.optimizer.shows_labels else (ACTIVE,)
        found += declare_in_roles(stored.declares(), {COLLECTOR: (SERVER,), CONTRIBUTOR: workers, READER: told})
        found += declare_in_roles(pulls.declare_pulls(stored, told), {READER: told})
        if SERVER not in roles.kinds:
            found += peer_pulls.declare_peer_pulls()
        if job.protocol.residual is None:
            return found + label_sharing.declare_labels()
        begins = MessageDeclaration(pulls.StartIteration, ACTIVE, PASSIVE, Reveal("public"))
        return [*found, begins, *job.protocol.residual.declares()]

    def disclosures(self, job: FdmlJob, sizes: RunShape) -> list[Disclosure]:
        labels, visits = job.optimizer.shows_labels, job.model.output_width(sizes.outputs) * sizes.epochs
        workers = (sizes.active, *sizes.passives)
        pulling = workers if labels else (sizes.active,)
        pushed = sizes.rows * visits
        found = []
        if labels:
            about, of = (sizes.active,), sizes.residuals
            found += [
                Disclosure("labels", name, about, of, of, "every label", numbers=sizes.rows * sizes.outputs)
                for name in sizes.passives
            ]
        else:
            found += label_disclosures(job, sizes)
        if not sizes.helpers:  # every worker keeps what all others push, as it is
            found += [
                column_disclosure(sizes, one, (other,), visits, pushed)
                for one in workers
                for other in workers
                if one != other
            ]
        else:
            for learner in pulling:
                others = tuple(name for name in workers if name != learner)
                found.append(column_disclosure(sizes, learner, others, visits, pushed))
                if job.optimizer.tau and len(others) > 1:
                    found += [column_disclosure(sizes, learner, (other,), visits) for other in others]
            if not stored_of(job).hides_parts:
                found += [
                    column_disclosure(sizes, server, (name,), visits, pushed)
                    for server in sizes.helpers
                    for name in workers
                ]
        if not labels and not job.protocol.seals:  # f follows from g
            for learner in sizes.passives:
                others = tuple(name for name in workers if name != learner)
                found.append(column_disclosure(sizes, learner, others, visits))
        return [*dict.fromkeys(found), *evaluation_disclosures(job, sizes), *score_disclosures(job, sizes)]

    def message_protocols(self, job: FdmlJob, roles: Roles) -> list[MessageProtocol]:
        found: list[MessageProtocol] = [job.protocol.sum_for(len(roles.with_role(PASSIVE)))]
        return found if job.protocol.residual is None else [*found, job.protocol.residual]

    def title(self, job: FdmlJob, roles: Roles) -> str:
        down = "labels at all" if job.protocol.residual is None else f"{job.protocol.residual.name} residual"
        if roles.with_role(SERVER):
            return f"{stored_of(job).name} payloads at a server / {down}"
        return f"open payloads at all workers / {down}"

    def cost_label(self, job: FdmlJob, contributors: int) -> str:
        residual = job.protocol.residual
        return f"{stored_of(job).label}/{'labels' if residual is None else residual.label}"

    def strength(self, job: FdmlJob) -> str:
        residual = job.protocol.residual
        down = "labels are shown to all" if residual is None else f"residuals: {residual.strength}"
        return f"payloads: {stored_of(job).strength}; {down}"

    def opened_values(self, job: FdmlJob, sizes: RunShape) -> str:
        if job.protocol.residual is None:
            return ""
        columns = sizes.batches * len(sizes.passives) * sizes.outputs
        return job.protocol.residual.openings(
            sizes.batches * sum(sizes.parameters.values()), sizes.epochs, columns=columns
        )

    def statements(self, job: FdmlJob, roles: Roles, party: str, known: RunFacts | None) -> list[SheetStatement]:
        stored, role = stored_of(job), roles.role(party)
        lines = column_lines(job, party, known, self.disclosures)
        if role == SERVER:
            said = ["everyone's pace: who pushes which batch when, and how large it is; no forward output and no sum"]
            if not stored.hides_parts:
                said = ["the forward outputs of every worker, in every visit to a batch", *lines]
            return [("learns", "\n".join(said))]
        blurs = [] if stored.noise is None else [("blurs", stored.noise.promise(job.epochs))]
        if role == ACTIVE:
            said = ["f = sum_k H_k on the rows predicted, and messages marked output or plain", *lines]
            return [("learns", "\n".join([*said, *single_worker_lines(job, roles)])), *blurs]
        residual = job.protocol.residual
        if residual is None:
            said = ["the labels of all training rows, which the active party shows to all workers", *lines]
            return [
                ("learns", "\n".join([*said, *single_worker_lines(job, roles)])),
                *blurs,
                *classifier_statements(job),
            ]
        said = equation_lines(job, party, known) if residual.seals else [residual.passive_view, *lines]
        return [("learns", "\n".join(said)), *blurs, *classifier_statements(job)]

    def coalitions(self, job: FdmlJob, roles: Roles) -> str:
        if not roles.with_role(SERVER):
            return "needs nobody: each worker is sent the forward outputs of every other one, as there is no server"
        return stored_of(job).pooling

    def participant(self, job: FdmlJob, context: PartyContext, columns: int, state: State | None) -> Participant:
        if context.roles.role(context.me) == SERVER:
            return FdmlServer(job, context)
        return FdmlWorker(job, context, columns, state)

    def ideal_job(self, job: J) -> J:
        residual = None if job.protocol.residual is None else OpenResidual()
        stored = StoredOpen(noise=stored_of(job).noise)
        protocol = Protocol(sum=DirectSum(), residual=residual)
        optimizer = job.optimizer.model_copy(update={"stored": stored})
        return job.model_copy(update={"protocol": protocol, "optimizer": optimizer, "max_label_auc": None})
