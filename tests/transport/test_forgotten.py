"""After the command `forget`, the folder of a run contains what the documentation states,
for every family of protocols.
"""

from pathlib import Path
from typing import Any

import pytest

import securevfl as vfl
from securevfl.disclosure.ledger import DisclosureLedger
from securevfl.errors import SecureVFLError
from securevfl.families import FAMILIES
from securevfl.organisations.forget import TrainingFiles, forget
from securevfl.organisations.join import join
from securevfl.organisations.peer_settings import PeerSettings
from securevfl.organisations.prepare import prepare
from securevfl.training.checkpoint import Checkpoints
from tests.transport.processes import at_each

LINE: dict[str, Any] = {"timeout": 20, "patience": 5}
COMMON: dict[str, Any] = {"accepts": ["columns", "rank", "small_metrics", "scores"], "test_fraction": 0.2}
JOBS: dict[str, tuple[str, dict[str, Any]]] = {
    "shares": ("shares", {"model": "logistic", "protocol": "shares", "epochs": 10}),
    "trees": (
        "shares",
        {"model": {"name": "trees", "trees": 4, "depth": 2}, "protocol": "shares", "epochs": 10},
    ),
    "rounds": ("rounds", {"model": "logistic", "protocol": "open", "optimizer": {"name": "fedsgd", "lr": 0.1}}),
    "transfer": (
        "transfer",
        {"model": "transfer", "protocol": "open", "optimizer": {"name": "fedbcd", "lr": 0.1}, "epochs": 2},
    ),
    "phases": (
        "phases",
        {
            "model": {"name": "kernel", "gamma": 0.1},
            "protocol": {"sum": "direct"},
            "optimizer": "fdskl",
            "batch_size": 64,
            "epochs": 1,
        },
    ),
    "fdml": (
        "fdml",
        {
            "model": "logistic",
            "protocol": "open",
            "optimizer": {"name": "fdml", "lr": 0.3, "tau": 3},
            "batch_size": 64,
            "epochs": 2,
        },
    ),
}
"""For each name the family and a job of it."""


class Cut(RuntimeError):
    """Raised to end a training in the middle."""


def test_there_is_a_job_of_every_family() -> None:
    assert {family for family, _ in JOBS.values()} == set(FAMILIES)


@pytest.mark.long
@pytest.mark.parametrize("name", JOBS)
def test_forget_leaves_nothing_but_the_table_and_the_ledger(
    meet: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "home"))
    family, keys = JOBS[name]
    job = vfl.Job.from_dict(COMMON | keys)
    assert job.family.name == family
    parties: list[vfl.Party] = list(vfl.datasets.breast_cancer(2))
    if job.family.example_helpers:
        third = vfl.datasets.breast_cancer(3)[2].name
        parties.append(vfl.Helper(third, job.family.example_helpers[0][1]))
    meeting = meet(len(parties), None, job)

    def files_of(party: vfl.Party, kit: Path) -> TrainingFiles:
        data = kit / "own.csv"
        data.write_text("the table")
        folders = Path(f"{data}.states"), Path(f"{data}.ahead")
        return TrainingFiles(party.name, data, kit / f"{party.name}.model.json", *folders)

    def ledger_of(party: vfl.Party) -> DisclosureLedger:
        return DisclosureLedger(tmp_path / "ledgers" / party.name, party.name)

    def train(party: vfl.Party, kit: Path, *, cut: bool) -> Any:
        files = files_of(party, kit)

        def on_round(done: int, of: int) -> None:
            if cut and done >= 1:
                raise Cut

        return join(
            job,
            party,
            kit / "peers.toml",
            checkpoints=Checkpoints(files.checkpoints, party.name, every=1),
            save=files.model,
            preprocessing=files.preprocessing,
            ledger=ledger_of(party),
            retrain=True,
            on_round=on_round,
            **LINE,
        )

    if name in ("shares", "trees"):
        settings = {party.name: PeerSettings.of(meeting.kit(party.name) / "peers.toml", **LINE) for party in parties}
        at_each(
            meeting,
            lambda party, kit: prepare(
                job, party, settings[party.name], preprocessing=files_of(party, kit).preprocessing
            ),
            parties,
        )
    before = {party.name: {*meeting.kit(party.name).rglob("*")} for party in parties}
    ended = at_each(meeting, lambda party, kit: train(party, kit, cut=False), parties)
    failures = {key: error for key, error in ended.items() if isinstance(error, Exception)}
    assert not failures
    cut = at_each(meeting, lambda party, kit: train(party, kit, cut=True), parties)
    assert all(isinstance(error, Cut | SecureVFLError) for error in cut.values()), cut
    written = {path for party in parties for path in meeting.kit(party.name).rglob("*")}
    assert written > set().union(*before.values())
    for party in parties:
        kit = meeting.kit(party.name)
        files = files_of(party, kit)
        forget(files, ledger_of(party), every=True)
        kit_files = {"ca.pem", "job.toml", "peers.toml", f"{party.name}.pem", f"{party.name}.key"}
        left = {path.relative_to(kit).as_posix() for path in kit.rglob("*")} - kit_files
        assert left == {"own.csv"}, left
        suffixes = {path.name.removeprefix(party.name) for path in (tmp_path / "ledgers").glob(f"{party.name}*")}
        documented = {"", ".locks"}
        assert suffixes <= documented, suffixes - documented
