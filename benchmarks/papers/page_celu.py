"""CELU-VFL's sections of docs/results.md."""

from __future__ import annotations

from collections.abc import Mapping

from benchmarks.papers.page_cells import Part, number, pick, share, spread, table


def celu_rounds(part: Part) -> str:
    rows, plan = part["rows"], part["plan"]
    cells = [
        [
            *(row["method"], number(row["target"], 2), f"{row['step']:g}", spread(row, "rounds")),
            *(f"{row['one_step']:g}", spread(row, "one_rounds")),
            share(row["one_rounds"], pick(rows, method="plain", target=row["target"])["one_rounds"]),
        ]
        for row in rows
    ]
    return (
        "### Rounds with kept exchanges\n"
        f"{plan['rows']:,} made-up clicks, batches of {plan['batch']}, Z of {plan['width']} numbers, one epoch, "
        f"AdaGrad, R = 5, "
        f"W = 5, xi = 60, depth 3, {plan['splits']} splits, an evaluation every {plan['every']} rounds.\n\n"
        + table(["method", "AUC", "own step", "rounds", "one step", "rounds", "of plain"], cells)
        + "\nThe paper has 55 to 60 % fewer rounds, over 31,540 rounds of small steps.\n\n"
        "![AUC by rounds](figures/celu.svg)\n"
    )


def celu_long(part: Part) -> str:
    rows, plan = part["rows"], part["plan"]["setting"]
    cells = [
        [
            *(f"{row['step']:g}", row["method"], number(row["target"], 2), number(row["rounds"], 0)),
            *(share(row["rounds"], _plain(rows, row)), number(row["auc"], 4)),
        ]
        for row in rows
        if row["target"] < 0.9
    ]
    return (
        "### A thousand rounds\n"
        f"{plan['rows']:,} made-up clicks, batches of {plan['batch']}, Z of {plan['width']} numbers in 4 "
        "bytes, one epoch, "
        f"AdaGrad, R = 5, W = 5, xi = 60, depth 3, {plan['splits']} split, an evaluation every "
        f"{plan['every']} rounds; the "
        "same step for all methods: .02 is the best for plain training in the table above, and too large for kept "
        "exchanges, which then take more rounds.\n\n"
        + table(["step", "method", "AUC", "rounds", "of plain", "best AUC"], cells)
    )


def _plain(rows: list[Mapping[str, object]], row: Mapping[str, object]) -> float | None:
    found: float | None = pick(rows, method="plain", step=row["step"], target=row["target"])["rounds"]
    return found


def celu_seconds(part: Part) -> str:
    rows = part["rows"]
    cells = [
        [
            *(f"{row['batch']:,}", f"{row['mbps']:g}", row["method"], row["precision"]),
            *(number(row["seconds"], 3), number(row["mb"], 2)),
            share(pick(rows, method="plain", precision="double", batch=row["batch"])["seconds"], row["seconds"]),
        ]
        for row in rows
    ]
    return (
        "### Seconds of a round\n"
        f"Z of {part['plan']['width']} numbers in 8 bytes or in 4, as the paper sends them, "
        f"{part['plan']['rtt_ms']:g} ms, a "
        "line that is half duplex: the paper adds up both directions. At the rows of the table above the "
        "line is as much "
        "slower as there are fewer rows, so that Z takes as long as in the paper, and computing as little.\n\n"
        + table(["rows", "Mbps", "method", "precision", "seconds", "MB", "times as fast as plain, double"], cells)
    )


def celu_line(found: Mapping[str, Part]) -> str:
    """Seconds to an AUC: rounds of the one table times seconds of a round of the other."""
    rounds, seconds = found["long"]["rows"], found["seconds"]["rows"]
    batch = found["long"]["plan"]["setting"]["batch"]
    others = [each for each in dict.fromkeys(row["method"] for row in rounds) if each != "celu, pipeline"]
    ways = [(method, precision) for method in others for precision in ("double", "single")]
    cells = []
    for row in rows_of(rounds):
        best = _seconds(rounds, seconds, row, "celu, pipeline", "single", batch)
        times = [share(_seconds(rounds, seconds, row, *way, batch), best) for way in ways]
        cells.append([f"{row['step']:g}", number(row["target"], 2), number(best, 1), *times])
    names = [f"{method}, {precision}" for method, precision in ways]
    return (
        "### Seconds to an AUC\n"
        f"Rounds of the one table times seconds of a round at {batch} rows of the other: what CELU with three "
        "exchanges in "
        "flight takes in single precision, and how many times as long each other takes.\n\n"
        + table(["step", "AUC", "seconds", *names], cells)
    )


def rows_of(rounds: list[Mapping[str, float]]) -> list[Mapping[str, float]]:
    """One row for each step and target."""
    return [row for row in rounds if row["method"] == "plain" and row["target"] < 0.9]


def _seconds(
    rounds: list[Mapping[str, float]],
    seconds: list[Mapping[str, float]],
    row: Mapping[str, float],
    method: str,
    precision: str,
    batch: int,
) -> float | None:
    number_of = pick(rounds, method=method, step=row["step"], target=row["target"])["rounds"]
    a_round: float = pick(seconds, method=method, precision=precision, batch=batch)["seconds"]
    return None if number_of is None else number_of * a_round
