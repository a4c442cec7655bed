"""The command `fairness`: whether a model treats groups alike, of rows whose labels have become known."""

from __future__ import annotations

import csv
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from securevfl.base.files import check_writable, write_whole
from securevfl.cli.option_groups import MeetingOptions, expanded
from securevfl.cli.party_options import Data, Digest, IdColumn, Json, LabelColumn, Ledger, Name, PeersFile
from securevfl.cli.stop import stoppable
from securevfl.errors import ConfigError, IdError, TableError

if TYPE_CHECKING:
    from securevfl.data.party import Party

HEADS = ["group", "rows", "rate", "selected", "true positive", "false positive"]


def register(app: typer.Typer) -> None:
    """Add the command to the app."""
    app.command()(expanded(fairness))


def fairness(
    party: Name,
    data: Data,
    predictions: Annotated[
        Path | None, typer.Option(metavar="FILE", help="With labels: what securevfl predict or score wrote, all rows.")
    ] = None,
    group: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="Your column of groups; with labels too, nothing is sent.")
    ] = None,
    positive: Annotated[
        str | None,
        typer.Option(metavar="CLASS", help="With labels: the positive class, if the model's job names one."),
    ] = None,
    peers: PeersFile = Path("peers.toml"),
    id_column: IdColumn = "id",
    label_column: LabelColumn = "y",
    accept: Digest = None,
    report_json: Json = None,
    ledger: Ledger = None,
    meeting: MeetingOptions = MeetingOptions(),
) -> None:
    """Say how a model treats groups: rates of labels, of selected rows, of true and false positives, group by group.

    Who has labels gives --predictions, who has groups --group; who has both learns it alone. Where another party has
    the groups both run this at the same time, on rows that securevfl align has put in one order: the one with labels is
    told counts of rows, rounded at random to 8, the other one nothing. Groups under 100 rows are put together. The
    other one's ledger lets all looks tell 3% of what its groups hold: a first takes some 1,000 to 3,000 rows.
    """
    from securevfl.cli.ask_consent import agree, check_digest
    from securevfl.consent.agreed_sheets import AgreedSheets
    from securevfl.data.load import read_in_order
    from securevfl.disclosure.ledger import DisclosureLedger
    from securevfl.organisations.fairness_by_group import alone_by_group, ask_groups, give_groups

    check_digest(accept)
    check_writable(report_json)
    if predictions is None and group is None:
        raise ConfigError("--predictions or --group was expected, neither came; give what you have of the two")
    own = read_in_order(party, data, id_column=id_column, label_column=label_column)
    said = None if predictions is None else _said(own, predictions)
    groups = None if group is None else _texts(own, group)
    if said is not None and groups is not None:
        _show(alone_by_group(own, said, groups, positive=positive), report_json)
        return
    with stoppable(), meeting.events():
        if said is not None:
            found = ask_groups(own, said, peers, positive=positive, **meeting.keys)
        else:
            kept = DisclosureLedger.of(party, ledger)
            consent = partial(agree, AgreedSheets(kept), accept, "securevfl fairness")
            names = give_groups(own, groups, peers, ledger=kept, consent=consent, **meeting.keys)  # type: ignore[arg-type]
            typer.echo(f"counts of {', '.join(names)} were told, rounded to 8 rows")
            return
    _show(found, report_json)


def _said(own: Party, file: Path) -> list[str]:
    """Return the predicted class of each row of the party, by its ids. ConfigError or IdError for what is missing."""
    with file.open(newline="", encoding="utf-8") as lines:
        rows = csv.DictReader(lines)
        if not {"id", "prediction"} <= set(rows.fieldnames or ()):
            raise ConfigError(f"{file}: columns id and prediction were expected, as securevfl predict writes them")
        found = {row["id"]: _class(row["prediction"]) for row in rows}
    ids = [str(each) for each in (own.ids.tolist() if own.ids is not None else ())]
    lacking = sum(each not in found for each in ids)
    if lacking:
        raise IdError(f"{file}: a prediction of each of {len(ids):,} rows was expected, {lacking:,} lack one; add them")
    return [found[each] for each in ids]


def _class(text: str) -> str:
    """Return what a class is called whose label was written so: a whole number without its point."""
    from securevfl.models.positive import class_name

    try:
        return class_name(float(text))
    except ValueError:
        return text


def _texts(own: Party, column: str) -> list[str]:
    """Return the values of a column as texts. TableError if there is none of this name."""
    if column not in own.columns:
        raise TableError(f"party {own.name}: a column {column} was expected, there is none; correct --group")
    levels, values = own.levels.get(column), own.X[:, own.columns.index(column)].tolist()
    if levels is None:
        return ["missing" if each != each else f"{each:g}" for each in values]
    return ["missing" if each != each else levels[int(each)] for each in values]


def _show(found: dict[str, dict[str, float]], file: Path | None) -> None:
    import json

    from securevfl.cli.show import console, table

    if file is not None:
        write_whole(file, json.dumps(found, indent=1).encode())
    keys = [head.replace(" ", "_") for head in HEADS[1:]]
    console().print(table(HEADS, [[name, *(round(own[key], 3) for key in keys)] for name, own in found.items()]))
