"""The command `correlate`: columns of all parties side by side, before a training."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import typer

from securevfl.base.files import check_writable, write_whole
from securevfl.cli.option_groups import MeetingOptions, expanded
from securevfl.cli.party_options import Data, Digest, Html, IdColumn, Json, LabelColumn, Ledger, Name, PeersFile
from securevfl.cli.stop import stoppable


def register(app: typer.Typer) -> None:
    """Add the command to the app."""
    app.command()(expanded(correlate))


def correlate(
    party: Name,
    data: Data,
    peers: PeersFile = Path("peers.toml"),
    id_column: IdColumn = "id",
    label_column: LabelColumn = "y",
    accept: Digest = None,
    report_json: Json = None,
    page: Html = None,
    ledger: Ledger = None,
    meeting: MeetingOptions = MeetingOptions(),
) -> None:
    """Compare your columns of numbers with those of the others before a training: correlations and variance inflation.

    Every party runs this, on rows that securevfl align has put in one order. Both of each two learn every correlation
    of their columns, rounded at random to 6 bits; your disclosure ledger counts them, and refuses beyond its limits.
    Your consent sheet is shown first, once all parties are there. Columns of others go by numbers, not by names.
    """
    from securevfl.cli.ask_consent import agree, check_digest
    from securevfl.cli.show import console, table
    from securevfl.consent.agreed_sheets import AgreedSheets
    from securevfl.data.load import read_in_order
    from securevfl.disclosure.ledger import DisclosureLedger
    from securevfl.organisations.correlate import correlate_with

    check_digest(accept)
    check_writable(report_json, page)
    own = read_in_order(party, data, id_column=id_column, label_column=label_column)
    kept = DisclosureLedger.of(party, ledger)
    with stoppable(), meeting.events():
        found = correlate_with(
            own,
            peers,
            ledger=kept,
            consent=partial(agree, AgreedSheets(kept), accept, "securevfl correlate"),
            **meeting.keys,
        )
    if report_json is not None:
        write_whole(report_json, f"[{', '.join(map(str, found))}]\n".encode())
    if page is not None:
        from securevfl.data.correlations import page_of

        write_whole(page, page_of(found).encode())
    out = console()
    for each in found:
        out.print(table(each.heads, each.cells()))
