"""Vertical federated learning under encryption and secure aggregation, with its costs and its leaks.

import securevfl as vfl
bank, shop = vfl.datasets.breast_cancer(parties=2)
job = vfl.Job(model=vfl.Logistic(), optimizer=vfl.FedBCD(lr=0.3), protocol=vfl.Protocol(residual=vfl.Ckks()))
print(vfl.explain(job, [bank, shop]))
run = vfl.simulate(job, [bank, shop])
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from securevfl.version import __version__ as __version__

if TYPE_CHECKING:  # for type checkers and editors
    from securevfl.data import samples as datasets
    from securevfl.data.party import Helper, Party, align
    from securevfl.data.preparation import Preparation
    from securevfl.estimators import VerticalClassifier, VerticalRegressor
    from securevfl.job import Job, Protocol, Target
    from securevfl.models import towers
    from securevfl.models.kernel import Kernel
    from securevfl.models.linear import GeneralLinear, Logistic, SmoothHinge, Softmax, Square
    from securevfl.models.local_bottom import LocalBottom
    from securevfl.models.neural import Neural
    from securevfl.models.torch_model import TorchModel
    from securevfl.models.transfer import Transfer
    from securevfl.optim.adagrad import AdaGrad
    from securevfl.optim.adam import Adam
    from securevfl.optim.block_descent import BlockDescent
    from securevfl.optim.block_newton import BlockNewton
    from securevfl.optim.celu import CeluVFL
    from securevfl.optim.fdml import FDML
    from securevfl.optim.fdskl import FDSKL
    from securevfl.optim.fedbcd import FedBCD, FedPBCD, FedSGD
    from securevfl.optim.momentum import Momentum
    from securevfl.optim.pipeline import Pipeline
    from securevfl.optim.proximal import Proximal
    from securevfl.optim.sgd import Sgd
    from securevfl.organisations.join import join
    from securevfl.organisations.predict import predict_with
    from securevfl.privacy.consent import explain
    from securevfl.protocols import defences
    from securevfl.protocols.cipher_sum import CipherSum
    from securevfl.protocols.direct_sum import DirectSum
    from securevfl.protocols.engines import Ckks, Paillier
    from securevfl.protocols.local_noise import LocalNoise
    from securevfl.protocols.open_residual import OpenResidual
    from securevfl.protocols.pairwise_sum import PairwiseSum
    from securevfl.protocols.sealed_residual import SealedResidual
    from securevfl.protocols.shares_options import Shares
    from securevfl.protocols.stored_cipher import StoredCipher
    from securevfl.protocols.stored_masks import StoredMasks
    from securevfl.protocols.stored_sum import StoredOpen
    from securevfl.protocols.tree_sum import TreeSum
    from securevfl.runtime.clock import Network
    from securevfl.training.run import Run
    from securevfl.training.simulate import simulate
    from securevfl.training.stratified import stratified

__all__ = [  # noqa: RUF022 (alphabetical, whatever the case of a name)
    "AdaGrad",
    "Adam",
    "BlockDescent",
    "BlockNewton",
    "CeluVFL",
    "CipherSum",
    "Ckks",
    "DirectSum",
    "FDML",
    "FDSKL",
    "FedBCD",
    "FedPBCD",
    "FedSGD",
    "GeneralLinear",
    "Helper",
    "Job",
    "Kernel",
    "LocalBottom",
    "LocalNoise",
    "Logistic",
    "Momentum",
    "Network",
    "Neural",
    "OneVsRest",
    "OpenResidual",
    "Paillier",
    "PairwiseSum",
    "Party",
    "Pipeline",
    "Preparation",
    "Protocol",
    "Proximal",
    "Run",
    "SealedResidual",
    "Sgd",
    "Shares",
    "SmoothHinge",
    "Softmax",
    "Square",
    "StoredCipher",
    "StoredMasks",
    "StoredOpen",
    "Target",
    "TorchModel",
    "Transfer",
    "TreeSum",
    "VerticalClassifier",
    "VerticalRegressor",
    "align",
    "datasets",
    "defences",
    "explain",
    "join",
    "predict_with",
    "simulate",
    "stratified",
    "towers",
]

_NAMES = {  # where the public names live; each is loaded when it is asked for
    "securevfl.data.party": ("Helper", "Party", "align"),
    "securevfl.data.preparation": ("Preparation",),
    "securevfl.estimators": ("VerticalClassifier", "VerticalRegressor"),
    "securevfl.job": ("Job", "Protocol", "Target"),
    "securevfl.models.kernel": ("Kernel",),
    "securevfl.models.linear": ("GeneralLinear", "Logistic", "OneVsRest", "SmoothHinge", "Softmax", "Square"),
    "securevfl.models.local_bottom": ("LocalBottom",),
    "securevfl.models.neural": ("Neural",),
    "securevfl.models.transfer": ("Transfer",),
    "securevfl.models.torch_model": ("TorchModel",),
    "securevfl.optim.adagrad": ("AdaGrad",),
    "securevfl.optim.adam": ("Adam",),
    "securevfl.optim.block_descent": ("BlockDescent",),
    "securevfl.optim.block_newton": ("BlockNewton",),
    "securevfl.optim.celu": ("CeluVFL",),
    "securevfl.optim.fdml": ("FDML",),
    "securevfl.optim.fdskl": ("FDSKL",),
    "securevfl.optim.fedbcd": ("FedBCD", "FedPBCD", "FedSGD"),
    "securevfl.optim.momentum": ("Momentum",),
    "securevfl.optim.pipeline": ("Pipeline",),
    "securevfl.optim.proximal": ("Proximal",),
    "securevfl.optim.sgd": ("Sgd",),
    "securevfl.organisations.join": ("join",),
    "securevfl.organisations.predict": ("predict_with",),
    "securevfl.privacy.consent": ("explain",),
    "securevfl.protocols.cipher_sum": ("CipherSum",),
    "securevfl.protocols.direct_sum": ("DirectSum",),
    "securevfl.protocols.engines": ("Ckks", "Paillier"),
    "securevfl.protocols.local_noise": ("LocalNoise",),
    "securevfl.protocols.open_residual": ("OpenResidual",),
    "securevfl.protocols.pairwise_sum": ("PairwiseSum",),
    "securevfl.protocols.sealed_residual": ("SealedResidual",),
    "securevfl.protocols.shares_options": ("Shares",),
    "securevfl.protocols.stored_cipher": ("StoredCipher",),
    "securevfl.protocols.stored_masks": ("StoredMasks",),
    "securevfl.protocols.stored_sum": ("StoredOpen",),
    "securevfl.protocols.tree_sum": ("TreeSum",),
    "securevfl.runtime.clock": ("Network",),
    "securevfl.training.run": ("Run",),
    "securevfl.training.simulate": ("simulate",),
    "securevfl.training.stratified": ("stratified",),
}
_MODULES = {
    "datasets": "securevfl.data.samples",
    "defences": "securevfl.protocols.defences",
    "towers": "securevfl.models.towers",
}
_HOMES = {name: home for home, names in _NAMES.items() for name in names}


def __getattr__(name: str) -> Any:
    """Loads a public name when it is first asked for (PEP 562), so that importing the package costs little."""
    if name in _HOMES:
        value = getattr(import_module(_HOMES[name]), name)
    elif name in _MODULES:
        value = import_module(_MODULES[name])
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
