"""A party's own state on disk, so that a run goes on where it was cut off.

Before the first round and after every `every` rounds a party writes what its player keeps
(`securevfl.families.participant`),
which may hold secrets of its own, as the key of the noise that a defence adds to residuals; and its history. Of other
parties' data only sums that it has received and will step on again (`securevfl.optim.celu`), and no session or
encryption key: these are made anew. Beside them stand the fingerprints of the certificate keys it has trained with, its
own too, so that it notices who comes back with another one. Parties tell each other which rounds they have and go on
from the last one that all have; a party that is through keeps its part until all are. What follows is the same
arithmetic on the same numbers: in the open, under Paillier and under masked sums the final weights are those of the
undisturbed run, bit for bit, and a round that is done again releases what it released before, noise and all. Features
and noise are drawn anew in every training, so states go together only if they are of the same one; else everyone starts
anew. As no residual goes down before all have a state, none is released under two noises.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec

from securevfl.base.checked_files import read_checked, read_checked_json, write_checked, write_checked_json
from securevfl.errors import DataError, StorageError
from securevfl.families.state import State
from securevfl.training.model_part import ModelPart

SCHEMA = "securevfl.checkpoint/7"
MAX_CHECKPOINTS = 4  # parties are at most this many checkpoints apart
FINISHED_ROUND = 1 << 62  # the round of a party whose part is on disk


@dataclass(frozen=True)
class Checkpoint:
    """One party after `round` rounds: what its player keeps, and what it has noted. identities as `Channel.keys`.

    run: as in `ModelPart`. constant: the newest state of this party serves for all rounds before it, as it is the same
    at every round or the party goes at a pace of its own; such a party may be far ahead of the others. preparation: the
    steps that make its columns, as plain data. best: its part of the best model so far, if patience keeps that.
    session: the last in which it was trained, as channels name it; empty in states of earlier versions. over: the
    training is through, after its last round or as it was stopped before.
    """

    round: int
    run: str
    history: list[dict[str, float]]
    identities: dict[str, str]
    state: State
    constant: bool = False
    preparation: list[dict[str, Any]] = field(default_factory=list)
    best: State | None = None
    session: str = ""
    over: bool = False


class Checkpoints:
    """The states of one party in one job, in a folder of its own."""

    def __init__(self, folder: str | Path, party: str, *, every: int = 10) -> None:
        if every < 1:
            raise DataError(f"{party}: a checkpoint every 1 or more rounds was expected, got {every}")
        self.every = every
        self.folder = Path(folder)
        self._party = party
        self._over: dict[bytes, ModelPart] = {}  # outcomes that are kept elsewhere

    def due(self, rounds: int) -> bool:
        """Whether a state is to be written after so many rounds."""
        return rounds % self.every == 0

    def rounds(self, job: bytes) -> tuple[int, ...]:
        """List the rounds for which there are states of this job."""
        rounds = self._states(job)
        if rounds and self.load(job, rounds[-1]).constant:
            rounds = list(range(0, rounds[-1] + 1, self.every))
        return (*rounds, *([FINISHED_ROUND] if self._is_over(job) else ()))

    def save(self, job: bytes, saved: Checkpoint) -> None:
        """Write a state, whole or not at all and readable by its owner alone, and drop the oldest."""
        best = None if saved.best is None else saved.best.plain()
        kept = {"schema": SCHEMA} | vars(saved) | {"state": saved.state.plain(), "best": best}
        write_checked_json(self.folder / self._name(job, saved.round), kept)
        for old in self._states(job)[:-MAX_CHECKPOINTS]:
            (self.folder / self._name(job, old)).unlink(missing_ok=True)

    def load(self, job: bytes, rounds: int) -> Checkpoint:
        """Load the state after `rounds` rounds: the newest if it serves for that, else the first after it. Raises
        DataError if its file is missing or none of ours."""
        later = [each for each in self._states(job) if each >= rounds] or [rounds]
        newest = self._read(job, later[-1])
        found = newest if newest.constant else self._read(job, later[0])
        return replace(found, round=rounds, over=found.over and found.round == rounds)

    def _read(self, job: bytes, there: int) -> Checkpoint:
        path = self.folder / self._name(job, there)
        try:
            kept, checked = read_checked_json(path)
            if kept["schema"] != SCHEMA:
                raise DataError(
                    f"{path}: a checkpoint of schema {SCHEMA} was expected, another version wrote this one; "
                    "end the run with that version, or remove it to start anew"
                )
            if kept["round"] != there or not checked:
                raise KeyError
            return msgspec.convert(kept, Checkpoint, dec_hook=lambda kind, value: kind.read(value))
        except OSError as cause:
            raise DataError(f"{path}: a checkpoint was expected there ({cause.strerror})") from None
        except (AttributeError, KeyError, TypeError, ValueError):
            raise DataError(
                f"{path}: a whole checkpoint of schema {SCHEMA} was expected, it is damaged; remove it to start anew"
            ) from None

    def run(self, job: bytes) -> str:
        """Return the id of the training that the states and the outcome are of; empty if there are none."""
        part, rounds = self.final(job), self._states(job)
        if part is not None:
            return part.run
        return self.load(job, rounds[-1]).run if rounds else ""

    def begin(self, job: bytes, run: str) -> str:
        """Return the run that this party counts its tries at the job under: of the first since one has ended, or this
        one, which is kept from now on. DataError if its file is spoilt."""
        path = self.folder / self._name(job, "begun")
        try:
            if not path.exists():
                write_checked(path, run.encode())
            first = read_checked(path).decode("ascii")
        except ValueError:
            raise DataError(f"{path}: the name of a run was expected there; remove the file to start anew") from None
        except OSError as cause:
            raise StorageError(path, cause) from None
        return first

    def finish(self, job: bytes, part: ModelPart) -> None:
        """Save the outcome, until `clear` or `reopen`."""
        part.save(self.folder / self._name(job, FINISHED_ROUND))

    def final(self, job: bytes) -> ModelPart | None:
        """Load the outcome if the job has ended for this party, without its books; None if it has not. Raises DataError
        if its file is spoilt."""
        path = self.folder / self._name(job, FINISHED_ROUND)
        return ModelPart.load(path) if path.exists() else self._over.get(job)

    def set_outcome(self, job: bytes, part: ModelPart) -> None:
        """Take this as the outcome, until `clear` or `reopen`: it is kept in a file of its own."""
        self._over[job] = part

    def _is_over(self, job: bytes) -> bool:
        return job in self._over or (self.folder / self._name(job, FINISHED_ROUND)).exists()

    def reopen(self, job: bytes) -> None:
        """Forgets the outcome, as not everyone has one: the parts of one run must fit together."""
        self._over.pop(job, None)
        (self.folder / self._name(job, FINISHED_ROUND)).unlink(missing_ok=True)

    def remove_after(self, job: bytes, rounds: int) -> None:
        """Remove the states later than this one, from which the run goes on: where masks are drawn anew, what follows
        is not what it was, and states of two tries do not go together."""
        for later in self._states(job):
            if later > rounds:
                (self.folder / self._name(job, later)).unlink(missing_ok=True)

    def clear(self, job: bytes, *, anew: bool = False) -> None:
        """Remove the states of a job that has ended, or that begins anew and is still the same job to the ledger."""
        if not anew:
            (self.folder / self._name(job, "begun")).unlink(missing_ok=True)
        for rounds in self._states(job):
            (self.folder / self._name(job, rounds)).unlink(missing_ok=True)
        self.reopen(job)
        for draft in self.folder.glob(f".{self._name(job, '*')}.*"):  # of a process that was killed while it wrote
            draft.unlink(missing_ok=True)
        with suppress(OSError):
            self.folder.rmdir()

    def _states(self, job: bytes) -> list[int]:
        found = (path.stem.rsplit("-", 1)[1] for path in self.folder.glob(self._name(job, "[0-9]*")))
        return sorted(map(int, found))

    def _name(self, job: bytes, rounds: int | str) -> str:
        last = {FINISHED_ROUND: "final", "begun": "begun"}.get(rounds, f"round-{rounds}")
        return f"{self._party}.{job.hex()[:16]}.{last}.json"


def common_round(saved: Sequence[Sequence[int]]) -> int | None:
    """Return the last round for which every party has a state; None if there is none."""
    return max(set.intersection(*map(set, saved)), default=None)
