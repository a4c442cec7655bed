"""Commands that prepare a run between organisations: certs, kit."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from securevfl.errors import PartiesError

certs_app = typer.Typer(no_args_is_help=True, help="Make and show the certificates by which parties know each other.")

Folder = Annotated[Path, typer.Argument(metavar="FOLDER", help="Where the authority keeps its files.")]
Days = Annotated[int, typer.Option(min=1, help="How long it is valid.")]
Replace = Annotated[bool, typer.Option("--replace", help="Take the place of the old; it stays beside the new.")]


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
    from securevfl.transport.peers import Peers

    if len(party) < 2:
        raise PartiesError(f"--party: two or more parties were expected, {len(party)} came; repeat --party")
    relay = None if hub is None else hub.partition("=")[0]
    called = (item.partition("=") for item in (*party, *filter(None, [hub])))
    address = {name: where for name, _, where in called if where}
    active, *passives = (item.partition("=")[0] for item in party)
    peers = Peers(active=active, passives=tuple(passives), hub=relay, address=address)
    work = Job.from_dict({"model": "logistic"}) if job is None else Job.load(job)
    if accept:
        work = Job.from_dict(work.to_dict() | {"accepts": [*work.accepts, *accept]})
    authority = folder / "authority"
    init_certs(authority, peers)
    for name in peers.everyone:
        path = write_kit(folder / name, name, work, peers, authority)
        own = "" if (path / f"{name}.key").exists() else f": put {name}.key, which {name} has, beside {name}.pem"
        typer.echo(f"{path}{own}")
    typer.echo("send each party its own folder and no other, by a way that nobody reads: its key is in it")
    typer.echo(f"{authority} stays with you; whoever has its ca.key can be any party")
    if keys := [str(key) for name in peers.everyone if (key := authority / f"{name}.key").exists()]:
        typer.echo(f"delete once they have arrived: {', '.join(keys)}, and the folders sent")
