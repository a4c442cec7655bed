"""A party's checkpoints on disk, from which an interrupted run resumes.

The *participant* is the object that trains one party's part of the model (`securevfl.families.participant`). A
checkpoint after a round contains the participant's state, the history of the training, and fingerprints of all parties'
certificate keys. The state may contain secrets, but no encryption or session key. The *outcome* is the part of the
model, which a party stores when it has finished, until all have finished.

A resumed run starts after the last round of which all parties have a checkpoint. Without encryption, under Paillier and
under masked sums, its final weights equal those of an uninterrupted run bit for bit, and repeated rounds send the same
messages, noise included. States of two different runs never fit together, because random features and noise differ.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from securevfl.base.checked_files import read_checked, read_checked_json, write_checked, write_checked_json
from securevfl.base.conversion import convert
from securevfl.errors import DataError, StorageError
from securevfl.families.state import State
from securevfl.training.evaluation_records import EvaluationFile
from securevfl.training.model_part import ModelPart

CHECKPOINT_SCHEMA = "securevfl.checkpoint/7"
MAX_CHECKPOINTS = 4
"""Number of checkpoints that are stored; parties are at most this many checkpoints apart."""
FINISHED_ROUND = 1 << 62
"""Number of rounds that stands for a finished party, whose part of the model is on disk."""


@dataclass(frozen=True)
class Checkpoint:
    """The state of one party after some rounds.

    Attributes:
        round: number of rounds.
        run: id of the training (`ModelPart.run`).
        history: the records of the rounds.
        identities: fingerprints of the parties' certificate keys (`Channel.keys`).
        state: state of the party's participant.
        constant: True if the newest state may be used for every earlier round, because the state does not change or the
            party works at its own pace. Such a party may be far ahead of the others.
        preparation: the steps that prepare its columns, as plain data.
        best: state of the best model so far, if early stopping (`patience`) stores one.
        session: id, in hex, of the session (connection of all parties) in which the party trained last.
        over: True if the training is complete, after its last round or because it was stopped.
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
    """The checkpoints of one party in a folder.

    Args:
        folder: the folder.
        party: name of the party.
        every: number of rounds between two checkpoints.

    Attributes:
        folder: the folder.
        every: number of rounds between two checkpoints.

    Raises:
        DataError: if `every` is not positive.
    """

    def __init__(self, folder: str | Path, party: str, *, every: int = 10) -> None:
        if every < 1:
            raise DataError(
                f"{party}: the number of rounds between two checkpoints is {every}",
                "set `every` to at least 1",
                code="SVFL-JOB-OPTION",
                option="every",
            )
        self.every = every
        self.folder = Path(folder)
        self._party = party
        self._outcomes: dict[bytes, ModelPart] = {}  # by digest of the job: outcomes that are stored in other files

    def due(self, rounds: int) -> bool:
        """Return whether a checkpoint must be written after this number of rounds."""
        return rounds % self.every == 0

    def rounds(self, job: bytes) -> tuple[int, ...]:
        """Return the numbers of rounds after which there are checkpoints of a job."""
        rounds = self._rounds_on_disk(job)
        if rounds and self.load(job, rounds[-1]).constant:
            rounds = list(range(0, rounds[-1] + 1, self.every))
        return (*rounds, *([FINISHED_ROUND] if self._is_finished(job) else ()))

    def save(self, job: bytes, checkpoint: Checkpoint) -> None:
        """Write a checkpoint atomically, readable by its owner only, and remove the oldest ones."""
        best = None if checkpoint.best is None else checkpoint.best.plain()
        content = {"schema": CHECKPOINT_SCHEMA} | vars(checkpoint) | {"state": checkpoint.state.plain(), "best": best}
        write_checked_json(self.folder / self._name(job, checkpoint.round), content)
        for old in self._rounds_on_disk(job)[:-MAX_CHECKPOINTS]:
            (self.folder / self._name(job, old)).unlink(missing_ok=True)

    def load(self, job: bytes, rounds: int) -> Checkpoint:
        """Load the checkpoint after `rounds` rounds, or the newest one if its state may be used for every round.

        Args:
            job: digest that identifies the job.
            rounds: the number of rounds that all parties have finished.

        Returns:
            The checkpoint, with `rounds` as its round.

        Raises:
            DataError: if the file is missing, damaged or of another version.
        """
        later = [number for number in self._rounds_on_disk(job) if number >= rounds] or [rounds]
        newest = self._read(job, later[-1])
        checkpoint = newest if newest.constant else self._read(job, later[0])
        return replace(checkpoint, round=rounds, over=checkpoint.over and checkpoint.round == rounds)

    def _read(self, job: bytes, rounds: int) -> Checkpoint:
        path = self.folder / self._name(job, rounds)
        try:
            content, has_digest = read_checked_json(path)
            if content["schema"] != CHECKPOINT_SCHEMA:
                raise DataError(
                    f"{path}: this checkpoint was written by another version of securevfl",
                    "finish the run with that version, or remove the file to start again",
                    code="SVFL-CHECKPOINT",
                    path=str(path),
                )
            if content["round"] != rounds or not has_digest:
                raise KeyError
            return convert(content, Checkpoint, hook=lambda kind, value: kind.read(value))
        except OSError as cause:
            raise DataError(
                f"{path}: the checkpoint cannot be read ({cause.strerror})", code="SVFL-CHECKPOINT", path=str(path)
            ) from None
        except (AttributeError, KeyError, TypeError, ValueError):
            raise DataError(f"{path}: the checkpoint is damaged", code="SVFL-CHECKPOINT", path=str(path)) from None

    def run(self, job: bytes) -> str:
        """Return the id of the training to which the stored checkpoints or outcome belong; empty if there are none."""
        part, rounds = self.final(job), self._rounds_on_disk(job)
        if part is not None:
            return part.run
        return self.load(job, rounds[-1]).run if rounds else ""

    def begin(self, job: bytes, run: str) -> str:
        """Return the id of the first attempt at an unfinished job.

        The party's disclosure ledger counts all attempts at the job as one run, under this id.

        Args:
            job: digest that identifies the job.
            run: id of the current run, which is stored if there was no earlier attempt.

        Returns:
            The id of the first attempt.

        Raises:
            DataError: if the file of the first attempt is damaged.
            StorageError: if it cannot be read or written.
        """
        path = self.folder / self._name(job, "begun")
        try:
            if not path.exists():
                write_checked(path, run.encode())
            return read_checked(path).decode("ascii")
        except ValueError:
            raise DataError(
                f"{path}: this file, which names the run that the checkpoints belong to, is damaged",
                "remove the folder of checkpoints to start the training again",
                code="SVFL-CHECKPOINT",
                path=str(path),
            ) from None
        except OSError as cause:
            raise StorageError(path, cause) from None

    def finish(self, job: bytes, part: ModelPart) -> None:
        """Save the party's part of the model as the outcome of the job. `clear` or `reopen` removes it."""
        part.save(self.folder / self._name(job, FINISHED_ROUND))

    def final(self, job: bytes) -> ModelPart | None:
        """Load the outcome of a job, without its cost counters, if the job has ended for this party; else None.

        Args:
            job: digest that identifies the job.

        Returns:
            The party's part of the model, or None.

        Raises:
            DataError: if the file is damaged.
        """
        path = self.folder / self._name(job, FINISHED_ROUND)
        return ModelPart.load(path) if path.exists() else self._outcomes.get(job)

    def set_outcome(self, job: bytes, part: ModelPart) -> None:
        """Treat a part of the model from another file as the outcome of a job, until `clear` or `reopen` is called."""
        self._outcomes[job] = part

    def evaluations(self, job: bytes) -> EvaluationFile:
        """Return the file of the evaluations of a job. `clear` removes it."""
        return EvaluationFile(self.folder / self._name(job, "evaluations"))

    def _is_finished(self, job: bytes) -> bool:
        return job in self._outcomes or (self.folder / self._name(job, FINISHED_ROUND)).exists()

    def reopen(self, job: bytes) -> None:
        """Discard this party's outcome, because another party has none, so that all train again together."""
        self._outcomes.pop(job, None)
        (self.folder / self._name(job, FINISHED_ROUND)).unlink(missing_ok=True)

    def remove_after(self, job: bytes, rounds: int) -> None:
        """Remove the checkpoints that are newer than the one from which the run resumes.

        The resumed run draws new masks, so newer states of the old attempt would not fit together with new ones.
        """
        for later in self._rounds_on_disk(job):
            if later > rounds:
                (self.folder / self._name(job, later)).unlink(missing_ok=True)

    def clear(self, job: bytes, *, same_run: bool = False) -> None:
        """Remove the checkpoints of a job that has ended or starts again.

        Args:
            job: digest that identifies the job.
            same_run: True if the party's disclosure ledger counts the next attempt as the same run.
        """
        if not same_run:
            (self.folder / self._name(job, "begun")).unlink(missing_ok=True)
        for rounds in self._rounds_on_disk(job):
            (self.folder / self._name(job, rounds)).unlink(missing_ok=True)
        (self.folder / self._name(job, "evaluations")).unlink(missing_ok=True)
        self.reopen(job)
        # remove incomplete files of a process that was killed while it wrote them
        for draft in self.folder.glob(f".{self._prefix(job)}.*.json.*"):
            draft.unlink(missing_ok=True)
        with suppress(OSError):
            self.folder.rmdir()

    def _rounds_on_disk(self, job: bytes) -> list[int]:
        rounds = (path.stem.rsplit("-", 1)[1] for path in self.folder.glob(self._name(job, "[0-9]*")))
        return sorted(map(int, rounds))

    def _name(self, job: bytes, rounds: int | str) -> str:
        suffix = {FINISHED_ROUND: "final", "begun": "begun", "evaluations": "evaluations"}.get(
            rounds, f"round-{rounds}"
        )
        return f"{self._prefix(job)}.{suffix}.json"

    def _prefix(self, job: bytes) -> str:
        """Return the beginning of the names of all files of a job."""
        return f"{self._party}.{job.hex()[:16]}"


def common_round(saved: Sequence[Sequence[int]]) -> int | None:
    """Return the last round of which every party has a checkpoint; None if there is none."""
    return max(set.intersection(*map(set, saved)), default=None)
