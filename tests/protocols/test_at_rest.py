"""A party's account (ledger of disclosures and of scores): older copies of the file are
refused, whatever changed since.
"""

from __future__ import annotations

import gc
import re
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from securevfl.account.database import AccountDatabase
from securevfl.cli.main import app
from securevfl.data.id_keys import id_keys
from securevfl.data.register import Register
from securevfl.disclosure.counts import Disclosure
from securevfl.disclosure.ledger import DisclosureLedger
from securevfl.disclosure.limits import Limit
from securevfl.errors import DataError, LeakageError
from securevfl.protocols.score_ledger.row_ledger import ScoreLedger
from securevfl.protocols.shares.spent_chunks import SpentChunks
from tests.builders import raises_code

MODEL = b"m" * 16
IDS = [b"%d" % item for item in range(40)]
X = np.random.default_rng(0).normal(size=(40, 6))


def test_an_older_copy_of_an_account_is_refused(tmp_path: Path) -> None:
    """It is refused after any record: disclosures, limits, trust, early aborts, scores, evaluations and used chunks."""
    ledger = DisclosureLedger(tmp_path / "shop.ledger", "shop")
    register = Register.of_ids(id_keys("shop", [range(40)]))
    ledger.record(register, ("run", ""), [Disclosure("columns", "bank", ("shop",), 3, 10)])
    scores = ScoreLedger(ledger.path)
    scores.record_model(MODEL, 20, IDS[:20], X[:20])
    query = scores.query(MODEL, "bank", IDS[20:], scores.commitments(IDS[20:], X[20:]))
    for change in (
        lambda: ledger.record(register, ("other", ""), [Disclosure("columns", "bank", ("shop",), 3, 10)]),
        lambda: ledger.set_limit("columns", Limit(7)),
        lambda: ledger.trust("bank"),
        lambda: ledger.record_early_abort({"bank"}),
        lambda: ledger.record_answer("run", "asked", Disclosure("scores", "bank", ("shop",), 3, 0)),
        lambda: scores.record_model(b"n" * 16, 20, IDS[20:], X[20:]),
        lambda: scores.admit(query, X[20:], bits=7, max_bits=1e9),
        lambda: scores.record_evaluation("bank", IDS[20:], limited=False),
        lambda: SpentChunks(ledger.path).spend(bytes(16)),
    ):
        older = ledger.path.read_bytes()
        change()
        change_again = ledger.path.read_bytes()
        ledger.record_early_abort({"telco"})
        newest = ledger.path.read_bytes()
        assert len({older, change_again, newest}) == 3
        ledger.path.write_bytes(older)
        for use in (
            lambda: ledger.record_early_abort({"bank"}),
            lambda: ledger.pseudonym(b"x"),
            lambda: scores.record_evaluation("bank", IDS[20:], limited=False),
            lambda: SpentChunks(ledger.path).spend(bytes([1] * 16)),
        ):
            with raises_code(DataError, "SVFL-LEDGER-DAMAGED"):
                use()
        ledger.path.write_bytes(newest)
        ledger.pseudonym(b"x")


def test_an_adopted_ledger_counts_everything_as_disclosed(tmp_path: Path) -> None:
    """Limits, scores and evaluations refuse every table, whether or not it is in the copy."""
    ledger = DisclosureLedger(tmp_path / "shop.ledger", "shop")
    known, unknown = (Register.of_ids(id_keys("shop", [ids])) for ids in (range(40), range(1000, 1040)))
    ledger.record(known, ("run", ""), [Disclosure("columns", "bank", ("shop",), 1, 10)])
    scores = ScoreLedger(ledger.path)
    scores.record_model(MODEL, 20, IDS[:20], X[:20])
    with AccountDatabase(ledger.path).changing() as tables:
        tables.execute("INSERT INTO reserved VALUES ('search', 'training', 3)")
    older = ledger.path.read_bytes()
    ledger.record(unknown, ("other", ""), [Disclosure("columns", "bank", ("shop",), 1, 10)])
    ledger.trust("bank")
    ledger.path.write_bytes(older)
    adopted = DisclosureLedger.adopt(ledger.path)
    adopted.set_limit("columns", Limit(0.9, share=True))
    adopted.set_limit("scores", Limit(100_000))
    for register in (known, unknown):
        for kind, capacity in (("columns", 10), ("scores", 0)):
            with raises_code(LeakageError, "SVFL-LIMIT-REACHED", party="shop"):
                adopted.record(register, ("new", ""), [Disclosure(kind, "telco", ("shop",), 1, capacity)])
    scores = ScoreLedger(ledger.path)
    query = scores.query(MODEL, "bank", IDS[20:], scores.commitments(IDS[20:], X[20:]))
    with raises_code(LeakageError, "SVFL-LIMIT-REACHED", peer="bank"):
        scores.admit(query, X[20:], bits=7, max_bits=1e9)
    for rows in (IDS[:20], IDS[20:], IDS, [b"never seen"]):
        with raises_code(LeakageError, "SVFL-LIMIT-REACHED", peer="bank"):
            scores.record_evaluation("bank", rows)
        with raises_code(LeakageError, "SVFL-LIMIT-REACHED", peer="bank"):
            scores.check_evaluations("bank", rows, 1)
        assert not scores.record_range_count(rows)
    with AccountDatabase(ledger.path).reading() as tables:
        assert tables.execute("SELECT remaining FROM reserved").fetchall() == [(0,)]
    assert DisclosureLedger(ledger.path, "shop").read().limits.keys() == {"columns", "scores"}


def test_the_command_adopts_a_ledger_without_its_counter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "shop.ledger"
    DisclosureLedger(path, "shop").record_early_abort({"bank"})
    gc.collect()
    monkeypatch.setenv("SECUREVFL_STATE", str(tmp_path / "state"))
    refused = CliRunner().invoke(app, ["ledger", "--ledger", str(path)])
    assert refused.exit_code == 2
    assert "--adopt" in refused.output
    for _ in range(2):
        done = CliRunner().invoke(app, ["ledger", "--ledger", str(path), "--adopt"])
        assert done.exit_code == 0, done.output
        assert "to allow 100,000 scores from now on, set --limit scores=1000100000" in done.output
        gc.collect()
    low = CliRunner().invoke(app, ["ledger", "--ledger", str(path), "--limit", "scores=100000"]).output
    needed = max(map(int, re.findall(r"as in --limit scores=(\d+) for 1,000 more", low)))
    enough = CliRunner().invoke(app, ["ledger", "--ledger", str(path), "--limit", f"scores={needed}"]).output
    assert "is used up" not in enough
    assert "anybody" in CliRunner().invoke(app, ["ledger", "--ledger", str(path)]).output
