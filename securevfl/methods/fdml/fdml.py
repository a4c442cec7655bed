"""Training at everyone's own pace (FDML, Hu et al. 2019): local predictions lie at a server, sums of them may be stale.

    every worker k      pushes H_k (n x c) on the batch of its iteration, pulls the sum of what all pushed of it last
    the server          holds back whoever is more than tau iterations ahead of the slowest
    with labels         makes g and steps; without, steps on the g that the party with labels sends down

Workers are the parties with columns; one of them, which leads, has the labels. A `vfl.Helper(name, "server")` keeps the
predictions; without one, workers that all know the labels push to each other. See `securevfl.optim.fdml` for the steps,
`securevfl.protocols.stored.pulls` for the messages, `securevfl.methods.fdml.fdml_player` for a party at work.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from securevfl.base.roles import ACTIVE, COLLECTOR, CONTRIBUTOR, PASSIVE, READER, SERVER, Role, Roles
from securevfl.disclosure.counts import Disclosure, Sizes
from securevfl.errors import PartiesError
from securevfl.methods.base import J, Known, MessageProtocol, Method, Told
from securevfl.methods.fdml import fdml_counts
from securevfl.methods.fdml.fdml_player import FdmlJob, FdmlServer, FdmlWorker, stored_of
from securevfl.methods.player import Player
from securevfl.methods.state import State
from securevfl.models.base import BlockModel, Model
from securevfl.models.linear import Logistic
from securevfl.optim.fdml import FDML
from securevfl.options import JobOptions
from securevfl.protocols.choice import Protocol
from securevfl.protocols.declared import Declared, Reveal, recast
from securevfl.protocols.engines import Ckks
from securevfl.protocols.residuals.open_residual import OpenResidual
from securevfl.protocols.seat import Seat
from securevfl.protocols.spaces import Reals
from securevfl.protocols.stored import peer_pulls, pulls, shown_labels
from securevfl.protocols.stored.stored_masks import StoredMasks
from securevfl.protocols.stored.stored_sum import StoredOpen
from securevfl.protocols.sums.direct_sum import DirectSum


class FdmlMethod(Method[FdmlJob]):
    """Pushes and pulls at a server under bounded staleness."""

    name: ClassVar[str] = "fdml"
    options: ClassVar[type[JobOptions]] = FdmlJob
    stores: ClassVar[bool] = True
    helpers: ClassVar[tuple[tuple[str, Role], ...]] = (("server", SERVER),)

    def trains(self, model: type[Model]) -> bool:
        return issubclass(model, BlockModel)

    def check(self, job: JobOptions) -> None:
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
                "protocol.stored.noise: without rows held out, evaluations would tell predictions of the training rows "
                "that no noise blurs; set test_fraction"
            )
        if job.reshuffle:
            raise ValueError("predictions are stored by batch, which must stay; set reshuffle = false")
        if job.model.shows_parts:
            raise ValueError('a top model is fed every party\'s outputs apart, and sums are pulled; use joint = "sum"')

    def admits(self, role: Role, *, leads: bool) -> bool:
        return role == ACTIVE if leads else role in (PASSIVE, SERVER)

    def assigned(self, job: FdmlJob, roles: Roles, columns: Mapping[str, int]) -> Roles:
        """PartiesError if there are several servers, or none and the workers must not see each other's predictions."""
        servers = roles.having(SERVER)
        if len(servers) > 1:
            raise PartiesError(f"at most one server was expected, {', '.join(servers)} came; leave out all but one")
        if not roles.having(PASSIVE):
            raise PartiesError("two parties with columns were expected, there is one; add another")
        if columns and not servers and not job.optimizer.shows_labels:
            raise PartiesError(
                'a server was expected, as labels stay with one party; add vfl.Helper("server", "server"), or let all '
                "know the labels (optimizer.shows_labels)"
            )
        if columns and not servers and job.protocol.stored is not None and job.protocol.stored.hides_parts:
            raise PartiesError(
                f'a server was expected, from which "{job.protocol.stored.name}" payloads are hidden; add '
                'vfl.Helper("server", "server"), or use stored = "open", which says that workers see them'
            )
        return roles

    def examples(self) -> dict[str, dict[str, Any]]:
        own = {"model": Logistic(l2=1e-3), "optimizer": FDML(lr=0.2, tau=2)}
        shown = own | {"optimizer": FDML(lr=0.2, tau=2, shows_labels=True)}
        return {
            "fdml masks, sealed": own | {"protocol": Protocol(stored=StoredMasks(), residual=Ckks())},
            "fdml masks, labels shown": shown | {"protocol": Protocol(stored=StoredMasks())},
            "fdml open": own | {"protocol": Protocol(stored=StoredOpen(), residual=OpenResidual())},
        }

    def declares(self, job: FdmlJob, roles: Roles) -> list[Declared]:
        passives, workers = roles.having(PASSIVE), (ACTIVE, PASSIVE)
        stored = stored_of(job)
        parts = job.protocol.sum_for(len(passives)).declares(passives)
        found = recast(parts, {COLLECTOR: (ACTIVE,), CONTRIBUTOR: (PASSIVE,)}, space=Reals)
        told = workers if job.optimizer.shows_labels else (ACTIVE,)
        found += recast(stored.declares(), {COLLECTOR: (SERVER,), CONTRIBUTOR: workers, READER: told})
        found += recast(pulls.declares(stored, told), {READER: told})
        if SERVER not in roles.kinds:
            found += peer_pulls.declares()
        if job.protocol.residual is None:
            return found + shown_labels.declares()
        begins = Declared(pulls.Position, ACTIVE, PASSIVE, Reveal("public"))
        return [*found, begins, *job.protocol.residual.declares()]

    def counts(self, job: FdmlJob, sizes: Sizes) -> list[Disclosure]:
        return fdml_counts.counts(job, sizes)

    def protocols(self, job: FdmlJob, roles: Roles) -> list[MessageProtocol]:
        found: list[MessageProtocol] = [job.protocol.sum_for(len(roles.having(PASSIVE)))]
        return found if job.protocol.residual is None else [*found, job.protocol.residual]

    def title(self, job: FdmlJob, roles: Roles) -> str:
        down = "labels at all" if job.protocol.residual is None else f"{job.protocol.residual.name} residual"
        if roles.having(SERVER):
            return f"{stored_of(job).name} payloads at a server / {down}"
        return f"open payloads at all workers / {down}"

    def label(self, job: FdmlJob, contributors: int) -> str:
        residual = job.protocol.residual
        return f"{stored_of(job).label}/{'labels' if residual is None else residual.label}"

    def strength(self, job: FdmlJob) -> str:
        return fdml_counts.strength(job)

    def openings(self, job: FdmlJob, sizes: Sizes) -> str:
        if job.protocol.residual is None:
            return ""
        columns = sizes.batches * len(sizes.passives) * sizes.outputs
        return job.protocol.residual.openings(
            sizes.batches * sum(sizes.parameters.values()), sizes.epochs, columns=columns
        )

    def tells(self, job: FdmlJob, roles: Roles, party: str, known: Known | None) -> list[Told]:
        return fdml_counts.tells(job, roles, party, known)

    def pooling(self, job: FdmlJob, roles: Roles) -> str:
        return fdml_counts.pooling(job, roles)

    def player(self, job: FdmlJob, seat: Seat, columns: int, state: State | None) -> Player:
        if seat.roles.role(seat.me) == SERVER:
            return FdmlServer(job, seat)
        return FdmlWorker(job, seat, columns, state)

    def ideal(self, job: J) -> J:
        residual = None if job.protocol.residual is None else OpenResidual()
        stored = StoredOpen(noise=stored_of(job).noise)
        protocol = Protocol(sum=DirectSum(), stored=stored, residual=residual)
        return job.model_copy(update={"protocol": protocol, "max_label_auc": None})
