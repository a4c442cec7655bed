"""The command `correlate`: columns of all parties side by side, before a training."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from securevfl.cli.party_options import (
    Certs,
    Data,
    IdColumn,
    LabelColumn,
    Ledger,
    Listen,
    Log,
    Name,
    Patience,
    PeersFile,
    Timeout,
    Verbose,
    events,
)
from securevfl.cli.stop import stoppable


def register(app: typer.Typer) -> None:
    """Add the command to the app."""
    app.command()(correlate)


def correlate(
    party: Name,
    data: Data,
    peers: PeersFile = Path("peers.toml"),
    id_column: IdColumn = "id",
    label_column: LabelColumn = "y",
    accept: Annotated[
        str | None, typer.Option(metavar="DIGEST", help="You agree to the consent sheet of this digest.")
    ] = None,
    report_json: Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write all figures here.")] = None,
    page: Annotated[
        Path | None, typer.Option("--html", metavar="FILE", help="Write a page for a browser here.")
    ] = None,
    certs: Certs = None,
    listen: Listen = None,
    ledger: Ledger = None,
    timeout: Timeout = 600.0,
    patience: Patience = 60.0,
    verbose: Verbose = False,
    log: Log = None,
) -> None:
    """Compare your columns of numbers with those of the others before a training: correlations and variance inflation.

    Every party runs this, on rows that securevfl align has put in one order. Both of each two learn every correlation
    of their columns, rounded at random to 6 bits; your disclosure ledger counts them, and refuses beyond its limits.
    Your consent sheet is shown first, once all parties are there. Columns of others go by numbers, not by names.
    """
    from securevfl.base.files import check_writable, write_whole
    from securevfl.cli.ask_consent import agree, check_digest
    from securevfl.cli.show import console, table
    from securevfl.consent.agreed_sheets import AgreedSheets
    from securevfl.data.load import read_order
    from securevfl.data.readers import read_party
    from securevfl.disclosure.ledger import DisclosureLedger
    from securevfl.organisations.correlate import correlate_with

    check_digest(accept)
    for path in (report_json, page):
        if path is not None:
            check_writable(path)
    own = read_party(party, data, id_column=id_column, label_column=label_column)
    order = read_order(data, len(own))
    own = own if order is None else own.take(order)
    kept = DisclosureLedger.of(party, ledger)
    with stoppable(), events(verbose, log):
        found = correlate_with(
            own,
            peers,
            ledger=kept,
            consent=partial(agree, AgreedSheets(kept), accept, "securevfl correlate"),
            certs=certs,
            listen=listen,
            timeout=timeout,
            patience=patience,
        )
    if report_json is not None:
        write_whole(report_json, f"[{', '.join(map(str, found))}]\n".encode())
    if page is not None:
        from securevfl.data.correlations import page_of

        write_whole(page, page_of(found).encode())
    out = console()
    for each in found:
        out.print(table(each.heads, each.cells()))
