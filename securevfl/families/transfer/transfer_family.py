"""Transfer learning between two parties with few overlapping rows (Liu et al. 2018).

The guest has the labels y_i in {-1, 1}, the host has none. Each party has a network that maps a row to a representation
u (d,). Phi is the mean of y_i u_i^A over the guest's labelled rows, and Phi u_i^B the score of the host's row i.
1. Each party encrypts a vector v under its key and sends it: the guest b_i and Phi^T Phi, the host u_i^B and the mean
   of u^T u (`securevfl.families.transfer.taylor` defines b_i).
2. Q times, each party computes J^T v homomorphically for its own matrix J of p columns, adds a blinding value, and has
   the other party decrypt it. The result is the gradient for a local step. If networks are linearised, only the first
   gradient is decrypted; the other steps use a symmetric matrix (d, d) of the other party.
3. For scores, the host encrypts u_j^B, and the guest requests Phi u_j^B: one number for each row.

The p + 1 numbers of a step are linear equations about the other party's vector, new ones in each step, so over time
they disclose labels to the host and representations to the guest. A consent sheet states what a party sends and learns.
The audit runs a job on test data and compares the values that parties receive with the declared ones.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

from securevfl.base.roles import ACTIVE, PASSIVE, Roles
from securevfl.disclosure.counts import RunShape
from securevfl.disclosure.outputs import Output
from securevfl.families.facts import RunFacts
from securevfl.families.family import Family
from securevfl.families.family_types import J, MessageProtocol, SheetStatement
from securevfl.families.participant import Participant
from securevfl.families.state import State
from securevfl.families.transfer.transfer_job import TransferJob
from securevfl.families.transfer.transfer_model import Transfer
from securevfl.families.transfer.transfer_outputs import transfer_outputs
from securevfl.families.transfer.transfer_participant import TransferParticipant
from securevfl.families.transfer.two_way_exchange import SecondMoments
from securevfl.models.base import Model
from securevfl.optim.fedbcd import FedBCD
from securevfl.optim.optimizer import Training
from securevfl.options import JobOptions
from securevfl.protocols.declarations import MessageDeclaration, Reveal
from securevfl.protocols.engines import Ckks
from securevfl.protocols.party_context import PartyContext
from securevfl.protocols.protocol_options import Protocol
from securevfl.protocols.residuals.open_residual import OpenResidual, Residual
from securevfl.protocols.residuals.sealed_residual import OpenedProduct


class TransferFamily(Family[TransferJob]):
    """Two parties with few overlapping rows: labels at one of them, a network at each."""

    name: ClassVar[str] = "transfer"
    options: ClassVar[type[JobOptions]] = TransferJob
    components: ClassVar[tuple[type[Model] | type[Training], ...]] = (Transfer,)
    max_parties: ClassVar[int | None] = 2

    def check_job(self, job: JobOptions) -> None:
        """Check that the job has a residual protocol without a defence, and parallel local steps."""
        if job.protocol.residual is None:
            raise ValueError("protocol.residual: is missing; add it")
        if not isinstance(job.optimizer, FedBCD) or job.optimizer.mode != "parallel":
            raise ValueError(
                "optimizer: both parties take their local steps in parallel, on one exchange in both directions; "
                'use fedsgd, fedpbcd, or fedbcd with mode = "parallel"'
            )
        job.optimizer.check_set()
        if getattr(job.protocol.residual, "defence", None) is not None:
            raise ValueError(
                "protocol.residual.defence: it adds noise to residuals, and transfer learning sends vectors of "
                "representations instead; leave the defence out"
            )

    def example_jobs(self) -> dict[str, dict[str, Any]]:
        """Return three example jobs: encrypted, in the clear, and with linearised networks."""
        base: dict[str, Any] = {"model": Transfer(units=4), "optimizer": FedBCD(local_steps=2, lr=0.5)}
        base |= {"accepts": ("rank", "columns", "fresh_equations")}
        return {
            "transfer ckks": base | {"protocol": Protocol(residual=Ckks())},
            "transfer open": base | {"protocol": Protocol(residual=OpenResidual())},
            "transfer linearised": base
            | {"model": Transfer(units=4, linearised=True), "protocol": Protocol(residual=Ckks())},
        }

    def declarations(self, job: TransferJob, roles: Roles) -> list[MessageDeclaration]:
        """Declare sender, receiver and disclosure of each message: encrypted vectors and second moments."""
        revealed_vectors = {
            ACTIVE: "the representations of every row, d numbers a row in every exchange",
            PASSIVE: "y * Phi and the representations of every row, and so the labels",
        }
        declarations = []
        for sender, requester in ((ACTIVE, PASSIVE), (PASSIVE, ACTIVE)):
            cast = {ACTIVE: sender, PASSIVE: requester}
            for item in job.protocol.residual.declares():
                reveals = item.reveals
                if item.message is Residual:
                    reveals = Reveal("plain", revealed_vectors[requester])
                elif item.message is OpenedProduct and requester == ACTIVE:
                    reveals = Reveal("output", "the receiver's own parameter gradient and the loss, or scores")
                elif reveals.kind == "ciphertext":
                    reveals = Reveal("ciphertext", cast[reveals.what])
                declarations.append(
                    replace(item, sender=cast[item.sender], receiver=cast[item.receiver], reveals=reveals)
                )
        if job.model.moments(job.optimizer.steps):
            guest_moments = Reveal("plain", "Phi^T Phi of an exchange: Phi, but for its sign")
            host_moments = Reveal("plain", "the mean of u^T u, of the host's representations")
            declarations += [
                MessageDeclaration(SecondMoments, ACTIVE, PASSIVE, guest_moments),
                MessageDeclaration(SecondMoments, PASSIVE, ACTIVE, host_moments),
            ]
        return list(dict.fromkeys(declarations))

    def outputs(self, job: TransferJob, shape: RunShape) -> list[Output]:
        """List the outputs of a run: gradients or vectors, second moments and scores."""
        return transfer_outputs(job, shape)

    def message_protocols(self, job: TransferJob, roles: Roles) -> list[MessageProtocol]:
        """List the one protocol that the audit checks separately: the residual protocol."""
        return [job.protocol.residual]

    def title(self, job: TransferJob, roles: Roles) -> str:
        """Return a title with the name of the residual protocol, and with second moments if they are disclosed."""
        moments = " and second moments shown" if job.model.moments(job.optimizer.steps) else ""
        return f"{job.protocol.residual.name} vectors both ways, gradients opened{moments}"

    def strength(self, job: TransferJob) -> str:
        """Return one line that names the cryptographic assumption of the residual protocol."""
        return job.protocol.residual.strength

    def common_statements(self, job: TransferJob, roles: Roles, facts: RunFacts | None) -> dict[str, str]:
        """Return a statement on the number of decrypted values of gradients."""
        if facts is None:
            return {}
        shape = facts.shape
        values = sum(job.model.parameters(d, 1) for d in shape.columns.values()) + 1
        openings = shape.batches * job.model.openings(job.optimizer.steps)
        columns = openings * len(shape.columns)
        return {"openings": job.protocol.residual.openings(openings * values, shape.epochs, columns=columns)}

    def statements(self, job: TransferJob, roles: Roles, party: str, facts: RunFacts | None) -> list[SheetStatement]:
        """Return what the guest or the host learns, for its consent sheet."""
        sealed, steps = job.protocol.residual.seals, job.model.openings(job.optimizer.steps)
        moments = job.model.moments(job.optimizer.steps)
        p = "p" if facts is None else str(job.model.parameters(facts.shape.columns[party], 1))
        n = "n" if facts is None else str(facts.shape.smallest_batch)
        if roles.role(party) == ACTIVE:
            learned = (
                f"its gradient and the loss: {p} + 1 numbers in each of {steps} steps of an exchange. They are new "
                f"equations about the representations of {n} rows, the numbers that the host's network computes from "
                "its columns, and over a run they disclose a part of these. It also learns one score of every "
                "predicted row; the scores of several evaluations disclose the row's representation"
                if sealed
                else "the host's representation of every row: the numbers that its network computes from its columns"
            )
            if moments:
                learned += ". In every exchange it learns the mean of u^T u of the host's representations u"
            return [("learns", learned)]
        learned = (
            f"its gradient: {p} numbers in each of {steps} steps of an exchange. All of them are new equations about "
            f"the {n} labels: on a public table, four steps were enough to rank the labels by least squares with an "
            "AUC of 0.99"
            if sealed
            else "y * Phi of every row, whose sign is the label, and the guest's representations"
        )
        if moments:
            learned += (
                ". In every exchange it learns Phi up to its sign. With Phi the host can score its rows alone, and one "
                "gradient ranks labels about as well as two gradients without Phi"
            )
        return [("learns", learned), ("keeps", "its network, and so its representations, which follow the labels")]

    def coalitions(self, job: TransferJob, roles: Roles) -> str:
        """Return one line that states that coalitions do not apply, because there are only two parties."""
        return "not applicable: there are only two parties"

    def participant(self, job: TransferJob, context: PartyContext, columns: int, state: State | None) -> Participant:
        """Create the object that does one party's side of the training."""
        return TransferParticipant(job, context, columns, state)

    def ideal_job(self, job: J) -> J:
        """Return the job for the audit's ideal run: the same job with vectors in the clear."""
        return job.model_copy(update={"protocol": Protocol(residual=OpenResidual()), "max_label_auc": None})
