"""The groups of commands that `securevfl --help` shows, each command with one line."""

from __future__ import annotations

from collections.abc import Iterable

HELP_GROUPS: dict[str, dict[str, str]] = {
    "Start, on one computer": {
        "demo": "Show what a bank gains from a shop, and what each learns.",
        "compare": "Measure how much the other parties' columns add.",
        "explain": "Print what each party would learn; nothing runs.",
        "train": "Train with the tables of all parties on this computer.",
    },
    "Prepare your table; nothing is sent": {
        "describe": "Describe each column before a training.",
        "bins": "List or merge a column's bins, with rates of labels.",
        "fetch": "Store the result of a database query as a file.",
    },
    "Between organisations; every party runs these": {
        "kit": "Write a folder for each party: job, addresses, keys.",
        "certs": "Create and show the certificates of the parties.",
        "line": "Measure round trip and bandwidth between the parties.",
        "align": "Find the ids that all parties have.",
        "correlate": "Correlate columns of different parties.",
        "prepare": "Compute random numbers ahead: join takes minutes.",
        "join": "Train with the other parties, or resume a training.",
        "predict": "Predict new rows with the other parties.",
        "fairness": "Compute rates by a group that another party knows.",
        "relay": "Forward encrypted packets, without being a party.",
    },
    "After the training; nothing is sent": {
        "scorecard": "Convert your weights in a model to scorecard points.",
        "reasons": "List which of your columns raise each score most.",
        "export": "Write your weights in a linear model as ONNX.",
        "drift": "Report which of your columns have shifted.",
        "forget": "Delete files that a training has left.",
    },
    "Scoring service": {
        "serve": "Answer scoring requests of the party with labels.",
        "score": "Request scores, or run a gateway for applications.",
    },
    "Trust and cost": {
        "ledger": "Show what your jobs have disclosed; set limits.",
        "audit": "Check, simulate and attack a job on its tables.",
        "bench": "Measure encryption on this machine.",
    },
}
OTHER_PACKAGES = "Commands of other packages"
_LINES = {name: line for commands in HELP_GROUPS.values() for name, line in commands.items()}
_GROUPS = {name: group for group, commands in HELP_GROUPS.items() for name in commands}


def in_order(names: Iterable[str]) -> list[str]:
    """Return command names in the order of the help; commands of other packages come last, in the order given."""
    available = list(names)
    return [name for name in _LINES if name in available] + [name for name in available if name not in _LINES]


def group_of(name: str) -> str:
    """Return the group of a command."""
    return _GROUPS.get(name, OTHER_PACKAGES)


def line_of(name: str) -> str | None:
    """Return the line that the help prints for a command; None for a command of another package."""
    return _LINES.get(name)
