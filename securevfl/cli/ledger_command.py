"""The command `ledger`: what this party's jobs have told whom, and how much more its owner lets them tell."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from securevfl.cli.option_groups import pair
from securevfl.errors import ConfigError

if TYPE_CHECKING:
    from rich.console import Console

    from securevfl.cli.show import Cell
    from securevfl.disclosure.ledger import DisclosureLedger
    from securevfl.disclosure.ledger_contents import LedgerContents, LedgerEntry


_LEGEND = """\
labels   numbers that follow from labels, as a gradient or an evaluation; the
         share is of the residuals: what predictions of a batch are off by
columns  numbers about each row; the share is of the columns
scores   predictions, of rows of the table or by a model that was trained on it
ids      of how many ids a peer that asked for scores was told whether they are
         in the table"""


def ledger(
    party: Annotated[
        str | None, typer.Option("--party", metavar="NAME", help="Whose ledger, of those among your user's data.")
    ] = None,
    file: Annotated[
        Path | None, typer.Option("--ledger", metavar="FILE", help="The ledger, if it is kept elsewhere.")
    ] = None,
    limit: Annotated[
        list[str] | None,
        typer.Option(
            "--limit",
            metavar="KIND=MOST",
            help="Let no peer be told more about a table: labels=25%, columns=40, scores=100000, or none. Repeatable.",
        ),
    ] = None,
    trust: Annotated[
        list[str] | None,
        typer.Option(
            "--trust",
            metavar="PEER",
            help="Count equations that this peer asks again by an equal plan once, as it follows protocols.",
        ),
    ] = None,
    forgive: Annotated[
        list[str] | None,
        typer.Option(
            "--forgive",
            metavar="PEER",
            help="Forget the conversations with this peer that ended early, once you know why they did.",
        ),
    ] = None,
    distrust: Annotated[
        list[str] | None, typer.Option("--distrust", metavar="PEER", help="Trust this peer no longer. Repeatable.")
    ] = None,
) -> None:
    """Show what your own jobs have told whom about your data, over all of them, and set limits to it.

    A run that would exceed a limit is refused before it tells anything. Limits hold for each table and each peer.

    Example: securevfl ledger --party shop --limit columns=40
    """
    from securevfl.cli.show import console
    from securevfl.disclosure.limits import Limit

    wanted = [Limit.parse(*pair("--limit", each, "KIND=MOST", "columns=40")) for each in limit or ()]
    changes = [*wanted, *(trust or ()), *(distrust or ()), *(forgive or ())]
    found = _ledgers(party, file, making=bool(changes))
    if changes and len(found) != 1:
        names = ", ".join(each.party for each in found)
        raise ConfigError(f"one ledger was expected, there are {len(found)} ({names}); name it with --party")
    for kind, most in wanted:
        found[0].set_limit(kind, most)
    for trusted, peers in ((True, trust), (False, distrust)):
        for peer in peers or ():
            found[0].trust(peer, trusted=trusted)
    for peer in forgive or ():
        found[0].reset_early_aborts(peer)
    out = console()
    for each in found:
        show(out, each)
        out.print("")
    out.print(_LEGEND)


def show(out: Console, ledger: DisclosureLedger) -> None:
    """Print a ledger: limits, and for each table what each peer was told."""
    from securevfl.cli.show import table
    from securevfl.disclosure.ledger import MAX_EARLY_ABORTS

    book = ledger.read()
    out.print(f"{book.party}'s disclosure ledger, {ledger.path}", style="bold", soft_wrap=True)
    kept = ", ".join(f"{kind} {limit}" for kind, limit in book.limits.items()) or "none"
    out.print(f"limits for each table and peer: {kept}", soft_wrap=True)
    if book.trusts:
        out.print(f"trusted to ask the same equations in equal plans: {', '.join(book.trusts)}", soft_wrap=True)
    for each in book.tries:
        told = f"ended early with {', '.join(each.peers)}: {each.count} of {MAX_EARLY_ABORTS} conversations, "
        told += "a bit each at most"
        out.print(told, soft_wrap=True)
    if not book.entries:
        out.print("nothing was told yet")
    for name in dict.fromkeys(entry.table for entry in book.entries):
        out.print("")
        (entries, shared), known = ledger.table_disclosures(name), book.tables[name]
        others = [  # of a table without ids, or from an earlier version, only how many rows at most
            f"{other[:8]} ({'' if None not in (known.members, book.tables[other].members) else 'up to '}{count:,})"
            for other, count in sorted(shared.items())
        ]
        rows = f"{known.rows:,} rows" if known.rows else "of a training that is not in this ledger"
        told = f"; shares rows with {', '.join(others)}, which counts too" if others else ""
        out.print(f"table {name[:8]}, {rows}, since {known.since[:10]}{told}", soft_wrap=True)
        out.print(table(("told to", "kind", "runs", "told", "share", "limit", "left", "last"), _rows(book, entries)))


def _rows(book: LedgerContents, entries: Sequence[LedgerEntry]) -> list[list[Cell]]:
    """Make a row for each kind and peer."""
    from securevfl.disclosure.ledger import total_to
    from securevfl.disclosure.limits import DISCLOSURE_KINDS, KIND_TOTALS

    found: list[list[Cell]] = []
    for kind in DISCLOSURE_KINDS:
        for learner in sorted({entry.disclosure.learner for entry in entries if entry.disclosure.kind == kind}):
            so_far, limit = total_to(entries, kind, learner), book.limits.get(kind)
            last = max(
                entry.when for entry in entries if (entry.disclosure.kind, entry.disclosure.learner) == (kind, learner)
            )
            share = f"{so_far.share:.0%}" if kind in KIND_TOTALS else ""
            most, left = ("-", "-") if limit is None else (str(limit), limit.left(so_far))
            found.append([learner, kind, so_far.runs, so_far.count, share, most, left, last[:10]])
    return found


def _ledgers(party: str | None, file: Path | None, *, making: bool) -> list[DisclosureLedger]:
    """Find the ledgers asked for; all among the user's data if none is named. A named one may be new to be limited."""
    from securevfl.disclosure.ledger import DisclosureLedger, default_ledger

    if file is not None:
        if party is not None and making:
            return [DisclosureLedger(file, party)]
        found = DisclosureLedger.find(file)
        return [found if party is None else DisclosureLedger(file, party)]
    if party is not None:
        path = default_ledger(party)
        if not path.exists() and not making:
            raise ConfigError(f"--party {party}: a ledger was expected in {path}; it is made by the first run")
        return [DisclosureLedger(path, party)]
    folder = default_ledger("any").parent
    paths = sorted(folder.glob("*.ledger"))
    if not paths:
        raise ConfigError(f"a ledger was expected in {folder}, there is none; it is made by the first run, or name it")
    return [DisclosureLedger.find(path) for path in paths]
