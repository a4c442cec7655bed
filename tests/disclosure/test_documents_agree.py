"""Sheet, report, account, proof and audit state the same disclosures as the outputs of a run; README does, too.

The outputs (`securevfl.disclosure.outputs`) are the records. `test_disclosed_the_same.py` compares the sheet and the
report of every job with them. `tests/docs/test_readme.py` compares README with them,
and `tests/security/test_audit_report.py` the text and the page of a whole audit.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

import securevfl as vfl
from securevfl.disclosure.ledger import DisclosureLedger
from securevfl.disclosure.outputs import combined_outputs, disclosures_of
from securevfl.families.run_facts import pooled_run_facts
from tests.disclosure.disclosed_jobs import cases

CASES = cases()
SHARES = [name for name, (job, _) in CASES.items() if job.protocol.shares is not None]
PROOF = Path(__file__).parents[2] / "docs" / "proof.md"
PROVED = {
    "pairs of a score and a label in random order": ("pairs", "the last evaluation"),
    "sums of losses": ("sum of losses", "an evaluation"),
    "counts of rows out of range": (
        "count",
        "after every 40 epochs, or `chunk` epochs, and after the last planned one",
    ),
    "opened weights": ("weights", "the end"),
    "decisions to stop or to roll back": ("stop decision", "after an evaluation"),
}
"""For each output of a job on shares the row of the proof: what it is called there, and when it is sent."""


def test_the_account_has_the_bits_of_every_output(tmp_path: Path) -> None:
    """The ledger of the shop counts as many bits about its columns as the table of the sheet adds up to."""
    job, parties = vfl.Job(model=vfl.Logistic()), list(vfl.datasets.loans())
    outputs = list(pooled_run_facts(job, parties).outputs)
    ledgers = {party.name: DisclosureLedger(tmp_path / f"{party.name}.ledger", party.name) for party in parties}
    vfl.simulate(job, parties, ledgers=ledgers)
    counted, foreseen = Counter[tuple[str, ...]](), Counter[tuple[str, ...]]()
    for entry in ledgers["shop"].read().counted:
        counted[entry.disclosure.kind, entry.disclosure.learner, entry.disclosure.group] += entry.disclosure.count
    for item in disclosures_of(outputs):
        foreseen[item.kind, item.learner, item.group] += item.count
    assert counted == foreseen
    assert foreseen.total() > 0
    assert not ledgers["bank"].read().counted


@pytest.mark.skipif(not PROOF.exists(), reason="needs a checkout")
@pytest.mark.parametrize("name", SHARES)
def test_the_proof_has_a_row_for_every_output_on_shares(name: str) -> None:
    job, parties = CASES[name]
    lines = [line.strip("|").split(" | ") for line in PROOF.read_text(encoding="utf-8").splitlines() if "|" in line]
    proved = {cells[0].strip(): cells for cells in lines if len(cells) == 5}
    for output in pooled_run_facts(job, parties).outputs:
        head, when = PROVED[output.name]
        _, receiver, stated, what, _ = proved[head]
        assert stated.startswith(when)
        if receiver == "A":
            assert output.receiver == parties[0].name
        bits = {"pairs": "k <= 7, m = 1", "weights": "f + 7 bits"}.get(head, f"{output.bits} bits")
        assert bits in what, output
        assert head != "pairs" or output.bits == 7 + 1
        assert head != "count" or output.rows <= 1024


def test_outputs_of_several_parties_have_the_smallest_capacity() -> None:
    """A party knows the content of its columns alone; what follows from all values is a share of the smaller one."""
    output = next(iter(pooled_run_facts(*CASES["shares"]).outputs))
    known = {
        "bank": [replace(output, capacity=0)],
        **{name: [replace(output, capacity=capacity)] for name, capacity in zip(output.about, (90, 80), strict=True)},
    }
    assert [item.capacity for item in combined_outputs(known)] == [80]
    assert [item.capacity for item in combined_outputs({"bank": known["bank"]})] == [0]
