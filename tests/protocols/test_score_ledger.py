"""The limits of the score ledger apply to each row of a query at any position, to each peer separately, and in a
ledger that another process wrote.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from securevfl.base.arrays import Floats
from securevfl.errors import LeakageError
from securevfl.protocols.score_ledger.row_digests import (
    COMMITMENT_BYTES,
    DIGEST_CHUNK_ROWS,
    ROW_DIGEST_BYTES,
    content_digests,
    sorted_digests,
)
from securevfl.protocols.score_ledger.row_ledger import ROW_NEW, ROW_REFUSED, ScoreLedger, ScoreQuery
from securevfl.protocols.score_ledger.score_limits import MIN_ITERATIONS, ROWS_PER_EVALUATION
from tests.builders import raises_code

D = 12  # columns, which admit 2 models for each row
OTHERS = ("one", "two")


class Party:
    """One party with a ledger on disk that is opened again for each query."""

    def __init__(self, path: Path) -> None:
        self.path = path
        for model in (b"m", b"n", b"o"):
            self.ledger.record_model(model, MIN_ITERATIONS, [b"trained"])

    @property
    def ledger(self) -> ScoreLedger:
        return ScoreLedger(self.path)

    def question(
        self,
        rows: Sequence[str],
        model: bytes = b"m",
        peer: str = "bank",
        salt: str = "",
        ledger: ScoreLedger | None = None,
    ) -> ScoreQuery:
        """Return a query. Another `salt` changes the columns of the row `odd`."""
        committed = [(name + salt * (name == "odd")).encode().ljust(COMMITMENT_BYTES) for name in rows]
        return (ledger or self.ledger).query(model, peer, [row.encode() for row in rows], b"".join(committed))

    def ask(
        self, rows: Sequence[str], model: bytes = b"m", peer: str = "bank", salt: str = "", bits: int = 3
    ) -> list[int]:
        """Return the state of each row, and store new rows as scored."""
        ledger = self.ledger
        question = self.question(rows, model, peer, salt, ledger)
        states = ledger.admit(question, columns(rows), bits=bits, max_bits=10.0)
        new = question.where(states == ROW_NEW)
        ledger.store(new, [b"part"] * len(new.rows))
        return list(states)

    def codes(self, rows: Sequence[str], bits: float = 3.0, run: str = "run") -> list[int]:
        ids = [row.encode() for row in rows]
        return list(self.ledger.admit_codes(run, ids, columns(rows), bits=bits, max_bits=10.0))


def columns(rows: Sequence[str]) -> Floats:
    values = [np.random.default_rng(list(name.encode())).normal(size=D) for name in rows]
    return np.array(values)


def trained(party: Party, rows: Sequence[str], peer: str) -> list[int]:
    return party.ask(["trained" if row == "odd" else row for row in rows], peer=peer)


def many_models(party: Party, rows: Sequence[str], peer: str) -> list[int]:
    for model in (b"n", b"o"):
        party.ask(["odd"], model, bits=1)
    return party.ask(rows, peer=peer, bits=1)


def other_columns(party: Party, rows: Sequence[str], peer: str) -> list[int]:
    party.ask(["odd"], b"n", salt="!")
    return party.ask(rows, peer=peer)


def other_columns_behind_another_peer(party: Party, rows: Sequence[str], peer: str) -> list[int]:
    """The ledger already has an entry about the row from another peer."""
    party.ask(["odd"], b"n", peer="earlier", bits=1)
    party.ask(["odd"], b"n", salt="!", bits=1)
    return party.ask(rows, peer=peer)


def bits_of_several(party: Party, rows: Sequence[str], peer: str) -> list[int]:
    """Return the state of a row when each answer is within the limit of bits, but all together are not."""
    for earlier in ("earlier", "later"):
        party.ask(["odd"], peer=earlier, bits=4)
    return party.ask(rows, peer=peer)


def bits_of_models(party: Party, rows: Sequence[str], peer: str) -> list[int]:
    party.ask(["odd"], b"n", bits=8)
    return party.ask(rows, peer=peer)


def bits_of_codes_before_scores(party: Party, rows: Sequence[str], peer: str) -> list[int]:
    party.codes(["odd"], bits=8.0)
    return party.ask(rows, peer=peer)


def bits_of_scores_before_codes(party: Party, rows: Sequence[str], peer: str) -> list[int]:
    party.ask(["odd"], bits=8)
    return party.codes(rows)


def bits_of_codes_of_runs(party: Party, rows: Sequence[str], peer: str) -> list[int]:
    party.codes(["odd"], bits=8.0)
    return party.codes(rows, run="another")


Limit = Callable[[Party, Sequence[str], str], list[int]]
OF_ALL_PEERS: tuple[Limit, ...] = (
    trained,
    many_models,
    bits_of_models,
    bits_of_several,
    bits_of_codes_before_scores,
    bits_of_scores_before_codes,
    bits_of_codes_of_runs,
)


@pytest.mark.parametrize("limit", [*OF_ALL_PEERS, other_columns, other_columns_behind_another_peer])
@pytest.mark.parametrize("place", [0, 1, 2])
def test_one_row_is_refused_and_the_others_are_not(place: int, limit: Limit, tmp_path: Path) -> None:
    party, rows = Party(tmp_path / "scores"), [*OTHERS[:place], "odd", *OTHERS[place:]]
    assert [at for at, state in enumerate(limit(party, rows, "bank")) if not state] == [place]


@pytest.mark.parametrize("limit", OF_ALL_PEERS)
def test_budgets_of_rows_are_their_owner_s_over_all_who_ask(limit: Limit, tmp_path: Path) -> None:
    """The limits of rows count all requesting peers; otherwise two peers that pool their
    scores would have twice the limit.
    """
    assert limit(Party(tmp_path / "scores"), ["one", "odd", "two"], "telco")[1] == ROW_REFUSED


def test_a_row_is_bound_to_the_columns_of_who_asked(tmp_path: Path) -> None:
    assert other_columns(Party(tmp_path / "scores"), ["one", "odd", "two"], "telco") == [ROW_NEW] * 3


def test_the_limit_of_evaluations_counts_all_peers(tmp_path: Path) -> None:
    """Evaluations of a row count in all sets of rows that contain it: the same set, a reordered one and a new one."""
    rows = [b"%d" % row for row in range(3 * ROWS_PER_EVALUATION)]
    for _ in range(2):
        ScoreLedger(tmp_path / "scores").record_evaluation("bank", rows)
    ScoreLedger(tmp_path / "scores").record_evaluation("bank", [*rows[:-1], b"other"])
    for again in (rows, rows[::-1], [b"new", *rows[1:]], rows[-ROWS_PER_EVALUATION:]):
        for peer in ("bank", "telco"):
            with raises_code(LeakageError, "SVFL-LIMIT-REACHED"):
                ScoreLedger(tmp_path / "scores").check_evaluations(peer, again, 1)


def test_the_limit_counts_every_row_of_a_large_set(tmp_path: Path) -> None:
    """One row that was evaluated often is found at any position among many."""
    limit, count = 20, 20 * ROWS_PER_EVALUATION
    for position in (0, count // 2, count - 1):
        ledger = ScoreLedger(tmp_path / f"scores {position}")
        rows = [b"%d" % row for row in range(count)]
        for again in range(limit):
            others = [b"%d of %d" % (row, again) for row in range(count - 1)]
            ledger.record_evaluation("bank", [*others, rows[position]])
        with raises_code(LeakageError, "SVFL-LIMIT-REACHED"):
            ledger.check_evaluations("bank", rows, 1)


def test_equal_columns_have_equal_digests_in_any_form() -> None:
    """Neither the sign of a zero nor the memory layout changes a digest; each number, its position and its id does."""
    key, ledger, X = bytes(32), ScoreLedger(None), np.array([[0.0, 1.5, -3.0], [2.0, 0.0, 0.0]])
    forms = [X, np.asfortranarray(X), np.where(X == 0, -0.0, X), X.astype(">f8"), X.astype(np.float32), X[::-1][::-1]]
    assert len({b"".join(content_digests(form, key)) for form in forms}) == 1
    assert len({ledger.commitments([b"a", b"b"], form) for form in forms}) == 1
    others = [X[:1], X[:1, ::-1], X[1:], np.abs(X[:1]), np.nextafter(X[:1], 9), X[:1, :2]]
    assert len({content_digests(other, key)[0] for other in others}) == len(others)
    committed = {ledger.commitments([row], other) for other in others for row in (b"a", b"b")}
    assert len(committed) == 2 * len(others)


@pytest.mark.parametrize("rows", [0, 1, DIGEST_CHUNK_ROWS, DIGEST_CHUNK_ROWS + 1])
def test_sorted_digests_of_many_rows_lose_none(rows: int) -> None:
    """A training row that is missing from the ledger would be scored."""
    octets = np.random.default_rng(0).bytes(ROW_DIGEST_BYTES * rows)
    digests = [octets[start : start + ROW_DIGEST_BYTES] for start in range(0, len(octets), ROW_DIGEST_BYTES)]
    blocks = sorted_digests([digests[: rows // 3], [], digests[rows // 3 :]])
    assert b"".join(blocks) == b"".join(sorted(digests))
    assert all(len(block) <= ROW_DIGEST_BYTES * DIGEST_CHUNK_ROWS for block in blocks)


def test_training_rows_by_other_names_count_over_all_questions(tmp_path: Path) -> None:
    """Three rows may have the columns of training rows by chance, whether they are requested together or one by one."""
    rows = [f"row {number}" for number in range(4)]
    ScoreLedger(tmp_path / "scores").record_model(b"m", MIN_ITERATIONS, [b"a", b"b", b"c", b"d"], columns(rows))
    party = Party.__new__(Party)
    party.path = tmp_path / "scores"
    for row in rows[:3]:
        party.ask([row])
    with raises_code(LeakageError, "SVFL-LIMIT-REACHED"):
        party.ask(rows[3:])
    party.ask(["like no other"])
    with raises_code(LeakageError, "SVFL-LIMIT-REACHED"):
        party.ask(rows, peer="telco")


def test_stored_shares_answer_the_same_row_in_any_block(tmp_path: Path) -> None:
    """A request from another peer, or with another model, row or column, is a new one;
    another order or block is not.
    """
    party, rows = Party(tmp_path / "scores"), ["one", "odd", "two"]
    ledger = party.ledger
    party.ask(rows)
    ledger.store(party.question(rows, ledger=ledger), [b"1", b"2", b"3"])
    for query, expected in (
        (party.question(["odd", "one", "two"], ledger=ledger), [b"2", b"1", b"3"]),
        (party.question(["two", "new"], ledger=ledger), [b"3", None]),
        (party.question(rows, peer="telco", ledger=ledger), [None] * 3),
        (party.question(rows, b"n", ledger=ledger), [None] * 3),
        (party.question(rows, salt="!", ledger=ledger), [b"1", None, b"3"]),
    ):
        assert party.ledger.stored(query) == expected


@pytest.mark.parametrize("seed", range(3))
def test_codes_of_equal_columns_count_once_up_to_the_limit(seed: int) -> None:
    """Requests in random order with different bits, columns and models are compared with a table of sums."""
    draw, ledger, most = random.Random(seed), ScoreLedger(None), 14.0
    counted: dict[str, dict[tuple[str, float], float]] = {row: {} for row in "abc"}
    answers = set[bool]()
    for _ in range(60):
        model, row, value, bits = (
            draw.choice("mn"),
            draw.choice("abc"),
            draw.choice([0.0, 1.0]),
            draw.choice([2.0, 5.0]),
        )
        so_far = counted[row]
        after = so_far | {(model, value): max(so_far.get((model, value), 0.0), bits)}
        is_allowed = sum(after.values()) <= most
        X = np.array([[value, 1.0]])
        assert ledger.admit_codes(model, [row.encode()], X, bits=bits, max_bits=most).tolist() == [is_allowed]
        if is_allowed:
            counted[row] = after
        answers.add(is_allowed)
        assert ledger.disclosed_bits([row.encode()]) == [(0.0, sum(counted[row].values()))]
    assert answers == {True, False}


@pytest.mark.parametrize("distinct", [1, 5, 40])
def test_rows_like_often_repeated_training_rows_are_scored(distinct: int, tmp_path: Path) -> None:
    """Of few distinct rows, ten training rows each are equal, so new rows equal training
    rows by chance and are scored.
    """
    ledger = ScoreLedger(tmp_path / "scores")
    X = np.repeat(columns([f"row {number}" for number in range(distinct)]), 10, axis=0)
    ledger.record_model(b"p", MIN_ITERATIONS, [b"old %d" % row for row in range(len(X))], X)
    new = np.resize(X, (30, D))
    ids = [b"new %d" % row for row in range(30)]
    query = ledger.query(b"p", "bank", ids, b"".join(row.ljust(COMMITMENT_BYTES) for row in ids))
    assert (ledger.admit(query, new, bits=1, max_bits=10.0) == ROW_NEW).all()
