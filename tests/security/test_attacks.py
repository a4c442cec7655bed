"""Attacks succeed where they should, and the transcript of a sealed protocol gives them no advantage.

A sealed protocol does not reduce attacks to chance, because a party's columns and its opened gradients depend on
labels. Attacks do no better than on the ideal view, which contains the declared output alone.
"""

from collections.abc import Collection, Iterator, Sequence
from itertools import combinations
from typing import ClassVar

import numpy as np
import pytest
from threadpoolctl import threadpool_limits

import securevfl as vfl
from securevfl.audit.attacks import ATTACKS, LabelAttack
from securevfl.audit.attacks.base import Score, auc_noise, by_row, label_auc
from securevfl.audit.attacks.collusion import recovered_parts
from securevfl.audit.attacks.rare_values import lonely_rows
from securevfl.audit.recording.real_ideal_pair import RealIdealPair
from securevfl.audit.report import MARGIN
from securevfl.base.arrays import Floats
from securevfl.crypto.sum_trees import SumTree, star_tree
from securevfl.disclosure.label_auc import expected_label_auc
from securevfl.disclosure.leverage import leverages, measure_leverage
from securevfl.optim.optimizer import Optimizer
from securevfl.protocols.declarations import MessageDeclaration, Reveal
from securevfl.protocols.message_protocol import Release
from securevfl.protocols.party_context import PartyContext
from securevfl.protocols.residuals.base import ActiveResidual, Agreement, PassiveResidual, Reply, ResidualProtocol
from securevfl.protocols.residuals.defences import Defence, Gaussian, Marvell, MaxNorm, Rounding
from securevfl.protocols.residuals.open_residual import OpenReply
from securevfl.protocols.residuals.sealed_residual import ResidualCiphertext
from tests.small_keys import SMALL

LABEL_ATTACKS = [  # the attack on forests is in test_trees_leaks.py
    name for name, attack in ATTACKS.items() if isinstance(attack, LabelAttack)
]
FROM_RESIDUALS = ["residual_sign", "residual_direction", "batch_inversion", "cross_round", "transcript"]
SEEDS = 2
MANY_SEEDS = 20
GUESSES = {"transcript"}  # attacks on random bytes, whose score varies by chance


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Use one thread, because the matrices are small."""
    with threadpool_limits(1):
        yield


def attacked_parties(k: int = 2, n: int = 500, d: int = 12, *, positive: float = 0.5, seed: int = 0) -> list[vfl.Party]:
    """Return k parties with d columns; the label depends on some columns of each."""
    generator = np.random.default_rng(seed)
    X = [generator.normal(size=(n, d)) for _ in range(k)]
    z = X[0][:, :4].sum(axis=1) + sum(local[:, :2].sum(axis=1) / 2 for local in X[1:]) + generator.normal(size=n)
    y = (z > np.quantile(z, 1 - positive)).astype(int)
    return [
        vfl.Party("bank", X[0], y, aligned=True),
        *(vfl.Party(f"p{i}", local, aligned=True) for i, local in enumerate(X[1:], start=1)),
    ]


def attacked_job(residual: object = "open", sums: object = "auto", **keys: object) -> vfl.Job:
    optimizer: Optimizer = vfl.FedBCD(lr=0.3, local_steps=2)
    defaults: dict[str, object] = {"model": vfl.Logistic(), "optimizer": optimizer, "batch_size": 125, "epochs": 3}
    defaults |= {"test_fraction": 0.2, "protocol": vfl.Protocol(sum=sums, residual=residual)}  # type: ignore[arg-type]
    return vfl.Job(**(defaults | keys))


@pytest.fixture(scope="module")
def opened() -> RealIdealPair:
    return RealIdealPair(attacked_job(), attacked_parties(), 1)


@pytest.mark.parametrize("name", FROM_RESIDUALS)
def test_on_open_residuals_label_attacks_succeed_as_published(name: str, opened: RealIdealPair) -> None:
    score = ATTACKS[name].score(opened)
    assert score.real >= 0.95
    assert score.simulated < 0.85  # the gradient alone, even with columns that correlate with the label


def test_the_norm_reveals_the_rare_class() -> None:
    score = ATTACKS["residual_norm"].score(RealIdealPair(attacked_job(epochs=10), attacked_parties(positive=0.15), 1))
    assert score.real >= 0.9  # below 1 because the active party's first weights vary the residuals
    assert score.simulated < 0.65


def test_softmax_residuals_reveal_the_class() -> None:
    pair = RealIdealPair(attacked_job(model=vfl.Softmax()), vfl.datasets.digits(), 0)
    for name in ("residual_sign", "residual_direction"):
        assert ATTACKS[name].score(pair).real >= 0.95


def test_model_completion_succeeds_under_any_protocol(opened: RealIdealPair) -> None:
    score = ATTACKS["model_completion"].score(
        RealIdealPair(attacked_job(vfl.Ckks(), batch_size=569), vfl.datasets.breast_cancer(), 0)
    )
    assert score.real >= 0.95
    assert score.real == pytest.approx(score.simulated, abs=1e-3)


def differences(protocol: vfl.Protocol, names: Sequence[str], k: int, seeds: Collection[int]) -> dict[str, list[float]]:
    """Return real - simulated of each attack and seed, with other data and another schedule each time."""
    results: dict[str, list[float]] = {name: [] for name in names}
    for seed in seeds:
        pair = RealIdealPair(attacked_job(protocol=protocol), attacked_parties(k, seed=seed), seed)
        for name in names:
            results[name].append(ATTACKS[name].score(pair).excess)
    return results


def margin(name: str, seeds: int) -> float:
    """Return the margin of an attack's mean difference: for random rankings 6.2 standard errors (P < 1e-9).

    The differences of other attacks have a standard deviation of at most 0.005, so that MARGIN is 8 standard errors of
    the mean of two.
    """
    return 6.2 * auc_noise(np.arange(400) % 2) / seeds**0.5 if name in GUESSES else MARGIN


SEALED = {
    "direct/ckks": (vfl.Protocol(residual=vfl.Ckks()), 2),
    "pairwise/ckks": (vfl.Protocol(sum="pairwise", residual=vfl.Ckks()), 3),
    "tree/ckks": (vfl.Protocol(sum="tree", residual=vfl.Ckks()), 4),
    "cipher/ckks": (vfl.Protocol(sum="cipher", residual=vfl.Ckks()), 3),
}


@pytest.mark.parametrize("kind", ["direct/ckks", "tree/ckks"])
def test_a_sealed_transcript_adds_nothing(kind: str) -> None:
    protocol, k = SEALED[kind]
    for name, difference in differences(protocol, LABEL_ATTACKS, k, range(SEEDS)).items():
        assert abs(np.mean(difference)) <= margin(name, len(difference)), (kind, name, np.round(difference, 3))


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", [*SEALED, "direct/paillier"])
def test_a_sealed_transcript_adds_nothing_over_many_seeds(kind: str) -> None:
    paillier = vfl.Protocol(residual=SMALL), 2
    protocol, k = SEALED.get(kind, paillier)
    for name, difference in differences(protocol, LABEL_ATTACKS, k, range(MANY_SEEDS)).items():
        assert abs(np.mean(difference)) <= margin(name, len(difference)), (kind, name, np.round(difference, 3))


class UnderASealedName(ResidualProtocol):
    """A mutant that sends g in the clear in a message that claims to be a ciphertext."""

    name: ClassVar[str] = "sealed"
    mask: str = "none"

    def active(self, context: PartyContext, agreement: Agreement) -> ActiveResidual:
        return MutantActive(context, self.mask)

    def passive(self, context: PartyContext, agreement: Agreement) -> PassiveResidual:
        return MutantPassive(context, self.mask)

    def declares(self) -> list[MessageDeclaration]:
        return [MessageDeclaration(ResidualCiphertext, "active", "passive", Reveal("ciphertext", "active"))]

    @property
    def strength(self) -> str:
        return "none, although it claims to hide residuals"

    @property
    def seals(self) -> bool:
        return True


class MutantActive(ActiveResidual):
    def __init__(self, context: PartyContext, mask: str) -> None:
        self._context, self._mask = context, mask

    def publish(self, g: Floats, *, epoch: int, to: Collection[str], resend_of: Release | None = None) -> None:
        for passive in to:
            self._context.channel.send(passive, ResidualCiphertext(0, disguise(g, self._mask)))


class MutantPassive(PassiveResidual):
    def __init__(self, context: PartyContext, mask: str) -> None:
        super().__init__(context)
        self._mask = mask

    def receive(self) -> Reply:
        data = self.context.channel.recv(self.context.active, ResidualCiphertext).ciphertext
        if self._mask == "none":
            return OpenReply(0, np.frombuffer(data[8:]).reshape(-1, 1), self.context)
        return OpenReply(0, (np.frombuffer(data, np.int64) - CONSTANT)[:, None] / 2.0**40, self.context)


CONSTANT = np.int64(0x1234567890123456)  # one mask for all rows and rounds


def disguise(g: Floats, mask: str) -> bytes:
    if mask == "none":
        return b"a header" + g.tobytes()
    return (np.rint(g[:, 0] * 2.0**40).astype(np.int64) + CONSTANT).tobytes()


@pytest.mark.parametrize("mask", ["none", "constant"])
def test_attacks_detect_fake_ciphertexts(mask: str) -> None:
    """The mutants publish residuals in the clear, or under one constant mask."""
    protocol = vfl.Protocol(residual=UnderASealedName(mask=mask))
    result = differences(protocol, ["transcript"], 2, range(3))
    assert np.mean(result["transcript"]) > 3 * margin("transcript", len(result["transcript"]))
    if mask == "none":
        assert ATTACKS["residual_sign"](attacked_job(protocol=protocol), attacked_parties(), 0).real == 1.0


def test_a_gradient_of_full_rank_reveals_labels_when_sealed() -> None:
    pair = RealIdealPair(
        attacked_job(vfl.Ckks(), batch_size=10, epochs=1, accepts=["rank"]), attacked_parties(n=200), 0
    )
    score = ATTACKS["batch_inversion"].score(pair)
    assert score.real == 1.0
    assert score.simulated == 1.0


def test_reshuffled_rounds_add_equations_and_fixed_ones_do_not() -> None:
    noise = [attacked_parties(d=6)[0], vfl.Party("noise", np.random.default_rng(9).normal(size=(500, 6)), aligned=True)]
    fixed, fresh = (
        ATTACKS["cross_round"](attacked_job(vfl.Ckks(), epochs=12, reshuffle=on, accepts=["fresh_equations"]), noise, 0)
        for on in (False, True)
    )
    assert fixed.real < 0.7 < 0.8 < fresh.real
    assert fresh.excess == pytest.approx(0, abs=0.01)


def first_batch(engine: object) -> Score:
    return ATTACKS["two_values"](
        attacked_job(engine, batch_size=32, epochs=1, test_fraction=0.0), attacked_parties(n=64), 0
    )


@pytest.mark.parametrize("engine", [vfl.Ckks(), pytest.param(SMALL, marks=pytest.mark.slow)], ids=str)
def test_the_first_gradient_does_not_reveal_its_labels(engine: object, monkeypatch: pytest.MonkeyPatch) -> None:
    assert first_batch(engine).real < 0.95
    monkeypatch.setattr(
        "securevfl.models.linear_block.starting_weights",
        lambda X, scaled, y, seed: np.zeros((X.shape[1] + 1, y.shape[1])),
    )
    mutant = first_batch(engine)
    assert mutant.real == mutant.simulated == 1.0
    assert expected_label_auc(12, 32, 1, 1, False) < 0.9


def test_no_single_party_breaks_a_tree_sum() -> None:
    for topology in ("tree", "star", "ring"):
        sums = vfl.TreeSum(topology=topology)
        assert ATTACKS["collusion"](attacked_job(vfl.Ckks(), sums, epochs=1), attacked_parties(5, n=100), 0).real == 0


def test_a_coalition_of_all_neighbours_recovers_a_part() -> None:
    sums = vfl.TreeSum()
    parties = attacked_parties(6, n=60)
    names = [party.name for party in parties]
    pair = RealIdealPair(attacked_job("open", sums, epochs=2), parties, 0)
    expected = sums.coalitions(names)
    for size in (1, 2, 3, 4):
        for members in combinations(names, size):
            result = recovered_parts(pair.real_run[1], sums.trees(len(names)), names, members)
            assert result == {name for name in names[1:] if name not in members and expected[name] <= set(members)}


class SameStars(vfl.TreeSum):
    """A mutant: both passes use the same star, so the root can remove each mask."""

    def trees(self, parties: int) -> tuple[SumTree, SumTree]:
        return star_tree(range(parties), 0), star_tree(range(parties), 0)


def test_collusion_catches_two_equal_trees() -> None:
    assert ATTACKS["collusion"](attacked_job("open", SameStars(), epochs=1), attacked_parties(4, n=100), 0).real == 1.0


def test_differences_of_sequential_sums_reveal_single_parts() -> None:
    parties = attacked_parties(4)
    sequential = vfl.FedBCD(lr=0.3, local_steps=2, mode="sequential")
    alone = ATTACKS["differencing"](attacked_job("open", "pairwise", optimizer=sequential), parties, 0)
    together = ATTACKS["differencing"](attacked_job("open", "pairwise"), parties, 0)
    assert alone.real == pytest.approx(1.0, abs=1e-6)
    assert alone.simulated == pytest.approx(1.0, abs=1e-6)  # the sums themselves are declared
    assert together.real < 0.8


def test_membership_is_the_same_under_any_protocol() -> None:
    scores = [
        ATTACKS["membership"](attacked_job(vfl.Ckks()), attacked_parties(n=200, d=40, seed=seed), 0)
        for seed in range(3)
    ]
    assert [score.real for score in scores] == pytest.approx([score.simulated for score in scores], abs=0.01)
    assert np.mean([score.real for score in scores]) > 0.6


def kernel_job(sums: str) -> vfl.Job:
    model = vfl.Kernel(gamma=0.01, blocks=2, block_size=64)
    return vfl.Job(model=model, optimizer=vfl.FDSKL(), protocol=vfl.Protocol(sum=sums), batch_size=64, epochs=1)


@pytest.mark.parametrize(("sums", "k"), [("tree", 4), ("pairwise", 3), ("cipher", 3)])
def test_masks_hide_phases_even_with_known_frequencies(sums: str, k: int) -> None:
    score = ATTACKS["masked_phases"](kernel_job(sums), attacked_parties(k, n=128, d=3), 0)
    assert score.real < 0.1
    assert score.simulated < 0.1


def test_unmasked_phases_and_frequencies_reveal_columns() -> None:
    assert ATTACKS["masked_phases"](kernel_job("direct"), attacked_parties(3, n=128, d=3), 0).real > 0.999


def test_private_frequencies_hide_columns_shared_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    parties = attacked_parties(2, n=128, d=3)
    assert ATTACKS["phases"](kernel_job("direct"), parties, 0).real < 0.5
    monkeypatch.setattr("securevfl.families.fdskl.fdskl_participant.os.urandom", bytes)  # the mutant: one key for all
    assert ATTACKS["phases"](kernel_job("direct"), parties, 0).real > 0.999


def test_known_rows_reveal_the_map_of_phases_under_any_sum() -> None:
    score = ATTACKS["phase_map"](kernel_job("tree"), attacked_parties(4, n=128, d=3), 0)
    assert score.real > 0.99
    assert score.simulated > 0.99  # the declared output reveals it


def test_every_attack_runs_on_the_jobs_that_it_fits() -> None:
    parties = attacked_parties(4, n=120, d=3)
    jobs = [
        attacked_job("open", epochs=1),
        attacked_job(vfl.Ckks(), "tree", epochs=1, batch_size=32),
        kernel_job("tree"),
        attacked_job("open", model=vfl.Softmax(), epochs=1),
        attacked_job("open", model=vfl.Square(), epochs=1),
        attacked_job(vfl.Ckks(), epochs=1, max_label_auc=0.9),
    ]
    for local in jobs:
        pair = RealIdealPair(local, parties, 0)
        for attack in ATTACKS.values():
            if not attack.skip_reason(local):
                score = attack.score(pair)
                assert 0 <= score.real <= 1
                assert 0 <= score.simulated <= 1


def test_leverage_is_the_diagonal_of_the_hat_matrix() -> None:
    generator = np.random.default_rng(0)
    X = generator.normal(size=(40, 6))
    X[:, 5] = X[:, 0] + X[:, 1]
    np.testing.assert_allclose(leverages(X), np.diag(X @ np.linalg.pinv(X)), atol=1e-12)
    assert measure_leverage([np.eye(3), np.zeros((3, 2))]).singled_out == 3


@pytest.mark.parametrize("positive", ["1", "0", "late"])
def test_rare_values_reveal_labels_of_their_rows_only(positive: str) -> None:
    generator = np.random.default_rng(3)
    bank = attacked_parties()[0]
    if positive == "late":
        bank = vfl.Party("bank", bank.X, np.where(bank.labels == 1, "late", "on time"), aligned=True)
    rare = np.zeros((500, 8))
    rows = np.arange(64).reshape(8, 8)
    for j in range(8):
        rare[rows[j], j] = 1  # eight rows with each value, in four batches
    parties = [bank, vfl.Party("shop", np.column_stack([rare, generator.normal(size=(500, 2))]), aligned=True)]
    pair = RealIdealPair(attacked_job(vfl.Ckks(), batch_size=50, test_fraction=0.0, positive=positive), parties, 0)
    assert (pair.labels == (bank.labels.astype(str) == positive)).all()
    lonely = lonely_rows(pair.real())
    assert len(lonely) >= 10
    score = ATTACKS["rare_values"].score(pair)
    assert score.real >= 0.95 > score.chance
    assert score.simulated >= 0.95
    assert ATTACKS["cross_round"].score(pair).real < 0.75
    sheet = vfl.explain(pair.job, parties)
    assert f"{len(lonely)} rows of 500 are nearly unique" in sheet


@pytest.mark.parametrize(
    ("defence", "reached"), [(Gaussian(sigma=2.0), 0.7), (Marvell(power=25.0), 0.75), (MaxNorm(), 0.85)], ids=repr
)
def test_defences_weaken_attacks_on_open_residuals(defence: Defence, reached: float) -> None:
    protocol = vfl.Protocol(residual=vfl.OpenResidual(defence=defence))
    pair = RealIdealPair(attacked_job(protocol=protocol, batch_size=128, epochs=10), vfl.datasets.breast_cancer(), 0)
    assert max(ATTACKS[name].score(pair).real for name in ("residual_sign", "residual_direction")) < reached
    assert pair.real_run[0].metrics["auc"] > 0.9


def test_coarse_rounding_preserves_signs_of_large_residuals() -> None:
    protocol = vfl.Protocol(residual=vfl.OpenResidual(defence=Rounding(step=2.0)))
    assert ATTACKS["residual_sign"](attacked_job(protocol=protocol, epochs=10), attacked_parties(), 0).real > 0.9


def test_every_attack_has_a_paper_and_a_measure() -> None:
    for name, attack in ATTACKS.items():
        assert attack.name == name
        assert any(character.isdigit() for character in attack.paper) or name == "transcript"
        assert attack.measures


def test_guesses_of_one_column_need_no_second_axis() -> None:
    labels = np.arange(40) % 2
    assert label_auc(labels.astype(float), labels) == 1.0
    assert by_row(labels.astype(float), 40).shape == (40, 1)
    with pytest.raises(ValueError, match="return one guess for each row"):
        by_row(labels[:7].astype(float), 40)
