"""The commands of docs/two-organisations.md work in real processes, from two CSV files."""

import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import csv

import securevfl as vfl
from securevfl.training.model_part import ModelPart
from tests.forked import command

PAGE = Path(__file__).parents[2] / "docs" / "two-organisations.md"
pytestmark = pytest.mark.skipif(not PAGE.exists(), reason="no checkout")


def write(party: vfl.Party, path: Path) -> None:
    labels = {} if party.y is None else {"y": party.y}
    table = {"id": party.ids, **labels, **dict(zip(party.columns, party.X.T, strict=True))}
    csv.write_csv(pa.table(table), path)


def shell(text: str, folder: Path) -> "subprocess.Popen[str]":
    line = f'securevfl() {{ {command()} securevfl.cli.main "$@"; }}\nset -e\n{text}'
    return subprocess.Popen(["sh", "-c", line], cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def together(texts: list[str], folder: Path) -> list[str]:
    """Run these at the same time; return the output of each."""
    processes = [shell(text, folder) for text in texts]
    outputs = []
    for process in processes:
        out, errors = process.communicate(timeout=240)
        assert process.returncode == 0, errors
        outputs.append(out)
    return outputs


@pytest.mark.long
def test_the_page(tmp_path: Path, free_port: Callable[[], int]) -> None:
    bank, shop = vfl.datasets.loans()
    draw = np.random.default_rng(4)
    rows = draw.permutation(len(bank))
    write(bank.take(rows[:2900]), tmp_path / "bank.csv")
    write(shop.take(draw.permutation(len(shop))[:2950]), tmp_path / "shop.csv")
    page = PAGE.read_text()
    ports = {port: str(free_port()) for port in ("7301", "7302")}
    for port, free in ports.items():
        page = page.replace(f"localhost:{port}", f"localhost:{free}")
    blocks = re.findall(r"^```sh\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    kit, *parties, new, lines = [
        block for block in blocks if "openssl" not in block and "bank.example.org" not in block
    ]
    assert sum(block.count("securevfl ") for block in (kit, *parties)) <= 5
    (agreed,) = re.findall(r"^(accept=.*)$", page, re.MULTILINE)
    for k, (name, other) in enumerate([("bank", "shop"), ("shop", "bank")]):  # as in a script, without a terminal
        of_party = agreed.replace("bank", "NAME").replace("shop", other).replace("NAME", name)
        of_party = of_party.replace("=8", f"={len({'bank': bank, 'shop': shop}[other].columns)}")
        parties[k] = re.sub(
            r"^(securevfl join .*)$",
            lambda line, lines=of_party: f"{lines}\n{line[1]} --accept $accept",
            parties[k],
            flags=re.M,
        )
    together([kit], tmp_path)
    output, _ = together(parties, tmp_path)
    auc = float(re.findall(r"^AUC +([01]\.\d+)", output, re.M)[0])
    (stated,) = re.findall(r"gets an AUC of\s+about\s+(0\.\d\d);", page)
    assert auc == pytest.approx(float(stated), abs=0.03)
    parts = [ModelPart.load(tmp_path / f"{name}.model.json") for name in ("bank", "shop")]
    assert parts[0].run == parts[1].run != ""
    assert "shares" in parts[0].job["protocol"]
    assert not list(tmp_path.glob("*.states"))
    assert not list(tmp_path.glob("*.align"))

    later = rows[2900:2903]  # of nobody in the bank's table, and so of nobody in the training
    write(bank.take(later), tmp_path / "new-bank.csv")
    write(shop.take(later), tmp_path / "new-shop.csv")
    together(new.splitlines(), tmp_path)
    one, other = together(lines.splitlines(), tmp_path)
    assert one == other
    assert "vfl.Network(mbps=" in one
    predicted = csv.read_csv(tmp_path / "predictions.csv").to_pydict()
    assert predicted["id"] == list(bank.ids[later])  # type: ignore[index]
    assert predicted["prediction"] == [str(parts[0].classes[round(p)]) for p in predicted["probability"]]  # type: ignore[index]
