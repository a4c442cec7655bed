"""The page for lawyers: a named test checks each of its sentences, and it follows the consent sheet."""

from __future__ import annotations

import re
from collections import Counter
from functools import cache
from itertools import takewhile
from pathlib import Path

import pytest

import securevfl as vfl
from securevfl.transport import identity, pem_files
from tests.builders import section_words

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "for-lawyers.md"
pytestmark = pytest.mark.skipif(not PAGE.exists(), reason="needs a checkout")

HERE = "tests/docs/test_lawyers.py::"
SHEET = HERE + "test_the_page_follows_the_whole_sheet"
FILES = HERE + "test_every_file_of_a_training_is_named"
SIGNED = HERE + "test_a_consent_is_a_line_and_a_signature_is_of_the_session"
ASKED = "tests/transport/test_serve.py::test_scores_are_those_of_the_run_for_rows_that_all_have"
FORGET = "tests/cli/test_forget.py::"
CONSENT = "tests/cli/test_consent.py::"
SHARES = "tests/protocols/test_shares.py::"
SCORED = "tests/transport/test_scored_again.py::test_a_request_omits_refused_rows_and_repeats_stored_scores"
SLOTS = "tests/security/test_evaluation_slots.py::"
DOCUMENT = "tests/disclosure/test_sheet_document.py::"
DIGEST = DOCUMENT + "test_the_digest_covers_the_lines_and_not_the_date"
OUTPUTS = DOCUMENT + "test_every_output_is_in_the_table_once_with_its_bits"
SIZES = "tests/disclosure/test_account.py::test_numbers_in_the_transcript_are_those_in_the_ledgers"

HELD = {  # the beginning of a sentence and the test that checks it
    "This page gives a data": HERE + "test_every_sentence_has_an_existing_test",
    "It is not legal advice": HERE + "test_every_sentence_has_an_existing_test",
    "It follows the first screen": SHEET,
    "Each party reads": CONSENT + "test_nothing_but_the_meeting_is_told_before_consent",
    "Until then the training": CONSENT + "test_nothing_but_the_meeting_is_told_before_consent",
    "The file tests/docs": HERE + "test_every_sentence_has_an_existing_test",
    "The active party has": "tests/data/test_bad_input.py::test_parties",
    "A passive party has": "tests/data/test_bad_input.py::test_parties",
    "Each organisation runs": "tests/organisations/test_docs_two_organisations.py::test_the_page",
    "The parties exchange messages": "tests/transport/test_hub.py::test_a_hub_reads_nothing",
    "If they choose a relay": "tests/transport/test_hub.py::test_a_hub_reads_nothing",
    "In the default mode each": SHARES + "test_what_either_party_receives_in_visits_is_uniform",
    "A party that has one share": SHARES + "test_what_either_party_receives_in_visits_is_uniform",
    "The active party holds one": SHARES + "test_two_of_three_shares_of_weights_are_noise",
    "One other party, its": SHARES + "test_two_of_three_shares_of_weights_are_noise",
    "The parties find the persons": "tests/security/test_psi_leaks.py::test_two_alignments_cannot_be_linked",
    "For this, each party sends": "tests/security/test_psi_leaks.py::test_two_alignments_cannot_be_linked",
    "Each party learns which": "tests/protocols/test_psi.py::test_every_party_gets_the_rows_of_the_plain_intersection",
    "That somebody is a client": "tests/protocols/test_psi.py::test_every_message_is_declared",
    "About persons who are not": "tests/security/test_psi_leaks.py::test_the_active_party_learns_no_single_membership",
    "If the parties choose to compare columns": "tests/organisations/test_correlate.py::"
    "test_all_that_passes_is_declared_and_entered",
    "The program limits these": "tests/organisations/test_correlate.py::"
    "test_ledgers_count_them_and_refuse_what_goes_too_far",
    "A correlation is an average": "tests/organisations/test_correlate.py::"
    "test_ledgers_count_them_and_refuse_what_goes_too_far",
    "A party that cheats can": "tests/organisations/test_correlate.py::"
    "test_ledgers_count_them_and_refuse_what_goes_too_far",
    "If the parties choose to compare how": "tests/organisations/test_fairness_by_group.py::"
    "test_groups_under_100_rows_are_not_told_nor_follow",
    "The rows below are those": SHEET,
    "The sheet that a party reads": CONSENT + "test_the_digest_of_a_sheet_ignores_the_order_of_peers",
    "Each row of this table": OUTPUTS,
    "The ledger and the audit count": "tests/disclosure/test_disclosed_the_same.py::"
    "test_every_record_at_a_gate_is_of_an_output_and_has_its_bits",
    "The receiver; the values": OUTPUTS,
    'For the part, "all"': OUTPUTS,
    'A "-" means': OUTPUTS,
    "It does not learn which": SIZES,
    "The passive party learns nothing": SHARES + "test_what_either_party_receives_in_visits_is_uniform",
    "Residuals, scores and weights": SHARES + "test_what_either_party_receives_in_visits_is_uniform",
    "Whatever a party receives": SHARES + "test_what_either_party_receives_in_visits_is_uniform",
    "A party can bound": "tests/cli/test_ledger.py::test_the_limit_that_a_sheet_advises_bounds_the_default_job",
    "No program can delete": "tests/disclosure/test_ledger.py::test_tables_that_share_rows_count_together",
    "The digest identifies": DIGEST,
    "Date and version": DIGEST,
    "These sentences explain": OUTPUTS,
    "A party's sheet names": "tests/disclosure/test_score_bits.py::test_a_sheet_names_only_columns_of_its_owner",
    "The value of 5%": "tests/cli/test_ledger.py::test_the_limit_that_a_sheet_advises_bounds_the_default_job",
    "The sample has neither": SHEET,
    "Then it lists the leaks": CONSENT + "test_the_first_screen_lists_disclosures_and_no_messages",
    "All parties learn": SIZES,
    "Several columns may": "tests/disclosure/test_score_bits.py::"
    "test_the_sheet_begins_with_the_result_of_the_audits_attack",
    "The program attacks a sample": "tests/disclosure/test_score_bits.py::"
    "test_the_sheet_begins_with_the_result_of_the_audits_attack",
    "It states how much of the": "tests/disclosure/test_score_bits.py::"
    "test_the_sheet_begins_with_the_result_of_the_audits_attack",
    "For each person that": "tests/disclosure/test_score_bits.py::test_every_sheet_weighs_scores_against_columns",
    "A score is a fact": "tests/transport/test_serve.py::test_scores_are_those_of_the_run_for_rows_that_all_have",
    "The program uses fewer": "tests/disclosure/test_score_bits.py::"
    "test_score_bits_follow_columns_and_too_few_are_refused",
    "The active party can subtract": "tests/transport/test_serve.py::"
    "test_scores_of_a_party_with_one_column_tell_the_column",
    "If one column of another": "tests/security/test_audit_levels.py::test_levels_reveal_a_column_with_a_large_weight",
    "A repeated question": SCORED,
    "The program refuses to score": SCORED,
    "The active party learns the distribution": "tests/protocols/test_word_shuffle.py::"
    "test_what_is_received_is_uniform",
    "It cannot assign": "tests/protocols/test_word_shuffle.py::test_every_order_is_as_likely",
    "Among few persons": "tests/security/test_audit_shares.py::test_nothing_exceeds_what_is_declared",
    "The program therefore refuses": "tests/families/test_shares_needs.py::"
    "test_the_rarest_label_is_counted_among_evaluated_rows",
    "The active party learns one count": SIZES,
    "The active party learns how large": "tests/security/test_evaluation_slots.py::"
    "test_slots_read_one_row_for_each_level_once_a_job",
    "An active party that changes": SLOTS + "test_slots_read_one_row_for_each_level_once_a_job",
    "The sheet states how much it": SLOTS + "test_slots_read_one_row_for_each_level_once_a_job",
    "Each party's program adds": SLOTS + "test_other_splits_are_stopped_by_the_limit",
    "Everything else that a party": SHARES + "test_what_either_party_receives_in_visits_is_uniform",
    "A passive party's columns": "tests/disclosure/test_score_bits.py::test_every_sheet_weighs_scores_against_columns",
    "If the active party and its partner": SHARES + "test_coalitions_are_listed",
    "Of a third party they": "tests/protocols/test_shares_predict.py::test_parts_of_further_parties_are_uniform",
    "No other group of parties": "tests/protocols/test_shares_predict.py::test_parts_of_further_parties_are_uniform",
    "The proof applies": SHEET,
    "SECURITY.md, a file": HERE + "test_security_states_what_a_malicious_party_can_read",
    "Below its first table": "tests/disclosure/test_said.py::test_the_sheet_that_counts_a_ledger_has_its_own_digest",
    "A party's ledger counts": "tests/disclosure/test_debits_everywhere.py::"
    "test_a_killed_process_disclosed_no_more_than_its_ledger_has",
    "securevfl explain --details": CONSENT + "test_the_first_screen_lists_disclosures_and_no_messages",
    "The digest that a party": CONSENT + "test_the_first_screen_lists_disclosures_and_no_messages",
    "If the job, the sizes": CONSENT + "test_the_digest_of_a_sheet_ignores_the_order_of_peers",
    "Before it has agreed": CONSENT + "test_nothing_but_the_meeting_is_told_before_consent",
    "No.": SIGNED,
    "The program writes": SIGNED,
    "The sheet is not sent": CONSENT + "test_nothing_but_the_meeting_is_told_before_consent",
    "The start of each connection": SIGNED,
    "The others check certificate": SIGNED,
    "If you need a consent": SIGNED,
    "That the active party asks": ASKED,
    "The table above does not count": ASKED,
    "The modes with": CONSENT + "test_the_first_screen_lists_disclosures_and_no_messages",
    "No mode hides": SIZES,
    "All of these files": FILES,
    "No file is sent": SIZES,
    "securevfl forget --party": FORGET + "test_all_that_it_left_is_deleted_and_nothing_that_counts",
    "It also deletes the row order": FORGET + "test_forget_keeps_the_work_of_another_training_on_the_table",
    "It never deletes": FORGET + "test_all_that_it_left_is_deleted_and_nothing_that_counts",
    "It refuses to delete": FORGET + "test_nothing_is_deleted_while_a_run_is_on",
    "It cannot find backups": FORGET + "test_a_damaged_part_is_deleted_and_what_is_none_is_not",
    "Can a person's": SCORED,
    "Remove the row": SCORED,
    "Levels of scores": "tests/disclosure/test_ledger.py::test_tables_that_share_rows_count_together",
    "Are the data anonymous": SHARES + "test_coalitions_are_listed",
    "No: the parties": SHARES + "test_coalitions_are_listed",
    "Which records remain": CONSENT + "test_a_pipe_requires_a_digest_and_the_error_names_it",
    "The digests of the consent sheets": CONSENT + "test_a_pipe_requires_a_digest_and_the_error_names_it",
    "Each party's files": CONSENT + "test_a_party_alone_sees_the_sheet_that_the_run_shows_it",
    "How do we know": "tests/cli/test_main.py::test_audit_of_a_job_on_its_tables",
    "securevfl audit attacks": "tests/cli/test_main.py::test_audit_of_a_job_on_its_tables",
    "Nobody outside": HERE + "test_every_sentence_has_an_existing_test",
}

ASKED_TESTS = {  # each question of the page and the tests of the facts in its answer
    "Is one share personal data for the party that holds it?": (
        SHARES + "test_what_either_party_receives_in_visits_is_uniform",
    ),
    "Can the parties agree on the alignment first, or limit it?": (
        "tests/account/test_alignment.py::test_each_party_enters_what_its_peers_can_test",
        "tests/account/test_alignment.py::test_a_limit_of_ids_refuses_an_alignment_before_it_sends",
    ),
    "Does the folder that the bank sends to the shop contain the shop's private key?": (
        "tests/organisations/test_docs_two_organisations.py::test_the_page",
    ),
    "Does the sheet state that all parties agree to exceed the 7%?": (
        "tests/security/test_audit_shares.py::test_nothing_exceeds_what_is_declared",
        CONSENT + "test_the_first_screen_lists_disclosures_and_no_messages",
    ),
    "How do the 7% and the 5% relate?": (
        "tests/cli/test_ledger.py::test_the_limit_that_a_sheet_advises_bounds_the_default_job",
        "tests/organisations/test_correlate.py::test_a_training_counts_earlier_correlations_by_their_share",
    ),
    "Do the 7% include scores of later persons?": (
        "tests/protocols/test_score_ledger.py::test_budgets_of_rows_are_their_owner_s_over_all_who_ask",
    ),
    "About how many persons may the bank ask?": (
        "tests/transport/test_serve.py::test_nobody_serves_without_limits",
        "tests/transport/test_serve.py::test_a_request_with_too_many_ids_learns_nothing",
        "tests/disclosure/test_score_bits.py::test_where_no_score_is_told_none_is_weighed",
    ),
    "Are 892 bits the maximum for all cheating?": (
        "tests/protocols/test_word_shuffle.py::test_offsets_by_order_stay_below_the_bound_of_the_proof",
        "tests/transport/test_repeats.py::test_pairs_that_are_opened_again_are_counted_again",
        "tests/protocols/test_at_rest.py::test_an_older_copy_of_an_account_is_refused",
    ),
    "What could a cheating shop do?": (
        "tests/account/test_alignment.py::test_each_party_enters_what_its_peers_can_test",
        "tests/security/test_tries.py::test_all_peers_together_have_one_number_of_attempts",
        SHARES + "test_what_either_party_receives_in_visits_is_uniform",
    ),
    "How long may the ledger keep digests and scores?": (
        FORGET + "test_all_that_it_left_is_deleted_and_nothing_that_counts",
    ),
    "What happens to the ledger if the table is deleted?": (
        "tests/disclosure/test_ledger.py::test_tables_that_share_rows_count_together",
    ),
    "What does the shop record of the bank's questions?": (
        "tests/transport/test_serve.py::test_requests_reveal_membership_and_every_id_is_counted",
        "tests/protocols/test_score_ledger.py::test_a_row_is_bound_to_the_columns_of_who_asked",
    ),
    "How does a request for erasure treat the digests and scores?": (
        FORGET + "test_all_that_it_left_is_deleted_and_nothing_that_counts",
        "tests/protocols/test_at_rest.py::test_an_adopted_ledger_counts_everything_as_disclosed",
    ),
}


def plain(text: str) -> str:
    """Return text without emphasis, code and links."""
    return re.sub(r"[*`]|\[([^\]]*)\]\([^)]*\)", lambda result: result[1] or "", text)


def table_rows(head: str) -> list[list[str]]:
    """Return the rows of the table whose heading begins with this text."""
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    at = next(number for number, line in enumerate(lines) if line.startswith(f"| {head}"))
    rows = []
    for line in lines[at + 2 :]:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line.strip("|").split("|")])
    return rows


def sentences() -> list[str]:
    """Return each sentence of the page, and of the explanations of lines of the sheet in its table."""
    text = PAGE.read_text(encoding="utf-8")
    prose = re.sub(r"^(\||#).*$", "", text, flags=re.M)
    blocks = [" ".join(block.split()) for block in prose.split("\n\n")] + [
        row[1] for row in table_rows("The sheet states")
    ]
    return [word for block in blocks for word in re.split(r"(?<=[.?])\s+(?=[A-Zs])", plain(block)) if word]


@cache
def source(path: str) -> str:
    return (ROOT / path).read_text(encoding="utf-8")


def test_every_sentence_has_an_existing_test() -> None:
    result = sentences()
    begun = {item: [head for head in HELD if item.startswith(head)] for item in result}
    assert {item: heads for item, heads in begun.items() if len(heads) != 1} == {}
    assert set(HELD) == {head for heads in begun.values() for head in heads}
    for held_out in HELD.values():
        path, _, name = held_out.partition("::")
        assert f"def {name}(" in source(path), held_out


def questions() -> dict[str, list[str]]:
    """Return the answer and the sources of each question in the tables of questions."""
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    heads = [number for number, line in enumerate(lines) if line.startswith("| Question |")]
    rows = [line for head in heads for line in takewhile(lambda text: text.startswith("|"), lines[head + 2 :])]
    cells = ([cell.strip() for cell in line.strip("|").split("|")] for line in rows)
    return {question: [answer, sources] for question, answer, sources in cells}


def test_every_answer_has_existing_tests_and_sources() -> None:
    asked = questions()
    assert set(asked) == set(ASKED_TESTS)
    for tests in ASKED_TESTS.values():
        for path, _, name in (test.partition("::") for test in tests):
            assert f"def {name}(" in source(path), name
    for question, (answer, sources) in asked.items():
        assert answer.endswith("."), question
        named = re.findall(r"`([\w/]+\.py)`|\]\(([\w-]+\.md)|(SECURITY\.md)", sources)
        assert named, question
        for file, page, security in named:
            assert (ROOT / (file or security or f"docs/{page}")).exists(), question


def figures_out(text: str) -> str:
    return " ".join(re.sub(r"\d[\d,.]*(?<=\d)", "#", text).split())


def test_the_page_follows_the_whole_sheet() -> None:
    """Everything the page quotes is on the sheet of the default job, in its order, and the whole sheet is quoted."""
    quoted = [item for row in table_rows("The sheet states") for item in re.findall(r'"([^"]+)"', row[0])]
    sheet = vfl.explain(vfl.Job(model=vfl.Logistic()), list(vfl.datasets.loans()))
    words, at = figures_out(" ".join(word for section in sheet.sections for word in section_words(section))), 0
    assert re.fullmatch(quoted.pop().replace("...", ".*"), sheet.footer)
    for item in map(figures_out, map(plain, quoted)):
        place = words.replace("`", "").find(item, at)
        assert place >= 0, item
        words = words.replace("`", "")
        words, at = words[:place] + "~" + words[place + len(item) :], place
    left = Counter(re.findall(r"[\w()]+", words))
    explained = (
        "A value of bits is one of possible values The last column states how much of the other party s data all "
        "values of the line reveal together"
    )
    heads = f"risk model shares rows columns {3 * 'bank columns of shop '} bank learns also also"
    assert left == Counter(f"{explained} {heads}".split())


def test_every_file_of_a_training_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from tests.cli.test_forget import Place

    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "home"))
    place = Place(tmp_path)
    named = {row[0].strip("`").replace("bank", "shop") for row in table_rows("File")}
    named = {item.replace(".parquet", ".csv") for item in named}
    neighbours = {path.name for path in tmp_path.iterdir()} - {"shop.csv", "shop.log", "home"}
    assert neighbours <= named
    assert {path.name for path in place.ledger.path.parent.iterdir()} <= named
    assert len(place.part.baseline[0].points) in range(90, 120)


def test_a_consent_is_a_line_and_a_signature_is_of_the_session(tmp_path: Path) -> None:
    from cryptography.hazmat.primitives.serialization import Encoding

    from securevfl.consent.agreed_sheets import AgreedSheets
    from securevfl.disclosure.ledger import DisclosureLedger
    from securevfl.errors import CryptoError
    from securevfl.transport import certs
    from securevfl.transport.secure_transport import _claim
    from securevfl.transport.tls import verify_signature

    job, parties = vfl.Job(model=vfl.Logistic()), list(vfl.datasets.loans())
    sheet = vfl.explain(job, parties)
    AgreedSheets(DisclosureLedger(tmp_path / "bank.ledger", "bank")).add(sheet)
    with DisclosureLedger(tmp_path / "bank.ledger", "bank").database.reading() as tables:
        ((digest, when),) = tables.execute("SELECT * FROM agreed_sheets")
    assert digest == sheet.digest
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00", when)

    certs.init(tmp_path / "certs")
    for name in ("bank", "shop"):
        certs.issue(tmp_path / "certs", name)
    place = tmp_path / "certs"
    bank, shop = (identity.Identity(place / f"{n}.pem", place / f"{n}.key", place / "ca.pem") for n in ("bank", "shop"))
    session = bytes(range(16))
    claim = _claim(session, "bank", "shop")  # and no sheet, because each party has another one
    assert len(claim) == len(b"securevfl identity 1") + len(session) + 2 * 32
    signature = bank.sign(claim)
    displayed = pem_files.parse_certificate((place / "bank.pem").read_bytes()).public_bytes(Encoding.DER)
    assert verify_signature(displayed, signature, claim) == bank.key
    for other in (_claim(bytes(16), "bank", "shop"), _claim(session, "shop", "bank")):
        with pytest.raises(CryptoError):
            verify_signature(displayed, signature, other)
    with pytest.raises(CryptoError):
        verify_signature(displayed, shop.sign(claim), claim)


def test_security_states_what_a_malicious_party_can_read() -> None:
    assert re.search("deviat", source("SECURITY.md"))
