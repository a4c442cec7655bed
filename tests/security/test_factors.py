"""Factors in counts, names of questions, the order over chunks, and rarely used states.

As in test_instances, each probe covers all instances of its kind. `SLIPS` removes one factor, part or state from the
code, and the probe of its class must then fail.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import pytest
from selfcheck.mutants.mutant import Edit, edited

import securevfl as vfl
from securevfl.credit import drift
from securevfl.credit.reason_codes import ReasonCodePolicy
from securevfl.data.baseline import baselines
from securevfl.data.columns import Columns
from securevfl.data.party import Helper
from securevfl.disclosure.counts import Disclosure
from securevfl.errors import ProtocolError, SecureVFLError, TransportError
from securevfl.families.fdml import fdml_outputs
from securevfl.families.run_facts import pooled_run_facts
from securevfl.families.transfer import transfer_outputs
from securevfl.organisations import prediction_session
from securevfl.protocols.alignment.psi_many import IntersectionTags
from securevfl.protocols.alignment.psi_work import AlignmentWork, Points
from securevfl.training.new_rows import NewRows
from securevfl.transport import certificate_checks, certs
from securevfl.transport.pem_files import read_pem
from tests.builders import disclosures_in_run, raises_code
from tests.disclosure.test_account import EXAMPLES, example, tables
from tests.protocols.test_psi import cut_small, play

NOTICED = AssertionError, pytest.fail.Exception
PADDED = {"neural top"}  # a message has a zero for each output of the others
FOLLOWS = {"transfer open"}  # sums of products of the vectors that are disclosed as well
ONE_ROUND_FEWER = {"curvature"}  # the first gradient belongs to weights that all parties know


def _counted(name: str, outputs: int, epochs: int) -> tuple[list[Disclosure], Any, bool]:
    """Return counts, sizes, and whether every epoch opens the same equations again."""
    keys: dict[str, Any] = {"epochs": epochs}
    if outputs > 1:
        keys["model"] = vfl.Softmax()
    job, parties = example(name, **keys)
    helpers = [party for party in parties if isinstance(party, Helper)]
    parties = [*tables(classes=max(outputs, 2))[: job.family.max_parties or 3], *helpers]
    sizes = pooled_run_facts(job, parties).shape
    assert sizes.outputs == outputs
    return disclosures_in_run(job, sizes), sizes, bool(getattr(job.model, "static_jacobian", False))


def counts_of_numbers() -> None:
    """Check that the leak checks' counts equal the numbers sent about each row or batch, over outputs and epochs."""
    seen, columns = set(), dict[tuple[Any, ...], int]()
    for name in EXAMPLES:
        for outputs in (1, 3):
            try:
                results = [_counted(name, outputs, epochs) for epochs in (2, 4)]
            except SecureVFLError:  # another model, or one output alone
                continue
            for (disclosed, sizes, again), epochs in zip(results, (2, 4), strict=True):
                for item in disclosed:
                    rows = {"columns": sizes.held_out if item.group == "held out" else sizes.rows}
                    rows["labels"] = sizes.batches * (epochs if again else 1)
                    capped = (item.kind == "labels" and item.share == 1) or name in FOLLOWS
                    if item.kind in rows and item.group in ("training", "held out") and not capped:
                        seen.add((name, outputs))
                        if item.kind == "columns" and again:
                            columns[name, epochs, (item.learner, item.about, item.group), outputs] = (
                                item.count + outputs * (name in ONE_ROUND_FEWER)
                            )
                        most = item.count + outputs * (name in ONE_ROUND_FEWER)
                        assert most * rows[item.kind] * (1 + (name in PADDED)) >= item.numbers, (name, outputs, item)
    both = [which for *which, outputs in columns if outputs == 1 and (*which, 3) in columns]
    assert len(both) > 20
    for which in both:
        assert columns[*which, 3] == 3 * columns[*which, 1], which
    assert len({name for name, _ in seen}) >= 12
    assert {name for name, outputs in seen if outputs == 3} >= {"ckks", "fdml open", "fdml masks, sealed"}


def names_of_questions() -> None:
    """Check that the name of a repeated question covers the model, requester, rows, columns and codes, in any block."""
    ledger: Any = SimpleNamespace(pseudonym=lambda content: hashlib.sha256(content).hexdigest())
    X = np.arange(24.0).reshape(6, 4)
    codes = {"a": "R1", "b": "R2"}

    def name(X: Any = X, order: bytes = b"order", run: str = "r", asker: str = "bank", arguments: Any = None) -> str:
        rows = NewRows(len(X), order, lambda: ((None, X[at : at + 2]) for at in range(0, len(X), 2)))
        part: Any = SimpleNamespace(run=run, asker=asker)
        return prediction_session._question(part, rows, ledger, arguments)

    others = [name(run="s"), name(asker="shop"), name(order=b"other"), name(X[:4])]
    for row in range(len(X)):
        for column in range(4):
            moved = X.copy()
            moved[row, column] += 1e-9
            others.append(name(moved))
    others += [name(arguments=ReasonCodePolicy(most, codes)) for most in (1, 2)]
    others.append(name(arguments=ReasonCodePolicy(2, codes | {"b": "R3"})))
    assert len({name(), *others}) == 1 + len(others)
    assert name() == name(X + 0.0)
    assert name(arguments=ReasonCodePolicy(2, codes)) == name(
        arguments=ReasonCodePolicy(2, dict(reversed(codes.items())))
    )


def alarms_of_looks() -> None:
    """Check that the false-alarm rate is shared among all joint statistics, two for each column.

    A column just beyond its share is reported as shifted, and one just within it is not, for every kind and number of
    columns.
    """
    draw, n = np.random.default_rng(3), 400

    def mixed_columns(seed: int) -> Columns:
        rng = np.random.default_rng(seed)
        gaps = np.where(rng.random(n) < 0.2, np.nan, rng.normal(size=n))
        X = np.column_stack([rng.normal(size=n), rng.integers(0, 3, n), gaps, rng.integers(0, 4, n)])
        return Columns(X.astype(float), ["number", "few", "gaps", "town"], {"town": ("a", "b", "c", "d")})

    before, new = mixed_columns(1), mixed_columns(2)
    new.X[:60] = new.X[draw.integers(0, 20, 60)]
    for names in (["number"], ["few"], ["gaps"], ["town"], before.names):
        at = [before.names.index(name) for name in names]
        levels = {name: value for name, value in before.categories.items() if name in names}
        stored = baselines(Columns(before.X[:, at], names, levels), np.arange(n))
        fresh = Columns(new.X[:, at], names, levels)
        for item in drift.measure_drift(stored, fresh):
            for factor, beyond in ((1.05, True), (0.95, False)):
                (same,) = (
                    one
                    for one in drift.measure_drift(stored, fresh, alarms=factor * item.p * 2 * len(names))
                    if one.column == item.column
                )
                assert same.shifted == beyond, (names, item.column)


def expired_authorities(folder: Path) -> None:
    """Check that a certificate is refused if it or its authority has expired or is not valid yet."""
    now = datetime(2030, 1, 1, tzinfo=UTC)
    for authority, local in ((10, 100), (100, 10)):
        place = folder / f"{authority}-{local}"
        certs.init(place, days=authority, now=now)
        # a certificate that outlives its authority, which no command creates
        longer = edited(
            certs, "issue", ("min(now + _validity(days), authority.not_valid_after_utc)", "now + _validity(days)")
        )
        with mock.patch.object(*longer):
            certs.issue(place, "bank", days=local, now=now)
        ca, bank = read_pem(place / "ca.pem"), read_pem(place / "bank.pem")
        certificate_checks.check_peer(bank, ca, "bank", now + timedelta(days=5))
        for when in (50, -5):
            with raises_code(TransportError, "SVFL-TLS-CERTIFICATE", party="bank"):
                certificate_checks.check_peer(bank, ca, "bank", now + timedelta(days=when))


ORDERED = (
    (Points, 2, "bank", False),
    (Points, 3, "bank", False),
    (IntersectionTags, 3, "bank", False),
    (IntersectionTags, 2, "bank", True),
)


def order_over_chunks() -> None:
    """Check that points and tags ascend from chunk to chunk, so that a repeated chunk is refused."""
    for kind, parties, cheat, transfers in ORDERED:
        sent: list[Any] = []

        def again(message: Any, kind: Any = kind, sent: list[Any] = sent) -> Any:
            if isinstance(message, kind):
                sent.append(message)
                return sent[0]
            return message

        with pytest.MonkeyPatch.context() as patch:
            cut_small(patch, 5)
            with raises_code(ProtocolError, "SVFL-PROTOCOL-VALUES", party="bank"):
                play([list(range(20))] * parties, twist={cheat: again}, transfers=transfers)
        assert len(sent) > 1


PROBES = (counts_of_numbers, names_of_questions, alarms_of_looks, expired_authorities, order_over_chunks)
SLIPS: dict[str, tuple[Callable[[], Edit], Callable[..., None]]] = {
    "evaluations of FDML without the outputs": (
        lambda: edited(fdml_outputs, "_evaluation_outputs", ("job.model.output_width(shape.outputs)", "1")),
        counts_of_numbers,
    ),
    "visits of FDML without the outputs": (
        lambda: edited(fdml_outputs, "_column_outputs", ("job.model.output_width(shape.outputs)", "1")),
        counts_of_numbers,
    ),
    "moments of transfer once a run": (
        lambda: edited(
            transfer_outputs,
            "_sealed_outputs",
            ("moments * shape.epochs,", "moments,"),
        ),
        counts_of_numbers,
    ),
    "a question by its first block": (
        lambda: edited(prediction_session, "_question", ("in rows.blocks():", "in list(rows.blocks())[:1]:")),
        names_of_questions,
    ),
    "a question without its codes": (
        lambda: edited(prediction_session, "_question", ("rows.order.hex(), codes)", "rows.order.hex())")),
        names_of_questions,
    ),
    "a query without its sender": (
        lambda: edited(prediction_session, "_question", ("(part.run, part.asker, ", "(part.run, ")),
        names_of_questions,
    ),
    "alarms shared among half of the looks": (
        lambda: edited(drift, "measure_drift", ("tests = 2 * len(baselines)", "tests = len(baselines)")),
        alarms_of_looks,
    ),
    "an authority that has expired": (
        lambda: edited(certificate_checks, "check_peer", (', ("the authority of", issuer)):', ",):")),
        expired_authorities,
    ),
    "points by the order within a chunk": (
        lambda: edited(AlignmentWork, "blind_theirs", ("POINT_BYTES, previous)", 'POINT_BYTES, b"")')),
        order_over_chunks,
    ),
}


def _run(probe: Callable[..., None], folder: Path) -> None:
    probe(folder) if probe is expired_authorities else probe()


@pytest.mark.parametrize("probe", PROBES, ids=lambda probe: probe.__name__)
def test_every_factor_and_state(probe: Callable[..., None], tmp_path: Path) -> None:
    _run(probe, tmp_path)


@pytest.mark.parametrize("slip", SLIPS)
def test_every_omission_is_noticed(slip: str, tmp_path: Path) -> None:
    patch, probe = SLIPS[slip]
    owner, name, value = patch()
    with mock.patch.object(owner, name, value), pytest.raises(NOTICED):
        _run(probe, tmp_path)
