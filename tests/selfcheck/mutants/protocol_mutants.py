"""Mutants (deliberate errors) of the other sums and of residuals."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from securevfl.crypto.scheme import OpeningShape
from securevfl.families.transfer.transfer_family import TransferFamily
from securevfl.families.transfer.two_way_exchange import SecondMoments
from securevfl.protocols.declarations import Reveal
from securevfl.protocols.residuals import exchanges, sealed_residual
from securevfl.protocols.residuals.open_residual import OpenActive, OpenReply
from securevfl.protocols.residuals.sealed_residual import ResidualCiphertext
from securevfl.protocols.sums.base import permit_summand
from securevfl.protocols.sums.cipher_sum import CipherAdder, CipherHolder, PartialSum
from securevfl.protocols.sums.direct_sum import DirectSum, DirectSumRole
from securevfl.runtime.disclosure_gate import DisclosureGate
from selfcheck.mutants.mutant import Mutant, patched


def _clear_partial(self: Any, values: Any, space: Any) -> None:
    for child in self._below:
        self._channel.recv(child, PartialSum, self._subchannel)
    permit = permit_summand(self._context, values, space)
    self._channel.send(
        self._above, PartialSum(np.ravel(values).astype(np.float64).tobytes()), self._subchannel, permit=permit
    )


def _clear_collect(self: Any, shape: Any, space: Any) -> Any:
    return np.frombuffer(self._channel.recv(self._root, PartialSum, self._subchannel).ciphertext).reshape(shape)


def _open_under_sealed_name(self: Any, g: Any, *, epoch: int, to: Any, resend_of: Any = None) -> None:
    number = self.__dict__.setdefault("_sent", 0)
    for passive in to:
        self._context.channel.send(
            passive, ResidualCiphertext(number, np.ascontiguousarray(g).tobytes()), self._residuals
        )
    self._sent = number + 1


def _read_open(self: Any) -> Any:
    message = self._context.channel.recv(self._context.active, ResidualCiphertext, self._residuals)
    return OpenReply(
        message.exchange, np.frombuffer(message.ciphertext).reshape(-1, self._context.outputs), self._context
    )


def _per_sample(self: Any, exchange: int, sealed: Any, evaluator: Any, model: Any, batch: Any) -> Any:
    """A party that requests the gradient with the identity as J, and so receives every row's residual."""
    X = model.jacobian(batch.X).dense
    prepared = evaluator.prepare(np.eye(len(X)))
    blinded, r = evaluator.blind(sealed_residual.product_of(evaluator, prepared, sealed))
    return X.T @ evaluator.unblind(self.ask_to_open(exchange, blinded), r)


_passive_gradient = sealed_residual.SealedPassive.gradient


def _asks_again(self: Any, exchange: int, sealed: Any, evaluator: Any, model: Any, batch: Any) -> Any:
    """A party that also requests the gradient of other columns."""
    sealed = [*sealed]
    gradient = _passive_gradient(self, exchange, sealed, evaluator, model, batch)
    other = evaluator.prepare(np.cos(model.jacobian(batch.X).dense))
    blinded, r = evaluator.blind(sealed_residual.product_of(evaluator, other, sealed))
    evaluator.unblind(self.ask_to_open(exchange, blinded), r)
    return gradient


_spend = exchanges.Exchanges.spend


def _serves_without_end(self: Any, passive: str, number: int) -> Any:
    holders = self.__dict__.setdefault("_holders", {})
    if (passive, number) not in holders:
        holders[passive, number] = _spend(self, passive, number)
    return holders[passive, number]


def _any_shape(self: Any, rows: int, outputs: int, columns: int) -> None:
    """Accept every shape, so that the key holder decrypts whatever is requested."""


def any_bits(self: Any, message: Any, record: Any) -> None:
    """Disable the gate, which refuses messages with more bits than recorded before any check could see them."""


_publish = sealed_residual.SealedActive.publish


_open_publish = OpenActive.publish


def _repeated(self: Any, g: Any, *, epoch: int, to: Any, resend_of: Any = None) -> None:
    """Send one ciphertext for all batches of a shape in an epoch, as a cache with the shape as key would."""
    inner = self._holder.encrypt_pieces

    class Cached:
        pieces = getattr(self, "_cached", {})

        def encrypt_pieces(self, g: Any, *, bound: float) -> Any:
            return iter(self.pieces.setdefault((epoch, g.shape), [*inner(g, bound=bound)]))

        def __getattr__(self, name: str) -> Any:
            return getattr(holder, name)

    holder, self._cached = self._holder, Cached.pieces
    if epoch == self._epoch:
        self._holder = Cached()
    try:
        _publish(self, g, epoch=epoch, to=to, resend_of=resend_of)
    finally:
        if isinstance(self._holder, Cached):
            self._holder = holder


def _noisy_publish(self: Any, g: Any, *, epoch: int, to: Any, resend_of: Any = None) -> None:
    _open_publish(self, np.sign(g), epoch=epoch, to=to, resend_of=resend_of)


_open_active = OpenActive.__init__


def _forgets_defence(self: Any, context: Any, agreement: Any, defence: Any) -> None:
    _open_active(self, context, agreement, None)


def _half_blurred(self: Any, g: Any, *, epoch: int, to: Any, resend_of: Any = None) -> None:
    self._clear = not getattr(self, "_clear", False)
    defence = self._defence
    if self._clear:
        defence.apply(g, self._noise.take())
        self._defence = None
    _open_publish(self, g, epoch=epoch, to=to, resend_of=resend_of)
    self._defence = defence


_sealed_declares = sealed_residual.SealedResidual.declares
_transfer = TransferFamily.declarations


def _declares_no_moments(self: Any, job: Any, roles: Any) -> Any:
    return [item for item in _transfer(self, job, roles) if item.message is not SecondMoments]


def _declares_without_blinded(self: Any) -> Any:
    return [item for item in _sealed_declares(self) if item.message.__name__ != "BlindedProduct"]


def _calls_output_uniform(self: Any, passives: Any) -> Any:
    return [replace(item, reveals=Reveal("uniform")) for item in _direct_declares(self, passives)]


_direct_declares = DirectSum.declares


_direct_contribute = DirectSumRole.contribute


def _other_values(self: Any, values: Any, space: Any) -> None:
    _direct_contribute(self, np.rint(values * 10) / 10, space)


MUTANTS = [
    Mutant(
        "cipher: partial sums in the clear",
        "bytes of floats under the name of a ciphertext",
        "sum cipher ckks",
        "hidden",
        patched((CipherAdder, "contribute", _clear_partial), (CipherHolder, "collect", _clear_collect)),
    ),
    Mutant(
        "direct: other numbers",
        "rounded outputs where forward outputs are declared",
        "sum direct",
        "plain",
        patched((DirectSumRole, "contribute", _other_values)),
    ),
    Mutant(
        "direct: called uniform",
        "parts in the clear are declared uniform",
        "sum direct",
        "plain",
        patched((DirectSum, "declares", _calls_output_uniform)),
    ),
    Mutant(
        "open: other numbers",
        "signs where residuals are declared",
        "residual open",
        "plain",
        patched((OpenActive, "publish", _noisy_publish)),
    ),
    Mutant(
        "open: defence forgotten",
        "g is sent in the clear although a defence is configured",
        "residual open, blurred",
        "output",
        patched((OpenActive, "__init__", _forgets_defence)),
    ),
    Mutant(
        "open: clear g next to the blurred one",
        "every second residual is sent in the clear",
        "residual open, blurred",
        "plain",
        patched((OpenActive, "publish", _half_blurred)),
    ),
    Mutant(
        "sealed: open under a sealed name",
        "g as bytes of floats in a ResidualCiphertext",
        "residual ckks",
        "hidden",
        patched(
            (sealed_residual.SealedActive, "publish", _open_under_sealed_name),
            (sealed_residual.SealedPassive, "receive", _read_open),
        ),
    ),
    Mutant(
        "sealed: per-sample residuals opened",
        "a party asks for I^T g and sees every row's residual",
        "residual ckks",
        "output",
        patched(
            (sealed_residual.SealedPassive, "gradient", _per_sample),
            (OpeningShape, "check", _any_shape),
            (DisclosureGate, "check", any_bits),
        ),
    ),
    Mutant(
        "sealed: openings without a limit",
        "a party asks again with other columns, and nobody counts",
        "residual ckks",
        "output",
        patched(
            (sealed_residual.SealedPassive, "gradient", _asks_again),
            (exchanges.Exchanges, "spend", _serves_without_end),
        ),
    ),
    Mutant(
        "sealed: a ciphertext again",
        "a cache keyed by shape hands out the last [[g]]",
        "residual ckks",
        "fresh",
        patched((sealed_residual.SealedActive, "publish", _repeated)),
    ),
    Mutant(
        "sealed: declares less",
        "the blinded product is not declared",
        "residual ckks",
        "declared",
        patched((sealed_residual.SealedResidual, "declares", _declares_without_blinded)),
    ),
    Mutant(
        "transfer: declares no moments",
        "what several steps on one opening follow from is shown and not declared",
        "job transfer linearised",
        "declared",
        patched((TransferFamily, "declarations", _declares_no_moments)),
    ),
]
