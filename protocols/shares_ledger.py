"""What a party has let others score with its columns, across runs: a file that is asked before a score leaves.

Scores are outputs, and whoever gets them chooses its own columns freely. A score on known own columns shows the other
party's sum up to one's own; d_A + 1 questions about one row with chosen own columns show theta_A, and then the other
party's sum of every row that is asked; scores of the same rows under many models show the other party's columns up to
an invertible matrix; scores of training rows are residuals to whoever has the labels; scores of a model that was hardly
trained are products of its columns with chosen labels. So, for each peer and at most:

- a row is scored once by a model, and under fewer than d / 4 models in all (or one), d the party's own columns;
- rows that a model was trained on are never scored by it;
- a model is scored after its last visit, and after ten visits or more.

These are limits, not proofs. Rows are kept as keyed hashes of their ids, a line of JSON for each block of rows, on disk
before the answer is given.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from securevfl.errors import ConfigError, LeakageError

__all__ = ["FEWEST_VISITS", "Ledger"]

FEWEST_VISITS = 10
_DIGEST = 16  # bytes


class Ledger:
    """One party's file of scores. ConfigError if it is there and is none."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._trained: dict[str, set[str]] = defaultdict(set)
        self._visits: dict[str, int] = {}
        self._scored: dict[tuple[str, str], set[str]] = defaultdict(set)  # models by peer and row
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            self._key = os.urandom(32)
            self._append({"key": self._key.hex()})
            return
        try:
            head, *lines = [json.loads(line) for line in path.read_text().splitlines()]
            self._key = bytes.fromhex(head["key"])
            for line in lines:
                self._take_in(line)
        except (ValueError, KeyError, TypeError, AttributeError):
            raise ConfigError(
                f"{path}: a ledger of scores was expected, something else is there; put it back, or name another file"
            ) from None

    def trained(self, model: bytes, visits: int, ids: Iterable[bytes]) -> None:
        """Notes a model that is ready: its name, how many visits it had, the rows it was trained on."""
        self._note({"model": model.hex(), "visits": visits, "rows": self._digests(ids)})

    def admit(self, model: bytes, peer: str, ids: Iterable[bytes], columns: int) -> None:
        """Notes that `peer` gets scores of these rows. LeakageError, and nothing is noted, if the limits forbid it.

        columns: d, how many this party has.
        """
        name, rows, most = model.hex(), self._digests(ids), max(1, -(-columns // 4) - 1)
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
        if len(set(rows)) < len(rows) or any(name in self._scored[peer, row] for row in rows):
            raise LeakageError(
                f"scores for {peer}: each row is scored once by a model, some have been; keep the scores you have"
            )
        if any(len(self._scored[peer, row]) >= most for row in rows):
            raise LeakageError(
                f"scores for {peer}: rows may be scored under {most} models where a party has {columns} columns, some "
                "have been; score other rows"
            )
        self._note({"model": name, "peer": peer, "rows": rows})

    def _digests(self, ids: Iterable[bytes]) -> list[str]:
        return [hashlib.blake2b(each, digest_size=_DIGEST, key=self._key).hexdigest() for each in ids]

    def _note(self, line: dict[str, Any]) -> None:
        self._append(line)
        self._take_in(line)

    def _append(self, line: dict[str, Any]) -> None:
        with open(os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600), "a") as file:
            file.write(json.dumps(line) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def _take_in(self, line: dict[str, Any]) -> None:
        if "peer" in line:
            for row in line["rows"]:
                self._scored[line["peer"], row].add(line["model"])
        else:
            self._trained[line["model"]].update(line["rows"])
            self._visits[line["model"]] = int(line["visits"])
