"""The command `bench`: measure costs on this machine, and compare them with widely used libraries."""

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

PAPERS_HINT = "A checkout reproduces the tables of the papers: python -m benchmarks.papers (docs/results.md)."

bench = typer.Typer(
    no_args_is_help=True, help="Measure the cost of homomorphic encryption on this machine.", epilog=PAPERS_HINT
)

Engines = Annotated[
    str, typer.Option(metavar="NAMES", help="Encryption schemes to measure: any of paillier, ckks, seal.")
]
Bits = Annotated[int, typer.Option(help="Bits of Paillier keys, also for phe.")]
JsonFile = Annotated[
    Path | None, typer.Option("--json", metavar="FILE", help="Write the measured figures to this file.")
]


@bench.command()
def he(
    sizes: Annotated[
        str, typer.Option(metavar="NxD,...", help="Sizes of the batches: rows x columns.")
    ] = "256x15,4096x100",
    against: Annotated[str, typer.Option(metavar="NAMES", help="Libraries to compare with: any of phe, tenseal.")] = "",
    engines: Engines = "paillier,ckks",
    bits: Bits = 2048,
    json: JsonFile = None,
) -> None:
    """Time the encrypted gradient of one batch: encrypt, compute, blind, decrypt. Times are medians after a warm-up.

    Paillier uses all cores. The other libraries run as their documentation shows.
    """
    from securevfl.bench import he as bench_he
    from securevfl.cli.show import console

    check_writable(json)
    wanted = sizes_of(sizes)
    with status() as on_row:
        rows = bench_he.run(wanted, names_of(engines), names_of(against), bits=bits, on_row=on_row)
    write_rows(json, bench_he.HE_SCHEMA, rows)
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
    parties: Annotated[int, typer.Option(min=2, help="Number of vectors in a sum, one from each party.")] = 3,
    size: Annotated[int, typer.Option(min=1, help="Numbers per vector.")] = 4096,
    against: Annotated[str, typer.Option(metavar="NAMES", help="Baselines: phe.")] = "",
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
    write_rows(json, sums.SUM_SCHEMA, rows)
    out = console()
    out.print(f"\n[[sum]] of {parties} vectors of {size:,} floats", style="bold")
    out.print(_table(("encrypt", "add", "decrypt"), rows))
    _footnotes(out, rows)


@bench.command()
def start(
    repetitions: Annotated[
        int, typer.Option(min=1, help="Number of measurements of each time, each in a new process.")
    ] = 9,
    json: JsonFile = None,
) -> None:
    """Time the start of the command and the package: medians over new processes."""
    from securevfl.bench import start as bench_start
    from securevfl.cli.show import console, table

    check_writable(json)
    with status() as on_row:
        rows = bench_start.run(repetitions, on_row)
    write_rows(json, bench_start.START_SCHEMA, rows)
    console().print(
        table(["start", "wall\ns", "processor\ns"], [[row["what"], row["wall_s"], row["cpu_s"]] for row in rows])
    )


def names_of(text: str) -> list[str]:
    """Split comma-separated names and drop repetitions."""
    return list(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))


def sizes_of(text: str) -> list[tuple[int, int]]:
    """Parse the sizes (rows, columns) in a text such as 256x15,4096x100, or raise ConfigError."""
    sizes = []
    for item in names_of(text):
        match = re.fullmatch(r"([1-9]\d{0,6})x([1-9]\d{0,5})", item)
        if not match:
            raise ConfigError(
                f"--sizes {item!r} is not of the form ROWSxCOLUMNS",
                "write it as in 256x15,4096x100",
                code="SVFL-COMMAND-USAGE",
            )
        sizes.append((int(match[1]), int(match[2])))
    if not sizes:
        raise ConfigError("--sizes contains no size", "add one, as in 256x15", code="SVFL-COMMAND-USAGE")
    return sizes


def write_rows(path: Path | None, schema: str, rows: Sequence[dict[str, Any]]) -> None:
    """Write rows with their schema and a description of the machine as JSON, if a path is given."""
    from securevfl.base.files import write_json
    from securevfl.bench.result_file import file_content

    if path is not None:
        write_json(path, file_content(schema, rows))


@contextmanager
def status() -> Iterator[Callable[[str], None]]:
    """Show on a terminal what is being measured.

    Yields:
        A function to call with the name of the next measurement.
    """
    from securevfl.cli.show import console

    err = console(err=True)
    if not err.is_terminal:
        yield lambda _: None
        return
    with err.status("measuring") as line:
        yield lambda what: line.update(f"measuring {what}")


def _table(steps: Sequence[str], rows: Sequence[dict[str, Any]]) -> Any:
    """Return a table of the results, with a row for each engine or baseline and a column for each of these steps."""
    from securevfl.cli.show import table

    steps = (*steps, "total")
    heads = ["engine", *(f"{step}\nms" for step in steps), "sent\nkB", "max\nerror", "times\nphe", "by\nCPU"]
    ratios = "max_abs_error", "ratio_to_phe", "cpu_ratio_to_phe"
    return table(
        heads,
        [
            [
                f"{row['engine']}*" if row["estimated"] else str(row["engine"]),
                *(row[f"{step}_ms"] for step in steps),
                row["bytes"] / 1e3,
                *(row[name] for name in ratios),
            ]
            for row in rows
        ],
    )


def _footnotes(out: Any, rows: Sequence[dict[str, Any]]) -> None:
    from securevfl.bench.result_file import machine

    here = machine()
    if any(row["estimated"] for row in rows):
        out.print("\n* measured on a part of the rows and columns, and extrapolated to all of them", soft_wrap=True)
    out.print("\ntimes phe: phe's time divided by that of the engine; by CPU: in processor time", soft_wrap=True)
    versions = ", ".join(f"{name} {version}" for name, version in here["versions"].items())
    out.print(f"\n{here['processor']}, {here['cores']} cores, load {here['load_average']}; {versions}", soft_wrap=True)
