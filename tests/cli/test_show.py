"""Output of commands outside a terminal is complete: no figure is truncated, and no digest is split."""

from io import StringIO
from typing import Any

import numpy as np
import pytest

import securevfl as vfl
from securevfl.cli.run_output import print_costs
from securevfl.cli.show import console, styled_sheet
from securevfl.training.run_costs import rounded_parts


@pytest.fixture
def cancer_tables() -> list[vfl.Party]:
    return vfl.datasets.breast_cancer()


def test_a_pipe_gets_whole_figures_and_whole_lines(
    cancer_tables: list[vfl.Party], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    out: Any = console()
    out.file = StringIO()
    assert not out.is_terminal
    job = vfl.Job(model="logistic", protocol="open", epochs=1)
    costs = vfl.simulate(job, cancer_tables).costs
    print_costs(out, costs)
    assert "\N{HORIZONTAL ELLIPSIS}" not in out.file.getvalue()
    assert f"{costs.bytes / 1e6:.2f}" in out.file.getvalue()

    alone = vfl.explain(job, [cancer_tables[0]], others={"shop": 15})
    assert styled_sheet(str(alone)).plain == str(alone)


def test_the_first_refusal_names_shares_and_the_present_epochs() -> None:
    X, rows = np.random.default_rng(0).integers(0, 2, (400, 8)), list(range(400))
    parties = [vfl.Party("bank", X[:, :4], X[:, 1], ids=rows), vfl.Party("shop", X[:, 4:], ids=rows)]
    for epochs in (1, 30):
        job = vfl.Job(model="logistic", protocol="open", optimizer=vfl.FedSGD(lr=0.1), batch_size=40, epochs=epochs)
        texts = [" ".join(text.split()) for text in vfl.explain(job, parties).split("\n\n")]
        refused = [text for text in texts if "refused: disclosure to bank" in text]
        (line,) = [line for line in refused if "columns of shop" in line]
        assert 'use protocol = "shares", which discloses no columns' in line
        assert ("fewer epochs" in line) == (epochs > 1)


def test_printed_parts_add_up_to_the_printed_total() -> None:
    rng = np.random.default_rng(0)
    for _ in range(100):
        parts = dict(zip("abcde", rng.exponential(size=5) * 10.0 ** rng.integers(-3, 3), strict=True))
        rounded = [float(text) for text in rounded_parts(parts, 2).values()]
        assert f"{sum(rounded):.2f}" == f"{sum(parts.values()):.2f}"
        assert all(abs(text - value) <= 0.01 + 1e-9 for text, value in zip(rounded, parts.values(), strict=True))
