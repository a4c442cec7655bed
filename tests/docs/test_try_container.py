"""examples/try-container tests its statements, and reports those that it could not test."""

import shutil
import subprocess
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
TOOLS = ("bash", "dirname", "mktemp", "rm", "sed", "grep", "head", "tail", "timeout", "true", "systemd-analyze")
UNIT_CHECK = "the unit is one that systemd takes"
SYSTEMD = shutil.which("systemd-analyze") is not None
pytestmark = pytest.mark.skipif(not EXAMPLES.exists(), reason="needs a checkout")


def without_an_engine(folder: Path) -> dict[str, str]:
    """Return an environment without podman and docker."""
    (folder / "bin").mkdir()
    for name in TOOLS:
        if (result := shutil.which(name)) is not None:
            (folder / "bin" / name).symlink_to(result)
    return {"PATH": str(folder / "bin")}


def run(script: Path, env: dict[str, str] | None = None) -> tuple[int, list[str]]:
    done = subprocess.run([str(script)], env=env, capture_output=True, text=True)
    assert not done.stderr
    return done.returncode, done.stdout.splitlines()


@pytest.mark.long
def test_each_check_reports_whether_it_ran() -> None:
    code, lines = run(EXAMPLES / "try-container")
    assert code == 0, lines
    assert len(lines) == 3
    assert all(line.startswith(("tested: ", "not tested: ")) for line in lines), lines
    for line in lines:
        print(line)


def test_without_an_engine_the_container_is_reported_untested(tmp_path: Path) -> None:
    code, (image, container, unit) = run(EXAMPLES / "try-container", without_an_engine(tmp_path))
    assert code == 0
    assert image == "not tested: the image is built, as neither podman nor docker runs here"
    assert container.startswith("not tested: the container starts without a network, as user 10001")
    assert container.endswith(", as neither podman nor docker runs here")
    assert unit == (f"tested: {UNIT_CHECK}" if SYSTEMD else f"not tested: {UNIT_CHECK}, as there is no systemd-analyze")


@pytest.mark.parametrize(("right", "wrong"), [("PrivateTmp=", "PrivateTemp="), ("ExecStart=/", "ExecStart=/not/")])
def test_a_unit_that_systemd_rejects_fails(tmp_path: Path, right: str, wrong: str) -> None:
    shutil.copytree(EXAMPLES, tmp_path / "examples")
    path = tmp_path / "examples" / "securevfl-serve.service"
    text = path.read_text()
    assert right in text
    path.write_text(text.replace(right, wrong, 1))
    code, lines = run(tmp_path / "examples" / "try-container", without_an_engine(tmp_path))
    if SYSTEMD:
        assert code == 1
        assert any(line.startswith(f"failed: {UNIT_CHECK}") for line in lines)
    else:
        assert lines[-1] == f"not tested: {UNIT_CHECK}, as there is no systemd-analyze"
