"""A party's local network: a torch.nn.Module from its d columns to the c outputs that all parties add up.

The party that owns a module supplies it as an object, as a function that creates one, or as a name in one of its Python
files. A module is never received from another party, and files of securevfl contain no code: a stored model consists of
numbers. A name in a job selects no code by itself: `allowed_module` looks it up among the names that this party allows,
and runs the file when a training or a prediction begins, after this party has agreed to it.

Layers that make a row's output depend on the other rows of its batch (batch normalisation) are refused, because the
gradient of one row's output would then depend on all rows. So are layers that draw at random (dropout), because a run
could not be repeated.
"""

from __future__ import annotations

import copy
import hashlib
import importlib.util
import threading
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from securevfl.base.extensions import ALLOW_VARIABLE, allowed_names
from securevfl.base.extras import check_extra, import_extra
from securevfl.errors import ConfigError

if TYPE_CHECKING:
    from torch import Tensor
    from torch.nn import Module

_BATCH_LAYERS = ("_BatchNorm", "_InstanceNorm")
_RANDOM_LAYERS = ("_DropoutNd", "RReLU", "FractionalMaxPool2d", "FractionalMaxPool3d")
PROBE_ROWS = 3
"""Number of random rows on which a module is tried."""
_GENERATOR_LOCK = threading.Lock()  # torch's random generator is shared by the process


def torch() -> Any:
    """Return the package torch, or raise ConfigError with the command that installs it."""
    return import_extra("torch", "torch", "a neural party")


class TorchModel:
    """A module of a party: `Party(..., model=TorchModel(module))`.

    Args:
        module: a torch.nn.Module, which is not modified and whose weights are the initial ones; a function without
            arguments that creates one, called with torch's generator seeded from the job's seed and the party's data;
            or "file.py:name" of either, in a file of this party.

    Raises:
        ConfigError: if `module` is none of these.
    """

    def __init__(self, module: Module | Callable[[], Module] | str) -> None:
        self._source = _named(module) if isinstance(module, str) else module
        if not (isinstance(self._source, torch().nn.Module) or callable(self._source)):
            raise ConfigError(
                f"TorchModel: a {type(self._source).__name__} is not a module",
                "pass a torch.nn.Module, a function that creates one, or 'file.py:name'",
                code="SVFL-JOB-MODULE",
            )

    @property
    def fixed(self) -> bool:
        """Whether the party passed a module with initial weights instead of a function that draws them."""
        return isinstance(self._source, torch().nn.Module)

    def make(self, seed: bytes = b"") -> Module:
        """Create a module.

        Args:
            seed: determines the weights if a function draws them.

        Returns:
            A new module that shares no weights with earlier ones.

        Raises:
            ConfigError: if the function fails, or does not return a module.
        """
        if isinstance(self._source, torch().nn.Module):
            return copy.deepcopy(self._source)
        try:
            module = self.drawn(self._source, seed)
        except ConfigError:
            raise
        except Exception as cause:
            error = ConfigError(
                f"TorchModel: the function that creates the module fails ({type(cause).__name__})",
                "correct the function",
                code="SVFL-JOB-MODULE",
            )
            error.add_note(f"in the function: {cause}")
            raise error from cause
        if not isinstance(module, torch().nn.Module):
            raise ConfigError(
                f"TorchModel: the function returns a {type(module).__name__} instead of a torch.nn.Module",
                code="SVFL-JOB-MODULE",
            )
        return module

    @staticmethod
    def drawn(make: Callable[[], Module], seed: bytes = b"") -> Module:
        """Return the module that `make` creates with torch's random generator seeded; then restore the generator."""
        with _GENERATOR_LOCK, torch().random.fork_rng(devices=[]):
            torch().manual_seed(int.from_bytes(hashlib.sha256(seed).digest()[:7], "little"))
            return make()

    def parameters(self, party: str) -> int:
        """Return p, the number of trained weights, or raise ConfigError if a layer cannot be used."""
        module = self.make()
        _refuse_layers(party, module)
        _refuse_devices(party, module)
        return sum(weights.numel() for weights in module.parameters() if weights.requires_grad)

    def checked(self, party: str, columns: int, outputs: int | None, seed: bytes = b"", *, fed: int = 0) -> Module:
        """Create a module and try it on random rows.

        Args:
            party: name of the party, which error messages state.
            columns: the number of its columns.
            outputs: the required number of outputs; None for any number.
            seed: determines the weights if a function draws them.
            fed: for the top model (the network of the active party, whose first input is the sum of all parties'
                outputs), the number of values for each row of its second input; 0 for other modules.

        Returns:
            The module.

        Raises:
            ConfigError: if the module cannot be used.
        """
        module = self.make(seed)
        _refuse_layers(party, module)
        _refuse_devices(party, module)
        first = next((weights for weights in module.parameters() if weights.requires_grad), None)
        if first is None:
            raise ConfigError(
                f"party {party}: the module has no parameters to train",
                "set requires_grad on the parameters to train",
                code="SVFL-JOB-MODULE",
                party=party,
            )
        generator = np.random.default_rng(0)
        widths = (columns, fed) if fed else (columns,)
        probe = [torch().tensor(generator.normal(size=(PROBE_ROWS, width)), dtype=first.dtype) for width in widths]
        _try(party, module, probe, outputs)
        return module


class AllowedModule(TorchModel):
    """A module in a file that is run when the module is needed for the first time, and not before.

    Args:
        path: the file.
        attribute: the name of the module, or of a function that creates it, in the file.
    """

    def __init__(self, path: Path, attribute: str) -> None:
        self._path, self._attribute = path, attribute

    @cached_property
    def _source(self) -> Any:  # type: ignore[override]
        return TorchModel(f"{self._path}:{self._attribute}")._source


def allowed_module(party: str, named: str, folder: Path) -> AllowedModule:
    """Look up the module that a job names for a party. Its file is not run yet.

    Args:
        party: name of the party.
        named: "file.py:name" without a folder, as the job states it.
        folder: the folder of the job, or of the model file.

    Returns:
        The module.

    Raises:
        ConfigError: if this party has not allowed the name, the folder has no such file, or torch is not installed.
    """
    if named not in allowed_names():
        raise ConfigError(
            f"party {party}: the job names the module {named}, and this computer does not allow it",
            f"read that file; to allow that it is run, set {ALLOW_VARIABLE}={named}",
            code="SVFL-JOB-MODULE",
            party=party,
            module=named,
        )
    check_extra("torch", "torch", "a neural party")
    file, _, attribute = named.partition(":")
    path = folder / file
    if not path.is_file():
        raise ConfigError(
            f"party {party}: there is no file {path}, which the job names",
            "put the file of your module into this folder",
            code="SVFL-JOB-MODULE",
            party=party,
            module=named,
        )
    return AllowedModule(path.resolve(), attribute)


def module_of_party(party: str, brought: object, named: str | None) -> TorchModel | None:
    """Return the module of a party.

    Args:
        party: name of the party.
        brought: the module that it passes, or None.
        named: the module that the job names for it, or None.

    Returns:
        The module that it passes; None if the job names none.

    Raises:
        ConfigError: if the object is no TorchModel, or is missing although the job names a module.
    """
    if brought is not None and not isinstance(brought, TorchModel):
        raise ConfigError(
            f"party {party}: model is a {type(brought).__name__} instead of a TorchModel",
            "wrap the module in vfl.TorchModel",
            code="SVFL-JOB-MODULE",
            party=party,
        )
    if brought is None and named is not None:
        raise ConfigError(
            f"party {party}: the job names the module {named}, and the party does not pass it",
            "pass it as model = vfl.TorchModel(...), with the party or with its part of a model",
            code="SVFL-JOB-MODULE",
            party=party,
            module=named,
        )
    return brought


def _named(name: str) -> Any:
    """Load `file.py:name`. The file is run, like any program of the party."""
    path, _, attribute = name.rpartition(":")
    if not (path.endswith(".py") and attribute.isidentifier()):
        raise ConfigError(
            f"module {name!r} is not of the form 'file.py:name'",
            "correct the name in the job",
            code="SVFL-JOB-MODULE",
            module=name,
        )
    if not Path(path).is_file():
        raise ConfigError(
            f"module {name!r}: there is no file {path}",
            "create it, or run the command in its folder",
            code="SVFL-JOB-MODULE",
            module=name,
        )
    spec = importlib.util.spec_from_file_location(Path(path).stem, path)
    assert spec is not None
    assert spec.loader is not None, "a file that ends in .py has a loader"
    code = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(code)
    if not hasattr(code, attribute):
        raise ConfigError(
            f"module {name!r}: {path} does not define {attribute}",
            "correct the name",
            code="SVFL-JOB-MODULE",
            module=name,
        )
    return getattr(code, attribute)


def _module_error(party: str, problem: str, remedy: str) -> ConfigError:
    """Return the error that a party's module cannot be used, for the reason `problem`."""
    return ConfigError(f"party {party}: {problem}", remedy, code="SVFL-JOB-MODULE", party=party)


def _refuse_layers(party: str, module: Module) -> None:
    for name, layer in module.named_modules():
        kinds = {kind.__name__ for kind in type(layer).__mro__}
        description = f"layer {name or 'itself'} ({type(layer).__name__})"
        if kinds.intersection(_BATCH_LAYERS):
            raise _module_error(
                party,
                f"{description} makes a row's output depend on the other rows of its batch",
                "use LayerNorm or GroupNorm",
            )
        if kinds.intersection(_RANDOM_LAYERS) and getattr(layer, "p", 1.0) != 0.0:
            raise _module_error(party, f"{description} draws random numbers", "remove the layer")


def _refuse_devices(party: str, module: Module) -> None:
    for name, tensor in (*module.named_parameters(), *module.named_buffers()):
        if tensor.device.type != "cpu":
            raise _module_error(
                party,
                f"{name} is on the device {tensor.device.type}, and residuals and keys are on the CPU",
                "pass module.cpu()",
            )


def _try(party: str, module: Module, inputs: list[Tensor], outputs: int | None) -> None:
    columns = " and ".join(str(tensor.shape[1]) for tensor in inputs)
    with torch().no_grad():
        try:
            H, repeated = module(*inputs), module(*inputs)
            first = module(*(tensor[:1] for tensor in inputs))
        except Exception as cause:
            error = _module_error(
                party,
                f"the module fails on rows with {columns} columns ({type(cause).__name__})",
                "correct its first layers",
            )
            error.add_note(f"in the module, on random rows: {cause}")  # other parties receive no notes
            raise error from cause
    if not isinstance(H, torch().Tensor):
        raise _module_error(
            party,
            f"the module returns a {type(H).__name__} instead of one tensor, as recurrent layers do",
            "wrap it in a module that returns the outputs of the last step",
        )
    if H.ndim != 2 or len(H) != PROBE_ROWS or outputs not in (None, H.shape[1]):
        shape = ", ".join(map(str, tuple(H.shape)[1:]))
        raise _module_error(
            party,
            f"the module returns outputs of shape (n, {shape}) instead of (n, {'h' if outputs is None else outputs})",
            "correct its last layer",
        )
    if not torch().equal(H, repeated):
        raise _module_error(
            party, "the module returns different outputs for the same rows each time", "remove random layers"
        )
    if not torch().allclose(H[:1], first, rtol=1e-3, atol=1e-5):
        raise _module_error(
            party,
            "the output of a row depends on the other rows of its batch",
            "use layers that process each row independently",
        )
