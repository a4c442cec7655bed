"""The sentences of an audit agree with its figures and name everything that was not recorded or not attacked."""

import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import securevfl as vfl
from securevfl.audit.attacks import ATTACKS
from securevfl.audit.findings import MIN_EXCESS, Audit, Inference
from securevfl.audit.page import html, summary, text
from securevfl.audit.recording.column_numbers import column_numbers, complete_rows
from securevfl.audit.recording.real_ideal_pair import RealIdealPair
from securevfl.audit.report import run_audit, unrecorded
from securevfl.families import FAMILIES
from securevfl.models.losses import LOSSES

MEASURES = ("AUC of the labels", "share of a column", "AUC of trained on or held out", "share of parts")


@st.composite
def inferences(draw: st.DrawFn) -> Inference:
    number = st.floats(0, 1)
    measures = draw(st.sampled_from(MEASURES))
    two_sided = measures.startswith("AUC")
    return Inference(
        attacker=draw(st.sampled_from(("bank", "shop", "any party"))),
        name=draw(st.sampled_from(("first one", "second one", "third one"))),
        measures=measures,
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


def words(audit: Audit) -> str:
    """Return the text of an audit with single blanks, wherever its lines end."""
    return " ".join(text(audit).split())


def audit_of(result: list[Inference]) -> Audit:
    return Audit("a job", {"bank": "active", "shop": "passive"}, [], [], result, [], lead="bank")


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(inferences(), max_size=6))
def test_the_sentences_agree_with_the_figures(result: list[Inference]) -> None:
    audit, text = audit_of(result), summary(audit_of(result))
    quiet = [line for line in text if "did no better than chance" in line]
    sentences = [line for line in text if line not in quiet and "No attack" not in line]
    lines = [item for item in result if item.above_chance]
    for item in result:
        away = max(abs(value - 0.5) if item.two_sided else value - item.chance for value in (item.real, item.simulated))
        assert item.above_chance == (away > MIN_EXCESS and away > 3 * item.noise), item
        assert (item.strength == "none") != item.above_chance
        if not item.above_chance and sentences:
            assert f"{item.name} ({item.attacker})" in quiet[0]
    assert ("No attack did better than chance." in text) == (not lines)
    assert len(sentences) == len({(item.attacker, MEASURES.index(item.measures)) for item in lines})
    for line in sentences:
        figure, chance = map(float, re.findall(r"(?:\(|chance )(\d\.\d\d)", line))
        assert figure > chance or any(abs(item.score - item.chance) < 0.02 for item in lines)
    if lines:
        worst = max((item.exceeds, item.reach) for item in lines)  # which several attacks may share
        named = [item for item in lines if (item.exceeds, item.reach) == worst]
        assert any(f"{item.name} ({item.figure})" in audit.verdict for item in named)
        best = max(item.reach for item in lines)
        assert any(f"({item.figure})" in sentences[0] for item in lines if item.reach == best)
    else:
        assert "most successful" not in audit.verdict
    assert audit.exit_code == int(any(item.exceeds for item in result))
    assert (audit.level == "red") == (audit.exit_code == 1 or any(item.strength == "strong" for item in result))


SOME = Inference(
    "shop", "partial score", MEASURES[0], "", 0.343, 0.343, 0.5, 0.0, False, "less", noise=0.01, two_sided=True
)


def test_a_ranking_below_chance_is_reversed() -> None:
    assert (SOME.above_chance, SOME.strength) == (True, "some")
    assert SOME.figure == "0.66 with the ranking reversed; chance 0.50"
    assert (
        "can often tell, for each person, the label of bank (0.66 with the ranking reversed"
        in summary(audit_of([SOME]))[0]
    )
    share = replace(SOME, two_sided=False)
    assert not share.above_chance
    assert summary(audit_of([share])) == ["No attack did better than chance."]
    assert not replace(SOME, noise=0.06).above_chance


def test_the_declared_output_counts_if_messages_are_coarser() -> None:
    columns = replace(SOME, measures=MEASURES[1], two_sided=False, real=0.571, simulated=1.0, chance=0.0)
    assert columns.strength == "strong"
    for page in (words(audit_of([columns])), html(audit_of([columns]))):
        assert "the larger score" in page
    assert "real messages 0.571, declared output alone 1.000" in words(audit_of([columns]))


def linear_parties(rows: int = 240, d: int = 3) -> list[vfl.Party]:
    generator = np.random.default_rng(0)
    X, Z = generator.normal(size=(2, rows, d))
    y = X[:, 0] + Z[:, 0] + generator.normal(size=rows)
    return [vfl.Party("bank", X, y > 0, aligned=True), vfl.Party("shop", Z, aligned=True)]


def residual_job(residual: object = "open", **keys: object) -> vfl.Job:
    defaults: dict[str, object] = {
        "model": vfl.Logistic(),
        "optimizer": vfl.FedSGD(lr=0.5),
        "batch_size": 120,
        "epochs": 8,
    }
    defaults |= {"accepts": ["columns"]}
    return vfl.Job(**(defaults | keys), protocol=vfl.Protocol(residual=residual))  # type: ignore[arg-type]


# gamma: f remains in the range without clipping; quantile: half of the rows come so close to their label that g has a
# slope
OPTIMIZER_KEYS: dict[str, dict[str, object]] = {
    "gamma": {"optimizer": vfl.FedSGD(lr=0.05)},
    "quantile": {"optimizer": vfl.FedSGD(lr=0.1), "epochs": 30},
}


@pytest.mark.parametrize("loss", list(LOSSES))
def test_residuals_of_every_loss_reveal_columns(loss: str) -> None:
    """A passive party reconstructs the other party's columns from residuals in the clear, whatever the loss."""
    bank, shop = linear_parties()
    model: vfl.Model = vfl.GeneralLinear(loss=loss) if LOSSES[loss].single else vfl.Softmax()
    if not LOSSES[loss].classifies:
        scores = bank.X[:, 0] + shop.X[:, 0]
        y = LOSSES[loss].synthetic_labels(scores)
        if LOSSES[
            loss
        ].assumes_zero_labels:  # counts and amounts of claims are rare, and above the prediction if they occur
            y = np.where(scores > 0.8, y, 0)
        bank = vfl.Party("bank", bank.X, y, aligned=True)
    job = residual_job(model=model, **OPTIMIZER_KEYS.get(loss, {}))
    pair = RealIdealPair(job, [bank, shop], 0)
    results = [numbers for numbers in column_numbers(pair, pair.real_run[1]) if numbers.learner == "shop"]
    assert results
    assert all(np.isfinite(numbers.numbers).all() and len(numbers.rows) == len(numbers.numbers) for numbers in results)
    assert ATTACKS["column_space"].score(pair).detail.count("shop about bank: 3 of 3 columns inside") == 1


def test_row_weights_hide_sums_but_not_labels() -> None:
    job = residual_job(weights={"classes": "balanced"})
    pair = RealIdealPair(job, linear_parties(), 0)
    assert not [numbers for numbers in column_numbers(pair, pair.real_run[1]) if numbers.learner == "shop"]
    assert ATTACKS["residual_sign"].score(pair).real > 0.99


def test_iterations_that_leave_many_rows_open_are_omitted() -> None:
    open_, known = np.full((4, 1), np.nan), np.arange(4.0)[:, None]
    half = np.where(np.arange(4)[:, None] < 2, known, np.nan)
    rows, numbers = complete_rows([open_, half, known])
    np.testing.assert_array_equal(rows, [0, 1])
    assert [number.ravel().tolist() for number in numbers] == [[0, 1], [0, 1]]


def test_a_family_that_is_not_observed_fails_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """An attack on an empty view would score as chance, and the audit would pass."""
    assert not unrecorded(RealIdealPair(residual_job(vfl.Ckks(), epochs=1), linear_parties(), 0))
    monkeypatch.setattr("securevfl.protocols.residuals.base.NotedReply", lambda reply, channel: reply)
    blind = RealIdealPair(residual_job(vfl.Ckks(), epochs=1), linear_parties(), 0)
    assert ATTACKS["cross_round"].score(blind).real == 0.5
    (line,) = unrecorded(blind)
    assert line.startswith(
        "shop: bank recorded that it discloses labels of training rows to it, but the recorder saw none"
    )


EXAMPLES = {name: options for kind in FAMILIES.values() for name, options in kind().example_jobs().items()}


@pytest.mark.parametrize("name", [name for name in EXAMPLES if "paillier" not in name])
def test_every_disclosure_is_recorded_in_every_method(name: str) -> None:
    """The examples belong to the methods, so that a new family is included."""
    job = vfl.Job(**{"batch_size": 60, "epochs": 1} | EXAMPLES[name])
    count = job.family.max_parties or 3
    parties = [party.take(np.arange(120, dtype=np.intp)) for party in vfl.datasets.breast_cancer(count)]
    helpers = [vfl.Helper(name, role) for name, role in job.family.example_helpers]
    assert not unrecorded(RealIdealPair(job, [*parties, *helpers], 0))


@pytest.mark.long
def test_the_audit_gives_the_reason_of_each_skipped_attack() -> None:
    audit = run_audit(residual_job(epochs=2), linear_parties(), seeds=(0,))
    ran = {inference.name for inference in audit.inferences}
    left = {line.split(":")[0] for line in audit.skipped if not line.startswith("leak ")}
    assert ran | left == {name.replace("_", " ") for name in ATTACKS}
    assert not ran & left
    assert "two values: batches have more than 64 rows" in " ".join(audit.skipped)
    for page in (words(audit), html(audit)):
        assert "Attacks that do not apply" in page
        assert "so no phases are summed" in page


@pytest.mark.parametrize("noise_parties", [(), ("shop",)])
def test_the_party_whose_labels_rare_rows_open_is_warned(noise_parties: tuple[str, ...]) -> None:
    bank, shop = (party.take(np.arange(120, dtype=np.intp)) for party in vfl.datasets.breast_cancer(2))
    rare = np.zeros(len(shop))
    rare[7] = 1.0
    shop = vfl.Party("shop", np.column_stack([shop.X[:, :2], rare]), ids=shop.ids)
    job = vfl.Job(
        model=vfl.Logistic(), optimizer=vfl.FedSGD(lr=0.1), protocol="ckks", batch_size="all", epochs=1,
        accepts=["columns"],
    )  # fmt: skip
    audit = run_audit(job, [bank, shop], seeds=(0,), noise_parties=noise_parties)
    assert list(audit.exposed_labels) == ["bank"]
    disclosed = " ".join(audit.exposed_labels["bank"])
    if noise_parties:
        assert "ask it for this line of its sheet" in disclosed
    else:
        assert "shop: 1 rows of 120 are nearly unique" in disclosed
        assert disclosed in vfl.explain(job, [bank, shop])
    assert f"bank should know about its labels: {disclosed}." in summary(audit)
    section = text(audit).split("\nbank (active)\n")[1].split("\nshop (passive)\n")[0]
    assert audit.exposed_labels["bank"][0] in " ".join(section.split())
    assert "Opened of its labels" in html(audit).split("<h2>bank (active)</h2>")[1].split("</section>")[0]


def test_the_sentence_on_rare_values_is_about_these_rows_only() -> None:
    result = replace(SOME, name="rare values", real=1.0, two_sided=False)
    assert "the label of bank for rows with rare values in its columns" in summary(audit_of([result]))[0]
    both = summary(audit_of([result, SOME]))
    assert any("for each person, the label of bank" in line for line in both)
