"""A party's local model: a torch.nn.Module of its own, from its d columns to the c outputs that all parties add up.

A module comes from where its owner keeps it: an object, a function that makes one, or a name in a Python file of the
owner's. It never comes from the wire, and no file of ours holds code: what is kept of a model are its numbers.

Refused are layers by which a row's output depends on the rows beside it (normalisation over the batch), as a gradient
of one row's output would be one of all rows, and layers that draw at random (dropout), as a run could not be repeated.
"""

from __future__ import annotations

import copy
import hashlib
import importlib.util
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from securevfl.base.extras import import_extra
from securevfl.errors import ConfigError

if TYPE_CHECKING:
    from torch import Tensor
    from torch.nn import Module

_OVER_BATCH = ("_BatchNorm", "_InstanceNorm")
_AT_RANDOM = ("_DropoutNd", "RReLU", "FractionalMaxPool2d", "FractionalMaxPool3d")
PROBE = 3  # rows that a module is tried on
_DRAWING = threading.Lock()  # torch draws weights from one generator of the process


def torch() -> Any:
    """PyTorch. ConfigError that says how to install it."""
    return import_extra("torch", "torch", "a neural party")


class TorchModel:
    """A module that a party brings: `Party(..., model=TorchModel(module))`.

    module: a torch.nn.Module, which is left as it is and whose weights are those to start from; a function without
    arguments that makes one, called with torch's generator seeded from the job's seed and the party's own data; or
    "file.py:name" of either, in a file of this party. ConfigError if it is none of these.
    """

    def __init__(self, module: Module | Callable[[], Module] | str) -> None:
        self._source = _named(module) if isinstance(module, str) else module
        if not (isinstance(self._source, torch().nn.Module) or callable(self._source)):
            raise ConfigError(
                f"TorchModel: a torch.nn.Module, a function that makes one or 'file.py:name' was expected, "
                f"a {type(self._source).__name__} came; correct it"
            )

    @property
    def fixed(self) -> bool:
        """Whether it comes with weights of its own, and not as a function that draws them."""
        return isinstance(self._source, torch().nn.Module)

    def make(self, seed: bytes = b"") -> Module:
        """Make a separate module for one party. From a function, its weights follow the seed."""
        if isinstance(self._source, torch().nn.Module):
            return copy.deepcopy(self._source)
        try:
            made = self.drawn(self._source, seed)
        except ConfigError:
            raise
        except Exception as cause:
            error = ConfigError(f"TorchModel: the function that makes a module fails ({type(cause).__name__}); mend it")
            error.add_note(f"in the function: {cause}")
            raise error from cause
        if not isinstance(made, torch().nn.Module):
            raise ConfigError(f"TorchModel: a torch.nn.Module was expected, a {type(made).__name__} was made")
        return made

    @staticmethod
    def drawn(make: Callable[[], Module], seed: bytes = b"") -> Module:
        """Call the function with torch's generator set to this seed, and return what it makes; the generator is left as
        it was."""
        with _DRAWING, torch().random.fork_rng(devices=[]):
            torch().manual_seed(int.from_bytes(hashlib.sha256(seed).digest()[:7], "little"))
            return make()

    def parameters(self, who: str) -> int:
        """p, how many of its numbers are trained. ConfigError if it has layers that `who` can't train."""
        module = self.make()
        _refuse_layers(who, module)
        _refuse_devices(who, module)
        return sum(each.numel() for each in module.parameters() if each.requires_grad)

    def checked(self, who: str, columns: int, outputs: int | None, seed: bytes = b"", *, fed: int = 0) -> Module:
        """Make a module for `who` and try it on made-up rows of `columns` columns. Raises ConfigError if it cannot be
        used.

        outputs: how many it must have; any number if None. fed: numbers a row that a top model takes as a second input.
        """
        module = self.make(seed)
        _refuse_layers(who, module)
        _refuse_devices(who, module)
        first = next((each for each in module.parameters() if each.requires_grad), None)
        if first is None:
            raise ConfigError(f"{who}: a module with numbers to train was expected, it has none; set requires_grad")
        generator = np.random.default_rng(0)
        widths = (columns, fed) if fed else (columns,)
        probe = [torch().tensor(generator.normal(size=(PROBE, width)), dtype=first.dtype) for width in widths]
        _try(who, module, probe, outputs)
        return module


def module_of_party(who: str, brought: object, named: str | None) -> TorchModel | None:
    """Return the module of a party: the one it brings, or else the one that its job names for it; None if there is
    neither."""
    if brought is not None and not isinstance(brought, TorchModel):
        raise ConfigError(f"{who}: model: a TorchModel was expected, a {type(brought).__name__} came; wrap the module")
    return brought if brought is not None or named is None else TorchModel(named)


def _named(name: str) -> Any:
    """Load what `file.py:name` names. The file is run, as any program of the party's is."""
    path, _, what = name.rpartition(":")
    if not (path.endswith(".py") and what.isidentifier()):
        raise ConfigError(f"module {name!r}: 'file.py:name' was expected; correct it")
    if not Path(path).is_file():
        raise ConfigError(f"module {name!r}: a file {path} was expected; write it, or run from its folder")
    spec = importlib.util.spec_from_file_location(Path(path).stem, path)
    assert spec is not None
    assert spec.loader is not None, "a file that ends in .py has a loader"
    code = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(code)
    if not hasattr(code, what):
        raise ConfigError(f"module {name!r}: {path} was expected to hold {what}; correct the name")
    return getattr(code, what)


def _refuse_layers(who: str, module: Module) -> None:
    for name, layer in module.named_modules():
        kinds = {kind.__name__ for kind in type(layer).__mro__}
        what = f"layer {name or 'itself'} ({type(layer).__name__})"
        if kinds.intersection(_OVER_BATCH):
            raise ConfigError(
                f"{who}: {what} makes a row's output depend on the other rows of its batch; use LayerNorm or GroupNorm"
            )
        if kinds.intersection(_AT_RANDOM) and getattr(layer, "p", 1.0) != 0.0:
            raise ConfigError(f"{who}: {what} draws at random, a module that is not random was expected; remove it")


def _refuse_devices(who: str, module: Module) -> None:
    for name, each in (*module.named_parameters(), *module.named_buffers()):
        if each.device.type != "cpu":
            raise ConfigError(
                f"{who}: a module on the cpu was expected, where residuals and keys are, {name} is on "
                f"{each.device.type}; bring module.cpu()"
            )


def _try(who: str, module: Module, inputs: list[Tensor], outputs: int | None) -> None:
    columns = " and ".join(str(each.shape[1]) for each in inputs)
    with torch().no_grad():
        try:
            H, again, alone = module(*inputs), module(*inputs), module(*(each[:1] for each in inputs))
        except Exception as cause:
            error = ConfigError(
                f"{who}: a module of {columns} columns was expected, rows of so many fail in it "
                f"({type(cause).__name__}); correct its first layers"
            )
            error.add_note(f"in the module, on rows that are made up: {cause}")  # for its owner, not for other parties
            raise error from cause
    if not isinstance(H, torch().Tensor):
        raise ConfigError(
            f"{who}: one tensor of outputs was expected of its module, a {type(H).__name__} came, as recurrent layers "
            "give; wrap it in a module that returns the outputs of the last step alone"
        )
    if H.ndim != 2 or len(H) != PROBE or outputs not in (None, H.shape[1]):
        raise ConfigError(
            f"{who}: outputs of shape (n, {'h' if outputs is None else outputs}) were expected of its module, "
            f"(n, {', '.join(map(str, tuple(H.shape)[1:]))}) came; correct its last layer"
        )
    if not torch().equal(H, again):
        raise ConfigError(
            f"{who}: a module that is not random was expected, the same rows give other outputs each time"
        )
    if not torch().allclose(H[:1], alone, rtol=1e-3, atol=1e-5):
        raise ConfigError(
            f"{who}: a row's output depends on the other rows of its batch; use layers that take each row alone"
        )
