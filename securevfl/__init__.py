"""Vertical federated learning under encryption and secure aggregation, with its costs and its leaks.

import securevfl as vfl
bank, shop = vfl.datasets.breast_cancer(parties=2)
job = vfl.Job(model=vfl.Logistic(), optimizer=vfl.FedBCD(lr=0.3), protocol=vfl.Protocol(residual=vfl.Ckks()))
print(job.explain([bank, shop]))
run = vfl.simulate(job, [bank, shop])
"""

from securevfl import datasets
from securevfl.clock import Network
from securevfl.job import Job, Protocol, Target
from securevfl.join import join
from securevfl.models.kernel import Kernel
from securevfl.models.linear import GeneralLinear, Logistic, SmoothHinge, Softmax, Square
from securevfl.optim.adagrad import AdaGrad
from securevfl.optim.adam import Adam
from securevfl.optim.fdskl import FDSKL
from securevfl.optim.fedbcd import FedBCD, FedPBCD, FedSGD
from securevfl.optim.momentum import Momentum
from securevfl.optim.proximal import Proximal
from securevfl.optim.sgd import Sgd
from securevfl.party import Helper, Party, align
from securevfl.predict_parties import predict_with
from securevfl.protocols import defences
from securevfl.protocols.cipher_sum import CipherSum
from securevfl.protocols.direct_sum import DirectSum
from securevfl.protocols.engines import Ckks, Paillier
from securevfl.protocols.open_residual import OpenResidual
from securevfl.protocols.pairwise_sum import PairwiseSum
from securevfl.protocols.sealed_residual import SealedResidual
from securevfl.protocols.tree_sum import TreeSum
from securevfl.run import Run
from securevfl.simulate import simulate
from securevfl.version import __version__ as __version__

__all__ = [  # noqa: RUF022 (alphabetical, whatever the case of a name)
    "AdaGrad",
    "Adam",
    "CipherSum",
    "Ckks",
    "DirectSum",
    "FDSKL",
    "FedBCD",
    "FedPBCD",
    "FedSGD",
    "GeneralLinear",
    "Helper",
    "Job",
    "Kernel",
    "Logistic",
    "Momentum",
    "Network",
    "OpenResidual",
    "Paillier",
    "PairwiseSum",
    "Party",
    "Protocol",
    "Proximal",
    "Run",
    "SealedResidual",
    "Sgd",
    "SmoothHinge",
    "Softmax",
    "Square",
    "Target",
    "TreeSum",
    "align",
    "datasets",
    "defences",
    "join",
    "predict_with",
    "simulate",
]
