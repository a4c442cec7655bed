"""Messages and frames as bytes: msgpack through msgspec, never pickle.

A message is a frozen struct; its class name is its tag. Arrays travel as (dtype, shape, bytes) and are checked
against the dtype the struct declares, or both of them (`Numbers`). A frame wraps one message with who sent it to whom,
in which session, on which subchannel and in which order.
"""

from __future__ import annotations

import threading
from functools import lru_cache
from math import prod
from typing import Any, TypeVar, get_args

import msgspec
import numpy as np
from numpy.typing import NDArray

from securevfl.errors import FrameError, ProtocolError

FORMAT = 2
SESSION_BYTES = 16


Numbers = NDArray[np.float64 | np.float32]
"""Floating-point numbers of a message, in 8 bytes or in 4 as was agreed."""


def carried(values: NDArray[Any], bits: int) -> Numbers:
    """Round numbers to so many bits each, 32 or 64, as they go in the clear; too large ones become infinite."""
    if bits == 64:
        return values.astype(np.float64)
    with np.errstate(over="ignore"):
        return values.astype(np.float32)


def check_bits(sender: str, values: NDArray[Any], bits: int) -> None:
    """ProtocolError unless numbers that came in the clear have as many bits each as was agreed."""
    if 8 * values.itemsize != bits:
        raise ProtocolError(
            f"{sender} was expected to send numbers of {bits} bits, {8 * values.itemsize} came; do both run "
            "the same job?"
        )


class Message(msgspec.Struct, frozen=True, tag=True, array_like=True, forbid_unknown_fields=True):
    """The base class of every protocol message."""


M = TypeVar("M", bound=Message)


class Frame(msgspec.Struct, frozen=True, tag=True, array_like=True, forbid_unknown_fields=True):
    """One message on its way. `seq` counts from 0 for each (sender, receiver, subchannel)."""

    format: int
    session: bytes
    sender: str
    receiver: str
    subchannel: str
    seq: int
    kind: str
    payload: msgspec.Raw


def _encode_array(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.dtype.newbyteorder("<").str, value.shape, value.astype(value.dtype.newbyteorder("<")).tobytes()
    raise TypeError(f"{type(value).__name__} cannot be sent")


def _decode_array(kind: Any, value: Any) -> Any:
    number = get_args(get_args(kind)[1])[0]
    declared = {one.str: one for one in (np.dtype(each).newbyteorder("<") for each in get_args(number) or (number,))}
    try:
        name, shape, data = value
        dtype = declared[name]
        if not isinstance(data, bytes):
            raise ValueError
        if not all(isinstance(side, int) and side >= 0 for side in shape) or len(shape) > 4:
            raise ValueError
        if prod(shape) * dtype.itemsize != len(data):
            raise ValueError
    except (ValueError, TypeError, KeyError):
        raise ValueError(f"an array of {' or '.join(declared)} that fits its shape was expected") from None
    return np.frombuffer(data, dtype=dtype).reshape(shape)


_encoder = msgspec.msgpack.Encoder(enc_hook=_encode_array)
_frames = msgspec.msgpack.Decoder(Frame)
_making = threading.Lock()  # two threads that ask msgspec about a type at once can end the process


@lru_cache(maxsize=256)
def _decoder(kind: type[Message]) -> msgspec.msgpack.Decoder[Any]:
    with _making:
        return msgspec.msgpack.Decoder(kind, dec_hook=_decode_array)


def encode_message(message: Message) -> bytes:
    """Encode the message alone, tag first."""
    return _encoder.encode(message)


def decode_message(kind: type[M], data: bytes | memoryview | msgspec.Raw) -> M:
    """Decode a message. Raises FrameError if `data` is not a well-formed message of exactly this kind."""
    try:
        return _decoder(kind).decode(data)
    except (msgspec.DecodeError, ValueError, RecursionError) as cause:
        raise FrameError(f"a {kind.__name__} was expected; what came is malformed ({_where(cause)})") from None


def encode_frame(
    message: Message, *, session: bytes, sender: str, receiver: str, subchannel: str = "", seq: int = 0
) -> bytes:
    """Encode a message into the frame that crosses the line; the frame's length is what the books count."""
    # tag and fields of a Frame, the message among them: written in one go, as copying large ones costs
    kind = type(message).__name__
    return _encoder.encode((Frame.__name__, FORMAT, session, sender, receiver, subchannel, seq, kind, message))


def decode_frame(data: bytes | memoryview) -> Frame:
    """Decode a frame, leaving its payload to be decoded by whoever expects it. Raises FrameError if the bytes are no
    frame of this format."""
    try:
        frame = _frames.decode(data)
    except (msgspec.DecodeError, ValueError, RecursionError) as cause:
        raise FrameError(f"a frame was expected; what came is malformed ({_where(cause)})") from None
    if frame.format != FORMAT:
        raise ProtocolError(f"frame format {FORMAT} was expected, {frame.format} came: update the older side")
    if len(frame.session) != SESSION_BYTES or frame.seq < 0:
        raise FrameError("a frame with a 16-byte session and a sequence number >= 0 was expected")
    return frame


def _where(cause: Exception) -> str:
    """Say what msgspec reports about the place of an error, without the offending value."""
    return str(cause).split("`$")[0].strip(" -") if isinstance(cause, msgspec.ValidationError) else "not decodable"
