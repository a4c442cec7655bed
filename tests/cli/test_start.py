"""The package and the command start fast: a name or a command loads its imports when it is first used."""

import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import securevfl as vfl

HEAVY = "numpy", "pydantic", "msgspec", "grpc", "tenseal", "gmpy2", "cryptography", "nacl"


def loaded(code: str) -> set[str]:
    """Return the packages that a fresh process has loaded after this code."""
    code += "\nimport sys\nprint(*{name.partition('.')[0] for name in sys.modules}, file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stderr.split())


@pytest.mark.parametrize(
    "code",
    [
        "import securevfl",
        "import securevfl.cli.main",
        "from typer.testing import CliRunner\nfrom securevfl.cli.main import app\nCliRunner().invoke(app, ['--help'])",
    ],
)
def test_starting_loads_little(code: str) -> None:
    assert not loaded(code) & set(HEAVY)


def test_only_what_is_asked_for_is_loaded() -> None:
    assert not loaded("import securevfl as vfl; vfl.Logistic; vfl.FedBCD; vfl.Party") & {"grpc", "sklearn"}


def test_what_opens_no_line_leaves_grpc_alone(tmp_path: Path) -> None:
    """gRPC is imported only by processes that open a connection, because disabling TLS
    1.2 affects the whole process.
    """
    code = "from pathlib import Path\nfrom securevfl.transport import certs\n"
    assert "grpc" not in loaded(
        code + f"certs.init(Path({str(tmp_path)!r}))\ncerts.issue(Path({str(tmp_path)!r}), 'bank')"
    )
    assert "grpc" not in loaded("import securevfl as vfl; vfl.simulate")


def test_every_public_name_is_there_and_listed() -> None:
    code = "import securevfl\nassert set(securevfl.__all__) <= set(dir(securevfl))\n"
    loaded(code + "for name in securevfl.__all__:\n    getattr(securevfl, name)")


def test_a_function_keeps_its_name_whatever_was_imported_before() -> None:
    for module in ("organisations.join", "training.simulate", "consent.consent_sheet"):
        import_module(f"securevfl.{module}")
    assert callable(vfl.join)
    assert callable(vfl.simulate)
    assert callable(vfl.explain)


def test_other_names_are_refused() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        vfl.nothing  # noqa: B018
