"""The attacks of an audit, by name. To add an attack, add it to `ATTACKS`, or provide it as an entry point."""

from __future__ import annotations

from securevfl.audit.attacks import (
    batch_inversion,
    bin_counts,
    binary_columns,
    collusion,
    column_space,
    cross_round,
    differencing,
    first_difference,
    linked_outputs,
    marked_pairs,
    masked_phases,
    membership,
    model_completion,
    moment_scores,
    partial_score,
    phase_map,
    rank_matching,
    rare_values,
    residual_labels,
    score_bits,
    score_columns,
    score_sums,
    shared_frequencies,
    shared_residuals,
    transcript_classifier,
    two_values,
)
from securevfl.audit.attacks.base import Attack, LabelAttack, Score, label_auc
from securevfl.base.extensions import Extension, allowed_entry_points, load_entry_point
from securevfl.errors import ConfigError

__all__ = ["ATTACKS", "Attack", "LabelAttack", "Score", "label_auc", "load_more"]

ATTACK_ENTRY_POINTS = "securevfl.attacks"

ATTACKS: dict[str, Attack] = {
    attack.name: attack
    for attack in (
        residual_labels.ResidualSign(),
        residual_labels.ResidualNorm(),
        residual_labels.ResidualDirection(),
        batch_inversion.BatchInversion(),
        cross_round.CrossRound(),
        two_values.TwoValues(),
        model_completion.ModelCompletion(),
        partial_score.PartialScore(),
        moment_scores.MomentScores(),
        shared_residuals.SharedResiduals(),
        transcript_classifier.TranscriptClassifier(),
        bin_counts.BinCounts(),
        rare_values.RareValues(),
        score_columns.ScoreColumns(),
        score_bits.ScoreBits(),
        score_sums.ScoreSums(),
        rank_matching.RankMatching(),
        marked_pairs.MarkedPairs(),
        linked_outputs.LinkedOutputs(),
        column_space.ColumnSpace(),
        binary_columns.BinaryColumns(),
        collusion.Collusion(),
        differencing.Differencing(),
        first_difference.FirstDifference(),
        membership.Membership(),
        shared_frequencies.SharedFrequencies(),
        masked_phases.MaskedPhases(),
        phase_map.PhaseMap(),
    )
}


def load_more() -> dict[str, Extension]:
    """Add the attacks of other packages that this party allows.

    Returns:
        The package of each attack, by name.

    Raises:
        ConfigError: if an attack has another name than its entry point, or a name that exists already.
    """
    loaded = {}
    for name, point in allowed_entry_points(ATTACK_ENTRY_POINTS).items():
        attack, loaded[name] = load_entry_point(point)
        if attack.name != name or ATTACKS.setdefault(name, attack) is not attack:
            raise ConfigError(
                f"the attack of entry point {name} of {loaded[name].distribution} has another name, or the name exists",
                "uninstall the package",
                code="SVFL-JOB-EXTENSION",
                attack=name,
            )
    return loaded
