"""Errors planted in the code of outputs on secret shares, and removed branches of checks: a test of each class fails.

A check may have a branch that no test needs, so that its loss would go unnoticed. So each branch that raises is
disabled, operand by operand, and some probe of its check must then fail.
"""

from __future__ import annotations

import ast
import inspect
import runpy
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from selfcheck.mutants.mutant import Patch, edited

from securevfl.errors import LeakageError, ProtocolError
from securevfl.protocols.score_ledger import row_ledger as ledger_module
from securevfl.protocols.score_ledger.row_digests import COMMITMENT_BYTES
from securevfl.protocols.score_ledger.row_ledger import ROW_NEW, ROW_REFUSED, ROW_STORED, ScoreLedger
from securevfl.protocols.shares import word_shuffle
from securevfl.protocols.shares.opened_scores import ScoringSession
from securevfl.protocols.shares.quantizer import Quantizer
from securevfl.protocols.shares.word_shuffle import Shuffle
from securevfl.runtime.disclosure_gate import DisclosingMessage, DisclosureGate, DisclosureRecord
from tests.builders import raises_code

PROTOCOLS = Path(__file__).parents[1] / "protocols"
SHUFFLES, SCORES = (
    runpy.run_path(str(PROTOCOLS / f"{name}.py")) for name in ("test_word_shuffle", "test_shares_predict")
)

SLIPS: dict[str, tuple[Callable[[], Patch], Callable[[], None]]] = {
    "no dither": (
        lambda: edited(ScoringSession, "_compute", ("h = h + (below", "h = h + 0 * (below")),
        SCORES["test_what_is_opened_is_rounded_at_random_and_says_no_more"],
    ),
    "one dither for all scores": (
        lambda: edited(ScoringSession, "_compute", ("array(h.shape, np.uint64)", "array((1, 1), np.uint64)")),
        SCORES["test_each_score_has_a_dither_of_its_own"],
    ),
    "one dither for all outputs of a row": (
        lambda: edited(ScoringSession, "_compute", ("array(h.shape, np.uint64)", "array((len(h), 1), np.uint64)")),
        SCORES["test_each_score_has_a_dither_of_its_own"],
    ),
    "one order for all shuffles": (
        lambda: edited(word_shuffle, "_orders", ('Prg.fresh("order of a shuffle")', 'Prg(bytes(32), "order")')),
        SHUFFLES["test_a_session_draws_a_new_order_for_each_shuffle"],
    ),
    "bits above those of a level": (
        lambda: edited(Quantizer, "truncate", (" & np.uint64(2**self.bits - 1)", "")),
        SCORES["test_a_level_has_no_bits_but_its_own"],
    ),
    "masks of a shuffle are zero": (
        lambda: edited(
            word_shuffle,
            "_prepare_active",
            ("mask, start = entering.copy()", "entering[:] = 0; mask, start = entering.copy()"),
        ),
        SHUFFLES["test_what_is_received_is_uniform"],
    ),
}


@pytest.mark.parametrize("name", SLIPS)
def test_the_test_of_its_class_fails(name: str) -> None:
    patch, run = SLIPS[name]
    with mock.patch.object(*patch()), pytest.raises((AssertionError, ProtocolError)):
        run()


def never(owner: Any, name: str) -> Iterator[tuple[str, Patch]]:
    """Yield the function with each condition of a `raise` or `continue`, and each operand of an `or`, set to False."""
    result = inspect.getattr_static(owner, name)
    source = textwrap.dedent(inspect.getsource(result))
    count = sum(len(_operands(node)) for node in _guards(ast.parse(source)))
    for number in range(count):
        tree = ast.parse(source)
        node, place = [(node, at) for node in _guards(tree) for at in range(len(_operands(node)))][number]
        what = ast.unparse(_operands(node)[place])
        if isinstance(node.test, ast.BoolOp) and isinstance(node.test.op, ast.Or):
            node.test.values[place] = ast.Constant(False)
        else:
            node.test = ast.Constant(False)
        there = dict(result.__globals__)
        future = ast.parse("from __future__ import annotations").body
        tree.body = [*future, *tree.body]
        exec(compile(ast.fix_missing_locations(tree), f"<{name} without a branch>", "exec"), there)
        yield what, (owner, name, there[result.__name__])


def _guards(tree: ast.AST) -> list[ast.If]:
    return [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and isinstance(node.body[0], ast.Raise | ast.Continue)
    ]


def _operands(node: ast.If) -> list[ast.expr]:
    test = node.test
    return test.values if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.Or) else [test]


def ids(*numbers: int) -> list[bytes]:
    return [f"row {number}".encode() for number in numbers]


def new_ledger(trained: int = 20, X: Any = None, claim_timeout: float = 10.0) -> ScoreLedger:
    score_ledger = ScoreLedger(None, claim_timeout)
    score_ledger.record_model(b"m", trained, ids(*range(100, 140)), X)
    return score_ledger


def ask(
    score_ledger: ScoreLedger,
    rows: list[bytes],
    *,
    model: bytes = b"m",
    d: int = 40,
    salt: bytes = b"",
    X: Any = None,
    **keys: Any,
) -> list[int]:
    committed = b"".join((name + salt).ljust(COMMITMENT_BYTES) for name in rows)
    table = np.random.default_rng().normal(size=(len(rows), d)) if X is None else X
    question = score_ledger.query(model, "bank", rows, committed)
    states = score_ledger.admit(question, table, **keys)
    new = question.where(states == ROW_NEW)
    score_ledger.store(new, [b"part"] * len(new.rows))
    return list(states)


def refused(code: str, call: Callable[[], None], **fields: object) -> None:
    with raises_code(LeakageError, code, peer="bank", **fields):
        call()


def of_a_strange_model() -> None:
    refused("SVFL-MODEL-NOT-TRAINED", lambda: ask(ScoreLedger(None), ids(1)))


def of_a_young_model() -> None:
    refused("SVFL-LIMIT-REACHED", lambda: ask(new_ledger(9), ids(1)), iterations=9)


def of_training_rows() -> None:
    assert ask(new_ledger(), ids(1, 100)) == [ROW_NEW, ROW_REFUSED]


def of_training_rows_by_other_names() -> None:
    X = np.random.default_rng(0).normal(size=(40, 40))
    refused("SVFL-LIMIT-REACHED", lambda: ask(new_ledger(X=X), ids(*range(40)), X=X))


def of_a_row_twice_in_one_question() -> None:
    with pytest.raises(ProtocolError):
        ask(new_ledger(), ids(1, 1))


def of_a_row_again() -> None:
    ledger = new_ledger()
    ask(ledger, ids(1, 2))
    assert ask(ledger, ids(2, 3)) == [ROW_STORED, ROW_NEW]


def of_a_row_while_another_scores_it() -> None:
    ledger = new_ledger(claim_timeout=0.05)
    with ledger.claim() as claim:
        ledger.admit(
            ledger.query(b"m", "bank", ids(1), ids(1)[0].ljust(COMMITMENT_BYTES)), np.ones((1, 40)), claim=claim
        )
        assert ask(ledger, ids(1, 2)) == [ROW_REFUSED, ROW_NEW]


def of_a_row_again_and_again() -> None:
    ledger, rows = new_ledger(), ids(1)
    question = ledger.query(b"m", "bank", rows, rows[0].ljust(COMMITMENT_BYTES))
    assert [int(ledger.admit(question, np.ones((1, 40)))[0]) for _ in range(5)] == [ROW_NEW] * 4 + [ROW_REFUSED]


def under_many_models() -> None:
    ledger = new_ledger()
    for model in (b"n", b"o"):
        ledger.record_model(model, 20, ids(200))
        ask(ledger, ids(1), model=model, d=12)
    assert ask(ledger, ids(1), d=12) == [ROW_REFUSED]


def beyond_the_bits() -> None:
    ledger = new_ledger()
    ledger.record_model(b"n", 20, ids(200))
    ask(ledger, ids(1), model=b"n", bits=6, max_bits=10.0)
    assert ask(ledger, ids(1), bits=6, max_bits=10.0) == [ROW_REFUSED]


def with_other_columns() -> None:
    ledger = new_ledger()
    ledger.record_model(b"n", 20, ids(200))
    ask(ledger, ids(1), model=b"n")
    assert ask(ledger, ids(1), salt=b"!") == [ROW_REFUSED]


def measured_often() -> None:
    score_ledger, rows = ScoreLedger(None), ids(*range(250))
    for _ in range(2):
        score_ledger.record_evaluation("bank", rows)
    refused("SVFL-LIMIT-REACHED", lambda: score_ledger.record_evaluation("bank", rows), limit=2)


class SlippedOut(DisclosingMessage, frozen=True):
    """A test message."""


class Sized(DisclosingMessage, frozen=True):
    """A test message with a given number of bytes."""

    data: bytes


def sent_without_an_entry() -> None:
    with pytest.raises(ProtocolError):
        DisclosureGate("a").check(SlippedOut(), None)


def sent_with_another_s_entry() -> None:
    with pytest.raises(ProtocolError):
        DisclosureGate("a").check(SlippedOut(), DisclosureGate("b").permit(DisclosureRecord("c", "labels", 1, 64)))


def sent_of_more_bits_than_its_entry() -> None:
    gate = DisclosureGate("a")
    with pytest.raises(ProtocolError):
        gate.check(Sized(bytes(9)), gate.permit(DisclosureRecord("c", "labels", 1, 64)))
    gate.check(Sized(bytes(8)), gate.permit(DisclosureRecord("c", "labels", 1, 64)))


CHECKS: dict[str, tuple[Any, str, list[Callable[[], None]]]] = {
    "what is scored": (
        ScoreLedger,
        "_judge",
        [
            of_a_strange_model,
            of_a_young_model,
            of_training_rows,
            of_a_row_again,
            of_a_row_again_and_again,
            under_many_models,
            beyond_the_bits,
            with_other_columns,
        ],
    ),
    "how rows come": (ScoreLedger, "admit", [of_a_row_twice_in_one_question, of_a_row_while_another_scores_it]),
    "rows like those of the training": (ScoreLedger, "_check_matches", [of_training_rows_by_other_names]),
    "what is measured": (ledger_module, "check_evaluations", [measured_often]),
    "what leaves": (
        DisclosureGate,
        "check",
        [sent_without_an_entry, sent_with_another_s_entry, sent_of_more_bits_than_its_entry],
    ),
    "a shuffle twice": (Shuffle, "spend", [SHUFFLES["test_a_shuffle_serves_once"]]),
    "settings": (
        word_shuffle,
        "_prepare_active",
        [lambda: SHUFFLES["test_messages_of_another_length_end_it_with_a_word"](word_shuffle.SwitchSettings)],
    ),
    "commitments": (ScoringSession, "_decide", [SCORES["test_commitments_of_another_number_end_it_with_a_word"]]),
}


@pytest.mark.parametrize("name", CHECKS)
def test_every_branch_of_every_check_is_needed_by_a_probe(name: str) -> None:
    owner, function, probes = CHECKS[name]
    for probe in probes:
        probe()
    elapsed = list(never(owner, function))
    assert elapsed
    for what, patch in elapsed:
        with mock.patch.object(*patch):
            assert any(_fails(probe) for probe in probes), f"{function}: nothing fails without `{what}`"


def _fails(probe: Callable[[], None]) -> bool:
    try:
        probe()
    except BaseException:  # pytest.fail raises no Exception
        return True
    return False
