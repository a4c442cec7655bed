"""A party's block of weights behind a torch module, as optimizers and protocols see it: arrays in, arrays out.

The weights are one vector theta (p,) in double precision, in the order of the module's parameters; the module itself
keeps none of them, it computes with a copy in its own precision. Numbers that are not trained (buffers, frozen
parameters) are kept beside theta, so that a part on disk goes on with the module as it was.
"""

from __future__ import annotations

import operator
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from securevfl.base.arrays import Floats
from securevfl.base.chunked_matrix import materialize
from securevfl.errors import ConfigError
from securevfl.models.block import Block
from securevfl.models.inputs import private_stream
from securevfl.models.torch_jacobian import by_layers, by_torch, is_layered
from securevfl.models.torch_model import PROBE, TorchModel, torch
from securevfl.protocols.differentiable import Jacobian

if TYPE_CHECKING:
    from torch import Tensor


AT_ONCE = 2048  # rows that go through a module together
TRACED = 2 * AT_ONCE  # rows of which the way through a module is remembered


@dataclass(frozen=True, repr=False)
class Traced:
    """Some rows' way through a module, to go back by: the weights (p,), what was fed if anything was, and the outputs
    (n x c)."""

    flat: Tensor
    fed: tuple[Tensor, ...]
    H: Tensor

    def back(self, g: Tensor, by: Tensor) -> Floats:
        """Return the derivatives that g (n x c) gives by the weights, or by what was fed."""
        (found,) = torch().autograd.grad(self.H, by, g, retain_graph=True)
        return found.to(torch().float64).numpy()


class TorchBlock(Block):
    """One party's part: H = module(X) on its rows. Its Jacobian moves with the weights, and its outputs share none.

    X (n x d) are the party's rows as scaled in its job, H (n x c). l2 weighs all of theta, biases too. ConfigError if
    the module cannot be used by `who` with so many columns and outputs.
    """

    static_jacobian = False
    shares_outputs = False

    def __init__(self, who: str, source: TorchModel, columns: int, outputs: int, *, l2: float, fed: int = 0) -> None:
        self._who, self._source, self._shape, self._fed = who, source, (columns, outputs), fed
        self._l2 = l2
        self._lock = threading.RLock()  # a party may compute in two threads, a module in one at a time
        self._last: tuple[tuple[Floats, ...], list[Traced]] | None = None
        self._take(b"")

    def _take(self, seed: bytes) -> None:
        columns, outputs = self._shape
        self._module = self._source.checked(self._who, columns, outputs, seed, fed=self._fed)
        named = dict(self._module.named_parameters())
        self._trained = {name: each.shape for name, each in named.items() if each.requires_grad}
        first = named[next(iter(self._trained))]
        self._dtype = first.dtype
        others = {name: each.detach() for name, each in named.items() if not each.requires_grad}
        self._others = {**others, **dict(self._module.named_buffers())}
        flat = torch().cat([named[name].detach().reshape(-1) for name in self._trained])
        self.theta = flat.to(torch().float64).numpy().copy()
        probe = torch().zeros((PROBE, columns), dtype=self._dtype)
        self._layered = not self._fed and is_layered(self._module, probe)

    @property
    def theta(self) -> Floats:
        """The weights of the module, as a vector (p,)."""
        return self._theta

    @theta.setter
    def theta(self, theta: Floats) -> None:
        expected = sum(shape.numel() for shape in self._trained.values())
        if theta.shape != (expected,):
            raise ConfigError(
                f"{self._who}: {expected} weights were expected by its module, an array of shape {theta.shape} came; "
                "bring the module of the training"
            )
        self._theta, self._last = theta, None

    @property
    def outputs(self) -> int:
        """How many numbers a row its H has."""
        return self._shape[1]

    def start(self, X: Floats, scaled: Floats, targets: Floats | None, seed: int) -> None:
        """Draws the first weights anew from a hash of its own rows X and of the job's seed, if its module comes as a
        function; weights of its own stay."""
        if self._source.fixed:
            return
        self._take(private_stream(f"module {self._who} {seed}", X)(32))

    def state(self) -> dict[str, Any]:
        """Return what is kept of the block: theta, and the numbers that are not trained, by name."""
        return {"theta": self.theta, "fixed": {name: each.numpy() for name, each in self._others.items()}}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take over what `state` returned. Raises ConfigError if it is of another module."""
        fixed = state.get("fixed", {})
        if set(fixed) != set(self._others):
            raise ConfigError(f"{self._who}: the module of the training was expected, another one came; bring that one")
        self.theta = np.asarray(state["theta"], np.float64)
        self._others = {name: torch().tensor(fixed[name], dtype=own.dtype) for name, own in self._others.items()}

    def forward(self, X: Floats) -> Floats:
        """H (n x c)."""
        return self._values(X)

    def vjp(self, X: Floats, g: Floats) -> Floats:
        """J^T g (p,), summed over the rows, by going back through the module."""
        with self._lock:
            return np.sum([each.back(own, each.flat) for each, own in self._traced(g, X)], axis=0)

    def jacobian(self, X: Floats) -> Jacobian:
        """J (n c x p) at the weights as they are, made when its rows are read if it is large."""
        return Jacobian(materialize(LazyJacobian(self, X, self.outputs)), shares_outputs=False)

    def regularised(self, gradient: Floats) -> Floats:
        """gradient + l2 theta (p,), from the gradient of the mean loss."""
        return gradient + self._l2 * self.theta

    def rows_of_jacobian(self, theta: Floats, X: Floats) -> Floats:
        """J (n c x p) on these rows at weights theta."""
        with self._lock:
            weights = self._weights(torch().tensor(theta, dtype=self._dtype))
            x = next(self._pieces(X, len(X)))
            return (by_layers if self._layered else by_torch)(self._module, weights, self._others, x)

    def _values(self, *inputs: Floats) -> Floats:
        """Return the module's outputs (n x c). The way through it is remembered of a batch, which a round goes back on,
        and not of the many rows of an evaluation."""
        with self._lock:
            if len(inputs[0]) <= TRACED:
                return np.concatenate([each.H.detach().to(torch().float64).numpy() for each in self._ways(*inputs)])
            with torch().no_grad():
                weights = self._weights(self._flat())
                found = [self._run(weights, *each) for each in zip(*map(self._pieces, inputs), strict=True)]
                return np.concatenate([each.to(torch().float64).numpy() for each in found])

    def _traced(self, g: Floats, *inputs: Floats) -> Iterator[tuple[Traced, Tensor]]:
        """Yield, for some rows at a time, their way through the module and their rows of g."""
        yield from zip(self._ways(*inputs), self._pieces(g), strict=True)

    def _ways(self, *inputs: Floats) -> Iterator[Traced]:
        """Yield the way through the module for some rows at a time. A step asks for outputs and for derivatives of the
        same rows at the same weights: they take one way."""
        asked = (self.theta, *inputs)
        if (last := self._last) is not None and len(last[0]) == len(asked) and all(map(operator.is_, last[0], asked)):
            yield from last[1]
            return
        self._last, found = None, []
        for x, *fed in zip(*map(self._pieces, inputs), strict=True):
            flat = self._flat().requires_grad_()
            z = tuple(each.requires_grad_() for each in fed)
            way = Traced(flat, z, self._run(self._weights(flat), x, *z))
            if len(inputs[0]) <= TRACED:
                found.append(way)
            yield way
        if found:
            self._last = asked, found

    def _flat(self) -> Tensor:
        return torch().tensor(self.theta, dtype=self._dtype)

    def _weights(self, flat: Tensor) -> dict[str, Tensor]:
        """Return the trained parameters by name, as views of one vector."""
        pieces = torch().split(flat, [shape.numel() for shape in self._trained.values()])
        return {name: piece.reshape(shape) for (name, shape), piece in zip(self._trained.items(), pieces, strict=True)}

    def _run(self, weights: dict[str, Tensor], *inputs: Tensor) -> Tensor:
        return torch().func.functional_call(self._module, {**self._others, **weights}, inputs)

    def _pieces(self, X: Floats, rows: int = AT_ONCE) -> Iterator[Tensor]:
        for start in range(0, len(X), rows):
            yield torch().tensor(X[start : start + rows], dtype=self._dtype)


class LazyJacobian:
    """A Jacobian (n c x p) at the weights of its making, computed whenever rows of it are read."""

    def __init__(self, part: TorchBlock, X: Floats, outputs: int) -> None:
        self._part, self._theta, self._X, self._outputs = part, part.theta, X, outputs

    @property
    def shape(self) -> tuple[int, int]:
        """The numbers of rows and columns of the Jacobian, n c and p."""
        return len(self), len(self._theta)

    def __len__(self) -> int:
        return len(self._X) * self._outputs

    def __getitem__(self, rows: slice, /) -> Floats:
        start, stop, _ = rows.indices(len(self))
        c = self._outputs
        first, last = start // c, -(-stop // c)
        J = self._part.rows_of_jacobian(self._theta, self._X[first:last])
        return J[start - first * c : stop - first * c]
