"""Adding one more protocol takes a file, a line in a registry, and a row in the table below; the rest is derived.

The files are in `one_more/`. Each is loaded from a copy in a temporary folder, as somebody else's module would be, and
registered by the one line; checks, simulators, the table of declarations, the consent sheet and the audit then know it.
"""

from __future__ import annotations

import importlib
import importlib.util
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from builders import cancer_parties, learned_rows, raises_code, sheet_part
from selfcheck.checks import check_table as checks
from selfcheck.checks import simulator_checks, stored_checks
from selfcheck.mutants.mutant import Mutant, patched

import securevfl as vfl
from docs import declarations_page as declarations
from docs import job_file_page as reference
from securevfl.audit.attacks import ATTACKS, Attack
from securevfl.audit.page import text
from securevfl.audit.report import run_audit, unchecked
from securevfl.disclosure.ledger import DisclosureLedger
from securevfl.errors import ConfigError, DataError, LeakageError
from securevfl.families import FAMILIES
from securevfl.families.family import Family
from securevfl.families.fdml.stored_sums import STORED_SUMS
from securevfl.models.losses import LOSSES
from securevfl.optim import OPTIMIZERS
from securevfl.optim.rule_choice import RULES
from securevfl.optim.rules import Rule, Sgd
from securevfl.protocols.engines import ENGINES, Engine
from securevfl.protocols.protocol_options import RESIDUALS, SUMS
from securevfl.protocols.residuals.defences import DEFENCES
from securevfl.protocols.sums.base import SumProtocol
from securevfl.training.checkpoint import Checkpoints
from securevfl.training.model_part import ModelPart

HERE = Path(__file__).parent / "one_more"
Load = Callable[[str], ModuleType]


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Load]:
    """Import a file of `one_more` from a temporary folder, under another name."""
    monkeypatch.syspath_prepend(str(tmp_path))
    names = []

    def one(name: str) -> ModuleType:
        shutil.copy(HERE / f"{name}.py", tmp_path)
        names.append(name)
        importlib.invalidate_caches()
        return importlib.import_module(name)

    yield one
    for name in names:
        sys.modules.pop(name, None)


def register(monkeypatch: pytest.MonkeyPatch, registry: Any, *kinds: Any) -> None:
    """Register the protocol by the one line."""
    for kind in kinds:
        monkeypatch.setitem(registry, kind.name, kind)


def rounds_job(**keys: Any) -> vfl.Job:
    defaults = {"model": vfl.Logistic(l2=1e-3), "optimizer": vfl.FedBCD(lr=0.2), "batch_size": 60, "epochs": 2}
    defaults |= {"protocol": vfl.Protocol(residual="open"), "accepts": ["columns"]}
    return vfl.Job(**(defaults | keys))


def clean(checks_by_name: dict[str, Any], name: str) -> None:
    outcome = checks_by_name[name]()
    assert not outcome.findings, "\n".join(map(str, outcome.findings))


def test_a_sum(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    register(monkeypatch, SUMS, load("echo_sum").EchoSum)
    clean(checks.sum_checks(), "sum echo")
    clean(checks.sum_checks(), "phases echo")
    clean(simulator_checks.sum_checks(), "simulator sum echo")
    assert "## Sum: echo" in declarations.table()
    assert "| EchoPart | contributor | collector | plain: the sender's part |" in declarations.table()
    echoed, direct = (rounds_job(protocol=vfl.Protocol(sum=sums, residual="open")) for sums in ("echo", "direct"))
    assert "EchoPart from passive: plain: the sender's part" in vfl.explain(echoed, cancer_parties(3, 180))
    one, other = (vfl.simulate(chosen, cancer_parties(3, 180)).parts["bank"].theta for chosen in (echoed, direct))
    np.testing.assert_allclose(one, other, atol=1e-6)


def test_a_sum_that_declares_too_little_is_named(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    kind = load("echo_sum").EchoSum
    quiet = type("Quiet", (kind,), {"name": "quiet", "declares": lambda self, contributors: [], "__module__": __name__})
    register(monkeypatch, SUMS, quiet)
    findings = [str(finding) for finding in checks.sum_checks()["sum quiet"]().findings]
    assert any("EchoPart from P1 is not declared" in finding for finding in findings), findings
    with pytest.raises(TypeError, match="coalitions"):
        type("Half", (SumProtocol,), {"name": "half", "__module__": __name__})()


def test_a_residual(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    register(monkeypatch, RESIDUALS, load("announced_residual").AnnouncedResidual)
    clean(checks.residual_checks(), "residual announced")
    clean(simulator_checks.residual_checks(), "simulator residual announced")
    assert "## Residual: announced" in declarations.table()
    announced, plain = (rounds_job(protocol=vfl.Protocol(residual=residual)) for residual in ("announced", "open"))
    assert "AnnouncedG from active: plain: g of every row, and so the labels" in vfl.explain(
        announced, cancer_parties(3, 180)
    )
    one, other = (vfl.simulate(chosen, cancer_parties(3, 180)).parts["shop"].theta for chosen in (announced, plain))
    np.testing.assert_array_equal(one, other)
    inferences = run_audit(
        rounds_job(protocol=announced.protocol, epochs=1), cancer_parties(2, 90), seeds=(0,)
    ).inferences
    assert {inference.name: inference.real for inference in inferences}["residual sign"] == 1.0


def test_a_defence(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    uniform = load("uniform_defence").Uniform
    register(monkeypatch, DEFENCES, uniform)
    for residual in (
        vfl.OpenResidual(defence=uniform(size=0.5)),
        vfl.SealedResidual(engine=vfl.Ckks(), defence=uniform(size=0.5)),
    ):
        outcome = checks.residual_check(residual, rows=30)
        assert not outcome.findings, outcome.findings
    named = rounds_job(protocol={"residual": {"name": "open", "defence": {"name": "uniform", "size": 0.5}}})
    assert "with noise (uniform: no guarantee)" in vfl.explain(named, cancer_parties(3, 180))
    assert vfl.simulate(named, cancer_parties(3, 180)).metrics["auc"] > 0.9


def test_a_key_of_a_job(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    register(monkeypatch, RULES, load("signs_rule").Signs)
    section = reference.page().partition("### rule signs\n")[2].partition("\n## ")[0].partition("\n### ")[0]
    assert "| `beta` | number | `0.9` | How much of the running mean of gradients a step keeps. |" in section


def test_a_stored_sum(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    register(monkeypatch, STORED_SUMS, load("negated_store").NegatedStore)
    clean(stored_checks.stored_checks(), "stored negated")
    assert "## Stored sum: negated" in declarations.table()
    negated, plain = (
        rounds_job(
            protocol=vfl.Protocol(),
            optimizer=vfl.FDML(lr=0.3, tau=0, shows_labels=True, stored=stored),
            test_fraction=0.25,
        )
        for stored in ("negated", "open")
    )
    members = [*cancer_parties(3, 180), vfl.Helper("server", "server")]
    assert "Push from passive: plain: the sender's forward outputs, negated" in vfl.explain(negated, members)
    one, other = (vfl.simulate(chosen, members).parts["bank"].theta for chosen in (negated, plain))
    np.testing.assert_allclose(one, other, atol=1e-9)


def test_an_engine(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    register(monkeypatch, ENGINES, load("other_engine").OtherEngine)
    for checks_by_name, name in (
        (checks.engine_checks(), "engine other"),
        (checks.engine_checks(), "engine other sums"),
        (checks.residual_checks(), "residual other"),
        (checks.sum_checks(), "sum cipher other"),
        (simulator_checks.residual_checks(), "simulator residual other"),
    ):
        clean(checks_by_name, name)
    assert "## Residual: sealed (other)" in declarations.table()
    assert "Assumes: RLWE, 128-bit standard, under another name." in declarations.table()
    sealed = rounds_job(protocol=vfl.Protocol(residual="other"))
    assert "ResidualCiphertext" in vfl.explain(sealed, cancer_parties(3, 180))
    assert vfl.simulate(sealed, cancer_parties(3, 180)).metrics["auc"] > 0.9


def test_an_engine_that_says_too_little_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(TypeError, match="scheme"):
        type("Mute", (Engine,), {"name": "mute", "__module__": __name__})()


@pytest.mark.parametrize(
    ("file", "name", "registry", "options"),
    [
        ("echo_sum", "EchoSum", SUMS, {"protocol": {"sum": "echo", "residual": "open"}}),
        ("announced_residual", "AnnouncedResidual", RESIDUALS, {"protocol": {"residual": "announced"}}),
        ("signs_rule", "Signs", RULES, {"optimizer": {"name": "fedbcd", "lr": 0.01, "rule": "signs"}}),
        ("log_cosh_loss", "LogCoshLoss", LOSSES, {"model": {"name": "linear", "loss": "log_cosh"}}),
    ],
    ids=["sum", "residual", "rule", "loss"],
)
def test_a_model_file_names_code_that_is_missing(
    file: str, name: str, registry: Any, options: dict[str, Any], load: Load, tmp_path: Path
) -> None:
    kind = getattr(load(file), name)
    registered = kind() if registry is LOSSES else kind
    registry[kind.name] = registered
    try:
        run = vfl.simulate(rounds_job(epochs=1, **options), cancer_parties(2, 180))
        run.parts["bank"].save(tmp_path / "model.json")
        ModelPart.load(tmp_path / "model.json")
    finally:
        del registry[kind.name]
    with raises_code(DataError, "SVFL-MODEL-FILE") as caught:
        ModelPart.load(tmp_path / "model.json")
    assert "import the module that registers it" in str(caught.value)
    assert kind.name not in registry


def test_a_loss(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    loss = load("log_cosh_loss").LogCoshLoss()
    register(monkeypatch, LOSSES, loss)
    members = [vfl.Party(party.name, party.X, party.y, aligned=True) for party in vfl.datasets.diabetes()]
    slow = vfl.FedBCD(lr=0.05)
    linear = rounds_job(model=vfl.GeneralLinear(loss="log_cosh"), optimizer=slow, batch_size=128, epochs=10)
    assert "linear model" in vfl.explain(linear, members)
    assert vfl.simulate(linear, members).metrics["r2"] > 0.3
    kernel = vfl.Kernel(gamma=0.05, loss="log_cosh", blocks=2, block_size=32)
    phases = rounds_job(model=kernel, optimizer=vfl.FDSKL(), protocol=vfl.Protocol(), batch_size=128, epochs=5)
    assert vfl.simulate(phases, members).metrics["r2"] > 0.1
    monkeypatch.setattr(type(loss), "curvature", None)
    with raises_code(ConfigError, "SVFL-JOB-OPTION", option="optimizer.precondition"):
        rounds_job(model=kernel, optimizer=vfl.FDSKL(), protocol=vfl.Protocol())
    with raises_code(ConfigError, "SVFL-JOB-OPTION", option="loss"):
        vfl.GeneralLinear(loss="absolute")


def test_a_method_with_a_role_of_its_own(load: Load, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    module = load("relayed_method")
    register(monkeypatch, FAMILIES, module.Relayed)
    table = declarations.table()
    assert "## Family: relayed, further messages" in table
    assert "| Total | server | active | plain: the sum of the parts |" in table
    members: list[vfl.Party] = [*cancer_parties(3, 180), vfl.Helper("hub", "server")]
    options = {"model": "means", "optimizer": {"name": "relaying", "lr": 0.5}, "protocol": vfl.Protocol(), "epochs": 20}
    with raises_code(LeakageError, "SVFL-LEAK-NOT-ACCEPTED", leaks=("seen_by_server",)):
        vfl.simulate(rounds_job(**options), members)
    relayed = rounds_job(**options, accepts=["columns", "seen_by_server"])
    sheet = vfl.explain(relayed, members)
    assert "hub (server)" in sheet
    assert "MaskedSummand from passive: output" in sheet_part(sheet, "hub")
    assert "Total from server: plain: the sum of the parts" in sheet_part(sheet, "bank")
    run = vfl.simulate(relayed, members)
    assert run.metrics["auc"] > 0.9
    assert {name: part.role for name, part in run.parts.items()} == dict(run.roles.cast)
    run.save(tmp_path / "parts")
    new = {party.name: party.X for party in members if party.columns}
    labels = vfl.Run.load(tmp_path / "parts").predict(new)
    assert (labels == members[0].y).mean() > 0.8
    audit = run_audit(relayed, members, seeds=(0,))
    assert audit.exit_code == 0, audit.exceeding
    assert "hub (server)" in text(audit)
    assert "| `seen_by_server` | the server learns every sum | no server | column space |" in reference.page()


def test_sheet_ledger_and_audit_know_a_foreign_output(
    load: Load, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A family lists one output, and another package attacks it; nothing else names either of them."""
    register(monkeypatch, FAMILIES, load("relayed_method").Relayed)
    register(monkeypatch, ATTACKS, load("first_column").FirstColumn())
    members: list[vfl.Party] = [*cancer_parties(3, 180), vfl.Helper("hub", "server")]
    options = {"model": "means", "optimizer": {"name": "relaying", "lr": 0.5}, "protocol": vfl.Protocol()}
    relayed = rounds_job(**options, accepts=["columns", "seen_by_server"])
    row = ("hub", "sums of means (of 180 rows)", "columns of shop, telco", "180 in each of 3 epochs", "64")
    assert next(cells for cells in learned_rows(vfl.explain(relayed, members)) if cells[0] == "hub")[:5] == row
    ledgers = {party.name: DisclosureLedger(tmp_path / party.name, party.name) for party in members}
    vfl.simulate(relayed, members, ledgers=ledgers)
    entries = [entry.disclosure for entry in ledgers["shop"].read().entries]
    assert sorted((item.learner, item.count, item.numbers) for item in entries) == [
        ("bank", 3, 0),  # the server sends these
        ("hub", 3, 3 * 180),
    ]
    audit = run_audit(relayed, members, seeds=(0,))
    assert audit.exit_code == 0, audit.exceeding
    assert "first column: the job publishes neither residuals" in "\n".join(audit.skipped)


def test_a_leak_that_nothing_looks_for_is_named(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    module = load("relayed_method")
    register(monkeypatch, FAMILIES, module.Relayed)
    options = {"model": "means", "optimizer": {"name": "relaying", "lr": 0.5}, "protocol": vfl.Protocol()}
    relayed, members = rounds_job(**options), [*cancer_parties(3, 180), vfl.Helper("hub", "server")]
    other = replace(module.SEEN_BY_SERVER, attacks=("eavesdropping",))
    monkeypatch.setattr(module.Relayed, "leak_kinds", (other,))
    monkeypatch.setattr(module.Relayed, "message_protocols", lambda self, job, roles: [])
    assert unchecked(relayed, relayed.family.assign_roles(members)) == [
        "leak seen_by_server names the attack eavesdropping, which is not in ATTACKS; add it",
        "no simulator covers the protocol family relayed; return its message protocols, or set reveals_only_outputs",
    ]
    with raises_code(ConfigError, "SVFL-JOB-EXTENSION", leak="seen_by_server"):
        vfl.simulate(relayed, members)
    with raises_code(ConfigError, "SVFL-JOB-OPTION", option="accepts"):
        rounds_job(accepts=["hidden"])


def test_an_update_rule(load: Load, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    register(monkeypatch, RULES, load("signs_rule").Signs)
    named = rounds_job(optimizer={"name": "fedbcd", "lr": 0.02, "rule": {"name": "signs", "beta": 0.8}})
    assert vfl.Job.from_dict(named.to_dict()).digest == named.digest
    assert "FedBCD-p signs on a logistic model" in vfl.explain(named, cancer_parties(3, 180))
    run = vfl.simulate(named, cancer_parties(3, 180))
    assert run.metrics["auc"] > 0.9
    assert run.costs.row()["algorithm"] == "FedBCD-p signs"

    def states() -> dict[str, Checkpoints]:
        return {party.name: Checkpoints(tmp_path / party.name, party.name, every=1) for party in cancer_parties(3, 180)}

    def cut(done: int, of: int) -> None:
        if done == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        vfl.simulate(named, cancer_parties(3, 180), checkpoints=states(), on_round=cut)
    again = vfl.simulate(named, cancer_parties(3, 180), checkpoints=states())
    for name, part in run.parts.items():
        np.testing.assert_array_equal(again.parts[name].theta, part.theta)


def test_an_update_rule_that_says_too_little_is_named() -> None:
    with pytest.raises(TypeError, match="linear"):
        type("Half", (Sgd,), {"name": "half", "linear": Rule.linear, "__module__": __name__})()


def test_a_methods_examples_are_checked_whole(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    module = load("relayed_method")
    register(monkeypatch, FAMILIES, module.Relayed)
    monkeypatch.setattr(checks, "small_parties", lambda count=4: cancer_parties(count, 180))
    clean(checks.method_checks(), "job relayed")


def test_a_method_that_is_missing_is_named(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    module = load("relayed_method")
    register(monkeypatch, OPTIMIZERS, module.Relaying)
    with raises_code(ConfigError, "SVFL-JOB-EXTENSION", family="relayed"):
        rounds_job(model=module.Means(), optimizer={"name": "relaying", "lr": 0.5}, protocol=vfl.Protocol())
    with pytest.raises(TypeError, match="participant"):
        type("Half", (Family,), {"name": "half", "__module__": __name__})()


@pytest.mark.slow
def test_an_attack(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    register(monkeypatch, ATTACKS, load("first_column").FirstColumn())
    audit = run_audit(rounds_job(), cancer_parties(2, 180), seeds=(0,))
    inference = next(inference for inference in audit.inferences if inference.name == "first column")
    assert (inference.attacker, inference.remedy) == ("shop", "none: it is shop's own column")
    assert "first column" in text(audit)
    with pytest.raises(TypeError, match="remedy"):
        type("Half", (Attack,), {"name": "half"})()


def test_a_check(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    module = load("odd_batches")
    monkeypatch.setitem(checks.CHECKS, "every row is in one batch", module.every_row_once)
    suite = importlib.reload(importlib.import_module("selfcheck.suite.test_checks"))
    (mark,) = [mark for mark in suite.test_check.pytestmark if mark.name == "parametrize"]
    assert "every row is in one batch" in [parameter.values[0] for parameter in mark.args[1]]
    clean(checks.CHECKS, "every row is in one batch")
    broken = Mutant("rows left out", "", "every row is in one batch", "schedule", patched((np, "array_split", _short)))
    with broken.apply():
        assert broken.finding in {finding.check for finding in checks.CHECKS[broken.caught_by]().findings}


def _short(rows: Any, batches: int) -> Any:
    return [rows[k::batches][1:] for k in range(batches)]
