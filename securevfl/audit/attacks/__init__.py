"""The attacks that an audit carries out, by name. Adding one is a class and a line here, or an entry point."""

from __future__ import annotations

from securevfl.audit.attacks import (
    column_space,
    finished_models,
    masked_phases,
    masked_sums,
    measured,
    opened_gradients,
    told_scores,
)
from securevfl.audit.attacks.base import Attack, LabelAttack, Score, label_auc
from securevfl.base.extensions import Extension, allowed, load
from securevfl.errors import ConfigError

__all__ = ["ATTACKS", "Attack", "LabelAttack", "Score", "label_auc", "load_more"]

GROUP = "securevfl.attacks"

ATTACKS: dict[str, Attack] = {
    attack.name: attack
    for attack in (
        opened_gradients.ResidualSign(),
        opened_gradients.ResidualNorm(),
        opened_gradients.ResidualDirection(),
        opened_gradients.BatchInversion(),
        opened_gradients.CrossRound(),
        opened_gradients.TwoValues(),
        finished_models.ModelCompletion(),
        finished_models.OwnPart(),
        finished_models.OwnScores(),
        opened_gradients.SharedResiduals(),
        finished_models.AllBytes(),
        opened_gradients.BinCounts(),
        opened_gradients.RareValues(),
        told_scores.ScoreColumns(),
        told_scores.ScoreBits(),
        told_scores.ScoreSums(),
        measured.RankMatching(),
        measured.MarkedPairs(),
        measured.LinkedOutputs(),
        column_space.ColumnSpace(),
        column_space.BinaryColumns(),
        masked_sums.Collusion(),
        masked_sums.Differencing(),
        masked_sums.FirstDifference(),
        finished_models.Membership(),
        masked_phases.SharedFrequencies(),
        masked_phases.MaskedPhases(),
        masked_phases.PhaseMap(),
    )
}


def load_more() -> dict[str, Extension]:
    """Add the attacks of other packages that this party allows, and return where each comes from. ConfigError if a name
    is taken."""
    loaded = {}
    for name, point in allowed(GROUP).items():
        attack, loaded[name] = load(point)
        if attack.name != name or ATTACKS.setdefault(name, attack) is not attack:
            raise ConfigError(f"{loaded[name].distribution}: attack {name} is not its name or is taken; uninstall it")
    return loaded
