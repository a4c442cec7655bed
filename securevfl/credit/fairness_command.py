"""The command `fairness`: whether a model treats groups alike, on rows whose labels are known."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from securevfl.base.files import check_writable
from securevfl.cli import option_groups, signals
from securevfl.cli import party_options as options
from securevfl.cli.json_output import write_results
from securevfl.cli.unused_options import names_of, refuse_unused
from securevfl.errors import ConfigError, IdError, TableError

if TYPE_CHECKING:
    from securevfl.data.party import Party


GROUP_HEADINGS = ["group", "rows", "rate", "selected", "true positive", "false positive"]


@dataclass(frozen=True)
class FairnessInputs:
    """Options that name predictions and groups, which one party has or two parties have."""

    predictions: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="If you have labels: the file that `securevfl predict` or `score` wrote."),
    ] = None
    group: Annotated[
        str | None,
        typer.Option(metavar="COLUMN", help="Your column of groups; if you also have labels, nothing is sent."),
    ] = None
    positive: Annotated[
        str | None,
        typer.Option(
            metavar="CLASS",
            help="If you have labels: the model's positive class; by default 1, true, yes or the rarer class of these "
            "rows.",
        ),
    ] = None

    def check(self, context: typer.Context) -> None:
        """Raise ConfigError if both are missing, or if the command line contains options without effect."""
        consent = names_of(option_groups.ConsentOptions)
        if self.predictions is None and self.group is None:
            raise ConfigError(
                "neither --predictions nor --group is given", "give the one that you have", code="SVFL-COMMAND-USAGE"
            )
        if self.predictions is None:
            unused = ("positive", "report_json")
            refuse_unused(context, unused, "without --predictions, since the party with labels receives the rates")
        elif self.group is None:
            refuse_unused(context, consent, "without --group, since you disclose no column")
        else:
            sent = {"peers", *consent, *names_of(option_groups.SessionOptions)}
            refuse_unused(context, sent, "with both --predictions and --group, since nothing is sent")


def register(app: typer.Typer) -> None:
    """Add the command to an application."""
    app.command()(option_groups.expand_option_groups(fairness))


def fairness(
    context: typer.Context,
    table: option_groups.TableOptions,
    inputs: FairnessInputs = FairnessInputs(),
    peers: options.PeersFile = Path("peers.toml"),
    consent: option_groups.ConsentOptions = option_groups.ConsentOptions(),
    report_json: options.Json = None,
    session: option_groups.SessionOptions = option_groups.SessionOptions(),
) -> None:
    """Compute rates by group: of labels, of selected rows, of true positives and of false positives.

    The party with labels gives --predictions, the party with groups gives --group; a party with both computes the rates
    alone. If another party has the groups, both run this at the same time, on rows that securevfl align has put in one
    order. The party with labels learns counts of rows, rounded at random to 8; the other party learns nothing. Groups
    of fewer than 100 rows are merged. The other party's ledger allows all joint statistics to reveal 3% of the bits in
    its groups; a first count needs about 1,000 to 3,000 rows.
    """
    from securevfl.cli.consent_prompt import check_digest
    from securevfl.cli.show import console
    from securevfl.cli.show import table as format_table
    from securevfl.credit.fairness_by_group import (
        local_group_rates,
        positive_name,
        provide_groups,
        request_group_rates,
    )

    inputs.check(context)
    check_digest(consent.accept)
    check_writable(report_json)
    predictions, group, positive = inputs.predictions, inputs.group, inputs.positive
    party = table.in_order()
    predicted = None if predictions is None else _read_predictions(party, predictions, table)
    groups = None if group is None else _texts(party, group)
    if predicted is not None:
        positive = positive_name(party, positive)
    if predicted is not None and groups is not None:
        rates = local_group_rates(party, predicted, groups, positive=positive)
    else:
        with signals.exit_on_signal(), session.events(table.party, peers):
            if groups is not None:
                ledger, agree = consent.asking(table.party, "securevfl fairness")
                names = provide_groups(party, groups, peers, ledger=ledger, consent=agree, **session.keys)
                typer.echo(f"disclosed: counts of rows in the groups {', '.join(names)}, rounded at random to 8 rows")
                return
            rates = request_group_rates(party, predicted or [], peers, positive=positive, **session.keys)
    write_results(report_json, "fairness", lambda: {"positive": positive, "groups": rates})
    keys = [head.replace(" ", "_") for head in GROUP_HEADINGS[1:]]
    rows: list[list[str | int | float | None]] = [
        [name, *(round(values[key], 3) for key in keys)] for name, values in rates.items()
    ]
    typer.echo(f"positive class: {positive}")
    console().print(format_table(GROUP_HEADINGS, rows))


def _read_predictions(party: Party, file: Path, table: option_groups.TableOptions) -> list[str]:
    """Return the predicted class of each row of a party, matched by id.

    Args:
        party: the party whose rows need predictions.
        file: CSV file that `securevfl predict` wrote: with ids as the table has them, and the column prediction.
        table: options for the party's table.

    Returns:
        The predicted class of each row, in the order of the party's rows.

    Raises:
        ConfigError: a column is missing.
        IdError: a row has no prediction.
    """
    from securevfl.data.composite_ids import compose_ids, id_columns
    from securevfl.data.readers import column_names

    key = id_columns(table.id_column, column_names(table.data, table.id_column))
    heads = key.prediction_names
    with file.open(newline="", encoding="utf-8") as lines:
        rows = csv.DictReader(lines)
        if not {*heads, "prediction"} <= set(rows.fieldnames or ()):
            raise ConfigError(
                f"{file} lacks the column {' or '.join([*heads, 'prediction'])}",
                "name a file that `securevfl predict` wrote",
                code="SVFL-TABLE-COLUMNS",
                path=str(file),
            )
        pairs = [([row[head] for head in heads], row["prediction"]) for row in rows]
    written = [values for values, _ in pairs]
    composed = compose_ids(list(zip(*written, strict=True))) if key.by_rule and pairs else [v[0] for v in written]
    classes = dict(zip(composed, (name for _, name in pairs), strict=True))
    ids = [] if party.ids is None else list(map(str, party.ids.tolist()))
    if lacking := sum(row_id not in classes for row_id in ids):
        raise IdError(
            f"{file} lacks predictions of {lacking:,} of {len(ids):,} rows",
            "predict all rows",
            code="SVFL-ID-UNKNOWN",
            path=str(file),
        )
    return [classes[row_id] for row_id in ids]


def _texts(party: Party, column: str) -> list[str]:
    """Return the values of a column as text, or raise TableError if there is no such column."""
    if column not in party.columns:
        raise TableError(
            f"party {party.name} has no column {column}",
            "correct --group",
            code="SVFL-TABLE-COLUMNS",
            party=party.name,
            column=column,
        )
    levels, values = party.categories.get(column), party.X[:, party.columns.index(column)].tolist()
    text = "{:g}".format if levels is None else lambda value: levels[int(value)]
    return ["missing" if value != value else text(value) for value in values]
