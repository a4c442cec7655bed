"""The command `correlate`: correlations between the columns of all parties, before a training."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from securevfl.cli import option_groups, signals
from securevfl.cli import party_options as options

if TYPE_CHECKING:
    pass


def correlate(
    table: option_groups.TableOptions,
    peers: options.PeersFile = Path("peers.toml"),
    consent: option_groups.ConsentOptions = option_groups.ConsentOptions(),
    report: option_groups.ReportOptions = option_groups.ReportOptions(),
    meeting: option_groups.SessionOptions = option_groups.SessionOptions(),
) -> None:
    """Compare your columns of numbers with those of the others before a training: correlations and variance inflation.

    Every party runs this, on rows that securevfl align has put in one order. Both of each two learn every correlation
    of their columns, rounded at random to 6 bits; your disclosure ledger counts them, and refuses beyond its limits.
    Your consent sheet is shown first, once all parties are there. Columns of others go by numbers, not by names.
    """
    from securevfl.cli.show import console
    from securevfl.cli.show import table as table_of
    from securevfl.data.correlations import page_of
    from securevfl.organisations.correlate import correlate_with

    ledger, agree = consent.asking(table.party, "securevfl correlate")
    report.check()
    own = table.in_order()
    with signals.exit_on_signal(), meeting.events(table.party, peers):
        found = correlate_with(own, peers, ledger=ledger, consent=agree, **meeting.keys)
    report.write(lambda: f"[{', '.join(map(str, found))}]\n", lambda: page_of(found))
    out = console()
    for each in found:
        out.print(table_of(each.heads, each.cells()))
