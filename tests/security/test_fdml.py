"""Training by FDML attacked: pulled sums and stored payloads of a whole run, and malicious servers and workers."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest

import securevfl as vfl
from securevfl.audit.attacks.column_space import ColumnSpace, shares_inside, space
from securevfl.audit.recording import party_recording
from securevfl.audit.recording.column_numbers import ColumnNumbers, column_numbers
from securevfl.audit.recording.real_ideal_pair import RealIdealPair
from securevfl.audit.recording.transcript_recording import record_transcript
from securevfl.audit.transcript_checks import check_transcript
from securevfl.errors import CryptoError, KeyMismatch, LimitError, ProtocolError, SecureVFLError
from securevfl.families.fdml.masked_store import MaskedServer, MaskedWorker
from securevfl.families.fdml.pulls import Push, RestoredOutputs
from securevfl.families.fdml.stored_sum import StoredWorker
from securevfl.training.checkpoint import Checkpoints
from tests.builders import sheet_part

SERVER_PARTY = vfl.Helper("server", "server")
ROLE_CLASSES: dict[str, tuple[Any, Any]] = {"masks": (MaskedServer, MaskedWorker)}


def worker_parties(count: int, rows: int = 240, columns: int = 5) -> list[vfl.Party]:
    local_columns = [party.take(np.arange(rows, dtype=np.intp)) for party in vfl.datasets.breast_cancer(parties=count)]
    few = [vfl.Party(item.name, item.X[:, :columns], item.y, aligned=True) for item in local_columns]
    return [*few, SERVER_PARTY]


def fdml_job(
    stored: Any = "masks", *, tau: int = 3, epochs: int = 12, shows: bool = True, residual: Any = None, **keys: Any
) -> vfl.Job:
    return vfl.Job(
        model=vfl.Logistic(l2=1e-3),
        optimizer=vfl.FDML(lr=1.0, tau=tau, shows_labels=shows, stored=stored),
        protocol=vfl.Protocol(residual=residual),
        **{"batch_size": 80, "epochs": epochs, "test_fraction": 0.0, "accepts": ("columns",), "seed": 1} | keys,
    )


def found(job: vfl.Job, parties: list[vfl.Party]) -> dict[tuple[str, tuple[str, ...]], list[ColumnNumbers]]:
    pair = RealIdealPair(job, parties, 1)
    every: dict[tuple[str, tuple[str, ...]], list[ColumnNumbers]] = {}
    for numbers in column_numbers(pair, pair.real_run[1]):
        every.setdefault((numbers.learner, numbers.about), []).append(numbers)
    return every


def inside(batches: list[ColumnNumbers]) -> float:
    return float(np.mean([np.nanmean(shares_inside(batch.truth, space(batch))) for batch in batches]))


def test_all_pulls_reveal_columns_up_to_a_linear_map() -> None:
    """With two workers a pull is the other's H, whatever hides payloads from the server."""
    arguments = worker_parties(2)
    every = found(fdml_job("masks"), arguments)
    for key in (("bank", ("shop",)), ("shop", ("bank",))):
        assert inside(every[key]) > 0.99, key
    few = found(fdml_job(epochs=2), arguments)
    assert inside(few["shop", ("bank",)]) < 0.95


def test_late_open_residuals_still_reveal_active_columns() -> None:
    """If workers are at different iterations, the passive one does not know which version of its part is in f."""
    for tau, least in ((0, 0.99), (3, 0.9)):
        every = found(fdml_job(shows=False, residual="open", tau=tau), worker_parties(2))
        assert inside(every["shop", ("bank",)]) > least
        assert inside(every["bank", ("shop",)]) > 0.98
    sealed = found(fdml_job(shows=False, residual="ckks", epochs=2), worker_parties(2))
    assert ("shop", ("bank",)) not in sealed


def test_with_three_workers_it_is_the_sum_of_the_others() -> None:
    every = found(fdml_job(tau=0, epochs=12), worker_parties(3))
    assert inside(every["telco", ("bank", "shop")]) > 0.95
    assert ("telco", ("bank",)) not in every


def test_a_worker_that_moves_alone_reveals_its_columns() -> None:
    """With four batches in an epoch, pulls of a slow worker meet the others at different iterations."""
    job, arguments = fdml_job(tau=6, epochs=14, batch_size=60), worker_parties(3)
    pair = RealIdealPair(job, arguments, 1)
    with mock.patch.object(party_recording, "simulate", partial(vfl.simulate, slowed={"bank": 40.0, "shop": 5.0})):
        single = [numbers for numbers in column_numbers(pair, pair.real_run[1]) if len(numbers.about) == 1]
    assert single, "somebody has moved alone"
    for numbers in single:
        changes = numbers.numbers - numbers.numbers.mean(axis=0)
        basis = np.linalg.qr(np.column_stack([np.ones(len(numbers.truth)), numbers.truth]))[0]
        left = changes - basis @ (basis.T @ changes)
        assert np.linalg.norm(left) < 1e-6 * np.linalg.norm(changes), "the difference is of that worker's columns alone"


def test_the_server_reads_only_parts_in_the_clear() -> None:
    arguments = worker_parties(2)
    every = found(fdml_job("open"), arguments)
    assert inside(every["server", ("bank",)]) > 0.99
    assert inside(every["server", ("shop",)]) > 0.99
    assert not any(learner == "server" for learner, _ in found(fdml_job("masks", epochs=3), arguments))


def test_the_audits_attack_finds_what_is_counted() -> None:
    score = ColumnSpace()(fdml_job(), worker_parties(2), 1)
    assert score.real > 0.99
    assert "shop about bank" in score.detail


def test_noise_hides_columns_in_pulled_sums() -> None:
    """Not all columns are hidden: sums of many iterations depend most on the columns that move predictions most."""
    pytest.importorskip("dp_accounting")
    shares = []
    for noise in (None, {"epsilon": 8, "delta": 1e-4, "clip": 2}):
        job = fdml_job(stored={"name": "masks", "noise": noise}, epochs=6, test_fraction=0.25)
        every = [item for item in found(job, worker_parties(2))["shop", ("bank",)] if item.truth.shape[0] < 100]
        shares.append(inside(every))
    clear, blurred = shares
    assert clear > 0.95
    assert blurred < 0.6


@pytest.mark.parametrize(("stored", "residual"), [("open", None), ("masks", None), ("masks", "ckks")])
def test_transcripts_agree_with_the_declaration(stored: str, residual: str | None) -> None:
    job = fdml_job(stored, epochs=2, shows=residual is None, residual=residual)
    transcripts = [record_transcript(job, worker_parties(3))[0] for _ in range(2)]
    assert not check_transcript(*transcripts).findings


def test_only_parties_that_pull_sums_receive_keys() -> None:
    sheet = vfl.explain(fdml_job("masks", shows=False, residual="ckks"), worker_parties(2))
    bank, shop, server = (sheet_part(sheet, name) for name in ("bank", "shop", "server"))
    assert "WrappedMaskKey from passive" in bank
    assert "WrappedMaskKey from" not in shop
    assert "Push from passive: uniform" in server


Answer = Callable[[Any, Mapping[str, bytes]], bytes]
ANSWERS: dict[str, Answer] = {
    "one payload": lambda self, stored: stored[min(stored)],
    "one payload added to itself": lambda self, stored: self._plain([stored[min(stored)]] * len(stored)),
    "cut": lambda self, stored: self._plain([*stored.values()])[:-8],
    "nothing": lambda self, stored: b"",
    "random bytes": lambda self, stored: np.random.default_rng(0).bytes(len(stored[min(stored)])),
}


@pytest.mark.parametrize("answer", ANSWERS)
@pytest.mark.parametrize("stored", ROLE_CLASSES)
def test_a_malicious_server_causes_a_typed_error(stored: str, answer: str) -> None:
    server, _ = ROLE_CLASSES[stored]
    add = server.add_payloads

    def plain(self: Any, payloads: list[bytes]) -> bytes:
        generated: bytes = add(self, {str(number): payload for number, payload in enumerate(payloads)})
        return generated

    with (
        mock.patch.object(server, "_plain", plain, create=True),
        mock.patch.object(server, "add_payloads", ANSWERS[answer]),
        pytest.raises((KeyMismatch, CryptoError, ProtocolError)) as caught,
    ):
        vfl.simulate(fdml_job(stored, epochs=2), worker_parties(3))
    assert "server" in str(caught.value) or "sum" in str(caught.value)


@pytest.mark.parametrize("stored", ROLE_CLASSES)
def test_a_malicious_worker_causes_a_typed_error(stored: str) -> None:
    _, worker = ROLE_CLASSES[stored]
    conceal = worker.encode_payload
    pushes: dict[str, Callable[[Any, Any, int, int], bytes]] = {
        "cut": lambda self, H, batch, version: conceal(self, H, batch, version)[:-8],
        "of another batch": lambda self, H, batch, version: conceal(self, H, batch + 1, version),
        "of another version": lambda self, H, batch, version: conceal(self, H, batch, version + 1),
        "of fewer rows": lambda self, H, batch, version: conceal(self, H[1:], batch, version),
        "of nothing": lambda self, H, batch, version: b"",
    }
    for what, push in pushes.items():

        def of_one(self: Any, H: Any, batch: int, version: int, push: Any = push) -> bytes:
            generated: bytes = (push if self.me == "telco" else conceal)(self, H, batch, version)
            return generated

        with mock.patch.object(worker, "encode_payload", of_one), pytest.raises(SecureVFLError) as caught:
            vfl.simulate(fdml_job(stored, epochs=2), worker_parties(3))
        assert isinstance(caught.value, CryptoError | ProtocolError | LimitError), what


def test_a_push_under_an_old_version_is_refused() -> None:
    """A worker that lost count, as after a crash, cannot use one mask for two payloads in one session."""
    push = StoredWorker.conceal

    def again(self: Any, H: Any, batch: int, version: int) -> bytes:
        push(self, H, batch, version)
        return push(self, H + 1, batch, version)

    with mock.patch.object(StoredWorker, "conceal", again), pytest.raises(CryptoError):
        vfl.simulate(fdml_job(epochs=2), worker_parties(2))


@pytest.mark.parametrize("stored", ROLE_CLASSES)
def test_pushes_after_a_crash_use_fresh_keys(stored: str, tmp_path: Path) -> None:
    """The same versions of the same batches are pushed in both sessions.

    A mask that is used twice would show in their difference. No byte string of one session occurs in the other, and
    differences are not forward outputs.
    """
    session, arguments = fdml_job(stored, epochs=6), worker_parties(2)
    states = {party.name: Checkpoints(tmp_path / party.name, party.name, every=4) for party in arguments}

    def cut(done: int, of: int) -> None:
        if done == 11:
            raise KeyboardInterrupt

    sessions: list[dict[tuple[str, int, int], bytes]] = []
    for on_round in (cut, None):
        events: list[Any] = []
        with suppress(KeyboardInterrupt):
            vfl.simulate(session, arguments, checkpoints=states, on_round=on_round, observe=events.append)
        sessions.append({})
        for event in events:
            if isinstance(event.message, Push | RestoredOutputs):
                version = event.message.iteration if isinstance(event.message, Push) else event.message.version
                sessions[-1][event.peer, event.message.batch, version] = event.message.payload
    first, second = sessions
    both = set(first) & set(second)
    assert len(both) >= 4
    pieces = [
        {item[i : i + 16] for item in session.values() for i in range(44, len(item) - 15, 16)} for session in sessions
    ]
    assert not pieces[0] & pieces[1]
    if stored == "masks":
        for key in both:
            apart = np.frombuffer(first[key], "<u8") - np.frombuffer(second[key], "<u8")
            assert np.abs(apart.view("<i8").astype(float)).max() > 2.0**60, "masks cancel"
