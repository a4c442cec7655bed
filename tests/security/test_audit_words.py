"""What an audit says in words is what its figures say; and it says what it could not see or did not try."""

import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import securevfl as vfl
from securevfl.audit.attacks import ATTACKS
from securevfl.audit.findings import FOUND, Audit, Inference
from securevfl.audit.page import html, summary, text
from securevfl.audit.recording.column_numbers import complete, received
from securevfl.audit.recording.real_ideal_pair import RealIdealPair
from securevfl.audit.report import run_audit, unseen
from securevfl.families import FAMILIES
from securevfl.models.losses import LOSSES

WHAT = ("AUC of the labels", "share of a column", "AUC of trained on or held out", "share of parts")


@st.composite
def inferences(draw: st.DrawFn) -> Inference:
    number = st.floats(0, 1)
    what = draw(st.sampled_from(WHAT))
    two_sided = what.startswith("AUC")
    return Inference(
        who=draw(st.sampled_from(("bank", "shop", "any party"))),
        name=draw(st.sampled_from(("first one", "second one", "third one"))),
        what=what,
        paper="",
        real=draw(number),
        simulated=draw(number),
        chance=0.5 if two_sided else draw(st.floats(0, 0.9)),
        error=0.0,
        exceeds=draw(st.booleans()),
        remedy="less",
        noise=draw(st.floats(0, 0.1)),
        two_sided=two_sided,
    )


def audit_of(found: list[Inference]) -> Audit:
    return Audit("a job", {"bank": "active", "shop": "passive"}, [], [], found, [], lead="bank")


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(inferences(), max_size=6))
def test_words_are_those_of_the_figures(found: list[Inference]) -> None:
    audit, said = audit_of(found), summary(audit_of(found))
    quiet = [line for line in said if "No more than chance" in line]
    sentences = [line for line in said if line not in quiet and "No attack" not in line]
    told = [each for each in found if each.above_chance]
    for each in found:
        away = max(abs(value - 0.5) if each.two_sided else value - each.chance for value in (each.real, each.simulated))
        assert each.above_chance == (away > FOUND and away > 3 * each.noise), each
        assert (each.strength == "none") != each.above_chance
        if not each.above_chance and sentences:
            assert f"{each.name} ({each.attacker})" in quiet[0]
    assert ("No attack that was tried found more than chance." in said) == (not told)
    assert len(sentences) == len({(each.attacker, WHAT.index(each.measures)) for each in told})
    for line in sentences:
        figure, chance = map(float, re.findall(r"(?:\(|chance )(\d\.\d\d)", line))
        assert figure > chance or any(abs(each.score - each.chance) < 0.02 for each in told)
    if told:
        worst = max(told, key=lambda each: (each.exceeds, each.reach))
        assert f"{worst.name} ({worst.figure})" in audit.verdict
        assert f"({max(told, key=lambda each: each.reach).figure})" in sentences[0]
    else:
        assert "most was found" not in audit.verdict
    assert audit.exit_code == int(any(each.exceeds for each in found))
    assert (audit.level == "red") == (audit.exit_code == 1 or any(each.strength == "strong" for each in found))


SOME = Inference("shop", "own part", WHAT[0], "", 0.343, 0.343, 0.5, 0.0, False, "less", noise=0.01, two_sided=True)


def test_a_score_below_chance_is_turned_over() -> None:
    assert (SOME.above_chance, SOME.strength) == (True, "some")
    assert SOME.figure == "0.66, turned over; chance 0.50"
    assert "can often tell, for each person, the label of bank (0.66, turned over" in summary(audit_of([SOME]))[0]
    share = replace(SOME, two_sided=False)
    assert not share.above_chance
    assert summary(audit_of([share])) == ["No attack that was tried found more than chance."]
    assert not replace(SOME, noise=0.06).above_chance


def test_what_is_declared_counts_where_messages_are_coarser() -> None:
    columns = replace(SOME, what=WHAT[1], two_sided=False, real=0.571, simulated=1.0, chance=0.0)
    assert columns.strength == "strong"
    for page in (text(audit_of([columns])), html(audit_of([columns]))):
        assert "by the larger" in page
    assert "0.571   what is declared alone 1.000" in text(audit_of([columns]))


def table(rows: int = 240, d: int = 3) -> list[vfl.Party]:
    generator = np.random.default_rng(0)
    X, Z = generator.normal(size=(2, rows, d))
    y = X[:, 0] + Z[:, 0] + generator.normal(size=rows)
    return [vfl.Party("bank", X, y > 0, aligned=True), vfl.Party("shop", Z, aligned=True)]


def job(residual: object = "open", **keys: object) -> vfl.Job:
    own: dict[str, object] = {"model": vfl.Logistic(), "optimizer": vfl.FedSGD(lr=0.5), "batch_size": 120, "epochs": 8}
    own |= {"accepts": ["columns"]}
    return vfl.Job(**(own | keys), protocol=vfl.Protocol(residual=residual))  # type: ignore[arg-type]


# gamma: f stays where g is not cut off; quantile: half of the rows come so near their label that g has a slope
STEPS: dict[str, dict[str, object]] = {
    "gamma": {"optimizer": vfl.FedSGD(lr=0.05)},
    "quantile": {"optimizer": vfl.FedSGD(lr=0.1), "epochs": 30},
}


@pytest.mark.parametrize("loss", list(LOSSES))
def test_residuals_of_every_loss_are_turned_into_columns(loss: str) -> None:
    """A passive party reads the other's columns from residuals in the clear, whatever the loss."""
    bank, shop = table()
    model: vfl.Model = vfl.GeneralLinear(loss=loss) if LOSSES[loss].single else vfl.Softmax()
    if not LOSSES[loss].classifies:
        scores = bank.X[:, 0] + shop.X[:, 0]
        y = LOSSES[loss].synthetic_labels(scores)
        if LOSSES[loss].guesses:  # as counts and amounts of claims are: few, and then above what is predicted
            y = np.where(scores > 0.8, y, 0)
        bank = vfl.Party("bank", bank.X, y, aligned=True)
    own = job(model=model, **STEPS.get(loss, {}))
    pair = RealIdealPair(own, [bank, shop], 0)
    found = [each for each in received(pair, pair.real_run[1]) if each.learner == "shop"]
    assert found
    assert all(np.isfinite(each.numbers).all() and len(each.rows) == len(each.numbers) for each in found)
    assert ATTACKS["column_space"].score(pair).detail.count("shop about bank: 3 of 3 columns within") == 1


def test_weights_of_rows_hide_sums_and_no_labels() -> None:
    own = job(weights={"classes": "balanced"})
    pair = RealIdealPair(own, table(), 0)
    assert not [each for each in received(pair, pair.real_run[1]) if each.learner == "shop"]
    assert ATTACKS["residual_sign"].score(pair).real > 0.99


def test_visits_that_leave_many_rows_open_are_left_out() -> None:
    open_, known = np.full((4, 1), np.nan), np.arange(4.0)[:, None]
    half = np.where(np.arange(4)[:, None] < 2, known, np.nan)
    rows, numbers = complete([open_, half, known])
    np.testing.assert_array_equal(rows, [0, 1])
    assert [each.ravel().tolist() for each in numbers] == [[0, 1], [0, 1]]


def test_a_family_that_is_not_observed_fails_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without what it learns before them the attacks would end at chance, and the audit with 0."""
    assert not unseen(RealIdealPair(job(vfl.Ckks(), epochs=1), table(), 0))
    monkeypatch.setattr(
        "securevfl.protocols.residuals.base.NotedReply", lambda reply, channel: reply
    )  # goes round the role
    blind = RealIdealPair(job(vfl.Ckks(), epochs=1), table(), 0)
    assert ATTACKS["cross_round"].score(blind).real == 0.5
    (line,) = unseen(blind)
    assert line.startswith("shop: by its entries bank tells it labels of training rows, and none was seen")


EXAMPLES = {name: options for kind in FAMILIES.values() for name, options in kind().example_jobs().items()}


@pytest.mark.parametrize("name", [name for name in EXAMPLES if "paillier" not in name])
def test_what_entries_say_is_seen_in_every_method(name: str) -> None:
    """The examples are the methods' own, so that a new family is among them."""
    own = vfl.Job(**{"batch_size": 60, "epochs": 1} | EXAMPLES[name])
    count = own.family.max_parties or 3
    parties = [party.take(np.arange(120, dtype=np.intp)) for party in vfl.datasets.breast_cancer(count)]
    helpers = [vfl.Helper(name, role) for name, role in own.family.example_helpers]
    assert not unseen(RealIdealPair(own, [*parties, *helpers], 0))


@pytest.mark.long
def test_the_audit_says_which_attack_did_not_run_and_why() -> None:
    audit = run_audit(job(epochs=2), table(), seeds=(0,))
    ran = {each.name for each in audit.inferences}
    left = {line.split(":")[0] for line in audit.skipped if not line.startswith("leak ")}  # that no attack is of
    assert ran | left == {name.replace("_", " ") for name in ATTACKS}
    assert not ran & left
    assert "two values: batches have more than the 64 rows" in " ".join(audit.skipped)
    for page in (text(audit), html(audit)):
        assert "Attacks that were not carried out" in page
        assert "no phases are summed" in page


@pytest.mark.parametrize("noise_parties", [(), ("shop",)])
def test_whose_label_a_row_opens_that_stands_alone_is_told_so(noise_parties: tuple[str, ...]) -> None:
    bank, shop = (party.take(np.arange(120, dtype=np.intp)) for party in vfl.datasets.breast_cancer(2))
    rare = np.zeros(len(shop))
    rare[7] = 1.0
    shop = vfl.Party("shop", np.column_stack([shop.X[:, :2], rare]), ids=shop.ids)
    job = vfl.Job(
        model=vfl.Logistic(), optimizer=vfl.FedSGD(lr=0.1), protocol="ckks", batch_size="all", epochs=1,
        accepts=["columns"],
    )  # fmt: skip
    audit = run_audit(job, [bank, shop], seeds=(0,), noise_parties=noise_parties)
    assert list(audit.opens) == ["bank"]
    told = " ".join(audit.opens["bank"])
    if noise_parties:
        assert "ask it for that line of its sheet" in told
    else:
        assert "shop: 1 rows of 120 are nearly unique" in told
        assert told in str(vfl.explain(job, [bank, shop]))
    assert f"What bank should know of its labels: {told}." in summary(audit)
    section = text(audit).split("\nbank (active)\n")[1].split("\nshop (passive)\n")[0]
    assert audit.opens["bank"][0] in section
    assert "Opened of its labels" in html(audit).split("<section")[1]


def test_what_rare_values_tell_is_said_of_these_rows_alone() -> None:
    found = replace(SOME, name="rare values", real=1.0, two_sided=False)
    assert "the label of bank of rows with rare values in its columns" in summary(audit_of([found]))[0]
    both = summary(audit_of([found, SOME]))
    assert any("for each person, the label of bank" in line for line in both)
