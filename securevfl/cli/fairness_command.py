"""The command `fairness`: whether a model treats groups alike, on rows whose labels are known."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from securevfl.base.files import check_writable, write_atomic
from securevfl.cli import option_groups, signals
from securevfl.cli import party_options as options
from securevfl.errors import ConfigError, IdError, TableError

if TYPE_CHECKING:
    from securevfl.data.party import Party


HEADS = ["group", "rows", "rate", "selected", "true positive", "false positive"]


def fairness(
    table: option_groups.TableOptions,
    predictions: Annotated[
        Path | None, typer.Option(metavar="FILE", help="With labels: what securevfl predict or score wrote, all rows.")
    ] = None,
    group: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="Your column of groups; with labels too, nothing is sent.")
    ] = None,
    positive: Annotated[
        str | None, typer.Option(metavar="CLASS", help="With labels: the positive class, if the model's job names one.")
    ] = None,
    peers: options.PeersFile = Path("peers.toml"),
    consent: option_groups.ConsentOptions = option_groups.ConsentOptions(),
    report_json: options.Json = None,
    meeting: option_groups.SessionOptions = option_groups.SessionOptions(),
) -> None:
    """Say how a model treats groups: rates of labels, of selected rows, of true and false positives, group by group.

    Who has labels gives --predictions, who has groups --group; who has both learns it alone. Where another party has
    the groups both run this at the same time, on rows that securevfl align has put in one order: the one with labels is
    told counts of rows, rounded at random to 8, the other one nothing. Groups under 100 rows are put together. The
    other one's ledger lets all looks tell 3% of what its groups hold: a first takes some 1,000 to 3,000 rows.
    """
    import json

    from securevfl.cli.consent_prompt import check_digest
    from securevfl.cli.show import console
    from securevfl.cli.show import table as table_of
    from securevfl.organisations.fairness_by_group import local_group_rates, provide_groups, request_group_rates

    check_digest(consent.accept)
    check_writable(report_json)
    if predictions is None and group is None:
        raise ConfigError("--predictions or --group was expected, neither came; give what you have of the two")
    own = table.in_order()
    said = None if predictions is None else _read_predictions(own, predictions)
    groups = None if group is None else _texts(own, group)
    if said is not None and groups is not None:
        found = local_group_rates(own, said, groups, positive=positive)
    else:
        with signals.exit_on_signal(), meeting.events(table.party, peers):
            if groups is not None:
                ledger, agree = consent.asking(table.party, "securevfl fairness")
                names = provide_groups(own, groups, peers, ledger=ledger, consent=agree, **meeting.keys)
                typer.echo(f"counts of {', '.join(names)} were told, rounded to 8 rows")
                return
            found = request_group_rates(own, said or [], peers, positive=positive, **meeting.keys)
    if report_json is not None:
        write_atomic(report_json, json.dumps(found, indent=1).encode())
    keys = [head.replace(" ", "_") for head in HEADS[1:]]
    console().print(table_of(HEADS, [[name, *(round(own[key], 3) for key in keys)] for name, own in found.items()]))


def _read_predictions(own: Party, file: Path) -> list[str]:
    """Return the predicted class of each row of the party, by its ids. ConfigError or IdError for what is missing."""
    with file.open(newline="", encoding="utf-8") as lines:
        rows = csv.DictReader(lines)
        if not {"id", "prediction"} <= set(rows.fieldnames or ()):
            raise ConfigError(f"{file}: columns id and prediction were expected, as securevfl predict writes them")
        classes = {row["id"]: _class(row["prediction"]) for row in rows}
    ids = [] if own.ids is None else list(map(str, own.ids.tolist()))
    if lacking := sum(each not in classes for each in ids):
        raise IdError(f"{file}: a prediction of each of {len(ids):,} rows was expected, {lacking:,} lack one; add them")
    return [classes[each] for each in ids]


def _class(text: str) -> str:
    """Return what a class is called whose label was written so: a whole number without its point."""
    from securevfl.models.class_labels import class_name

    try:
        return class_name(float(text))
    except ValueError:
        return text


def _texts(own: Party, column: str) -> list[str]:
    """Return the values of a column as texts. TableError if there is none of this name."""
    if column not in own.columns:
        raise TableError(f"party {own.name}: a column {column} was expected, there is none; correct --group")
    levels, values = own.levels.get(column), own.X[:, own.columns.index(column)].tolist()
    text = "{:g}".format if levels is None else lambda value: levels[int(value)]
    return ["missing" if value != value else text(value) for value in values]
