"""Every consent sheet weighs the bits that scores disclose about a new row against the bits of other parties' rows."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import securevfl as vfl
from securevfl.audit.report import run_audit
from securevfl.data.party import Helper
from securevfl.disclosure.information_content import InformationContent
from securevfl.disclosure.score_reading import readable_shares
from securevfl.families import FAMILIES, leak_kinds

EXAMPLES = {name: options for kind in FAMILIES.values() for name, options in kind().example_jobs().items()}


def independent_tables(names: int = 3, classes: int = 2) -> list[vfl.Party]:
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(240, 2 * names)), rng.integers(0, classes, 240)
    return [
        vfl.Party(name, X[:, 2 * k : 2 * k + 2], y if k == 0 else None, aligned=True)
        for k, name in enumerate(("bank", "shop", "telco")[:names])
    ]


def sheet(options: dict[str, Any], classes: int = 2) -> str:
    job = vfl.Job(**{"batch_size": 60, "epochs": 2} | options | {"accepts": [*leak_kinds()]})
    helpers = [Helper(name, role) for name, role in job.family.example_helpers]
    return vfl.explain(job, [*independent_tables(job.family.max_parties or 3, classes), *helpers])


@pytest.mark.parametrize("name", sorted(EXAMPLES))
def test_every_sheet_weighs_scores_against_columns(name: str) -> None:
    options = EXAMPLES[name]
    bits = 6 if "counts" in name else 7 if "shares" in name or "trees" in name else 64
    who = "bank" if "to another" in name else "shop"
    text = " ".join(sheet(options).split())
    amount = (
        r"The scores of a row \(64 bits\) can reveal all" if bits == 64 else f"The {bits} bits of a score are at most"
    )
    assert re.search(rf"{amount} .*bits that the columns of {who} contain about a row\.", text)


def test_scores_of_several_classes_are_as_many_numbers() -> None:
    shares = {"model": vfl.GeneralLinear(loss="one_vs_rest"), "optimizer": vfl.FedSGD(lr=0.1)}
    for protocol, bits in ((vfl.Protocol(residual="open"), 64), (vfl.Protocol(shares=vfl.Shares(score_bits=3)), 3)):
        text = " ".join(sheet(shares | {"protocol": protocol}, classes=4).split())
        assert re.search(rf"\(4 numbers of {bits} bits\) can reveal all \d+ bits that the columns of shop", text)


@pytest.mark.parametrize(("columns", "bits"), [(10, 2), (3, 3), (4, 5), (7, 7)])
def test_score_bits_follow_columns_and_too_few_are_refused(columns: int, bits: int) -> None:
    rng = np.random.default_rng(0)
    bank = vfl.Party("bank", rng.normal(size=(2400, 3)), rng.integers(0, 2, 2400), aligned=True)
    X = rng.normal(size=(2400, columns))
    shop = vfl.Party("shop", X > 0 if columns == 10 else X, aligned=True)
    text = vfl.explain(vfl.Job(model="logistic"), [shop], others={"bank": 3})
    assert ("would be refused" in text) == (bits < 4)
    if bits < 3:
        assert 'add scores = "none" to protocol.shares, or accept it with accepts' in text
        return
    if bits < 4:
        assert f'add score_bits = {bits} or scores = "none" to protocol.shares, or accept it with accepts' in text
        text = vfl.explain(vfl.Job(model="logistic", protocol=fewer(bits)), [shop], others={"bank": 3})
        assert "would be refused" not in text
    assert f"rounded to one of {2**bits} values ({bits} bits)" in text
    assert ("The job would permit 128 values (7 bits). The program uses fewer" in text) == (4 <= bits < 7)
    accepted = vfl.explain(vfl.Job(model="logistic", accepts=["scores"]), [shop], others={"bank": 3})
    assert "rounded to one of 128 values (7 bits)" in accepted
    if bits < 7:  # a number that the job names is disclosed or refused
        named = vfl.explain(vfl.Job(model="logistic", protocol=fewer(7)), [bank, shop])
        assert f"add score_bits = {bits} " in named


def fewer(bits: int) -> vfl.Protocol:
    return vfl.Protocol(shares=vfl.Shares(score_bits=bits))


def test_where_no_score_is_told_none_is_weighed() -> None:
    options = {"model": vfl.Logistic(), "optimizer": vfl.FedSGD(lr=0.1)}
    text = sheet(options | {"protocol": vfl.Protocol(shares=vfl.Shares(scores="none"))})
    assert "scores of a row" not in text
    assert "bits of a score" not in text


def test_what_is_told_is_a_part_of_what_a_row_holds_or_all_of_it() -> None:
    def words(row_bits: float, bits: int, outputs: int) -> str:
        text = InformationContent(row_bits, 0.2).in_words(bits, outputs, "shop")
        assert text.endswith(f"{row_bits:.0f} bits that the columns of shop contain about a row.")
        return text

    assert words(19.0, 6, 1).startswith("The 6 bits of a score are at most 32% of the 19 bits")
    several = "The 12 bits of the scores of a row (4 numbers of 3 bits) are at most 30% of the 40 bits"
    assert words(40.0, 3, 4).startswith(several)
    assert words(8.0, 6, 2).startswith("The scores of a row (2 numbers of 6 bits) can reveal all 8 bits")
    assert words(0.0, 6, 1).startswith("The scores of a row (6 bits) can reveal all 0 bits")


@pytest.mark.parametrize(("rows", "named"), [(1508, "(test_fraction = 0.27)"), (600, "(test_fraction)")])
def test_who_holds_too_few_rows_out_reads_how_many_are_enough(rows: int, named: str) -> None:
    first_rows = np.arange(rows)
    parties = [party.take(first_rows) for party in vfl.datasets.loans()]
    assert f"hold out more rows {named}" in vfl.explain(vfl.Job(model="logistic"), parties)
    enough = vfl.Job(model="logistic", test_fraction=0.27)
    assert ("fewer than 400" in vfl.explain(enough, parties)) == (rows == 600)


def _tables_with_a_shared_factor(rows: int = 900) -> list[vfl.Party]:
    """Return a bank with labels, and a shop with eight columns that one factor determines up to some noise."""
    draw = np.random.default_rng(5)
    factor = draw.normal(size=(rows, 1))
    shop = factor + 0.25 * draw.normal(size=(rows, 8))
    bank = draw.normal(size=(rows, 3))
    y = bank[:, 0] + shop.mean(axis=1) + draw.logistic(size=rows) > 0
    return [vfl.Party("bank", bank, y, ids=range(rows)), vfl.Party("shop", shop, ids=range(rows))]


@pytest.mark.slow
def test_the_sheet_begins_with_the_result_of_the_audits_attack() -> None:
    """The sheet's figure covers what the audit reads from the scores of the trained model, and both allow the job."""
    parties = _tables_with_a_shared_factor()
    job = vfl.Job(model="logistic", epochs=4, test_fraction=0.5)
    ((word, text), *_) = vfl.explain(job, parties).sections[0].blocks[0].statements
    assert word == "risk"
    pattern = r" (\d+)% of the variation in the column (\S+) of shop could be computed from the scores\."
    stated = re.search(pattern, text)
    assert stated is not None
    assert stated[2] in parties[1].columns
    audit = run_audit(job, parties, seeds=(0,))
    (attack,) = (inference for inference in audit.inferences if inference.name == "score columns")
    assert 0.8 < attack.real == attack.simulated <= int(stated[1]) / 100 + 0.02
    assert audit.exit_code == 0, [*audit.exceeding, *audit.failed]


def test_a_sheet_names_only_columns_of_its_owner() -> None:
    bank, shop = vfl.datasets.loans()
    job = vfl.Job(model="logistic")
    at_shop = " ".join(vfl.explain(job, [shop], others={"bank": len(bank.columns)}).split())
    (column,) = re.findall(r"of the variation in the column (\S+) of shop", at_shop)
    assert column in shop.columns
    at_bank = vfl.explain(job, [bank], others={"shop": len(shop.columns)})
    assert not [name for name in shop.columns if name in at_bank.split()]
    assert "of the variation in" not in at_bank


@pytest.mark.parametrize("constant", [(), (0,), (1,), (0, 2, 5), (4,)])
def test_the_most_readable_column_is_named_next_to_constants(constant: tuple[int, ...]) -> None:
    """The third of four varying columns is the common part of the others, wherever constant columns are."""
    rng, count = np.random.default_rng(7), 4 + len(constant)
    varying = [j for j in range(count) if j not in constant]
    noise, common = rng.normal(size=(4096, 4)), rng.normal(size=4096)
    noise[:, 2] = 0.0
    X = np.full((4096, count), 3.0)
    X[:, varying] = common[:, None] + noise
    content = InformationContent.of(X, [f"c{j}" for j in range(count)])
    assert content.readable_column == f"c{varying[2]}"
    assert content.readable_share > 0.5


def test_independent_columns_are_hardly_readable() -> None:
    """One score of many independent columns reveals little of each, and nothing of a table without columns."""
    X = np.random.default_rng(6).normal(size=(4096, 50))
    assert InformationContent.of(X).readable_share < 0.2
    assert not readable_shares(np.zeros((10, 0))).size
    assert not readable_shares(X[:3]).any()
