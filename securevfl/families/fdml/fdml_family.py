"""Asynchronous training (FDML, Hu et al. 2019): a server stores local predictions, and sums of them may be stale.

A *worker* is a party with columns; the leading one has the labels. `vfl.Helper(name, "server")` is the server. Without
one, workers that all know the labels push to each other. Modules: `fdml_optimizer` (the steps), `pulls` (the messages),
`fdml_worker`. A *payload* is what a worker pushes: outputs, masked or in the clear.
1. Every worker k pushes its outputs H_k (n, c) on the batch of its iteration, and pulls the sum of all workers' latest
   pushes of that batch.
2. The server delays the replies to a worker that is more than tau iterations ahead of the slowest one.
3. A worker with labels computes the residual g, the derivative of the loss by the sum, and updates its weights. A
   worker without labels updates its weights with the g that the party with labels sends.

A consent sheet states what a party sends and learns. The audit runs a job on test data and compares the values that
parties receive with the declared ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from securevfl.base.extras import check_extra
from securevfl.base.roles import ACTIVE, COLLECTOR, CONTRIBUTOR, PASSIVE, READER, SERVER, Role, Roles
from securevfl.disclosure.counts import RunShape
from securevfl.disclosure.outputs import Output
from securevfl.errors import PartiesError
from securevfl.families.facts import RunFacts
from securevfl.families.family import Family
from securevfl.families.family_types import J, MessageProtocol, SheetStatement
from securevfl.families.fdml import label_sharing, peer_pulls, pulls
from securevfl.families.fdml.fdml_optimizer import FDML, FdmlJob, stored_of
from securevfl.families.fdml.fdml_outputs import fdml_outputs, single_worker_lines
from securevfl.families.fdml.fdml_server import FdmlServer
from securevfl.families.fdml.fdml_worker import FdmlWorker
from securevfl.families.fdml.local_noise import NOISE_FEATURE
from securevfl.families.fdml.open_store import StoredOpen
from securevfl.families.participant import Participant
from securevfl.families.rounds.rounds_statements import classifier_statements, column_lines, equation_lines
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
    """Asynchronous training in which workers push outputs to a server and pull sums of bounded staleness."""

    name: ClassVar[str] = "fdml"
    options: ClassVar[type[JobOptions]] = FdmlJob
    components: ClassVar[tuple[type[Model] | type[Training], ...]] = (FDML,)
    uses_stored_sums: ClassVar[bool] = True
    example_helpers: ClassVar[tuple[tuple[str, Role], ...]] = (("server", SERVER),)

    def check_job(self, job: JobOptions) -> None:
        """Check that labels, residuals, noise and model fit together."""
        shows_labels = isinstance(job.optimizer, FDML) and job.optimizer.shows_labels
        if shows_labels and job.protocol.residual is not None:
            raise ValueError(
                "protocol.residual: every party knows the labels and computes residuals itself; leave it out"
            )
        if not shows_labels and job.protocol.residual is None:
            raise ValueError(
                "protocol.residual: is missing; add it, or let all parties know the labels (optimizer.shows_labels)"
            )
        chosen = job.protocol.sum
        if chosen != "auto" and not chosen.is_recorder and not isinstance(chosen, DirectSum):
            raise ValueError(
                f'protocol.sum: FDML does not train with the sum "{chosen.name}", because workers push their '
                'outputs to a server, where optimizer.stored protects them; leave sum out, and use stored = "masks"'
            )
        if shows_labels and job.max_label_auc is not None:
            raise ValueError(
                "max_label_auc: it limits what is disclosed about labels, and optimizer.shows_labels sends all labels; "
                "leave one of them out"
            )
        if stored_of(job).noise is not None and not job.test_fraction:
            raise ValueError(
                "optimizer.stored.noise: without held-out rows, evaluations would disclose predictions of training "
                "rows without noise; set test_fraction"
            )
        if job.reshuffle:
            raise ValueError(
                "reshuffle: a server stores predictions by batch, so batches must not change; set reshuffle = false"
            )
        if job.model.separates_outputs:
            raise ValueError(
                'model.joint: a top model needs the outputs of each party, and workers pull sums; use joint = "sum"'
            )

    def check_extras(self, job: FdmlJob) -> None:
        """Check that noise on local predictions can be computed, if the job asks for it."""
        if stored_of(job).noise is not None:
            check_extra("dp_accounting", "dp", NOISE_FEATURE)

    def accepts_role(self, role: Role, *, leads: bool) -> bool:
        """Accept a leading party with labels, other parties with or without labels, and a server."""
        return role == ACTIVE if leads else role in (PASSIVE, SERVER)

    def complete_roles(self, job: FdmlJob, roles: Roles, columns: Mapping[str, int]) -> Roles:
        """Check that there is at most one server, and one if workers must not see each other's predictions.

        Args:
            job: the options of the training, on which all parties agree (`securevfl.job.Job`).
            roles: the role of each party in the run, such as active or passive.
            columns: number of columns of each party; empty if unknown.

        Returns:
            The same roles.

        Raises:
            PartiesError: if a server or a second worker is missing, or if there are several servers.
        """
        servers = roles.with_role(SERVER)
        if len(servers) > 1:
            raise PartiesError(
                f"the run has several servers: {', '.join(servers)}",
                "leave out all but one",
                code="SVFL-PARTIES-COUNT",
            )
        if not roles.with_role(PASSIVE):
            raise PartiesError("the run has only one party with columns", "add another one", code="SVFL-PARTIES-COUNT")
        if columns and not servers and not job.optimizer.shows_labels:
            raise PartiesError(
                "the run needs a server, because only one party has labels",
                'add vfl.Helper("server", "server"), or let all parties know the labels (optimizer.shows_labels)',
                code="SVFL-PARTIES-ROLE",
            )
        if columns and not servers and job.optimizer.stored is not None and job.optimizer.stored.hides_parts:
            raise PartiesError(
                f'"{job.optimizer.stored.name}" hides outputs of workers from a server, but the run has no server',
                'add vfl.Helper("server", "server"), or let workers see the outputs of others (stored = "open")',
                code="SVFL-PARTIES-ROLE",
            )
        return roles

    def example_jobs(self) -> dict[str, dict[str, Any]]:
        """Return example jobs: with masked payloads, payloads in the clear, encrypted residuals and shared labels."""
        base = {"model": Logistic(l2=1e-3), "optimizer": FDML(lr=0.2, tau=2)}
        return {
            "fdml masks, sealed": base | {"protocol": Protocol(residual=Ckks())},
            "fdml masks, labels shown": base
            | {"optimizer": FDML(lr=0.2, tau=2, shows_labels=True), "protocol": Protocol()},
            "fdml open": base
            | {"optimizer": FDML(lr=0.2, tau=2, stored=StoredOpen()), "protocol": Protocol(residual=OpenResidual())},
        }

    def declarations(self, job: FdmlJob, roles: Roles) -> list[MessageDeclaration]:
        """Declare sender, receiver and disclosure of each message: sums, pulls, and residuals or labels."""
        passives, workers = roles.with_role(PASSIVE), (ACTIVE, PASSIVE)
        stored = stored_of(job)
        sum_messages = job.protocol.sum_for(len(passives)).declares(passives)
        declarations = declare_in_roles(sum_messages, {COLLECTOR: (ACTIVE,), CONTRIBUTOR: (PASSIVE,)}, space=Reals)
        readers = workers if job.optimizer.shows_labels else (ACTIVE,)
        declarations += declare_in_roles(
            stored.declares(), {COLLECTOR: (SERVER,), CONTRIBUTOR: workers, READER: readers}
        )
        declarations += declare_in_roles(pulls.declare_pulls(stored, readers), {READER: readers})
        if SERVER not in roles.kinds:
            declarations += peer_pulls.declare_peer_pulls()
        if job.protocol.residual is None:
            return declarations + label_sharing.declare_labels()
        start = MessageDeclaration(pulls.StartIteration, ACTIVE, PASSIVE, Reveal("public"))
        return [*declarations, start, *job.protocol.residual.declares()]

    def outputs(self, job: FdmlJob, shape: RunShape) -> list[Output]:
        """List the outputs of a run: labels, pulled sums or pushed model outputs, and evaluations."""
        return fdml_outputs(job, shape)

    def message_protocols(self, job: FdmlJob, roles: Roles) -> list[MessageProtocol]:
        """List the protocols that the audit checks separately: sums of evaluations, and residuals if any."""
        sums: MessageProtocol = job.protocol.sum_for(len(roles.with_role(PASSIVE)))
        return [sums] if job.protocol.residual is None else [sums, job.protocol.residual]

    def title(self, job: FdmlJob, roles: Roles) -> str:
        """Return a title with the names of the stored sum and the residual protocol."""
        sent = "labels at all" if job.protocol.residual is None else f"{job.protocol.residual.name} residual"
        if roles.with_role(SERVER):
            return f"{stored_of(job).name} payloads at a server / {sent}"
        return f"open payloads at all workers / {sent}"

    def cost_label(self, job: FdmlJob, contributors: int) -> str:
        """Return the labels of the stored sum and the residual protocol for a table of costs."""
        residual = job.protocol.residual
        return f"{stored_of(job).label}/{'labels' if residual is None else residual.label}"

    def strength(self, job: FdmlJob) -> str:
        """Return one line on the cryptographic assumptions that protect payloads and residuals."""
        residual = job.protocol.residual
        sent = "all parties know the labels" if residual is None else f"residuals: {residual.strength}"
        return f"payloads: {stored_of(job).strength}; {sent}"

    def common_statements(self, job: FdmlJob, roles: Roles, facts: RunFacts | None) -> dict[str, str]:
        """Return a statement on the number of decrypted values of gradients."""
        if facts is None or job.protocol.residual is None:
            return {}
        shape = facts.shape
        columns = shape.batches * len(shape.passives) * shape.outputs
        values = shape.batches * sum(shape.parameters.values())
        return {"openings": job.protocol.residual.openings(values, shape.epochs, columns=columns)}

    def statements(self, job: FdmlJob, roles: Roles, party: str, facts: RunFacts | None) -> list[SheetStatement]:
        """Return what the server, the active party or another worker learns, for its consent sheet."""
        stored, role = stored_of(job), roles.role(party)
        lines = column_lines(job, party, facts)
        if role == SERVER:
            if stored.hides_parts:
                return [
                    (
                        "learns",
                        "the pace of every worker: which batch each pushes when, and its size; no output and no sum",
                    )
                ]
            return [("learns", line) for line in ("the forward outputs of every worker, in every iteration", *lines)]
        noise = [] if stored.noise is None else [("blurs", stored.noise.promise(job.epochs))]
        if role == ACTIVE:
            learned = [
                "f = sum_k H_k on the rows predicted, and messages marked output or plain",
                *lines,
                *single_worker_lines(job, roles),
            ]
            return [*(("learns", line) for line in learned), *noise]
        residual = job.protocol.residual
        if residual is None:
            learned = [
                "the labels of all training rows, which the active party sends to all workers",
                *lines,
                *single_worker_lines(job, roles),
            ]
        else:
            learned = equation_lines(job, party, facts) if residual.seals else [residual.passive_view, *lines]
        return [*(("learns", line) for line in learned), *noise, *classifier_statements(job)]

    def coalitions(self, job: FdmlJob, roles: Roles) -> str:
        """Return one line that states which parties can, together, read the payloads of workers."""
        if not roles.with_role(SERVER):
            return "needs nobody: without a server, every worker receives the forward outputs of all others"
        return stored_of(job).pooling

    def participant(self, job: FdmlJob, context: PartyContext, columns: int, state: State | None) -> Participant:
        """Create the object that does the work of one party: the server or a worker."""
        if context.roles.role(context.me) == SERVER:
            return FdmlServer(job, context)
        return FdmlWorker(job, context, columns, state)

    def ideal_job(self, job: J) -> J:
        """Return the same job without encryption (payloads and residuals in the clear), for comparison by the audit."""
        residual = None if job.protocol.residual is None else OpenResidual()
        stored = StoredOpen(noise=stored_of(job).noise)
        protocol = Protocol(sum=DirectSum(), residual=residual)
        optimizer = job.optimizer.model_copy(update={"stored": stored})
        return job.model_copy(update={"protocol": protocol, "optimizer": optimizer, "max_label_auc": None})
