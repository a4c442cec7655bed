"""`securevfl bench`: measure cost on this machine, against the libraries people use today."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
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

_STEPS = "encrypt_ms", "compute_ms", "blind_ms", "open_ms", "total_ms"
_HEADS = (
    *("engine", "encrypt\nms", "compute\nms", "blind\nms", "open\nms", "total\nms"),
    *("sent\nkB", "max\nerror", "times\nphe", "by\nCPU"),
)


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
    from securevfl.cli.show import console, table

    check_writable(json)
    wanted = _sizes(sizes)
    with _status() as on_row:
        rows = bench_he.run(wanted, _names(engines), _names(against), bits=bits, on_row=on_row)
    _write(json, bench_he.SCHEMA, rows)
    out = console()
    for n, d in wanted:
        at_size = [row for row in rows if (row["n"], row["d"]) == (n, d)]
        out.print(f"\nJ^T [[g]], {n} x {d}", style="bold")
        cells = [
            [
                _engine(row),
                *(row[step] for step in _STEPS),
                (row["bytes_up"] + row["bytes_down"]) / 1e3,
                row["max_abs_error"],
                row["ratio_to_phe"],
                row["cpu_ratio_to_phe"],
            ]
            for row in at_size
            if row["error"] is None
        ]
        if cells:
            out.print(table(_HEADS, cells))
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
    from securevfl.cli.show import console, table

    check_writable(json)
    with _status() as on_row:
        rows = sums.run(parties, size, _names(engines), _names(against), bits=bits, on_row=on_row)
    _write(json, sums.SCHEMA, rows)
    out = console()
    out.print(f"\n[[sum]] of {parties} vectors of {size:,} floats", style="bold")
    heads = (
        "engine",
        "encrypt\nms",
        "add\nms",
        "decrypt\nms",
        "total\nms",
        "sent\nkB",
        "max abs\nerror",
        "times\nphe",
        "by\nCPU",
    )
    steps = "encrypt_ms", "add_ms", "decrypt_ms", "total_ms"
    cells = [
        [
            _engine(row),
            *(row[step] for step in steps),
            row["bytes"] / 1e3,
            row["max_abs_error"],
            row["ratio_to_phe"],
            row["cpu_ratio_to_phe"],
        ]
        for row in rows
    ]
    out.print(table(heads, cells))
    _footnotes(out, rows)


@bench.command()
def shares(
    data: Annotated[Path, typer.Option(metavar="DIR", help="The folder that holds the tables.")],
    sizes: Annotated[str, typer.Option(metavar="NxD,...", help="Rows a batch x columns a party.")] = "256x15,256x100",
    tables: Annotated[str | None, typer.Option(metavar="NAMES", help="Which tables; all if left out.")] = None,
    large: Annotated[bool, typer.Option("--large", help="One epoch of 100,000 rows x (30 + 300) too.")] = False,
    json: JsonFile = None,
) -> None:
    """Training on shares: a visit beside a sealed round, models beside floats, prediction."""
    from securevfl.bench import shares as bench_shares

    check_writable(json)
    names = list(bench_shares.TABLES) if tables is None else _names(tables)
    _check_tables(names, bench_shares.TABLES)
    with _status() as on_row:
        rows = bench_shares.run(data, _sizes(sizes), names, on_row, large=large)
    _write(json, bench_shares.SCHEMA, rows)
    _print_lines(rows)


@bench.command()
def trees(
    data: Annotated[Path, typer.Option(metavar="DIR", help="The folder that holds the tables.")],
    tables: Annotated[
        str | None, typer.Option(metavar="NAMES", help="Which tables; four small ones if left out.")
    ] = None,
    trees: Annotated[int | None, typer.Option(min=1, help="Trees a party; by its rows if left out.")] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Splits of each table.")] = 1,
    floats: Annotated[bool, typer.Option("--floats", help="The AUC of floats and of others alone.")] = False,
    json: JsonFile = None,
) -> None:
    """Trees on shares beside boosting, their cost, and what trees that mix parties would give."""
    from securevfl.bench import trees as bench_trees

    check_writable(json)
    names = list(bench_trees.SMALL) if tables is None else _names(tables)
    _check_tables(names, bench_trees.SPLIT)
    with _status() as on_row:
        rows = bench_trees.run(data, names, on_row, trees=trees, seeds=seeds, shares=not floats)
    _write(json, bench_trees.SCHEMA, rows)
    _print_lines(rows)


@bench.command()
def rounds(
    data: Annotated[Path, typer.Option(metavar="DIR", help="The folder of the tables.")],
    tables: Annotated[
        str, typer.Option(metavar="NAMES", help="Tables, as default_credit or a9a-3; all by default.")
    ] = "",
    residuals: Annotated[str, typer.Option(metavar="NAMES", help="Among open, ckks, paillier.")] = "ckks",
    against: Annotated[str, typer.Option(metavar="NAMES", help="Minibatches beside it, among fedbcd, fedsgd.")] = "",
    mbps: Annotated[float, typer.Option(help="Bandwidth between parties.")] = 300.0,
    rtt_ms: Annotated[float, typer.Option(help="There and back, in milliseconds.")] = 20.0,
    json: JsonFile = None,
) -> None:
    """Measure rounds to the pooled AUC, their cost and what they open: BlockNewton on all rows, and minibatches."""
    from securevfl.bench import rounds as bench_rounds
    from securevfl.cli.show import console, table
    from securevfl.runtime.clock import Network

    check_writable(json)
    with _status() as on_row:
        rows = bench_rounds.run(
            data,
            _names(tables),
            residuals=_names(residuals),
            against=_names(against),
            network=Network(mbps=mbps, rtt_ms=rtt_ms),
            on_row=on_row,
        )
    _write(json, bench_rounds.SCHEMA, rows)
    heads = [key.replace("_", "\n", 1) for key in rows[0]]
    cells = [["" if value is None else value for value in row.values()] for row in rows]
    console().print(table(heads, cells))


@bench.command()
def start(
    repetitions: Annotated[int, typer.Option(min=1, help="Processes started for each figure.")] = 9,
    json: JsonFile = None,
) -> None:
    """How long the command and the package take to start: medians over fresh processes."""
    from securevfl.bench import start as bench_start
    from securevfl.cli.show import console, table

    check_writable(json)
    with _status() as on_row:
        rows = bench_start.run(repetitions, on_row)
    _write(json, bench_start.SCHEMA, rows)
    console().print(
        table(["start", "wall\ns", "processor\ns"], [[row["what"], row["wall_s"], row["cpu_s"]] for row in rows])
    )


def _check_tables(names: Sequence[str], known: Iterable[str]) -> None:
    if unknown := [name for name in names if name not in known]:
        raise ConfigError(
            f"--tables: some of {', '.join(known)} were expected, {', '.join(unknown)} came; correct them"
        )


def _print_lines(rows: Sequence[dict[str, Any]]) -> None:
    from securevfl.cli.show import console

    for row in rows:
        figures = [f"{key} {value:.4g}" if isinstance(value, float) else f"{key} {value}" for key, value in row.items()]
        console().print(", ".join(figures), soft_wrap=True)


def _names(text: str) -> list[str]:
    return list(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))


def _sizes(text: str) -> list[tuple[int, int]]:
    sizes = []
    for item in _names(text):
        found = re.fullmatch(r"([1-9]\d{0,6})x([1-9]\d{0,5})", item)
        if not found:
            raise ConfigError(f"--sizes: rows x columns as in 256x15,4096x100 were expected, {item!r} came; correct it")
        sizes.append((int(found[1]), int(found[2])))
    if not sizes:
        raise ConfigError("--sizes: at least one size as in 256x15 was expected, none came; add one")
    return sizes


def _write(path: Path | None, schema: str, rows: Sequence[dict[str, Any]]) -> None:
    from securevfl.base.files import write_json
    from securevfl.bench.record import record

    if path is not None:
        write_json(path, record(schema, rows))


@contextmanager
def _status() -> Iterator[Callable[[str], None]]:
    from securevfl.cli.show import console

    err = console(err=True)
    if not err.is_terminal:
        yield lambda _: None
        return
    with err.status("measuring") as status:
        yield lambda what: status.update(f"measuring {what}")


def _engine(row: dict[str, Any]) -> str:
    return f"{row['engine']}*" if row["estimated"] else str(row["engine"])


def _footnotes(out: Any, rows: Sequence[dict[str, Any]]) -> None:
    from securevfl.bench.record import machine

    here = machine()
    if any(row["estimated"] for row in rows):
        out.print("\n* measured on a slice of rows and columns, and scaled", soft_wrap=True)
    out.print("\nby CPU: the same ratio in processor time, which other load changes little", soft_wrap=True)
    versions = ", ".join(f"{name} {version}" for name, version in here["versions"].items())
    out.print(f"\n{here['processor']}, {here['cores']} cores, load {here['load_average']}; {versions}", soft_wrap=True)
