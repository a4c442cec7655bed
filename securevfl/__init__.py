"""Vertical federated learning with homomorphic encryption and secret sharing.

Several parties have different columns of the same rows. They train one model without exchanging their tables.
`explain` states what a job would cost and disclose before it runs; `simulate` runs all parties in one process.

```python
import securevfl as vfl

bank, shop = vfl.datasets.loans()
job = vfl.Job(model=vfl.Logistic())
print(vfl.explain(job, [bank, shop]))
run = vfl.simulate(job, [bank, shop])
```
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from securevfl.base.version import __version__ as __version__

if TYPE_CHECKING:  # the only list of public names: type checkers read it, and `_read_homes` parses it at run time
    from securevfl.consent.consent_sheet import explain as explain
    from securevfl.credit.bin_table import bin_table as bin_table
    from securevfl.credit.correlate import correlate as correlate
    from securevfl.credit.correlate import correlate_with as correlate_with
    from securevfl.credit.description import describe as describe
    from securevfl.credit.fairness_by_group import provide_groups as provide_groups
    from securevfl.credit.fairness_by_group import request_group_rates as request_group_rates
    from securevfl.credit.fairness_by_group import simulate_group_rates as simulate_group_rates
    from securevfl.credit.scorecard import ScorecardScale as ScorecardScale
    from securevfl.credit.scorecard import scorecard as scorecard
    from securevfl.data import datasets as datasets
    from securevfl.data.join_tables import align as align
    from securevfl.data.party import Helper as Helper
    from securevfl.data.party import Party as Party
    from securevfl.data.preparation import Preparation as Preparation
    from securevfl.data.query_rows import read_sql as read_sql
    from securevfl.families.fdml.fdml_optimizer import FDML as FDML
    from securevfl.families.fdml.local_noise import LocalNoise as LocalNoise
    from securevfl.families.fdml.masked_store import StoredMasks as StoredMasks
    from securevfl.families.fdml.open_store import StoredOpen as StoredOpen
    from securevfl.families.fdskl.fdskl_optimizer import FDSKL as FDSKL
    from securevfl.families.fdskl.kernel_model import Kernel as Kernel
    from securevfl.families.transfer.transfer_model import Transfer as Transfer
    from securevfl.job import Job as Job
    from securevfl.job import stratified as stratified
    from securevfl.models import towers as towers
    from securevfl.models.linear import Gamma as Gamma
    from securevfl.models.linear import GeneralLinear as GeneralLinear
    from securevfl.models.linear import Huber as Huber
    from securevfl.models.linear import Logistic as Logistic
    from securevfl.models.linear import NegativeBinomial as NegativeBinomial
    from securevfl.models.linear import OneVsRest as OneVsRest
    from securevfl.models.linear import Poisson as Poisson
    from securevfl.models.linear import Quantile as Quantile
    from securevfl.models.linear import SmoothHinge as SmoothHinge
    from securevfl.models.linear import Softmax as Softmax
    from securevfl.models.linear import Square as Square
    from securevfl.models.linear import Tweedie as Tweedie
    from securevfl.models.neural import Neural as Neural
    from securevfl.models.torch_model import TorchModel as TorchModel
    from securevfl.models.trees import Trees as Trees
    from securevfl.optim.adagrad import AdaGrad as AdaGrad
    from securevfl.optim.adam import Adam as Adam
    from securevfl.optim.block_descent import BlockDescent as BlockDescent
    from securevfl.optim.block_newton import BlockNewton as BlockNewton
    from securevfl.optim.celu import CeluVFL as CeluVFL
    from securevfl.optim.fedbcd import FedBCD as FedBCD
    from securevfl.optim.fedbcd import FedPBCD as FedPBCD
    from securevfl.optim.fedbcd import FedSGD as FedSGD
    from securevfl.optim.momentum import Momentum as Momentum
    from securevfl.optim.pipeline import Pipeline as Pipeline
    from securevfl.optim.proximal import Proximal as Proximal
    from securevfl.optim.rules import Sgd as Sgd
    from securevfl.options import Target as Target
    from securevfl.organisations.join import join as join
    from securevfl.organisations.predict import predict_with as predict_with
    from securevfl.protocols.engines import Ckks as Ckks
    from securevfl.protocols.engines import Paillier as Paillier
    from securevfl.protocols.protocol_options import Protocol as Protocol
    from securevfl.protocols.residuals import defences as defences
    from securevfl.protocols.residuals.open_residual import OpenResidual as OpenResidual
    from securevfl.protocols.residuals.sealed_residual import SealedResidual as SealedResidual
    from securevfl.protocols.shares.shares_options import Shares as Shares
    from securevfl.protocols.sums.cipher_sum import CipherSum as CipherSum
    from securevfl.protocols.sums.direct_sum import DirectSum as DirectSum
    from securevfl.protocols.sums.pairwise_sum import PairwiseSum as PairwiseSum
    from securevfl.protocols.sums.tree_sum import TreeSum as TreeSum
    from securevfl.runtime.network import Network as Network
    from securevfl.runtime.network import Pauses as Pauses
    from securevfl.training.comparison import compare as compare
    from securevfl.training.cross_validation import cross_validate as cross_validate
    from securevfl.training.estimators import VerticalClassifier as VerticalClassifier
    from securevfl.training.estimators import VerticalRegressor as VerticalRegressor
    from securevfl.training.run import Run as Run
    from securevfl.training.simulate import simulate as simulate
    from securevfl.training.tuning import tune as tune
    from securevfl.training.year_forecast import YearForecast as YearForecast
    from securevfl.training.year_forecast import YearPlan as YearPlan
    from securevfl.training.year_forecast import forecast_year as forecast_year


_homes: dict[str, str] = {}


def _read_homes() -> dict[str, str]:
    """Parse this file and return which module defines each public name.

    A name is left out if its subpackage is not installed.
    """
    if not _homes:
        import ast
        from pkgutil import get_data

        source = get_data(__name__, "__init__.py")
        listed = next(node for node in ast.parse(source or b"").body if isinstance(node, ast.If))
        imports = [line for line in listed.body if isinstance(line, ast.ImportFrom)]
        rooms = {".".join(str(line.module).split(".")[:2]) for line in imports}
        absent = {room for room in rooms if find_spec(room) is None}
        lines = [line for line in imports if ".".join(str(line.module).split(".")[:2]) not in absent]
        _homes.update({alias.name: str(line.module) for line in lines for alias in line.names})
    return _homes


def __getattr__(name: str) -> Any:
    """Load a public name on first use (PEP 562), so that importing the package is fast."""
    if name == "__all__":
        # the estimators are subclasses of scikit-learn's; without scikit-learn, `import *` leaves them out
        without = () if find_spec("sklearn") else ("securevfl.training.estimators",)
        return sorted(public for public, home in _read_homes().items() if home not in without)
    if name.startswith("_") or name not in _read_homes():
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = import_module(_homes[name])
    value = getattr(home, name) if hasattr(home, name) else import_module(f"{home.__name__}.{name}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_read_homes(), "__all__"})
