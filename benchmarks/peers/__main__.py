"""`python -m benchmarks.peers`: run other systems and this one, store the rows, draw the page. See the package."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.peers import ours, page, tables
from benchmarks.peers.environments import CACHE, Unavailable
from benchmarks.peers.ours import Found
from benchmarks.peers.pairs import PairFailed, between, run_pair
from benchmarks.peers.plans import BETTER, NEAR, PARTS, SGB, System
from securevfl.bench.result_file import machine
from securevfl.errors import SecureVFLError
from securevfl.runtime.network import Network

PEERS_SCHEMA = "securevfl.bench.peers/1"
RESULTS = Path(__file__).parent / "results"
PARTIES_FOLDER = Path(__file__).parent / "parties"
ROOT = Path(__file__).parents[2]
LINES_BETWEEN_PARTIES = {"loopback": None, "far": Network(mbps=300.0, rtt_ms=20.0)}
GRADIENT = "gradient"  # the part that compares with phe: one encrypted gradient, without a run of two parties
DEFAULT_PRODUCT_SIZES = "256x15,256x100,4096x100"


def main(words: Sequence[str] | None = None) -> None:
    """Run the command."""
    options = argparse.ArgumentParser(prog="python -m benchmarks.peers", description=__doc__)
    options.add_argument("--data", type=Path, help="the folder of the real tables; needed without --quick")
    options.add_argument(
        "--quick", action="store_true", help="everything small, on generated tables; stored only with --out"
    )
    options.add_argument("--only", metavar="NAMES", help="parts or systems, separated by commas: see plans.py")
    options.add_argument("--again", action="store_true", help="repeat finished runs as well")
    options.add_argument("--page", action="store_true", help="draw docs/peers.md and README's table only")
    options.add_argument("--out", type=Path, help="the folder of the rows; default: results/ of this package")
    options.add_argument("--environments", type=Path, default=CACHE, help="where peers are installed")
    arguments = options.parse_args(words)
    known = {*PARTS, GRADIENT, *(system.name for part in PARTS.values() for system in part)}
    only = set(arguments.only.split(",")) if arguments.only else known
    if unknown := sorted(only - known):
        options.error(f"--only: unknown names {', '.join(unknown)}; choose from {', '.join(sorted(known))}")
    if not arguments.page:
        if not arguments.quick and arguments.data is None:
            options.error("pass the folder of the real tables as --data, or add --quick")
        with tempfile.TemporaryDirectory() as scratch:
            out = arguments.out or (Path(scratch) / "results" if arguments.quick else RESULTS)
            runs = Runs(
                None if arguments.quick else arguments.data,
                out,
                arguments.environments,
                Path(scratch),
                again=arguments.again,
            )
            for part, systems in PARTS.items():
                runs.part(part, [item for item in systems if {part, item.name} & only])
            if GRADIENT in only:
                runs.gradient()
    if arguments.page or (not arguments.quick and arguments.out is None):
        page.draw(RESULTS, ROOT)


class Runs:
    """Runs systems and writes each finished row to `out`."""

    def __init__(self, data: Path | None, out: Path, environments: Path, scratch: Path, *, again: bool = False) -> None:
        self._data, self._out, self._environments, self._scratch = data, out, environments, scratch
        self._again = again
        self._quick = data is None
        out.mkdir(parents=True, exist_ok=True)

    def part(self, part: str, systems: Sequence[System]) -> None:
        """Run the systems of a part, each over its settings on loopback, and the best setting on the link."""
        if not systems:
            return
        bar = self._bar(part)
        for system in systems:
            if self._again:
                self._discard(part, system)
            rows = []
            for k, settings in enumerate(system.ladder(self._quick)):
                rows.append(self._row(part, system, settings, "loopback"))
                auc = rows[-1].get("auc")
                if auc is None or bar is None:
                    continue
                if auc >= bar - NEAR or (k > 0 and auc < rows[-2].get("auc", 0.0) + BETTER):
                    break
            done = [row for row in rows if "failed" not in row]
            if bar is not None and done:
                done = [max(done, key=lambda row: (row["auc"] >= bar - NEAR, row["auc"]))]
            if system.ports is not None:
                for row, line in product(done, list(LINES_BETWEEN_PARTIES)[1:]):
                    self._row(part, system, row["settings"], line)

    def gradient(self) -> None:
        """Measure an encrypted gradient of one batch compared with phe, by the package's command."""
        file = self._scratch / "he.json"
        sizes, result = ("16x2" if self._quick else DEFAULT_PRODUCT_SIZES), self._read(GRADIENT)
        if result["rows"] and not self._again:
            return
        words = ["bench", "he", "--sizes", sizes, "--engines", "paillier,ckks", "--against", "phe", "--json", str(file)]
        try:
            run_pair([[sys.executable, *ours.MODULE, *words]], self._scratch)
        except PairFailed as cause:
            print(f"{GRADIENT}: {cause}", file=sys.stderr)
            return
        measured = json.loads(file.read_text(encoding="utf-8"))
        self._write(GRADIENT, result | {"rows": measured["rows"], "machine": measured["machine"], "date": _today()})

    def _row(self, part: str, system: System, settings: dict[str, Any], line: str) -> dict[str, Any]:
        """Run one row, or return the stored one."""
        result = self._read(part)
        key = {"system": system.name, "settings": settings, "line": line}
        stored = next((row for row in result["rows"] if all(row[name] == value for name, value in key.items())), None)
        if stored is not None and "failed" not in stored and not self._again:
            return dict(stored)
        print(f"{part}: {system.name} {settings} {line}", file=sys.stderr, flush=True)
        row: dict[str, Any] = key | {"date": _today(), "load": round(os.getloadavg()[0], 1)}
        folder = Path(tempfile.mkdtemp(dir=self._scratch))
        try:
            run = self._run(part, system, settings, LINES_BETWEEN_PARTIES[line], folder)
            row |= run.results | {
                "cpu_s": run.costs.cpu_s,
                "seconds": run.costs.seconds,
                "memory_mb": run.costs.memory_mb,
                "bytes": run.bytes,
            }
        except (PairFailed, Unavailable, SecureVFLError, OSError) as cause:
            row["failed"] = str(cause)
            print(f"{part}: {system.name}: {cause}", file=sys.stderr)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        result = self._read(part)  # another command may have added rows
        rows = [item for item in result["rows"] if any(item[name] != value for name, value in key.items())]
        order = [item.name for item in PARTS[part]]
        rows = sorted(
            [*rows, row],
            key=lambda item: (order.index(item["system"]), list(LINES_BETWEEN_PARTIES).index(item["line"])),
        )
        self._write(part, result | {"machine": machine(), "rows": rows})
        return row

    def _discard(self, part: str, system: System) -> None:
        """Discard the stored rows of a system, so that rows of other settings and machines do not remain."""
        result = self._read(part)
        self._write(part, result | {"rows": [row for row in result["rows"] if row["system"] != system.name]})

    def _run(self, part: str, system: System, settings: dict[str, Any], network: Network | None, folder: Path) -> Found:
        if part == "psi":
            common = tables.write_ids(settings["ids"], folder)
            local = system.environment is None
            run = ours.align(self._ours(), folder, network) if local else self._peer(system, settings, network, folder)
            if run.results["common"] != common:
                raise PairFailed(f"{run.results['common']} common ids were found instead of {common}")
            return run
        if system.job is not None:
            if part == "wide":
                sizes = [settings[item] for item in ("rows", "own", "other")]
                tables.write_npz(tables.wide(*sizes), folder)
                return ours.train(self._ours(), system.job(settings), folder, network, suffix=".npz")
            tables.write_csv(self._parties(), folder)
            return ours.train(self._ours(), system.job(settings), folder, network)
        self._rows().write(folder)
        run = self._peer(system, settings, network, folder)
        run.results["auc"] = self._rows().auc(np.load(folder / "found-0.npy"))
        return run

    def _peer(self, system: System, settings: dict[str, Any], network: Network | None, folder: Path) -> Found:
        """Run two processes of a peer's script; the time of the work alone, without imports, is stored as well."""
        assert system.environment is not None
        python = system.environment.interpreter(self._environments)
        with between(network, system.ports or 1) as line:
            commands = []
            for rank in (0, 1):
                task = {"rank": rank, "own": line.bound[rank], "other": line.other[rank], "settings": settings}
                task |= {"tables": str(folder), "out": str(folder / f"found-{rank}")}
                file = folder / f"task-{rank}.json"
                file.write_text(json.dumps(task), encoding="utf-8")
                commands.append([str(python), str(PARTIES_FOLDER / system.script), str(file)])
            elapsed = run_pair(commands, folder)
            sent = line.bytes
        results = [json.loads((folder / f"found-{rank}").read_text(encoding="utf-8")) for rank in (0, 1)]
        lines = {
            "work_cpu_s": sum(item["work_cpu_s"] for item in results),
            "work_s": max(item["work_s"] for item in results),
        }
        if "common" in results[0]:
            lines["common"] = results[0]["common"]
        if "bytes_own_count" in results[0]:  # of a system through which no link can be put
            sent = sum(item["bytes_own_count"] for item in results) // 2
        return Found(elapsed, sent, lines | {"version": system.environment.version})

    def _bar(self, part: str) -> float | None:
        """Return the AUC of the pooled table; None for a part without one."""
        if part not in ("linear", "trees"):
            return None
        result = self._read(part)
        if "bar" not in result or self._again:
            rows = self._rows()
            result["bar"] = (
                rows.pooled_linear()
                if part == "linear"
                else rows.pooled_trees(*(SGB[item] for item in ("trees", "depth", "step")))
            )
            self._write(part, result)
        return float(result["bar"])

    @cache  # noqa: B019  # one Runs a process
    def _ours(self) -> Path:
        return ours.installed(None if self._quick else self._environments)

    @cache  # noqa: B019
    def _parties(self) -> list[Any]:
        return tables.parties(self._data)

    @cache  # noqa: B019
    def _rows(self) -> tables.Rows:
        return tables.rows(self._parties())

    def _read(self, part: str) -> dict[str, Any]:
        file = self._out / f"{part}.json"
        if not file.is_file():
            return {"schema": PEERS_SCHEMA, "quick": self._quick, "machine": machine(), "rows": []}
        text: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        return text

    def _write(self, part: str, result: dict[str, Any]) -> None:
        full = self._out / f"{part}.json.new"
        full.write_text(json.dumps(result, indent=1, allow_nan=False) + "\n", encoding="utf-8")
        full.replace(self._out / f"{part}.json")


def _today() -> str:
    return time.strftime("%Y-%m-%d")


if __name__ == "__main__":
    main()
