"""A party's block of weights that is a torch module. Optimizers and protocols exchange numpy arrays with it.

H (n, c) are the outputs of the module, J is their Jacobian by the weights, and g the derivative of the loss by H.
The weights are one vector theta (p,) in double precision, in the order of the module's parameters. The module computes
with a copy of them in its own precision and stores none. Numbers that are not trained (buffers and frozen parameters)
are stored next to theta, so that a stored model can be loaded into the same module. A top model is a module of the
party with labels that also reads the outputs of the other parties; these are called the fed values.
"""

from __future__ import annotations

import itertools
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
from securevfl.models.torch_model import PROBE_ROWS, TorchModel, torch
from securevfl.protocols.differentiable import Jacobian

if TYPE_CHECKING:
    from torch import Tensor
    from torch.nn import Module


MAX_CHUNK_ROWS = 2048
"""Maximum number of rows that a module processes at a time."""
MAX_TRACED_ROWS = 2 * MAX_CHUNK_ROWS
"""Maximum number of rows whose computation graph is stored."""


@dataclass(frozen=True, repr=False)
class ForwardTrace:
    """The computation graph of some rows.

    Attributes:
        flat: the weights (p,).
        fed: the fed values, as a tuple of at most one tensor.
        H: the outputs (n, c).
    """

    flat: Tensor
    fed: tuple[Tensor, ...]
    H: Tensor

    def backward(self, g: Tensor, by: Tensor) -> Floats:
        """Return the derivative of sum(g * H) by the weights or by the fed values, whichever `by` is; g (n, c)."""
        (gradient,) = torch().autograd.grad(self.H, by, g, retain_graph=True)
        return gradient.to(torch().float64).numpy()


class TorchBlock(Block):
    """One party's block: H = module(X). Unlike in a linear model, J depends on the weights and differs between outputs.

    The constructor raises ConfigError if the module cannot be used.

    Args:
        who: name of the party.
        source: the party's module.
        columns: the number of columns, d.
        outputs: the number of outputs, c.
        l2: weight of half the squared norm of theta, biases included.
        fed: the number of fed values for each row; 0 unless the module is a top model.
    """

    static_jacobian = False
    shares_outputs = False

    def __init__(self, who: str, source: TorchModel, columns: int, outputs: int, *, l2: float, fed: int = 0) -> None:
        self._who, self._source, self._shape, self._fed = who, source, (columns, outputs), fed
        self._l2 = l2
        self._lock = threading.RLock()  # a torch module must run in one thread at a time
        self._last: tuple[tuple[Floats, ...], list[ForwardTrace]] | None = None
        self._take(b"")

    def _take(self, seed: bytes) -> None:
        columns, outputs = self._shape
        self._module = self._source.checked(self._who, columns, outputs, seed, fed=self._fed)
        named = dict(self._module.named_parameters())
        self._shares_tensors = _shares_tensors(self._module)
        self._trained = {name: weights.shape for name, weights in named.items() if weights.requires_grad}
        first = named[next(iter(self._trained))]
        self._dtype = first.dtype
        others = {name: weights.detach() for name, weights in named.items() if not weights.requires_grad}
        self._others = {**others, **dict(self._module.named_buffers())}
        flat = torch().cat([named[name].detach().reshape(-1) for name in self._trained])
        self.theta = flat.to(torch().float64).numpy().copy()
        probe = torch().zeros((PROBE_ROWS, columns), dtype=self._dtype)
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
                f"party {self._who}: the module has {expected} weights, and the stored array has the shape "
                f"{theta.shape}",
                "bring the module of the training",
                code="SVFL-JOB-MODULE",
                party=self._who,
            )
        self._theta, self._last = theta, None

    @property
    def outputs(self) -> int:
        """The number of columns of the outputs H."""
        return self._shape[1]

    def start(self, X: Floats, scaled: Floats, targets: Floats | None, seed: int) -> None:
        """Draw the initial weights from a hash of the rows X and the seed, if a function creates the module."""
        if self._source.fixed:
            return
        self._take(private_stream(f"module {self._who} {seed}", X)(32))

    def state(self) -> dict[str, Any]:
        """Return theta, and the numbers that are not trained, by name."""
        return {"theta": self.theta, "fixed": {name: tensor.numpy() for name, tensor in self._others.items()}}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore the weights from the arrays that `state` returned.

        Args:
            state: the arrays that `state` returned.

        Raises:
            ConfigError: if it belongs to another module.
        """
        fixed = state.get("fixed", {})
        if set(fixed) != set(self._others):
            raise ConfigError(
                f"party {self._who}: the module is not that of the training",
                "bring the module of the training",
                code="SVFL-JOB-MODULE",
                party=self._who,
            )
        self.theta = np.asarray(state["theta"], np.float64)
        self._others = {name: torch().tensor(fixed[name], dtype=tensor.dtype) for name, tensor in self._others.items()}

    def forward(self, X: Floats) -> Floats:
        """Return the outputs H (n, c)."""
        return self._values(X)

    def vjp(self, X: Floats, g: Floats) -> Floats:
        """Return J^T g (p,), summed over the rows, by backpropagation."""
        with self._lock:
            return np.sum([trace.backward(g_rows, trace.flat) for trace, g_rows in self._traced(g, X)], axis=0)

    def jacobian(self, X: Floats) -> Jacobian:
        """Return the Jacobian (n * c, p) at the current weights; rows of a large one are computed when read."""
        return Jacobian(materialize(LazyJacobian(self, X, self.outputs)), shares_outputs=False)

    def regularised(self, gradient: Floats) -> Floats:
        """Return gradient + l2 theta (p,), given the gradient of the mean loss."""
        return gradient + self._l2 * self.theta

    def rows_of_jacobian(self, theta: Floats, X: Floats) -> Floats:
        """Return the Jacobian (n * c, p) of rows X at weights theta."""
        with self._lock:
            weights = self._weights(torch().tensor(theta, dtype=self._dtype))
            x = next(self._pieces(X, len(X)))
            return (by_layers if self._layered else by_torch)(self._module, weights, self._others, x)

    def _values(self, *inputs: Floats) -> Floats:
        """Return the outputs (n, c).

        The graph is stored for a batch, because backpropagation follows, but not for the many rows of an evaluation.
        """
        with self._lock:
            if len(inputs[0]) <= MAX_TRACED_ROWS:
                return np.concatenate([trace.H.detach().to(torch().float64).numpy() for trace in self._traces(*inputs)])
            with torch().no_grad():
                weights = self._weights(self._flat())
                pieces = zip(*map(self._pieces, inputs), strict=True)
                outputs = [self._run(weights, *piece) for piece in pieces]
                return np.concatenate([H.to(torch().float64).numpy() for H in outputs])

    def _traced(self, g: Floats, *inputs: Floats) -> Iterator[tuple[ForwardTrace, Tensor]]:
        """Yield, chunk by chunk, a computation graph and the rows of g that belong to it."""
        yield from zip(self._traces(*inputs), self._pieces(g), strict=True)

    def _traces(self, *inputs: Floats) -> Iterator[ForwardTrace]:
        """Yield the computation graph of each chunk of rows.

        A step needs outputs and derivatives of the same rows at the same weights; both use one graph.
        """
        key = (self.theta, *inputs)
        if (last := self._last) is not None and len(last[0]) == len(key) and all(map(operator.is_, last[0], key)):
            yield from last[1]
            return
        self._last, traces = None, []
        for x, *fed in zip(*map(self._pieces, inputs), strict=True):
            flat = self._flat().requires_grad_()
            z = tuple(tensor.requires_grad_() for tensor in fed)
            trace = ForwardTrace(flat, z, self._run(self._weights(flat), x, *z))
            if len(inputs[0]) <= MAX_TRACED_ROWS:
                traces.append(trace)
            yield trace
        if traces:
            self._last = key, traces

    def _flat(self) -> Tensor:
        return torch().tensor(self.theta, dtype=self._dtype)

    def _weights(self, flat: Tensor) -> dict[str, Tensor]:
        """Return the trained parameters by name, as views of the vector `flat`."""
        pieces = torch().split(flat, [shape.numel() for shape in self._trained.values()])
        return {name: piece.reshape(shape) for (name, shape), piece in zip(self._trained.items(), pieces, strict=True)}

    def _run(self, weights: dict[str, Tensor], *inputs: Tensor) -> Tensor:
        tensors = {**self._others, **weights}
        return torch().func.functional_call(self._module, tensors, inputs, tie_weights=self._shares_tensors)

    def _pieces(self, X: Floats, rows: int = MAX_CHUNK_ROWS) -> Iterator[Tensor]:
        for start in range(0, len(X), rows):
            yield torch().tensor(X[start : start + rows], dtype=self._dtype)


def _shares_tensors(module: Module) -> bool:
    """Return whether a module uses one parameter or buffer under several names; torch then has to look for all names.

    A search for names takes a quarter of the time of a small module's forward pass.
    """
    names = itertools.chain(
        module.named_parameters(remove_duplicate=False), module.named_buffers(remove_duplicate=False)
    )
    tensors = [id(tensor) for _, tensor in names]
    return len(set(tensors)) < len(tensors)


class LazyJacobian:
    """A Jacobian (n * c, p) at fixed weights, whose rows are computed whenever they are read."""

    def __init__(self, part: TorchBlock, X: Floats, outputs: int) -> None:
        self._part, self._theta, self._X, self._outputs = part, part.theta, X, outputs

    @property
    def shape(self) -> tuple[int, int]:
        """The shape (n * c, p)."""
        return len(self), len(self._theta)

    def __len__(self) -> int:
        return len(self._X) * self._outputs

    def __getitem__(self, rows: slice, /) -> Floats:
        start, stop, _ = rows.indices(len(self))
        c = self._outputs
        first, last = start // c, -(-stop // c)
        J = self._part.rows_of_jacobian(self._theta, self._X[first:last])
        return J[start - first * c : stop - first * c]
