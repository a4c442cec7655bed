"""Forty varied jobs disclose what their stored record, their sheet, their report and the outputs of their run state."""

import json
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import astuple, replace
from html import unescape
from pathlib import Path
from typing import NamedTuple

import pytest

import securevfl as vfl
from securevfl.consent.learned_table import learned_table
from securevfl.disclosure.limits import DISCLOSURE_KINDS
from securevfl.disclosure.outputs import Output
from securevfl.families import FAMILIES
from securevfl.families.message_declarations import run_roles
from securevfl.families.run_facts import pooled_run_facts
from securevfl.runtime.disclosure_gate import DisclosureGate, DisclosurePermit, DisclosureRecord
from tests.builders import learned_rows
from tests.disclosure.disclosed_jobs import FILE, PlayedJob, cases, played
from tests.disclosure.door_watch import Said, watched
from tests.disclosure.planned_counts import assert_as_planned, planned
from tests.families.counted_calls import check_once, counted_calls

CASES = cases()
RECORDS = json.loads(FILE.read_text(encoding="utf-8"))
STOPS_EARLY = ("curvature", "shares, target", "shares, rollbacks")  # their runs may end before the last round


def test_every_job_is_recorded() -> None:
    assert RECORDS.keys() == CASES.keys()


SEVERAL = [name for name, (_, parties) in CASES.items() if sum(bool(party.columns) for party in parties) > 2]


@pytest.mark.parametrize("name", SEVERAL)
def test_the_order_of_other_parties_changes_nothing(name: str) -> None:
    """Each organisation may list the others in another order, and several of them have equally many columns."""
    job, (lead, *others) = CASES[name]
    tables = [party for party in others if party.columns]
    helpers = [party for party in others if not party.columns]
    results = []
    for listed in (tables, tables[::-1]):
        facts = pooled_run_facts(job, [lead, *listed, *helpers])
        outputs = [
            (*astuple(replace(item, about=(), words="", explanation="")), frozenset(item.about))
            for item in facts.outputs
        ]
        results.append((Counter(outputs), dict(run_roles(job.family, job, facts.parties).cast)))
    assert results[0] == results[1]


def table_in(page: str) -> list[tuple[str, ...]]:
    """Return the rows of the table of who learns what on a page."""
    table = page[page.index("Learns</th>") :].partition("</table>")[0]
    rows = (re.findall(r"<td[^>]*>(.*?)</td>", line, re.S) for line in table.split("<tr>")[1:])
    return [tuple(unescape(re.sub("<[^>]*>", "", cell)).strip() for cell in row) for row in rows]


def rows_of(outputs: list[Output]) -> Counter[tuple[str, ...]]:
    """Return the rows that a document must have: receiver, what, about whom, how many, bits and share."""
    return Counter(learned_table((), outputs).rows)


class ObservedJob(NamedTuple):
    """One run of a job.

    Attributes:
        name: name of the job.
        played: the run, and what it disclosed.
        records: the records of all disclosure gates.
        messages: the messages that the gates let pass.
        calls: number of calls by what they compute and by party.
    """

    name: str
    played: PlayedJob
    records: list[DisclosureRecord]
    messages: list[Said]
    calls: Counter[tuple[str, str]]


@pytest.fixture(scope="module", params=CASES)
def observed(request: pytest.FixtureRequest) -> Iterator[ObservedJob]:
    """Run each job once for all tests of it."""
    collected, permit = list[DisclosureRecord](), DisclosureGate.permit

    def noted(self: DisclosureGate, record: DisclosureRecord) -> DisclosurePermit:
        issued = permit(self, record)
        collected.append(issued.record)
        return issued

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DisclosureGate, "permit", noted)
        messages, calls = watched(patch), counted_calls(patch)
        yield ObservedJob(request.param, played(*CASES[request.param]), collected, messages, calls)


def test_a_job_discloses_what_its_record_states(observed: ObservedJob) -> None:
    result = json.loads(json.dumps(observed.played.record))
    expected = dict(RECORDS[observed.name])
    if observed.name in STOPS_EARLY:
        del result["ledgers"], expected["ledgers"]
    assert result == expected


def test_every_record_at_a_gate_is_of_an_output_and_has_its_bits(observed: ObservedJob) -> None:
    outputs = pooled_run_facts(*CASES[observed.name]).outputs
    bits = {}
    for output in outputs:
        key = output.disclosure.key
        bits[key] = max(bits.get(key, 0), output.bits if output.numbers else 0)
    for item in observed.records:
        if item.kind in DISCLOSURE_KINDS:
            key = (item.kind, item.to, item.about, item.group)
            assert 0 < item.bits <= bits[key], (item, outputs)


def test_debits_are_those_expected(observed: ObservedJob) -> None:
    """Counts by kind and learner equal those that leak checks read.

    Plain numbers are counted too, and no message has more bits than its disclosure states.
    """
    assert not [message for message in observed.messages if message.short]
    job, parties = CASES[observed.name]
    plan = planned(job, parties)
    for party, entries in observed.played.entries.items():
        assert_as_planned(entries, *plan[party], ends_early=observed.name in (*STOPS_EARLY, "shares, early stop"))


def test_a_run_in_one_process_computes_its_facts_once(observed: ObservedJob) -> None:
    job, parties = CASES[observed.name]
    if "rollbacks" not in observed.name:  # a rollback changes the plan
        check_once(observed.calls, parties, shares=job.family.name == "shares")


def test_sheet_and_report_state_every_output(observed: ObservedJob, tmp_path: Path) -> None:
    job, parties = CASES[observed.name]
    expected = rows_of(list(pooled_run_facts(job, parties).outputs))
    assert Counter(row for row in learned_rows(vfl.explain(job, parties)) if row[2]) == expected
    observed.played.run.report(tmp_path / "run.html")
    page = (tmp_path / "run.html").read_text(encoding="utf-8")
    assert Counter(row for row in table_in(page) if row[2]) == expected


@pytest.mark.parametrize("name", CASES)
def test_every_output_has_guards_that_exist(name: str) -> None:
    job, parties = CASES[name]
    facts = pooled_run_facts(job, parties)
    kinds = {kind.name for family in FAMILIES.values() for kind in family.leak_kinds}
    assert facts.outputs
    for output in facts.outputs:
        assert set(output.leaks) <= kinds
        assert output.times > 0
