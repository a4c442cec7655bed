"""A ledger as an HTML page: limits, sessions that ended early, and the disclosures to each peer for each table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from securevfl.base.version import __version__
from securevfl.display import html


def ledger_page(ledgers: Sequence[Mapping[str, Any]], heads: Sequence[str], legend: Mapping[str, str]) -> str:
    """Return ledgers as a page in the style of the report of a run.

    Args:
        ledgers: each ledger as `securevfl ledger --json` writes it.
        heads: the column headings of the tables of disclosures. They are keys of each mapping in a table's "totals".
        legend: the meaning of each kind of disclosure.

    Returns:
        The page.
    """
    figures = [column for column, head in enumerate(heads) if head in ("share", "limit", "left")]
    parts = [
        "<h1>Disclosure ledger</h1>",
        f'<p class="soft">What jobs have disclosed about a table, and to whom. Written by securevfl {__version__}.</p>',
    ]
    for ledger in ledgers:
        ends = {
            f"sessions with {', '.join(end['peers'])} that ended early": end["sessions"] for end in ledger["early_ends"]
        }
        facts: dict[str, html.Cell] = {
            "file": ledger["path"],
            "limits for each table": ", ".join(f"{kind} {limit}" for kind, limit in ledger["limits"].items()) or "none",
            "trusted peers": ", ".join(ledger["trusts"]) or "none",
            **ends,
            "maximum of sessions that end early": ledger["max_early_ends"],
        }
        parts.append(html.section(ledger["party"], html.facts(facts)))
        for table in ledger["tables"]:
            rows = f"{table['rows']:,} rows" if table["rows"] else "of a training that is not in this ledger"
            shared = ", ".join(f"{name[:8]} ({count:,} rows)" for name, count in sorted(table["shared"].items()))
            since = table["since"][:10]
            overlap = f" It shares at most these rows with other tables: {shared}." if shared else ""
            parts.append(
                html.section(
                    f"{ledger['party']}: table {table['table'][:8]}, {rows}",
                    f"<p class='soft'>{html.escape(f'In the ledger since {since}.{overlap}')}</p>",
                    html.table(
                        heads,
                        [[total[head] for head in heads] for total in table["totals"]],
                        figures=figures,
                        stacked=True,
                    ),
                )
            )
        if not ledger["tables"]:
            parts.append("<p>Nothing was disclosed yet.</p>")
    parts.append(html.section("Kinds of disclosures", html.terms(legend)))
    return html.page("Disclosure ledger", parts)
