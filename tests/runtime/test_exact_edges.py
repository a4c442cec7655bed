"""Frames of every wrong length, times of a network, and levels of scores at the exact ends of their ranges."""

from __future__ import annotations

import json
import logging
from typing import Any

import msgspec
import numpy as np
import pytest

from securevfl.crypto.share_ring import ShareRing
from securevfl.errors import FrameError, ProtocolError
from securevfl.protocols.shares import quantizer
from securevfl.protocols.shares.fixed_point import FixedPointEncoding
from securevfl.protocols.shares.quantizer import Quantizer
from securevfl.runtime import eventlog
from securevfl.runtime.codec import (
    FRAME_FORMAT,
    SESSION_BYTES,
    Message,
    Numbers,
    decode_frame,
    decode_message,
    encode_frame,
    encode_message,
)
from securevfl.runtime.network import Network, Pauses
from tests.builders import raises_code
from tests.hard_tables import around


class Rows(Message, frozen=True):
    """Some numbers, for this test."""

    values: Numbers


def test_an_array_fits_its_shape_to_the_byte() -> None:
    for shape in ((0,), (1,), (3, 2), (2, 0, 5)):
        values = np.arange(float(np.prod(shape))).reshape(shape)
        read = decode_message(Rows, encode_message(Rows(values)))
        np.testing.assert_array_equal(read.values, values)
    kind, (name, shape, data) = msgspec.msgpack.decode(encode_message(Rows(np.arange(4.0))))
    for wrong in (
        (name, [4], data[:-8]),
        (name, [3], data),
        (name, [5], data),
        (name, [-4], data),
        (name, [4], data + b"\0"),
        ("<f4", [4], data),
        (name, [1, 1, 1, 1, 4], data),
        (name, [4], "text"),
        (name, [2, 3], data),
    ):
        with raises_code(FrameError, "SVFL-FRAME"):
            decode_message(Rows, msgspec.msgpack.encode((kind, wrong)))


def test_a_header_has_a_whole_session_a_number_and_this_format() -> None:
    header: dict[str, Any] = {"session": bytes(SESSION_BYTES), "sender": "bank", "receiver": "shop"}
    frame = decode_frame(encode_frame(Rows(np.ones(2)), **header, subchannel="a/b", seq=7))
    assert (frame.session, frame.sender, frame.receiver, frame.subchannel, frame.seq, frame.kind) == (
        *(bytes(SESSION_BYTES), "bank", "shop", "a/b", 7, "Rows"),
    )
    assert decode_message(Rows, frame.payload).values.tolist() == [1, 1]
    for changes in ({"session": bytes(SESSION_BYTES - 1)}, {"session": bytes(SESSION_BYTES + 1)}, {"seq": -1}):
        with raises_code(FrameError, "SVFL-FRAME"):
            decode_frame(encode_frame(Rows(np.ones(2)), **{**header, **changes}))
    decode_frame(encode_frame(Rows(np.ones(2)), **header, seq=0))
    parts = msgspec.msgpack.decode(encode_frame(Rows(np.ones(2)), **header))
    for version in (FRAME_FORMAT - 1, FRAME_FORMAT + 1):
        with raises_code(ProtocolError, "SVFL-PROTOCOL-VERSION"):
            decode_frame(msgspec.msgpack.encode([parts[0], version, *parts[2:]]))


def test_times_of_a_network_and_of_pauses() -> None:
    network = Network(mbps=8.0, rtt_ms=30.0, message_ms=2.0)
    assert network.latency == pytest.approx(0.015 + 0.002)
    assert network.transfer(1_000_000) == pytest.approx(1.0)
    assert Network(mbps=1e-9, rtt_ms=0, message_ms=0).latency == 0
    for wrong in ({"mbps": 0}, {"rtt_ms": -1e-9}, {"message_ms": -1e-9}):
        with pytest.raises(ValueError, match="Network"):
            Network(**wrong)
    for share, wrong in ((0.0, False), (1.0, False), (-1e-9, True), (1 + 1e-9, True)):
        if wrong:
            with pytest.raises(ValueError, match="Pauses"):
                Pauses(share, 1.0)
        else:
            lengths = Pauses(share, 0.5, seed=3).lengths()
            drawn = [next(lengths) for _ in range(3000)]
            assert all((length > 0) == (share == 1.0) for length in drawn)
            assert np.mean(drawn) == pytest.approx(0.5 * share, rel=0.1)


def test_log_facts_have_six_digits_and_no_control_characters(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, eventlog.LOGGER.name):
        eventlog.emit("bank", "finished", {"seconds": 1.23456789, "rows": 7, "text": "a\x1bb"})
    line = json.loads(caplog.messages[-1])
    assert (line["party"], line["event"], line["seconds"], line["rows"]) == ("bank", "finished", 1.234568, 7)
    assert "\x1b" not in line["text"]


ENCODING = FixedPointEncoding(256, 0.1)


@pytest.mark.parametrize(("step", "bits"), [(-1, 7), (0, 4), (-3, 8)])
def test_levels_are_right_up_to_the_ends_of_their_range(step: int, bits: int) -> None:
    """Two shares of a sum: cut off, added and read, they are the sum to a level; larger sums are moved or clipped."""
    levels = Quantizer(step, bits)
    assert (levels.size, levels.reach) == (2.0**step, 2.0 ** (bits - 1 + step))
    assert levels.max_reported == min(0.625 * levels.reach, 0.875 * levels.reach - 1.5 * levels.size)
    ring, scale = ShareRing(ENCODING.bits), 2.0 ** (ENCODING.f_x + ENCODING.f_theta)
    sums = np.linspace(-levels.reach + 2 * levels.size, levels.reach - 2 * levels.size, 41)
    words = ring.of(np.rint(sums * scale).astype(np.int64))
    first = np.random.default_rng(0).integers(0, 2**ENCODING.bits, len(sums), dtype=np.uint64)
    second = ring.reduce(words - first)
    read = levels.dequantize(levels.truncate(ENCODING, first) + levels.truncate(ENCODING, second))
    assert np.abs(read - sums).max() <= levels.size
    edges = around([levels.max_reported, -levels.max_reported])
    marked = levels.mark_overflow(edges)
    assert np.isinf(marked).tolist() == [abs(edge) > levels.max_reported for edge in edges]
    knots = around(
        [levels.max_reported, -levels.max_reported, quantizer.CLIP_FRACTION * levels.reach, 0.0, -levels.reach * 2]
    )
    small = ShareRing(bits)
    for knot, shift, clip in zip(knots, levels.overflow_shifts(knots), levels.clip_shifts(knots), strict=True):
        moved = 0 if abs(knot) < levels.max_reported else round((levels.reach - knot) / levels.size)
        assert int(shift) == moved % 2**bits
        if abs(knot) <= quantizer.CLIP_FRACTION * levels.reach:
            assert int(clip) == 0
        else:
            end = np.copysign(quantizer.CLIPPED_FRACTION * levels.reach, knot)
            assert int(clip) == int(small.of(np.rint(np.array([(end - knot) / levels.size])).astype(np.int64))[0])
    for spacing, reach in ((0.5, 8.0), (0.5, 8.5), (1.0, 1.0), (0.25, 100.0)):
        covering = Quantizer.covering(spacing, reach)
        assert covering.size == spacing
        assert covering.reach >= reach > covering.reach / 2
