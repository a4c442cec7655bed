"""Commands that prepare a run between organisations: certs, kit."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from securevfl.errors import PartiesError

if TYPE_CHECKING:
    from securevfl.job import Job
    from securevfl.transport.peers import Peers

certs_app = typer.Typer(no_args_is_help=True, help="Make and show the certificates by which parties know each other.")

Folder = Annotated[Path, typer.Argument(metavar="FOLDER", help="Where the authority keeps its files.")]
Days = Annotated[int, typer.Option(min=1, help="How long it is valid.")]
Replace = Annotated[bool, typer.Option("--replace", help="Take the place of the old; it stays beside the new.")]


def register(app: typer.Typer) -> None:
    """Add these commands to the app."""
    app.add_typer(certs_app, name="certs")
    app.command()(kit)


@certs_app.command("init")
def certs_init(folder: Folder, days: Days = 3650, replace: Replace = False) -> None:
    """Make an authority: ca.pem goes to every party, ca.key stays in FOLDER."""
    from securevfl.transport import certs

    typer.echo(str(certs.init(folder, days=days, replace=replace)))


@certs_app.command("issue")
def certs_issue(
    folder: Folder,
    party: Annotated[str, typer.Argument(metavar="PARTY", help="Its name in the job.")],
    host: Annotated[
        list[str] | None, typer.Option("--host", metavar="HOST", help="Where it serves, without port. Repeat for more.")
    ] = None,
    days: Days = 365,
    replace: Replace = False,
) -> None:
    """Make a key and a certificate for PARTY, signed by the authority in FOLDER."""
    from securevfl.transport import certs

    typer.echo(str(certs.issue(folder, party, host or (), days=days, replace=replace)))


@certs_app.command("show")
def certs_show(file: Annotated[list[Path], typer.Argument(metavar="FILE...", help="Certificates (.pem).")]) -> None:
    """Say whose certificates these are and how long they are valid."""
    from securevfl.transport import certs

    typer.echo("\n\n".join("\n".join(certs.show(path).lines()) for path in file))


def kit(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Where to put a folder for each party.")],
    party: Annotated[
        list[str],
        typer.Option(
            metavar="NAME[=HOST:PORT]", help="A party and where it is called; the first holds the labels. Repeat."
        ),
    ],
    job: Annotated[
        Path | None, typer.Option(metavar="JOB.TOML", help="The job; by default a logistic regression on shares.")
    ] = None,
    hub: Annotated[
        str | None, typer.Option(metavar="NAME[=HOST:PORT]", help="Who relays, if parties cannot call each other.")
    ] = None,
    accept: Annotated[
        list[str] | None,
        typer.Option(metavar="LEAK", help="A leak that the job is to accept, as securevfl explain names it. Repeat."),
    ] = None,
) -> None:
    """Write all that each party needs to join: job.toml, peers.toml, its certificate and key, one folder a party.

    A party whose certificate, for a key of its own, is in FOLDER/authority already gets no key.

    Example: securevfl kit kits --party bank=bank.example.org:7300 --party shop=shop.example.org:7300
    """
    from securevfl.job import Job
    from securevfl.organisations.kit import init_certs, write_kit

    peers = _peers(party, hub)
    work = _default_job() if job is None else Job.load(job)
    if accept:
        work = Job.from_dict(work.to_dict() | {"accepts": [*work.accepts, *accept]})
    init_certs(folder / "authority", peers)
    for name in peers.everyone:
        path = write_kit(folder / name, name, work, peers, folder / "authority")
        own = "" if (path / f"{name}.key").exists() else f": put {name}.key, which {name} has, beside {name}.pem"
        typer.echo(f"{path}{own}")
    keys = [name for name in peers.everyone if (folder / "authority" / f"{name}.key").exists()]
    typer.echo("send each party its own folder and no other, by a way that nobody reads: its key is in it")
    typer.echo(f"{folder / 'authority'} stays with you; whoever has its ca.key can be any party")
    if keys:
        made = ", ".join(str(folder / "authority" / f"{name}.key") for name in keys)
        typer.echo(f"delete once they have arrived: {made}, and the folders sent")


def _peers(parties: list[str], hub: str | None) -> Peers:
    from securevfl.transport.peers import Peers

    names, address = [], {}
    for item in [*parties, *([hub] if hub is not None else [])]:
        name, _, where = item.partition("=")
        names.append(name)
        if where:
            address[name] = where
    if len(parties) < 2:
        raise PartiesError(f"--party: two or more parties were expected, {len(parties)} came; repeat --party")
    count = len(parties)
    return Peers(
        active=names[0], passives=tuple(names[1:count]), hub=names[count] if hub is not None else None, address=address
    )


def _default_job() -> Job:
    from securevfl.job import Job

    return Job.from_dict({"model": "logistic"})
