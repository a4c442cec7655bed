"""Training on additive shares: weights, forward sums, residuals and gradients are seen by nobody, first to last.

    ahead     every product of a stretch of visits, of random vectors with columns, and transfers for its tables
    a visit   one round trip of the two holders of shares, the active party and its partner (three messages in a row
              with more parties): the residual comes out of a table of the loss, in shares
    scores    of rows that were agreed on, to the active party

Who learns what: sizes, and the agreed scores at the active party. See `securevfl.protocols.shares` and its siblings for
the messages, `securevfl.methods.shares_plan` for which optimizers fit, `securevfl.methods.shares_player` for a party.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from securevfl.crypto.scheme import Floats
from securevfl.crypto.share_ring import ShareRing
from securevfl.disclosure.counts import Disclosure, Sizes
from securevfl.errors import PartiesError
from securevfl.methods.base import J, Known, MessageProtocol, Method, Player, Told
from securevfl.methods.shares_plan import check_optimizer, plan
from securevfl.methods.shares_player import SharesPlayer
from securevfl.methods.sizes import evaluations
from securevfl.methods.state import State
from securevfl.models.base import Model
from securevfl.models.linear import LinearModel, Logistic
from securevfl.optim.fedbcd import FedSGD
from securevfl.options import JobOptions
from securevfl.protocols import shares, shares_ahead, shares_chunks, shares_measure, shares_opened, shares_predict
from securevfl.protocols.base import Declared, Seat
from securevfl.protocols.choice import Protocol
from securevfl.protocols.shares_ledger import FEWEST_VISITS
from securevfl.protocols.shares_options import Shares
from securevfl.roles import ACTIVE, PARTNER, PASSIVE, Role, Roles

MEASURES = ("loss", "r2", "rmse")  # what one opened sum tells


class SharesMethod(Method):
    """Shares at two holders, for linear models whose loss is a table of one sum."""

    name: ClassVar[str] = "shares"

    def trains(self, model: type[Model]) -> bool:
        return issubclass(model, LinearModel)

    def check(self, job: JobOptions) -> None:
        if job.protocol.shares is None:
            raise ValueError(
                f"optimizer {job.optimizer.name} trains on shares; set protocol.shares, as in [protocol.shares]"
            )
        if not job.model.loss.elementwise:
            raise ValueError(
                f"loss {job.model.loss.name} mixes the sums of all classes in each residual, which no table of one sum "
                "gives; use one_vs_rest"
            )
        check_optimizer(job)
        if job.reshuffle:
            raise ValueError("shares prepare batches ahead, which stay the same; set reshuffle = false")
        if job.target is not None and job.target.metric not in MEASURES:
            raise ValueError(
                f"target.metric must be one of {', '.join(MEASURES)} under shares, where one sum is opened while a "
                "training goes on and scores are told once, at its end; choose one of these"
            )

    def admits(self, role: Role, *, leads: bool) -> bool:
        return role == (ACTIVE if leads else PASSIVE)

    def assigned(self, job: JobOptions, roles: Roles, columns: Mapping[str, int]) -> Roles:
        """The partner is the one that the job names, or who has the most columns, the first of several."""
        passives, chosen = roles.having(PASSIVE), _options(job).partner
        if PARTNER in roles.kinds:
            return roles
        if chosen is not None and chosen not in passives and columns:
            raise PartiesError(f"protocol.shares.partner: one of {', '.join(passives)} was expected; name one of these")
        asks = _options(job).scores_to
        for key, named in (("open_weights", _options(job).open_weights), ("scores_to", (asks,) if asks else ())):
            if columns and (strange := set(named) - set(roles.parties)):
                raise PartiesError(
                    f"protocol.shares.{key}: some of {', '.join(roles.parties)} were expected, {', '.join(strange)} "
                    "came; correct the names"
                )
        partner = chosen if chosen in passives else max(passives, key=lambda name: columns.get(name, 0))
        return Roles.of((name, PARTNER if name == partner else role) for name, role in roles.cast)

    def asker(self, job: JobOptions, lead: str) -> str:
        return _options(job).scores_to or lead

    def examples(self) -> dict[str, dict[str, Any]]:
        own = {"model": Logistic(), "optimizer": FedSGD(lr=0.3)}
        opened = Protocol(shares=Shares(open_weights=("shop",)))
        return {
            "shares": own | {"protocol": Protocol(shares=Shares(chunk=1))},
            "shares, weights opened": own | {"protocol": opened},
            "shares, scores to another": own | {"protocol": Protocol(shares=Shares(scores_to="shop"))},
        }

    def declares(self, job: JobOptions, roles: Roles) -> list[Declared]:
        asks = self.asker(job, roles.lead)
        found = [
            *shares_chunks.declares(),
            *shares_ahead.declares(),
            *shares.declares(),
            *shares_measure.declares(),
            *shares_predict.declares(),
            *shares_predict.declares(roles.role(asks) if asks in roles.parties else PASSIVE),
            *(shares_opened.declares() if _options(job).open_weights else ()),
        ]
        return [each for each in dict.fromkeys(found) if roles.may_pass(each.sender, each.receiver)]

    def counts(self, job: JobOptions, sizes: Sizes) -> list[Disclosure]:
        """The scores of the held-out rows, if they are told, and one number for each sum and each count that is
        opened."""
        scored, measured = told(job, sizes)
        opened = scored * sizes.outputs + measured + chunks(job)
        return [Disclosure("scores", sizes.active, sizes.passives, opened, 0)]

    def protocols(self, job: JobOptions, roles: Roles) -> list[MessageProtocol]:
        return []

    def title(self, job: JobOptions, roles: Roles) -> str:
        return "additive shares"

    def strength(self, job: JobOptions) -> str:
        return _options(job).strength

    def openings(self, job: JobOptions, sizes: Sizes) -> str:
        scored, measured = told(job, sizes)
        what = [f"the scores of {scored} held-out rows, once, at the end"] if scored else []
        what += [f"{measured} sums of losses, with how many rows come near the table's end"] if measured else []
        what += [f"{chunks(job)} counts of rows near the table's end, one a chunk"]
        return "; ".join(what)

    def tells(self, job: JobOptions, roles: Roles, party: str, known: Known | None) -> list[Told]:
        own = [("learns", _WEIGHTS)] if party in _options(job).open_weights else []
        if party == _options(job).scores_to and roles.role(party) != ACTIVE:
            return [
                *own,
                ("learns", "the scores f of new rows, when it asks for them; sizes; nothing else"),
                ("", _SCORES),
            ]
        if roles.role(party) != ACTIVE:
            return [*own, ("learns", "sizes: rows, columns of each party, batches, visits; nothing else")]
        if known is None:
            return [*own, ("learns", "the scores f of held-out rows, sums of losses, counts; sizes; nothing else")]
        return [*own, ("learns", f"{self.openings(job, known.sizes)}; sizes; nothing else"), ("", _SCORES)]

    def pooling(self, job: JobOptions, roles: Roles) -> str:
        partner = roles.having(PARTNER) or ("its partner",)
        return (
            f"{roles.lead} and {partner[0]} together learn every residual and sum, and their own weights; any others,\n"
            "however many, learn nothing without both"
        )

    def player(self, job: JobOptions, seat: Seat, columns: int, state: State | None) -> Player:
        return SharesPlayer(job, seat, columns, state)

    def ideal(self, job: J) -> J:
        """The job itself: what a party holds after it, messages aside, is uniform words and the agreed scores."""
        return job

    def weights(self, job: JobOptions, state: State, parties: int) -> Floats:
        """A party's share of its own weights, read as if it were these; its weights if the job opens them."""
        if "theta" in state:
            return super().weights(job, state, parties)
        made = plan(job, rows=state["sizes"]["rows"], batches=state["sizes"]["batches"], parties=parties)
        return made.numbers.weights(ShareRing(made.numbers.bits).reduce(made.rule.theta(state["own"], state["visits"])))


_WEIGHTS = """\
its own weights, as the job says, so its own part X_k theta_k, which ranks the labels about as
well as its columns can: to an AUC of .71 to .99 on public tables"""
_SCORES = """\
a score on columns that it knows tells the others' sum up to its own weights; so each row is
scored once, and never one that was trained on"""


def _options(job: JobOptions) -> Shares:
    assert job.protocol.shares is not None, "a job on shares has them"
    return job.protocol.shares


def whole_weights(job: JobOptions, states: Mapping[str, State], active: str) -> dict[str, Floats]:
    """The weights (d x c) that no party has, by party, from what all of them keep: where it is all in one place."""
    lead = states[active]
    made = plan(job, rows=lead["sizes"]["rows"], batches=lead["sizes"]["batches"], parties=len(states))
    ring, found = ShareRing(made.numbers.bits), {}
    for name, state in states.items():
        held = [state["own"], *(other["others"][name] for other in states.values() if name in other["others"])]
        rule = made.rule.sparing() if name == active else made.rule
        total = np.zeros((1, 1), np.uint64)
        for each in held:
            total = ring.reduce(total + rule.theta(each, state["visits"]))
        found[name] = made.numbers.weights(total)
    return found


def chunks(job: JobOptions) -> int:
    """How many chunks a training has."""
    return -(-job.epochs // _options(job).chunk)


def told(job: JobOptions, sizes: Sizes) -> tuple[int, int]:
    """How many rows are scored at the end of a run, and how many sums of losses are opened in it."""
    ends = sizes.held_out > 0 and sizes.epochs * sizes.batches >= FEWEST_VISITS
    return (sizes.held_out, evaluations(job, sizes) - 1) if ends else (0, evaluations(job, sizes))
