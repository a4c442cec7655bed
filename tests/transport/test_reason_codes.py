"""Reason codes across parties: chosen codes are disclosed, counted and limited; information in codes alone."""

from __future__ import annotations

import csv
import json
import math
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import securevfl as vfl
from securevfl.cli.prediction_output import write_predictions
from securevfl.cli.reason_code_options import given_codes
from securevfl.credit.explanations import shapley
from securevfl.credit.reason_codes import REASON_CODES, ReasonCodePolicy, ReasonCodes
from securevfl.disclosure.ledger import DisclosureLedger
from securevfl.disclosure.limits import Limit
from securevfl.errors import ConfigError, LeakageError, ProtocolError
from securevfl.organisations.peer_settings import PeerSettings
from securevfl.organisations.predict import predict_with
from securevfl.organisations.prediction import Prediction
from securevfl.organisations.scoring import score_rows
from securevfl.organisations.serve import Server
from securevfl.protocols.score_ledger.row_ledger import ScoreLedger
from securevfl.protocols.score_ledger.score_limits import MIN_ITERATIONS
from tests.builders import raises_code
from tests.transport.processes import each
from tests.transport.test_serve import held, limits, serving

CANCER_PARTIES = vfl.datasets.breast_cancer(3)
FIRST_ROWS = {party.name: party.X[:30] for party in CANCER_PARTIES}
THREE = math.log2(10 * 9 * 8)


@pytest.fixture(scope="module")
def run() -> vfl.Run:
    job = vfl.Job(
        model=vfl.Logistic(l2=1e-3),
        optimizer=vfl.FedBCD(lr=0.3),
        protocol=vfl.Protocol(sum="pairwise", residual="open"),
        batch_size=200,
        epochs=2,
        reason_codes=3,
    )
    return vfl.simulate(job, CANCER_PARTIES)


def codes_of(run: vfl.Run, name: str, most: int = 3) -> ReasonCodePolicy:
    return ReasonCodePolicy(most, {column: f"R{j:02d}" for j, column in enumerate(run.parts[name].columns)})


def expected(run: vfl.Run, name: str, X: Any, most: int = 3) -> list[list[str]]:
    order = np.argsort(-shapley(run.parts[name], X)[:, :, 0], axis=1, kind="stable")[:, :most]
    return [[f"R{j:02d}" for j in row] for row in order.tolist()]


def predict(meeting: Any, run: vfl.Run, ids: Any = range(30), **code_policy: ReasonCodePolicy) -> dict[str, Any]:
    def ask(name: str) -> Any:
        peers, ledger = meeting.kit(name) / "peers.toml", meeting.folder / f"{name}.ledger"
        row_ids = None if ids is None else list(ids)
        keys: dict[str, Any] = {
            "ids": row_ids,
            "ledger": ledger,
            "timeout": 20,
            "patience": 5,
            "code_policy": code_policy.get(name),
        }
        return predict_with(run.parts[name], FIRST_ROWS[name], peers, **keys)

    return each(meeting, ask)


def told(path: Path) -> list[float]:
    """Return the bits of codes that a score ledger has recorded for each row."""
    ledger = ScoreLedger(path)
    return [bits for (bits,) in ledger._file._connection.execute("SELECT total(bits) FROM codes GROUP BY row")]


def test_codes_are_told_by_those_who_chose_to_and_counted(meet: Any, run: vfl.Run, tmp_path: Path) -> None:
    meeting = meet(3)
    blocks = predict(meeting, run, shop=codes_of(run, "shop"), bank=codes_of(run, "bank", 1))
    assert blocks["bank"].reasons == {
        "bank": expected(run, "bank", FIRST_ROWS["bank"], 1),
        "shop": expected(run, "shop", FIRST_ROWS["shop"]),
    }
    np.testing.assert_allclose(blocks["bank"].proba, run.predict_proba(FIRST_ROWS), rtol=0, atol=1e-9)
    scores = {name: meeting.folder / f"{name}.ledger" for name in ("bank", "shop", "telco")}
    assert told(scores["shop"]) == pytest.approx([THREE] * 30)
    assert told(scores["bank"]) == told(scores["telco"]) == []  # their codes are not disclosed
    entries = [DisclosureLedger.find(meeting.folder / f"{name}.ledger").read().entries for name in ("shop", "telco")]
    assert [[entry.disclosure.count for entry in disclosures] for disclosures in entries] == [[60], [30]]
    predict(meeting, run, shop=codes_of(run, "shop", 2))
    assert told(scores["shop"]) == pytest.approx([THREE] * 30)  # the same columns of the same rows disclose nothing new
    path = tmp_path / "out.csv"
    with write_predictions(run.parts["bank"], path) as written:
        written["on_block"](list(range(30)), blocks["bank"])
    first = next(csv.DictReader(path.open()))
    assert [first[f"reason shop {k}"] for k in (1, 2, 3)] == expected(run, "shop", FIRST_ROWS["shop"])[0]


def test_nothing_is_told_beyond_the_limits_of_the_ledger(meet: Any, run: vfl.Run) -> None:
    meeting = meet(3)
    DisclosureLedger(meeting.folder / "shop.ledger", "shop").set_limit("scores", Limit(59))
    refused = predict(meeting, run, shop=codes_of(run, "shop"))
    assert isinstance(refused["shop"], LeakageError)
    assert told(meeting.folder / "shop.ledger") == []
    without = predict(meeting, run, ids=None, telco=codes_of(run, "telco"))
    assert "rows without ids" in str(without["telco"])


def test_a_party_that_serves_gives_codes_with_its_scores(meet: Any, run: vfl.Run) -> None:
    meeting, reasons = meet(3), dict[int, list[str]]()

    def keep(ids: list[Any] | None, block: Prediction) -> None:
        reasons.update(zip(ids or [], block.reasons["shop"], strict=True))

    with serving(meeting, run, 1, code_policy={"shop": codes_of(run, "shop", 2)}):
        venue = PeerSettings.of(meeting.kit("bank") / "peers.toml", timeout=20, patience=5)
        score_rows(run.parts["bank"], held(run, "bank", slice(100, 140)), venue, on_block=keep)
    assert reasons == dict(zip(range(100, 140), expected(run, "shop", CANCER_PARTIES[1].X[100:140], 2), strict=True))
    assert told(meeting.folder / "shop.ledger") == pytest.approx([math.log2(90)] * 40)


def test_codes_and_levels_have_one_budget(tmp_path: Path) -> None:
    X, ids = np.arange(40.0).reshape(4, 10), [b"1", b"2", b"3", b"4"]
    ledger = ScoreLedger(tmp_path / "scores")
    ledger.record_model(b"m", MIN_ITERATIONS, [b"9"], X[:1] + 0.5)
    ledger.admit_codes("run", ids[:2], X[:2], bits=THREE, max_bits=15)
    ledger.admit_codes("run", ids[:2], X[:2], bits=THREE, max_bits=15)

    def levels(k: int, bits: int, peer: str = "bank") -> bool:
        question = ledger.query(b"m", peer, [ids[k]], bytes(16))
        return bool(ledger.admit(question, X[k : k + 1], bits=bits, max_bits=15)[0])

    assert not levels(0, 6)
    assert levels(0, 5)
    assert levels(2, 6)
    other = ScoreLedger(tmp_path / "scores")
    assert other.admit_codes("run", ids[2:], X[2:], bits=THREE, max_bits=15).tolist() == [False, True]
    assert told(tmp_path / "scores") == pytest.approx([THREE] * 3)
    # other columns of the same row disclose something new, to every requesting party
    assert not ledger.admit_codes("run", ids[:1], X[1:2], bits=THREE, max_bits=15)[0]
    assert not levels(0, 5, "telco")


def test_codes_that_do_not_fit_are_refused(run: vfl.Run, tmp_path: Path) -> None:
    part, codes = run.parts["shop"], dict(codes_of(run, "shop").codes)
    first = part.columns[0]
    for wrong, refusal in (
        (ReasonCodePolicy(3, {first: "R1"}), "without a code"),
        (ReasonCodePolicy(3, codes | {"z": "R9"}), "unknown columns: z"),
        (ReasonCodePolicy(11, codes), "Choose 1 to 10"),
        (ReasonCodePolicy(4, codes), "exceed the 3 to which all parties agreed"),
        (ReasonCodePolicy(3, codes | {first: "=1+1"}), "letters, digits, spaces"),
    ):
        with pytest.raises(ConfigError, match=refusal):
            wrong.check(part)
    file = tmp_path / "codes.json"
    file.write_text(json.dumps(codes))
    assert given_codes(3, file) == ReasonCodePolicy(3, codes)
    assert given_codes(None, None) is None
    with raises_code(ConfigError, "SVFL-COMMAND-USAGE"):
        given_codes(3, None)

    class Sent:
        def __init__(self, message: ReasonCodes) -> None:
            self.message = message

        def recv(self, *_: Any) -> ReasonCodes:
            return self.message

    for message in (
        ReasonCodes(("a", "b"), bytes(10)),
        ReasonCodes(("a", "b"), np.array([0, 2, 1, 0], "<u2").tobytes()),
        ReasonCodes(("a", "=b"), bytes(8)),
        ReasonCodes((), bytes(8)),
    ):
        with raises_code(ProtocolError, "SVFL-PROTOCOL-VALUES", peer="shop"):
            REASON_CODES.receive("shop", Sent(message), 2, 2)  # type: ignore[arg-type]
    assert REASON_CODES.receive("shop", Sent(ReasonCodes(("a", "b"), bytes(8))), 2, 2) == [["a", ""]] * 2  # type: ignore[arg-type]


@pytest.mark.parametrize(("length", "allowed"), [(1, True), (64, True), (65, False)])
def test_the_longest_name_of_a_code_is_the_same_at_both_parties(run: vfl.Run, length: int, allowed: bool) -> None:
    part, codes = run.parts["shop"], dict(codes_of(run, "shop").codes)
    named = ReasonCodePolicy(3, codes | {part.columns[-1]: "R" * length})
    if allowed:
        named.check(part)
        return
    with raises_code(ConfigError, "SVFL-JOB-OPTION"):
        named.check(part)


def test_a_shared_code_is_listed_once_at_its_party(run: vfl.Run) -> None:
    """Each row has as many entries as codes were agreed on; those of repeated codes are empty and come last."""
    part = run.parts["shop"]
    scaled = np.random.default_rng(8).normal(size=(40, len(part.columns)))
    single = codes_of(run, "shop").codes
    shared = {column: f"R{j % 2}" for j, column in enumerate(part.columns)}
    once = ReasonCodePolicy(3, shared).reasons(part, scaled)
    for row, columns in zip(
        once, ReasonCodePolicy(3, {name: name for name in single}).reasons(part, scaled), strict=True
    ):
        names = list(dict.fromkeys(shared[column] for column in columns))
        assert row == names + [""] * (3 - len(names))


def test_names_go_in_an_order_that_no_order_of_columns_changes(run: vfl.Run) -> None:
    """Names are listed in a fixed order.

    In the order of the columns they would reveal which column has which code, and how many columns share one.
    """
    columns = run.parts["shop"].columns
    names = [f"R{(7 * j) % 10}" if j else "R1" for j in range(len(columns))]
    orders = {
        tuple(ReasonCodePolicy(3, dict(zip(order, codes, strict=True))).names())
        for order, codes in ((columns, names), (columns[::-1], names[::-1]), (columns, sorted(names)))
    }
    assert orders == {tuple(sorted(set(names)))}


@pytest.mark.parametrize("how", ["predicts", "serves"])
def test_more_codes_than_agreed_are_refused_before_any_call(how: str, meet: Any, run: vfl.Run) -> None:
    """Every way to take part first checks how many codes the party would disclose."""
    meeting = meet(3)
    peers, ledger = meeting.kit("shop") / "peers.toml", meeting.folder / "shop.ledger"
    part, wrong = run.parts["shop"], codes_of(run, "shop", 4)
    if how == "predicts":
        begin = partial(predict_with, part, FIRST_ROWS["shop"], peers, ids=range(30), ledger=ledger)
    else:
        limited = limits(DisclosureLedger(ledger, "shop"))
        begin = partial(Server, part, held(run, "shop"), PeerSettings.of(peers), ledger=limited)
    with raises_code(ConfigError, "SVFL-LEAK-NOT-ACCEPTED"):
        begin(code_policy=wrong)


def explained(run: vfl.Run, X: Any, most: int, known: int = 1000) -> Any:
    """Return the share of each column's variance that codes reveal to a party that knows some rows.

    This is a regression on the rank of each code.
    """
    names = sorted(codes_of(run, "shop").codes.values())
    codes = expected(run, "shop", X, most)
    marks = np.array([[float(row_codes[k] == name) for k in range(most) for name in names] for row_codes in codes])
    A = np.column_stack([np.ones(len(X)), marks])
    Z = (X - X.mean(axis=0)) / X.std(axis=0)
    ridge = np.eye(A.shape[1])
    guess = A[known:] @ np.linalg.solve(A[:known].T @ A[:known] + ridge, A[:known].T @ Z[:known])
    return 1 - ((Z[known:] - guess) ** 2).sum(axis=0) / (Z[known:] ** 2).sum(axis=0)


def test_codes_alone_tell_of_the_columns_that_weigh_most() -> None:
    """Ten normal columns, weights from large to small: codes reveal columns with large weights.

    More codes reveal more, and columns without weight stay hidden.
    """
    draw = np.random.default_rng(7)
    X, n = draw.normal(size=(4000, 10)), 4000
    y = (X @ np.linspace(1, 0, 10) + draw.normal(size=n) > 0).astype(int)
    members = [vfl.Party("bank", draw.normal(size=(n, 2)), y, ids=range(n)), vfl.Party("shop", X, ids=range(n))]
    job = vfl.Job(
        model=vfl.Logistic(l2=1e-4), protocol="open", batch_size="all", epochs=8,
        accepts=["columns", "rank", "label_auc", "fresh_equations"],
    )  # fmt: skip
    run = vfl.simulate(job, members)
    one, three = explained(run, X, 1), explained(run, X, 3)
    assert three[:4].mean() > 0.3
    assert three[:4].mean() > one[:4].mean() > 0.1
    assert three[-1] < 0.02
    bits = sum(max(0.0, -0.5 * math.log2(1 - share)) for share in three)
    assert bits < THREE


def test_a_policy_that_sends_other_codes_has_another_fingerprint() -> None:
    codes = {"a": "R1", "b": "R2", "c": "R1"}
    same = ReasonCodePolicy(2, dict(reversed(codes.items())))
    others = [
        *(ReasonCodePolicy(count, codes) for count in (1, 3)),
        *(ReasonCodePolicy(2, codes | {column: "R9"}) for column in codes),
        ReasonCodePolicy(2, {"a": "R2", "b": "R1", "c": "R1"}),
        ReasonCodePolicy(2, {"a": "R1", "b": "R2"}),
        ReasonCodePolicy(2, {"d": "R1", "b": "R2", "c": "R1"}),
    ]
    assert same.fingerprint() == ReasonCodePolicy(2, codes).fingerprint()
    assert len({policy.fingerprint() for policy in (same, *others)}) == 1 + len(others)
