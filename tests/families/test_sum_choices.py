"""A sum that protects nothing is refused with a remedy that runs; sheets state which outputs are in the clear."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from builders import cancer_parties, make_job, raises_code

import securevfl as vfl
from securevfl.errors import ConfigError, LeakageError
from securevfl.protocols.protocol_options import SUMS

HIDING = sorted(set(SUMS) - {"direct"})
FDML_KEYS: dict[str, Any] = {"optimizer": {"name": "fdml", "lr": 0.2, "tau": 1}, "epochs": 1, "batch_size": 100}
IN_THE_CLEAR = "forward outputs H_k, in the clear, to the party with labels"


@pytest.mark.parametrize("name", HIDING)
@pytest.mark.parametrize("residual", ["open", "ckks"])
def test_the_remedy_for_a_hiding_sum_of_one_part_runs(name: str, residual: str) -> None:
    """With one passive party, every recommendation of the refusal is a job that trains."""
    parties = cancer_parties(2, 120)
    protocol = {"sum": name, "residual": residual}
    with raises_code(LeakageError, "SVFL-LEAK-NOT-ACCEPTED", leaks=("single_passive",)) as caught:
        vfl.simulate(make_job(protocol=protocol, epochs=1), parties)
    message = str(caught.value)
    assert 'sum = "direct"' in message
    assert ("accepts =" in message) == (name == "cipher")
    for remedy in ("direct", "auto"):
        assert vfl.simulate(make_job(protocol=protocol | {"sum": remedy}, epochs=1), parties).active.rounds
    accepting = make_job(protocol=protocol, epochs=1, accepts=("columns", "rank", "single_passive"))
    if "accepts =" in message:
        assert vfl.simulate(accepting, parties).active.rounds
    else:
        with raises_code(ConfigError, "SVFL-LEAK-UNPROTECTED") as refused:
            vfl.simulate(accepting, parties)
        assert 'sum = "direct"' in refused.value.remedy


def test_which_mode_names_the_sums_that_are_refused() -> None:
    """With one passive party: the page's sentence on refusals is that of the test above, for every sum."""
    page = (Path(__file__).parents[2] / "docs" / "which-mode.md").read_text(encoding="utf-8")
    assert HIDING == ["cipher", "pairwise", "tree"]
    sentence = 'so `pairwise` and `tree` are refused, and so is `cipher` unless the job accepts `"single_passive"`'
    assert sentence in " ".join(page.split())


@pytest.mark.parametrize("name", sorted(SUMS))
def test_fdml_trains_with_a_sum_or_refuses_it(name: str) -> None:
    """FDML refuses a sum that its training would not use; the job that the remedy names trains."""
    keys = FDML_KEYS | {"accepts": ("columns", "rank", "fresh_equations")}
    parties = [*cancer_parties(3, 120), vfl.Helper("server", "server")]
    if name in HIDING:
        with raises_code(ConfigError, "SVFL-JOB-OPTION") as caught:
            make_job(protocol={"sum": name, "residual": "open"}, **keys)
        assert "leave sum out" in str(caught.value)
        keys["optimizer"] = keys["optimizer"] | {"stored": "masks"}
        assert vfl.simulate(make_job(protocol={"residual": "open"}, **keys), parties).active.rounds
    else:
        assert vfl.simulate(make_job(protocol={"sum": name, "residual": "open"}, **keys), parties).active.rounds


@pytest.mark.parametrize("residual", ["open", "ckks", "paillier"])
def test_the_sheet_states_which_outputs_are_in_the_clear(residual: str) -> None:
    job = make_job(protocol={"residual": residual}, epochs=1)
    two, three = (vfl.explain(job, cancer_parties(count, 120)) for count in (2, 3))
    assert IN_THE_CLEAR in two
    assert any(row["Learns"].startswith("one party's forward outputs, in the clear") for row in two.learned)
    assert ("only the residual is encrypted" in two) == (residual != "open")
    assert IN_THE_CLEAR not in three
    assert any(row["Learns"].startswith("sums of forward outputs") for row in three.learned)
    direct = make_job(protocol={"residual": residual, "sum": "direct"}, epochs=1)
    assert IN_THE_CLEAR in vfl.explain(direct, cancer_parties(3, 120))
