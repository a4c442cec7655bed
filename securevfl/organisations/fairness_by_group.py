"""How a model treats groups that another party knows: rates by group, from counts that are made on shares.

The party with labels has the outcome of each row (its class, and which it was said to be); one other party has the
group of each. Both hold the same rows in one order.

1. A <-> B   TableShape     rows, number of groups, keyed digest of the row order
2. B         its sheet; its ledger takes what it is about to tell, or refuses
3. both      counts of rows by group and outcome, told to A (`protocols/shares/group_counts.py`)

B learns sizes alone. A learns the groups' names and 4 counts of each, rounded at random to 8 rows. B's ledger counts
them as so many numbers about columns, and in bits of what the groups of all rows hold: whatever A gives in place of
outcomes, over all looks it is told MOST of these at most (`securevfl.disclosure.summed_bits`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from securevfl.base.roles import Roles
from securevfl.consent.consent_sheet import ASSUMPTIONS, ConsentSheet
from securevfl.consent.joint_statistics import Consent, record_joint_statistics
from securevfl.data.party import Party
from securevfl.disclosure.counts import Disclosure
from securevfl.disclosure.ledger import DisclosureLedger
from securevfl.disclosure.ledger_contents import LedgerEntry
from securevfl.disclosure.summed_bits import MAX_STATISTICS_SHARE, statistics_disclosure, statistics_share
from securevfl.errors import LabelError, PartiesError, TableError
from securevfl.models.class_labels import class_name, classes_of
from securevfl.models.group_metrics import rates_of_counts
from securevfl.models.standard_losses import LogisticLoss
from securevfl.organisations import joint_statistics
from securevfl.organisations.joint_statistics import TableShape
from securevfl.organisations.peer_settings import PeerSettings
from securevfl.protocols.declarations import MessageDeclaration
from securevfl.protocols.shares import group_counts
from securevfl.protocols.shares.group_counts import (
    COUNT_STEP,
    MIN_COUNTED_ROWS,
    MIN_GROUP_ROWS,
    bits_per_count,
    disclosed_counts,
    receive_group_counts,
    send_group_counts,
)
from securevfl.runtime.channel import Channel
from securevfl.runtime.clock import WallClock
from securevfl.runtime.observer import Observer
from securevfl.runtime.party_threads import run_threads
from securevfl.transport.peers import Peers

MAX_GROUPS = 50


def declares(roles: Roles) -> list[MessageDeclaration]:
    """Declare what the messages reveal."""
    return [*joint_statistics.declares(roles), *group_counts.declares()]


def merge_small_groups(values: ArrayLike) -> tuple[list[str], NDArray[np.int64]]:
    """Return the names of the groups that counts are told of, and the marks (n x groups) of the rows.

    Groups of fewer than 100 rows are put together, with the smallest of the others if these rows alone are too few.
    TableError if there are not two groups then, or more than 50.
    """
    names, place, counts = np.unique(np.asarray(values).astype(str), return_inverse=True, return_counts=True)
    order = np.argsort(-counts, kind="stable")
    alone = [int(k) for k in order if counts[k] >= MIN_GROUP_ROWS]
    rest = len(place) - int(counts[alone].sum())
    while 0 < rest < MIN_GROUP_ROWS and alone:
        rest += int(counts[alone.pop()])
    if not 2 <= len(alone) + (rest > 0) <= MAX_GROUPS:
        raise TableError(
            f"groups: 2 to {MAX_GROUPS} of {MIN_GROUP_ROWS} rows or more were expected, there are {len(alone)}; "
            f"choose a "
            "column with fewer or larger ones"
        )
    marks = [place == k for k in alone]
    if rest:
        marks.append(~np.isin(place, alone))
    told = [str(names[k]) for k in alone] + ["others"] * (rest > 0)
    return told, np.stack(marks, axis=1).astype(np.int64)


def request_group_rates(
    party: Party, said: ArrayLike, peers: Peers | str | Path = "peers.toml", *, positive: str | None = None, **keys: Any
) -> dict[str, dict[str, float]]:
    """Return figures by group (`securevfl.models.metrics.rates_of_counts`), at the party with labels of two classes.

    said: the name of the class that each row was said to be of (n,), as predictions have it. positive: the class that
    the job of the model names (`securevfl.models.loss`); the usual one if it names none. keys: as `provide_groups`,
    but for its ledger.
    """
    marks = _outcomes(party, said, positive)
    return _meet(party, peers, partial(_ask, party, marks), DisclosureLedger.open(party.name, None), **keys)


def provide_groups(
    party: Party,
    groups: ArrayLike,
    peers: Peers | str | Path = "peers.toml",
    *,
    ledger: DisclosureLedger | str | Path | None = None,
    consent: Consent | None = None,
    **keys: Any,
) -> list[str]:
    """Let the party with labels count outcomes by these groups (n,), and return the names that it is told.

    consent: is given this party's sheet before anything of its data is told; raises ConsentError to take no part. keys:
    certs, listen, timeout and patience as in `join`. Raises TableError or IdError if rows are not the same, fewer than
    400, or groups too few; LeakageError if the ledger refuses; TransportError as `join`.
    """
    names, marks = _groups(party, groups)
    own = DisclosureLedger.open(party.name, ledger)
    _meet(party, peers, partial(_give, party, names, marks, own, consent), own, **keys)
    return names


def local_group_rates(
    party: Party, said: ArrayLike, groups: ArrayLike, *, positive: str | None = None
) -> dict[str, dict[str, float]]:
    """Return the figures by group of a party that has labels and groups: exact, of groups of 100 rows or more. The rest
    as `request_group_rates`."""
    names, marks = _groups(party, groups)
    counts = marks.T @ _outcomes(party, said, positive)
    return {name: rates_of_counts(*own) for name, own in zip(names, counts.tolist(), strict=True)}


def simulate_group_rates(
    labelled: Party,
    said: ArrayLike,
    grouped: Party,
    groups: ArrayLike,
    *,
    positive: str | None = None,
    observe: Observer | None = None,
) -> dict[str, dict[str, float]]:
    """Return what `request_group_rates` would, of two aligned tables that are in this process, by the same messages."""
    names, marks = _groups(grouped, groups)
    roles: dict[str, Callable[[Channel], Any]] = {
        labelled.name: partial(_ask, labelled, _outcomes(labelled, said, positive), peer=grouped.name),
        grouped.name: partial(_give, grouped, names, marks, None, None, peer=labelled.name),
    }
    return run_threads(roles, WallClock, observe=observe)[labelled.name]


def _outcomes(party: Party, said: ArrayLike, positive: str | None) -> NDArray[np.int64]:
    """Return marks (n x 4) of the rows: said and of the positive class, said but not of it, of it but not said,
    neither."""
    classes = np.asarray(said).astype(str)
    if party.y is None or len(np.unique(party.y)) != 2 or classes.shape != (len(party),):
        raise LabelError(
            f"party {party.name}: labels of two classes and a prediction for each of {len(party):,} rows were "
            "expected; bring the table with labels, and predictions of all its rows"
        )
    name = classes_of(party.name, LogisticLoss(), party.y, positive)[1]
    of_it, selected = party.y == name, classes == class_name(name)
    cells = selected & of_it, selected & ~of_it, ~selected & of_it, ~selected & ~of_it
    return np.stack(cells, axis=1).astype(np.int64)


def _groups(party: Party, groups: ArrayLike) -> tuple[list[str], NDArray[np.int64]]:
    if np.asarray(groups).shape != (len(party),):
        raise TableError(f"party {party.name}: one group for each of {len(party):,} rows was expected; bring as many")
    return merge_small_groups(groups)


def _meet(
    party: Party, peers: Peers | str | Path, talk: Callable[..., Any], ledger: DisclosureLedger, **keys: Any
) -> Any:
    """Hold the conversation of the two parties in the file of peers."""
    venue = PeerSettings.of(peers, **keys)
    names = venue.peers.parties
    if len(names) != 2 or party.name not in names:
        raise PartiesError(
            f"{party.name} and one other party were expected among the peers, there are {', '.join(names)}; bring a "
            "file of peers of these two"
        )
    (peer,) = (name for name in names if name != party.name)
    return joint_statistics.run_joint_session(party, venue, "groups", partial(talk, peer=peer), ledger)


def _greet(party: Party, groups: int, peer: str, channel: Channel) -> TableShape:
    other = joint_statistics.exchange_table_shapes(party, groups, [peer], channel)[peer]  # 1
    if other.rows < MIN_COUNTED_ROWS:
        raise TableError(f"groups: {MIN_COUNTED_ROWS} rows or more were expected, {other.rows} came; bring more")
    if (groups > 0) == (other.count > 0):
        what = "groups" if groups else "labels"
        raise PartiesError(f"{party.name} and {peer} both bring {what}; one brings labels and the other groups")
    return other


def _ask(party: Party, marks: NDArray[np.int64], channel: Channel, peer: str) -> dict[str, dict[str, float]]:
    table = _greet(party, 0, peer, channel)
    if table.count > MAX_GROUPS:
        raise TableError(f"{peer}: up to {MAX_GROUPS} groups were expected, {table.count} came; bring fewer")
    names, counts = receive_group_counts(
        joint_statistics.context(channel, party.name, peer, "groups"), marks, table.count
    )  # 3
    return {name: rates_of_counts(*own) for name, own in zip(names, np.maximum(counts, 0.0).tolist(), strict=True)}


def _give(
    party: Party,
    names: list[str],
    marks: NDArray[np.int64],
    ledger: DisclosureLedger | None,
    consent: Consent | None,
    channel: Channel,
    peer: str,
) -> None:
    _greet(party, len(names), peer, channel)
    told = statistics_disclosure(
        peer, party.name, disclosed_counts(len(names)), bits_per_count(len(party)), _held(marks)
    )
    remedy = f"bring fewer groups, or more rows: a first look at such groups takes some {_fewest(marks):,}"
    record_joint_statistics(
        channel.session, party, [told], remedy, ledger, consent, partial(_sheet, party, names, told)
    )  # 2
    send_group_counts(joint_statistics.context(channel, peer, party.name, "groups"), marks, names)  # 3


def _held(marks: NDArray[np.int64]) -> float:
    """Return how many bits the groups of all rows hold, by how many rows each has (n x groups)."""
    p = marks.mean(axis=0)
    return len(marks) * float(-(p * np.log2(p)).sum())


def _fewest(marks: NDArray[np.int64]) -> int:
    """Return how many rows in such groups hold enough for a first look."""
    a_row, numbers, rows = _held(marks) / len(marks), disclosed_counts(marks.shape[1]), MIN_COUNTED_ROWS
    while numbers * bits_per_count(rows) > MAX_STATISTICS_SHARE * a_row * rows:
        rows = math.ceil(numbers * bits_per_count(rows) / (MAX_STATISTICS_SHARE * a_row))
    return rows


def _sheet(party: Party, names: list[str], told: Disclosure, before: Sequence[LedgerEntry]) -> ConsentSheet:
    lines = [
        f"counts by group, for {party.name}, {len(party):,} rows in {len(names)} groups: {', '.join(names)}",
        f"assumes: {ASSUMPTIONS}",
        f"  tells     {told.learner} these names, and of each group how many rows are of either class and were said to "
        "be:",
        f"            {told.count} counts of {bits_per_count(len(party))} bits, rounded at random to {COUNT_STEP} "
        f"rows; groups "
        f"under {MIN_GROUP_ROWS} rows are put together.",
        f"            They are {told.share:.2g} of the bits that the groups of all rows hold; who puts weights in "
        "place",
        "            of outcomes reads as many of these",
        f"  told      {statistics_share(told, before):.2g} of them in earlier looks; {MAX_STATISTICS_SHARE:g} at "
        f"most over all",
        "  learns    sizes alone",
    ]
    return ConsentSheet("\n".join(lines))
