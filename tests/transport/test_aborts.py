"""When a party stops, the others receive a code, and no text of the error that stopped it."""

from __future__ import annotations

import re
from typing import Any, get_args, get_type_hints

import pytest

import securevfl as vfl
from securevfl import errors
from securevfl.errors import STOP_REASONS, SecureVFLError, StopReason, TransportError
from securevfl.organisations.peer_session import run_session
from securevfl.organisations.peer_settings import PeerSettings
from securevfl.runtime.abort import Abort
from securevfl.runtime.channel import Channel
from securevfl.runtime.clock import WallClock
from securevfl.runtime.codec import Message, decode_message, encode_message
from securevfl.runtime.observer import Event
from securevfl.runtime.party_threads import run_threads
from tests.transport.processes import at_each

SECRET = "hiv_positive holds least, 0.2137 bits; 137 rows are rare; /home/bank/loans.csv"


class Other(Message, frozen=True):
    """A message that never arrives."""


def made(kind: type[BaseException]) -> BaseException:
    """Return an error of this class whose text contains a column's name, counts and a path."""
    if kind is errors.PeerStopped:
        return errors.PeerStopped(SECRET, "refused")
    return kind(SECRET, OSError(28, SECRET)) if kind is errors.StorageError else kind(SECRET)  # type: ignore[call-arg]


ERROR_KINDS: list[type[BaseException]] = [
    *[kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, SecureVFLError)],
    ValueError,
    ZeroDivisionError,
    OSError,
    KeyboardInterrupt,
]


def heard(raised: BaseException) -> tuple[str, bytes]:
    """Return the text that another party reads, and the message that carries it, when a party raises this error."""
    seen: list[Message] = []
    texts: list[str] = []

    def bank(channel: Channel) -> None:
        raise raised

    def shop(channel: Channel) -> None:
        with pytest.raises(TransportError) as caught:
            channel.recv("bank", Other)
        texts.append(str(caught.value))

    def observe(event: Event) -> None:
        if event.direction == "send":
            seen.append(event.message)

    with pytest.raises(type(raised)) as local_error:
        run_threads({"bank": bank, "shop": shop}, WallClock, timeout=20, observe=observe)
    assert local_error.value is raised  # the party itself sees the whole error
    return texts[0], b"".join(encode_message(message) for message in seen)


def says_nothing(text: str | bytes) -> bool:
    sent = text if isinstance(text, str) else text.decode("utf-8", "replace")
    words = re.findall(r"[\w./]+", SECRET)
    return not any(word in re.findall(r"[\w./]+", sent) for word in words if len(word) > 4 or word.isdigit())


@pytest.mark.parametrize("kind", ERROR_KINDS, ids=lambda kind: kind.__name__)
def test_no_error_tells_what_it_says(kind: type[BaseException]) -> None:
    assert not says_nothing(str(made(kind)))
    text, sent = heard(made(kind))
    print(f"{kind.__name__}: {text}")
    assert says_nothing(text)
    assert says_nothing(sent)
    assert text.removeprefix("bank has stopped: ") in STOP_REASONS.values()


def test_what_depends_on_a_partys_data_reads_the_same() -> None:
    """The error does not reveal whether columns, labels, ids, ledger or ranges failed."""
    reasons = {heard(made(kind))[0] for kind in ERROR_KINDS if issubclass(kind, errors.DataError | errors.RangeError)}
    reasons |= {heard(made(errors.LeakageError))[0], heard(made(errors.ConfigError))[0]}
    assert reasons == {f"bank has stopped: {STOP_REASONS['refused']}"}


@pytest.mark.parametrize("reason", get_args(StopReason))
def test_the_reason_is_the_same_whoever_passes_it_on_first(reason: StopReason) -> None:
    """One of three parties stops, then the second does, and the third may receive the second's message first."""
    direct = Abort(reason).error("shop", ["shop", "telco"])
    ended = Abort(reason).error("shop", ["shop", "bank"])
    passed_on = Abort.of(ended, ["shop", "bank"]).error("telco", ["shop", "telco"])
    if reason != "away":
        assert str(passed_on) == str(direct) == f"shop has stopped: {STOP_REASONS[reason]}"
    else:  # a party that waits for a third one names it; the awaited peer sends no message
        assert str(passed_on) == f"telco has stopped: {STOP_REASONS['away']} (shop)"


@pytest.mark.parametrize("kind", ERROR_KINDS, ids=lambda kind: kind.__name__)
def test_only_a_party_that_may_agree_again_says_it_resumes(kind: type[BaseException]) -> None:
    """Who has refused, or waits for its operator's consent, does not continue when the peers start again."""
    for resumes in (False, True):
        abort = Abort.of(made(kind), ["bank"], resumes=resumes)
        assert abort.resumes == (resumes and abort.reason not in ("refused", "consent"))
        assert ("resume from its last checkpoint" in str(abort.error("shop", ["shop"]))) == abort.resumes


def test_every_reason_of_a_stop_is_that_of_some_error() -> None:
    assert {Abort.of(made(kind), []).reason for kind in ERROR_KINDS} == set(STOP_REASONS)


def test_a_party_is_told_of_nobody_but_its_peers() -> None:
    """A name that a peer has invented, or this party's own name, is not put into the error."""
    for name in (SECRET, "bank"):
        assert str(Abort("refused", party=name).error("telco", ["shop", "telco"])).startswith("telco has stopped: ")
        assert name not in str(Abort("away", party=name).error("telco", ["shop", "telco"]))


def test_an_abort_has_no_room_for_text() -> None:
    """Its fields are one of a fixed set of codes, a bit, and the name of a party; other names are not sent."""
    hints = get_type_hints(Abort)
    assert {name: hints[name] for name in Abort.__struct_fields__} == {
        "reason": StopReason,
        "resumes": bool,
        "party": str,
    }
    assert set(get_args(StopReason)) == set(STOP_REASONS)
    assert Abort.of(TransportError(SECRET, away="telco"), ["shop", "telco"]).party == "telco"
    assert not Abort.of(TransportError(SECRET, away=SECRET), ["shop", "telco"]).party
    assert all(kind.stop_reason in STOP_REASONS for kind in ERROR_KINDS if issubclass(kind, SecureVFLError))
    with pytest.raises(errors.FrameError):
        decode_message(Abort, encode_message(Abort(SECRET)))  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", [errors.LeakageError, errors.ClassError, OSError, ZeroDivisionError])
def test_processes_read_no_more(meet: Any, kind: type[Exception]) -> None:
    meeting = meet(2)

    def talk(channel: Channel) -> None:
        if channel.me == "bank":
            raise made(kind)
        channel.recv("bank", Other)

    def play(party: vfl.Party, kit: Any) -> Any:
        return run_session(
            party.name, PeerSettings.of(kit / "peers.toml", timeout=20, patience=5), {}, talk, ledger=None
        )

    ended = at_each(meeting, play)
    assert says_nothing(str(ended["shop"]))
    assert "bank has stopped: " in str(ended["shop"])
    assert not says_nothing(str(ended["bank"]) + str(ended["bank"].__cause__))
