"""Disclosures in the messages of a run equal those in the parties' ledgers: complete, killed and repeated runs."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import securevfl as vfl
from securevfl.data.party import Helper, register_of
from securevfl.disclosure.ledger import DisclosureLedger, total_to
from securevfl.disclosure.limits import Limit
from securevfl.disclosure.outputs import disclosures_of
from securevfl.errors import ConfigError, LeakageError
from securevfl.families import FAMILIES, leak_kinds
from securevfl.families.fdml.label_sharing import TrainingLabels
from securevfl.families.run_facts import pooled_run_facts
from securevfl.families.run_outputs import run_outputs
from securevfl.protocols.residuals.exchanges import Exchanges
from securevfl.protocols.residuals.open_residual import Residual
from securevfl.protocols.residuals.sealed_residual import OpenedProduct
from securevfl.protocols.sums.direct_sum import Summand
from securevfl.runtime.observer import Event
from securevfl.training.checkpoint import Checkpoints
from tests.builders import raises_code
from tests.disclosure.door_watch import watched
from tests.disclosure.planned_counts import assert_as_planned, debited_numbers, planned
from tests.small_keys import SMALL

EXAMPLES = {name: options for kind in FAMILIES.values() for name, options in kind().example_jobs().items()}
ROWS = 120
MAX_LEVEL_BITS = 16  # bits that a level and its label have at most, in these jobs


class Cut(Exception):
    """Raised in place of a lost process."""


def tables(names: int = 3, classes: int = 2, rows: int = ROWS) -> list[vfl.Party]:
    """Return parties of three columns each, and labels that depend on all columns."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(rows, 3 * names))
    score = X @ rng.normal(size=3 * names) + rng.normal(size=rows)
    y = np.searchsorted(np.quantile(score, np.arange(1, classes) / classes), score)
    return [
        vfl.Party(name, X[:, 3 * k : 3 * k + 3], y if name == "bank" else None, ids=np.arange(rows))
        for k, name in enumerate(("bank", "shop", "telco")[:names])
    ]


def example(name: str, **keys: Any) -> tuple[vfl.Job, list[vfl.Party | Helper]]:
    """Return an example of a family, for three small tables; trees without the boosted score, which is local."""
    keys_of_job = (
        {"batch_size": 40, "epochs": 2, "test_fraction": 0.25} | EXAMPLES[name] | {"accepts": [*leak_kinds()]} | keys
    )
    if isinstance(keys_of_job["model"], vfl.Trees):
        keys_of_job["model"] = keys_of_job["model"].model_copy(update={"boosted_score": False})
    job = vfl.Job(**keys_of_job)
    helpers = [Helper(name_of_helper, role) for name_of_helper, role in job.family.example_helpers]
    return job, [*tables()[: job.family.max_parties or 3], *helpers]


def kept(folder: Path, parties: list[Any], leased_iterations: int | None = None) -> dict[str, DisclosureLedger]:
    return {
        party.name: DisclosureLedger(folder / f"{party.name}.ledger", party.name, leased_iterations)
        for party in parties
    }


def entered(ledger: DisclosureLedger) -> Counter[Any]:
    """Return the recorded numbers by kind, learner, owner of the data, and rows."""
    return debited_numbers(ledger.read().entries)


class Transcript:
    """Counts plaintext numbers in messages, by sender, receiver and kind."""

    def __init__(self, parameters: dict[str, int]) -> None:
        self.numbers: Counter[tuple[str, str, str]] = Counter()
        self._parameters = parameters

    def __call__(self, event: Event) -> None:
        if event.direction != "send":
            return
        match event.message:
            case Summand(values):
                self.numbers[event.me, event.peer, "columns"] += values.size
            case Residual(_, g):
                self.numbers[event.me, event.peer, "labels"] += g.size
            case TrainingLabels(targets):
                self.numbers[event.me, event.peer, "labels"] += targets.size
            case OpenedProduct():
                self.numbers[event.me, event.peer, "labels"] += self._parameters[event.peer]


def of_classes(name: str) -> tuple[vfl.Job, list[vfl.Party | Helper]] | None:
    """Return the example with an output for each of three classes. None if its method has a single output."""
    try:
        job, parties = example(name, model=vfl.Softmax())
    except ConfigError:
        return None
    return job, [
        *tables(classes=3)[: job.family.max_parties or 3],
        *(helper for helper in parties if isinstance(helper, Helper)),
    ]


@pytest.mark.parametrize("name", [name for name in sorted(EXAMPLES) if of_classes(name)])
def test_debits_of_three_classes_are_those_expected(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As `test_disclosed_the_same.py` tests for a single output."""
    job, parties = of_classes(name)  # type: ignore[misc]
    left = watched(monkeypatch)
    ledgers = kept(tmp_path, parties)
    vfl.simulate(job, parties, ledgers=ledgers)
    assert not [kind for kind in left if kind.short]
    plan = planned(job, parties)
    for party, ledger in ledgers.items():
        # the party with labels ends curvature when its loss no longer falls
        assert_as_planned(ledger.read().entries, *plan[party], ends_early=name == "curvature")


@pytest.mark.parametrize("outputs", [1, 3])
@pytest.mark.parametrize("residual", ["open", "ckks", "paillier"])
def test_numbers_in_the_transcript_are_those_in_the_ledgers(residual: str, outputs: int, tmp_path: Path) -> None:
    parties = tables(classes=2 if outputs == 1 else 3)
    engine: Any = SMALL.with_smallest_keys if residual == "paillier" else residual
    model = vfl.Logistic() if outputs == 1 else vfl.Softmax()
    job = vfl.Job(
        model=model,
        optimizer=vfl.FedBCD(lr=0.1),
        protocol=vfl.Protocol(sum="direct", residual=engine),
        batch_size=40,
        epochs=1,
        test_fraction=0.25,
        accepts=[*leak_kinds()],
    )
    ledgers, transcript = kept(tmp_path, parties), Transcript({"shop": 3 * outputs, "telco": 3 * outputs})
    vfl.simulate(job, parties, ledgers=ledgers, observe=transcript, workers=1)
    for (giver, learner, kind), numbers in transcript.numbers.items():
        debited = sum(n for like, n in entered(ledgers[giver]).items() if like[:2] == (kind, learner))
        assert debited == numbers, (giver, learner, kind)
    assert {kind for _, _, kind in transcript.numbers} == {"columns", "labels"}
    disclosed = total_to(ledgers["bank"].read().entries, "labels", "shop")
    assert disclosed.count == (30 * outputs if residual == "open" else 3 * outputs)


def test_numbers_are_debited_on_disk_before_they_are_opened(tmp_path: Path) -> None:
    """At every message of three attempts at a run and another job, the ledger's count is at least the opened one."""
    parties = tables()
    # so that the run must record more iterations again and again
    ledgers = kept(tmp_path, parties, leased_iterations=1)
    transcript = Transcript({"shop": 3, "telco": 3})
    short: list[str] = []

    def observe(event: Event) -> None:
        transcript(event)
        if event.direction == "send" and event.me != "telco":
            debited: Counter[Any] = Counter()
            for like, numbers in entered(ledgers[event.me]).items():
                debited[like[:2]] += numbers
            for (giver, learner, kind), numbers in list(transcript.numbers.items()):
                if giver == event.me and numbers > debited[kind, learner]:
                    short.append(f"{giver} to {learner}: {kind} {numbers} of {debited[kind, learner]}")

    def cut(done: int, of: int) -> None:
        if done == 5:
            raise Cut

    job = sealed(epochs=3, accepts=[*leak_kinds()])
    for seed, on_round in ((0, cut), (0, cut), (0, None), (1, None)):
        states = {party.name: Checkpoints(tmp_path / party.name, party.name, every=2) for party in parties}
        again = job.model_copy(update={"seed": seed})
        with suppress(Cut):
            vfl.simulate(again, parties, ledgers=ledgers, checkpoints=states, on_round=on_round, observe=observe)
    assert not short, short[:3]
    assert sum(transcript.numbers.values()) == sum(
        n for ledger in ledgers.values() for like, n in entered(ledger).items() if like[0] in ("labels", "columns")
    )


def sealed(**keys: Any) -> vfl.Job:
    defaults: dict[str, Any] = {"model": vfl.Logistic(), "optimizer": vfl.FedBCD(lr=0.1), "batch_size": 40, "epochs": 1}
    defaults |= {
        "protocol": vfl.Protocol(sum="direct", residual=vfl.Ckks()),
        "accepts": ["columns"],
        "test_fraction": 0.25,
    }
    return vfl.Job(**defaults | keys)


def test_a_peer_that_restarts_after_openings_is_refused(tmp_path: Path) -> None:
    """Each attempt opens the same residual for a possibly different J; 15 attempts of 3 equations would reveal it."""
    parties = tables(2)
    ledgers, opened = kept(tmp_path, parties), []

    def observe(event: Event) -> None:
        if event.me == "bank" and event.direction == "send" and isinstance(event.message, OpenedProduct):
            opened.append(3)

    def cut(done: int, of: int) -> None:
        raise Cut

    for _ in range(40):
        states = {party.name: Checkpoints(tmp_path / party.name, party.name, every=100) for party in parties}
        try:
            vfl.simulate(
                sealed(batch_size=90, accepts=["columns", "fresh_equations"]),
                parties,
                ledgers=ledgers,
                checkpoints=states,
                on_round=cut,
                observe=observe,
            )
        except Cut:
            continue
        except LeakageError:
            break
    else:
        pytest.fail("it may come back for ever")
    assert sum(opened) < 90  # fewer than the 90 residuals of the batch
    assert total_to(ledgers["bank"].read().entries, "labels", "shop").count >= sum(opened)


def test_a_repeated_job_counts_again_unless_the_peer_is_trusted(tmp_path: Path) -> None:
    parties = tables(2)
    ledgers = kept(tmp_path, parties)
    ledgers["bank"].set_limit("labels", Limit(0.25, share=True))
    both = sealed(accepts=["columns", "fresh_equations"])
    vfl.simulate(both, parties, ledgers=ledgers)
    vfl.simulate(both, parties, ledgers=ledgers)
    with raises_code(LeakageError, "SVFL-LIMIT-REACHED", party="bank"):
        vfl.simulate(both, parties, ledgers=ledgers)
    assert total_to(ledgers["bank"].read().entries, "labels", "shop").count == 2 * 3

    others = kept(tmp_path / "trusting", parties)
    others["bank"].set_limit("labels", Limit(0.25, share=True))
    others["bank"].trust("shop")
    for _ in range(4):
        vfl.simulate(sealed(), parties, ledgers=others)
    assert total_to(others["bank"].read().entries, "labels", "shop").count == 3
    assert "bank trusts shop" in vfl.explain(sealed(), parties, ledgers=others)
    others["bank"].trust("shop", trusted=False)
    with raises_code(LeakageError, "SVFL-LEAK-NOT-ACCEPTED", leaks=("fresh_equations",)):
        vfl.simulate(sealed(), parties, ledgers=others)


def test_kept_exchanges_are_taken_up_with_what_is_left_of_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The ledger counts every opening about stored exchanges, however often the run resumes.

    Earlier openings of an exchange reduce the number that the peer may still request.
    """
    begin, used = Exchanges.begin, list[int]()
    monkeypatch.setattr(
        Exchanges, "begin", lambda *arguments, **more: used.append(more["used"]) or begin(*arguments, **more)
    )
    parties = tables(2)
    options = EXAMPLES["kept exchanges"] | {
        "epochs": 6,
        "batch_size": 30,
        "accepts": [*leak_kinds()],
        "test_fraction": 0.25,
    }
    options |= {"optimizer": vfl.CeluVFL(R=4, W=3, xi=60, lr=0.1)}
    job, ledgers, transcript = vfl.Job(**options), kept(tmp_path, parties), Transcript({"shop": 3})

    def cut_at(at: int) -> Any:
        def on_round(done: int, of: int) -> None:
            if done == at:
                raise Cut

        return on_round

    for at in (4, 6, 8, 10, 0):
        states = {party.name: Checkpoints(tmp_path / party.name, party.name, every=1) for party in parties}
        used.clear()
        had = transcript.numbers["bank", "shop", "labels"] // 3
        with suppress(Cut):
            vfl.simulate(job, parties, ledgers=ledgers, checkpoints=states, on_round=cut_at(at), observe=transcript)
        assert bool(sum(used)) == bool(had)
    opened = transcript.numbers["bank", "shop", "labels"]
    assert sum(n for like, n in entered(ledgers["bank"]).items() if like[0] == "labels") == opened
    assert opened <= 3 * 4 * 18  # p R iterations: an interruption after a saved round grants no further opening
    assert total_to(ledgers["bank"].read().entries, "labels", "shop").count >= opened / 3


@pytest.mark.parametrize("mode", ["open", "ckks", "shares"])
def test_a_run_that_patience_ends_has_debited_what_it_told(mode: str, tmp_path: Path) -> None:
    """An interrupted run that ends early discloses at most its debits, and debits at most the forecast."""
    protocol = vfl.Protocol(shares=vfl.Shares(chunk=1)) if mode == "shares" else vfl.Protocol(residual=mode)
    parties = tables(2)
    job = sealed(
        protocol=protocol,
        optimizer=vfl.FedSGD(lr=0.5),
        epochs=12,
        evaluate_every=2,
        patience={"metric": "loss", "evaluations": 1, "tolerance": 0.3},
        accepts=[*leak_kinds()],
    )
    for name, cuts in (("whole", [0]), ("cut", [3, 0])):
        ledgers, transcript = kept(tmp_path / name, parties), Transcript({"shop": 3})
        rounds = 0
        for at in cuts:
            states = {party.name: Checkpoints(tmp_path / name / party.name, party.name, every=1) for party in parties}

            def on_round(done: int, of: int, at: int = at) -> None:
                nonlocal rounds
                rounds = done
                if done == at:
                    raise Cut

            with suppress(Cut):
                vfl.simulate(job, parties, ledgers=ledgers, checkpoints=states, on_round=on_round, observe=transcript)
        assert rounds < len(job.schedule(register_of(parties)))  # it did end early
        sizes = pooled_run_facts(job, parties).shape
        foreseen = disclosures_of(run_outputs(job.family, job, sizes))
        for party, ledger in ledgers.items():
            plan: Counter[Any] = Counter()
            for item in foreseen:
                if party in item.about:
                    plan[item.key] += item.sent_by(party).numbers
            debited = entered(ledger)
            sessions = len(cuts)
            assert all(numbers <= sessions * plan[like] for like, numbers in debited.items())
            for (giver, learner, kind), numbers in transcript.numbers.items():
                if giver == party:
                    assert numbers <= sum(n for like, n in debited.items() if like[:2] == (kind, learner))
        if name == "whole" and mode != "shares":
            assert sum(n for ledger in ledgers.values() for n in entered(ledger).values()) < sum(
                item.sent_by(party).numbers for item in foreseen for party in item.about
            )
