"""Simulators: the definition of semi-honest security as a program (Goldreich 2004, section 7.2; Lindell 2017).

A *view* is everything that one party received in a run. A protocol is secure against a role if that role could have
generated its view from its own input and declared output. The simulator generates inputs of all other parties that
agree with that output, and runs the protocol with them. The *parts* are the summands of a sum, g is a published
residual, and J a passive party's matrix:

role       input and declared output          generated inputs
active     sum of the parts                   one party's part is the sum, the others' parts are zero
passive    its part, no output                everyone else's part is zero
active     g, no output                       J is zero except for one entry of one party
passive    its J, and J^T g                   the shortest g' with J^T g' = J^T g; the others' J as in the line above

`compare` tests real against simulated views by the battery of `statistics`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from securevfl.audit.message_bytes import bodies, byte_fields, public_moduli
from securevfl.audit.recording.protocol_record import COLLECTS
from securevfl.audit.recording.replayed_defence import defence_of, with_replayed_defence
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
"""The summand of each party, by name."""

_PASSIVES = ("P1", "P2", "P3", "P4")
_CHUNK = 32  # number of residues (numbers in ciphertexts) that one row of the classifier's input summarises
_MAX_ROWS = 600  # maximum number of rows for the classifier


def simulated_parts(protocol: SumProtocol, receiver: str, parts: Parts, space: Space) -> dict[str, NDArray[Any]]:
    """Return summands of all parties that agree with the input and the declared output of the party `receiver`."""
    if not protocol.hides_parts and receiver == COLLECTS:
        return dict(parts)
    zeros = {name: np.zeros_like(values) for name, values in parts.items()}
    if receiver != COLLECTS:
        return zeros | {receiver: parts[receiver]}
    total = np.sum(list(parts.values()), axis=0, dtype=next(iter(parts.values())).dtype)
    if isinstance(space, Circle):
        total &= np.uint32(2**space.bits - 1)
    return zeros | {next(iter(parts)): total}


def simulated_residuals(
    protocol: ResidualProtocol, receiver: str, g: Sequence[Floats], jacobians: Mapping[str, Sequence[Floats]]
) -> tuple[list[Floats], dict[str, list[Floats]]]:
    """Return published residuals and matrices J that agree with the input and the declared output of `receiver`."""
    blank = {name: [np.eye(1, J.size).reshape(J.shape) for J in matrices] for name, matrices in jacobians.items()}
    if receiver == COLLECTS:
        return list(g), blank
    inputs = list(jacobians[receiver])
    if not protocol.seals:
        return list(g), blank | {receiver: inputs}
    shortest = [
        J @ np.linalg.lstsq(J.T @ J, J.T @ residual, rcond=None)[0] for J, residual in zip(inputs, g, strict=True)
    ]
    defence = defence_of(protocol)
    bound = 1.0 if defence is None else defence.output_bound(1.0)
    return [np.clip(residual, -bound, bound) for residual in shortest], blank | {receiver: inputs}


def compare(real: Sequence[Transcript], simulated: Sequence[Transcript], receiver: str) -> Outcome:
    """Test whether the statistical tests distinguish real and simulated views of `receiver`."""
    outcome, battery = Outcome(), Battery()
    views = [_view(runs, receiver) for runs in (real, simulated)]
    if views[0].keys() != views[1].keys():
        outcome.add("simulator", receiver, "real and simulated views contain different messages")
    for name in sorted(views[0].keys() & views[1].keys()):
        (real_fractions, real_rows), (simulated_fractions, simulated_rows) = views[0][name], views[1][name]
        add_two_sample_tests(battery, f"{name} at {receiver}", real_fractions, simulated_fractions)
        add_classifier_tests(battery, f"{name} at {receiver}", real_rows, simulated_rows)
    outcome.statistics("simulator", receiver, battery)
    return outcome


def _view(runs: Sequence[Transcript], receiver: str) -> dict[str, tuple[Floats, Floats]]:
    """Return, for each message type that is not plain, the residues as fractions, and statistics of their groups."""
    fractions: dict[str, list[Floats]] = defaultdict(list)
    rows: dict[str, list[Floats]] = defaultdict(list)
    for run in runs:
        moduli = public_moduli(run.messages())
        word = word_bytes(run)
        previous: dict[tuple[str, str, int], NDArray[Any]] = {}
        received: list[NDArray[Any]] = []
        for event in run.events:
            if event.me != receiver:
                continue
            name = type(event.message).__name__
            if event.direction == "send":  # a key holder sends decrypted values, which belong to its view
                opened = [body.fractions for body in bodies(event.message, moduli) if body.form == "opened"]
                fractions[f"{name} as decrypted"] += opened
                rows[f"{name} as decrypted"] += [row for values in opened for row in _statistics(values)]
                continue
            declared = run.declaration(event)
            if declared is None or declared.reveals.kind in ("plain", "public"):
                continue
            pieces = [data for data in byte_fields(event.message) if data]
            for index, (data, body) in enumerate(zip(pieces, bodies(event.message, moduli), strict=True)):
                if body.form != "raw" or len(data) % word or declared.structured:
                    fractions[name].append(body.fractions)
                    rows[name] += _statistics(body.fractions)
                    continue
                values = np.frombuffer(data, f"<u{word}")
                scale = 2.0 ** (8 * word)
                others = [previous.get((name, event.peer, index)), received[-1] if received else None]
                differences = [
                    (values - other) / scale if other is not None and other.shape == values.shape else None
                    for other in others
                ]
                fractions[name].append(values / scale)
                rows[name] += _statistics(values / scale, *differences)
                for pairing, difference in zip(("of one sender", "of two messages"), differences, strict=True):
                    if difference is not None:
                        fractions[f"{name}, differences {pairing}"].append(difference)
                        rows[f"{name}, differences {pairing}"] += _statistics(difference)
                previous[name, event.peer, index] = values
                received.append(values)
    return {
        name: (np.concatenate(pieces)[:20_000], np.array(rows[name][:_MAX_ROWS]))
        for name, pieces in fractions.items()
        if sum(map(len, pieces))
    }


def _statistics(fractions: Floats, *differences: Floats | None) -> list[Floats]:
    """Return statistics of each group of `_CHUNK` residues.

    They are the mean, standard deviation and extremes of the residues, mean and standard deviation of their low bits,
    and for each array of differences the standard deviation, modulo 1, in this group.

    Args:
        fractions: the residues, divided by their modulus.
        *differences: differences of these residues from those of other messages; None if there is no such message.

    Returns:
        An array of statistics for each group.
    """
    size = min(_CHUNK, len(fractions))
    count = len(fractions) // _CHUNK or 1

    def grouped(values: Floats) -> Floats:
        return values[: count * size].reshape(count, size)

    u = grouped(fractions)
    low = u * 2.0**16 % 1.0
    columns = [u.mean(axis=1), u.std(axis=1), low.mean(axis=1), low.std(axis=1)]
    columns += [u.min(axis=1, initial=1.0), u.max(axis=1, initial=0.0)]
    for difference in differences:
        if difference is None:
            columns.append(np.full(count, 0.5))
        else:
            columns.append(((grouped(difference) + 0.5) % 1.0).std(axis=1))
    return list(np.stack(columns, axis=1))


def views(protocol: SumProtocol | ResidualProtocol, *, parties: int) -> Outcome:
    """Run a protocol for a few rounds, and compare every role's view with a simulated view.

    Args:
        protocol: a sum or a residual protocol.
        parties: number of parties of the run.

    Returns:
        The findings of the tests.

    Raises:
        ConfigError: if there is no simulator for the protocol.
    """
    if isinstance(protocol, SumProtocol):
        return sum_views(protocol, rounds=3, sessions=1, passives=parties - 1) if parties > 2 else Outcome()
    if isinstance(protocol, ResidualProtocol):
        return residual_views(protocol)
    raise ConfigError(
        f"there is no simulator for protocol {protocol.name}",
        "add one to securevfl.audit.simulators",
        code="SVFL-JOB-EXTENSION",
        protocol=protocol.name,
    )


def sum_views(
    protocol: SumProtocol, space: Space | None = None, *, rounds: int = 8, sessions: int = 2, passives: int = 4
) -> Outcome:
    """Compare every role's view in a sum with a simulated view; if there are many contributors, only the first few.

    Args:
        protocol: the sum protocol.
        space: the number space of the sums; by default real numbers.
        rounds: number of sums in a session.
        sessions: number of sessions.
        passives: number of contributors.

    Returns:
        The findings of the tests.
    """
    chosen = space or Reals()
    names = [f"P{k}" for k in range(1, passives + 1)]
    data: list[list[dict[str, NDArray[Any]]]] = []
    for seed in range(sessions):
        generator = np.random.default_rng([seed, 11])
        base = {name: 5.0 + generator.normal(size=(128, 1)) for name in names}
        if isinstance(chosen, Circle):
            data.append([{name: (abs(values) * 1000).astype(np.uint32) for name, values in base.items()}] * rounds)
        else:
            changing = (
                {name: values + 1e-3 * generator.normal(size=values.shape) for name, values in base.items()}
                for _ in range(rounds)
            )
            data.append(list(changing))
    real = [record_sum(protocol, parts, chosen) for parts in data]
    outcome = Outcome()
    for receiver in (COLLECTS, *names[: len(_PASSIVES)]):
        generated = [[simulated_parts(protocol, receiver, parts, chosen) for parts in session] for session in data]
        simulated = [record_sum(protocol, parts, chosen) for parts in generated]
        outcome = outcome.merge(compare(real, simulated, receiver))
    return outcome


def residual_views(protocol: ResidualProtocol, *, rows: int = 60, batches: int = 4, passives: int = 2) -> Outcome:
    """Compare every role's view in a residual protocol with a simulated view."""
    generator = np.random.default_rng(12)
    g = [np.sign(generator.normal(size=(rows, 1))) * generator.uniform(0.3, 0.9, (rows, 1)) for _ in range(batches)]
    J = {name: [generator.normal(size=(rows, 6)) for _ in g] for name in _PASSIVES[:passives]}
    real = [record_residual(protocol, g, J, epochs=2)]
    published = [residual for residual, _ in real[0].protocol_record.residuals[COLLECTS]]
    outcome = Outcome()
    for receiver in (COLLECTS, _PASSIVES[0]):
        inputs = {name: matrices * 2 for name, matrices in J.items()}
        simulated_g, simulated_J = simulated_residuals(protocol, receiver, published, inputs)
        first_J = {name: matrices[:batches] for name, matrices in simulated_J.items()}
        replay = with_replayed_defence(protocol, outcomes=simulated_g)
        simulated = [record_residual(replay, simulated_g[:batches], first_J, epochs=2)]
        outcome = outcome.merge(compare(real, simulated, receiver)).merge(_errors(real[0], simulated[0], receiver))
    return outcome


def _errors(real: Transcript, simulated: Transcript, receiver: str) -> Outcome:
    """Test whether errors of decrypted gradients differ between the real and the simulated residuals g."""
    outcome, battery = Outcome(), Battery()
    errors = [
        np.concatenate([np.empty(0), *(error.ravel() for _, error in run.gradient_errors(receiver))])
        for run in (real, simulated)
    ]
    if len(errors[0]) and np.ptp(errors[0]) > 0:
        width = 4 * float(np.std(np.concatenate(errors))) + 1e-300
        fractions = (np.clip(values / width + 0.5, 0, 0.999999) for values in errors)
        add_two_sample_tests(battery, f"errors of gradients at {receiver}", *fractions)
    outcome.statistics("simulator", receiver, battery)
    return outcome
