"""A look at columns of several parties side by side, before any training: correlations and variance inflation.

1. all -> all          TableShape   rows, columns of numbers, keyed digest of the row order
2. each                its sheet; its ledger takes what it is about to tell, or refuses
3. each pair in turn   products of columns, of which both learn 6 bits each (`protocols/shares/column_correlations.py`)

Of each pair, both learn the correlations of their columns, and those of their columns made uncorrelated each by itself,
from which variance inflation follows (`securevfl.data.correlations`): 2 d d_other numbers. The ledger counts them as so
many numbers about columns, and in bits of what the n rows of these columns hold: over all looks at a table a peer is
told MOST of these at most, and in numbers about one column as much of what that column holds
(`securevfl.disclosure.summed_bits`). Nobody is told names of columns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import combinations
from pathlib import Path

from securevfl.base.arrays import Floats
from securevfl.base.roles import Roles
from securevfl.consent.consent_sheet import ASSUMPTIONS, ConsentSheet
from securevfl.consent.joint_statistics import Consent, record_joint_statistics
from securevfl.data.correlations import Correlations, OwnColumns
from securevfl.data.party import Party
from securevfl.disclosure.counts import Disclosure
from securevfl.disclosure.information_content import InformationContent, entropies
from securevfl.disclosure.ledger import DisclosureLedger
from securevfl.disclosure.ledger_contents import LedgerEntry
from securevfl.disclosure.summed_bits import MAX_STATISTICS_SHARE, statistics_disclosure, statistics_share
from securevfl.errors import PartiesError, TableError
from securevfl.organisations import joint_statistics
from securevfl.organisations.joint_statistics import TableShape
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

SAMPLE = 65_536  # rows that bits are counted in


def declares(roles: Roles) -> list[MessageDeclaration]:
    """Declare what the messages reveal."""
    return [*joint_statistics.declares(roles), *column_correlations.declares()]


def correlate(
    parties: Sequence[Party], *, ledgers: Mapping[str, DisclosureLedger] | None = None, observe: Observer | None = None
) -> dict[str, list[Correlations]]:
    """Compare the columns of aligned tables that are in this process, by the messages that organisations would send.

    Return for each party what it would learn of each other. ledgers: where parties would count it, by name. The rest
    as `correlate_with`.
    """
    names = [party.name for party in parties]
    if len(parties) < 2 or len(set(names)) < len(names):
        raise PartiesError("correlations: two or more parties of different names were expected; add or rename one")
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
    """Compare this party's columns of numbers with those of all in `peers`, on aligned rows, before any training.

    consent: is given this party's sheet once all have met and before anything of its data is told; raises ConsentError
    to take no part. The rest as in `join`.

    Raises TableError or IdError if rows are not the same, fewer than 1,000, or fewer than a hundred for each column of
    a peer; LeakageError if the ledger refuses; TransportError as `join`.
    """
    venue, own_ledger = (
        PeerSettings.of(peers, certs, listen, timeout, patience),
        DisclosureLedger.open(party.name, ledger),
    )
    check_among(venue.peers, party.name)
    talk = partial(_talk, party, venue.peers.parties, own_ledger, consent)
    correlations = joint_statistics.run_joint_session(party, venue, "correlate", talk, own_ledger)
    eventlog.emit(party.name, "correlated", {"others": len(correlations)})
    return correlations


def _talk(
    party: Party, names: Sequence[str], ledger: DisclosureLedger | None, consent: Consent | None, channel: Channel
) -> list[Correlations]:
    """Return one party's side, over a channel where all parties are there."""
    own = OwnColumns.of(party.name, party.table)
    tables = _tables(party, own, names, channel)  # 1
    held = _held(own)
    told = [_disclosure(party.name, own, held, name, table.count) for name, table in tables.items()]
    record_joint_statistics(
        channel.session, party, told, _remedy(own), ledger, consent, partial(_sheet, party, own, told)
    )  # 2
    correlations = []
    for one, two in combinations(names, 2):
        if party.name in (one, two):
            other = two if one == party.name else one
            width, context = (
                tables[other].count,
                joint_statistics.context(channel, one, two, f"correlations {one} {two}"),
            )
            R, K = rounded_correlations(context, [own.standard, own.white], [width, width])  # 3
            correlations.append(
                Correlations(party.name, other, own.names, R, own.alone, own.inflation(K, CORRELATION_NOISE))
            )
    return correlations


def _tables(party: Party, own: OwnColumns, names: Sequence[str], channel: Channel) -> dict[str, TableShape]:
    """Tell all others of this party's table, and return what they tell, checked."""
    tables = joint_statistics.exchange_table_shapes(
        party, len(own.names), [name for name in names if name != party.name], channel
    )  # 1
    for name, table in tables.items():
        if not 0 < table.count <= table.rows // ROWS_PER_COLUMN or table.rows < MIN_CORRELATION_ROWS:
            raise TableError(
                f"correlations: {MIN_CORRELATION_ROWS:,} rows or more, and {ROWS_PER_COLUMN} for each column, were "
                f"expected, "
                f"{table.rows:,} with {table.count} columns of {name} came, which would tell of single rows; bring "
                "more rows or fewer columns"
            )
    return tables


def _some(own: OwnColumns) -> Floats:
    """Return the rows of the columns that bits are counted in."""
    return own.standard[:: -(-len(own.standard) // SAMPLE)]


def _held(own: OwnColumns) -> float:
    """Return how many bits all rows of the columns hold together, where the one that holds least counts for all if that
    is less: as many numbers are told of it as of any other."""
    some = _some(own)
    return len(own.standard) * min(InformationContent.of(some).bits, len(own.names) * float(entropies(some).min()))


def _disclosure(me: str, own: OwnColumns, held: float, other: str, columns: int) -> Disclosure:
    """Return what one peer, with so many columns, is told about this party's columns, which hold so many bits."""
    return statistics_disclosure(other, me, 2 * columns * len(own.names), CORRELATION_BITS, held)


def _remedy(own: OwnColumns) -> str:
    """Say what would tell less of what these columns hold."""
    bits = entropies(_some(own))
    lightest = int(bits.argmin())
    return f"bring more rows, or leave columns out: {own.names[lightest]} holds least, {bits[lightest]:.2f} bits a row"


def _sheet(party: Party, own: OwnColumns, told: Sequence[Disclosure], before: Sequence[LedgerEntry]) -> ConsentSheet:
    """Write this party's sheet: what it would learn and tell, and what it has told before."""
    n, d = len(party), len(own.names)
    strength = SHARE_SCHEMES["own"](column_correlations.CorrelationEncoding(n).bits).strength
    lines = [
        f"correlations of columns, for {party.name}, {n:,} rows x {d} columns of numbers: {', '.join(own.names)}",
        f"assumes: {ASSUMPTIONS}",
        f"encryption: {strength}",
    ]
    for each in sorted(told, key=lambda each: each.learner):
        name, columns = each.learner, each.count // (2 * d)
        lines += [
            "",
            f"with {name}, {columns} columns",
            f"  learns    {d * columns} correlations of its columns with {name}'s, and as many of columns that "
            "each has made",
            "            uncorrelated by itself, for variance inflation; each rounded at random to 6 bits, steps of "
            f"1/{CORRELATION_LEVELS}",
            f"  tells     {name} the same numbers: {each.count} of {CORRELATION_BITS} bits about {d} x {n:,} values, "
            f"{each.share:.2g} of the bits that these hold.",
            f"            A column of {name}'s that marks one row reads that row: a value of one deviation moves the "
            f"number by {CORRELATION_LEVELS / n**0.5:.2g}",
            f"            steps, against rounding of .4. Weights in it read {CORRELATION_BITS - 1} rows of a column "
            f"of two values",
            f"  told      {statistics_share(each, before):.2g} of them in earlier looks; {MAX_STATISTICS_SHARE:g} at "
            f"most over all",
        ]
    return ConsentSheet("\n".join(lines))
