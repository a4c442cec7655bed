"""What a family of training is: a method makes a player for each party, and a player trains, predicts and is kept.

A `Method` knows everything that is special about its family: which models and roles fit, what its messages reveal, what
a whole run adds up to, what that means in words. A session (`securevfl.training.session`) drives any player in the same
way:

    meet, check, count, make the player
    for round in player.train(data, start):      evaluate, keep, report, stop in between
    keep player.outcome()

so that nothing outside a method's own files, the registry `METHODS` and its tests names it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, ClassVar, Protocol, TypeVar

import numpy as np

from securevfl.config import Named
from securevfl.crypto.scheme import Floats
from securevfl.data.party import Party
from securevfl.data.schedule import Schedule, Visit
from securevfl.disclosure.counts import Disclosure, Sizes
from securevfl.errors import ConfigError, PartiesError
from securevfl.methods.data import TrainingData
from securevfl.methods.divergence import Divergence, check_outcome
from securevfl.methods.state import State
from securevfl.models import metrics
from securevfl.models.base import Model
from securevfl.models.losses import Loss
from securevfl.options import JobOptions
from securevfl.protocols.base import Batch, Declared, ResidualProtocol, Seat, SumProtocol
from securevfl.protocols.notes import Began
from securevfl.roles import ACTIVE, PASSIVE, Role, Roles

MessageProtocol = SumProtocol | ResidualProtocol
Told = tuple[str, str]  # a word of the consent sheet, such as "learns", and a text of one line or more
J = TypeVar("J", bound=JobOptions)


class OwnRows(Protocol):
    """Rows of one party's columns, scaled as in training, read by slices; an array (m x d) is one."""

    def __len__(self) -> int: ...

    def __getitem__(self, rows: slice, /) -> Floats: ...


@dataclass(frozen=True)
class AskedRows:
    """New rows that are asked about: digests of their ids, and this party's columns (m x d) before any scaling."""

    ids: Sequence[bytes]
    raw: Floats


@dataclass(frozen=True)
class Round:
    """One round that is over. number counts from 1, those before a resume included; loss: its mean, where known."""

    number: int
    of: int
    epoch: int
    loss: float | None = None


class Player(ABC):
    """One party at work under one method."""

    calibration: Sequence[list[float]] = ()  # of two classes, as of the last measurement (`metrics.calibration`)

    @abstractmethod
    def train(self, data: TrainingData, start: int = 0) -> Generator[Round]:
        """Trains, `start` rounds having been done before, and hands over after every round.

        In between all parties may evaluate, keep their states, or stop for good, which closes this generator.
        """

    @abstractmethod
    def decision(self, rows: OwnRows, asked: AskedRows | None = None) -> Floats | None:
        """f (m x c) on these rows, of which every party brings its columns; None where it is not for this party.

        asked: their ids and columns as they are, where there are any.
        """

    def measure(self, loss: Loss, data: TrainingData, rounds: int, *, last: bool) -> dict[str, float]:
        """Metrics on the rows that are evaluated, with all other parties; empty where they are not for this party.

        rounds: done so far. last: the training is over. DivergenceError if it has left the numbers.
        """
        rows = data.evaluated
        f, labels = self.decision(rows), data.labels(rows.rows)
        if f is None or labels is None or data.classes is None:
            return {}
        check_outcome(loss, f, loss.targets(labels, data.classes), rounds)
        if loss.classifies and len(data.classes) == 2:
            self.calibration = metrics.calibration(labels == data.classes[1], loss.proba(f)[:, 1]).tolist()
        return metrics.evaluate(loss, f, labels, data.classes)

    def prepare(self, data: TrainingData) -> Generator[Round]:
        """Does all work that can be done before the training, with all other parties; hands over as `train` does.

        ConfigError for a method that has none.
        """
        raise ConfigError(f"{type(self).__name__} has nothing to prepare; start the training at once")

    @property
    def exchanges(self) -> int:
        """How often all parties have exchanged something so far, before a resume included."""
        return 0

    @property
    def constant(self) -> bool:
        """Whether one state serves any round before it: it is the same at every round, or the player goes at a pace of
        its own and knows by its state how far it is."""
        return False

    @abstractmethod
    def state(self) -> State:
        """All that a resume needs beside the training data."""

    def outcome(self) -> State:
        """What predicting needs of the state: the party's part of the model."""
        return self.state()


@dataclass(frozen=True)
class Known:
    """What is known of a run before it: the parties whose tables are at hand, the leading one first if it is
    among them, the sizes of all, and which rows come when."""

    parties: tuple[Party, ...]
    schedule: Schedule
    sizes: Sizes

    def table(self, name: str) -> Floats | None:
        """The columns (n x d) of the party of this name, where they are at hand."""
        return next((party.X for party in self.parties if party.name == name), None)


class Method(Named, ABC):
    """A family of training: what parties exchange, what that tells, and how one of them plays.

    most: how many parties it is made for, if it is not for any number. weighs: whether rows may count differently
    (`securevfl.models.weights`). bins: whether classes in bins can be told by its residual (`securevfl.data.evidence`).
    stores: whether local predictions lie at a server (`securevfl.protocols.stored_sum`). helpers: the parties without a
    table that its examples are run with, by name and role.
    """

    most: ClassVar[int | None] = None
    weighs: ClassVar[bool] = False
    bins: ClassVar[bool] = False
    stores: ClassVar[bool] = False
    helpers: ClassVar[tuple[tuple[str, Role], ...]] = ()

    @abstractmethod
    def trains(self, model: type[Model]) -> bool:
        """Whether it can train this kind of model."""

    @abstractmethod
    def check(self, job: JobOptions) -> None:
        """ValueError, with the remedy, if the options do not go together."""

    def role(self, party: Party) -> Role:
        """What this party is in a run: what it says itself, or by whether it has labels."""
        return party.role or (ACTIVE if party.active else PASSIVE)

    def admits(self, role: Role, *, leads: bool) -> bool:
        """Whether there is a place for a party of this role, first among all or not."""
        return role == (ACTIVE if leads else PASSIVE)

    def cast(self, parties: Sequence[Party]) -> Roles:
        """The roles of these parties, the leading one first. PartiesError if they make no run of this method."""
        if self.most is not None and len(parties) > self.most:
            raise PartiesError(
                f"at most {self.most} parties were expected for {self.name}, {len(parties)} came; leave out others"
            )
        roles = Roles.of((party.name, self.role(party)) for party in parties)
        wrong = [name for k, (name, role) in enumerate(roles.cast) if not self.admits(role, leads=k == 0)]
        if wrong:
            labelled = ", ".join(party.name for party in parties if party.active) or "none"
            if labelled != roles.lead:
                raise PartiesError(
                    f"exactly one party with labels was expected, with labels: {labelled}; pass y to one Party only"
                )
            found = ", ".join(f"{name} ({roles.role(name)})" for name in wrong)
            raise PartiesError(f"{self.name} has no place for {found}; leave them out")
        return roles

    def assigned(self, job: JobOptions, roles: Roles, columns: Mapping[str, int]) -> Roles:
        """The roles once it is known how many columns each party has (d_k; empty where that is not known).

        PartiesError if the job asks for parties that are not there.
        """
        return roles

    def asker(self, job: JobOptions, lead: str) -> str:
        """Who is told f of new rows; `lead` is the party that leads."""
        return lead

    @abstractmethod
    def examples(self) -> dict[str, dict[str, Any]]:
        """The options of small jobs (model, optimizer, protocol), by name, that checks run whole and docs speak of."""

    @abstractmethod
    def declares(self, job: JobOptions, roles: Roles) -> list[Declared]:
        """What every message of a run reveals, those of the handshake left out."""

    @abstractmethod
    def counts(self, job: JobOptions, sizes: Sizes) -> list[Disclosure]:
        """What a whole run adds up to."""

    @abstractmethod
    def protocols(self, job: JobOptions, roles: Roles) -> list[MessageProtocol]:
        """The message protocols that a run is made of; each can be audited alone."""

    @abstractmethod
    def title(self, job: JobOptions, roles: Roles) -> str:
        """How parties exchange, in a few words."""

    def label(self, job: JobOptions, contributors: int) -> str:
        """The names of its protocols in a cost table, over so many contributors."""
        return job.protocol.label(contributors)

    @abstractmethod
    def strength(self, job: JobOptions) -> str:
        """Assumption and key strength of what is encrypted, one line for people."""

    def openings(self, job: JobOptions, sizes: Sizes) -> str:
        """What is opened in a run beside what it should tell, one line for people; empty where nothing is."""
        return ""

    @abstractmethod
    def tells(self, job: JobOptions, roles: Roles, party: str, known: Known | None) -> list[Told]:
        """What a party `learns` from what it receives and what it `keeps`, in words; without `known` as formulas."""

    @abstractmethod
    def pooling(self, job: JobOptions, roles: Roles) -> str:
        """Who must pool what they hold to learn more than is declared."""

    @abstractmethod
    def player(self, job: JobOptions, seat: Seat, columns: int, state: State | None) -> Player:
        """One party at its seat, with so many columns (d); going on from a state, or to predict with a model.

        All parties make theirs at the same point: protocols may exchange keys.
        """

    def drawn(self, state: State) -> State | None:
        """What a player had drawn for itself by the time it began, from what it keeps; None if it draws nothing."""
        return None

    def weights(self, job: JobOptions, state: State, parties: int) -> Floats:
        """What a party of a run of so many has of its own weights (d x c) at the end; (0 x 1) without any."""
        weights: Floats = state.get("theta", np.zeros((0, 1)))
        return weights

    @abstractmethod
    def ideal(self, job: J) -> J:
        """The same training with nothing hidden or encrypted: what the declared outputs are computed from."""


class BatchPlayer(Player):
    """A player that goes through the batches of the schedule; what its optimizer sees of the party."""

    def __init__(self, job: JobOptions, seat: Seat) -> None:
        self.parties = len(seat.parties)  # K
        self.seed = job.seed
        self.start = 0  # rounds done before, where it goes on from a state
        self._job = job
        self._channel = seat.channel
        self.loss = job.loss
        self._visit: Visit | None = None
        self._booked: float | None = None
        self._watch: Divergence | None = None
        self._round = 0  # the one that is being done, from 1

    @property
    def data(self) -> TrainingData:
        """What it trains on."""
        return self._data

    def begin(self, data: TrainingData, start: int) -> None:
        """To be called first."""
        self._data = data
        self.start = start
        self._watch = None if data.targets is None else Divergence(self.loss, len(data.schedule.train))

    def batches(self) -> Iterator[Batch]:
        """This party's side of every batch still to come, in the order all share."""
        for number, visit in enumerate(islice(self._data.schedule.visits(), self.start, None), self.start + 1):
            self._round, self._visit, self._booked = number, visit, None
            self._channel.note(Began(visit.index))
            yield self.batch(visit)

    def visited(self, number: int) -> Batch:
        """This party's side of the batch of an earlier round, counted from 0."""
        return self.batch(next(islice(self._data.schedule.visits(), number, None)))

    def later(self, k: int) -> Batch | None:
        """This party's side of the batch k rounds after the one that is being done, or was done last; None after the
        end."""
        visit = next(islice(self._data.schedule.visits(), self._round - 1 + k, None), None)
        return None if visit is None else self.batch(visit)

    def batch(self, visit: Visit) -> Batch:
        """This party's side of a batch."""
        return self._data.batch(visit)

    def residual(self, f: Floats, batch: Batch) -> Floats:
        """g (n x c) of the loss at f (n x c); the first of a batch also books its loss. Only with labels.

        DivergenceError if the loss is that of no model; LabelError if a label is too far from the others to be sealed.
        """
        assert batch.y is not None, "only a party with labels knows the loss"
        assert self._watch is not None, "it has begun"
        if self._booked is None:
            self._booked = self._watch.see(self._round, f, batch.y)
        g = self.loss.residual(f, batch.y)
        if self._job.protocol.seals:
            self._watch.check_sealable(self._round, g, batch.y)
        return g

    def book(self, loss: float) -> None:
        """Notes the mean loss of a batch, the first time in a visit."""
        if self._booked is None:
            self._booked = loss

    def rounds(self, work: Iterator[None]) -> Iterator[Round]:
        """A round for each step of an optimizer's work."""
        for number, _ in enumerate(work, self.start + 1):
            assert self._visit is not None, "an optimizer takes a batch before it is done with one"
            yield Round(number, len(self._data.schedule), self._visit.epoch, self._booked)
