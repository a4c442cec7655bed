"""The command `correlate`: columns of all parties side by side, before a training."""

from __future__ import annotations

import csv
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from securevfl.base.files import check_writable, write_whole
from securevfl.cli import party_options as options
from securevfl.errors import ConfigError, IdError, TableError

if TYPE_CHECKING:
    from securevfl.data.party import Party


def correlate(
    table: options.TableOptions,
    peers: options.PeersFile = Path("peers.toml"),
    consent: options.ConsentOptions = options.ConsentOptions(),
    report: options.ReportOptions = options.ReportOptions(),
    meeting: options.MeetingOptions = options.MeetingOptions(),
) -> None:
    """Compare your columns of numbers with those of the others before a training: correlations and variance inflation.

    Every party runs this, on rows that securevfl align has put in one order. Both of each two learn every correlation
    of their columns, rounded at random to 6 bits; your disclosure ledger counts them, and refuses beyond its limits.
    Your consent sheet is shown first, once all parties are there. Columns of others go by numbers, not by names.
    """
    from securevfl.cli.show import console
    from securevfl.cli.show import table as table_of
    from securevfl.data.correlations import page_of
    from securevfl.organisations.correlate import correlate_with

    ledger, agree = consent.asking(table.party, "securevfl correlate")
    report.check()
    own = table.in_order()
    with options.stoppable(), meeting.events(table.party, peers):
        found = correlate_with(own, peers, ledger=ledger, consent=agree, **meeting.keys)
    report.write(lambda: f"[{', '.join(map(str, found))}]\n", lambda: page_of(found))
    out = console()
    for each in found:
        out.print(table_of(each.heads, each.cells()))


# The command `fairness`: whether a model treats groups alike, of rows whose labels have become known.


HEADS = ["group", "rows", "rate", "selected", "true positive", "false positive"]


def fairness(
    table: options.TableOptions,
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
    consent: options.ConsentOptions = options.ConsentOptions(),
    report_json: options.Json = None,
    meeting: options.MeetingOptions = options.MeetingOptions(),
) -> None:
    """Say how a model treats groups: rates of labels, of selected rows, of true and false positives, group by group.

    Who has labels gives --predictions, who has groups --group; who has both learns it alone. Where another party has
    the groups both run this at the same time, on rows that securevfl align has put in one order: the one with labels is
    told counts of rows, rounded at random to 8, the other one nothing. Groups under 100 rows are put together. The
    other one's ledger lets all looks tell 3% of what its groups hold: a first takes some 1,000 to 3,000 rows.
    """
    import json

    from securevfl.cli.show import check_digest, console
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
        with options.stoppable(), meeting.events(table.party, peers):
            if groups is not None:
                ledger, agree = consent.asking(table.party, "securevfl fairness")
                names = provide_groups(own, groups, peers, ledger=ledger, consent=agree, **meeting.keys)
                typer.echo(f"counts of {', '.join(names)} were told, rounded to 8 rows")
                return
            found = request_group_rates(own, said or [], peers, positive=positive, **meeting.keys)
    if report_json is not None:
        write_whole(report_json, json.dumps(found, indent=1).encode())
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


# The command `describe`: a look at one party's own table before a training. It meets nobody.


def describe(
    data: Annotated[Path, typer.Argument(metavar="FILE", help="Your table: .csv, .csv.gz, .parquet or .npz.")],
    party: Annotated[
        str | None, typer.Option(metavar="NAME", help="What the page calls you; by default as the file.")
    ] = None,
    id_column: options.IdColumn = "id",
    label_column: options.LabelColumn = "y",
    report: options.ReportOptions = options.ReportOptions(),
) -> None:
    """Describe each column of your own table before a training. Nothing is sent.

    How it was read, missing values, quartiles, far tails, columns that do not vary or repeat others, variance inflation
    among your columns, and with labels of two classes what each column says of them by itself.
    """
    from securevfl.cli.show import console, parted
    from securevfl.data.readers import read_party
    from securevfl.training.description import describe as described

    report.check()
    name = party or re.sub(r"[^\w-]", "-", data.name.partition(".")[0]) or "table"
    found = described(read_party(name, data, id_column=id_column, label_column=label_column))
    report.write(lambda: str(found), found.page)
    out = console()
    out.print(found.head, soft_wrap=True)
    for part in parted(found.heads, found.cells(), out.width):
        out.print(part)


# The command `line`: what lies between the parties, measured with them all.


def line(
    party: options.Name,
    peers: options.PeersFile = Path("peers.toml"),
    meeting: options.MeetingOptions = options.MeetingOptions(),
) -> None:
    """Measure round trip, bandwidth and cost a message between all parties, and print what to simulate with.

    Every party runs this at the same time, for some seconds a pair of parties. Nobody needs a table.
    """
    from securevfl.cli.show import console, table
    from securevfl.display.progress import progress
    from securevfl.organisations.line_measurement import measure_lines, slowest

    with options.stoppable(), meeting.events(party, peers), progress("measuring") as on_turn:
        lines = measure_lines(party, meeting.venue(peers), on_turn=on_turn)

    worst, out = slowest(lines), console()
    rows = [(f"{x.one} - {x.other}", x.network.mbps, x.network.rtt_ms, x.network.message_ms) for x in lines]
    out.print(table(["line", "bandwidth\nMbps", "round trip\nms", "a message\nms"], rows))
    measured = (worst.mbps, worst.rtt_ms, worst.message_ms)
    figures = [f"{figure:.0f}" if figure >= 100 else f"{figure:.3g}" for figure in measured]
    out.print("\nTo simulate with, in Python and with securevfl train:", soft_wrap=True)
    out.print("    vfl.Network(mbps={}, rtt_ms={}, message_ms={})".format(*figures), soft_wrap=True)
    out.print("    --mbps {} --rtt-ms {} --message-ms {}".format(*figures), soft_wrap=True)
