"""Processes of tests that start from one that has imported the package: 0.1 processor seconds each instead of 0.7.

`Forked` is a `subprocess.Popen` of `[sys.executable, "-c" or "-m", ...]`. Each test process has one server that forks
them. It only imports modules, and has no key, random generator, thread or channel. Its children become those of the
test process, which is their nearest subreaper, and are waited for and killed as any others. `COMMAND` is the line of a
shell that starts one: it passes on its streams and ends with the child's exit code.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import json
import os
import select
import socket
import subprocess
import sys
import threading
from subprocess import Popen  # callers of `subprocess` that `Forked` can replace
from typing import Any

NAME = f"\0forks of securevfl's tests: {os.getpid()}"  # name of the socket for commands of shells
SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER of prctl(2)
# linear algebra and Arrow's allocator start threads when they are imported, and none of them lives on in a child
WITHOUT_THREADS = {
    "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "JE_ARROW_MALLOC_CONF": "background_thread:false"
}  # fmt: skip
ALONE = ("preexec_fn", "start_new_session", "process_group", "executable", "shell", "umask", "user", "pass_fds")


class _Server:
    """The process that forks; it is started when the first child is requested."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._line: socket.socket | None = None

    def _start(self) -> socket.socket:
        ctypes.CDLL(None, use_errno=True).prctl(SUBREAPER, 1, 0, 0, 0)
        local_end, other = socket.socketpair()
        with other:
            command = [sys.executable, __file__, str(other.fileno()), NAME[1:]]
            process = Popen(
                command, pass_fds=[other.fileno()], stdin=subprocess.DEVNULL, env=os.environ | WITHOUT_THREADS
            )

        def close() -> None:
            local_end.close()
            process.wait()

        atexit.register(close)
        return local_end

    def fork(self, request: dict[str, Any], streams: list[int]) -> int:
        """Start a process, which becomes a child of this one, and return its number."""
        payload = json.dumps(request).encode()
        with self._lock:
            line = self.start()
            _send(line, payload, streams)
            return int.from_bytes(_read(line, 8), "big")

    def start(self) -> socket.socket:
        """Start the server if it is not running, and return the connection to it."""
        if self._line is None:
            self._line = self._start()
            _read(self._line, 1)  # it listens
        return self._line


def _send(line: socket.socket, payload: bytes, streams: list[int]) -> None:
    socket.send_fds(line, [len(payload).to_bytes(8, "big")], streams)
    line.sendall(payload)


def _read(line: socket.socket, size: int) -> bytes:
    parts = b""
    while len(parts) < size:
        more = line.recv(size - len(parts))
        if not more:
            raise EOFError
        parts += more
    return parts


_SERVER = _Server()


class Forked(subprocess.Popen):  # type: ignore[type-arg]
    """A process of Python, with everything imported."""

    def __init__(self, args: list[str], **options: Any) -> None:
        assert args[0] == sys.executable
        assert args[1] in ("-c", "-m")
        assert not set(options) & set(ALONE), "start these with subprocess.Popen"
        super().__init__(args, **options)

    def _execute_child(self, args: Any, executable: Any, preexec_fn: Any, close_fds: Any, *arguments: Any) -> None:
        _, cwd, env, _, _, _, p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite, *_ = arguments
        request = {
            "argv": [str(word) for word in args[1:]],
            "cwd": os.fspath(cwd) if cwd is not None else os.getcwd(),
            "env": dict(os.environ if env is None else env),
        }
        streams = [stream if stream != -1 else usual for usual, stream in enumerate((p2cread, c2pwrite, errwrite))]
        try:
            self.pid = _SERVER.fork(request, streams)
            self._child_created = True
        finally:
            self._close_pipe_fds(p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite)  # type: ignore[attr-defined]


def command() -> str:
    """Return the words of a shell command that starts `python -m MODULE ARGUMENTS...` below the forking process."""
    _SERVER.start()
    return f'"{sys.executable}" -S -E "{__file__}" ask "{NAME[1:]}"'


def run_forked(args: list[str], *, check: bool = False, timeout: float = 240, **options: Any) -> Any:
    """`subprocess.run`, of a process with everything imported."""
    if options.pop("capture_output", False):
        options |= {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with Forked(args, **options) as process:
        try:
            out, errors = process.communicate(timeout=timeout)
        finally:
            process.kill()
    done = subprocess.CompletedProcess(args, process.returncode, out, errors)
    if check:
        done.check_returncode()
    return done


def _serve(line: socket.socket, name: str) -> dict[str, Any]:
    """Fork for each request; return in the children only, with their request."""
    with socket.socket(socket.AF_UNIX) as door:
        door.bind(f"\0{name}")
        door.listen()
        line.sendall(b"\1")
        while True:
            ready, _, _ = select.select([line, door], [], [])
            connection = line if line in ready else door.accept()[0]
            head, streams, _, _ = socket.recv_fds(connection, 8, 3)
            if not head:
                os._exit(0)
            request = dict(
                json.loads(_read(connection, int.from_bytes(head + _read(connection, 8 - len(head)), "big")))
            )
            if not _forked(connection, keeps=connection is not line):
                line.close()
                connection.close()
                for usual, stream in enumerate(streams):
                    os.dup2(stream, usual)
                for stream in set(streams) - {0, 1, 2}:
                    os.close(stream)
                return request
            for stream in streams:
                os.close(stream)
            if connection is not line:
                connection.close()


def _forked(connection: socket.socket, *, keeps: bool) -> bool:
    """Fork, and return False in the child. The reply is the child's number, or with `keeps` its exit status."""
    read, write = os.pipe()
    between = os.fork()
    if between:
        os.close(write)
        os.waitpid(between, 0)
        number = os.read(read, 8)
        os.close(read)
        if not keeps:
            connection.sendall(number)  # only when the child belongs to the test process
        return True
    os.close(read)
    if keeps:
        os.close(write)
        if os.fork():
            os._exit(0)  # the process in between lives until the child ends
    child = os.fork()
    if not child:
        if not keeps:
            os.close(write)
        return False
    if keeps:
        _, status = os.waitpid(child, 0)
        code = os.waitstatus_to_exitcode(status)
        connection.sendall(bytes([code if code >= 0 else 128 - code]))
    else:
        os.write(write, child.to_bytes(8, "big"))
    os._exit(0)


def _ask(name: str, words: list[str]) -> int:
    """Let the server run a module like this process would, and end with its exit status."""
    request = {"argv": ["-m", *words], "cwd": os.getcwd(), "env": dict(os.environ)}
    with socket.socket(socket.AF_UNIX) as line:
        line.connect(f"\0{name}")
        _send(line, json.dumps(request).encode(), [0, 1, 2])
        return _read(line, 1)[0]


def _become(request: dict[str, Any]) -> None:
    import runpy
    import signal
    import types

    signal.signal(signal.SIGINT, signal.default_int_handler)  # which shells have those in the background ignore
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    sys.stdin = sys.__stdin__ = open(0)  # noqa: SIM115
    sys.stdout = sys.__stdout__ = open(1, "w", buffering=1 if os.isatty(1) else -1)  # noqa: SIM115
    sys.stderr = sys.__stderr__ = open(2, "w", buffering=1, errors="backslashreplace")  # noqa: SIM115
    kind, what, *words = request["argv"]
    if kind == "-m":
        sys.path.insert(0, request["cwd"])
        sys.argv = [what, *words]
        sys.modules.pop(what, None)
        runpy.run_module(what, run_name="__main__", alter_sys=True)
    else:
        sys.path.insert(0, "")
        sys.argv = ["-c", *words]
        main = sys.modules["__main__"] = types.ModuleType("__main__")
        exec(compile(what, "<string>", "exec"), main.__dict__)


def _import_all() -> None:
    import gc
    import importlib
    import pkgutil

    names = ["pyarrow.csv", "pyarrow.parquet", "securevfl.data.datasets", "sklearn.datasets", "securevfl.audit.report"]
    for room in ("cli", "organisations"):
        path = importlib.import_module(f"securevfl.{room}").__path__
        names += [f"securevfl.{room}.{module.name}" for module in pkgutil.iter_modules(path)]
    for name in names:
        with contextlib.suppress(ImportError):  # the module belongs to an optional extra
            importlib.import_module(name)
    assert len(os.listdir("/proc/self/task")) == 1, "a process with threads must not fork"
    gc.collect()
    gc.freeze()


if __name__ == "__main__":
    sys.path.pop(0)  # tests/, whose folders have the names of other modules
    if sys.argv[1] == "ask":
        sys.exit(_ask(sys.argv[2], sys.argv[3:]))
    _line, _name = socket.socket(fileno=int(sys.argv[1])), sys.argv[2]
    _import_all()
    _become(_serve(_line, _name))
