"""The command that runs other systems next to this one. Only this library is run, on small tables; the
other systems are not installed here.
"""

import json
import socket
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.skipif(not (ROOT / "benchmarks" / "peers").is_dir(), reason="needs a checkout")


def test_pages_follow_from_the_files() -> None:
    from benchmarks.peers import page

    for name in page.PAGES:
        text = (ROOT / name).read_text(encoding="utf-8")
        assert page.PLACE.search(text), name
        assert page.drawn(text, ROOT / "benchmarks" / "peers" / "results") == text, "python -m benchmarks.peers --page"


def test_results_are_of_full_runs_on_a_named_machine() -> None:
    for file in sorted((ROOT / "benchmarks" / "peers" / "results").glob("*.json")):
        text = json.loads(file.read_text())
        if file.stem != "published":
            assert not text.get("quick", False), file
            assert text["machine"]["processor"], file
            assert text["rows"], file
            assert all(row["cpu_s"] > 0 for row in text["rows"] if "cpu_s" in row)


@pytest.mark.slow
def test_the_same_command_repeats_only_failed_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from benchmarks.peers import __main__ as command
    from benchmarks.peers.environments import Environment, Unavailable

    def unavailable(*_: Any) -> Path:
        raise Unavailable("Python 3.10 is not installed")

    monkeypatch.setattr(Environment, "interpreter", unavailable)
    words = ["--quick", "--out", str(tmp_path), "--only"]
    command.main([*words, "openmined,ours-align"])
    with monkeypatch.context() as near:  # a training starts seven processes for each link
        near.setattr(command, "LINES_BETWEEN_PARTIES", {"loopback": None})
        command.main([*words, "ours-cheapest"])
    psi, linear = (json.loads((tmp_path / f"{part}.json").read_text()) for part in ("psi", "linear"))
    ours = [row for row in psi["rows"] if row["system"] == "ours-align"]
    assert [(row["line"], row["common"]) for row in ours] == [("loopback", 300), ("far", 300)]
    assert ours[1]["bytes"] > 400 * 20
    assert ours[1]["seconds"] > ours[0]["seconds"] / 10
    assert [row["failed"] for row in psi["rows"] if row["system"] == "openmined"] == ["Python 3.10 is not installed"]
    assert 0.5 < linear["bar"] < 1
    assert all(0.5 < row["auc"] < 1 and row["cpu_s"] > 0.1 and min(row["memory_mb"]) > 10 for row in linear["rows"])

    ran: list[str] = []

    def run(self: Any, part: str, system: Any, *_: Any) -> Any:
        ran.append(system.name)
        raise Unavailable("still not")

    monkeypatch.setattr(command.Runs, "_run", run)
    command.main([*words, "openmined,ours-align"])
    assert ran == ["openmined"]
    again = json.loads((tmp_path / "psi.json").read_text())["rows"]
    assert [row for row in again if row["system"] == "ours-align"] == ours

    stored = json.loads((tmp_path / "psi.json").read_text())
    stored["rows"].append(ours[0] | {"settings": {"ids": 7}})  # of settings that are not tried any more
    (tmp_path / "psi.json").write_text(json.dumps(stored))
    ran.clear()
    command.main([*words, "ours-align", "--again"])
    assert set(ran) == {"ours-align"}
    left = [row for row in json.loads((tmp_path / "psi.json").read_text())["rows"] if row["system"] == "ours-align"]
    assert [row["failed"] for row in left] == ["still not"] * len(ran)


def test_the_cheapest_sufficient_settings_are_shown() -> None:
    from benchmarks.peers.page import best
    from benchmarks.peers.plans import LINEAR_SYSTEMS

    def row(epochs: int, auc: float, cpu: float, line: str = "loopback") -> dict[str, Any]:
        return {"system": "crypten", "settings": {"epochs": epochs}, "line": line, "auc": auc, "cpu_s": cpu}

    system = next(item for item in LINEAR_SYSTEMS if item.name == "crypten")
    rows = [row(1, 0.70, 1.0), row(2, 0.7395, 2.0), row(3, 0.7399, 3.0), row(2, 0.7395, 2.5, "far")]
    displayed = best({"bar": 0.74, "rows": rows}, system)
    assert displayed == {"loopback": rows[1], "far": rows[3]}
    assert best({"bar": 0.75, "rows": rows}, system)["loopback"] == rows[2]
    failed = {"system": "crypten", "settings": {}, "line": "loopback", "failed": "no"}
    assert best({"bar": 0.74, "rows": [failed]}, system) == {"failed": failed}


def test_a_failed_party_stops_the_other_and_is_reported(tmp_path: Path) -> None:
    from benchmarks.peers.pairs import PairFailed, run_pair

    words = [[sys.executable, "-c", "raise ValueError('no such table')"], ["sleep", "60"]]
    with pytest.raises(PairFailed, match=r"^exit code 1: ValueError: no such table$"):
        run_pair(words, tmp_path)
    elapsed = run_pair([[sys.executable, "-c", "sum(range(10**6))"], [sys.executable, "-c", ""]], tmp_path)
    assert elapsed.cpu_s > 0.01
    assert len(elapsed.memory_mb) == 2


def test_ports_of_one_line_share_its_rate_and_its_bytes() -> None:
    from benchmarks.peers.pairs import between
    from securevfl.runtime.network import Network

    def echo(server: socket.socket) -> None:
        line, _ = server.accept()
        while data := line.recv(1 << 16):
            line.sendall(data)

    with between(Network(mbps=8.0, rtt_ms=0.0), 2) as way:  # 1 MB/s
        servers = [socket.create_server(("127.0.0.1", port)) for port in way.bound[0]]
        threads = [threading.Thread(target=echo, args=(item,), daemon=True) for item in servers]
        for thread in threads:
            thread.start()
        lines = [socket.create_connection(("127.0.0.1", port)) for port in way.other[1]]
        for line in lines:
            line.sendall(bytes(1000))
        assert all(line.recv(1000, socket.MSG_WAITALL) == bytes(1000) for line in lines)
        assert way.bytes == 4000
        times = [item.through(1000) for item in (way.ways[1], way.ways[1], way.ways[0])]
        assert times[1] == pytest.approx(times[0] + 1e-3, abs=1e-6)
        for item in (*lines, *servers):
            item.close()
    with between(None, 1) as way:
        assert (way.bound[0], way.bound[1]) == (way.other[1], way.other[0])
        assert way.bytes is None


def test_a_wrong_command_states_the_valid_choices(capsys: pytest.CaptureFixture[str]) -> None:
    from benchmarks.peers.__main__ import main

    for words, disclosed in (([], "--data"), (["--quick", "--only", "gone"], "ours-default")):
        with pytest.raises(SystemExit):
            main(words)
        assert disclosed in capsys.readouterr().err


def test_an_unavailable_environment_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from benchmarks.peers.environments import Unavailable, find

    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    assert find(version) == Path(sys.executable)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path))
    with pytest.raises(Unavailable, match=r"Python 3\.1 "):
        find("3.1")
