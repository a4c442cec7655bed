"""A requester receives no more than it was granted: no ids that it did not request, and no more ids than it stated."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
import pytest

from securevfl.crypto.identifiers import canonical_ids, id_keys
from securevfl.errors import ProtocolError, SecureVFLError
from securevfl.protocols.alignment import psi_many, psi_points, psi_transfers
from securevfl.protocols.alignment.psi_many import IntersectionSize, IntersectionTags
from securevfl.protocols.alignment.psi_work import AlignmentStart, AlignmentWork, ascending_order, keyed
from securevfl.runtime.codec import Message
from tests.protocols.test_psi import play

HERE = range(500)


def naming(ids: Iterable[int]) -> Callable[[Message], Message]:
    """A requester that names these ids as common, using all that it knows about ids which it did not request."""
    expected = canonical_ids(ids)
    keys = id_keys(expected)
    nonces: list[bytes] = []

    def change(message: Message) -> Message:
        if isinstance(message, AlignmentStart):
            nonces.append(message.nonce)
        if isinstance(message, IntersectionSize):
            return IntersectionSize(len(expected))
        if isinstance(message, IntersectionTags):
            tags = keyed(nonces[0], keys)
            return IntersectionTags(tags[ascending_order(tags)].tobytes())
        if (
            type(message).__name__ == "Matches"
        ):  # an earlier protocol for two parties matched points by tags of the active one
            return type(message)(b"\xff" * len(message.bits))  # type: ignore[attr-defined, call-arg]
        return message

    return change


def rows_taken(
    requested: list[int], named: Iterable[int], parties: int, *, transfers: bool, granted: int | None
) -> tuple[int, str]:
    """Return the number of rows that the others continue with, and the requester's error if they refuse."""
    sets = [requested, *[list(HERE)] * (parties - 1)]
    change = naming(named)
    try:
        elapsed = play(sets, twist={"bank": change}, transfers=transfers, granted=granted)
    except SecureVFLError as error:
        return 0, str(error)
    return max(len(rows) for rows in elapsed[1:]), ""


FLOWS = [(False, 1), (False, None), (True, None)]


@pytest.mark.parametrize(("transfers", "granted"), FLOWS, ids=["granted", "points", "transfers"])
@pytest.mark.parametrize("parties", [2, 3])
@pytest.mark.parametrize("named", [range(150), [7]], ids=["150 for one", "one for another"])
def test_a_requester_of_one_id_names_no_other_id(
    named: Iterable[int], parties: int, transfers: bool, granted: int | None
) -> None:
    elapsed, _ = rows_taken([0], named, parties, transfers=transfers, granted=granted)
    print(f"{elapsed} of {len(list(named))} ids named, one asked about")
    assert elapsed == 0


def names_all(work: AlignmentWork, passive_rows: dict[str, int], done: dict[str, int]) -> np.ndarray:
    """P_1 that names all its requested ids to every other party."""
    answers = (psi_transfers if work.transfers else psi_points).ask(work, done)
    for passive, rows in passive_rows.items():
        values = answers(passive)
        (psi_many._store_of if len(passive_rows) > 1 else psi_many._values_of)(work, passive, rows)
        permit = work.permit_ids(passive, work.rows)
        work.channel.send(passive, IntersectionSize(work.rows), permit=permit)
        work.channel.send(
            passive, IntersectionTags(values[ascending_order(values[:, 2:]), 2:].tobytes()), permit=permit
        )
    return np.arange(work.rows)


@pytest.mark.parametrize(("transfers", "granted"), [(False, 10), (True, None)], ids=["granted", "transfers"])
@pytest.mark.parametrize("parties", [2, 3])
def test_a_refusal_does_not_reveal_how_many_ids_exist(
    parties: int, transfers: bool, granted: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ten ids are requested and named, and zero to nine of them exist: the message is the same each time."""
    monkeypatch.setattr(psi_many, "lead", names_all)
    text = set()
    for here in (0, 3, 9):
        requested = [*range(here), *range(10**6, 10**6 + 10 - here)]
        with pytest.raises(ProtocolError) as caught:
            play([requested, *[list(HERE)] * (parties - 1)], transfers=transfers, granted=granted)
        text.add(str(caught.value))
    assert len(text) == 1


def test_a_name_depends_on_the_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Names that follow from ids alone would allow the attack."""
    serve = psi_points.serve

    def by_ids(work: AlignmentWork, begin: AlignmentStart) -> Callable[[], np.ndarray]:
        values = serve(work, begin)
        return lambda: np.concatenate([values()[:, :2], keyed(work.nonce, work.keys)], axis=1)

    monkeypatch.setattr(psi_points, "serve", by_ids)
    assert rows_taken([0], [7], 3, transfers=False, granted=1)[0] == 1
