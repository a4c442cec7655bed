"""Forty varied jobs disclose what their stored record states."""

import json

import pytest

import securevfl as vfl
from securevfl.disclosure.limits import DISCLOSURE_KINDS
from securevfl.families import FAMILIES
from securevfl.families.run_facts import pooled_run_facts
from securevfl.runtime.disclosure_gate import DisclosureGate, DisclosurePermit, DisclosureRecord
from tests.disclosure.disclosed_jobs import FILE, cases, record

CASES = cases()
RECORDS = json.loads(FILE.read_text(encoding="utf-8"))
STOPS_EARLY = ("curvature", "shares, target", "shares, rollbacks")  # their runs may end before the last round


def test_every_job_is_recorded() -> None:
    assert RECORDS.keys() == CASES.keys()


@pytest.mark.parametrize("name", CASES)
def test_a_job_discloses_what_its_record_states(name: str) -> None:
    result = json.loads(json.dumps(record(*CASES[name])))
    expected = dict(RECORDS[name])
    if name in STOPS_EARLY:
        del result["ledgers"], expected["ledgers"]
    assert result == expected


@pytest.fixture
def records(monkeypatch: pytest.MonkeyPatch) -> list[DisclosureRecord]:
    """Collect the records of all disclosure gates, with the rows that they are about."""
    collected, permit = list[DisclosureRecord](), DisclosureGate.permit

    def watched(self: DisclosureGate, record: DisclosureRecord) -> DisclosurePermit:
        issued = permit(self, record)
        collected.append(issued.record)
        return issued

    monkeypatch.setattr(DisclosureGate, "permit", watched)
    return collected


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", CASES)
def test_every_record_at_a_gate_is_of_an_output_and_has_its_bits(name: str, records: list[DisclosureRecord]) -> None:
    job, parties = CASES[name]
    vfl.simulate(job, parties)
    outputs = pooled_run_facts(job, parties).outputs
    bits = {}
    for output in outputs:
        key = output.disclosure.key
        bits[key] = max(bits.get(key, 0), output.bits if output.numbers else 0)
    for item in records:
        if item.kind in DISCLOSURE_KINDS:
            key = (item.kind, item.to, item.about, item.group)
            assert 0 < item.bits <= bits[key], (item, outputs)


@pytest.mark.parametrize("name", CASES)
def test_every_output_has_guards_that_exist(name: str) -> None:
    job, parties = CASES[name]
    facts = pooled_run_facts(job, parties)
    kinds = {kind.name for family in FAMILIES.values() for kind in family.leak_kinds}
    assert facts.outputs
    for output in facts.outputs:
        assert set(output.leaks) <= kinds
        assert output.times > 0
