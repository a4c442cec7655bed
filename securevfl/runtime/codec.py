"""Encoding of messages and frames as bytes: msgpack through msgspec, never pickle.

A message is a frozen struct whose class name is its tag. An array is encoded as (dtype, shape, bytes). The decoder
accepts only the dtypes that the struct declares (one, or both of `Numbers`). A frame contains one message with its
sender, receiver, session, subchannel and sequence number. A *subchannel* is an ordered stream of messages between two
parties.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from math import prod
from typing import Any, TypeVar, get_args, get_type_hints

import msgspec
import numpy as np
from numpy.typing import NDArray

from securevfl.base.conversion import conversion_lock
from securevfl.errors import FrameError, ProtocolError
from securevfl.untrusted import MAX_NAME, UntrustedInputError, check_text

FRAME_FORMAT = 3
SESSION_BYTES = 16


Numbers = NDArray[np.float64 | np.float32]
"""Floating-point numbers in a message: 8 or 4 bytes each, as the parties have agreed."""


def to_wire_floats(values: NDArray[Any], bits: int) -> Numbers:
    """Convert numbers to 32 or 64 bits each before they are sent; values too large for 32 bits become infinite."""
    if bits == 64:
        return values.astype(np.float64)
    with np.errstate(over="ignore"):
        return values.astype(np.float32)


def check_bits(sender: str, values: NDArray[Any], bits: int) -> None:
    """Raise ProtocolError unless the numbers of a received message have 32 or 64 bits, as the job requires."""
    if 8 * values.itemsize != bits:
        raise ProtocolError(
            f"{sender} sent floating-point numbers of {8 * values.itemsize} bits, but the job requires {bits} bits",
            code="SVFL-PROTOCOL-SIZE",
        )


class Message(msgspec.Struct, frozen=True, tag=True, array_like=True, forbid_unknown_fields=True):
    """Base class of all protocol messages."""


M = TypeVar("M", bound=Message)


class Frame(msgspec.Struct, frozen=True, tag=True, array_like=True, forbid_unknown_fields=True):
    """One message with its header. `seq` counts from 0 for each (sender, receiver, subchannel)."""

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
    declared = {dtype.str: dtype for dtype in (np.dtype(k).newbyteorder("<") for k in get_args(number) or (number,))}
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
        raise ValueError(f"not an array of {' or '.join(declared)} that fits its shape") from None
    return np.frombuffer(data, dtype=dtype).reshape(shape)


_encoder = msgspec.msgpack.Encoder(enc_hook=_encode_array)
_frames = msgspec.msgpack.Decoder(Frame)


@lru_cache(maxsize=256)
def _decoder(kind: type[Message]) -> msgspec.msgpack.Decoder[Any]:
    with conversion_lock:
        return msgspec.msgpack.Decoder(kind, dec_hook=_decode_array)


@lru_cache(maxsize=256)
def _has_texts(kind: type[Message]) -> bool:
    """Return whether a class of messages declares texts in any of its fields."""
    return "str" in repr(list(get_type_hints(kind).values()))


def check_texts(value: object) -> None:
    """Raise UntrustedInputError if a text in a message is too long or has control characters."""
    if isinstance(value, str):
        check_text(value)
    elif isinstance(value, msgspec.Struct):
        for name in value.__struct_fields__:
            check_texts(getattr(value, name))
    elif isinstance(value, Mapping):
        for key, item in value.items():
            check_texts(key)
            check_texts(item)
    elif isinstance(value, tuple | list):
        for item in value:
            check_texts(item)


def encode_message(message: Message) -> bytes:
    """Encode a message without a frame; the bytes begin with the name of its class."""
    return _encoder.encode(message)


def decode_message(kind: type[M], data: bytes | memoryview | msgspec.Raw) -> M:
    """Decode a message of class `kind`. Raise FrameError if the bytes are not a well-formed message of this class."""
    try:
        message: M = _decoder(kind).decode(data)
        if _has_texts(kind):
            check_texts(message)
        return message
    except UntrustedInputError as cause:
        raise FrameError(f"received a malformed {kind.__name__} ({cause})", code="SVFL-FRAME") from None
    except (msgspec.DecodeError, ValueError, RecursionError) as cause:
        raise FrameError(f"received a malformed {kind.__name__} ({_describe(cause)})", code="SVFL-FRAME") from None


def encode_frame(
    message: Message, *, session: bytes, sender: str, receiver: str, subchannel: str = "", seq: int = 0
) -> bytes:
    """Encode a message with its header as a frame."""
    # one call encodes header and message, because copying the bytes of a large message would take time
    kind = type(message).__name__
    return _encoder.encode((Frame.__name__, FRAME_FORMAT, session, sender, receiver, subchannel, seq, kind, message))


def decode_frame(data: bytes | memoryview) -> Frame:
    """Decode the header of a frame; its payload remains encoded.

    Raise FrameError if the bytes are not a well-formed frame; ProtocolError if its format has another version.
    """
    try:
        frame = _frames.decode(data)
    except (msgspec.DecodeError, ValueError, RecursionError) as cause:
        raise FrameError(f"received a malformed frame ({_describe(cause)})", code="SVFL-FRAME") from None
    if frame.format != FRAME_FORMAT:
        raise ProtocolError(
            f"a peer sent a message in format {frame.format}, but this version of securevfl uses format {FRAME_FORMAT}",
            code="SVFL-PROTOCOL-VERSION",
        )
    if len(frame.session) != SESSION_BYTES or frame.seq < 0:
        raise FrameError("received a frame with an invalid session or a negative sequence number", code="SVFL-FRAME")
    try:
        for name in (frame.sender, frame.receiver, frame.subchannel, frame.kind):
            check_text(name, MAX_NAME)
    except UntrustedInputError as cause:
        raise FrameError(f"received a frame with an invalid header ({cause})", code="SVFL-FRAME") from None
    return frame


def _describe(cause: Exception) -> str:
    """Return msgspec's description of an error, without the value that it quotes."""
    return str(cause).split("`$")[0].strip(" -") if isinstance(cause, msgspec.ValidationError) else "not decodable"
