"""The command `correlate`: correlations between the columns of all parties, before a training."""

from __future__ import annotations

from pathlib import Path

import typer

from securevfl.cli import option_groups, signals
from securevfl.cli import party_options as options


def register(app: typer.Typer) -> None:
    """Add the command to an application."""
    app.command()(option_groups.expand_option_groups(correlate))


def correlate(
    table: option_groups.TableOptions,
    peers: options.PeersFile = Path("peers.toml"),
    consent: option_groups.ConsentOptions = option_groups.ConsentOptions(),
    report: option_groups.ReportOptions = option_groups.ReportOptions(),
    session: option_groups.SessionOptions = option_groups.SessionOptions(),
) -> None:
    """Compute correlations between your numeric columns and those of the other parties, and variance inflation.

    Every party runs this before a training, on rows that securevfl align has put in one order. Both parties of a pair
    learn all correlations of their columns, rounded at random to 6 bits. Your disclosure ledger counts them and refuses
    beyond its limits. Your consent sheet is shown first, once all parties are connected. The names of columns are not
    sent; columns of other parties are shown by number.
    """
    from securevfl.cli.show import console
    from securevfl.cli.show import table as format_table
    from securevfl.credit.correlate import correlate_with
    from securevfl.credit.correlations import page_of

    ledger, agree = consent.asking(table.party, "securevfl correlate")
    report.check()
    party = table.in_order()
    with signals.exit_on_signal(), session.events(table.party, peers):
        correlations = correlate_with(party, peers, ledger=ledger, consent=agree, **session.keys)
    report.write(
        "correlate", lambda: {"parties": [pair.plain() for pair in correlations]}, lambda: page_of(correlations)
    )
    out = console()
    for pair in correlations:
        out.print(format_table(pair.heads, pair.cells()))
