"""Encoding of messages and frames as bytes, and the refusal of malformed bytes."""

import re
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from builders import raises_code
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

import securevfl
from securevfl.errors import FrameError, ProtocolError
from securevfl.runtime.codec import FRAME_FORMAT, Message, decode_frame, decode_message, encode_frame, encode_message


class Vector(Message, frozen=True):
    values: NDArray[np.float64]
    note: str


class Phases(Message, frozen=True):
    values: NDArray[np.uint32]


SESSION = bytes(16)


def frame_of(message: Message, **changes: object) -> bytes:
    place: dict[str, object] = {"session": SESSION, "sender": "bank", "receiver": "shop"} | changes
    return encode_frame(message, **place)  # type: ignore[arg-type]


@given(
    hnp.arrays(np.float64, hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=5)),
    st.text(st.characters(exclude_categories=["C", "Z"])),
)
def test_decoding_inverts_encoding(values: NDArray[np.float64], note: str) -> None:
    frame = decode_frame(frame_of(Vector(values, note), subchannel="a", seq=7))
    assert (frame.sender, frame.receiver, frame.subchannel, frame.seq, frame.kind) == ("bank", "shop", "a", 7, "Vector")
    back = decode_message(Vector, frame.payload)
    assert back.values.shape == values.shape
    np.testing.assert_array_equal(back.values, values)
    assert back.note == note


def test_arrays_that_are_not_contiguous_keep_their_values() -> None:
    values = np.arange(12.0).reshape(3, 4)[:, ::2]
    np.testing.assert_array_equal(decode_message(Vector, encode_message(Vector(values, ""))).values, values)


def test_another_dtype_than_declared_is_refused() -> None:
    with raises_code(FrameError, "SVFL-FRAME"):
        decode_message(Phases, encode_message(Phases(np.ones(3))))  # type: ignore[arg-type]


def test_another_message_than_expected_is_refused() -> None:
    with pytest.raises(FrameError):
        decode_message(Phases, encode_message(Vector(np.ones(2), "")))


def test_an_array_with_a_wrong_shape_is_rejected() -> None:
    data = encode_message(Vector(np.ones(4), ""))
    assert data.count(b"\x91\x04") == 1
    with pytest.raises(FrameError):
        decode_message(Vector, data.replace(b"\x91\x04", b"\x91\x05"))


def test_a_newer_format_names_the_remedy() -> None:
    data = bytearray(frame_of(Vector(np.ones(1), "")))
    place = data.index(b"Frame") + 5
    assert data[place] == FRAME_FORMAT
    data[place] = FRAME_FORMAT + 1
    with raises_code(ProtocolError, "SVFL-PROTOCOL-VERSION"):
        decode_frame(bytes(data))


@given(st.data())
def test_mutated_frames_are_refused_or_equal_in_kind(data: st.DataObject) -> None:
    encoded = bytearray(frame_of(Vector(np.arange(3.0), "x")))
    for _ in range(data.draw(st.integers(1, 4))):
        encoded[data.draw(st.integers(0, len(encoded) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(encoded[: data.draw(st.integers(0, len(encoded)))])
    with suppress(ProtocolError):
        decode_message(Vector, decode_frame(cut).payload)


def test_errors_do_not_show_the_received_values() -> None:
    secret = "4711-secret-value"
    with pytest.raises(FrameError) as caught:
        decode_message(Phases, encode_message(Vector(np.ones(2), secret)))
    assert secret not in str(caught.value)
    assert caught.value.__cause__ is None


def test_decoders_are_created_in_one_place() -> None:
    """msgspec crashes if two threads create decoders of a dataclass at once, so no call passes a type."""
    root = Path(securevfl.__file__).parent
    candidates = [
        path for folder in (root, *root.glob("*")) for path in folder.rglob("*.py") if "type=" in path.read_text()
    ]
    assert candidates
    offenders = [
        str(path) for path in candidates if re.search(r"\bdecode\([^)]*type=", path.read_text(encoding="utf-8"))
    ]
    assert not offenders
