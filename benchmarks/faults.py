"""Random faults in real processes over mutual TLS: every run must end with the right model, or with errors, in time.

    python benchmarks/faults.py --runs 200 --json faults.json

A run is a small job of two to four parties, each a process behind its own proxy. One to three faults occur at random
rounds: a process is killed and started again (or not), a process is paused, files of a process cannot grow for a while
(as on a full disk), all connections to a party are cut, bytes change on the way (TLS notices), or messages change on
the sender's machine before TLS (the transport notices). Jobs on secret shares use several blocks of rows and an offline
phase on disk. A run passes if every party stores the model of the undisturbed run, or if every party ends with an error
of securevfl in time. Failures are a party that does not end in time, another model, an unreadable file, and a draft or
state next to a model. The expected kernel model is computed from the frequencies that its parties drew, and the
expected model of trees from their trees.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import os
import random
import resource
import signal
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from functools import cache, partial
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any
from unittest import mock

from securevfl.transport import line_messages

os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # TLS errors are intended

import numpy as np
from delay import free_port
from fault_settings import ROUNDS, SETTINGS, Setting
from proxy import Proxy
from selfcheck.whole_weights import whole_weights

import securevfl as vfl
from securevfl.errors import SecureVFLError
from securevfl.families.fdskl.fdskl_family import PhasesFamily
from securevfl.families.shares import shares_participant
from securevfl.families.state import State
from securevfl.job import Job
from securevfl.models.forest_inputs import ForestInputs
from securevfl.optim.curvature import preconditioner_of_rows
from securevfl.organisations.join import join
from securevfl.organisations.kit import init_certs, write_kit
from securevfl.protocols.shares.shares_params import SharesParams
from securevfl.training.checkpoint import Checkpoints
from securevfl.training.model_part import ModelPart
from securevfl.training.run_setup import run_key
from securevfl.transport import stream
from securevfl.transport.peers import Peers

PATIENCE, TIMEOUT, LIMIT = 3.0, 20.0, 240.0  # seconds
PROCESSES = multiprocessing.get_context("forkserver")
BLOWS = {"kill": 4, "kill for good": 1, "stall": 2, "cut": 2, "garble": 2, "mangle": 2, "full disk": 2}
SHARES_BLOCK_ROWS = 100  # rows of a block on secret shares
ONE_AT_A_TIME = threading.Lock()  # for patches in this process


@dataclass
class Outcome:
    """The outcome of a run.

    Attributes:
        ends: for each party, "model" if it stored one, or else the name of its error.
        fault: why the run counts as failed; empty if it passes.
    """

    seed: int
    setting: str
    blows: list[str] = field(default_factory=list)
    ends: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0
    fault: str = ""


def play(kit: Path, setting: Setting, listen: str | None, disclosed: Connection, mangle: Any) -> None:
    """Run one party in a separate process."""
    party = next(party for party in setting.tables if party.name == kit.name)
    draw = random.Random(os.getpid())
    encode = stream.encode_message

    def encode_mangled(message: Any) -> bytes:
        data = encode(message)
        if mangle.is_set() and isinstance(message, line_messages.PacketPiece):
            mangle.clear()
            head = bytearray(data[:4])
            head[draw.randrange(4)] ^= 1 << draw.randrange(8)
            data = draw.choice([data[: draw.randrange(len(data))], bytes(head) + data[4:], draw.randbytes(40)])
        return data

    stream.encode_message = encode_mangled
    shares_participant.SharesParams = partial(SharesParams, block=SHARES_BLOCK_ROWS)

    def on_round(done: int, of: int) -> None:
        disclosed.send(("round", done))
        time.sleep(0.02)

    try:
        join(
            Job.load(kit / "job.toml"),
            party,
            kit / "peers.toml",
            listen=listen,
            timeout=TIMEOUT,
            patience=PATIENCE,
            checkpoints=Checkpoints(kit / "states", kit.name, every=2),
            ledger=kit / f"{kit.name}.ledger",
            save=kit / "part.json",
            preprocessing=kit / "ahead" if setting.shared else None,
            workers=1,
            on_round=on_round,
        )
        disclosed.send(("end", "model"))
    except SecureVFLError as error:
        disclosed.send(("end", f"{type(error).__name__}: {error}"))
    except Exception as error:
        disclosed.send(("end", f"untyped {type(error).__name__}: {error}"))


class Member:
    """A party's process, with the last round that it has reported."""

    def __init__(self, name: str, start: Callable[[Connection, Any], Any]) -> None:
        self.name = name
        self.end = ""
        self._start = start
        self.start()

    def start(self) -> None:
        """Start the party's process."""
        self.mangle = PROCESSES.Event()
        self.reports, theirs = PROCESSES.Pipe(duplex=False)
        self.process = self._start(theirs, self.mangle)
        theirs.close()

    def kill(self) -> None:
        """Kill the party's process."""
        self.process.kill()
        self.process.join()
        self.listen()

    def listen(self) -> int:
        """Return the last reported round, 0 if there is none."""
        done = 0
        with contextlib.suppress(EOFError, OSError):
            while self.reports.poll():
                kind, what = self.reports.recv()
                if kind == "round":
                    done = what
                else:
                    self.end = what
        return done


def run_one(seed: int, setting: Setting, folder: Path) -> Outcome:
    """Run one job with random faults."""
    draw = random.Random(seed)
    outcome = Outcome(seed, setting.name)
    names = [party.name for party in setting.tables]
    ports = {name: free_port() for name in ([setting.hub] if setting.hub else names)}
    proxies = {name: Proxy(port) for name, port in ports.items()}
    address = {name: f"127.0.0.1:{proxy.port}" for name, proxy in proxies.items()}
    peers = Peers(active=names[0], passives=tuple(names[1:]), hub=setting.hub, address=address)
    init_certs(folder / "authority", peers)
    for name in names:
        write_kit(folder / name, name, setting.job, peers, folder / "authority")

    def starter(name: str) -> Callable[[Connection, Any], Any]:
        listen = f"127.0.0.1:{ports[name]}" if name in ports else None

        def start(disclosed: Connection, mangle: Any) -> Any:
            process = PROCESSES.Process(target=play, args=(folder / name, setting, listen, disclosed, mangle))
            process.start()
            return process

        return start

    began = time.monotonic()
    members = {name: Member(name, starter(name)) for name in names}
    due = sorted(draw.randrange(ROUNDS + 1) for _ in range(draw.randint(1, 3)))
    missing: set[str] = set()
    done = 0
    blows = [
        item for item in BLOWS if item != "full disk" or not setting.seal
    ]  # the limit applies to its memory files too

    def follow() -> None:
        nonlocal done
        while time.monotonic() - began < LIMIT and any(not m.end for m in members.values() if m.name not in missing):
            wait([m.reports for m in members.values() if not m.end and m.name not in missing], 0.05)
            done = max([done, *(m.listen() for m in members.values())])
            for name in [m.name for m in members.values() if not m.end and m.name not in missing]:
                if not members[name].process.is_alive() and not members[name].listen() and not members[name].end:
                    members[name].end = "died without a word"
            if due and done >= due[0]:
                due.pop(0)
                victim = draw.choice(names)
                blow = draw.choices(blows, [BLOWS[item] for item in blows])[0]
                if not members[victim].end and victim not in missing:
                    outcome.blows.append(f"{blow} {victim} at {done}")
                    time.sleep(draw.uniform(0, 0.05 if done < ROUNDS else 0.4))
                    strike(blow, members[victim], proxies.get(victim) or next(iter(proxies.values())), draw, missing)

    try:
        follow()
        if not missing and any(m.end.startswith("StorageError") for m in members.values()):
            outcome.blows.append("all begin again, with room on the disk")
            for member in members.values():
                member.process.join()
                member.end = ""
                member.start()
            due.clear()
            follow()
            if any(m.end != "model" for m in members.values()):
                outcome.fault = "all began again, and not all have a model"
        outcome.seconds = round(time.monotonic() - began, 2)
        outcome.ends = {name: "killed" if name in missing else m.end or "no end" for name, m in members.items()}
        outcome.fault = outcome.fault or judge(outcome.ends, folder, setting)
        if not outcome.fault and not outcome.blows and set(outcome.ends.values()) != {"model"}:
            outcome.fault = f"no blow fell, and there is no model: {outcome.ends}"
    finally:
        for member in members.values():
            tell(member.process, signal.SIGCONT)
            member.process.join(0 if outcome.fault else 10)
            member.process.kill()
            member.process.join()
        for proxy in proxies.values():
            proxy.close()
    return outcome


def strike(blow: str, member: Member, proxy: Proxy, draw: random.Random, missing: set[str]) -> None:
    """Apply a fault."""
    if blow == "kill for good":
        member.kill()
        if not member.end:
            missing.add(member.name)
    elif blow == "kill":
        member.kill()
        time.sleep(draw.uniform(0, 0.5))
        if not member.end:
            member.start()
    elif blow == "stall":
        tell(member.process, signal.SIGSTOP)
        pause = draw.choice([0.2, PATIENCE / 2, 2 * PATIENCE])
        threading.Timer(pause, tell, (member.process, signal.SIGCONT)).start()
    elif blow == "full disk":
        fill(member.process, 0)
        threading.Timer(draw.choice([0.1, 1.0, PATIENCE]), fill, (member.process, resource.RLIM_INFINITY)).start()
    elif blow == "cut":
        proxy.cut()
    elif blow == "garble":
        proxy.garble = True
    else:
        member.mangle.set()


def fill(process: Any, most: int) -> None:
    """Limit the size of a process's files, unless the process has just ended."""
    with contextlib.suppress(ProcessLookupError):
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (most, resource.RLIM_INFINITY))


def tell(process: Any, what: signal.Signals) -> None:
    """Send a signal, unless the process has just ended."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(process.pid, what)


def judge(ends: dict[str, str], folder: Path, setting: Setting) -> str:
    """Return why a run counts as failed, given how each party ended; empty if it passes."""
    parts: dict[str, ModelPart] = {}
    for name, end in ends.items():
        if end.startswith(("untyped", "died", "no end")):
            return f"{name}: {end}"
        path = folder / name / "part.json"
        if end == "model" or path.exists():
            try:
                parts[name] = ModelPart.load(path)
            except SecureVFLError as error:
                return f"{name}: {error}"
        left = [item.name for item in path.parent.iterdir() if item.name == "states" or item.name.startswith(".")]
        if end == "model" and left:
            return f"{name}: {', '.join(left)} was left next to the model"
    drawn = keys(folder, setting) if parts and setting.kernel else None
    if setting.kernel and parts and drawn is None:
        if any(part.theta.size for part in parts.values()):
            return "coefficients of a training that cannot have ended"
    elif setting.shared:
        if len(parts) == setting.count and (trees_apart if setting.trees else apart)(parts, setting) > setting.bound:
            return "all: another model"
    elif parts:
        expected = weights(setting, drawn)
        for name, part in parts.items():
            if np.abs(part.theta - expected[name]).max(initial=0.0) > setting.bound:
                return f"{name}: another model"
    if len({part.run for part in parts.values()}) > 1:
        return "parts of different trainings"
    kinds = {end == "model" for end in ends.values() if end != "killed"}
    return "some have a model, some an error" if len(kinds) == 2 and "killed" not in ends.values() else ""


def keys(folder: Path, setting: Setting) -> dict[str, bytes] | None:
    """Return the key of each party's frequencies, from its model part or from the states of a killed process.

    None if a party has neither because it was killed before its first state.
    """
    results = {}
    for party in setting.tables:
        path = folder / party.name / "part.json"
        states, job = Checkpoints(folder / party.name / "states", party.name), run_key(setting.job, party)
        part = ModelPart.load(path) if path.exists() else states.final(job)
        if part is None and not states.rounds(job):
            return None
        results[party.name] = (part if part is not None else states.load(job, max(states.rounds(job)))).state["key"]
    return results


def apart(parts: Mapping[str, ModelPart], setting: Setting) -> float:
    """Return the distance of all parts' weights from those of the undisturbed run; each run rounds differently."""
    exact = shared_weights({name: part.state for name, part in parts.items()}, setting)
    with ONE_AT_A_TIME:
        local = undisturbed_shares(setting)
    return max(float(np.abs(exact[name] - local[name]).max()) for name in local)


def trees_apart(parts: Mapping[str, ModelPart], setting: Setting) -> float:
    """Return the mean distance of forward sums from those of the same trees and steps in floating point."""
    local, tables, job = (
        shared_weights({name: part.state for name, part in parts.items()}, setting),
        setting.tables,
        setting.job,
    )
    train = job.schedule(tables[0].register).train
    inputs = [ForestInputs.read(parts[party.name].state["inputs"]) for party in tables]
    blocks = [item(parts[party.name].table(party.X))[train] for item, party in zip(inputs, tables, strict=True)]
    y, n = np.where(tables[0].y[train] == tables[0].y.max(), 1.0, -1.0)[:, None], len(train)
    turns = []
    for X, item in zip(blocks, inputs, strict=True):
        ridge, constant = np.full((X.shape[1], 1), job.model.ridge_of(n)), item.constant(X.shape[1])
        turns.append(
            preconditioner_of_rows(
                [X], lambda rows: rows.T @ rows, job.model.loss, ridge, who="trees", constant=constant
            )
        )
    at = [np.zeros((X.shape[1], 1)) for X in blocks]
    before = at
    for t in range(1, job.epochs + 1):
        g = job.model.loss.residual(sum(X @ theta for X, theta in zip(blocks, at, strict=True)), y)
        after = [theta - P @ (X.T @ g) / (n * len(at)) for X, P, theta in zip(blocks, turns, at, strict=True)]
        at = [new + (t - 1) / (t + 2) * (new - old) for new, old in zip(after, before, strict=True)]
        before = after
    apart = sum(X @ (local[party.name] - theta) for X, party, theta in zip(blocks, tables, at, strict=True))
    return float(np.abs(apart).mean())


def shared_weights(states: Mapping[str, State], setting: Setting) -> dict[str, Any]:
    """Return the weights that the parties' shares add up to."""
    return whole_weights(setting.job, states, setting.tables[0].name)


@cache
def undisturbed_shares(setting: Setting) -> dict[str, Any]:
    """Return the weights of the undisturbed run on secret shares."""
    run = vfl.simulate(setting.job, setting.tables, workers=1)
    return shared_weights({name: part.state for name, part in run.parts.items()}, setting)


@cache
def undisturbed(setting: Setting) -> dict[str, Any]:
    """Return the weights of the undisturbed run."""
    run = vfl.simulate(setting.job, setting.tables, workers=1)
    return {name: part.theta for name, part in run.parts.items()}


def weights(setting: Setting, keys: Mapping[str, bytes] | None) -> dict[str, Any]:
    """Return the weights of the undisturbed run by party; of a kernel model with these frequencies."""
    with ONE_AT_A_TIME:
        if keys is None:
            return undisturbed(setting)
        make = PhasesFamily.participant

        def pinned(self: PhasesFamily, job: Job, context: Any, columns: int, state: Any) -> Any:
            return make(self, job, context, columns, State(key=keys[context.me], theta=None))

        with mock.patch.object(PhasesFamily, "participant", pinned):
            return undisturbed.__wrapped__(setting)


def campaign(
    seeds: Sequence[int],
    concurrent: int,
    on_outcome: Callable[[Outcome], None],
    settings: Sequence[Setting] = SETTINGS,
) -> list[Outcome]:
    """Run one job for each seed, over the settings in turn, `concurrent` of them at a time."""
    PROCESSES.set_forkserver_preload(
        ["securevfl.organisations.join", "securevfl.organisations.kit", "sklearn.datasets", "tenseal"]
    )

    def one(seed: int) -> Outcome:
        with tempfile.TemporaryDirectory() as folder:
            outcome = run_one(seed, settings[seed % len(settings)], Path(folder))
        on_outcome(outcome)
        return outcome

    with ThreadPoolExecutor(concurrent) as pool:
        return list(pool.map(one, seeds))


def main() -> None:
    """Run the benchmark from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--first", type=int, default=0, help="seed of the first run")
    parser.add_argument("--concurrent", type=int, default=2, help="number of runs at a time")
    parser.add_argument("--only", default="", help="settings whose names begin like this")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    outcomes: list[Outcome] = []

    def show(outcome: Outcome) -> None:
        outcomes.append(outcome)
        ends = Counter(end.partition(":")[0] for end in outcome.ends.values())
        print(outcome.seed, outcome.setting, outcome.blows, dict(ends), outcome.seconds, outcome.fault, flush=True)
        if options.json is not None:
            options.json.write_text(json.dumps([asdict(item) for item in outcomes], indent=1))

    settings = [setting for setting in SETTINGS if setting.name.startswith(options.only)]
    campaign(range(options.first, options.first + options.runs), options.concurrent, show, settings)
    right = sum(set(item.ends.values()) == {"model"} for item in outcomes)
    faults = sum(bool(item.fault) for item in outcomes)
    print(
        f"{len(outcomes)} runs: {right} with the model everywhere, {len(outcomes) - right - faults} with errors, "
        f"{faults} faults"
    )


if __name__ == "__main__":
    main()
