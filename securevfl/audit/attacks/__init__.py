"""The attacks that an audit carries out, by name. Adding one is a class and a line here, or an entry point."""

from __future__ import annotations

from securevfl.audit.attacks.base import Attack, LabelAttack, Score, label_auc
from securevfl.audit.attacks.column_space import BinaryColumns, ColumnSpace
from securevfl.audit.attacks.finished_models import AllBytes, Membership, ModelCompletion, OwnPart, OwnScores
from securevfl.audit.attacks.masked_phases import MaskedPhases, PhaseMap, SharedFrequencies
from securevfl.audit.attacks.masked_sums import Collusion, Differencing, FirstDifference
from securevfl.audit.attacks.measured import LinkedOutputs, MarkedPairs, RankMatching
from securevfl.audit.attacks.opened_gradients import (
    BatchInversion,
    BinCounts,
    CrossRound,
    RareValues,
    ResidualDirection,
    ResidualNorm,
    ResidualSign,
    SharedResiduals,
    TwoValues,
)
from securevfl.audit.attacks.told_scores import ScoreBits, ScoreColumns, ScoreSums
from securevfl.base.extensions import Extension, allowed, load
from securevfl.errors import ConfigError

__all__ = ["ATTACKS", "Attack", "LabelAttack", "Score", "label_auc", "load_more"]

GROUP = "securevfl.attacks"

ATTACKS: dict[str, Attack] = {
    attack.name: attack
    for attack in (
        ResidualSign(),
        ResidualNorm(),
        ResidualDirection(),
        BatchInversion(),
        CrossRound(),
        TwoValues(),
        ModelCompletion(),
        OwnPart(),
        OwnScores(),
        SharedResiduals(),
        AllBytes(),
        BinCounts(),
        RareValues(),
        ScoreColumns(),
        ScoreBits(),
        ScoreSums(),
        RankMatching(),
        MarkedPairs(),
        LinkedOutputs(),
        ColumnSpace(),
        BinaryColumns(),
        Collusion(),
        Differencing(),
        FirstDifference(),
        Membership(),
        SharedFrequencies(),
        MaskedPhases(),
        PhaseMap(),
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
