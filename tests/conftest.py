"""Fixtures of all tests."""

import atexit
import gc
import itertools
import os
import secrets
import shutil
import socket
import tempfile
import time
from collections.abc import Callable, Collection, Generator, Iterator
from contextlib import contextmanager, nullcontext, suppress
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any
from zlib import crc32

# one BLAS thread for each process, because threads that share two cores would wait by spinning
os.environ["OPENBLAS_NUM_THREADS"] = os.environ["OMP_NUM_THREADS"] = "1"
# no result depends on the time zone of the computer: this one is 3:30 h behind UTC, with daylight saving time
os.environ["TZ"] = "America/St_Johns"

# commit counters of ledgers, for all processes that tests start
if "SECUREVFL_STATE" not in os.environ:
    os.environ["SECUREVFL_STATE"] = tempfile.mkdtemp(prefix="securevfl-state-")
    atexit.register(shutil.rmtree, os.environ["SECUREVFL_STATE"], ignore_errors=True)

# user data of fixtures that several tests share: a new folder for each process, which no earlier run has written
os.environ["XDG_DATA_HOME"] = tempfile.mkdtemp(prefix="securevfl-data-")

# a home folder that no test may write to; caches of other packages, such as that of fonts, stay where they are
os.environ["XDG_CACHE_HOME"] = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
os.environ["XDG_CONFIG_HOME"] = os.environ.get("XDG_CONFIG_HOME") or str(Path.home() / ".config")
os.environ["HOME"] = tempfile.mkdtemp(prefix="securevfl-home-")

import numpy as np
import pytest
import typer.testing
from hypothesis import HealthCheck, settings
from typer.main import Typer, get_command

from securevfl.errors import TransportError
from securevfl.families.batch_participant import BatchParticipant
from securevfl.runtime import worker_backend
from securevfl.runtime.worker_processes import process_pool
from tests.small_keys import small
from tests.user_home import check_home

time.tzset()
# modules of tests leave little garbage when they are imported, and each collection would visit all that they import
gc.disable()
atexit.register(shutil.rmtree, os.environ["XDG_DATA_HOME"], ignore_errors=True)
atexit.register(shutil.rmtree, os.environ["HOME"], ignore_errors=True)

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
HOME = Path(os.environ["HOME"])
LEFT_OUT = pytest.StashKey[int]()

# The examples are the same in every run, so that no change fails because of an unrelated example.
# `make soak` searches for others, with --hypothesis-profile=search.
settings.register_profile(
    "same",
    max_examples=50,
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("search", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("same")


@pytest.fixture(scope="session")
def _all_user_data(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Iterator[Path]]:
    """Return a new numbered folder. pytest lists all folders next to a new one, which takes 3 ms for 3,000."""
    base = tmp_path_factory.mktemp("user-data")
    yield (base / str(number) for number in itertools.count())
    check_home(HOME)  # fixtures of modules end after the last test


@pytest.fixture(autouse=True)
def _user_data(_all_user_data: Iterator[Path], monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Give every test a separate folder of user data. A test fails if it or its fixtures write to the home folder."""
    folder = next(_all_user_data)
    folder.mkdir()
    monkeypatch.setenv("XDG_DATA_HOME", str(folder))
    yield folder
    check_home(HOME)


@contextmanager
def _as_they_are() -> Iterator[None]:
    """Send outputs H without rounding under encrypted residuals, here and in processes that start from `Forked`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(BatchParticipant, "sendable_outputs", lambda self, H, *_: H)
        patch.setenv("EXACT_OUTPUTS", "1")
        yield


@pytest.fixture(autouse=True, scope="module")
def _exact_outputs_of_a_module(request: pytest.FixtureRequest) -> Iterator[None]:
    """Send exact outputs in modules that are marked `exact_outputs`, and in their fixtures: they compare all digits."""
    with _as_they_are() if request.node.get_closest_marker("exact_outputs") else nullcontext():
        yield


@pytest.fixture(autouse=True)
def _exact_outputs(request: pytest.FixtureRequest) -> Iterator[None]:
    """In tests that are marked `exact_outputs` models are compared to the last digit; in all others H is rounded, as in
    the package (`securevfl.families.participant`)."""
    with _as_they_are() if request.node.get_closest_marker("exact_outputs") else nullcontext():
        yield


@pytest.fixture(autouse=True, scope="module")
def _small_keys(request: pytest.FixtureRequest) -> Iterator[None]:
    """Allow Paillier keys of 1,024 bits in modules that import `small_keys`."""
    if not hasattr(request.module, "SMALL"):
        yield
        return
    with small():
        yield


@pytest.fixture(autouse=True, scope="session")
def _short_patience_with_workers() -> Iterator[None]:
    """Let a lost worker be noticed in seconds: another worker reads the small tables of tests again at once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(worker_backend, "WORKER_TIMEOUT", 20.0)
        yield


@pytest.fixture(autouse=True, scope="session")
def _commands_built_once() -> Iterator[None]:
    """Build the commands of an application once, and not for each call by `CliRunner`, which takes 20 ms."""
    build = cache(lambda app, *_: get_command(app))

    def built(app: Typer) -> Any:
        return build(app, len(app.registered_commands), len(app.registered_groups))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(typer.testing, "_get_command", built)
        yield


@pytest.fixture(autouse=True, scope="session")
def _one_pool_of_processes() -> Iterator[None]:
    """Let all trainings under Paillier share one pool of worker processes: to start one takes 1.5 processor seconds."""
    cores = os.cpu_count() or 1
    with process_pool(cores) as pool, pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "securevfl.training.simulate.process_pool",
            lambda workers: nullcontext(pool) if workers == cores else process_pool(workers),
        )
        yield


@pytest.fixture
def benchmarks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make modules of the folder benchmarks/ importable."""
    if not BENCHMARKS.is_dir():
        pytest.skip("no checkout")
    monkeypatch.syspath_prepend(str(BENCHMARKS))


@pytest.fixture(scope="session")
def free_port() -> Iterator[Callable[[], int]]:
    """Return free ports, which no other test on this machine receives before this session ends.

    They are below those of outgoing connections: one of these could take a port before it is used.
    """
    reserved: list[socket.socket] = []

    def take() -> int:
        while True:
            port, mark = secrets.choice(range(10_000, 32_000)), socket.socket(socket.AF_UNIX)
            with suppress(OSError), socket.socket() as probe:
                # an abstract socket's name is unique on the machine
                mark.bind(f"\0a port of securevfl's tests: {port}")
                reserved.append(mark)
                probe.bind(("127.0.0.1", port))
                return port

    yield take
    for mark in reserved:
        mark.close()


@pytest.fixture
def no_collection() -> Iterator[None]:
    """Disable garbage collection during this test, which measures processor time of threads in milliseconds."""
    gc.disable()
    yield
    gc.enable()


@pytest.fixture(scope="session")
def until_silent() -> Callable[[Any, Collection[str]], None]:
    """Let a channel wait for each party exactly until it is silent, however busy the machine is.

    A party is silent from when it has sent its last message.
    """

    def change(channel: Any, silent: Collection[str]) -> None:
        receive, most = channel.recv, time.monotonic() + 60

        def recv(sender: str, kind: Any, subchannel: str = "", *, timeout: float | None = None) -> Any:
            while True:
                last = sender in silent or time.monotonic() > most
                try:
                    return receive(sender, kind, subchannel, timeout=0.001 if last else 0.01)
                except TransportError:
                    if last:
                        raise

        channel.recv = recv

    return change


def _reseed(module: ModuleType, name: str) -> None:
    """Let the generators among a module's variables start again, with random numbers that depend on a name alone."""
    for value in vars(module).values():
        if isinstance(value, np.random.Generator):
            value.bit_generator.state = np.random.default_rng(crc32(name.encode())).bit_generator.state


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Let every test draw the same random numbers, whichever tests of its module ran before."""
    if isinstance(item, pytest.Function):
        _reseed(item.module, item.name)


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(
    fixturedef: pytest.FixtureDef[Any], request: pytest.FixtureRequest
) -> Generator[None, object, object]:
    """Let a fixture of a module draw the same random numbers, whichever test requests it first."""
    item = getattr(request, "_pyfuncitem", None)
    if fixturedef.scope == "function" or not isinstance(item, pytest.Function):
        return (yield)
    _reseed(item.module, fixturedef.argname)
    try:
        return (yield)
    finally:
        _reseed(item.module, item.name)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--quick", action="store_true", help="the first short test of every file, for an inner loop")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep the first short test of every file under --quick."""
    if not config.getoption("--quick"):
        return
    seen: set[Path] = set()
    selected, left = [], []
    for item in items:
        if item.path in seen or any(item.get_closest_marker(name) for name in ("slow", "long", "realdata")):
            left.append(item)
        else:
            seen.add(item.path)
            selected.append(item)
    config.hook.pytest_deselected(items=left)
    items[:] = selected


def pytest_collection_finish() -> None:
    """Freeze the imported objects, so that no garbage collection visits them again; that saves 2 % of the time."""
    gc.freeze()
    gc.enable()


def pytest_deselected(items: list[pytest.Item]) -> None:
    for item in items:
        item.config.stash[LEFT_OUT] = item.config.stash.get(LEFT_OUT, 0) + 1


def pytest_sessionfinish(session: pytest.Session) -> None:
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["left out"] = session.config.stash.get(LEFT_OUT, 0)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    """Check that all workers collect the same tests and leave out the same ones."""
    node.config.stash[LEFT_OUT] = getattr(node, "workeroutput", {}).get("left out", 0)


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    if number := config.stash.get(LEFT_OUT, 0):
        terminalreporter.write_line(f"left out: {number} tests; make test runs all but the slow, make soak those")
