"""Figures on pages other than results.md: each section names their source.

Figures that repeat results are compared with the result files.
"""

import json
import re
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "papers" / "results"
PAGES = "README", *(f"docs/{page}" for page in ("fdml", "fdskl", "neural", "rounds", "transfer"))

FIGURE = re.compile(
    r"(?<![\w.^-])(?:\d[\d,]*)?\.\d{2,}(?![\w.])"  # .95, 12.25
    r"|\b\d[\d,.]* (?:%|x(?! \d)|ms|s|seconds|minutes|MB|GB|kB|MiB|rounds)(?!\w)"
)
VERSIONS = re.compile(r"Python \d[\d.]*\d(?: to \d[\d.]*\d)?")  # these are no measurements
# the name of a program, a test or a page of figures, the call that prints them, or words for figures without one
SOURCE = re.compile(
    r"python (?:-m )?benchmarks\b|benchmarks/\w+\.py|securevfl bench|tests/[\w/]+\.py|(?:results|benchmarks)\.md"
    r"|`vfl\.compare\(job, \[bank, shop\]\)`|`vfl\.compare` printed|`make demo`|measured by hand",
    re.IGNORECASE,
)


def sections(page: str) -> list[list[str]]:
    """Yield the blocks of each section: paragraphs, tables, and code."""
    text = (ROOT / f"{page}.md").read_text(encoding="utf-8")
    parts = re.split(r"^(?=#{1,4} )", re.sub(r"^```python\n.*?^```$", "", text, flags=re.M | re.S), flags=re.M)
    return [part.strip().split("\n\n") for part in parts if part.strip()]


def lost(page: str) -> list[str]:
    """Return blocks with figures whose source is not in them, in a block before them, or in the next one."""
    results = []
    for blocks in sections(page):
        for number, block in enumerate(blocks):
            figures = FIGURE.findall(VERSIONS.sub("", re.sub(r"`[^`]*`", "", block)))
            near = "\n".join(blocks[: number + 2])
            if figures and not block.startswith("```") and not SOURCE.search(re.sub(r"\s+", " ", near)):
                results.append(f"{page}, {blocks[0].splitlines()[0]}: {', '.join(figures[:6])}")
    return results


@pytest.mark.parametrize("page", PAGES)
def test_sections_with_figures_name_their_source(page: str) -> None:
    assert lost(page) == []


def results(paper: str, part: str) -> list[dict[str, Any]]:
    """Return the rows of a part of a paper's experiments."""
    text: list[dict[str, Any]] = json.loads((RESULTS / f"{paper}.json").read_text(encoding="utf-8"))[part]["rows"]
    return text


def fdskl_errors() -> list[str]:
    """Return the rows of the table of errors, and a sentence about them."""
    from benchmarks.papers.page_cells import number, pick, spread

    rows, lines, boosting = results("fdskl", "errors"), [], "SecureBoost, as boosting of pooled columns"
    others = ("SVC on pooled columns", "PP-SVMV", "FD-SVRG (linear)", "logistic, FedBCD")
    for table in dict.fromkeys(row["dataset"] for row in rows):
        selected = [row for row in rows if row["dataset"] == table]
        sides = [
            pick(selected, method=f"the {side}") for side in ("labelled party alone", "other party's columns alone")
        ]
        cells = [
            spread(pick(selected, method="FDSKL, preconditioned"), "error", 4),
            spread(pick(selected, method="FDSKL, the paper's step"), "error", 4),
            *(number(pick(selected, method=method)["error"], 4) for method in ("centralised", boosting)),
            number(min(side["error"] for side in sides), 4),
            *(number(pick(selected, method=method)["error"], 4) for method in others),
        ]
        lines.append(f"| {table} | {' | '.join(cells)} |")
    tables = dict.fromkeys(row["dataset"] for row in rows)
    ours, trees, machine = (
        [pick(rows, dataset=table, method=method)["error"] for table in tables]
        for method in ("FDSKL, preconditioned", boosting, "SVC on pooled columns")
    )
    boosted, svc = (sum(a < b for a, b in zip(theirs, ours, strict=True)) for theirs in (trees, machine))
    return [*lines, f"fewer rows than FDSKL on {boosted} of 4 tables, and the SVC, over its three splits, on {svc}"]


def sealed_aucs() -> list[str]:
    from benchmarks.papers.page_cells import number, pick

    rows = results("celu", "sealed")
    plain, sealed = (
        [number(pick(rows, residual=residual, xi=xi)["auc"], 4) for xi in (None, 60.0)] for residual in ("open", "ckks")
    )
    return [
        f"step {number(rows[0]['step'])}, {rows[0]['rounds']:g} rounds) the held-out AUC is {plain[0]} in the open and "
        f"{sealed[0]} under CKKS. With xi = 60 it is {plain[1]} and {sealed[1]}"
    ]


def kept_exchanges() -> list[str]:
    from benchmarks.papers.page_cells import number, pick

    rows = [row for row in results("celu", "steps") if row["target"] == 0.8]

    def rounds(method: str, step: float) -> str:
        return number(pick(rows, method=method, step=step)["rounds"], 0)

    alone = [row["step"] for row in rows if row["method"] == "celu" and row["rounds"] is not None]
    assert alone == [0.01, 0.02, 0.045]
    assert [row["reached"] for row in rows if row["method"] == "celu, pipeline"] == [1, 0, 0, 0]
    assert [row["step"] for row in rows if row["method"] == "fedbcd" and row["auc"]] == [0.01, 0.02]
    return [
        f"At .02, R = 5 takes {rounds('celu', 0.02)} rounds to an AUC of .80 and plain training "
        f"{rounds('plain', 0.02)}. At .045 they take {rounds('celu', 0.045)} and {rounds('plain', 0.045)}, and R = 2 "
        f"takes {rounds('celu R=2', 0.045)}",
        *small_steps(),
        cached_exchanges(),
        *sealed_aucs(),
    ]


def cached_exchanges() -> str:
    from benchmarks.papers.page_cells import number, pick

    rows = [row for row in results("celu", "sweep") if row["target"] == 0.7 and row["xi"] == 60.0]
    one, five, eight = (number(pick(rows, R=5, W=w)["rounds"]) for w in (1, 5, 8))
    return (
        f"R = 5 takes {one} rounds to 0.70 with W = 1, {five} with W = 5 and {eight} with W = 8, and plain training "
        f"{number(pick(rows, R=1)['rounds'])}"
    )


def shared_rows() -> list[str]:
    """Return the rows of the table of AUCs by the number of shared rows."""
    from benchmarks.papers.page_cells import number, pick

    rows, lines = results("ftl", "overlap"), []
    for shared in dict.fromkeys(row["shared"] for row in rows):
        alone, little, much = (
            pick(rows, shared=shared, model=model, l2=l2)
            for model, l2 in (("host's columns", None), ("transfer", 0.0001), ("transfer", 0.03))
        )
        cells = alone["auc"], little["auc"], little["training_auc"], much["auc"]
        lines.append(f"| {shared:,} | {' | '.join(number(cell, 3) for cell in cells)} |")
    return [*lines, *fates_split()]


def fates_split() -> list[str]:
    """Return the sentences about rounds on FATE's split."""
    from benchmarks.papers.page_cells import number, pick

    rows = [row for row in results("ftl", "fate") if row["target"] == 1.02]
    one, ten = pick(rows, q=1), pick(rows, q=10, one_opening=True)
    shares = [number(ten[name] / one[name], 2) for name in ("one_rounds", "rounds")]
    deviations = [row[name] for row in (one, ten) for name in ("rounds_sd", "one_rounds_sd")]
    return [
        f"Q = 10 on one opening takes {number(ten['one_rounds'])} rounds and Q = 1 takes {number(one['one_rounds'])} "
        f"at the one step size that is best for all ({one['one_step']:g})",
        f"With their own step sizes ({ten['step']:g} and {one['step']:g}) they take {number(ten['rounds'])} and "
        f"{number(one['rounds'])}",
        f"the bytes fall to {shares[0]} and {shares[1]} of those with Q = 1. These are means over five random starts "
        f"on one split, with standard deviations of {number(min(deviations))} to {number(max(deviations))} rounds",
    ]


def small_steps() -> list[str]:
    from benchmarks.papers.page_cells import number, pick, typical

    def row(step: float, method: str) -> Any:
        return pick(results("celu", "small"), step=step, target=0.8, method=method)

    line = results("celu", "seconds")
    two = "celu, 2 in flight"
    small, large = (
        {name: number(row(step, name)["rounds"], 0) for name in ("celu", "fedbcd", two, "plain")}
        for step in (0.005, 0.02)
    )
    took = [
        pick(line, method=name, precision=precision, batch=1024)["seconds"] * typical(row(0.005, name))
        for name, precision in (("celu", "single"), (two, "single"), ("plain", "double"))
    ]
    return [
        f"At .005, R = 5 reaches .80 in {small['celu']} rounds, FedBCD in {small['fedbcd']}, R = 5 with two in flight "
        f"in {small[two]}, and plain training in {small['plain']}",
        f"R = 5 is {took[2] / took[0]:.1f} times faster than plain training in double precision, and with two in "
        f"flight {took[2] / took[1]:.1f} times",
        f"At .02, R = 5 takes {large['celu']} rounds, FedBCD {large['fedbcd']}, plain training {large['plain']}, and "
        f"R = 5 with two in flight {large[two]}",
    ]


def convolutional_rounds() -> list[str]:
    from benchmarks.papers.page_cells import pick, share, typical

    rows = [row for row in results("fedbcd", "rule") if row["target"] == 0.95]
    plain = typical(pick(rows, q=1))
    s, p, five = (typical(pick(rows, q=q, algorithm=f"FedBCD-{mode}")) for q, mode in ((3, "s"), (3, "p"), (5, "s")))
    assert all(row["rounds"] is None for row in rows if (row["q"], row["algorithm"]) == (5, "FedBCD-p"))
    small = [row for row in results("fedbcd", "mnist") if row["target"] == 0.95]
    sgd, three, last = (
        pick(small, q=q, algorithm=name) for q, name in ((1, "FedSGD"), (3, "FedBCD-p"), (5, "FedBCD-s"))
    )
    return [
        f"FedSGD takes {plain:g} rounds to an AUC of .95. FedBCD-s takes {s:g} rounds with Q = 3 ({share(s, plain)} of "
        f"FedSGD) and {five:g} with Q = 5 ({share(five, plain)}). FedBCD-p takes {p:g} with Q = 3 "
        f"({share(p, plain)}) and diverges with Q = 5",
        f"FedSGD takes {sgd['rounds']:g} rounds to .95 with eta0 = {sgd['step']:g}. FedBCD-p takes {three['rounds']:g} "
        f"with Q = 3 and eta0 = {three['step']:g}, and FedBCD-s takes {last['rounds']:.1f} with Q = 5 and eta0 = "
        f"{last['step']:g}",
    ]


def noise_and_pauses() -> list[str]:
    from benchmarks.papers.page_cells import number, pick

    rows = results("fdml", "noise")
    none, eight, two = (number(pick(rows, epsilon=epsilon)["auc"], 3) for epsilon in (None, 8.0, 2.0))
    assert pick(rows, epsilon=1.0)["ended"] == 0
    return [
        f"the held-out AUC is {none} without noise, {eight} at epsilon 8 and {two} at 2. At epsilon 1 no run ends",
        slow_at_random(),
    ]


def slow_at_random() -> str:
    """Return the sentence about parties that pause at random."""
    from benchmarks.papers.page_cells import number, pick

    two, fast, three, fast_three = (
        number(pick(results("fdml", "slowness"), parties=parties, rtt_ms=rtt, tau=8)["of_in_step"], 2)
        for parties in (2, 3)
        for rtt in (20.0, 0.2)
    )
    return (
        f"`tau=8` takes {two} of the time of synchronous training at 20 ms and {fast} at 0.2 ms; with three parties "
        f"{three} and {fast_three}"
    )


def transfer_learning() -> list[str]:
    return [*shared_rows(), many_local_steps()]


def many_local_steps() -> str:
    """Return the sentence about many local steps with and without the proximal term."""
    from benchmarks.papers.page_cells import number, pick

    def auc(algorithm: str, q: int) -> str:
        return number(pick(results("ftl", "many"), algorithm=algorithm, q=q)["auc"], 3)

    one, some, many = (auc("FedBCD-p", q) for q in (1, 25, 100))
    return (
        f"FedBCD-p has an AUC of {one} with Q = 1, {some} with Q = 25 and {many} with Q = 100. FedPBCD has "
        f"{auc('FedPBCD', 25)} with Q = 25 and {auc('FedPBCD', 100)} with Q = 100"
    )


QUOTED = {
    "fdskl": fdskl_errors,
    "rounds": kept_exchanges,
    "neural": convolutional_rounds,
    "fdml": noise_and_pauses,
    "transfer": transfer_learning,
}


@pytest.mark.parametrize("page", QUOTED)
def test_repeated_figures_agree_with_the_result_files(page: str) -> None:
    text = " ".join((ROOT / f"docs/{page}.md").read_text(encoding="utf-8").split())
    for sentence in QUOTED[page]():
        assert re.sub(r"(?<![\w.])\.(?=\d)", "0.", sentence) in text
