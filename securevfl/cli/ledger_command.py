"""The command `ledger`: what this party's jobs have disclosed to whom, and limits on further disclosures.

A disclosure is about the party's labels, columns, scores or ids. An *early end* or *early abort* is a session that
ended early for a reason that may depend on the party's table, which discloses one bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from securevfl.base.files import check_writable, write_atomic
from securevfl.cli import party_options as options
from securevfl.cli.json_output import write_results
from securevfl.cli.option_groups import pair
from securevfl.errors import ConfigError

if TYPE_CHECKING:
    from rich.console import Console

    from securevfl.cli.show import Cell
    from securevfl.disclosure.ledger import DisclosureLedger
    from securevfl.disclosure.ledger_contents import LedgerContents, LedgerEntry


ROW_KEYS = ("peer", "kind", "runs", "disclosed", "bits", "share", "limit", "left", "latest")
"""The columns of the printed table."""
_LEGEND = """\
labels   numbers that depend on labels, such as a gradient or an evaluation; the
         share is that of the residuals, the prediction errors of a batch
columns  numbers about each row; "bits" are bits about the columns of all rows,
         from trainings on shares; the share is that of the columns
scores   predictions of rows of the table, or by a model that was trained on it
ids      ids for which the peer can know whether they are in the table
All amounts are upper bounds. At a share of 100% the peer may know all residuals
or columns. A job that would exceed a limit is refused before it starts."""


def ledger(
    party: Annotated[
        str | None, typer.Option("--party", metavar="NAME", help="Show the ledger of this party in your data folder.")
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option("--ledger", metavar="FILE", help="The file of the ledger, if it is not in your data folder."),
    ] = None,
    limit: Annotated[
        list[str] | None,
        typer.Option(
            "--limit",
            metavar="KIND=LIMIT",
            help="Limit what all peers together may learn about a table, as in labels=25%, columns=40 or "
            "scores=100000; KIND=none removes the limit. Repeatable.",
        ),
    ] = None,
    trust: Annotated[
        list[str] | None,
        typer.Option(
            "--trust",
            metavar="PEER",
            help="Trust this peer to follow the protocols: jobs with identical batches and columns then count once. "
            "Repeatable.",
        ),
    ] = None,
    reset_aborts: Annotated[
        list[str] | None,
        typer.Option(
            "--reset-aborts",
            metavar="PEER",
            help="Reset the count of sessions with this peer that ended early, once you know the reason. Repeatable.",
        ),
    ] = None,
    adopt: Annotated[
        bool,
        typer.Option(
            "--adopt",
            help="Continue with an older copy of the ledger. Everything about tables used until now then counts as "
            "disclosed, and models trained until now are no longer scored.",
        ),
    ] = False,
    distrust: Annotated[
        list[str] | None, typer.Option("--distrust", metavar="PEER", help="Undo --trust for this peer. Repeatable.")
    ] = None,
    json: options.Json = None,
    page: options.Html = None,
) -> None:
    """Show what your jobs have disclosed about your data, to whom, and set limits.

    A run that would exceed a limit is refused before it discloses anything. Limits apply to each table and to all peers
    together, because several peers may belong to one organisation, or may pool what they know.

    Example: securevfl ledger --party shop --limit columns=5%
    """
    from securevfl.cli.show import console
    from securevfl.disclosure.limits import Limit

    check_writable(json, page)
    limits = [Limit.parse(*pair("--limit", item, "KIND=LIMIT", "columns=5%")) for item in limit or ()]
    changes = [*limits, *(trust or ()), *(distrust or ()), *(reset_aborts or ())]
    if adopt:
        _adopt(party, file)
    ledgers = _ledgers(party, file, create=bool(changes))
    if changes and len(ledgers) != 1:
        names = ", ".join(party_ledger.party for party_ledger in ledgers)
        raise ConfigError(
            f"there are {len(ledgers)} ledgers ({names})", "name one with --party", code="SVFL-COMMAND-USAGE"
        )
    for kind, maximum in limits:
        ledgers[0].set_limit(kind, maximum)
    for trusted, peers in ((True, trust), (False, distrust)):
        for peer in peers or ():
            ledgers[0].trust(peer, trusted=trusted)
    for peer in reset_aborts or ():
        ledgers[0].reset_early_aborts(peer)
    write_results(json, "ledger", lambda: {"ledgers": [_plain(party_ledger) for party_ledger in ledgers]})
    if page is not None:
        from securevfl.cli.ledger_page import ledger_page

        plain = [_plain(party_ledger) for party_ledger in ledgers]
        write_atomic(page, ledger_page(plain, ROW_KEYS, _meanings()).encode())
    out = console()
    for party_ledger in ledgers:
        show(out, party_ledger)
        out.print("")
    out.print(_LEGEND)


def _meanings() -> dict[str, str]:
    """Return the meaning of each kind of disclosure, as the legend of the printed table states it."""
    meanings: dict[str, str] = {}
    for line in _LEGEND.splitlines():
        kind, meaning = line[:9].strip(), line[9:]
        last = kind or [*meanings][-1]
        meanings[last] = f"{meanings[last]} {meaning}" if not kind else meaning
    return meanings


def _adopt(party: str | None, file: Path | None) -> None:
    from securevfl.disclosure.ledger import ADOPTED_COUNT, DisclosureLedger, default_ledger

    if file is None and party is None:
        raise ConfigError("--adopt names no ledger", "name it with --party or --ledger", code="SVFL-COMMAND-USAGE")
    ledger = DisclosureLedger.adopt(default_ledger(str(party)) if file is None else file)
    typer.echo(
        f"{ledger.path} is adopted. {ADOPTED_COUNT:,} disclosures of each kind count as made about every table, "
        "because nobody knows which ones this copy lacks. A limit of scores or ids must be larger than that: to "
        f"allow 100,000 scores from now on, set --limit scores={ADOPTED_COUNT + 100_000}.",
        err=True,
    )


def show(out: Console, ledger: DisclosureLedger) -> None:
    """Print a ledger: its limits, and the disclosures to each peer for each table."""
    from securevfl.account.commit_counter import shared_disk_warning
    from securevfl.cli.show import table
    from securevfl.disclosure.ledger import MAX_EARLY_ABORTS

    contents = ledger.read()
    if (warning := shared_disk_warning(ledger.path)) is not None:
        typer.echo(f"Warning: {warning}.", err=True)
    out.print(f"{contents.party}'s disclosure ledger, {ledger.path}", style="bold", soft_wrap=True)
    limits = ", ".join(f"{kind} {limit}" for kind, limit in contents.limits.items()) or "none"
    out.print(f"limits for each table, over all peers: {limits}", soft_wrap=True)
    if contents.trusts:
        out.print(f"trusted to repeat jobs with the same equations: {', '.join(contents.trusts)}", soft_wrap=True)
    for aborts in contents.tries:
        out.print(f"sessions with {', '.join(aborts.peers)} that ended early: {aborts.count}", soft_wrap=True)
    if contents.tries:
        total = sum(aborts.count for aborts in contents.tries)
        out.print(
            f"sessions that ended early, with all peers: {total} of at most {MAX_EARLY_ABORTS}; each disclosed at most "
            "one bit",
            soft_wrap=True,
        )
    if not contents.entries:
        out.print("nothing was disclosed yet")
    for name in dict.fromkeys(entry.table for entry in contents.entries):
        out.print("")
        (entries, shared), known = ledger.table_disclosures(name), contents.tables[name]
        others = [  # if one of the two tables has no ids, only the largest possible number of shared rows is known
            f"{other[:8]} ({'' if None not in (known.members, contents.tables[other].members) else 'up to '}{count:,})"
            for other, count in sorted(shared.items())
        ]
        rows = f"{known.rows:,} rows" if known.rows else "of a training that is not in this ledger"
        overlap = f"; shares rows with {', '.join(others)}, whose disclosures count as well" if others else ""
        out.print(f"table {name[:8]}, {rows}, since {known.since[:10]}{overlap}", soft_wrap=True)
        out.print(table(ROW_KEYS, _rows(contents, entries)))
        for line in _exhausted_limits(contents, entries):
            out.print(line, soft_wrap=True)


def _exhausted_limits(contents: LedgerContents, entries: Sequence[LedgerEntry]) -> list[str]:
    """Return a line for each limit that these entries use up, with the limit that would allow more."""
    from securevfl.disclosure.ledger import total_of

    lines = []
    for kind, limit in contents.limits.items():
        total = total_of(entries, kind)
        if limit.is_used_up(total):
            example = f", as in --limit {kind}={total.count + 1000} for 1,000 more" * (not limit.share)
            lines.append(
                f"the limit {kind}={limit} is used up: further disclosures are refused until you raise it{example}"
            )
    return lines


def _plain(ledger: DisclosureLedger) -> dict[str, Any]:
    """Return what a ledger shows as lists and dicts that can be written as JSON."""
    from securevfl.disclosure.ledger import MAX_EARLY_ABORTS

    contents = ledger.read()
    tables = []
    for name in dict.fromkeys(entry.table for entry in contents.entries):
        (entries, shared), known = ledger.table_disclosures(name), contents.tables[name]
        rows = [dict(zip(ROW_KEYS, row, strict=True)) for row in _rows(contents, entries)]
        tables.append({"table": name, "rows": known.rows, "since": known.since, "shared": dict(shared), "totals": rows})
    return {
        "party": contents.party,
        "path": str(ledger.path),
        "limits": {kind: str(limit) for kind, limit in contents.limits.items()},
        "trusts": list(contents.trusts),
        "early_ends": [{"peers": list(aborts.peers), "sessions": aborts.count} for aborts in contents.tries],
        "max_early_ends": MAX_EARLY_ABORTS,
        "tables": tables,
    }


def _rows(contents: LedgerContents, entries: Sequence[LedgerEntry]) -> list[list[Cell]]:
    """Return the rows of the printed table: for each kind of disclosure, one row for each peer and one for all peers.

    Limits apply to all peers together.
    """
    from securevfl.disclosure.ledger import total_of, total_to
    from securevfl.disclosure.limits import DISCLOSURE_KINDS, KIND_TOTALS

    rows: list[list[Cell]] = []
    for kind in DISCLOSURE_KINDS:
        of_kind, limit = [entry for entry in entries if entry.disclosure.kind == kind], contents.limits.get(kind)
        learners = sorted({entry.disclosure.learner for entry in of_kind})
        totals = {learner: total_to(entries, kind, learner) for learner in learners}
        if len(learners) > 1:
            totals["all"] = total_of(entries, kind)
        for learner, total in totals.items():
            is_limited = limit is not None and (learner == "all" or len(learners) == 1)
            latest = max(entry.when for entry in of_kind if learner in (entry.disclosure.learner, "all"))
            share = total.percentage if kind in KIND_TOTALS else ""
            maximum, left = (str(limit), limit.left(total)) if limit is not None and is_limited else ("-", "-")
            rows.append([learner, kind, total.runs, total.count, total.bits, share, maximum, left, latest[:10]])
    return rows


def _ledgers(party: str | None, file: Path | None, *, create: bool) -> list[DisclosureLedger]:
    """Find the requested ledgers; all ledgers in the user's data folder if none is named.

    Args:
        party: name of the party.
        file: path of the ledger.
        create: whether a named ledger may be new.

    Returns:
        The ledgers.

    Raises:
        ConfigError: there is no ledger, and `create` is False.
    """
    from securevfl.disclosure.ledger import DisclosureLedger, default_ledger

    if file is not None:
        if party is not None and create:
            return [DisclosureLedger(file, party)]
        existing = DisclosureLedger.find(file)
        return [existing if party is None else DisclosureLedger(file, party)]
    if party is not None:
        path = default_ledger(party)
        if not path.exists() and not create:
            raise ConfigError(f"there is no ledger {path} of --party {party}", code="SVFL-LEDGER-MISSING", party=party)
        return [DisclosureLedger(path, party)]
    folder = default_ledger("any").parent
    paths = sorted(folder.glob("*.ledger"))
    if not paths:
        raise ConfigError(f"there is no ledger in {folder}", code="SVFL-LEDGER-MISSING")
    return [DisclosureLedger.find(path) for path in paths]
