"""Mutants (deliberate errors) of joint statistics, of the recorded bits of scores, and of consent."""

from __future__ import annotations

from typing import Any

from securevfl.consent import statistics_consent
from securevfl.consent.agreed_sheets import AgreedSheets
from securevfl.credit import correlate, fairness_by_group
from securevfl.disclosure import summed_bits
from securevfl.disclosure.ledger import DisclosureLedger
from securevfl.families.evaluations import EvaluationSchedule
from securevfl.families.shares.shares_participant import SharesParticipant
from securevfl.options import JobOptions
from securevfl.organisations import join, peer_session
from securevfl.protocols.permits import permit_stop_decision
from securevfl.protocols.shares import column_correlations, group_counts
from securevfl.protocols.shares.opened_scores import ScoringSession
from securevfl.protocols.shares.shares_options import Shares
from securevfl.protocols.shares.update_rules import FixedCoefficients
from securevfl.runtime.disclosure_gate import DisclosureGate
from securevfl.training import training_loop
from selfcheck.mutants.mutant import Mutant, Patch, edited, patched
from selfcheck.mutants.protocol_mutants import any_bits

_join = join.join
_numbers = edited(summed_bits, "statistics_disclosure", ("int(held_bits / bits)", "int(held_bits)"))
_one = edited(group_counts, "send_group_counts", ('"columns", share.size', '"columns", 1'))
_alone = (fairness_by_group, "send_group_counts", _one)
_cut = "ring.reduce((share + below) >> np.uint64(_SHIFT))"
_coarse = "quantizer.truncate(encoding, self._ring.reduce(h)) << finer"
_share = ("((shares + below) >> ", "(shares >> ")
_session_id = 'f"{JOINT_STATISTICS} {session.hex()}", session.hex()'


def _never(*args: Any, retrain: bool, **keys: Any) -> Any:
    return _join(*args, retrain=False, **keys)


def _always(*args: Any, retrain: bool, **keys: Any) -> Any:
    return _join(*args, retrain=True, **keys)


def _mutant(name: str, what: str, caught_by: str, finding: str, *patches: Patch) -> Mutant:
    return Mutant(name, what, caught_by, finding, patched(*patches))


MUTANTS = [
    _mutant(
        "counts by group: cut",
        "a count is cut to 8 rows and not rounded at random",
        "counts by group",
        "rounding",
        edited(group_counts, "send_group_counts", (_cut, "ring.reduce(share >> np.uint64(_SHIFT))")),
    ),
    _mutant(
        "counts by group: groups of any size",
        "counts of groups of fewer than 100 rows are disclosed",
        "counts by group",
        "groups",
        (fairness_by_group, "MIN_SHARED_GROUP_ROWS", 1),
    ),
    _mutant(
        "counts by group: omitted groups follow",
        "omitted groups are merged and disclosed, however few rows they have",
        "counts by group",
        "groups",
        edited(
            fairness_by_group,
            "merge_small_groups",
            ("while 0 < merged_rows < MIN_SHARED_GROUP_ROWS and large", "while False"),
        ),
    ),
    _mutant(
        "counts by group: not in the ledger",
        "counts are disclosed and not recorded on disk",
        "counts by group",
        "count",
        edited(fairness_by_group, "_provide", ("remedy, ledger, ", "remedy, None, ")),
    ),
    _mutant(
        "counts by group: one number at the gate",
        "all counts are entered at the gate as one",
        "counts by group",
        "count",
        _alone,
        (DisclosureGate, "check", any_bits),
    ),
    _mutant(
        "counts by group: numbers in place of bits",
        "a count of k bits weighs as one of the bits that groups hold",
        "counts by group",
        "count",
        (fairness_by_group, "statistics_disclosure", _numbers),
    ),
    _mutant(
        "counts by group: no end",
        "looks are counted and never refused",
        "counts by group",
        "count",
        (statistics_consent, "check_statistics", lambda *_: None),
    ),
    _mutant(
        "correlations: cut",
        "a correlation is cut to 6 bits and not rounded at random",
        "correlations of columns",
        "rounding",
        edited(column_correlations, "_rounded", _share),
    ),
    _mutant(
        "correlations: one entry for two looks",
        "a second look takes the place of the first in the ledger",
        "correlations of columns",
        "count",
        edited(correlate, "record_joint_statistics", (_session_id, 'JOINT_STATISTICS, ""')),
    ),
    _mutant(
        "correlations: numbers in place of bits",
        "a number of 6 bits weighs as one of the bits that columns hold",
        "correlations of columns",
        "count",
        (correlate, "statistics_disclosure", _numbers),
    ),
    _mutant(
        "scores: one output is noted",
        "a score ledger counts the bits of one output, whatever the number of outputs",
        "bits of scores",
        "count",
        edited(ScoringSession, "_judge", ("self._quantizer.bits * self._params.outputs", "self._quantizer.bits")),
    ),
    _mutant(
        "scores: bits whatever columns hold",
        "a party whose columns have little information content discloses scores of the same number of bits as others",
        "bits of scores",
        "limits",
        edited(Shares, "permitted_quantizer", ("not MIN_SCORE_BITS <= max_bits < quantizer.bits", "True")),
    ),
    _mutant(
        "scores: bits of one output",
        "each output has the bits that the columns leave to all of them",
        "bits of scores",
        "limits",
        edited(SharesParticipant, "_begin_scoring", (" - code_bits) / self._context.outputs", " - code_bits)")),
    ),
    _mutant(
        "scores: bits in addition to codes",
        "scores have the bits that reason codes of the row have taken",
        "bits of scores",
        "limits",
        edited(SharesParticipant, "_begin_scoring", (" - code_bits)", " - 0 * code_bits)")),
    ),
    _mutant(
        "scores: finer than noted",
        "scores are recorded with fewer bits than are disclosed",
        "bits of scores",
        "limits",
        edited(
            ScoringSession,
            "_compute",
            (_coarse, "self._scoring.quantizer.truncate(encoding, h)"),
        ),
    ),
    _mutant(
        "consent: any digest",
        "a sheet passes by whatever --accept names",
        "consent",
        "consent",
        edited(AgreedSheets, "accepts", ("accept == sheet.digest", "accept"), ("in (None, sheet.digest)", "!= ''")),
    ),
    _mutant(
        "consent: an old word outweighs a new one",
        "a sheet that was agreed to before passes, though --accept names another",
        "consent",
        "consent",
        edited(AgreedSheets, "accepts", ("accept in (None, sheet.digest) and ", "")),
    ),
    _mutant(
        "consent: without a word",
        "a sheet passes where --accept is left out",
        "consent",
        "consent",
        edited(AgreedSheets, "accepts", ("if accept == sheet.digest:", "if accept in (None, sheet.digest):")),
    ),
    _mutant(
        "join: --retrain is ignored",
        "a training that is over is not begun again though its owner asks for it",
        "trainings that are over",
        "consent",
        (join, "join", _never),
    ),
    _mutant(
        "join: always again",
        "a training that is over is begun again though nobody asks for it",
        "trainings that are over",
        "consent",
        (join, "join", _always),
    ),
    _mutant(
        "verdicts: not counted",
        "stop decisions are disclosed, and the ledger of the party with labels does not record them",
        "verdicts of early stopping",
        "count",
        (training_loop, "permit_evaluated_decision", permit_stop_decision),
    ),
    _mutant(
        "early stop: too late",
        "a training continues although its loss has decreased by less than the job asks for",
        "early stops",
        "stop",
        edited(JobOptions, "stopping", ("tolerance=gain", "tolerance=0.0")),
    ),
    _mutant(
        "early stop: sums that the sheet does not state",
        "the sheet and the ledger expect one evaluation of a training that may stop early",
        "early stops",
        "count",
        edited(EvaluationSchedule, "count_measured_rounds", ("len(self.measured_rounds(start))", "1")),
    ),
    _mutant(
        "early stop: decisions that the sheet does not state",
        "the sheet and the ledger expect no decision of a training that may stop early",
        "early stops",
        "count",
        edited(EvaluationSchedule, "decisions", ("len(self.measured_rounds(self.start))", "0")),
    ),
    _mutant(
        "early stop: last weights",
        "a training that stops early returns its last weights, whose rounding a mean would remove",
        "early stops",
        "stop",
        edited(FixedCoefficients, "result", ("self.result_row is None", "True")),
    ),
    _mutant(
        "ends: not entered",
        "others can make a party abort repeatedly, and its ledger does not record it",
        "ends of conversations",
        "count",
        edited(peer_session, "_record_abort", ("ledger.record_early_abort(others)", "pass")),
    ),
    _mutant(
        "ends: a count for each peer",
        "an organisation ends conversations early under several names, each with a limit of its own",
        "ends of conversations",
        "count",
        edited(
            DisclosureLedger,
            "check_early_aborts",
            ("for aborts in tries)", "for aborts in tries if aborts.peers == tuple(sorted(peers)))"),
        ),
    ),
]
