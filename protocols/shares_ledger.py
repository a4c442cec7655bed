"""What a party has let others score with its columns, across runs: a file that is asked before a score leaves.

Scores are outputs, and whoever gets them chooses its own columns freely. A score on known own columns shows the other
party's sum up to one's own; d_A + 1 questions about one row with chosen own columns show theta_A, and then the other
party's sum of every row that is asked; scores of the same rows under many models show the other party's columns up to
an invertible matrix; scores of training rows are residuals to whoever has the labels; scores of a model that was hardly
trained are products of its columns with chosen labels. So, for each peer and at most:

- a row is scored once by a model (the same question about the same rows may come again, as after a crash), and under
  fewer than d / 4 models in all (or one), d the party's own columns;
- rows that a model was trained on are never scored by it;
- a model is scored after its last visit, and after ten visits or more;
- a row comes with the columns that it came with before: whoever asks commits to them, by a digest under a key of its
  own ledger, before it is answered.

These are limits, not proofs, and a peer that does not follow the protocol may commit to what it likes. Rows are kept as
keyed hashes of their ids, a line of JSON for each block of rows, on disk before the answer is given. Processes that
share a file take turns, and each knows what the others have noted before it admits a question. A last line that was cut
off by a kill has let nothing out and is dropped. Every question is an event of the log.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from securevfl.crypto.scheme import Floats
from securevfl.errors import ConfigError, LeakageError
from securevfl.files import write_whole
from securevfl.runtime import eventlog

__all__ = ["COMMITMENT", "FEWEST_VISITS", "Ledger"]

FEWEST_VISITS = 10
COMMITMENT = 16  # bytes
_AGAIN = 4  # times that the same question is answered
_DIGEST = 16  # bytes


class Ledger:
    """One party's file of scores, or without a path what one process remembers. ConfigError if the file is none."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._trained: dict[str, set[str]] = defaultdict(set)
        self._visits: dict[str, int] = {}
        self._scored: dict[tuple[str, str], set[str]] = defaultdict(set)  # models by peer and row
        self._committed: dict[tuple[str, str], str] = {}  # by peer and row
        self._asked: dict[str, int] = defaultdict(int)  # how often, by question
        self._known = 0  # bytes of the file that are taken in
        self._key = os.urandom(32)
        with self._locked():
            pass

    def trained(self, model: bytes, visits: int, ids: Iterable[bytes]) -> None:
        """Notes a model that is ready: its name, how many visits it had, the rows it was trained on."""
        with self._locked():
            self._note({"model": model.hex(), "visits": visits, "rows": self._digests(ids)})

    def knows(self, model: bytes) -> bool:
        """Whether this model has been noted."""
        return model.hex() in self._visits

    def commitments(self, ids: Iterable[bytes], X: Floats) -> bytes:
        """What this party commits itself by to its columns X (n x d) of these rows, COMMITMENT bytes each."""
        octets = np.ascontiguousarray(X, "<f8")
        return b"".join(
            hashlib.blake2b(row.tobytes(), digest_size=COMMITMENT, key=self._key, salt=_salt(each)).digest()
            for row, each in zip(octets, ids, strict=True)
        )

    def admit(
        self, model: bytes, peer: str, ids: Iterable[bytes], commitments: bytes, columns: int, *, me: str = ""
    ) -> None:
        """Notes that `peer` gets scores of these rows. LeakageError, and nothing is noted, if the limits forbid it.

        commitments: what `peer` has sent, COMMITMENT bytes a row. columns: d, how many this party has.
        """
        rows = self._digests(ids)
        committed = [commitments[at : at + COMMITMENT].hex() for at in range(0, len(commitments), COMMITMENT)]
        question = hashlib.sha256("".join([peer, model.hex(), *rows, *committed]).encode()).hexdigest()
        note = {"model": model.hex(), "peer": peer, "rows": rows, "committed": committed, "question": question}
        with self._locked():
            self._check(note, columns)
            self._note(note)
        eventlog.emit(me, "scored", {"peer": peer, "model": model.hex()[:16], "rows": len(rows)})

    def _check(self, note: dict[str, Any], columns: int) -> None:
        name, peer, rows, most = note["model"], note["peer"], note["rows"], max(1, -(-columns // 4) - 1)
        if self._visits.get(name, 0) < FEWEST_VISITS:
            raise LeakageError(
                f"scores for {peer}: a finished model of {FEWEST_VISITS} visits or more was expected, this one had "
                f"{self._visits.get(name, 0)}; finish the training first"
            )
        if self._trained[name] & set(rows):
            raise LeakageError(
                f"scores for {peer}: rows that the model was not trained on were expected; leave the others out, "
                "their scores are residuals"
            )
        again = 0 < self._asked[note["question"]] < _AGAIN
        if len(set(rows)) < len(rows) or (not again and any(name in self._scored[peer, row] for row in rows)):
            raise LeakageError(
                f"scores for {peer}: each row is scored once by a model, some have been; keep the scores you have"
            )
        if any(len(self._scored[peer, row] - {name}) >= most for row in rows):
            raise LeakageError(
                f"scores for {peer}: rows may be scored under {most} models where a party has {columns} columns, some "
                "have been; score other rows"
            )
        if any(self._committed.get((peer, row), own) != own for row, own in zip(rows, note["committed"], strict=True)):
            raise LeakageError(
                f"scores for {peer}: rows with the columns that they had before were expected, some of {peer}'s have "
                "changed; ask with the same ones"
            )

    def _digests(self, ids: Iterable[bytes]) -> list[str]:
        return [hashlib.blake2b(each, digest_size=_DIGEST, key=self._key).hexdigest() for each in ids]

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Nobody else changes the file meanwhile, and all that it holds is known."""
        if self._path is None:
            yield
            return
        self._path.parent.mkdir(parents=True, exist_ok=True)
        lock = os.open(self._path.with_name(f"{self._path.name}.lock"), os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)  # falls with the process
            self._catch_up(self._path)
            yield
        finally:
            os.close(lock)

    def _catch_up(self, path: Path) -> None:
        """Takes in what others have added to the file, which is made if it was never there."""
        if not self._known and not path.exists():
            write_whole(path, json.dumps({"key": self._key.hex()}).encode() + b"\n")
        try:
            with path.open("rb") as file:
                file.seek(self._known)
                lines = file.read().splitlines(keepends=True)
            if lines and not lines[-1].endswith(b"\n") and (self._known or len(lines) > 1) and _torn(lines[-1]):
                os.truncate(path, self._known + sum(map(len, lines[:-1])))
                del lines[-1]
            if not self._known:
                self._key = bytes.fromhex(json.loads(lines[0])["key"])
            for line in lines[not self._known :]:
                self._take_in(json.loads(line))
            if lines and not lines[-1].endswith(b"\n"):
                lines[-1] += _append(path, b"\n")
        except (OSError, ValueError, KeyError, TypeError, AttributeError, IndexError):
            raise ConfigError(
                f"{path}: a ledger of scores was expected, something else is there; put it back, or name another file"
            ) from None
        self._known += sum(map(len, lines))

    def _note(self, line: dict[str, Any]) -> None:
        """On disk, and known here; under the lock."""
        if self._path is not None:
            self._known += len(_append(self._path, json.dumps(line).encode() + b"\n"))
        self._take_in(line)

    def _take_in(self, line: dict[str, Any]) -> None:
        if "peer" in line:
            for row, own in zip(line["rows"], line["committed"], strict=True):
                self._scored[line["peer"], row].add(line["model"])
                self._committed[line["peer"], row] = own
            self._asked[line["question"]] += 1
        else:
            self._trained[line["model"]].update(line["rows"])
            self._visits[line["model"]] = int(line["visits"])


def _salt(each: bytes) -> bytes:
    return hashlib.blake2b(each, digest_size=hashlib.blake2b.SALT_SIZE).digest()


def _append(path: Path, octets: bytes) -> bytes:
    """Puts them at the end of the file, on disk when this returns."""
    with path.open("ab") as file:
        file.write(octets)
        file.flush()
        os.fsync(file.fileno())
    return octets


def _torn(line: bytes) -> bool:
    """Whether it is the beginning of a line alone."""
    try:
        json.loads(line)
    except ValueError:
        return True
    return False
