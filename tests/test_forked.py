"""Processes of tests that are forked behave as those that Python starts, and share no randomness."""

import subprocess
import sys

import pytest

import securevfl as vfl
from tests.forked import Forked, command, run_forked

DRAWS = """
import os, random, secrets, uuid
import numpy as np
from securevfl.crypto.prg import Prg
from securevfl.crypto.key_agreement import KeyPair
from securevfl.protocols.engines import ENGINES
print(secrets.token_hex(), os.urandom(8).hex(), random.random(), uuid.uuid4(), np.random.default_rng().integers(2**62))
print(KeyPair().public.hex(), Prg.fresh("test").array(4, "<u8").tobytes().hex())
"""


def forked(code: str, *words: str) -> "subprocess.CompletedProcess[str]":
    done: subprocess.CompletedProcess[str] = run_forked(
        [sys.executable, "-c", code, *words], capture_output=True, text=True
    )
    return done


def test_two_of_them_draw_other_numbers() -> None:
    one, other = (forked(DRAWS).stdout.split() for _ in range(2))
    assert len(one) == len(other) == 7
    assert not set(one) & set(other)


def test_they_end_as_others_do() -> None:
    done = forked("import sys; print(sys.argv); sys.exit('ill')", "a", "b c")
    assert (done.returncode, done.stdout, done.stderr) == (1, "['-c', 'a', 'b c']\n", "ill\n")
    assert "ZeroDivisionError" in forked("1 / 0").stderr
    assert forked("import atexit; atexit.register(print, 'last')").stdout == "last\n"
    assert forked("import sys; print(sys.stdin.read())").returncode == 0


@pytest.mark.parametrize("words", [["--version"], ["train", "none.toml"], ["nothing"], ["ledger", "--help"]])
def test_a_command_says_and_ends_the_same(words: list[str]) -> None:
    line = [sys.executable, "-m", "securevfl.cli.main", *words]
    processes = [run(line, capture_output=True, text=True) for run in (subprocess.run, run_forked)]
    assert [processes[0].returncode, processes[0].stdout, processes[0].stderr] == [
        processes[1].returncode,
        processes[1].stdout,
        processes[1].stderr,
    ]


def test_a_killed_process_leaves_no_pipe_open_in_another() -> None:
    line = [sys.executable, "-c", "import time; print(1, flush=True); time.sleep(300)"]
    with Forked(line, stdout=subprocess.PIPE, text=True) as one, Forked(line, stdout=subprocess.PIPE) as other:
        assert one.stdout is not None
        assert one.stdout.readline() == "1\n"
        one.kill()
        assert one.communicate(timeout=60) == ("", None)
        assert (one.returncode, other.poll()) == (-9, None)
        other.kill()


def test_a_shell_starts_commands_and_hears_how_they_end() -> None:
    text = f'vfl() {{ {command()} securevfl.cli.main "$@"; }}\nvfl --version\nvfl train none.toml\necho "ended $?"'
    done = subprocess.run(["sh", "-c", text], capture_output=True, text=True)
    assert done.stdout.splitlines() == [f"securevfl {vfl.__version__}", "ended 2"]
    assert "none.toml" in done.stderr
