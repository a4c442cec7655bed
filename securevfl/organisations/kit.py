"""A kit: one folder to hand to a party, with all it needs to join a job.

    shop/  job.toml  peers.toml  ca.pem  shop.pem  shop.key

    securevfl join shop/job.toml --party shop --data shop.parquet

The key in it is that party's alone: the folder goes to it by a safe way and the copy is deleted. A party that made its
key itself, and had its certificate signed by openssl, gets a kit without one.
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
    """Make an authority in `folder`, unless it has one, and a key and certificate for everyone in `peers` who has none.

    Returns the authority's certificate. ConfigError if a name or host cannot be certified.
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
    """Write the kit of `party` into `folder` and return it. `ca`: the folder that `init_certs` filled.

    Files that are there already are written anew. ConfigError if the party has no certificate yet, or one that its
    peers would refuse, and for a job without epochs.
    """
    if party not in peers.everyone:
        raise ConfigError(f"one of {', '.join(peers.everyone)} was expected, {party} came; correct the party's name")
    folder, ca = Path(folder), Path(ca)
    certificate, key = ca / f"{party}.pem", ca / f"{party}.key"
    if key.exists():
        identity.Identity(certificate, key, ca / "ca.pem")
    else:
        certificate_checks.check_usable(
            certificate, pem_files.read_pem(certificate), pem_files.read_pem(ca / "ca.pem"), party
        )
        if (folder / key.name).exists():
            identity.Identity(certificate, folder / key.name, ca / "ca.pem")
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    check_settled(job, party)
    if party in peers.parties:  # a relay of its own need not know the job
        write_atomic(folder / "job.toml", to_toml(job.to_dict()).encode())
    write_atomic(folder / "peers.toml", to_toml(to_plain(peers)).encode())
    for name in ("ca.pem", f"{party}.pem"):
        shutil.copyfile(ca / name, folder / name)
    if key.exists():
        write_atomic(folder / key.name, key.read_bytes())
    return folder
