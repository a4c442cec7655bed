"""FedBCD's sections of docs/results.md."""

from __future__ import annotations

from benchmarks.papers.page_cells import Part, number, pick, rounds_cell, share, starts, table, typical


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


def fedbcd_turns(part: Part) -> str:
    """Return the section on FedBCD-s."""
    rows, plan = part["rows"], part["plan"]
    cells = [
        [
            *(row["algorithm"], str(row["q"]), row["decay"], f"{row['step']:g}", rounds_cell(row)),
            *(number(row["seconds"], 2), f"{row['one_step']:g}", rounds_cell(row, "one_")),
            number(row["one_seconds"], 2),
        ]
        for row in rows
    ]
    plain, one, many = (
        pick(rows, decay="none", q=q, algorithm=name) for q, name in ((1, "FedSGD"), (1, "FedBCD-s"), (50, "FedBCD-s"))
    )
    head = ["algorithm", "Q", "rule", "own step", "rounds", "seconds", "one step", "rounds", "seconds"]
    return (
        "### Local steps in turn\n"
        f"FedBCD-s on support2 with two parties, as in the table before: {starts(plan)}, at most {plan['cap']} rounds. "
        "In a round the party with labels takes its Q local steps first, and then sends the derivatives at its new "
        "weights to the other party. With two parties this is one exchange, as in FedBCD-p. Seconds are virtual and "
        "medians over the starts.\n\n"
        + table(head, cells)
        + f"\nAt one constant step of {plain['one_step']:g}, the median of the rounds is "
        f"{number(typical(plain, 'one_'))} for FedSGD, {number(typical(one, 'one_'))} for FedBCD-s with Q = 1, and "
        + ("not reached" if typical(many, "one_") is None else number(typical(many, "one_")))
        + " with Q = 50.\n"
    )


def fedbcd_loss(part: Part) -> str:
    """Return the section on losses by rounds."""
    rows, plan = part["rows"], part["plan"]
    rounds = [at for at, _ in rows[0]["curve"]]
    chosen = [rounds[min(len(rounds) - 1, at)] for at in (0, 1, 3, 9, 19, len(rounds) - 1)]
    cells = [
        [row["algorithm"], str(row["q"]), *(number(dict(map(tuple, row["curve"]))[at], 4) for at in chosen)]
        for row in rows
    ]
    least = {(row["algorithm"], row["q"]): min(value for _, value in row["curve"]) for row in rows}
    plain = least["FedSGD", 1]
    arrivals = []
    for row in rows[1:]:
        at = next((at for at, value in row["curve"] if value <= plain), None)
        arrivals.append(f"{row['algorithm']} with Q = {row['q']} " + (f"after {at}" if at is not None else "never"))
    return (
        "### Loss by rounds\n"
        f"The paper's Figure 2, with support2 and two parties: mean log loss on held-out rows at one constant step of "
        f"{plan['step']:g}, one split, {plan['starts']} random starts, an evaluation every {plan['every']} rounds.\n\n"
        + table(["algorithm", "Q", *(f"round {at:g}" for at in chosen)], cells)
        + f"\nThe least loss of FedSGD in {rounds[-1]:g} rounds is {number(plain, 4)}. The others are at or below it: "
        + ", ".join(arrivals)
        + " rounds.\n\n![Loss by rounds](figures/fedbcd-loss.svg)\n"
    )


def fedbcd_mnist(part: Part) -> str:
    """Return the section on MNIST."""
    rows, plan = part["rows"], part["plan"]
    cells = [
        [
            *(row["algorithm"], str(row["q"]), number(row["target"], 2), f"{row['step']:g}", rounds_cell(row)),
            *(f"{row['one_step']:g}", rounds_cell(row, "one_")),
        ]
        for row in rows
    ]
    top = plan["targets"][-1]
    plain = pick(rows, q=1, target=top)
    ratios = []
    for q in (3, 5):
        for name in ("FedBCD-s", "FedBCD-p"):
            row = pick(rows, q=q, target=top, algorithm=name)
            best_share, one = (share(typical(row, prefix), typical(plain, prefix)) for prefix in ("", "one_"))
            ratios.append(f"{name[-2:]} with Q = {q} {best_share} (own steps), {one} (one step)")
    return (
        "### Rounds of convolutional parties\n"
        f"MNIST in halves, {plan['width']} channels, {plan['dense']} units, {plan['rows']:,} pictures (a quarter is "
        f"held out), batches of {plan['batch']}, steps eta0 / sqrt(t + 1), {starts(plan)}, about "
        f"{plan['cap']} rounds (whole passes), an evaluation every {plan['every']}. "
        "The paper has 64 channels, all pictures, and .35 (Q = 3) and .17 (Q = 5) of FedSGD's "
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
            *(f"{row['eta0']:g}", row["algorithm"], str(row["q"]), number(row["target"], 2), rounds_cell(row)),
            share(typical(row), typical(pick(rows, q=1, target=row["target"], eta0=row["eta0"]))),
            *(number(row["auc"], 3) if row["auc"] else "diverged", str(len(row["runs"]))),
        ]
        for row in rows
    ]
    return (
        "### Convolutional parties at one rule\n"
        f"MNIST in halves, {plan['width']} channels, {plan['dense']} units, {plan['rows']:,} pictures "
        f"(a quarter is held out), batches of {plan['batch']}, steps eta0 / sqrt(t + 1), one eta0 for all, "
        f"about {plan['cap']} rounds (whole passes), an evaluation every {plan['every']}. The paper has 64 channels, "
        "all pictures, and .35 "
        "(Q = 3) and .17 (Q = 5) of FedSGD's rounds to .997, which is out of reach of so few pictures and rounds.\n\n"
        + table(["eta0", "algorithm", "Q", "AUC", "rounds", "of FedSGD", "highest AUC", "runs"], cells)
    )
