"""What a party has let others score and measure with its columns, across runs: a file that is asked before it tells.

Scores are outputs, and whoever gets them chooses its own columns freely. A score on known own columns shows the other
party's sum up to one's own; d_A + 1 questions about one row with chosen own columns show theta_A, and then the other
party's sum of every row that is asked; scores of the same rows under many models show the other party's columns up to
an invertible matrix; scores of training rows are residuals to whoever has the labels; scores of a model that was hardly
trained are products of its columns with chosen labels. So, for each peer and at most:

- a row is scored once by a model (the same question gets the same bytes, as after a crash), and under fewer than d / 4
  models in all (or one), d the party's own columns;
- all scores of a row have together a fourth of the bits that the party's columns hold (`BUDGET`), c scores of k bits
  counting c k, and the codes of its heaviest columns beside them, unless it has agreed to more;
- rows that a model was trained on are never scored by it. They are known by their ids; who names them otherwise is
  found by their columns, in whole requests: if more of the rows that were asked about have columns of training rows
  than chance explains, the request is refused. No row is named or answered differently for its columns;
- a model is scored after its last visit, and after ten visits or more;
- a row comes with the columns that it came with before: whoever asks commits to them, by a digest under a key of its
  own ledger, before it is answered;
- a row is measured once for each hundred of the rows that it is measured with, in all runs, unless it has agreed, and
  counted among those near the end of the table as often.

These are limits, not proofs, and a peer that does not follow the protocol may commit to what it likes. Rows are kept as
keyed hashes of their ids, a line of JSON for each block of rows, on disk before the answer is given
(ledger_file.py). What is answered, or this party's part of it, is kept beside the file. Every question is an
event of the log.
"""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from securevfl.base.arrays import Floats
from securevfl.base.files import write_whole
from securevfl.errors import LeakageError
from securevfl.protocols.shares.ledger_file import LedgerFile
from securevfl.runtime import eventlog

__all__ = ["BUDGET", "COMMITMENT", "FEWEST_VISITS", "ROWS_PER_MEASURE", "Ledger", "ScoreQuestion"]

FEWEST_VISITS = 10
BUDGET = 1 / 4  # of the bits that columns hold
ROWS_PER_MEASURE = 100
COMMITMENT = 16  # bytes
_AGAIN = 4  # times that the same question is answered anew, if no answer has been kept
_CHANCE = 3.0  # standard errors
_DIGEST = 16  # bytes


class ScoreQuestion:
    """What a peer asks a model about some rows of a party's: what they are called in its ledger."""

    def __init__(self, model: bytes, peer: str, rows: Sequence[str], committed: Sequence[str]) -> None:
        self.model, self.peer, self.rows, self.committed = model.hex(), peer, list(rows), list(committed)
        self.name = hashlib.sha256("".join([peer, self.model, *self.rows, *self.committed]).encode()).hexdigest()


class Ledger:
    """One party's file of scores, or without a path what one process remembers. ConfigError if the file is none."""

    def __init__(self, path: Path | None) -> None:
        self._trained: dict[str, set[str]] = defaultdict(set)
        self._columns: dict[str, Counter[str]] = defaultdict(Counter)  # of training rows, by model
        self._visits: dict[str, int] = {}
        self._scored: dict[tuple[str, str], dict[str, int]] = defaultdict(dict)  # bits by model, by peer and row
        self._committed: dict[tuple[str, str], str] = {}  # by peer and row
        self._asked: Counter[str] = Counter()  # how often, by question
        self._alike: dict[tuple[str, str], tuple[int, int]] = {}  # rows asked, those like training rows
        self._measured: Counter[tuple[str, str]] = Counter()  # by peer and row
        self._counted: Counter[tuple[str, str]] = Counter()  # by peer and row
        self._sets: dict[str, list[str]] = {}  # rows that are measured together
        self._codes: dict[tuple[str, str], dict[str, float]] = {}  # bits by model and own columns, by peer and row
        self._answers: dict[str, bytes] = {}
        self._file = LedgerFile(path, self._take_in)

    def trained(self, model: bytes, visits: int, ids: Iterable[bytes], X: Floats | None = None) -> None:
        """Note a model that is ready, with its rows and columns.

        It takes the model's name, how many visits it had, the rows it was trained on, and this party's columns X (n x
        d) of these.
        """
        with self._file.locked():
            columns = [] if X is None else self._contents(X)
            self._file.add({"model": model.hex(), "visits": visits, "rows": self._digests(ids), "columns": columns})

    def knows(self, model: bytes) -> bool:
        """Whether this model has been noted."""
        return model.hex() in self._visits

    def commitments(self, ids: Iterable[bytes], X: Floats) -> bytes:
        """Return the keyed digests by which this party commits to its columns X (n x d) of these rows.

        Each has COMMITMENT bytes.
        """
        octets = np.ascontiguousarray(X, "<f8")
        return b"".join(
            hashlib.blake2b(row.tobytes(), digest_size=COMMITMENT, key=self._file.key, salt=_salt(each)).digest()
            for row, each in zip(octets, ids, strict=True)
        )

    def question(self, model: bytes, peer: str, ids: Iterable[bytes], commitments: bytes) -> ScoreQuestion:
        """Return what `peer` asks, as this ledger knows it. commitments: what it has sent, COMMITMENT bytes a row."""
        committed = [commitments[at : at + COMMITMENT].hex() for at in range(0, len(commitments), COMMITMENT)]
        return ScoreQuestion(model, peer, self._digests(ids), committed)

    def admit(
        self, question: ScoreQuestion, X: Floats, *, bits: int = 0, most: float = float("inf"), me: str = ""
    ) -> None:
        """Note that the question is answered, of `bits` a row. LeakageError, and nothing is noted, if the limits forbid
        it.

        X: this party's columns (n x d) of the rows. most: bits of a row that all its answers may have together.
        """
        alike = self._contents(X)
        note = {"model": question.model, "peer": question.peer, "rows": question.rows, "bits": bits}
        note |= {"committed": question.committed, "question": question.name}
        with self._file.locked():
            trained = self._columns[question.model]
            note["alike"] = sum(each in trained for each in alike)
            self._check(note, X.shape[1], most)
            self._file.add(note)
        eventlog.emit(me, "scored", {"peer": question.peer, "model": question.model[:16], "rows": len(question.rows)})

    def admit_codes(
        self, model: str, peer: str, ids: Iterable[bytes], X: Floats, *, bits: float, most: float = float("inf")
    ) -> None:
        """Note that `peer` is told codes of `bits` a row of a model. LeakageError, and nothing is noted, if codes and
        scores of all models would have more than `most` bits of a row.

        X: this party's columns (n x d) of the rows; what is told of a row again, from the same columns, counts once.
        """
        key = hashlib.blake2b(self._file.key, person=b"codes").digest()
        octets = np.ascontiguousarray(X, "<f8") + 0.0  # one zero
        held = [hashlib.blake2b(row.tobytes(), digest_size=_DIGEST, key=key).hexdigest() for row in octets]
        own = [f"{model} {each}" for each in held]
        with self._file.locked():
            rows = self._digests(ids)
            after = (
                self._told(peer, row, codes={name: max(bits, self._codes.get((peer, row), {}).get(name, 0.0))})
                for row, name in zip(rows, own, strict=True)
            )
            self._check_told(peer, max(after, default=0.0), most)
            self._file.add({"peer": peer, "codes": bits, "of": own, "rows": rows})

    def _told(
        self,
        peer: str,
        row: str,
        *,
        scores: Mapping[str, float] = MappingProxyType({}),
        codes: Mapping[str, float] = MappingProxyType({}),
    ) -> float:
        """Bits of a row that a peer was told, with those that are named."""
        scored, coded = self._scored.get((peer, row), {}), self._codes.get((peer, row), {})
        return sum({**scored, **scores}.values()) + sum({**coded, **codes}.values())

    def _check_told(self, peer: str, told: float, most: float) -> None:
        if told > most:
            raise LeakageError(
                f"scores for {peer}: {most:.1f} bits of a row at most were expected of scores and codes of all models "
                "together, some rows would come to more; use fewer score_bits or codes or score other rows, or accept "
                'it with accepts = ["scores"]'
            )

    def check_measures(self, peer: str, ids: Iterable[bytes], times: int) -> None:
        """LeakageError if so many more measurements of these rows are more than there may be."""
        with self._file.locked():
            self._check_measures(peer, self._digests(ids), times)

    def measure(self, peer: str, ids: Iterable[bytes], *, limited: bool = True, me: str = "") -> None:
        """Note that `peer` measures a model on these rows, once.

        LeakageError, and nothing is noted, if it is limited and has had its measurements.
        """
        rows = self._digests(ids)
        name = hashlib.sha256("".join(sorted(rows)).encode()).hexdigest()[: 2 * _DIGEST]
        with self._file.locked():
            if limited:
                self._check_measures(peer, rows, 1)
            self._file.add({"peer": peer, "measured": name} | ({} if name in self._sets else {"rows": rows}))
        eventlog.emit(me, "measured", {"peer": peer, "rows": len(rows)})

    def count(self, peer: str, ids: Iterable[bytes]) -> bool:
        """Note that `peer` is told one more count of these rows, and return whether it may be; where not, nothing is
        noted."""
        rows = self._digests(ids)
        with self._file.locked():
            if max((self._counted[peer, row] for row in rows), default=0) >= _most(rows):
                return False
            self._file.add({"peer": peer, "counted": rows})
        return True

    def keep(self, question: ScoreQuestion, answer: bytes) -> None:
        """Keep what this party answers, or its part of the answer, on disk before it is given."""
        self._answers[question.name] = answer
        if self._file.path is not None:
            write_whole(self._place(question), answer)

    def kept(self, question: ScoreQuestion) -> bytes | None:
        """Return what was kept of the answer to this very question."""
        if self._file.path is None:
            return self._answers.get(question.name)
        place = self._place(question)
        return place.read_bytes() if place.exists() else None

    def _place(self, question: ScoreQuestion) -> Path:
        assert self._file.path is not None, "it has been asked"
        folder = self._file.path.with_name(f"{self._file.path.name}.answers")
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return folder / question.name

    def _check(self, note: dict[str, Any], columns: int, most: float) -> None:
        name, peer, rows, models = note["model"], note["peer"], note["rows"], max(1, -(-columns // 4) - 1)
        if name not in self._visits:
            raise LeakageError(
                f"scores for {peer}: a finished model of a training that this ledger has noted was expected, it knows "
                "none of these weights; finish the training first, or bring the ledger that it was done with"
            )
        if self._visits[name] < FEWEST_VISITS:
            raise LeakageError(
                f"scores for {peer}: a model of {FEWEST_VISITS} visits or more was expected, the one that was kept had "
                f"{self._visits[name]}; train longer, and evaluate every {FEWEST_VISITS} visits or less often"
            )
        asked, alike = self._alike_with(note)
        if self._trained[name] & set(rows) or alike > self._by_chance(name, asked):
            raise LeakageError(
                f"scores for {peer}: rows that the model was not trained on were expected; leave the others out, "
                "their scores are residuals"
            )
        again = 0 < self._asked[note["question"]] < _AGAIN
        if len(set(rows)) < len(rows) or (not again and any(name in self._scored[peer, row] for row in rows)):
            raise LeakageError(
                f"scores for {peer}: each row is scored once by a model, some have been; keep the scores you have"
            )
        if any(len(self._scored[peer, row].keys() - {name}) >= models for row in rows):
            raise LeakageError(
                f"scores for {peer}: rows may be scored under {models} models where a party has {columns} columns, "
                "some have been; score other rows"
            )
        told = (self._told(peer, row, scores={name: note["bits"]}) for row in rows)
        self._check_told(peer, max(told, default=0), most)
        if any(self._committed.get((peer, row), own) != own for row, own in zip(rows, note["committed"], strict=True)):
            raise LeakageError(
                f"scores for {peer}: rows with the columns that they had before were expected, some of {peer}'s have "
                "changed; ask with the same ones"
            )

    def _alike_with(self, note: dict[str, Any]) -> tuple[int, int]:
        """How many rows this peer has asked the model about, this question's among them, and how many of these have
        columns of training rows."""
        before = self._alike.get((note["peer"], note["model"]), (0, 0)) if not self._asked[note["question"]] else (0, 0)
        return before[0] + len(note["rows"]), before[1] + note["alike"]

    def _by_chance(self, model: str, rows: int) -> float:
        """How many rows of so many may have columns of training rows: as many as those have among themselves."""
        counts = self._columns[model]
        share = sum(count for count in counts.values() if count > 1) / max(1, sum(counts.values()))
        return float(share * rows + _CHANCE * ((share * (1 - share) * rows) ** 0.5 + 1))

    def _check_measures(self, peer: str, rows: Sequence[str], times: int) -> None:
        most = _most(rows)
        so_far = max((self._measured[peer, row] for row in rows), default=0)
        if so_far + times > most:
            raise LeakageError(
                f"metrics for {peer}: {len(rows)} rows are measured {most} times at most, over all runs; some were "
                f"{so_far} times before, with this it would be {so_far + times}; evaluate less (evaluate_every), hold "
                'out more rows, or accept it with accepts = ["small_metrics"]'
            )

    def _digests(self, ids: Iterable[bytes]) -> list[str]:
        return [hashlib.blake2b(each, digest_size=_DIGEST, key=self._file.key).hexdigest() for each in ids]

    def _contents(self, X: Floats) -> list[str]:
        """Return keyed digests of the rows of X (n x d), by which equal rows are counted."""
        key = hashlib.blake2b(self._file.key, person=b"columns").digest()
        octets = np.ascontiguousarray(X, "<f8") + 0.0  # one zero
        return [hashlib.blake2b(row.tobytes(), digest_size=_DIGEST, key=key).hexdigest() for row in octets]

    def _take_in(self, line: dict[str, Any]) -> None:
        if "measured" in line:
            rows = self._sets.setdefault(line["measured"], line.get("rows", []))
            self._measured.update((line["peer"], row) for row in rows)
        elif "counted" in line:
            self._counted.update((line["peer"], row) for row in line["counted"])
        elif "codes" in line:
            for row, own in zip(line["rows"], line["of"], strict=True):
                known = self._codes.setdefault((line["peer"], row), {})
                known[own] = max(line["codes"], known.get(own, 0.0))
        elif "peer" in line:
            if not self._asked[line["question"]]:
                self._alike[line["peer"], line["model"]] = self._alike_with(line)
            for row, own in zip(line["rows"], line["committed"], strict=True):
                self._scored[line["peer"], row][line["model"]] = line["bits"]
                self._committed[line["peer"], row] = own
            self._asked[line["question"]] += 1
        else:
            self._trained[line["model"]].update(line["rows"])
            self._columns[line["model"]].update(line["columns"])
            self._visits[line["model"]] = int(line["visits"])


def _most(rows: Sequence[str]) -> int:
    """How often so many rows may be measured, or counted, together."""
    return max(1, len(rows) // ROWS_PER_MEASURE)


def _salt(each: bytes) -> bytes:
    return hashlib.blake2b(each, digest_size=hashlib.blake2b.SALT_SIZE).digest()
