"""docs/results.md and its pictures, from the JSON files of the results alone.

`python -m benchmarks.papers page` draws them anew; tests/papers checks that the page is what the files give.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.papers.page_cells import Part, Row, number, pick, share, spread, table
from benchmarks.papers.page_celu import celu_line, celu_long, celu_rounds, celu_seconds
from benchmarks.papers.pictures import draw

HEAD = """# The papers' tables

Made by `python -m benchmarks.papers page` from the files in `benchmarks/papers/results`; no figure here is typed.
Each section has the command that ran it, and what was run. *Own step*: each method has the step that is best for it,
on validation rows that this split does not report. *One step*: all have the step that is best for all of them together
on those rows. One choice serves all splits, so what one split reports may have been another's validation rows. Means of
several splits, with sample deviations; a dash where a split does not get there. Seconds are virtual, at
300 Mbps and 20 ms unless said otherwise. Machines were busy, so seconds of computing are too high.
"""


def write(results: Path, page: Path) -> None:
    """Write the page, and the pictures beside it."""
    page.write_text(text(results), encoding="utf-8")
    pictures(results, page.parent / "figures")


def text(results: Path) -> str:
    """The page."""
    parts = [HEAD]
    for paper, (title, sections) in PAPERS.items():
        file = results / f"{paper}.json"
        if not file.is_file():
            continue
        found = json.loads(file.read_text(encoding="utf-8"))
        parts.append(f"\n## {title}\n\n```sh\npython -m benchmarks.papers {paper} --data ../shared/data\n```\n")
        parts += [f"\n{sections[name](part)}" for name, part in found.items() if name in sections]
        if paper == "celu" and {"long", "seconds"} <= found.keys():
            parts.append(f"\n{celu_line(found)}")
    return "".join(parts)


def fedbcd_linear(part: Part) -> str:
    rows, plan = part["rows"], part["plan"]
    cells = [
        [
            *(str(row["parties"]), row["algorithm"], str(row["q"]), row["decay"], f"{row['step']:g}"),
            *(spread(row, "rounds"), number(row["seconds"], 2), f"{row['one_step']:g}"),
            spread(row, "one_rounds")
            if row["one_rounds"] is not None
            else f"- ({row['one_reached']} of {row['splits']})",
        ]
        for row in rows
    ]
    plain, five = (pick(rows, parties=2, q=q, decay="none") for q in (1, 5))
    ten = pick(rows, parties=2, q=10, decay="none")
    head = ["parties", "algorithm", "Q", "rule", "own step", "rounds", "seconds", "one step", "rounds"]
    return (
        "### Rounds of logistic regression\n"
        f"support2 in place of MIMIC-III, batches of {plan['batch']}, {plan['splits']} splits, at most {plan['cap']} "
        "rounds; rounds until the held-out AUC is .995 of scikit-learn's on the pooled columns.\n\n"
        + table(head, cells)
        + "\n**The paper** goes from 334 rounds to 71 with Q = 5 (.21). **Ours**, at one constant step of "
        f"{plain['one_step']:g}: {number(plain['one_rounds'])} to {number(five['one_rounds'])} with Q = 5 "
        f"({share(five['one_rounds'], plain['one_rounds'])}) and {number(ten['one_rounds'])} with Q = 10 "
        f"({share(ten['one_rounds'], plain['one_rounds'])}). With a step of its own FedSGD takes "
        f"{number(plain['rounds'])}: for a linear model J stays, so Q steps of eta at a passive party are one "
        f"step of Q "
        "eta, which FedSGD can take itself. What local steps save is the search for it. Under eta0 / sqrt(t + 1) all "
        "tuned methods come to the same few rounds, as many as it takes to see the batches.\n\n"
        "![Rounds by Q](figures/fedbcd-q.svg)\n"
    )


def fedbcd_mnist(part: Part) -> str:
    rows, plan = part["rows"], part["plan"]
    cells = [
        [
            *(row["algorithm"], str(row["q"]), number(row["target"], 2), f"{row['step']:g}", spread(row, "rounds")),
            *(f"{row['one_step']:g}", spread(row, "one_rounds")),
        ]
        for row in rows
    ]
    top = plan["targets"][-1]
    plain = pick(rows, q=1, target=top)
    ratios = []
    for q in (3, 5):
        for name in ("FedBCD-s", "FedBCD-p"):
            row = pick(rows, q=q, target=top, algorithm=name)
            own, one = share(row["rounds"], plain["rounds"]), share(row["one_rounds"], plain["one_rounds"])
            ratios.append(f"{name[-2:]} with Q = {q} {own} (own steps), {one} (one step)")
    return (
        "### Rounds of convolutional parties\n"
        f"MNIST in halves, {plan['width']} channels, {plan['dense']} units, {plan['rows']:,} pictures of which a "
        f"quarter "
        f"is held out, batches of {plan['batch']}, steps eta0 / sqrt(t + 1), {plan['splits']} splits, at most "
        f"{plan['cap']} rounds. The paper has 64 channels, all pictures, and .35 (Q = 3) and .17 (Q = 5) of FedSGD's "
        f"rounds to .997, which is out of reach of so few pictures and rounds.\n\n"
        + table(["algorithm", "Q", "AUC", "own eta0", "rounds", "one eta0", "rounds"], cells)
        + f"\n**Of FedSGD's rounds to {number(top, 2)}**: {'; '.join(ratios)}.\n\n"
        "![AUC by rounds](figures/fedbcd-mnist.svg)\n"
    )


def fedbcd_rule(part: Part) -> str:
    rows, plan = part["rows"], part["plan"]["setting"]
    cells = [
        [
            *(f"{row['eta0']:g}", row["algorithm"], str(row["q"]), number(row["target"], 2), spread(row, "rounds")),
            share(row["rounds"], pick(rows, q=1, target=row["target"], eta0=row["eta0"])["rounds"]),
            *(number(row["auc"], 3) if row["auc"] else "diverged", str(len(row["runs"]))),
        ]
        for row in rows
    ]
    return (
        "### Convolutional parties at one rule\n"
        f"MNIST in halves, {plan['width']} channels, {plan['dense']} units, {plan['rows']:,} pictures of "
        "which a quarter is "
        f"held out, batches of {plan['batch']}, steps eta0 / sqrt(t + 1), one eta0 for all, "
        f"at most {plan['cap']} rounds, an evaluation every {plan['every']}. The paper has 64 channels, all "
        "pictures, and .35 "
        "(Q = 3) and .17 (Q = 5) of FedSGD's rounds to .997, which is out of reach of so few pictures and rounds.\n\n"
        + table(["eta0", "algorithm", "Q", "AUC", "rounds", "of FedSGD", "best AUC", "splits"], cells)
    )


def fdml_auc(part: Part) -> str:
    rows, plan = part["rows"], part["plan"]
    cells = [
        [
            *(str(row["parties"]), row["kind"], row["setting"], spread(row, "auc", 4)),
            number(row.get("rounds"), 0),
            number(row.get("virtual_s"), 2),
        ]
        for row in rows
    ]
    tuned = [row for row in rows if "tuned_step" in row]
    words = "; ".join(
        f"{row['parties']} parties, {row['kind']}: step {row['tuned_step']:g}, AUC {number(row['tuned_auc'], 4)}, "
        f"{number(row['tuned_rounds'], 0)} rounds"
        for row in tuned
    )
    return (
        "### AUC and time\n"
        f"a9a, batches of {plan['batch']}, {plan['epochs']} passes, {plan['splits']} splits ({plan['sealed']} "
        f"under CKKS); "
        "rounds and seconds until the AUC is within .007 of the pooled one. All settings of a kind have the step "
        "that is "
        "best in step.\n\n"
        + table(["parties", "model", "setting", "AUC", "rounds", "seconds"], cells)
        + f"\nWith a step of its own, `tau = 8`: {words}. The paper's gap of a network to its pooled one is .0081.\n"
    )


def fdml_slowness(part: Part) -> str:
    rows, plan = part["rows"], part["plan"]
    cells = [
        [
            *(str(row["parties"]), f"{row['rtt_ms']:g}", str(row["tau"]), number(row["seconds"], 1)),
            *(number(row["of_in_step"], 2), number(row["queue_s"], 1), number(row["queue_of_in_step"], 2)),
            number(row["auc"], 4),
        ]
        for row in rows
    ]
    head = ["parties", "round trip ms", "tau", "seconds", "of tau 0", "queue model s", "of tau 0", "AUC"]
    return (
        "### Slow at random\n"
        f"Every party stops before a push with probability {plan['share']:g} for {plan['seconds']:g} s on average "
        f"(`vfl.Pauses`); {plan['epochs']} passes of a9a, {plan['seeds']} seeds. A party that is slow throughout "
        f"holds the "
        "others back whatever `tau`; pauses at random are hidden.\n\n"
        + table(head, cells)
        + "\n![Time by staleness](figures/fdml-slowness.svg)\n"
    )


def fdml_order(part: Part) -> str:
    cells = [[row["order"], spread(row, "auc", 4), spread(row, "rounds", 0)] for row in part["rows"]]
    return (
        "### Order of an iteration\n"
        "Algorithm 1 pulls, updates and pushes; ours pushes first. Logistic regression in step on two parties, "
        "by plain "
        f"loops over the same batches, step {part['rows'][0]['step']:g} for both.\n\n"
        + table(["order", "AUC at the end", "rounds to within .007 of pooled"], cells)
        + "\nOurs is fresher: a sum holds the others' predictions of the same iteration, not of an epoch before.\n"
    )


def fdml_time(part: Part) -> str:
    cells = [
        [
            row["training"],
            number(row["rounds"], 0),
            number(row["seconds"], 2),
            number(row["whole_s"], 2),
            number(row["auc"], 4),
        ]
        for row in part["rows"]
    ]
    return (
        "### Time against centralised and local training\n"
        "The same steps by one who holds all columns, and by the labelled party alone (processor seconds of a plain "
        "loop), and FDML in virtual time.\n\n"
        + table(["training", "rounds to the target", "seconds to it", "seconds of all passes", "AUC"], cells)
    )


def fdml_stored(part: Part) -> str:
    cells = [
        [
            *(row["stored"], f"{row['rows']:,}"),
            *(number(row[f"{key}_ms"], 2) for key in ("conceal", "add", "reveal")),
            f"{row['bytes']:,}",
        ]
        for row in part["rows"]
    ]
    return (
        "### A batch at the server\n"
        f"Processor milliseconds of one thread, one output a row, two workers, Paillier of {part['plan']['bits']} "
        f"bits; the median of {part['plan']['repetitions']}.\n\n"
        + table(["stored", "rows", "conceal", "add", "reveal", "payload, bytes"], cells)
    )


def fdml_noise(part: Part) -> str:
    plan = part["plan"]
    cells = [
        [
            *("no noise" if row["epsilon"] is None else f"{row['epsilon']:g}", number(row["sigma"], 1)),
            *(number(row["auc"], 3), f"{row['ended']} of {row['splits']}"),
        ]
        for row in part["rows"]
    ]
    return (
        "### AUC under noise\n"
        f"Breast cancer, two workers that all know the labels, {plan['epochs']} passes, delta {plan['delta']:g}, clip "
        f"{plan['clip']:g}, `tau = {plan['tau']}`, step {plan['lr']:g}, {plan['splits']} splits; the "
        "others diverge.\n\n" + table(["epsilon", "sigma", "AUC", "runs that end"], cells)
    )


def fdskl_errors(part: Part) -> str:
    cells = [
        [
            *(row["dataset"], row["method"], spread(row, "error", 4), f"{row['gamma']:g}" if "gamma" in row else ""),
            *(f"{row['eta']:g}" if "eta" in row else "", number(row["cpu_s"], 1)),
            number(row["bytes"] / 1e6, 0) if "bytes" in row else "",
        ]
        for row in part["rows"]
    ]
    plan = part["plan"]
    return (
        "### Test errors\n"
        f"Three parties, tree sum, {plan['splits']} splits (a9a: its own test rows, as many seeds; kernel "
        f"machines one). "
        "*The paper's step* is the update without a preconditioner, with the best step on training rows.\n\n"
        + table(["table", "method", "error", "gamma", "eta", "CPU s", "MB"], cells)
    )


def fdskl_scaling(part: Part) -> str:
    cells = [
        [row["method"], f"{row['rows']:,}", number(row["cpu_s"], 2), number(row["error"], 4)] for row in part["rows"]
    ]
    return (
        f"### Time by rows\n{part['plan']['table']}, one split; FDSKL by one who has all columns.\n\n"
        + table(["method", "rows", "CPU s", "error"], cells)
        + "\n![Seconds by rows](figures/fdskl-scaling.svg)\n"
    )


def _credit(part: Part, title: str, words: str) -> str:
    rows, plan = part["rows"], part["plan"]
    top = plan["targets"][-1]
    cells = [
        [
            *(str(row["q"]), number(row["target"], 3), f"{row['step']:g}", spread(row, "rounds")),
            *(number(row.get(key), 1) for key in ("open_s", "ckks_s", "ckks_mb")),
            *(f"{row['one_step']:g}", spread(row, "one_rounds")),
            *(number(row.get(key), 1) for key in ("one_ckks_s", "one_ckks_mb")),
        ]
        for row in rows
    ]
    head = [
        "Q",
        "share",
        "own step",
        "rounds",
        "open s",
        "CKKS s",
        "CKKS MB",
        "one step",
        "rounds",
        "CKKS s",
        "CKKS MB",
    ]
    one, five, ten = (pick(rows, q=q, target=top) for q in (1, 5, 10))
    return (
        f"### {title}\n{words} {plan['rows']:,} rows are shared and as many held out, {plan['units']} units, "
        f"{plan['splits']} splits. *Share* is of the AUC of logistic regression on the host's columns.\n\n"
        + table(head, cells)
        + "\n**The paper** takes 46, 13 and 7 rounds with Q = 1, 5 and 10. **Ours** to the last share: "
        f"{number(one['rounds'])}, {number(five['rounds'])} and {number(ten['rounds'])} with own steps, "
        f"{number(one['one_rounds'])}, {number(five['one_rounds'])} and {number(ten['one_rounds'])} at one step. "
        f"CKKS bytes "
        f"with Q = 10 are {share(ten['ckks_mb'], one['ckks_mb'])} of those with Q = 1 with own steps and "
        f"{share(ten['one_ckks_mb'], one['one_ckks_mb'])} at one: every local step has an opening of its own, and "
        f"pieces "
        "times replies stay the same, so bytes a round grow as the root of Q.\n"
    )


def ftl_overlap(part: Part) -> str:
    cells = [[f"{row['shared']:,}", row["model"], spread(row, "auc", 3)] for row in part["rows"]]
    return (
        "### AUC by shared rows\nThe paper's split of default_credit; scores of the host's rows by transfer, and "
        "logistic "
        "regression on the same rows.\n\n" + table(["shared rows", "model", "AUC"], cells)
    )


def ftl_step(part: Part) -> str:
    cells = [[f"{row['rows']:,}", str(row["units"]), number(row["cpu_s"], 2)] for row in part["rows"]]
    return (
        "### One sealed local step\nProcessor seconds of both sides under CKKS, the exchange before it included.\n\n"
        + table(["shared rows", "units", "CPU s"], cells)
    )


def ftl_paper(part: Part) -> str:
    words = "default_credit as the paper cuts it: bills and payments (18 columns) with the labels, the client (15)."
    return _credit(part, "Credit-FTL, the paper's split", words)


def ftl_fate(part: Part) -> str:
    return _credit(part, "Credit-FTL, FATE's split", "default_credit as FATE cuts it: 13 and 10 columns.")


def ftl_small(part: Part) -> str:
    rows, plan = part["rows"], part["plan"]
    cells = [
        [
            *(str(row["q"]), number(row["target"], 3), spread(row, "rounds"), number(row["ckks_mb"], 1)),
            share(row["ckks_mb"], pick(rows, q=1, target=row["target"])["ckks_mb"]),
        ]
        for row in rows
    ]
    return (
        "### Credit-FTL at one small step\n"
        f"The paper's split, step {plan['step']:g} for all Q, {plan['setting']['splits']} splits: where steps "
        "are small, local "
        "steps take the place of rounds, as in the paper, whose steps are not stated.\n\n"
        + table(["Q", "share", "rounds", "CKKS MB", "of Q = 1"], cells)
    )


Section = Callable[[Part], str]
PAPERS: dict[str, tuple[str, dict[str, Section]]] = {
    "fedbcd": ("FedBCD", {"linear": fedbcd_linear, "mnist": fedbcd_mnist, "rule": fedbcd_rule}),
    "celu": ("CELU-VFL", {"rounds": celu_rounds, "long": celu_long, "seconds": celu_seconds}),
    "fdml": (
        "FDML",
        {
            "auc": fdml_auc,
            "slowness": fdml_slowness,
            "order": fdml_order,
            "time": fdml_time,
            "stored": fdml_stored,
            "noise": fdml_noise,
        },
    ),
    "fdskl": ("FDSKL", {"errors": fdskl_errors, "scaling": fdskl_scaling}),
    "ftl": (
        "Transfer learning",
        {"credit": ftl_paper, "small": ftl_small, "fate": ftl_fate, "overlap": ftl_overlap, "step": ftl_step},
    ),
}


def pictures(results: Path, folder: Path) -> None:
    """Draw the pictures of what is there."""
    for (paper, part, name), lines in CURVES.items():
        file = results / f"{paper}.json"
        found = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
        if part in found:
            series, x, y, log = lines(found[part]["rows"])
            draw(folder / f"{name}.svg", series, x=x, y=y, log=log)


Lines = tuple[dict[str, list[tuple[float, float]]], str, str, bool]


def _by_q(rows: Sequence[Row]) -> Lines:
    own = [row for row in rows if row["parties"] == 2 and row["algorithm"] != "FedBCD-s"]
    series = {}
    for decay, words in (("none", "constant"), ("sqrt_t", "eta0 / sqrt(t + 1)")):
        for key, step in (("rounds", "own step"), ("one_rounds", "one step")):
            points = [(row["q"], row[key]) for row in own if row["decay"] == decay and row[key] is not None]
            series[f"{words}, {step}"] = points
    return series, "local steps Q", "rounds", True


def _curves(label: Callable[[Row], str]) -> Callable[[Sequence[Row]], Lines]:
    def lines(rows: Sequence[Row]) -> Lines:
        return {label(row): [(a, b) for a, b in row["curve"]] for row in rows}, "rounds", "held-out AUC", False

    return lines


def _slow(rows: Sequence[Row]) -> Lines:
    series: dict[str, list[tuple[float, float]]] = {}
    for row in rows:
        for key, words in (("of_in_step", "simulated"), ("queue_of_in_step", "queue model")):
            if row["rtt_ms"] >= 1:
                series.setdefault(f"{row['parties']} parties, {words}", []).append((row["tau"], row[key]))
    return series, "tau", "share of the time in step", False


def _scale(rows: Sequence[Row]) -> Lines:
    series: dict[str, list[tuple[float, float]]] = {}
    for row in rows:
        series.setdefault(row["method"], []).append((row["rows"], row["cpu_s"]))
    return series, "training rows", "processor seconds", True


CURVES: dict[tuple[str, str, str], Callable[[Sequence[Row]], Lines]] = {
    ("fedbcd", "linear", "fedbcd-q"): _by_q,
    ("fedbcd", "mnist", "fedbcd-mnist"): _curves(lambda row: f"{row['algorithm']}, Q = {row['q']}"),
    ("celu", "rounds", "celu"): _curves(lambda row: row["method"]),
    ("fdml", "slowness", "fdml-slowness"): _slow,
    ("fdskl", "scaling", "fdskl-scaling"): _scale,
}
