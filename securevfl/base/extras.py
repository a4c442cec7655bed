"""What is installed only where it is asked for: `pip install securevfl[sklearn]` and the like.

sklearn   scikit-learn and scipy: the audit, the sample tables, the baselines of the benchmark
phe       python-paillier: conversion and comparison
plot      matplotlib: pictures of a run
serve     prometheus-client, starlette, uvicorn: figures of a party that stays up, the gateway for applications
bench     sklearn and plot: the benchmark
torch     PyTorch: neural parties
onnx      onnx: a party's own part as a graph
dask      distributed: a cluster as executor
dp        dp-accounting: noise on local predictions, with its account
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import Any

from securevfl.errors import ConfigError

INSTALL_HINTS = {
    "torch": ", and before it, where there is no graphics card, which saves gigabytes: pip install torch --index-url "
    "https://download.pytorch.org/whl/cpu"
}


def is_installed(module: str) -> bool:
    """Whether a module is there, which is not loaded."""
    return find_spec(module) is not None


def import_extra(module: str, name: str, what: str) -> Any:
    """Import a module that comes with the extra `name` and is needed for `what`. ConfigError says how to install it."""
    try:
        return import_module(module)
    except ModuleNotFoundError as cause:
        package = module.partition(".")[0]
        if (cause.name or "").partition(".")[0] != package:
            raise
        first = INSTALL_HINTS.get(name, "")
        raise ConfigError(
            f"{what}: {package} was expected, it is not installed; pip install 'securevfl[{name}]'{first}"
        ) from None
