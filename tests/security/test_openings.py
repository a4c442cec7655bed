"""The distance of a whole run's openings from openings that reveal gradients alone, as `explain` states it."""

import math
import re

import pytest

import securevfl as vfl
from securevfl.crypto.kernel.opening_checks import MAX_CHECKS
from securevfl.crypto.kernel.row_parameters import MAX_RUN_OPENINGS
from securevfl.crypto.lattice.lattice_gradient import LATTICE_PROFILE
from securevfl.crypto.paillier.paillier_checks import PAILLIER_CHECKS
from securevfl.protocols.engines import Engine
from securevfl.protocols.residuals.sealed_residual import SealedResidual
from tests.small_keys import SMALL


def line(engine: Engine | str, **keys: object) -> str:
    defaults: dict[str, object] = {
        "model": vfl.Logistic(),
        "optimizer": vfl.FedBCD(lr=0.1),
        "batch_size": 64,
        "epochs": 4,
    }
    job = vfl.Job(**(defaults | keys), protocol=vfl.Protocol(residual=engine))
    words = " ".join(vfl.explain(job, vfl.datasets.breast_cancer(parties=2)).split())
    stated = re.search(r" openings (.*?) (Time, memory and traffic|Messages) ", words)
    return stated[0] if stated else ""


def checks_of(text: str) -> int:
    """Return the largest number of checks of the run."""
    return int(re.search(r"([\d,]+) check values", text)[1].replace(",", ""))


def figures(text: str) -> tuple[int, float, float, float]:
    """Return the number of values of the run, and the distances (bits) for run, key and value."""
    values = int(re.search(r"at most ([\d,]+) values", text)[1].replace(",", ""))
    run, key, one = (float(result) for result in re.findall(r"2\^-([\d.]+)", text)[:3])
    return values, run, key, one


def test_explain_prints_distances_for_run_key_and_value() -> None:
    parties = vfl.datasets.breast_cancer(parties=2)
    columns = sum(party.X.shape[1] for party in parties if not party.active)
    batches = len(parties[0]) // 64 + (len(parties[0]) % 64 > 0)
    text = line(vfl.Ckks())
    values, run, key, one = figures(text)
    assert values == 4 * batches * columns
    assert checks_of(text) == 4 * batches * MAX_CHECKS
    values += checks_of(text)  # all openings are alike
    assert (run, key, one) == pytest.approx(
        [LATTICE_PROFILE.distance_bits(count) for count in (values, values // 4, 1)], abs=0.06
    )
    assert run == pytest.approx(one - math.log2(values) / 2, abs=0.1)  # many openings add up by squares


def test_one_paillier_key_serves_the_run_and_risks_add_up() -> None:
    values, run, key, one = figures(SealedResidual(engine=SMALL).openings(500, 16, columns=250))
    assert values == 8_000
    values += 16 * 250 * PAILLIER_CHECKS
    assert run == key == pytest.approx(one - math.log2(values), abs=0.1)
    assert run > 40


def test_without_openings_nothing_is_stated() -> None:
    assert line("open") == ""


def test_a_run_beyond_the_stated_openings_is_warned() -> None:
    residual = SealedResidual(engine=vfl.Ckks())
    checked = MAX_RUN_OPENINGS // 16 // MAX_CHECKS
    assert "the target is" not in residual.openings(MAX_RUN_OPENINGS // 16, 16, columns=0)
    beyond = residual.openings(MAX_RUN_OPENINGS // 16, 16, columns=checked)
    assert "the target is 2^-40" in beyond


SEALED = {
    "logistic": {"model": vfl.Logistic()},
    "bins": {"model": vfl.Logistic(), "prepare": {"woe": {}}},
    "softmax": {"model": vfl.Softmax()},
    "network": {"model": vfl.Neural(loss="logistic"), "optimizer": vfl.FedBCD(lr=0.1, local_steps=3)},
    "kept": {"model": vfl.Logistic(), "optimizer": vfl.CeluVFL(lr=0.1)},
}


@pytest.mark.parametrize("count", [2, 3])
@pytest.mark.parametrize("name", SEALED)
def test_the_figures_of_one_page_agree(name: str, count: int) -> None:
    """Except for counts of bins, the total of openings equals the stated openings of passive parties."""
    defaults: dict[str, object] = {"optimizer": vfl.FedBCD(lr=0.1), "batch_size": 128, "epochs": 3}
    accepted = ["columns", "rank", "label_auc", "fresh_equations"]
    job = vfl.Job(**(defaults | SEALED[name]), protocol=vfl.Protocol(residual="ckks"), accepts=accepted)
    parties = vfl.datasets.breast_cancer(count)
    page = " ".join(vfl.explain(job, parties).split())

    def numbers(pattern: str) -> list[int]:
        return [int(result.replace(",", "")) for result in re.findall(pattern, page)]

    (values,), opened = numbers(r"at most ([\d,]+) values"), numbers(r"opens\s+([\d,]+)\s+numbers")
    bins = sum(numbers(r"([\d,]+) of these values are counts in bins"))
    assert (bins > 0) == (name == "bins")
    assert len(opened) == count - 1
    assert values - bins == sum(opened)
