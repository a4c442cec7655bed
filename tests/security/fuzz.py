"""A search for input that ends in anything but an error with a code: job files, frames, HTTP requests, saved files.

`python -m tests.security.fuzz --seconds 600 --seed 1` searches for ten minutes; `test_fuzz.py` runs a short search.
Every input must end within a second of processor time and within 200 MB, run no code, and bring no control character
into a message.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

import securevfl as vfl
from securevfl.base.checked_files import write_checked_json
from securevfl.consent.consent_sheet import explain
from securevfl.disclosure.ledger import DisclosureLedger
from securevfl.errors import SecureVFLError
from securevfl.families.state import State
from securevfl.job import tables_of
from securevfl.organisations.gateway import Gateway
from securevfl.organisations.http_api import application
from securevfl.organisations.peer_settings import PeerSettings
from securevfl.organisations.toml_writer import to_toml
from securevfl.protocols.handshake import RunHello
from securevfl.runtime.codec import Message, decode_frame, decode_message, encode_frame
from securevfl.training.checkpoint import Checkpoint, Checkpoints
from securevfl.training.model_part import ModelPart
from securevfl.training.new_rows import IndexedRows, rows_of_array
from securevfl.transport.line_messages import decode_line
from securevfl.transport.packets import decode_packet
from securevfl.transport.peers import Peers

SECONDS = 1.0
MEGABYTES = 200
CONTROL = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
TOKEN = "a token of an application"
CODE_EVENTS = {"compile", "os.system", "os.exec", "os.posix_spawn", "subprocess.Popen", "pickle.find_class"}
_code_events: list[str] | None = None
_warming_up = False  # modules are still imported, and decoders created


def _audit(event: str, arguments: Any) -> None:
    if _code_events is not None and event in CODE_EVENTS:
        _code_events.append(f"{event} {str(arguments)[:200]}")


sys.addaudithook(_audit)


@contextmanager
def bounded() -> Iterator[list[str]]:
    """Check that the block ends in time, in memory, without running code, and with an error that has a code, if any.

    Yields:
        A list to which the block appends every text that a user would see.
    """
    global _code_events
    texts: list[str] = []
    before, started = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    _code_events = events = []
    try:
        yield texts
    except SecureVFLError as error:
        texts.append(f"{error} [{error.code}]")
    finally:
        _code_events = None
    if _warming_up:
        return
    seconds = time.process_time() - started
    megabytes = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    assert seconds < SECONDS, f"{seconds:.1f} s"
    assert megabytes < MEGABYTES, f"{megabytes:.0f} MB"
    assert not events, events
    for text in texts:
        assert not CONTROL.search(text), text[:200]
        assert len(text) < 100_000


# values that a stranger might write in place of any other
JUNK = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(10**20), 10**20),
    st.sampled_from([0, -1, 1, 10**9, 2**53, 2**63, 10**400, float("inf"), float("-inf"), float("nan"), 1e308, 5e-324]),
    st.text(max_size=20),
    st.sampled_from(["\x1b[2J", "\u202e", "a\nb", "../x.py:f", "x" * 5000, "", "shares", "ckks", "neural"]),
    st.lists(st.integers(0, 3), max_size=4),
    st.integers(1, 2000).map(lambda depth: json.loads("[" * min(depth, 400) + "]" * min(depth, 400))),
    st.dictionaries(st.text(max_size=5), st.integers(), max_size=3),
)


def paths_of(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of every value inside plain data."""
    if path:
        yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in list(items)[:50]:
        yield from paths_of(item, (*path, key))


def replaced(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    """Return a copy of plain data with another value at a path."""
    if not path:
        return new
    copied = dict(value) if isinstance(value, dict) else list(value)
    copied[path[0]] = replaced(copied[path[0]], path[1:], new)
    return copied


@st.composite
def changed(draw: st.DrawFn, originals: list[Any]) -> Any:
    """Draw plain data in which up to three values are replaced, removed or doubled."""
    value = draw(st.sampled_from(originals))
    for _ in range(draw(st.integers(0, 3))):
        paths = list(paths_of(value))
        if not paths:
            break
        value = replaced(value, draw(st.sampled_from(paths)), draw(JUNK))
    return value


@st.composite
def damaged(draw: st.DrawFn, originals: list[bytes]) -> bytes:
    """Draw bytes in which pieces are removed, doubled, inserted or overwritten."""
    data = bytearray(draw(st.sampled_from(originals)))
    for _ in range(draw(st.integers(0, 6))):
        start = draw(st.integers(0, len(data)))
        stop = min(len(data), start + draw(st.integers(0, 16)))
        piece = draw(st.one_of(st.binary(max_size=8), st.just(bytes(data[start:stop]) * 2)))
        data[start:stop] = piece
    return bytes(data)


@cache
def plain_jobs() -> list[dict[str, Any]]:
    """Return the plain data of jobs of all families."""
    from tests.security.test_untrusted_jobs import BASES

    return [vfl.Job.from_dict({"accepts": ["columns"], "epochs": 2} | keys).to_dict() for keys in BASES.values()]


@cache
def two_tables() -> list[vfl.Party]:
    rows = np.arange(120.0)
    return [
        vfl.Party("bank", np.stack([rows % 7, rows % 11], axis=1), rows % 2, aligned=True),
        vfl.Party("shop", np.stack([rows % 5, rows % 3], axis=1), aligned=True),
    ]


def as_toml(keys: Any) -> bytes:
    """Return plain data as TOML; what TOML cannot express is written as Python's text."""
    try:
        return to_toml(keys).encode("utf-8", "surrogatepass")
    except Exception:
        lines = [f"{key} = {json.dumps(value, default=str)}" for key, value in keys.items()]
        return "\n".join(lines).encode("utf-8", "surrogatepass")


def check_job(data: bytes) -> None:
    """Read a job file and a file of peers, and explain the job."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "job.toml"
        path.write_bytes(data)
        for read in (vfl.Job.load, Peers.load, tables_of):
            with bounded():
                read(path)
        with bounded() as texts:
            job = vfl.Job.load(path)
            for parties in (None, two_tables()):
                try:
                    sheet = explain(job, parties)
                    texts += [sheet, sheet.first_screen]
                except SecureVFLError as error:
                    texts.append(str(error))


@cache
def frames() -> list[bytes]:
    hello = RunHello(bytes(32), "active", 5, 2, 3, 1, b"", (1, 2), "run", "content")
    header: dict[str, Any] = {"session": bytes(16), "sender": "bank", "receiver": "shop", "subchannel": "a", "seq": 3}
    return [encode_frame(hello, **header)]


def kinds_of_messages() -> list[type[Message]]:
    pending, kinds = [Message], list[type[Message]]()
    while pending:
        kind = pending.pop()
        pending += kind.__subclasses__()
        if kind.__module__.startswith("securevfl.") and not kind.__subclasses__():
            kinds.append(kind)
    return sorted(kinds, key=lambda kind: kind.__qualname__)


def check_frame(data: bytes) -> None:
    """Decode bytes as a packet, a line's message, a frame, and every message."""
    with bounded():
        decode_packet("bank", "shop", data)
    with bounded():
        decode_line("bank", data)
    with bounded():
        frame = decode_frame(data)
        for kind in kinds_of_messages():
            with bounded():
                decode_message(kind, frame.payload)


@cache
def requested_application() -> Any:
    """Return one application of a gateway that cannot reach a server."""
    return application(gateway(), TOKEN, timeout=0.2)


@cache
def gateway() -> Gateway:
    part, (bank, _) = parts()[0], two_tables()
    folder = Path(tempfile.mkdtemp())
    rows = IndexedRows.of("bank", rows_of_array(part, bank.X, np.arange(len(bank))))
    peers = Peers(active="bank", passives=("shop",), address={"bank": "127.0.0.1:7001", "shop": "127.0.0.1:7002"})
    return Gateway(part, rows, PeerSettings(peers, folder), ledger=folder / "bank.ledger")


@cache
def parts() -> list[ModelPart]:
    keys: dict[str, Any] = {"optimizer": vfl.FedSGD(lr=0.1), "protocol": "open", "epochs": 1, "accepts": ["columns"]}
    return list(vfl.simulate(vfl.Job(model=vfl.Logistic(), **keys), two_tables()).parts.values())


@cache
def requests() -> list[Any]:
    columns = dict.fromkeys(parts()[0].columns, 1.5)
    return [{"rows": [{"id": 3}, {"id": "x", "columns": columns}]}, {"rows": [{"id": 4, "columns": None}]}]


def check_request(body: bytes, headers: list[tuple[bytes, bytes]]) -> None:
    """Answer a request by the gateway's application, which cannot reach a server."""
    app = requested_application()
    pieces = iter([{"type": "http.request", "body": body, "more_body": False}, {"type": "http.disconnect"}])
    sent: list[dict[str, Any]] = []
    authorized = [(b"authorization", f"Bearer {TOKEN}".encode()), *headers]
    scope = {"type": "http", "method": "POST", "path": "/v1/scores", "query_string": b"", "headers": authorized}

    async def receive() -> Any:
        return next(pieces)

    async def send(message: Any) -> None:
        sent.append(message)

    with bounded() as texts:
        asyncio.run(app(scope, receive, send))
        answer = json.loads(b"".join(message.get("body", b"") for message in sent))
        assert sent[0]["status"] in (200, 400, 401, 413, 422, 503), sent[0]
        assert sent[0]["status"] == 200 or answer["code"].startswith("SVFL-")
        texts.append(str(answer.get("error", "")))


@cache
def saved_files() -> list[Any]:
    folder = Path(tempfile.mkdtemp())
    contents = []
    for part in parts():
        path = folder / f"{part.name}.json"
        part.save(path)
        content = json.loads(path.read_text())
        content.pop("sha256")
        contents.append(content)
    return contents


def check_saved(content: Any) -> None:
    """Load a part of a model with a valid digest, and use it; load it as a checkpoint and as a ledger."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        path = folder / "part.json"
        write_checked_json(path, content)
        with bounded() as texts:
            part = ModelPart.load(path)
            texts += [repr(part), str(part.positive), part.evaluated_on]
            part.rows(np.zeros((2, len(part.columns))))
            part.coefficients()
        states = Checkpoints(folder, "shop")
        states.save(bytes(32), Checkpoint(1, "1", [], {}, State()))
        (stored,) = (other for other in folder.iterdir() if "round" in other.name)
        write_checked_json(stored, content)
        with bounded():
            states.load(bytes(32), 1)
        ledger = folder / "ledger"
        ledger.write_bytes(json.dumps(content).encode())
        with bounded():
            DisclosureLedger(ledger, "shop").read()


REPEATED = [b"[", b"{a=", b"a.", b"[[a]]\n", b'"', b"'''", b"a=1\n", b"\\u001b"]
JOB_FILES = st.one_of(
    st.deferred(lambda: changed(plain_jobs()).map(as_toml)),
    st.deferred(lambda: damaged([to_toml(job).encode() for job in plain_jobs()])),
    st.binary(max_size=200),
    st.tuples(st.integers(1, 20_000), st.sampled_from(REPEATED)).map(lambda drawn: b"a = " + drawn[1] * drawn[0]),
)
HEADERS = st.lists(
    st.sampled_from(
        [(b"content-length", b"4"), (b"transfer-encoding", b"chunked"), (b"authorization", b"\xff"), (b"x", b"\x1b")]
    ),
    max_size=3,
)
BODIES = st.one_of(
    st.deferred(lambda: changed(requests()).map(lambda value: json.dumps(value).encode())),
    st.deferred(lambda: damaged([json.dumps(value).encode() for value in requests()])),
    st.binary(max_size=100),
    st.integers(1, 100_000).map(lambda depth: b'{"rows": ' + b"[" * depth),
    st.integers(1, 5_000).map(lambda digits: b'{"rows": [{"id": ' + b"9" * digits + b"}]}"),
)
TARGETS: dict[str, tuple[Callable[..., None], tuple[st.SearchStrategy[Any], ...]]] = {
    "job files": (check_job, (JOB_FILES,)),
    "frames": (check_frame, (st.one_of(st.deferred(lambda: damaged(frames())), st.binary(max_size=200)),)),
    "requests": (check_request, (BODIES, HEADERS)),
    "saved files": (check_saved, (st.deferred(lambda: changed(saved_files())),)),
}


@cache
def warm_up(target: str) -> None:
    """Run a target once, so that modules are imported before the search watches for code."""
    global _warming_up
    _warming_up = True
    match target:
        case "job files":
            for job in plain_jobs():
                check_job(to_toml(job).encode())
            check_job(b"[")
        case "frames":
            check_frame(frames()[0])
        case "requests":
            for request in requests():
                check_request(json.dumps(request).encode(), [])
            check_request(b"[", [])
        case "saved files":
            for content in saved_files():
                check_saved(content)
    _warming_up = False


def search(target: str, examples: int, number: int) -> None:
    """Run a number of examples of a target, drawn from a seed."""
    warm_up(target)
    check, strategies = TARGETS[target]

    @seed(number)
    @settings(max_examples=examples, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(st.tuples(*strategies))
    def run(drawn: tuple[Any, ...]) -> None:
        check(*drawn)

    run()


def main() -> None:
    """Search for a number of seconds, and print the number of inputs of each target."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--examples", type=int, default=200)
    options = parser.parse_args()
    started, rounds = time.monotonic(), 0
    while time.monotonic() - started < options.seconds:
        for target in TARGETS:
            search(target, options.examples, options.seed + rounds)
        rounds += 1
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(
        f"seed {options.seed}: {rounds} rounds of {options.examples} inputs of each of {', '.join(TARGETS)} in "
        f"{time.monotonic() - started:.0f} s, peak {peak:.0f} MB; every input ended as it should"
    )


if __name__ == "__main__":
    main()
