"""`securevfl bench`: measure cost on this machine, against the libraries people use today."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from securevfl.base.files import check_writable
from securevfl.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

PAPERS = "The tables of the papers are made in a checkout: python -m benchmarks.papers (docs/results.md)."

bench = typer.Typer(no_args_is_help=True, help="Measure homomorphic cost on this machine.", epilog=PAPERS)

Engines = Annotated[str, typer.Option(metavar="NAMES", help="Engines among paillier, ckks, seal.")]
Bits = Annotated[int, typer.Option(help="Paillier key size, for phe too.")]
JsonFile = Annotated[
    Path | None, typer.Option("--json", metavar="FILE", help='Write {"schema", "machine", "rows"} here.')
]


@bench.command()
def he(
    sizes: Annotated[str, typer.Option(metavar="NxD,...", help="Rows x columns of the batches.")] = "256x15,4096x100",
    against: Annotated[str, typer.Option(metavar="NAMES", help="Baselines among phe, tenseal.")] = "",
    engines: Engines = "paillier,ckks",
    bits: Bits = 2048,
    json: JsonFile = None,
) -> None:
    """Time the encrypted gradient of one batch: encrypt, compute, blind, open.

    Medians of several repetitions after one to warm up; Paillier on all cores, the baselines as their users call them.
    """
    from securevfl.bench import he as bench_he
    from securevfl.cli.show import console

    check_writable(json)
    wanted = sizes_of(sizes)
    with status() as on_row:
        rows = bench_he.run(wanted, names_of(engines), names_of(against), bits=bits, on_row=on_row)
    write_rows(json, bench_he.SCHEMA, rows)
    out = console()
    for n, d in wanted:
        at_size = [row for row in rows if (row["n"], row["d"]) == (n, d)]
        out.print(f"\nJ^T [[g]], {n} x {d}", style="bold")
        done = [row | {"bytes": row["bytes_up"] + row["bytes_down"]} for row in at_size if row["error"] is None]
        if done:
            out.print(_table(("encrypt", "compute", "blind", "open"), done))
        for row in at_size:
            if row["error"] is not None:
                out.print(f"{row['engine']}: {row['error']}", soft_wrap=True)
    _footnotes(out, rows)


@bench.command("sum")
def sum_(
    parties: Annotated[int, typer.Option(min=2, help="How many vectors are added.")] = 3,
    size: Annotated[int, typer.Option(min=1, help="Floats a vector.")] = 4096,
    against: Annotated[str, typer.Option(metavar="NAMES", help="Baselines among phe.")] = "",
    engines: Engines = "paillier,ckks",
    bits: Bits = 2048,
    json: JsonFile = None,
) -> None:
    """Time the encrypted sum of several parties' vectors: encrypt, add, decrypt."""
    from securevfl.bench import sums
    from securevfl.cli.show import console

    check_writable(json)
    with status() as on_row:
        rows = sums.run(parties, size, names_of(engines), names_of(against), bits=bits, on_row=on_row)
    write_rows(json, sums.SCHEMA, rows)
    out = console()
    out.print(f"\n[[sum]] of {parties} vectors of {size:,} floats", style="bold")
    out.print(_table(("encrypt", "add", "decrypt"), rows))
    _footnotes(out, rows)


@bench.command()
def start(
    repetitions: Annotated[int, typer.Option(min=1, help="Processes started for each figure.")] = 9,
    json: JsonFile = None,
) -> None:
    """How long the command and the package take to start: medians over fresh processes."""
    from securevfl.bench import start as bench_start
    from securevfl.cli.show import console, table

    check_writable(json)
    with status() as on_row:
        rows = bench_start.run(repetitions, on_row)
    write_rows(json, bench_start.SCHEMA, rows)
    console().print(
        table(["start", "wall\ns", "processor\ns"], [[row["what"], row["wall_s"], row["cpu_s"]] for row in rows])
    )


def names_of(text: str) -> list[str]:
    return list(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))


def sizes_of(text: str) -> list[tuple[int, int]]:
    sizes = []
    for item in names_of(text):
        found = re.fullmatch(r"([1-9]\d{0,6})x([1-9]\d{0,5})", item)
        if not found:
            raise ConfigError(f"--sizes: rows x columns as in 256x15,4096x100 were expected, {item!r} came; correct it")
        sizes.append((int(found[1]), int(found[2])))
    if not sizes:
        raise ConfigError("--sizes: at least one size as in 256x15 was expected, none came; add one")
    return sizes


def write_rows(path: Path | None, schema: str, rows: Sequence[dict[str, Any]]) -> None:
    from securevfl.base.files import write_json
    from securevfl.bench.result_file import file_content

    if path is not None:
        write_json(path, file_content(schema, rows))


@contextmanager
def status() -> Iterator[Callable[[str], None]]:
    from securevfl.cli.show import console

    err = console(err=True)
    if not err.is_terminal:
        yield lambda _: None
        return
    with err.status("measuring") as line:
        yield lambda what: line.update(f"measuring {what}")


def _table(steps: Sequence[str], rows: Sequence[dict[str, Any]]) -> Any:
    """Lay out what engines took for these steps, and in all."""
    from securevfl.cli.show import table

    steps = (*steps, "total")
    heads = ["engine", *(f"{step}\nms" for step in steps), "sent\nkB", "max\nerror", "times\nphe", "by\nCPU"]
    last = "max_abs_error", "ratio_to_phe", "cpu_ratio_to_phe"
    return table(
        heads,
        [
            [
                f"{row['engine']}*" if row["estimated"] else str(row["engine"]),
                *(row[f"{step}_ms"] for step in steps),
                row["bytes"] / 1e3,
                *(row[name] for name in last),
            ]
            for row in rows
        ],
    )


def _footnotes(out: Any, rows: Sequence[dict[str, Any]]) -> None:
    from securevfl.bench.result_file import machine

    here = machine()
    if any(row["estimated"] for row in rows):
        out.print("\n* measured on a slice of rows and columns, and scaled", soft_wrap=True)
    out.print("\nby CPU: the same ratio in processor time, which other load changes little", soft_wrap=True)
    versions = ", ".join(f"{name} {version}" for name, version in here["versions"].items())
    out.print(f"\n{here['processor']}, {here['cores']} cores, load {here['load_average']}; {versions}", soft_wrap=True)
