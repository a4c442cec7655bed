"""Sealed files: changed bits, truncation and older copies are detected, and processes share a file."""

from __future__ import annotations

import gc
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from securevfl.base.checked_files import DamagedFileError
from securevfl.data.id_keys import id_keys
from securevfl.data.register import Register
from securevfl.disclosure import ledger as disclosure
from securevfl.disclosure.counts import Disclosure
from securevfl.disclosure.ledger import DisclosureLedger
from securevfl.disclosure.limits import Limit
from securevfl.errors import ConfigError, DataError, SecureVFLError
from securevfl.protocols.score_ledger.row_ledger import NEW, ScoreLedger
from securevfl.protocols.score_ledger.sealed_file import SealedFile
from tests.builders import raises_code

MODEL = b"m" * 16
IDS = [b"%d" % item for item in range(40)]
X = np.random.default_rng(0).normal(size=(40, 6))


@pytest.fixture
def scores(tmp_path: Path) -> Iterator[Path]:
    """A file of scores that was left in order: half of the rows were trained on, the others have a score."""
    path = tmp_path / "shop.ledger.scores"
    ledger = ScoreLedger(path)
    ledger.record_model(MODEL, 20, IDS[:20], X[:20])
    _score(ledger)
    del ledger
    gc.collect()
    yield path
    gc.collect()


def _score(ledger: ScoreLedger, rows: int = 40) -> None:
    question = ledger.query(MODEL, "bank", IDS[:rows], ledger.commitments(IDS[:rows], X[:rows]))
    states = ledger.admit(question, X[:rows], bits=7, max_bits=1e9, me="shop", claim="c")
    fresh = states == NEW
    if fresh.any():
        ledger.store(question.where(fresh), [os.urandom(8) for _ in range(int(fresh.sum()))])


def test_a_changed_bit_of_a_file_of_scores_is_noticed(scores: Path) -> None:
    """Without the digest 109 to 135 of 300 let rows of the training, or another score of a row, out."""
    content, draw = scores.read_bytes(), np.random.default_rng(1)
    used = np.flatnonzero(np.frombuffer(content, np.uint8))
    for at in draw.choice(used, 60, replace=False).tolist():
        scores.write_bytes(content[:at] + bytes([content[at] ^ 1 << int(draw.integers(8))]) + content[at + 1 :])
        with raises_code(SecureVFLError, "SVFL-LEDGER-DAMAGED") as refused:
            ScoreLedger(scores)
        assert str(scores) in str(refused.value)
    for cut in (0, 10, 5000, len(content) - 1):
        scores.write_bytes(content[:cut])
        with pytest.raises(ConfigError):
            ScoreLedger(scores)
    scores.write_bytes(content)
    ScoreLedger(scores)


def test_an_older_copy_of_a_file_of_scores_is_noticed(scores: Path, tmp_path: Path) -> None:
    """An older copy is refused until its owner accepts it."""
    copy = tmp_path / "copy"
    shutil.copy(scores, copy)
    ledger = ScoreLedger(scores)
    ledger.record_model(b"n" * 16, 20, IDS[20:], X[20:])
    del ledger
    gc.collect()
    shutil.copy(copy, scores)
    with raises_code(ConfigError, "SVFL-LEDGER-DAMAGED"):
        ScoreLedger(scores)
    scores.with_name(f"{scores.name}.seal").unlink()
    assert ScoreLedger(scores).knows_model(MODEL)


def test_damage_while_it_is_used_is_an_error_of_ours(scores: Path) -> None:
    """A killed process leaves no digest. Damage that SQLite detects becomes an error with the file and a remedy."""
    scores.with_name(f"{scores.name}.seal").write_bytes(b"in use\n")
    content = scores.read_bytes()
    scores.write_bytes(content[:4096] + bytes(len(content) - 4096))
    with raises_code(ConfigError, "SVFL-LEDGER-DAMAGED"):
        ScoreLedger(scores)


def test_users_at_once_share_it_and_the_last_one_seals_it(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"one")
    first = SealedFile(path)
    assert not first.left
    second = SealedFile(path)
    assert second.left  # the first has looked
    path.write_bytes(b"two")
    first.close()
    assert path.with_name("file.seal").read_bytes() == b"in use\n"
    second.close()
    third = SealedFile(path)
    assert third.left
    third.drop()  # as where its process was killed
    fourth = SealedFile(path)
    assert not fourth.left
    fourth.drop()
    path.with_name("file.seal").write_bytes(b"0" * 30)  # as where the disk was full
    fifth = SealedFile(path)
    assert not fifth.left
    fifth.drop()
    path.with_name("file.seal").write_bytes(b"0" * 64 + b"\n")
    with pytest.raises(DamagedFileError):
        SealedFile(path)


def test_an_older_copy_of_a_ledger_is_noticed(tmp_path: Path) -> None:
    """Every kind of change after it: numbers, limits, trust and tries, which the older one does not know."""
    ledger = DisclosureLedger(tmp_path / "shop.ledger", "shop")
    register = Register.of_ids(id_keys("shop", [range(40)]))
    ledger.record(register, ("run", ""), [Disclosure("columns", "bank", ("shop",), 3, 10)])
    for change in (
        lambda: ledger.record(register, ("other", ""), [Disclosure("columns", "bank", ("shop",), 3, 10)]),
        lambda: ledger.set_limit("columns", Limit(7)),
        lambda: ledger.trust("bank"),
        lambda: ledger.record_early_abort({"bank"}),
        lambda: ledger.record_answer("run", "asked", Disclosure("scores", "bank", ("shop",), 3, 0)),
    ):
        older = ledger.path.read_bytes()
        change()
        newest = ledger.path.read_bytes()
        ledger.path.write_bytes(older)
        for use in (lambda: ledger.record_early_abort({"bank"}), lambda: ledger.pseudonym(b"x")):
            with raises_code(DataError, "SVFL-LEDGER-DAMAGED"):
                use()
        ledger.path.write_bytes(newest)
        ledger.pseudonym(b"x")
    ledger.path.write_bytes(older)
    (tmp_path / "shop.ledger.lock").unlink()  # the owner accepts the older copy
    ledger.record_early_abort({"bank"})


@pytest.mark.parametrize("at", ["before", "behind"])
def test_a_ledger_is_used_wherever_a_change_was_killed(
    at: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = DisclosureLedger(tmp_path / "shop.ledger", "shop")
    ledger.record_early_abort({"bank"})
    write = disclosure.write_atomic

    def killed(path: Path, data: bytes) -> None:
        if at == "behind":
            write(path, data)
        raise KeyboardInterrupt

    with monkeypatch.context() as dies:
        dies.setattr(disclosure, "write_atomic", killed)
        with pytest.raises(KeyboardInterrupt):
            ledger.record_early_abort({"bank"})
    ledger.record_early_abort({"bank"})
    assert ledger.read().tries[0].count == (2 if at == "before" else 3)
