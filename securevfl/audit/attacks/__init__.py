"""The attacks that an audit carries out, by name. Adding one is a file and a line here."""

from __future__ import annotations

from securevfl.audit.attacks.all_bytes import AllBytes
from securevfl.audit.attacks.base import Attack, LabelAttack, Score, label_auc
from securevfl.audit.attacks.batch_inversion import BatchInversion
from securevfl.audit.attacks.bin_counts import BinCounts
from securevfl.audit.attacks.binary_columns import BinaryColumns
from securevfl.audit.attacks.collusion import Collusion
from securevfl.audit.attacks.column_space import ColumnSpace
from securevfl.audit.attacks.cross_round import CrossRound
from securevfl.audit.attacks.differencing import Differencing
from securevfl.audit.attacks.first_difference import FirstDifference
from securevfl.audit.attacks.linked_outputs import LinkedOutputs
from securevfl.audit.attacks.marked_pairs import MarkedPairs
from securevfl.audit.attacks.masked_phases import MaskedPhases
from securevfl.audit.attacks.membership import Membership
from securevfl.audit.attacks.model_completion import ModelCompletion
from securevfl.audit.attacks.own_part import OwnPart
from securevfl.audit.attacks.own_scores import OwnScores
from securevfl.audit.attacks.phase_map import PhaseMap
from securevfl.audit.attacks.rank_matching import RankMatching
from securevfl.audit.attacks.rare_values import RareValues
from securevfl.audit.attacks.residual_direction import ResidualDirection
from securevfl.audit.attacks.residual_norm import ResidualNorm
from securevfl.audit.attacks.residual_sign import ResidualSign
from securevfl.audit.attacks.score_bits import ScoreBits
from securevfl.audit.attacks.score_columns import ScoreColumns
from securevfl.audit.attacks.score_sums import ScoreSums
from securevfl.audit.attacks.shared_phases import SharedFrequencies
from securevfl.audit.attacks.shared_residual import SharedResiduals
from securevfl.audit.attacks.two_values import TwoValues

__all__ = ["ATTACKS", "Attack", "LabelAttack", "Score", "label_auc"]

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
