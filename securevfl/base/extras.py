"""Optional libraries. They are installed by extras, for example with `pip install securevfl[sklearn]`.

sklearn   scikit-learn and scipy: audit, sample tables, baselines of the benchmark
phe       python-paillier: conversion and comparison
plot      matplotlib: plots of a run
sql       adbc-driver-postgresql: tables from PostgreSQL
serve     prometheus-client, starlette, uvicorn: metrics of a service, the gateway for applications
bench     sklearn and plot: the benchmark
torch     PyTorch: neural networks
onnx      onnx: export of a party's part of a model
dask      distributed: a Dask cluster as executor
dp        dp-accounting: differentially private predictions and their privacy loss
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import Any

from securevfl.errors import ConfigError

INSTALL_HINTS = {
    "torch": "; on a computer without a graphics card, run this first to save gigabytes: pip install torch --index-url "
    "https://download.pytorch.org/whl/cpu"
}


def is_installed(module: str) -> bool:
    """Return whether a module is installed, without importing it."""
    return find_spec(module) is not None


def import_extra(module: str, name: str, what: str) -> Any:
    """Import a module of an optional library.

    Args:
        module: name of the module.
        name: the extra that installs it.
        what: the feature that needs the library, for the error message.

    Returns:
        The module.

    Raises:
        ConfigError: if the library is not installed.
    """
    try:
        return import_module(module)
    except ModuleNotFoundError as cause:
        package = module.partition(".")[0]
        if (cause.name or "").partition(".")[0] != package:
            raise
        raise _missing(package, name, what) from None


def check_extra(module: str, name: str, what: str) -> None:
    """Raise the error of `import_extra` if a library is not installed, without importing it.

    Args:
        module: name of the library's module.
        name: the extra that installs the library.
        what: the feature that needs the library, for the error message.
    """
    if not is_installed(module):
        raise _missing(module, name, what)


def _missing(package: str, name: str, what: str) -> ConfigError:
    return ConfigError(
        f"{what} needs {package}, which is not installed",
        f"install it with pip install 'securevfl[{name}]'{INSTALL_HINTS.get(name, '')}",
        code="SVFL-EXTRA-MISSING",
        extra=name,
    )
