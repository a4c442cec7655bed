"""A party's own state on disk, so that a run goes on where it was cut off.

Before the first round and after every `every` rounds a party writes its weights, its history and two secrets of its
own: what the features of a kernel model are drawn from, and the key of the noise that a defence adds to residuals.
Never another party's data, and no session or encryption key: these are made anew. Beside them stand the fingerprints
of the certificate keys it has trained with, its own too, so that it notices who comes back with another one. Parties
tell each other which rounds they have and go on from the last one that all have; a party that is through keeps its
part until all are. What follows is the same arithmetic on the same numbers: in the open, under Paillier and under
masked sums the final weights are those of the undisturbed run, bit for bit, and a round that is done again releases
what it released before, noise and all. Features and noise are drawn anew in every training, so states go together only
if they are of the same one; else everyone starts anew. As no residual goes down before all have a state, none is
released twice.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from securevfl.crypto.scheme import Floats
from securevfl.errors import DataError
from securevfl.files import write_whole
from securevfl.part import Part

SCHEMA = "securevfl.checkpoint/3"
KEPT = 4  # parties are at most this many checkpoints apart
FINISHED = 1 << 62  # the round of a party whose part is on disk


@dataclass(frozen=True)
class State:
    """One party after `round` rounds. theta (d x c); `key` and `run` as in `Part`; identities as `Channel.keys`.

    noise: the key of what it blurs (`securevfl.protocols.defences.Noise`).
    """

    round: int
    exchanges: int
    theta: Floats
    key: bytes = field(repr=False)
    noise: bytes = field(repr=False)
    history: list[dict[str, float]]
    run: str
    identities: dict[str, str]


class Checkpoints:
    """The states of one party in one job, in a folder of its own."""

    def __init__(self, folder: str | Path, party: str, *, every: int = 10) -> None:
        if every < 1:
            raise DataError(f"{party}: a checkpoint every 1 or more rounds was expected, got {every}")
        self.every = every
        self._folder = Path(folder)
        self._party = party

    def due(self, rounds: int) -> bool:
        """Whether a state is to be written after so many rounds."""
        return rounds % self.every == 0

    def rounds(self, job: bytes, *, constant: bool = False) -> tuple[int, ...]:
        """The rounds that states of this job are there for.

        `constant`: the state is the same at every round, as that of a party without coefficients in a kernel model;
        such a party may be far ahead of the others, and its newest state serves for all rounds before it.
        """
        rounds = self._states(job)
        if constant:
            rounds = list(range(0, max(rounds) + 1, self.every)) if rounds else []
        return (*rounds, *([FINISHED] if (self._folder / self._name(job, FINISHED)).exists() else ()))

    def save(self, job: bytes, state: State) -> None:
        """Writes a state, whole or not at all and readable by its owner alone, and drops the oldest."""
        kept = {
            "schema": SCHEMA,
            "round": state.round,
            "exchanges": state.exchanges,
            "shape": state.theta.shape,
            "theta": state.theta.ravel().tolist(),
            "key": state.key.hex(),
            "noise": state.noise.hex(),
            "history": state.history,
            "run": state.run,
            "identities": state.identities,
        }
        write_whole(self._folder / self._name(job, state.round), json.dumps(kept).encode())
        for old in self._states(job)[:-KEPT]:
            (self._folder / self._name(job, old)).unlink(missing_ok=True)

    def load(self, job: bytes, rounds: int) -> State:
        """The state after so many rounds, or the first after it. DataError if its file is missing or none of ours."""
        there = min((later for later in self._states(job) if later >= rounds), default=rounds)
        path = self._folder / self._name(job, there)
        try:
            kept = json.loads(path.read_text(encoding="utf-8"))
            if kept["schema"] != SCHEMA:
                raise DataError(
                    f"{path}: a checkpoint of schema {SCHEMA} was expected, another version wrote this one; "
                    "end the run with that version, or remove it to start anew"
                )
            if kept["round"] != there:
                raise KeyError
            theta = np.array(kept["theta"], dtype=np.float64).reshape(kept["shape"])
            key, noise = bytes.fromhex(kept["key"]), bytes.fromhex(kept["noise"])
            identities = {str(name): str(each) for name, each in kept["identities"].items()}
            return State(rounds, kept["exchanges"], theta, key, noise, kept["history"], str(kept["run"]), identities)
        except OSError as cause:
            raise DataError(f"{path}: a checkpoint was expected there ({cause.strerror})") from None
        except (AttributeError, KeyError, TypeError, ValueError):
            raise DataError(f"{path}: a checkpoint of schema {SCHEMA} was expected; remove it to start anew") from None

    def run(self, job: bytes) -> str:
        """The training that the states and the outcome are of; empty if there are none."""
        part, rounds = self.final(job), self._states(job)
        if part is not None:
            return part.run
        return self.load(job, rounds[-1]).run if rounds else ""

    def finish(self, job: bytes, part: Part) -> None:
        """Keeps the outcome, until `clear` or `reopen`."""
        part.save(self._folder / self._name(job, FINISHED))

    def final(self, job: bytes) -> Part | None:
        """The outcome if the job has ended for this party, without its books. DataError if its file is spoilt."""
        path = self._folder / self._name(job, FINISHED)
        return Part.load(path) if path.exists() else None

    def reopen(self, job: bytes) -> None:
        """Forgets the outcome, as not everyone has one: the parts of one run must fit together."""
        (self._folder / self._name(job, FINISHED)).unlink(missing_ok=True)

    def clear(self, job: bytes) -> None:
        """Removes the states of a job that has ended."""
        for rounds in self._states(job):
            (self._folder / self._name(job, rounds)).unlink(missing_ok=True)
        self.reopen(job)
        for draft in self._folder.glob(f".{self._name(job, '*')}.*"):  # of a process that was killed while it wrote
            draft.unlink(missing_ok=True)
        with suppress(OSError):
            self._folder.rmdir()

    def _states(self, job: bytes) -> list[int]:
        found = (path.stem.rsplit("-", 1)[1] for path in self._folder.glob(self._name(job, "[0-9]*")))
        return sorted(map(int, found))

    def _name(self, job: bytes, rounds: int | str) -> str:
        last = "final" if rounds == FINISHED else f"round-{rounds}"
        return f"{self._party}.{job.hex()[:16]}.{last}.json"


def common_round(saved: Sequence[Sequence[int]]) -> int | None:
    """The last round that every party has a state for; None if there is none."""
    return max(set.intersection(*map(set, saved)), default=None)
