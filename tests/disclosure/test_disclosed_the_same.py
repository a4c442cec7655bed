"""Forty varied jobs disclose what their stored record states."""

import json

import pytest

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
