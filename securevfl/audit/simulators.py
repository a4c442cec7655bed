"""Simulators: the definition of semi-honest security as a program (Goldreich 2004, section 7.2; Lindell 2017).

A protocol is secure against a role if that role could have made its view by itself, from its own input and its
declared output. So the simulator here knows nothing else: it makes up inputs for everyone else that agree with the
output, and plays the protocol with them. That works for any sum and any residual, a user's own included:

    role       own input and declared output          made up
    active     sum of the parts                       one party's part is the sum, the others' are zero
    passive    own part, nothing                      everyone else's part is zero
    active     g, nothing                             J is zero but for one entry of one
    passive    own J, own J^T g                       the shortest g' with J^T g' = J^T g; the others' J as above

g is what goes down: where a residual has a defence, what the defence has made of it, and no more is made of g'. Where
a protocol declares parts or g as plain, the simulator is given them. `compare` puts real and simulated views through
the battery of `statistics`: distributions of residues, of low bits, of differences of messages with each other and with
the role's own input, and classifiers trained on statistics of messages.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from securevfl.audit.message_bytes import bodies, byte_fields, public_moduli
from securevfl.audit.recording.protocol_record import COLLECTS
from securevfl.audit.recording.replayed_defence import defence_of, replayed
from securevfl.audit.recording.transcript import Transcript
from securevfl.audit.recording.transcript_recording import record_residual, record_sum
from securevfl.audit.statistics import Battery, add_classifier_tests, add_two_sample_tests
from securevfl.audit.transcript_checks import Outcome, word_bytes
from securevfl.base.arrays import Floats
from securevfl.errors import ConfigError
from securevfl.protocols.number_spaces import Circle, Reals, Space
from securevfl.protocols.residuals.base import ResidualProtocol
from securevfl.protocols.sums.base import SumProtocol

Parts = Mapping[str, NDArray[Any]]

_PASSIVES = ("P1", "P2", "P3", "P4")
_CHUNK = 32  # residues that one row of the classifier sees
_MOST_ROWS = 600


def made_up_parts(protocol: SumProtocol, receiver: str, parts: Parts, space: Space) -> dict[str, NDArray[Any]]:
    """Parts that agree with what `receiver` puts in and is told."""
    if not protocol.hides_parts and receiver == COLLECTS:
        return dict(parts)
    zeros = {name: np.zeros_like(values) for name, values in parts.items()}
    if receiver != COLLECTS:
        return zeros | {receiver: parts[receiver]}
    total = np.sum(list(parts.values()), axis=0, dtype=next(iter(parts.values())).dtype)
    if isinstance(space, Circle):
        total &= np.uint32(2**space.bits - 1)
    return zeros | {next(iter(parts)): total}


def made_up_residual(
    protocol: ResidualProtocol, receiver: str, g: Sequence[Floats], J: Mapping[str, Sequence[Floats]]
) -> tuple[list[Floats], dict[str, list[Floats]]]:
    """g, as it goes down, and every J that agree with what `receiver` puts in and is told."""
    blank = {name: [np.eye(1, one.size).reshape(one.shape) for one in own] for name, own in J.items()}
    if receiver == COLLECTS:
        return list(g), blank
    if not protocol.seals:
        return list(g), blank | {receiver: list(J[receiver])}
    shortest = [
        own @ np.linalg.lstsq(own.T @ own, own.T @ one, rcond=None)[0] for own, one in zip(J[receiver], g, strict=True)
    ]
    defence = defence_of(protocol)
    bound = 1.0 if defence is None else defence.output_bound(1.0)
    return [np.clip(one, -bound, bound) for one in shortest], blank | {receiver: list(J[receiver])}


def compare(real: Sequence[Transcript], simulated: Sequence[Transcript], receiver: str) -> Outcome:
    """Whether the battery tells the real views of `receiver` from the simulated ones."""
    outcome, battery = Outcome(), Battery()
    views = [_view(runs, receiver) for runs in (real, simulated)]
    if views[0].keys() != views[1].keys():
        outcome.add("simulator", receiver, "real and simulated views hold different messages")
    for name in views[0].keys() & views[1].keys():
        (own, rows), (made, other) = views[0][name], views[1][name]
        add_two_sample_tests(battery, f"{name} at {receiver}", own, made)
        add_classifier_tests(battery, f"{name} at {receiver}", rows, other)
    outcome.statistics("simulator", receiver, battery)
    return outcome


def _view(runs: Sequence[Transcript], receiver: str) -> dict[str, tuple[Floats, Floats]]:
    """Return all fractions, and one row of statistics a chunk, for each kind of message that is not plain."""
    fractions: dict[str, list[Floats]] = defaultdict(list)
    rows: dict[str, list[Floats]] = defaultdict(list)
    for run in runs:
        moduli = public_moduli(run.messages())
        word = word_bytes(run)
        before: dict[tuple[str, str, int], NDArray[Any]] = {}
        recent: list[NDArray[Any]] = []
        for event in run.events:
            if event.me != receiver:
                continue
            name = type(event.message).__name__
            if event.direction == "send":  # what a key holder decrypts is of its view, and it sends what it read
                opened = [body.fractions for body in bodies(event.message, moduli) if body.form == "opened"]
                fractions[f"{name} as decrypted"] += opened
                rows[f"{name} as decrypted"] += [row for own in opened for row in _rows(own)]
                continue
            declared = run.declaration(event)
            if declared is None or declared.reveals.kind in ("plain", "public"):
                continue
            pieces = [data for data in byte_fields(event.message) if data]
            for place, (data, body) in enumerate(zip(pieces, bodies(event.message, moduli), strict=True)):
                if body.form != "raw" or len(data) % word or declared.structured:
                    fractions[name].append(body.fractions)
                    rows[name] += _rows(body.fractions)
                    continue
                values = np.frombuffer(data, f"<u{word}")
                scale = 2.0 ** (8 * word)
                others = [before.get((name, event.peer, place)), recent[-1] if recent else None]
                apart = [
                    (values - other) / scale if other is not None and other.shape == values.shape else None
                    for other in others
                ]
                fractions[name].append(values / scale)
                rows[name] += _rows(values / scale, *apart)
                for what, difference in zip(("in turn", "of two"), apart, strict=True):
                    if difference is not None:
                        fractions[f"{name}, differences {what}"].append(difference)
                        rows[f"{name}, differences {what}"] += _rows(difference)
                before[name, event.peer, place] = values
                recent.append(values)
    return {
        name: (np.concatenate(pieces)[:20_000], np.array(rows[name][:_MOST_ROWS]))
        for name, pieces in fractions.items()
        if sum(map(len, pieces))
    }


def _rows(fractions: Floats, *apart: Floats | None) -> list[Floats]:
    """Statistics of each chunk: moments, of the low bits too, and the spread of differences."""
    statistics = []
    for start in range(0, max(1, len(fractions) - _CHUNK + 1), _CHUNK):
        u = fractions[start : start + _CHUNK]
        low = u * 2.0**16 % 1.0
        row = [u.mean(), u.std(), low.mean(), low.std(), u.min(initial=1.0), u.max(initial=0.0)]
        spread = [
            0.5 if difference is None else float(np.std((difference[start : start + _CHUNK] + 0.5) % 1.0))
            for difference in apart
        ]
        statistics.append(np.array(row + spread))
    return statistics


def views(protocol: SumProtocol | ResidualProtocol, *, parties: int) -> Outcome:
    """Every role's view in a protocol of a run of so many parties, in few rounds. ConfigError if none knows it."""
    if isinstance(protocol, SumProtocol):
        return sum_views(protocol, rounds=3, sessions=1, passives=parties - 1) if parties > 2 else Outcome()
    if isinstance(protocol, ResidualProtocol):
        return residual_views(protocol)
    raise ConfigError(f"protocol {protocol.name} has no simulator; add one to securevfl.audit.simulators")


def sum_views(
    protocol: SumProtocol, space: Space | None = None, *, rounds: int = 8, sessions: int = 2, passives: int = 4
) -> Outcome:
    """Every role's view in a sum over so many contributors, real against simulated; of many contributors some."""
    chosen = space or Reals()
    names = [f"P{k}" for k in range(1, passives + 1)]
    data: list[list[dict[str, NDArray[Any]]]] = []
    for seed in range(sessions):
        generator = np.random.default_rng([seed, 11])
        base = {name: 5.0 + generator.normal(size=(128, 1)) for name in names}
        if isinstance(chosen, Circle):
            data.append([{name: (abs(own) * 1000).astype(np.uint32) for name, own in base.items()}] * rounds)
        else:
            moved = (
                {name: own + 1e-3 * generator.normal(size=own.shape) for name, own in base.items()}
                for _ in range(rounds)
            )
            data.append(list(moved))
    real = [record_sum(protocol, parts, chosen) for parts in data]
    outcome = Outcome()
    for receiver in (COLLECTS, *names[: len(_PASSIVES)]):
        made = [[made_up_parts(protocol, receiver, parts, chosen) for parts in rounds_] for rounds_ in data]
        simulated = [record_sum(protocol, parts, chosen) for parts in made]
        outcome = outcome.merge(compare(real, simulated, receiver))
    return outcome


def residual_views(protocol: ResidualProtocol, *, rows: int = 60, batches: int = 4, passives: int = 2) -> Outcome:
    """Every role's view in a residual protocol, real against simulated."""
    generator = np.random.default_rng(12)
    g = [np.sign(generator.normal(size=(rows, 1))) * generator.uniform(0.3, 0.9, (rows, 1)) for _ in range(batches)]
    J = {name: [generator.normal(size=(rows, 6)) for _ in g] for name in _PASSIVES[:passives]}
    real = [record_residual(protocol, g, J, epochs=2)]
    down = [one for one, _ in real[0].protocol_record.residuals[COLLECTS]]
    outcome = Outcome()
    for receiver in (COLLECTS, _PASSIVES[0]):
        made_g, made_J = made_up_residual(protocol, receiver, down, {name: own * 2 for name, own in J.items()})
        first_J = {name: own[:batches] for name, own in made_J.items()}
        simulated = [record_residual(replayed(protocol, outcomes=made_g), made_g[:batches], first_J, epochs=2)]
        outcome = outcome.merge(compare(real, simulated, receiver)).merge(_errors(real[0], simulated[0], receiver))
    return outcome


def _errors(real: Transcript, simulated: Transcript, receiver: str) -> Outcome:
    """How an opened gradient misses J^T g must not tell the real g from the made-up one either."""
    outcome, battery = Outcome(), Battery()
    errors = [
        np.concatenate([np.empty(0), *(miss.ravel() for _, miss in run.missed(receiver))]) for run in (real, simulated)
    ]
    if len(errors[0]) and np.ptp(errors[0]) > 0:
        width = 4 * float(np.std(np.concatenate(errors))) + 1e-300
        add_two_sample_tests(
            battery, f"errors of gradients at {receiver}", *(np.clip(x / width + 0.5, 0, 0.999999) for x in errors)
        )
    outcome.statistics("simulator", receiver, battery)
    return outcome
