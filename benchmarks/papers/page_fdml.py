"""FDML's sections of docs/results.md."""

from __future__ import annotations

from benchmarks.papers.page_cells import Part, number, rounds_cell, spread, table

LOSSES = (
    " Losses are log losses, and the objective is the training loss plus l2 / 2 |weights|^2 with l2 = 1e-4, which "
    "every row minimises. Seconds of the whole training are virtual; in the rows of pooled and local columns they are "
    "scikit-learn's processor seconds."
)


def fdml_auc(part: Part) -> str:
    """Return the section on AUCs."""
    rows, plan = part["rows"], part["plan"]
    table_1 = (("train_loss", 4), ("objective", 4), ("test_loss", 4), ("whole_s", 2))
    measured = table_1 if "train_loss" in rows[0] else ()  # older runs did not measure them
    cells = [
        [
            *(str(row["parties"]), row["kind"], row["setting"], spread(row, "auc", 4)),
            *(number(row[name], digits) for name, digits in measured),
            number(row.get("rounds"), 0),
            number(row.get("virtual_s"), 2),
        ]
        for row in rows
    ]
    losses = ("training loss", "objective", "test loss", "seconds") if measured else ()
    head = ["parties", "model", "setting", "AUC", *losses, "rounds", "seconds to it"]
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
        "rounds and seconds until the AUC is within .007 of the pooled one. All settings of a kind have the step that "
        f"is best in step.{LOSSES if measured else ''}\n\n"
        + table(head, cells)
        + f"\nWith a step of its own, `tau = 8`: {words}. The paper's gap of a network to its pooled one is .0081.\n"
    )


def fdml_slowness(part: Part) -> str:
    """Return the section on random delays."""
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
    """Return the section on the order of an iteration."""
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
    """Return the section on processor time."""
    cells = [
        [
            row["training"],
            rounds_cell({"splits": part["plan"]["splits"], **row}),
            number(row["seconds"], 3),
            number(row["whole_s"], 2),
            spread(row, "auc", 4) if "auc_sd" in row else number(row["auc"], 4),
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
    """Return the section on stored payloads."""
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
        "Processor milliseconds of one thread, one output a row, two workers; the median of "
        f"{part['plan']['repetitions']}.\n\n"
        + table(["stored", "rows", "conceal", "add", "reveal", "payload, bytes"], cells)
    )


def fdml_noise(part: Part) -> str:
    """Return the section on noise."""
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
