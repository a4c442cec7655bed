"""How a model treats groups that another party knows: rates by group, from counts on secret shares.

The party with labels knows the outcome of each row: its class together with its predicted class. One other party knows
the group of each row. Both have the same rows in one order. Each party keeps a disclosure ledger, which records and
limits what its table discloses.

1. A <-> B   TableShape     numbers of rows and of groups; keyed digest of the row order
2. B         shows its consent sheet; its ledger records the disclosures or refuses
3. both      count rows by group and outcome on secret shares; A learns the counts (`protocols/shares/group_counts.py`)

A is the party with labels and B the party with groups; the file of peers states their addresses. Comments refer to
these steps by number. B learns only sizes. A learns the names of the groups and 4 counts for each, rounded at random to
8 rows; B's ledger limits their bits. Rates are those of the positive class, the one of two classes whose probability
the model predicts.
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
from securevfl.consent.consent_sheet import ConsentSheet
from securevfl.consent.sheet_document import SheetBlock, SheetSection, section
from securevfl.consent.sheet_sections import ASSUMPTIONS
from securevfl.consent.statistics_consent import Consent, record_joint_statistics
from securevfl.credit import joint_statistics
from securevfl.credit.joint_statistics import TableShape
from securevfl.data.party import Party
from securevfl.data.row_matching import match_values
from securevfl.data.validation import name_list
from securevfl.disclosure.counts import Disclosure
from securevfl.disclosure.ledger import DisclosureLedger
from securevfl.disclosure.ledger_contents import LedgerEntry
from securevfl.disclosure.summed_bits import MAX_STATISTICS_SHARE, statistics_disclosure, statistics_share
from securevfl.errors import LabelError, PartiesError, TableError
from securevfl.models.class_labels import class_name, class_names, find_classes
from securevfl.models.group_metrics import rates_from_counts
from securevfl.models.standard_losses import LogisticLoss
from securevfl.organisations.peer_settings import PeerSettings
from securevfl.protocols.declarations import MessageDeclaration
from securevfl.protocols.shares import group_counts
from securevfl.protocols.shares.group_counts import (
    COUNT_STEP,
    MIN_COUNTED_ROWS,
    MIN_SHARED_GROUP_ROWS,
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
MERGED_GROUP = "others"
"""Name of the group into which all groups that are too small are merged."""


def declares(roles: Roles) -> list[MessageDeclaration]:
    """Return a declaration of each message: its sender, its receiver, and what it discloses."""
    return [*joint_statistics.declares(roles), *group_counts.declares()]


def merge_small_groups(values: ArrayLike) -> tuple[list[str], NDArray[np.int64]]:
    """Merge groups of fewer than 100 rows into one group, "others" or "(others)" if a remaining group has this name.

    If the merged rows are still too few, the smallest other group is merged as well.

    Args:
        values: the group of each row (n,).

    Returns:
        The names of the groups, and an indicator matrix (n, groups) of the rows.

    Raises:
        TableError: fewer than two groups remain, or more than 50.
    """
    names, positions, counts = np.unique(np.asarray(values).astype(str), return_inverse=True, return_counts=True)
    order = np.argsort(-counts, kind="stable")
    large = [int(k) for k in order if counts[k] >= MIN_SHARED_GROUP_ROWS]
    merged_rows = len(positions) - int(counts[large].sum())
    while 0 < merged_rows < MIN_SHARED_GROUP_ROWS and large:
        merged_rows += int(counts[large.pop()])
    if not 2 <= len(large) + (merged_rows > 0) <= MAX_GROUPS:
        raise TableError(
            f"the column has {len(large)} groups of at least {MIN_SHARED_GROUP_ROWS} rows",
            f"choose a column with 2 to {MAX_GROUPS} such groups",
            code="SVFL-TABLE-GROUPS",
            groups=len(large),
        )
    indicators = [positions == k for k in large]
    if merged_rows:
        indicators.append(~np.isin(positions, large))
    group_names, merged_name = [str(names[k]) for k in large], MERGED_GROUP
    while merged_name in group_names:
        merged_name = f"({merged_name})"
    return group_names + [merged_name] * (merged_rows > 0), np.stack(indicators, axis=1).astype(np.int64)


def request_group_rates(
    party: Party,
    predictions: ArrayLike,
    peers: Peers | str | Path = "peers.toml",
    *,
    positive: str | None = None,
    **keys: Any,
) -> dict[str, dict[str, float]]:
    """Compute rates by group, at the party with labels of two classes.

    Args:
        party: this party's table.
        predictions: the predicted class of each row (n,).
        peers: the file of peers, or its content.
        positive: the positive class that the model's job names, if it names one (`securevfl.models.class_labels`).
        **keys: certs, listen, timeout and patience as in `join`.

    Returns:
        The rates by name of the group (`securevfl.models.group_metrics.rates_from_counts`).
    """
    outcomes = _outcomes(party, predictions, positive)
    return _run(party, peers, partial(_request, party, outcomes), DisclosureLedger.open(party.name, None), **keys)


def provide_groups(
    party: Party,
    groups: ArrayLike,
    peers: Peers | str | Path = "peers.toml",
    *,
    ledger: DisclosureLedger | str | Path | None = None,
    consent: Consent | None = None,
    **keys: Any,
) -> list[str]:
    """Let the party with labels count outcomes by this party's groups.

    Args:
        party: this party's table.
        groups: the group of each row (n,).
        peers: the file of peers, or its content.
        ledger: this party's disclosure ledger, as in `securevfl.join`.
        consent: receives this party's consent sheet before anything about its data is disclosed. It raises ConsentError
            to refuse.
        **keys: certs, listen, timeout and patience as in `join`.

    Returns:
        The names of the groups that the other party learns.

    Raises:
        TableError: the numbers of rows differ, there are fewer than 400 rows, or too few groups.
        IdError: the row orders differ.
        LeakageError: the ledger refuses.
        TransportError: a party cannot be reached, was refused or has stopped.
    """
    names, indicators = _groups(party, groups)
    party_ledger = DisclosureLedger.open(party.name, ledger)
    _run(party, peers, partial(_provide, party, names, indicators, party_ledger, consent), party_ledger, **keys)
    return names


def local_group_rates(
    party: Party, predictions: ArrayLike, groups: ArrayLike, *, positive: str | None = None
) -> dict[str, dict[str, float]]:
    """Compute exact rates by group at a party that has both labels and groups.

    Args:
        party: this party's table.
        predictions: the predicted class of each row (n,).
        groups: the group of each row (n,).
        positive: the positive class that the model's job names, if it names one.

    Returns:
        The rates by name of the group; groups of fewer than 100 rows are merged.
    """
    names, indicators = _groups(party, groups)
    counts = indicators.T @ _outcomes(party, predictions, positive)
    return {name: rates_from_counts(*cells) for name, cells in zip(names, counts.tolist(), strict=True)}


def simulate_group_rates(
    labelled: Party,
    predictions: ArrayLike,
    grouped: Party,
    groups: ArrayLike,
    *,
    positive: str | None = None,
    observe: Observer | None = None,
) -> dict[str, dict[str, float]]:
    """Compute what `request_group_rates` returns for two aligned tables in this process, with the same messages.

    Args:
        labelled: the party with labels.
        predictions: the predicted class of each row (n,).
        grouped: the party with groups.
        groups: the group of each row (n,).
        positive: the positive class that the model's job names, if it names one.
        observe: function that is called with every message.

    Returns:
        The rates by name of the group.
    """
    names, indicators = _groups(grouped, groups)
    outcomes = _outcomes(labelled, predictions, positive)
    roles: dict[str, Callable[[Channel], Any]] = {
        labelled.name: partial(_request, labelled, outcomes, peer=grouped.name),
        grouped.name: partial(_provide, grouped, names, indicators, None, None, peer=labelled.name),
    }
    return run_threads(roles, WallClock, observe=observe)[labelled.name]


def positive_name(party: Party, positive: str | None = None) -> str:
    """Return the name of the positive class, to which the rates of `local_group_rates` and the others refer.

    Args:
        party: the party with labels of two classes.
        positive: the positive class that the model's job names, if it names one. Otherwise the labels of this party's
            rows determine it, often as the rarer class, and it may differ from the positive class of the training.

    Returns:
        The name.

    Raises:
        LabelError: the party does not have labels of two classes.
        ClassError: no label is of the class `positive`.
    """
    return class_name(_classes(party, positive)[1])


def _classes(party: Party, positive: str | None) -> NDArray[Any]:
    """Return the two classes of a party's labels, the positive one last."""
    if party.y is None or len(np.unique(party.y)) != 2:
        raise LabelError(
            f"party {party.name} needs labels of two classes",
            "bring the table with labels, and rows of both classes",
            code="SVFL-LABEL-CLASSES",
            party=party.name,
        )
    return find_classes(party.name, LogisticLoss(), party.y, positive)


def _outcomes(party: Party, predictions: ArrayLike, positive: str | None) -> NDArray[np.int64]:
    """Return an indicator matrix (n, 4): true positives, false positives, false negatives, true negatives."""
    classes = _classes(party, positive)
    predicted = match_values("the predictions", predictions, party.ids)
    if predicted.shape != (len(party),):
        raise LabelError(
            f"party {party.name} needs a prediction for each of its {len(party):,} rows",
            "bring predictions of all its rows",
            code="SVFL-LABEL-CLASSES",
            party=party.name,
        )
    names = class_names(classes)
    predicted_names = np.array([_predicted_name(value, names) for value in predicted.tolist()])
    if unknown := int((~np.isin(predicted_names, names)).sum()):
        raise LabelError(
            f"party {party.name}: {unknown:,} of {len(party):,} predictions are not the name of a class, which is "
            f"{name_list(names)}",
            "bring predicted classes, such as the column prediction of `securevfl predict`",
            code="SVFL-LABEL-CLASSES",
            party=party.name,
        )
    actual, selected = party.y == classes[1], predicted_names == names[1]
    cells = selected & actual, selected & ~actual, ~selected & actual, ~selected & ~actual
    return np.stack(cells, axis=1).astype(np.int64)


def _predicted_name(value: Any, names: Sequence[str]) -> str:
    """Return the name of a predicted class. A file may contain the class 1 as the text "1.0"."""
    if isinstance(value, str) and value not in names:
        try:
            return class_name(float(value))
        except ValueError:
            return value
    return class_name(value)


def _groups(party: Party, groups: ArrayLike) -> tuple[list[str], NDArray[np.int64]]:
    groups = match_values("the groups", groups, party.ids)
    if groups.shape != (len(party),):
        raise TableError(
            f"party {party.name} needs one group for each of its {len(party):,} rows",
            code="SVFL-TABLE-SHAPE",
            party=party.name,
        )
    return merge_small_groups(groups)


def _run(
    party: Party, peers: Peers | str | Path, talk: Callable[..., Any], ledger: DisclosureLedger, **keys: Any
) -> Any:
    """Run the session of the two parties in the file of peers."""
    settings = PeerSettings.of(peers, **keys)
    names = settings.peers.parties
    if len(names) != 2 or party.name not in names:
        raise PartiesError(
            f"rates by group need {party.name} and one other party, but the file of peers names {', '.join(names)}",
            "bring a file of peers with these two parties",
            code="SVFL-PEERS-FILE",
            party=party.name,
        )
    (peer,) = (name for name in names if name != party.name)
    return joint_statistics.run_joint_session(party, settings, "groups", partial(talk, peer=peer), ledger)


def _exchange_shapes(party: Party, groups: int, peer: str, channel: Channel) -> TableShape:
    shape = joint_statistics.exchange_table_shapes(party, groups, [peer], channel)[peer]  # step 1
    if shape.rows < MIN_COUNTED_ROWS:
        raise TableError(
            f"rates by group need at least {MIN_COUNTED_ROWS} rows, and there are {shape.rows}",
            code="SVFL-TABLE-TOO-FEW-ROWS",
            rows=shape.rows,
        )
    if (groups > 0) == (shape.count > 0):
        both = "groups" if groups else "labels"
        raise PartiesError(
            f"{party.name} and {peer} both bring {both}",
            "one party must bring labels and the other one groups",
            code="SVFL-PARTIES-ROLE",
        )
    return shape


def _request(party: Party, outcomes: NDArray[np.int64], channel: Channel, peer: str) -> dict[str, dict[str, float]]:
    shape = _exchange_shapes(party, 0, peer, channel)
    if shape.count > MAX_GROUPS:
        raise TableError(
            f"{peer} brings {shape.count} groups, and at most {MAX_GROUPS} are allowed",
            code="SVFL-TABLE-GROUPS",
            peer=peer,
        )
    context = joint_statistics.pair_context(channel, party.name, peer, "groups")
    names, counts = receive_group_counts(context, outcomes, shape.count)  # step 3
    cells = np.maximum(counts, 0.0).tolist()
    return {name: rates_from_counts(*row) for name, row in zip(names, cells, strict=True)}


def _provide(
    party: Party,
    names: list[str],
    indicators: NDArray[np.int64],
    ledger: DisclosureLedger | None,
    consent: Consent | None,
    channel: Channel,
    peer: str,
) -> None:
    _exchange_shapes(party, len(names), peer, channel)
    disclosure = statistics_disclosure(
        peer, party.name, disclosed_counts(len(names)), bits_per_count(len(party)), _information_content(indicators)
    )
    remedy = (
        f"bring fewer groups, or more rows: the first count of such groups needs about {_min_rows(indicators):,} rows"
    )
    write_sheet = partial(_sheet, party, names, disclosure)
    record_joint_statistics(channel.session, party, [disclosure], remedy, ledger, consent, write_sheet)  # step 2
    send_group_counts(joint_statistics.pair_context(channel, peer, party.name, "groups"), indicators, names)  # step 3


def _information_content(indicators: NDArray[np.int64]) -> float:
    """Return the information content of the groups of all rows in bits, from an indicator matrix (n, groups).

    B's ledger compares the bits of all counts with it. Even if A uses other values instead of outcomes, A learns at
    most the share MAX_STATISTICS_SHARE of these bits from all joint statistics (`securevfl.disclosure.summed_bits`).
    """
    p = indicators.mean(axis=0)
    return len(indicators) * float(-(p * np.log2(p)).sum())


def _min_rows(indicators: NDArray[np.int64]) -> int:
    """Return how many rows a table needs, with groups of these proportions, so that one count of them is allowed."""
    bits_per_row, rows = _information_content(indicators) / len(indicators), MIN_COUNTED_ROWS
    numbers = disclosed_counts(indicators.shape[1])
    while numbers * bits_per_count(rows) > MAX_STATISTICS_SHARE * bits_per_row * rows:
        rows = math.ceil(numbers * bits_per_count(rows) / (MAX_STATISTICS_SHARE * bits_per_row))
    return rows


def _sheet(party: Party, names: list[str], disclosure: Disclosure, before: Sequence[LedgerEntry]) -> ConsentSheet:
    learner = disclosure.learner
    title = f"counts by group, for {party.name}, {len(party):,} rows in {len(names)} groups: {', '.join(names)}"
    statements = (
        (
            "reveals",
            f"to {learner} these names, and for each group the number of rows by class and predicted class: "
            f"{disclosure.count} counts of {bits_per_count(len(party))} bits, rounded at random to {COUNT_STEP} rows; "
            f"groups of fewer than {MIN_SHARED_GROUP_ROWS} rows are merged. They are {disclosure.share:.2g} of the "
            f"bits in the groups of all rows. If {learner} uses weights instead of outcomes, it learns equally many "
            "bits",
        ),
        (
            "revealed",
            f"{statistics_share(before):.2g} of these bits in earlier joint statistics with any peer; at most "
            f"{MAX_STATISTICS_SHARE:g} in all",
        ),
        ("learns", "only sizes"),
    )
    return ConsentSheet.of_sections(
        [SheetSection(title, (SheetBlock(statements),)), section("Assumptions", ASSUMPTIONS)]
    )
