"""A party reads only its part of the sheet, and it discloses nothing of its table before it has agreed."""

import itertools
import os
import pty
import re
import sys
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
from typer.testing import CliRunner, Result

import securevfl as vfl
from securevfl.audit.noise_tables import with_noise_parties
from securevfl.cli.consent_prompt import agree, check_agreed, check_digest
from securevfl.cli.main import app
from securevfl.consent.agreed_sheets import AgreedSheets
from securevfl.consent.consent_sheet import ConsentSheet, combined_sheet
from securevfl.data.load import read_aligned
from securevfl.data.read_options import ReadOptions
from securevfl.disclosure.ledger import DisclosureLedger
from securevfl.errors import ConfigError, ConsentError
from securevfl.families import FAMILIES
from securevfl.families.message_declarations import run_declarations
from securevfl.families.table_preparation import prepare_party
from securevfl.protocols.handshake import RunHello
from securevfl.runtime.clock import VirtualClock
from securevfl.runtime.network import Network
from securevfl.runtime.party_threads import run_threads
from securevfl.training.comparison import compared_jobs
from securevfl.training.session import take_part
from tests.builders import make_job, raises_code, random_parties
from tests.forked import Forked

KIT = ["--party", "bank=localhost:7301", "--party", "shop=localhost:7302", "--party", "telco=localhost:7303"]


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.fixture
def kits(tmp_path: Path) -> Path:
    assert run("kit", tmp_path / "kits", *KIT, "--accept", "columns").exit_code == 0
    for party in vfl.datasets.breast_cancer(3):
        labels = {} if party.y is None else {"y": party.y}
        np.savez(tmp_path / f"{party.name}.npz", X=party.X, ids=party.ids, columns=np.array(party.columns), **labels)
    return tmp_path / "kits"


def sizes(*names: str) -> list[str]:
    return [
        f"--size={party.name}={len(party.columns)}" for party in vfl.datasets.breast_cancer(3) if party.name in names
    ]


SEALED_JOB = {
    "model": vfl.Logistic(l2=1e-3),
    "optimizer": vfl.FedBCD(lr=0.3),
    "protocol": vfl.Protocol(residual=vfl.Ckks()),
    "test_fraction": 0.2,
    "accepts": ["columns"],
}


@pytest.mark.parametrize("name", ["bank", "shop"])
def test_a_party_alone_sees_the_sheet_that_the_run_shows_it(kits: Path, name: str) -> None:
    others = [party for party in ("bank", "shop", "telco") if party != name]
    data = f"--data={name}={kits.parent / name}.npz"
    done = run("explain", kits / name / "job.toml", data, *sizes(*others))
    assert done.exit_code == 0, done.output
    job = vfl.Job.load(kits / name / "job.toml")
    seen: dict[str, ConsentSheet] = {}
    all_here = threading.Barrier(3)

    def play(party: vfl.Party) -> Any:
        def look(sheet: ConsentSheet) -> None:
            seen[party.name] = sheet
            all_here.wait(120)
            raise ConsentError("no")

        return lambda channel: take_part(job, party, channel, parties=["bank", "shop", "telco"], consent=look)

    with pytest.raises(ConsentError):
        run_threads(
            {party.name: play(party) for party in vfl.datasets.breast_cancer(3)}, lambda: VirtualClock(Network())
        )
    assert f"digest: {seen[name].digest} " in done.stdout
    assert seen[name].first_screen in done.stdout
    assert "RunHello" not in done.stdout
    details = run("explain", kits / name / "job.toml", data, *sizes(*others), "--details")
    assert str(seen[name]) in details.stdout
    assert f"digest: {seen[name].digest} " in details.stdout
    assert "telco" in done.stdout


EXAMPLES = [(family, name) for family in FAMILIES.values() for name in family().example_jobs() if "neural" not in name]


@pytest.mark.parametrize(("family", "name"), EXAMPLES, ids=lambda value: getattr(value, "name", value))
def test_the_first_screen_lists_disclosures_and_no_messages(family: Any, name: str) -> None:
    """The first screen has all that parties learn, pool and refuse, without message names.

    This is checked for every family. A party that agrees to the screen agrees to the details as well.
    """
    job = vfl.Job(**({"batch_size": 64, "epochs": 1} | family().example_jobs()[name]))
    parties = [*vfl.datasets.breast_cancer(2), *(vfl.Helper(*arguments) for arguments in family.example_helpers)]
    sheet = vfl.explain(job, parties)
    first, lines = sheet.first_screen.splitlines(), sheet.splitlines()
    titles = [section.title for section in sheet.sections]
    assert titles[1].startswith("Who learns what")
    assert titles[-5:] == [
        "What nobody learns",
        "If parties pool what they learned",
        "Assumptions",
        "Questions later",
        "How to say no",
    ]
    assert sheet.count("would be refused") == sheet.first_screen.count("would be refused")
    words = set(re.findall(r"[A-Z]\w+", sheet.first_screen))
    roles = job.family.complete_roles(
        job, job.family.assign_roles(parties), {party.name: len(party.columns) for party in parties}
    )
    assert not words & {declaration.message.__name__ for declaration in run_declarations(job.family, job, roles)}
    assert len(first) < len(lines)
    assert (
        ConsentSheet(str(sheet) + " ", sheet.first_screen).digest
        != sheet.digest
        != ConsentSheet(str(sheet), sheet.first_screen + " ").digest
    )


def test_nothing_but_the_meeting_is_told_before_consent() -> None:
    message_types: list[str] = []
    job = make_job(SEALED_JOB)

    def refuse(sheet: ConsentSheet) -> None:
        raise ConsentError(f"{sheet}")

    parties = vfl.datasets.breast_cancer(2)
    roles = {
        party.name: lambda channel, party=party: take_part(
            job, party, channel, parties=["bank", "shop"], consent=refuse
        )
        for party in parties
    }
    with pytest.raises(ConsentError):
        run_threads(
            roles,
            lambda: VirtualClock(Network()),
            observe=lambda event: message_types.append(type(event.message).__name__),
        )
    assert set(message_types) <= {RunHello.__name__, "Abort"}


def test_sizes_and_classes_that_are_missing_are_asked_for(kits: Path) -> None:
    data = f"--data=shop={kits.parent / 'shop.npz'}"
    done = run("explain", kits / "shop" / "job.toml", data, *sizes("bank"))
    assert (done.exit_code, done.stdout) == (2, "")
    assert "Add --size telco=COLUMNS" in done.stderr
    assert "[SVFL-COMMAND-USAGE]" in run("explain", kits / "shop" / "job.toml", data, "--size", "bank").stderr
    shop = vfl.datasets.breast_cancer(2)[1]
    with raises_code(ConfigError, "SVFL-COMMAND-USAGE"):
        vfl.explain(make_job(SEALED_JOB, model=vfl.Softmax()), [shop], others={"bank": 3})
    assert "n x c" in vfl.explain(make_job(SEALED_JOB, model=vfl.Softmax()), [shop], others={"bank": 3}, outputs=4)
    with raises_code(ConfigError, "SVFL-PARTIES-COUNT"):
        vfl.explain(make_job(SEALED_JOB), vfl.datasets.breast_cancer(2), others={"telco": 3})


def test_a_sheet_of_several_trainings_repeats_nothing() -> None:
    shop = vfl.datasets.breast_cancer(2)[1]
    jobs = compared_jobs(vfl.Job(model=vfl.Logistic()))
    sheets = {name: vfl.explain(job, [shop], others={"bank": 15}) for name, job in jobs.items()}
    sheet = combined_sheet(sheets, "You agree to all of them.")
    assert max(map(len, sheet.splitlines())) <= 80
    separate = sum(len(one.first_screen.splitlines()) for one in sheets.values())
    assert len(sheet.first_screen.splitlines()) < 0.6 * separate
    assert sheet.first_screen.count("How to say no") == sheet.first_screen.count("Who learns what") == 1
    for name, one in sheets.items():
        assert jobs[name].digest.hex()[:16] in sheet
        for row in one.learned:  # nothing that one of the sheets states is missing
            assert any(
                {head: cell.removesuffix(f" ({', '.join(having)})") for head, cell in combined.items()} == row
                for combined in sheet.learned
                for having in subsets(sheets)
                if name in having
            ), row
        assert " ".join(one.removeprefix(one.first_screen).split()) in sheet
    assert "`" not in sheet.page()
    assert "<code>securevfl ledger --limit columns=5%</code>" in sheet.page()
    other = combined_sheet(sheets | {"bins": sheets["trees"]}, "You agree to all of them.")
    assert other.digest != sheet.digest


def subsets(names: Iterable[str]) -> list[tuple[str, ...]]:
    """Return all sets of names, each in the order of the names."""
    ordered = list(names)
    return [subset for size in range(1, len(ordered) + 1) for subset in itertools.combinations(ordered, size)]


def test_the_digest_of_a_sheet_ignores_the_order_of_peers() -> None:
    bank, shop, _ = vfl.datasets.breast_cancer(3)
    one = vfl.explain(make_job(SEALED_JOB), [shop], others={"bank": 10, "telco": 4, "grocer": 3})
    assert one.digest == vfl.explain(make_job(SEALED_JOB), [shop], others={"bank": 10, "grocer": 3, "telco": 4}).digest
    for other in (
        vfl.explain(make_job(SEALED_JOB, epochs=11), [shop], others={"bank": 10, "telco": 4, "grocer": 3}),
        vfl.explain(make_job(SEALED_JOB), [bank], others={"shop": 10, "telco": 4, "grocer": 3}),
        vfl.explain(make_job(SEALED_JOB), [shop.take(np.arange(300))], others={"bank": 10, "telco": 4, "grocer": 3}),
    ):
        assert one.digest != other.digest


def test_a_pipe_requires_a_digest_and_the_error_names_it(tmp_path: Path) -> None:
    agreed = AgreedSheets(DisclosureLedger(tmp_path / "shop.ledger", "shop"))
    sheet = ConsentSheet("the scores are disclosed")
    for accept in (None, "0" * 16):
        with pytest.raises(ConsentError) as caught:
            agree(agreed, accept, "securevfl join job.toml", sheet)
        assert str(caught.value).startswith("the scores are disclosed\n\n")
        assert f"securevfl join job.toml ... --accept {sheet.digest}" in str(caught.value)
    program, *before = sys.argv
    sys.argv[:] = ["/opt/bin/securevfl", "join", "job.toml", "--accept", "0" * 16, "--data", "my shop.csv"]
    try:
        with raises_code(ConsentError, "SVFL-CONSENT-REFUSED") as refused:
            agree(agreed, "0" * 16, "securevfl join job.toml", sheet)
    finally:
        sys.argv[:] = [program, *before]
    assert str(refused.value).endswith(f"    securevfl join job.toml --data 'my shop.csv' --accept {sheet.digest}")
    agree(agreed, sheet.digest, "securevfl join job.toml", sheet)
    agree(agreed, None, "securevfl join job.toml", sheet)  # the owner is not asked again
    with raises_code(ConsentError, "SVFL-CONSENT-REFUSED"):  # but the digest must be right
        agree(agreed, "0" * 16, "securevfl join job.toml", sheet)
    check_agreed(agreed, sheet.digest)
    with raises_code(ConsentError, "SVFL-CONSENT-DIGEST"):
        check_agreed(agreed, "0" * 16)
    for typed in ("zzz", "0" * 15, ""):
        with raises_code(ConfigError, "SVFL-CONSENT-DIGEST"):
            check_digest(typed)
    with raises_code(ConsentError, "SVFL-CONSENT-REFUSED"):
        agree(agreed, sheet.digest, "securevfl join job.toml", ConsentSheet("the labels are disclosed"))


ASKING_SCRIPT = """
import sys
from collections.abc import Iterable
from pathlib import Path
from securevfl.cli.consent_prompt import agree
from securevfl.disclosure.ledger import DisclosureLedger
from securevfl.consent.agreed_sheets import AgreedSheets
from securevfl.consent.consent_sheet import ConsentSheet, combined_sheet
agreed = AgreedSheets(DisclosureLedger(Path(sys.argv[1]), "shop"))
agree(agreed, None, Path("job.toml"), ConsentSheet("the disclosures"))
"""


@pytest.mark.parametrize(("answer", "code"), [(b"y\n", 0), (b"n\n", 1)])
def test_on_a_terminal_it_is_a_question(tmp_path: Path, answer: bytes, code: int) -> None:
    ours, theirs = pty.openpty()
    process = Forked(
        [sys.executable, "-c", ASKING_SCRIPT, str(tmp_path / "shop.ledger")],
        stdin=theirs,
        stderr=theirs,
        env=os.environ | {"TERM": "xterm"},
    )
    os.close(theirs)
    screen = b""
    while b"Do you agree to sheet" not in screen or b"?" not in screen.partition(b"Do you agree")[2]:
        screen += os.read(ours, 4096)
    assert ConsentSheet("the disclosures").digest.encode() in screen.partition(b"Do you agree")[2]
    os.write(ours, answer)
    reader = threading.Thread(target=lambda: _drain(ours), daemon=True)
    reader.start()
    assert process.wait(240) == code
    assert b"the disclosures" in screen
    agreed = AgreedSheets(DisclosureLedger(tmp_path / "shop.ledger", "shop"))
    assert agreed.has_agreed(ConsentSheet("the disclosures")) == (code == 0)


@pytest.mark.parametrize("typed", [b"y\n", b"y\ny\ny\n", b"y"])
def test_input_that_was_typed_before_the_question_is_no_answer(tmp_path: Path, typed: bytes) -> None:
    ours, theirs = pty.openpty()
    os.write(ours, typed)
    process = Forked(
        [sys.executable, "-c", ASKING_SCRIPT, str(tmp_path / "shop.ledger")],
        stdin=theirs,
        stderr=theirs,
        env=os.environ | {"TERM": "xterm"},
    )
    screen = b""
    while b"Do you agree to sheet" not in screen or b"?" not in screen.partition(b"Do you agree")[2]:
        screen += os.read(ours, 4096)
    threading.Thread(target=lambda: _drain(ours), daemon=True).start()
    os.write(ours, b"\n")  # ends a line of which only the beginning was typed before
    os.write(ours, b"n\n")
    assert process.wait(240) == 1
    assert not (tmp_path / "shop.ledger.agreed").exists()
    os.close(theirs)


def _drain(terminal: int) -> None:
    try:
        while os.read(terminal, 4096):
            pass
    except OSError:
        pass


@pytest.mark.parametrize("name", ["bank", "shop"])
def test_stand_ins_have_the_sizes_and_labels_that_were_asked_for(name: str) -> None:
    local_party = next(party for party in vfl.datasets.breast_cancer(2) if party.name == name)
    parties = with_noise_parties(make_job(SEALED_JOB), local_party, {"other": 7, "third": 2}, 2)
    assert [party.name for party in parties if party.active] == [parties[0].name]
    assert {party.name: len(party.columns) for party in parties} == {
        "other": 7,
        "third": 2,
        name: len(local_party.columns),
    }
    assert next(party for party in parties if party.name == name) is local_party
    assert (
        vfl.simulate(make_job(SEALED_JOB, protocol=vfl.Protocol(residual="open"), epochs=3), parties).metrics["auc"]
        > 0.6
    )


@pytest.mark.parametrize(
    ("keys", "names"),
    [
        ({"positive": "late"}, ["not late", "late"]),
        ({"positive": "0"}, ["not 0", "0"]),
        ({"weights": {"classes": {"late": 2, "paid": 1}}, "positive": "late"}, ["paid", "late"]),
        ({"weights": {"classes": {"1": 2, "0": 1}}}, ["0", "1"]),
        ({"weights": {"classes": {"a": 3, "b": 2, "c": 1}}, "model": "one_vs_rest"}, ["a", "b", "c"]),
    ],
)
def test_stand_ins_have_the_classes_that_the_job_names(keys: dict[str, Any], names: list[str]) -> None:
    job, shop = make_job(**keys), random_parties(rows=240)[1]
    parties = with_noise_parties(job, shop, {"bank": 2}, None)
    run = vfl.simulate(job, parties)
    assert list(run.active.label_classes.astype(str)) == names
    with raises_code(ConfigError, "SVFL-COMMAND-USAGE"):
        with_noise_parties(job, shop, {"bank": 2}, 5)


def test_a_party_audits_its_own_columns_alone(kits: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []

    def run_audit(*arguments: Any, on_step: Any, noise_parties: Any) -> None:
        seen.append((*arguments, noise_parties))
        raise typer.Exit(1)

    monkeypatch.setattr("securevfl.audit.report.run_audit", run_audit)
    data = f"--data=shop={kits.parent / 'shop.npz'}"
    assert run("audit", kits / "shop" / "job.toml", data, *sizes("bank", "telco")).exit_code == 1
    ((_, parties, noise_parties),) = seen
    assert noise_parties == ["bank", "telco"]
    assert [party.name for party in parties] == ["bank", "shop", "telco"]
    np.testing.assert_array_equal(parties[1].X, vfl.datasets.breast_cancer(3)[1].X)


def prepared(job: vfl.Job, path: Path) -> vfl.Party:
    party = read_aligned("shop", path, job, ReadOptions(id_column="id", label_column="y"))
    return prepare_party(job, party, party.register)


def test_explain_says_which_columns_a_size_counts(tmp_path: Path) -> None:
    """Missing values and texts increase the number of columns; the other parties state this larger number."""
    shop = tmp_path / "shop.csv"
    cells = [(row, row % 7, "" if row % 5 == 0 else row % 11, ("early", "late")[row % 2]) for row in range(400)]
    rows = [",".join(map(str, row_cells)) for row_cells in cells]
    shop.write_text("\n".join(["id,visits,spent,habit", *rows]))
    bank = tmp_path / "bank.csv"
    bank.write_text("\n".join(["id,y,income", *(f"{row},{row % 3 % 2},{row % 13}" for row in range(400))]))
    (tmp_path / "job.toml").write_text('model = "logistic"\n')
    refusal = run("explain", tmp_path / "job.toml", f"--data=shop={shop}")
    prepared_columns = len(prepared(vfl.Job.load(tmp_path / "job.toml"), shop).columns)
    assert prepared_columns > 3
    line = f"other parties pass --size shop={prepared_columns} for your table (3 in your file)"
    assert (refusal.exit_code, refusal.stdout) == (2, "")
    assert line in refusal.stderr
    alone = run("explain", tmp_path / "job.toml", f"--data=shop={shop}", f"--size=shop={prepared_columns}")
    assert (alone.exit_code, line in alone.stderr) == (2, True), "a size of this party's table names no other party"
    done = run("explain", tmp_path / "job.toml", f"--data=shop={shop}", "--size=bank=1")
    assert (done.exit_code, line in done.stdout) == (0, True), done.output
    sheet = run("explain", tmp_path / "job.toml", f"--data=bank={bank}", f"--size=shop={prepared_columns}")
    assert "The other parties pass --size bank=1 for your table. Ask each" in sheet.stdout
