"""The commands `certs` and `kit`, which prepare a run between organisations."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from securevfl.errors import PartiesError

certs_app = typer.Typer(no_args_is_help=True, help="Create and show the certificates that identify the parties.")

Folder = Annotated[Path, typer.Argument(metavar="FOLDER", help="Folder of the authority.")]
Days = Annotated[int, typer.Option(min=1, help="Validity of the certificate in days.")]
Replace = Annotated[
    bool, typer.Option("--replace", help="Replace existing files; the old ones stay in the folder under another name.")
]


@certs_app.command("init")
def certs_init(folder: Folder, days: Days = 3650, replace: Replace = False) -> None:
    """Create an authority: every party gets ca.pem, and ca.key stays in FOLDER."""
    from securevfl.transport import certs

    typer.echo(str(certs.init(folder, days=days, replace=replace)))


@certs_app.command("issue")
def certs_issue(
    folder: Folder,
    party: Annotated[str, typer.Argument(metavar="PARTY", help="Name of the party.")],
    host: Annotated[
        list[str] | None,
        typer.Option("--host", metavar="HOST", help="Host of the party's server, without port. Repeatable."),
    ] = None,
    days: Days = 365,
    replace: Replace = False,
) -> None:
    """Generate a key and a certificate for PARTY, signed by the authority in FOLDER."""
    from securevfl.transport import certs

    typer.echo(str(certs.issue(folder, party, host or (), days=days, replace=replace)))


@certs_app.command("show")
def certs_show(file: Annotated[list[Path], typer.Argument(metavar="FILE...", help="Certificates (.pem).")]) -> None:
    """Show the names, the fingerprints and the validity of certificates."""
    from securevfl.transport import certs

    typer.echo("\n\n".join("\n".join(certs.show(path).lines()) for path in file))


def kit(
    folder: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="Folder for the kits, with one folder for each party.")
    ],
    party: Annotated[
        list[str],
        typer.Option(
            metavar="NAME[=HOST:PORT]",
            help="A party and its address; the first has the labels. Repeat for each party.",
        ),
    ],
    job: Annotated[
        Path | None,
        typer.Option(metavar="JOB.TOML", help="The job file; by default a logistic regression on secret shares."),
    ] = None,
    hub: Annotated[
        str | None,
        typer.Option(
            metavar="NAME[=HOST:PORT]", help="A hub that forwards packets, if parties cannot connect directly."
        ),
    ] = None,
    accept: Annotated[
        list[str] | None,
        typer.Option(
            metavar="LEAK", help="A leak that the job accepts, by the name that `securevfl explain` prints. Repeatable."
        ),
    ] = None,
) -> None:
    """Write one folder for each party with job.toml, peers.toml, its certificate and its key.

    A party that generated its own key, and whose certificate is in FOLDER/authority already, gets no key.

    Example: securevfl kit kits --party bank=bank.example.org:7300 --party shop=shop.example.org:7300
    """
    from securevfl.job import Job
    from securevfl.organisations.kit import init_certs, write_kit
    from securevfl.transport.peers import Peers

    if len(party) < 2:
        raise PartiesError(
            f"a kit needs two or more parties, and --party names {len(party)}",
            "repeat --party",
            code="SVFL-PARTIES-COUNT",
        )
    relay = None if hub is None else hub.partition("=")[0]
    named = (item.partition("=") for item in (*party, *filter(None, [hub])))
    address = {name: host_port for name, _, host_port in named if host_port}
    active, *passives = (item.partition("=")[0] for item in party)
    peers = Peers(active=active, passives=tuple(passives), hub=relay, address=address)
    shared_job = Job.from_dict({"model": "logistic"}) if job is None else Job.load(job)
    if accept:
        shared_job = Job.from_dict(shared_job.to_dict() | {"accepts": [*shared_job.accepts, *accept]})
    authority = folder / "authority"
    init_certs(authority, peers)
    for name in peers.everyone:
        path = write_kit(folder / name, name, shared_job, peers, authority)
        hint = "" if (path / f"{name}.key").exists() else f": {name} copies its {name}.key into this folder"
        typer.echo(f"{path}{hint}")
    typer.echo("Send each party only its own folder, over a secure channel, because the folder contains its key.")
    typer.echo(f"Keep {authority}. Anyone with its ca.key can impersonate any party.")
    if keys := [str(key) for name in peers.everyone if (key := authority / f"{name}.key").exists()]:
        typer.echo(f"Once the parties have received their folders, delete your copies of these and {', '.join(keys)}.")
    typer.echo("Next, at every party, with its table and in the folder that it received:")
    typer.echo("    securevfl align --party NAME --data FILE --peers peers.toml")
