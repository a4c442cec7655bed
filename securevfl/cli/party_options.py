"""What the commands of one party have in common: its options, its events on the screen and its pool of processes."""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, fields, is_dataclass
from inspect import Parameter, signature
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any, TypedDict, get_type_hints

import typer

from securevfl.errors import ConfigError

if TYPE_CHECKING:
    from securevfl.organisations.conversation import Venue

Name = Annotated[str, typer.Option("--party", metavar="NAME", help="Who you are.")]
Data = Annotated[Path, typer.Option("--data", metavar="FILE", help="Your table: .csv, .csv.gz, .parquet or .npz.")]
IdColumn = Annotated[
    str, typer.Option("--id", metavar="COLUMN", help="Column of ids; several, parted by commas, are one key.")
]
LabelColumn = Annotated[str, typer.Option("--label", metavar="COLUMN", help="Column of labels, if you have them.")]
PeersFile = Annotated[Path, typer.Option("--peers", metavar="FILE", help="Who takes part and where: peers.toml.")]
SharedJob = Annotated[Path, typer.Argument(metavar="JOB.TOML", help="The job, the same at every party.")]
PeersByJob = Annotated[
    Path | None,
    typer.Option("--peers", metavar="FILE", help="Who takes part and where; by default peers.toml by the job."),
]
Certs = Annotated[
    Path | None, typer.Option(metavar="DIR", help="Folder of your certificate; by default that of the file of peers.")
]
Listen = Annotated[
    str | None, typer.Option(metavar="HOST:PORT", help="What to bind, if not the port of your own address.")
]
Timeout = Annotated[float, typer.Option(min=1, help="Seconds to wait for the others.")]
Patience = Annotated[float, typer.Option(min=0.5, help="Seconds a party may be cut off.")]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Say on stderr what happens.")]
Ledger = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Your disclosure ledger; by default NAME.ledger among your user's data."),
]
Ahead = Annotated[
    Path | None, typer.Option(metavar="DIR", help="Folder of work done ahead; by default FILE.ahead by the data.")
]
SavedPart = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Your part of the model; by default NAME.model.json by the data.")
]
States = Annotated[
    Path | None, typer.Option(metavar="DIR", help="Where to keep your own states; by default FILE.states.")
]
Model = Annotated[Path, typer.Argument(metavar="MODEL.JSON", help="Your part of the model, as join has saved it.")]
Digest = Annotated[str | None, typer.Option(metavar="DIGEST", help="You agree to the consent sheet of this digest.")]
Json = Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write the figures here.")]
Html = Annotated[Path | None, typer.Option("--html", metavar="FILE", help="Write a page for a browser here.")]
LeftOut = Annotated[
    Path | None,
    typer.Option(
        "--left-out", metavar="FILE", help="Where id and state of each row without a score go, at the party that asks."
    ),
]
Log = Annotated[Path | None, typer.Option(metavar="FILE", help="Append one line of JSON for each event.")]


def pool_of(rows: int) -> AbstractContextManager[Executor | None]:
    """Return a pool of one process a core where so many ids give enough to do."""
    cores = os.cpu_count() or 1
    if rows < 20_000 or cores < 2:
        return nullcontext()
    from securevfl.runtime.executor import process_pool

    return process_pool(cores)


@contextmanager
def events(verbose: bool, log: Path | None) -> Iterator[None]:
    from securevfl.runtime import eventlog

    handlers = [eventlog.write_to(log)] if log is not None else []
    handlers.append(eventlog.write_to(sys.stderr, logging.INFO if verbose else logging.ERROR))
    handlers[-1].setFormatter(_ForPeople())
    try:
        yield
    finally:
        for handler in handlers:
            eventlog.LOGGER.removeHandler(handler)
            handler.close()


class _ForPeople(logging.Formatter):
    """An event as a line to read."""

    def format(self, record: logging.LogRecord) -> str:
        facts = json.loads(record.getMessage())
        at, event, party = (facts.pop(key) for key in ("time", "event", "party"))
        return f"{at[11:19]} {party}: {event}" + "".join(f", {key} {fact}" for key, fact in facts.items())


# Groups of options that several commands take: a command names the group, and its fields become options.
#
#     def line(party: Name, peers: PeersFile = Path("peers.toml"), meeting: MeetingOptions = MeetingOptions()) -> None:
#
# has --certs, --listen and so on, with the defaults of the group that stands in its signature.


class VenueKeys(TypedDict):
    """The options of a meeting that functions of the library take by the same names."""

    certs: Path | None
    listen: str | None
    timeout: float
    patience: float


@dataclass(frozen=True)
class PlaceOptions:
    """Options by which a party finds the others and waits for them."""

    certs: Certs = None
    listen: Listen = None
    timeout: Timeout = 600.0
    patience: Patience = 60.0

    @property
    def keys(self) -> VenueKeys:
        """The options as arguments of a function of the library, without the file of peers."""
        return {"certs": self.certs, "listen": self.listen, "timeout": self.timeout, "patience": self.patience}

    def venue(self, peers: Path) -> Venue:
        """Make the venue of this file of peers."""
        from securevfl.organisations.conversation import Venue

        return Venue.of(peers, **self.keys)


@dataclass(frozen=True)
class MeetingOptions(PlaceOptions):
    """Options by which a party finds the others, and by which it says what happens."""

    verbose: Verbose = False
    log: Log = None

    @contextmanager
    def events(self, me: str = "", peers: Path | None = None) -> Iterator[None]:
        """Show events on stderr, and append them to the log if there is one; with `peers`, say whom `me` waits for."""
        from securevfl.cli.live import live
        from securevfl.transport.peers import Peers

        others = [] if peers is None else [name for name in Peers.load(peers).parties if name != me]
        waiting = live(others, "", verbose=self.verbose) if others else nullcontext()
        with waiting, events(self.verbose, self.log):
            yield


def expanded(command: Callable[..., None]) -> Callable[..., None]:
    """Return the command with an option for each field of its groups, as typer reads them from its signature."""
    own = signature(command, eval_str=True)
    groups = {name: each for name, each in own.parameters.items() if is_dataclass(each.annotation)}
    shown: list[Parameter] = []
    for name, each in own.parameters.items():
        if name not in groups:
            shown.append(each.replace(kind=Parameter.KEYWORD_ONLY))
            continue
        hints = get_type_hints(each.annotation, include_extras=True)
        for field in fields(each.annotation):
            default = getattr(each.default, field.name)
            shown.append(Parameter(field.name, Parameter.KEYWORD_ONLY, default=default, annotation=hints[field.name]))

    def run(**options: Any) -> None:
        for name, each in groups.items():
            kind = each.annotation
            options[name] = kind(**{field.name: options.pop(field.name) for field in fields(kind)})
        command(**options)

    run.__name__, run.__doc__ = command.__name__, command.__doc__
    run.__annotations__ = {each.name: each.annotation for each in shown}
    run.__signature__ = own.replace(parameters=shown)  # type: ignore[attr-defined]
    return run


# What a command does when its operator stops it: by Ctrl-C, or by SIGTERM as a service manager does.


@contextmanager
def stoppable(keeps: Callable[[], str] | None = None) -> Iterator[None]:
    """End the command with exit code 128 + the signal, once the other parties have been told.

    keeps: says what is on disk to go on from. Within the block both signals raise KeyboardInterrupt.
    """
    got = signal.SIGINT

    def stop(number: int, frame: FrameType | None) -> None:
        nonlocal got
        got = signal.Signals(number)
        raise KeyboardInterrupt

    main = threading.current_thread() is threading.main_thread()
    before = signal.signal(signal.SIGTERM, stop) if main else None
    try:
        yield
    except KeyboardInterrupt:
        kept = "" if keeps is None else f"; {keeps()}"
        on = "start again" if keeps is None else "go on"
        typer.echo(f"stopped by {got.name}{kept}. Run the same command again, at every party, to {on}.", err=True)
        raise typer.Exit(128 + got) from None
    finally:
        if main:
            signal.signal(signal.SIGTERM, before)


# One party's own table, and of the others no more than their sizes: for its sheet and for an audit of its own.

if TYPE_CHECKING:
    from securevfl.data.party import Party
    from securevfl.job import Job


def one_side(
    job: Job,
    job_file: Path,
    data: Sequence[str] | None,
    size: Sequence[str] | None,
    *,
    id_column: Mapping[str, str],
    label_column: str,
) -> tuple[Party, dict[str, int]]:
    """Return this party, its rows as an alignment has left them, and the columns of the others, the leading one first.

    Who takes part is in peers.toml beside the job, where there is one. ConfigError for what is missing.
    """
    from securevfl.data.load import read_aligned
    from securevfl.transport.peers import Peers

    if data is None or len(data) != 1:
        raise ConfigError(f"--data: one table was expected beside --size, {len(data or [])} came; give your own")
    name, equals, path = data[0].partition("=")
    if not (name and equals and path):
        raise ConfigError(f"--data {data[0]}: NAME=FILE was expected, as in --data bank=bank.csv; correct it")
    sizes = dict(_size(item) for item in size or ())
    beside = job_file.parent / "peers.toml"
    names = Peers.load(beside).parties if beside.exists() else (*sizes, name)
    missing = [other for other in names if other not in sizes and other != name]
    own = read_aligned(name, Path(path), job, id_column=id_column[name], label_column=label_column)
    if missing or len(names) < 2:
        shown = " ".join(f"--size {other}=COLUMNS" for other in missing) or "--size NAME=COLUMNS"
        raise ConfigError(
            f"--data: the tables of all parties were expected, or the sizes of those that are not here; add {shown}\n"
            f"{sizes_line(job, own)}"
        )
    return own, {other: sizes[other] for other in names if other != name}


def sizes_line(job: Job, own: Party) -> str:
    """Say which columns --size counts, what the others give for this party, and where its own numbers come from."""
    from securevfl.families.sizes import prepare

    made, brought = len(prepare(job, own, own.register).columns), len(own.columns)
    differs = "" if made == brought else f", of {brought} in your file"
    return (
        f"sizes are of columns as the job prepares them, so a gap or a text in a file may add some: the others give "
        f"--size {own.name}={made} for you{differs}; ask each for the --size that this command prints for it"
    )


def _size(item: str) -> tuple[str, int]:
    name, equals, columns = item.partition("=")
    if not (name and equals and columns.isascii() and columns.isdigit() and int(columns)):
        raise ConfigError(f"--size {item}: NAME=COLUMNS was expected, as in --size bank=12; correct it")
    return name, int(columns)
