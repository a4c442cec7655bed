"""What a party keeps of the scores on shares that it has let others have, across runs, processes and kills."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from securevfl.errors import ConfigError, LeakageError
from securevfl.protocols.shares.score_ledger import Ledger
from tests.protocols.test_shares_predict import Model, Open, admit, names


def test_a_ledger_counts_across_runs_and_peers_apart(tmp_path: Path):
    path = tmp_path / "scores"
    for model in (b"1", b"2", b"3"):
        Ledger(path).trained(model, 20, names(2))
    admit(Ledger(path), b"1", "bank", names(5, 5), 12)
    with pytest.raises(LeakageError, match="once"):
        admit(Ledger(path), b"1", "bank", names(1, 9), 12)
    admit(Ledger(path), b"1", "shop", names(1, 9), 12)
    admit(Ledger(path), b"2", "bank", names(1, 9), 12)
    with pytest.raises(LeakageError, match="under 2 models"):
        admit(Ledger(path), b"3", "bank", names(1, 9), 12)
    assert path.stat().st_mode & 0o777 == 0o600
    assert "row" not in path.read_text().replace('"rows"', "")


def test_processes_that_share_a_file_know_what_the_others_have_let_out(tmp_path: Path):
    path = tmp_path / "scores"
    Ledger(path).trained(b"m", 20, names(2))
    one, other = Ledger(path), Ledger(path)
    admit(one, b"m", "bank", names(3, 10), 40)
    assert other.commitments(names(2), np.ones((2, 3))) == one.commitments(names(2), np.ones((2, 3)))
    with pytest.raises(LeakageError, match="once"):
        admit(other, b"m", "bank", names(3, 12), 40)
    admit(other, b"m", "bank", names(3, 20), 40)
    with pytest.raises(LeakageError, match="once"):
        admit(one, b"m", "bank", names(1, 22), 40)


@pytest.mark.parametrize("cut", [1, 2, 40])
def test_a_line_that_a_kill_has_cut_off_is_dropped_and_a_whole_one_counts(cut: int, tmp_path: Path):
    path = tmp_path / "scores"
    Ledger(path).trained(b"m", 20, names(2))
    admit(Ledger(path), b"m", "bank", names(3, 10), 40)
    path.write_bytes(path.read_bytes()[:-cut])  # with 1 the line's end alone is gone
    for _ in range(2):
        ledger = Ledger(path)
        if cut == 1:
            with pytest.raises(LeakageError, match="once"):
                admit(ledger, b"m", "bank", names(1, 10))
        else:
            admit(ledger, b"m", "bank", names(3, 10))
        assert path.read_bytes().endswith(b"}\n")


def test_only_columns_of_its_own_count_towards_how_many_models_may_ask():
    """A party may score under fewer models than a fourth of its columns; the one of ones is no column."""
    model, asked = Model(9, 4), []

    class Watching(Open):
        def admit(self, *given, **_):
            asked.append(given[1].shape[1])

    block = model.columns(5)
    model.ask([block], [names(5)], {"a": Watching()}, to="b", raw={"a": block["a"][:, :8], "b": block["b"]})
    assert asked == [8]


def test_a_file_that_is_no_ledger_is_refused(tmp_path: Path):
    for text in ("", "[]", '{"key": "00"}\n{"peer": 3}', "no"):
        path = tmp_path / "scores"
        path.write_text(text)
        with pytest.raises(ConfigError, match="ledger"):
            Ledger(path)
