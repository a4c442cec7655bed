"""The limits of the ledger of scores hold for each row of a question, wherever it stands, for each peer by itself, and
in a ledger that another process has written."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from securevfl.base.arrays import Floats
from securevfl.errors import LeakageError
from securevfl.protocols.shares.score_ledger import COMMITMENT, FEWEST_VISITS, ROWS_PER_MEASURE, Ledger, ScoreQuestion

D = 12  # columns: 2 models a row
OTHERS = ("one", "two")


class Party:
    """One party's ledger on disk, which is read anew for each question, and what it is asked."""

    def __init__(self, path: Path) -> None:
        self.path = path
        for model in (b"m", b"n", b"o"):
            self.own.trained(model, FEWEST_VISITS, [b"trained"])

    @property
    def own(self) -> Ledger:
        return Ledger(self.path)

    def question(
        self, rows: Sequence[str], model: bytes = b"m", peer: str = "bank", salt: str = "", own: Ledger | None = None
    ) -> ScoreQuestion:
        """salt: what has changed in the columns of the row `odd`."""
        committed = [(name + salt * (name == "odd")).encode().ljust(COMMITMENT) for name in rows]
        return (own or self.own).question(model, peer, [each.encode() for each in rows], b"".join(committed))

    def ask(self, rows: Sequence[str], model: bytes = b"m", peer: str = "bank", salt: str = "", bits: int = 3) -> None:
        own = self.own
        own.admit(self.question(rows, model, peer, salt, own), columns(rows), bits=bits, most=10.0)

    def codes(self, rows: Sequence[str], peer: str = "bank", bits: float = 3.0, run: str = "run") -> None:
        self.own.admit_codes(run, peer, [each.encode() for each in rows], columns(rows), bits=bits, most=10.0)


def columns(rows: Sequence[str]) -> Floats:
    made = [np.random.default_rng(list(name.encode())).normal(size=D) for name in rows]
    return np.array(made)


def trained(party: Party, rows: Sequence[str], peer: str) -> None:
    party.ask(["trained" if each == "odd" else each for each in rows], peer=peer)


def scored_before(party: Party, rows: Sequence[str], peer: str) -> None:
    party.ask(["odd"])
    party.ask(rows, peer=peer)


def twice(party: Party, rows: Sequence[str], peer: str) -> None:
    party.ask([each if each == "odd" else "odd " + each for each in rows] + ["odd"], peer=peer)


def many_models(party: Party, rows: Sequence[str], peer: str) -> None:
    for model in (b"n", b"o"):
        party.ask(["odd"], model, bits=1)
    party.ask(rows, peer=peer, bits=1)


def other_columns(party: Party, rows: Sequence[str], peer: str) -> None:
    party.ask(["odd"], b"n", salt="!")
    party.ask(rows, peer=peer)


def bits_of_models(party: Party, rows: Sequence[str], peer: str) -> None:
    party.ask(["odd"], b"n", bits=8)
    party.ask(rows, peer=peer)


def bits_of_codes_before_scores(party: Party, rows: Sequence[str], peer: str) -> None:
    party.codes(["odd"], bits=8.0)
    party.ask(rows, peer=peer)


def bits_of_scores_before_codes(party: Party, rows: Sequence[str], peer: str) -> None:
    party.ask(["odd"], bits=8)
    party.codes(rows, peer)


def bits_of_codes_of_runs(party: Party, rows: Sequence[str], peer: str) -> None:
    party.codes(["odd"], bits=8.0)
    party.codes(rows, peer, run="another")


Limit = Callable[[Party, Sequence[str], str], None]
OF_A_PEER: tuple[Limit, ...] = (
    scored_before,
    many_models,
    other_columns,
    bits_of_models,
    bits_of_codes_before_scores,
    bits_of_scores_before_codes,
    bits_of_codes_of_runs,
)


@pytest.mark.parametrize("limit", [trained, twice, *OF_A_PEER])
@pytest.mark.parametrize("place", [0, 1, 2])
def test_one_row_of_a_question_is_enough(place: int, limit: Limit, tmp_path: Path) -> None:
    party, rows = Party(tmp_path / "scores"), [*OTHERS[:place], "odd", *OTHERS[place:]]
    with pytest.raises(LeakageError, match="for bank"):
        limit(party, rows, "bank")
    party.ask(OTHERS)  # nothing was noted of them


@pytest.mark.parametrize("limit", OF_A_PEER)
def test_what_one_peer_was_told_binds_no_other(limit: Limit, tmp_path: Path) -> None:
    limit(Party(tmp_path / "scores"), ["one", "odd", "two"], "telco")


def test_rows_are_measured_by_each_peer_as_often_as_the_least_of_them_may(tmp_path: Path) -> None:
    """A row that was measured in another set counts in this one too, in a set that comes again, and in a new one."""
    rows = [b"%d" % row for row in range(3 * ROWS_PER_MEASURE)]
    for _ in range(2):
        Ledger(tmp_path / "scores").measure("bank", rows)
    Ledger(tmp_path / "scores").measure("bank", [*rows[:-1], b"other"])
    for again in (rows, rows[::-1], [b"new", *rows[1:]], rows[-ROWS_PER_MEASURE:]):
        for peer, refused in (("bank", True), ("telco", False)):
            own = Ledger(tmp_path / "scores")
            if refused:
                with pytest.raises(LeakageError, match="metrics for bank"):
                    own.check_measures(peer, again, 1)
            else:
                own.check_measures(peer, again, 1)


def test_training_rows_by_other_names_count_over_all_questions(tmp_path: Path) -> None:
    """Three may have columns of training rows by chance, whether they come together or one by one."""
    rows = [f"row {number}" for number in range(4)]
    Ledger(tmp_path / "scores").trained(b"m", FEWEST_VISITS, [b"a", b"b", b"c", b"d"], columns(rows))
    party = Party.__new__(Party)
    party.path = tmp_path / "scores"
    for row in rows[:3]:
        party.ask([row])
    with pytest.raises(LeakageError, match="residuals"):
        party.ask(rows[3:])
    party.ask(["like no other"])
    with pytest.raises(LeakageError, match="residuals"):
        party.ask(rows, peer="telco")


def test_a_question_is_another_for_another_peer_model_row_order_or_column(tmp_path: Path) -> None:
    """What was kept for one question answers no other."""
    party = Party(tmp_path / "scores")
    rows = ["one", "odd", "two"]
    own = party.own
    asked = [
        party.question(rows, own=own),
        party.question(rows, peer="telco", own=own),
        party.question(rows, b"n", own=own),
        party.question(["odd", "one", "two"], own=own),
        party.question(rows[:2], own=own),
        party.question(rows, salt="!", own=own),
    ]
    assert len({each.name for each in asked}) == len(asked)
    own.keep(asked[0], b"answer")
    assert [party.own.kept(each) for each in asked] == [b"answer", *[None] * 5]
    assert party.question(rows).name == asked[0].name
