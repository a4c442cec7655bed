"""The core installs everything that a party needs for CSV and npz files; otherwise an error names the extra."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from securevfl.cli.main import app

HIDE = """
import sys

class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {hidden}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Hidden())
"""
ALL_LIBRARIES = {"scipy", "sklearn", "matplotlib", "phe", "distributed"}


def run_without(hidden: set[str], code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", HIDE.format(hidden=hidden) + code, *arguments]
    return subprocess.run(command, capture_output=True, text=True)


TRAIN = """
import numpy as np
from pathlib import Path
import securevfl as vfl
from securevfl.data.readers import read_party

folder = Path(sys.argv[1])
bank, shop = read_party("bank", folder / "bank.csv"), read_party("shop", folder / "shop.npz")
parties = vfl.align([bank, shop])
for model, optimizer, residual in (
    (vfl.Logistic(), vfl.FedBCD(lr=0.3), vfl.Ckks()),
    (vfl.Softmax(), vfl.FedBCD(lr=0.3), vfl.Ckks()),
    (vfl.Kernel(gamma=0.1, blocks=2, block_size=32), vfl.FDSKL(), None),
):
    protocol = vfl.Protocol() if residual is None else vfl.Protocol(residual=residual)
    job = vfl.Job(model=model, optimizer=optimizer, protocol=protocol, batch_size=40, epochs=1)
    run = vfl.simulate(job, parties)
    assert run.metrics["accuracy"] > 0.5, run.metrics
    assert len(run.predict_proba({"bank": bank.X[:3], "shop": shop.X[:3]})) == 3
"""


@pytest.mark.slow
def test_the_demo_runs_from_an_empty_folder_without_any_extra(tmp_path: Path) -> None:
    """It shows the result first, then the disclosures and the costs."""
    code = "import os; os.chdir(sys.argv.pop()); sys.argv.append('demo'); from securevfl.cli.main import main; main()"
    hidden = ALL_LIBRARIES | {"torch", "onnx", "pandas", "prometheus_client", "dp_accounting"}
    done = run_without(hidden, code, str(tmp_path))
    assert (done.returncode, [file.name for file in tmp_path.iterdir()]) == (0, ["securevfl-demo.html"]), done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) <= 40
    assert max(map(len, lines)) <= 80
    assert "\x1b" not in done.stdout + done.stderr
    order = ["the bank alone", "What each learned", "Costs", "other modes", "Next steps", "securevfl-demo.html"]
    places = [done.stdout.index(words) for words in order]
    assert places == sorted(places)
    alone, shared, pooled = (float(line.split()[-1]) for line in lines[4:7])
    assert shared == pytest.approx(pooled, abs=0.01)
    assert shared > alone + 0.05
    cost = done.stdout[places[2] :]
    total = float(re.findall(r"(\d+\.\d+) s and", cost)[0])
    assert re.search("seconds of +encryption +transfers +other computation +communication", cost)
    phases = re.findall(r"^  (?:preparation|training|evaluation) +([\d. ]+)$", cost, re.MULTILINE)
    seconds = [float(number) for phase in phases for number in phase.split()]
    assert len(seconds) == 3 * 4
    assert sum(seconds) == pytest.approx(total, abs=1e-9)
    for mode in ("shares", "CKKS", "Paillier", "open"):
        assert re.search(rf"^{mode} +0\.\d{{3}} ", done.stdout, re.MULTILINE), mode
    assert "<svg" in (tmp_path / "securevfl-demo.html").read_text()
    for command in re.findall(r"^  securevfl (\w+) --help", done.stdout, re.MULTILINE):
        assert CliRunner().invoke(app, [command, "--help"]).exit_code == 0


def test_a_party_trains_from_csv_and_npz_without_any_extra(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    X = generator.normal(size=(80, 14))
    y = (X.sum(axis=1) > 0).astype(int)
    lines = [f"c{row},{y[row]},{X[row, 0]},{X[row, 1]}" for row in range(80)]
    (tmp_path / "bank.csv").write_text("\n".join(["id,y,a,b", *lines]))
    np.savez(tmp_path / "shop.npz", X=X[:, 2:], ids=np.array([f"c{row}" for row in range(80)]))
    done = run_without(ALL_LIBRARIES, TRAIN, str(tmp_path))
    assert done.returncode == 0, done.stderr


OF_EXTRAS = [
    ("sklearn", "sklearn", "import securevfl as vfl; vfl.datasets.breast_cancer()"),
    ("dp_accounting", "dp", "import securevfl as vfl; vfl.LocalNoise(epsilon=1, delta=1e-5, clip=2).sigma(3)"),
    ("adbc_driver_postgresql", "sql", "import securevfl as vfl; vfl.read_sql('postgresql://h/d', 'select 1')"),
    ("sklearn", "sklearn", "import securevfl as vfl; vfl.VerticalClassifier"),
    ("matplotlib", "plot", "from securevfl.training.run import plot; plot([], None)"),
]
"""A library, the extra that installs it, and code that needs it."""
EACH_ERROR = """
import securevfl.errors
for code in sys.argv[1:]:
    try:
        exec(code)
        print("no error")
    except securevfl.errors.ConfigError as error:
        print(error)
"""


def test_an_error_names_the_extra() -> None:
    done = run_without({module for module, _, _ in OF_EXTRAS}, EACH_ERROR, *(code for _, _, code in OF_EXTRAS))
    assert done.returncode == 0, done.stderr
    for line, (module, extra, _) in zip(done.stdout.splitlines(), OF_EXTRAS, strict=True):
        assert line.endswith(f"{module}, which is not installed. Install it with pip install 'securevfl[{extra}]'.")


def test_a_module_that_is_there_and_broken_is_not_called_missing() -> None:
    code = "from securevfl.base.extras import import_extra; import_extra('scipy.stats', 'sklearn', 'x')"
    done = run_without({"numpy"}, code)
    assert "ModuleNotFoundError: No module named 'numpy" in done.stderr


ROOT = Path(__file__).parents[1]


@pytest.mark.skipif(not (ROOT / "pyproject.toml").exists(), reason="no checkout")
def test_every_library_has_been_looked_at_for_known_holes() -> None:
    """SECURITY.md names each library that users install, with its least version where a hole set it."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    requirements = project["dependencies"] + [
        one for name in extras if name not in {"test", "docs", "dev"} for one in extras[name]
    ]
    least = dict(re.findall(r"^([\w.-]+)>=([\d.]+)", "\n".join(requirements), re.MULTILINE))
    page = (ROOT / "SECURITY.md").read_text().split("## Libraries")[1].split("\n## ")[0]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in page.splitlines() if line.startswith("| ")][1:]
    reviewed = {}
    for names, versions, _ in rows:
        libraries = names.split(", ")
        minimums = versions.split(", ") if "pyproject" not in versions else [least[name] for name in libraries]
        reviewed |= dict(zip(libraries, minimums, strict=True))
    assert reviewed == least
