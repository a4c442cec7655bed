"""The page of all error codes, generated from the catalogue (docs/made_pages.py)."""

from __future__ import annotations

from securevfl.error_codes import CATALOGUE

INTRODUCTION = """# Error codes

Every error of securevfl has a code. Messages may change from release to release; codes do not, so scripts should
compare codes. In Python, `error.code` is the code, `error.problem` and `error.remedy` are the two sentences of the
message, and `error.fields` holds facts such as the name of a column. No message, code or field contains a value of
anybody's table.

Each code below has its usual cause and what to do about it. The message of an error may name a remedy that fits the
case better.
"""

AREAS = {
    "JOB": "Jobs and options",
    "COMMAND": "Commands",
    "EXTRA": "Optional libraries",
    "PACKAGE": "Packages that tools need",
    "PARTIES": "Parties and roles",
    "TABLE": "Tables",
    "DATABASE": "Databases",
    "LABEL": "Labels",
    "ID": "Ids",
    "CONSENT": "Consent",
    "LEAK": "Leaks",
    "LIMIT": "Limits",
    "ROW": "Rows",
    "DISCLOSURE": "Disclosures",
    "LEDGER": "The disclosure ledger",
    "FILE": "Files",
    "MODEL": "Models",
    "TRAINING": "Training",
    "CHECKPOINT": "Checkpoints",
    "PEER": "Peers",
    "PEERS": "The file of peers",
    "ADDRESS": "Addresses",
    "TLS": "Certificates and TLS",
    "HTTP": "The HTTP gateway",
    "PROTOCOL": "Messages of peers",
    "FRAME": "Frames",
    "STATE": "Order of calls",
    "CRYPTO": "Cryptography",
    "INTERNAL": "Unforeseen errors",
}
"""The second part of a code, and the heading of its section."""


def page() -> str:
    """Return the page as Markdown, with a section for each area in the order of the catalogue."""
    sections: dict[str, list[str]] = {}
    for code, (cause, remedy) in CATALOGUE.items():
        sections.setdefault(code.split("-")[1], []).append(f"| `{code}` | {cause} | {remedy} |")
    lines = [INTRODUCTION]
    for area, rows in sections.items():
        lines += [f"## {AREAS[area]}", "", "| code | cause | remedy |", "|---|---|---|", *rows, ""]
    return "\n".join(lines)
