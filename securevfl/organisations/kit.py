"""A kit: one folder with all that a party needs to join a job.

    shop/  job.toml  peers.toml  ca.pem  shop.pem  shop.key

    securevfl join shop/job.toml --party shop --data shop.parquet

The key in it belongs to that party alone. Send the folder over a secure channel and delete the copy. A party that
generated its own key, and had its certificate signed with openssl, gets a kit without a key.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from securevfl.base.config import to_plain
from securevfl.base.files import write_atomic
from securevfl.consent.settle_job import check_settled
from securevfl.errors import ConfigError
from securevfl.job import Job
from securevfl.organisations.toml_writer import to_toml
from securevfl.transport import certificate_checks, certs, identity, pem_files
from securevfl.transport.peers import Peers, split_address


def init_certs(folder: str | Path, peers: Peers) -> Path:
    """Create a certificate authority, unless there is one, and a key and certificate for every party that has none.

    Args:
        folder: the folder of the authority.
        peers: the parties and their addresses.

    Returns:
        The path of the authority's certificate.

    Raises:
        ConfigError: a name or host cannot be certified.
    """
    folder = Path(folder)
    if not (folder / "ca.pem").exists():
        certs.init(folder)
    for name in peers.everyone:
        if not (folder / f"{name}.pem").exists():
            address = peers.address.get(name)
            certs.issue(folder, name, [] if address is None else [split_address(name, address)[0]])
    return folder / "ca.pem"


def write_kit(folder: str | Path, party: str, job: Job, peers: Peers, ca: str | Path) -> Path:
    """Write the kit of a party. Existing files are overwritten.

    Args:
        folder: the folder for the kit.
        party: name of the party.
        job: the options of the training, on which all parties agree (`securevfl.job.Job`).
        peers: the parties and their addresses.
        ca: the folder that `init_certs` filled.

    Returns:
        The folder.

    Raises:
        ConfigError: the party is unknown, has no certificate, or has one that peers would refuse; or the job has no
            epochs.
    """
    if party not in peers.everyone:
        raise ConfigError(
            f"{party} is not in the file of peers, which names {', '.join(peers.everyone)}",
            "correct the party's name",
            code="SVFL-PARTIES-NAME",
            party=party,
        )
    folder, ca = Path(folder), Path(ca)
    certificate, key = ca / f"{party}.pem", ca / f"{party}.key"
    if key.exists():
        identity.Identity(certificate, key, ca / "ca.pem")
    else:
        authorities = pem_files.read_pem(ca / "ca.pem")
        certificate_checks.check_usable(certificate, pem_files.read_pem(certificate), authorities, party)
        if (folder / key.name).exists():
            identity.Identity(certificate, folder / key.name, ca / "ca.pem")
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    check_settled(job, party)
    if party in peers.parties:  # only parties need the job, not a hub that merely relays messages
        write_atomic(folder / "job.toml", to_toml(job.to_dict()).encode())
    write_atomic(folder / "peers.toml", to_toml(to_plain(peers)).encode())
    for name in ("ca.pem", f"{party}.pem"):
        shutil.copyfile(ca / name, folder / name)
    if key.exists():
        write_atomic(folder / key.name, key.read_bytes())
    return folder
