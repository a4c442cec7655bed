"""Transfer learning between two parties on few overlapping rows (Secure Federated Transfer Learning, Liu et al. 2018).

    guest (labels)   u_i^A = Net_A(x_i^A), Phi = mean of y_i u_i^A
    host             u_i^B = Net_B(x_i^B);   f_i = Phi u_i^B

    1. guest -> host   [[b_i]], [[Phi^T Phi]] under the guest's key     host -> guest   [[u_i^B]], [[mean u^T u]]
    2. each, Q times   J^T v for a J of its own, blinded; the other opens it; its own parameter gradient, a local step
    or, where networks are linearised, the first step so, and the others by one symmetric matrix (d x d) of the other's

Both directions are the encrypted vector-Jacobian product of a residual protocol, in which each party is once the one
that seals: `securevfl.families.transfer.taylor` has v and J. Q local steps on one exchange are those of FedBCD (Liu
et al. 2019, sections 6 and 8), with a proximal term those of FedPBCD. The guest learns the loss beside its gradient.

Scores. The host seals u_j^B, the guest asks for Phi u_j^B (Algorithm 2 of the paper): it learns one number a row, the
host nothing.

What opened gradients add up to. The p + 1 numbers of a step are linear equations about the other's sealed vector, and
J moves, so those of Q steps and of many rounds are new ones: they tell labels to the host (`tells`) and, by and by,
representations to the guest, whatever the columns are. Scores of one row under a Phi that moves do the same.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

from securevfl.base.roles import ACTIVE, PASSIVE, Roles
from securevfl.disclosure.counts import Disclosure, RunShape
from securevfl.families.evaluations import count_evaluations, evaluation_rows, score_disclosures
from securevfl.families.family import Family, J, MessageProtocol, SheetStatement
from securevfl.families.participant import Participant
from securevfl.families.run_facts import RunFacts
from securevfl.families.state import State
from securevfl.families.transfer.transfer_job import TransferJob
from securevfl.families.transfer.transfer_model import Transfer
from securevfl.families.transfer.transfer_participant import SCORE_BLOCK_ROWS, TransferParticipant
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
from securevfl.runtime.disclosure_gate import Group


class TransferFamily(Family[TransferJob]):
    """Two parties, labels at one, a network at each, few rows in common."""

    name: ClassVar[str] = "transfer"
    options: ClassVar[type[JobOptions]] = TransferJob
    components: ClassVar[tuple[type[Model] | type[Training], ...]] = (Transfer,)
    max_parties: ClassVar[int | None] = 2

    def check_job(self, job: JobOptions) -> None:
        if job.protocol.residual is None:
            raise ValueError("protocol.residual: is missing; add it")
        if not isinstance(job.optimizer, FedBCD) or job.optimizer.mode != "parallel":
            raise ValueError(
                "transfer learning takes its local steps in parallel, on one exchange both ways; "
                'use fedsgd, fedpbcd, or fedbcd with mode = "parallel"'
            )
        job.optimizer.check_set()
        if getattr(job.protocol.residual, "defence", None) is not None:
            raise ValueError(
                "protocol.residual.defence: none was expected, defences blur a residual and transfer learning sends "
                "vectors of representations; leave it out"
            )

    def example_jobs(self) -> dict[str, dict[str, Any]]:
        own: dict[str, Any] = {"model": Transfer(units=4), "optimizer": FedBCD(local_steps=2, lr=0.5)}
        own |= {"accepts": ("rank", "columns", "fresh_equations")}
        return {
            "transfer ckks": own | {"protocol": Protocol(residual=Ckks())},
            "transfer open": own | {"protocol": Protocol(residual=OpenResidual())},
            "transfer linearised": own
            | {"model": Transfer(units=4, linearised=True), "protocol": Protocol(residual=Ckks())},
        }

    def declarations(self, job: TransferJob, roles: Roles) -> list[MessageDeclaration]:
        shown = {
            ACTIVE: "the representations of every row, d numbers a row in every exchange",
            PASSIVE: "y Phi and the representations of every row, and so the labels",
        }
        found = []
        for sealer, asker in ((ACTIVE, PASSIVE), (PASSIVE, ACTIVE)):
            cast = {ACTIVE: sealer, PASSIVE: asker}
            for item in job.protocol.residual.declares():
                reveals = item.reveals
                if item.message is Residual:
                    reveals = Reveal("plain", shown[asker])
                elif item.message is OpenedProduct and asker == ACTIVE:
                    reveals = Reveal("output", "the receiver's own parameter gradient and the loss, or scores")
                elif reveals.kind == "ciphertext":
                    reveals = Reveal("ciphertext", cast[reveals.what])
                found.append(replace(item, sender=cast[item.sender], receiver=cast[item.receiver], reveals=reveals))
        if job.model.moments(job.optimizer.steps):
            found += [
                MessageDeclaration(
                    SecondMoments, ACTIVE, PASSIVE, Reveal("plain", "Phi^T Phi of an exchange: Phi, but for its sign")
                ),
                MessageDeclaration(
                    SecondMoments, PASSIVE, ACTIVE, Reveal("plain", "the mean of u^T u, of the host's representations")
                ),
            ]
        return list(dict.fromkeys(found))

    def disclosures(self, job: TransferJob, sizes: RunShape) -> list[Disclosure]:
        (host,), guest, n = sizes.passives, sizes.active, sizes.smallest_batch
        visits, d = sizes.epochs * sizes.batches, job.model.units
        steps, moments = job.model.openings(job.optimizer.steps), job.model.moments(job.optimizer.steps)
        seals, p = job.protocol.residual.seals, job.model.parameters(sizes.columns[guest], 1)
        opened = ((p + 1) * steps + moments) * visits
        a_row = -(-opened // sizes.rows) if seals else d * sizes.epochs
        scored = count_evaluations(job, sizes) * (
            1 if seals else d
        )  # a score, or the representation that it is made of
        asked: dict[Group, int] = {"held out": scored} if sizes.held_out else {}
        asked["training"] = a_row + (0 if sizes.held_out else scored)
        vectors = sizes.epochs * sizes.rows * d + visits * (d * (d + 1) // 2 + moments)
        numbers = {"training": opened if seals else vectors, "held out": 0}
        where, rows = evaluation_rows(job, sizes)
        size = min(SCORE_BLOCK_ROWS, rows // count_evaluations(job, sizes))
        numbers[where] += (
            count_evaluations(job, sizes)
            * -(-rows // (size * count_evaluations(job, sizes)))
            * size
            * (1 if seals else d)
        )
        found = [
            Disclosure("columns", guest, (host,), count, sizes.columns[host], group=group, numbers=numbers[group])
            for group, count in asked.items()
        ]
        if seals:
            asks = sizes.parameters[host]
            equations, numbers_told = asks * job.equations + moments * sizes.epochs, (asks * steps + moments) * visits
            labels = Disclosure("labels", host, (guest,), equations, n, numbers=numbers_told)
            return [labels, *found, *score_disclosures(job, sizes)]
        return [
            Disclosure("labels", host, (guest,), n, n, "every exchange", numbers=vectors),
            Disclosure("columns", host, (guest,), d * sizes.epochs, sizes.columns[guest]),
            *found,
            *score_disclosures(job, sizes),
        ]

    def message_protocols(self, job: TransferJob, roles: Roles) -> list[MessageProtocol]:
        return [job.protocol.residual]

    def title(self, job: TransferJob, roles: Roles) -> str:
        shown = " and second moments shown" if job.model.moments(job.optimizer.steps) else ""
        return f"{job.protocol.residual.name} vectors both ways, gradients opened{shown}"

    def strength(self, job: TransferJob) -> str:
        return job.protocol.residual.strength

    def opened_values(self, job: TransferJob, sizes: RunShape) -> str:
        model = job.model
        values = sum(model.parameters(d, 1) for d in sizes.columns.values()) + 1
        times = sizes.batches * job.model.openings(job.optimizer.steps)
        return job.protocol.residual.openings(times * values, sizes.epochs, columns=times * len(sizes.columns))

    def statements(self, job: TransferJob, roles: Roles, party: str, known: RunFacts | None) -> list[SheetStatement]:
        sealed, steps = job.protocol.residual.seals, job.model.openings(job.optimizer.steps)
        p = "p" if known is None else str(job.model.parameters(known.shape.columns[party], 1))
        n = "n" if known is None else str(known.shape.smallest_batch)
        if roles.role(party) == ACTIVE:
            told = (
                f"its own gradient and the loss, {p} + 1 numbers in each of {steps} steps an exchange: new equations\n"
                f"about the host's representations of {n} rows, a share of which they tell over a run; scores, one\n"
                "number for every row predicted, which tell its representation over several evaluations"
                if sealed
                else "the host's representations of every row"
            )
            if job.model.moments(job.optimizer.steps):
                told += ";\nthe mean of u^T u of the host's representations, in every exchange"
            return [("learns", told)]
        told = (
            f"its own gradient, {p} numbers in each of {steps} steps an exchange, all of them new: equations about\n"
            f"the {n} labels. Least squares ranks these after four steps, to an AUC of 0.99 on a public table"
            if sealed
            else "y Phi of every row, whose sign is the label, and the guest's representations"
        )
        if job.model.moments(job.optimizer.steps):
            told += (
                ";\nPhi but for its sign, in every exchange: with it the host scores its own rows itself, and one\n"
                "gradient ranks labels about as well as two"
            )
        return [("learns", told), ("keeps", "its network, and so its own representations, which follow the labels")]

    def coalitions(self, job: TransferJob, roles: Roles) -> str:
        return "there are two parties: each is what the other learns from"

    def participant(self, job: TransferJob, context: PartyContext, columns: int, state: State | None) -> Participant:
        return TransferParticipant(job, context, columns, state)

    def ideal_job(self, job: J) -> J:
        return job.model_copy(update={"protocol": Protocol(residual=OpenResidual()), "max_label_auc": None})
