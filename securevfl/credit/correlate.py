"""Correlations and variance inflation of several parties' columns, before any training.

The parties have aligned tables: the same rows in the same order. Each party keeps a disclosure ledger, which records
and limits what its table discloses.

1. all -> all          TableShape   numbers of rows and of numeric columns; keyed digest of the row order
2. each party          shows its consent sheet; its ledger records the disclosures or refuses
3. each pair in turn   products of columns, with 6 bits for each (`protocols/shares/column_correlations.py`)

Comments refer to these steps by number. Both parties of a pair learn two matrices: the correlations of their columns,
and the same after each party has made its own columns uncorrelated. Variance inflation factors follow from the second
one (`securevfl.credit.correlations`). A party's ledger compares the bits of these numbers with the information content
of its columns: all joint statistics together may disclose at most the share MAX_STATISTICS_SHARE of it
(`securevfl.disclosure.summed_bits`). No party learns names of columns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import combinations
from pathlib import Path

from securevfl.base.arrays import Floats
from securevfl.base.roles import Roles
from securevfl.consent.consent_sheet import ConsentSheet
from securevfl.consent.sheet_document import SheetBlock, SheetSection, section
from securevfl.consent.sheet_sections import ASSUMPTIONS
from securevfl.consent.statistics_consent import Consent, record_joint_statistics
from securevfl.credit import joint_statistics
from securevfl.credit.correlations import Correlations, OwnColumns
from securevfl.credit.joint_statistics import TableShape
from securevfl.data.party import Party
from securevfl.disclosure.counts import Disclosure
from securevfl.disclosure.information_content import InformationContent, entropies
from securevfl.disclosure.ledger import DisclosureLedger
from securevfl.disclosure.ledger_contents import LedgerEntry
from securevfl.disclosure.summed_bits import MAX_STATISTICS_SHARE, statistics_disclosure, statistics_share
from securevfl.errors import PartiesError, TableError
from securevfl.organisations.peer_settings import PeerSettings, check_among
from securevfl.protocols.declarations import MessageDeclaration
from securevfl.protocols.shares import column_correlations
from securevfl.protocols.shares.column_correlations import (
    CORRELATION_BITS,
    CORRELATION_LEVELS,
    CORRELATION_NOISE,
    MIN_CORRELATION_ROWS,
    ROWS_PER_COLUMN,
    rounded_correlations,
)
from securevfl.protocols.shares.share_schemes import SHARE_SCHEMES
from securevfl.runtime import eventlog
from securevfl.runtime.channel import Channel
from securevfl.runtime.clock import WallClock
from securevfl.runtime.observer import Observer
from securevfl.runtime.party_threads import run_threads
from securevfl.transport.peers import Peers

# maximum number of rows from which the information content of the columns is estimated
INFORMATION_SAMPLE_ROWS = 65_536


def declares(roles: Roles) -> list[MessageDeclaration]:
    """Return a declaration of each message: its sender, its receiver, and what it discloses."""
    return [*joint_statistics.declares(roles), *column_correlations.declares()]


def correlate(
    parties: Sequence[Party], *, ledgers: Mapping[str, DisclosureLedger] | None = None, observe: Observer | None = None
) -> dict[str, list[Correlations]]:
    """Compute the correlations between aligned tables in this process, with the messages that organisations would send.

    Args:
        parties: the parties and their tables.
        ledgers: ledgers of the parties by name; they count the disclosures.
        observe: function that is called with every message.

    Returns:
        For each party, its correlations with each other party, as `correlate_with` returns them.

    Raises:
        PartiesError: there are fewer than two parties, or two have the same name.
    """
    names = [party.name for party in parties]
    if len(parties) < 2 or len(set(names)) < len(names):
        raise PartiesError(
            "correlations need two or more parties with different names",
            "add or rename a party",
            code="SVFL-PARTIES-COUNT",
        )
    roles = {party.name: partial(_talk, party, names, (ledgers or {}).get(party.name), None) for party in parties}
    return run_threads(roles, WallClock, observe=observe)


def correlate_with(
    party: Party,
    peers: Peers | str | Path = "peers.toml",
    *,
    ledger: DisclosureLedger | str | Path | None = None,
    consent: Consent | None = None,
    certs: str | Path | None = None,
    listen: str | None = None,
    timeout: float = 600.0,
    patience: float = 60.0,
) -> list[Correlations]:
    """Compute the correlations between this party's numeric columns and those of all peers, on aligned rows.

    Args:
        party: this party's table.
        peers: the file of peers, or its content.
        ledger: this party's disclosure ledger, as in `securevfl.join`.
        consent: receives this party's consent sheet when all parties are connected and before anything about its data
            is disclosed. It raises ConsentError to refuse.
        certs: the folder with this party's key and certificate and ca.pem; by default that of the file of peers.
        listen: host:port to bind instead of the port of this party's address.
        timeout: seconds to wait for all parties at the start, and for each message.
        patience: seconds without a connection after which a party is lost.

    Returns:
        The correlations with each peer.

    Raises:
        TableError: the numbers of rows differ, there are fewer than 1,000 rows, or fewer than 100 rows for each column
            of a peer.
        IdError: the row orders differ.
        LeakageError: the ledger refuses.
        TransportError: a party cannot be reached, was refused or has stopped.
    """
    settings = PeerSettings.of(peers, certs, listen, timeout, patience)
    party_ledger = DisclosureLedger.open(party.name, ledger)
    check_among(settings.peers, party.name)
    talk = partial(_talk, party, settings.peers.parties, party_ledger, consent)
    correlations = joint_statistics.run_joint_session(party, settings, "correlate", talk, party_ledger)
    eventlog.emit(party.name, "correlations computed", {"peers": len(correlations)})
    return correlations


def _talk(
    party: Party, names: Sequence[str], ledger: DisclosureLedger | None, consent: Consent | None, channel: Channel
) -> list[Correlations]:
    """Run one party's side of the protocol over a channel to the other parties."""
    columns = OwnColumns.of(party.name, party.table)
    shapes = _exchange_shapes(party, columns, names, channel)  # step 1
    content = _information_content(columns)
    disclosures = [_disclosure(party.name, columns, content, name, shape.count) for name, shape in shapes.items()]
    write_sheet = partial(_sheet, party, columns, disclosures)
    # step 2
    record_joint_statistics(channel.session, party, disclosures, _remedy(columns), ledger, consent, write_sheet)
    correlations = []
    for one, two in combinations(names, 2):
        if party.name in (one, two):
            other = two if one == party.name else one
            width = shapes[other].count
            context = joint_statistics.pair_context(channel, one, two, f"correlations {one} {two}")
            R, K = rounded_correlations(context, [columns.Z, columns.Q], [width, width])  # step 3
            inflation = columns.joint_inflation(K, CORRELATION_NOISE)
            correlations.append(Correlations(party.name, other, columns.names, R, columns.local_inflation, inflation))
    return correlations


def _exchange_shapes(
    party: Party, columns: OwnColumns, names: Sequence[str], channel: Channel
) -> dict[str, TableShape]:
    """Exchange table shapes with all others, and check that no correlation could reveal single rows."""
    others = [name for name in names if name != party.name]
    shapes = joint_statistics.exchange_table_shapes(party, len(columns.names), others, channel)  # step 1
    for name, shape in shapes.items():
        if not 0 < shape.count <= shape.rows // ROWS_PER_COLUMN or shape.rows < MIN_CORRELATION_ROWS:
            raise TableError(
                f"correlations of {shape.count} columns of {name} on {shape.rows:,} rows would reveal single rows",
                f"bring at least {MIN_CORRELATION_ROWS:,} rows, and at least {ROWS_PER_COLUMN} rows for each column",
                code="SVFL-TABLE-TOO-FEW-ROWS",
                peer=name,
                rows=shape.rows,
                columns=shape.count,
            )
    return shapes


def _sample(columns: OwnColumns) -> Floats:
    """Return at most INFORMATION_SAMPLE_ROWS rows of the columns, evenly spaced, for estimating information."""
    return columns.Z[:: -(-len(columns.Z) // INFORMATION_SAMPLE_ROWS)]


def _information_content(columns: OwnColumns) -> float:
    """Return the information content of all rows of the columns together, in bits.

    The same number of correlations is disclosed about each column. So if a column has less information than the
    average, all columns are counted as if they had as little, and no column is disclosed to more than the allowed
    share.
    """
    sample = _sample(columns)
    per_row = min(InformationContent.of(sample).bits, len(columns.names) * float(entropies(sample).min()))
    return len(columns.Z) * per_row


def _disclosure(me: str, columns: OwnColumns, content: float, other: str, other_columns: int) -> Disclosure:
    """Return what correlations with a peer's `other_columns` columns disclose about this party's columns."""
    return statistics_disclosure(other, me, 2 * other_columns * len(columns.names), CORRELATION_BITS, content)


def _remedy(columns: OwnColumns) -> str:
    """Return the remedy: a change that would reduce the disclosed share of the information content."""
    bits = entropies(_sample(columns))
    least = int(bits.argmin())
    return (
        f"bring more rows, or leave out columns: {columns.names[least]} has the least information, {bits[least]:.2f} "
        "bits per row"
    )


def _sheet(
    party: Party, columns: OwnColumns, disclosures: Sequence[Disclosure], before: Sequence[LedgerEntry]
) -> ConsentSheet:
    """Write this party's consent sheet: new and earlier disclosures, and the statistics that it learns."""
    n, d = len(party), len(columns.names)
    strength = SHARE_SCHEMES["own"](column_correlations.CorrelationEncoding(n).bits).strength
    blocks = []
    for disclosure in sorted(disclosures, key=lambda disclosure: disclosure.learner):
        name, other_columns = disclosure.learner, disclosure.count // (2 * d)
        statements = (
            (
                "learns",
                f"{d * other_columns} correlations of its columns with {name}'s, and as many after each party has "
                "decorrelated its columns, for variance inflation. Each is rounded at random to 6 bits, in steps of "
                f"1/{CORRELATION_LEVELS}",
            ),
            (
                "reveals",
                f"the same numbers to {name}: {disclosure.count} of {CORRELATION_BITS} bits about {d} x {n:,} values, "
                f"{disclosure.share:.2g} of the bits in these values. If a column of {name} marks one row, the numbers "
                "depend on that row: a value that is one standard deviation larger moves a number by "
                f"{CORRELATION_LEVELS / n**0.5:.2g} steps, against rounding of 0.4 steps. With chosen weights such a "
                f"column can read {CORRELATION_BITS - 1} rows of a column of two values",
            ),
            (
                "revealed",
                f"{statistics_share(before):.2g} of these bits in earlier joint statistics with any peer; at most "
                f"{MAX_STATISTICS_SHARE:g} in all",
            ),
        )
        blocks.append(SheetBlock(statements, f"with {name}, {other_columns} columns"))
    title = f"correlations of columns, for {party.name}, {n:,} rows x {d} numeric columns: {', '.join(columns.names)}"
    return ConsentSheet.of_sections(
        [
            SheetSection(title, tuple(blocks)),
            section("Assumptions", ASSUMPTIONS),
            section("Encryption", strength),
        ]
    )
