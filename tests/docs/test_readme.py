"""All programs of README.md run: the comparison of the public table, the reader's two files, and two machines.

The commands of the shell that take seconds each run in `tests/docs/test_start.py` and `tests/docs/test_pages.py`.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import securevfl as vfl
from securevfl.families.run_facts import pooled_run_facts
from securevfl.families.run_outputs import run_outputs
from tests.docs.test_pages import blocks
from tests.organisations.test_docs_two_organisations import together

README = Path(__file__).parents[2] / "README.md"
START = README.parent / "docs" / "start.md"
pytestmark = pytest.mark.skipif(not README.exists(), reason="needs a checkout")
AUC = re.compile(r"^([\w ,]+?) {2,}(\w+) +(0\.\d+) +(0\.\d+) +[\d.]+ +(.+)$", re.M)
CHANCE = 0.01  # trees are drawn from private randomness: four standard deviations of their AUC between runs are less


def of_kind(page: Path, kind: str) -> list[str]:
    """Return the blocks of a language."""
    return [text for language, text, _ in blocks(page) if language == kind]


def program(text: str, folder: Path) -> str:
    """Return the output of a program in this folder."""
    done = subprocess.run([sys.executable, "-c", text], cwd=folder, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def two_files(folder: Path) -> None:
    """Write bank.csv and shop.csv of docs/start.md into a folder."""
    program(next(text for text in of_kind(START, "python") if "csv.writer" in text), folder)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_comparison_prints_the_table_of_the_page(tmp_path: Path) -> None:
    pytest.importorskip("statsmodels")
    pytest.importorskip("sklearn")
    printed = program(of_kind(README, "python")[0], tmp_path)
    (stated,) = of_kind(README, "text")
    rows, expected = AUC.findall(printed), AUC.findall(stated)
    assert len(expected) == 9
    assert [(*row[:2], row[4]) for row in rows] == [(*row[:2], row[4]) for row in expected]
    for row, other in zip(rows, expected, strict=True):
        assert float(row[2]) == pytest.approx(float(other[2]), abs=CHANCE), row
        assert float(row[3]) == pytest.approx(float(other[3]), abs=CHANCE), row
    assert "The best AUC rises by 0.0" in printed


@pytest.mark.long
def test_two_files_of_the_reader_give_a_model(tmp_path: Path) -> None:
    pytest.importorskip("pandas")
    two_files(tmp_path)
    printed = program(of_kind(README, "python")[1], tmp_path)
    assert re.fullmatch(r"AUC 0\.9[789] on 500 held-out people\n", printed)
    assert {path.name for path in (tmp_path / "model").iterdir()} == {"bank.json", "shop.json"}
    assert (tmp_path / "run.html").read_text().startswith("<!")
    assert set(vfl.Run.load(tmp_path / "model").parts) == {"bank", "shop"}


@pytest.mark.long
@pytest.mark.timeout(300)
def test_two_machines_train_by_five_commands(tmp_path: Path, free_port: Callable[[], int]) -> None:
    two_files(tmp_path)
    commands = [line[2:] for text in of_kind(README, "console") for line in text.splitlines()]
    assert len(commands) == 5
    kit, bank_align, bank_join, shop_align, shop_join = commands
    for name, port in (("bank", "7301"), ("shop", "7302")):
        kit = kit.replace(f"{name}.example:{port}", f"localhost:{free_port()}")
    together([kit], tmp_path)
    together([bank_align, shop_align], tmp_path)
    sheets = together(
        [
            "securevfl explain kits/bank/job.toml --data bank=bank.csv --size shop=8",
            "securevfl explain kits/shop/job.toml --data shop=shop.csv --size bank=6",
        ],
        tmp_path,
    )
    digests = [re.findall(r"^digest: (\w+)", sheet, re.M)[0] for sheet in sheets]
    joins = [f"{line} --accept {digest}" for line, digest in zip((bank_join, shop_join), digests, strict=True)]
    output, _ = together(joins, tmp_path)
    assert float(re.findall(r"^AUC +([01]\.\d+)", output, re.M)[0]) > 0.95
    assert (tmp_path / "bank.model.json").exists()
    assert (tmp_path / "shop.model.json").exists()


OUTPUT_PHRASES = {
    "pairs of a score and a label in random order": "a list of the rounded scores of the held-out people",
    "sums of losses": "the sum of the losses (errors) of the held-out people",
    "counts of rows out of range": "the scores of at most 1,024 people of the training are checked",
}
"""The words of the page for each output of the default job."""


def test_who_learns_what_names_every_output_of_the_default_job() -> None:
    job, parties = vfl.Job(model=vfl.Logistic()), list(vfl.datasets.loans())
    outputs = run_outputs(job.family, job, pooled_run_facts(job, parties).shape)
    assert {output.name for output in outputs} == set(OUTPUT_PHRASES)
    assert {output.receiver for output in outputs} == {"bank"}
    (row,) = [
        line
        for line in README.read_text(encoding="utf-8").splitlines()
        if line.startswith("| 4. `join`, the evaluations")
    ]
    _, _, bank, shop, _ = row.split("|")
    for phrase in OUTPUT_PHRASES.values():
        assert phrase in bank, phrase
    assert shop.startswith(" nothing from logistic regression with the default options."), (
        "evaluations disclose nothing to the shop"
    )
    (score,) = [output for output in outputs if "score" in output.name]
    assert score.group != "training"
