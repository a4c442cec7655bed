"""FedBCD's sections of docs/results.md."""

from __future__ import annotations

from benchmarks.papers.page_cells import Part, number, pick, rounds_cell, share, spread, starts, table, typical


def fedbcd_linear(part: Part) -> str:
    """Return the section on linear models."""
    rows, plan = part["rows"], part["plan"]
    cells = [
        [
            *(str(row["parties"]), row["algorithm"], str(row["q"]), row["decay"], f"{row['step']:g}"),
            *(rounds_cell(row), number(row["seconds"], 2), f"{row['one_step']:g}", rounds_cell(row, "one_")),
        ]
        for row in rows
    ]
    plain, five = (pick(rows, parties=2, q=q, decay="none") for q in (1, 5))
    ten = pick(rows, parties=2, q=10, decay="none")
    head = ["parties", "algorithm", "Q", "rule", "own step", "rounds", "seconds", "one step", "rounds"]
    return (
        "### Rounds of logistic regression\n"
        f"support2 in place of MIMIC-III, batches of {plan['batch']}, {starts(plan)}, "
        f"at most {plan['cap']} rounds; rounds until the held-out AUC is .995 "
        "of scikit-learn's on the pooled columns.\n\n"
        + table(head, cells)
        + "\n**The paper** goes from 334 rounds to 71 with Q = 5 (.21). **Ours**, at one constant step of "
        f"{plain['one_step']:g}: the median goes from {number(typical(plain, 'one_'))} to "
        f"{number(typical(five, 'one_'))} with Q = 5 "
        f"({share(typical(five, 'one_'), typical(plain, 'one_'))}) and {number(typical(ten, 'one_'))} with Q = 10 "
        f"({share(typical(ten, 'one_'), typical(plain, 'one_'))}). With a step of its own FedSGD takes "
        f"{number(typical(plain))}: for a linear model J stays, so Q steps of eta at a passive party are one "
        f"step of Q "
        "eta, which FedSGD can take itself. What local steps save is the search for it. Under eta0 / sqrt(t + 1) all "
        "tuned methods come to the same few rounds, as many as it takes to see the batches.\n\n"
        "![Rounds by Q](figures/fedbcd-q.svg)\n"
    )


def fedbcd_mnist(part: Part) -> str:
    """Return the section on MNIST."""
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
            best_share, one = share(row["rounds"], plain["rounds"]), share(row["one_rounds"], plain["one_rounds"])
            ratios.append(f"{name[-2:]} with Q = {q} {best_share} (own steps), {one} (one step)")
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
    """Return the section on one rule for all algorithms."""
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
