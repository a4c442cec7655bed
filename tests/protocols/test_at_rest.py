"""A disclosure ledger and its scores as one account: older copies of the file are refused, whatever changed since."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from securevfl.data.id_keys import id_keys
from securevfl.data.register import Register
from securevfl.disclosure.counts import Disclosure
from securevfl.disclosure.ledger import DisclosureLedger
from securevfl.disclosure.limits import Limit
from securevfl.errors import DataError
from securevfl.protocols.score_ledger.row_ledger import ScoreLedger
from securevfl.protocols.shares.spent_chunks import SpentChunks
from tests.builders import raises_code

MODEL = b"m" * 16
IDS = [b"%d" % item for item in range(40)]
X = np.random.default_rng(0).normal(size=(40, 6))


def test_an_older_copy_of_an_account_is_refused(tmp_path: Path) -> None:
    """Whatever was entered since: disclosures, limits, trust, early aborts, scores, evaluations and used chunks."""
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
