"""What a job means that does not say all: the protocol, the optimizer and the schedule that fit its model.

    model alone                 shares, by block descent on all rows, a quarter held out; so many visits, whatever comes
    protocol "shares"           the same
    protocol with a residual    block newton on all rows, for as many epochs as the guards let through
    what shares can't train     CKKS, for the reason that `why_sealed` gives
    a model with `defaults`     what it says, on shares; one that ends early by long steps, where rows are held out

Residuals in the open and leaks are never chosen for a user: an optimizer without a protocol trains on shares where it
can, and sealed under CKKS where it can't. A key that is given always stays as it is.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from securevfl.models import MODELS
from securevfl.models.base import Model
from securevfl.models.linear import LinearModel
from securevfl.models.row_weights import DEFAULT_MAX_WEIGHT
from securevfl.optim import OPTIMIZERS
from securevfl.optim.adam import Adam
from securevfl.optim.block_descent import BlockDescent
from securevfl.optim.block_newton import BlockNewton
from securevfl.optim.fedbcd import FedBCD
from securevfl.optim.optimizer import Training
from securevfl.protocols.engines import Ckks
from securevfl.protocols.protocol_options import Protocol
from securevfl.protocols.shares.shares_options import Shares

VISITS = 40  # of all rows, at most; six public tables come within .001 of the optimum's AUC in 10 to 30
FINE_VISITS = 100  # of losses whose coefficients are read with standard errors
EXPOSED = 1.5  # times as many where rows have exposures, as those of large ones are rounded by more than chance moves
LONG_STEP, LONG_VISITS = 2.0, 30  # where evaluations tell if that is too long, which half of it never is
EVALUATE_EVERY = 10  # visits, as a model of fewer is never scored
HELD_OUT = 0.25
STEP = 0.05  # of Adam, for models whose curvature is not known
ROUNDS = ("rounds",)  # methods whose jobs have a residual


def filled(given: Mapping[str, Any]) -> Mapping[str, Any]:
    """Fill in the keys that a job leaves out, by what fits its model; where the model cannot be read, fill in
    placeholders."""
    try:
        model = MODELS.read(given.get("model"))
        protocol = Protocol.read(given["protocol"]) if "protocol" in given else None
        optimizer = OPTIMIZERS.read(given["optimizer"]) if "optimizer" in given else None
    except ValueError:
        return _placeholders() | dict(given)
    if not isinstance(model, Model):
        return _placeholders() | dict(given)
    if not (optimizer is None or isinstance(optimizer, Training)):
        return {"protocol": Protocol()} | dict(given)
    if not (protocol is None or isinstance(protocol, Protocol)):
        return given
    if protocol is None:
        protocol = _protocol_for(model, optimizer)
        if protocol is None:
            return given
    if optimizer is None:
        return _schedule(model, protocol, given) | dict(given) | {"protocol": protocol}
    own = {"batch_size": "all"} if model.defaults.get("batch_size") == "growing" and not optimizer.grows else {}
    return {**model.defaults, **own, **given, "protocol": protocol}


def longer(room: float) -> float:
    """Return how many times as many visits weights of so much room need: by momentum the root of what steps lose."""
    return math.sqrt(max(1.0, room / DEFAULT_MAX_WEIGHT))


def why_sealed(model: Model, optimizer: Training | None = None) -> str:
    """Why a model can't be trained on shares, by this optimizer if one is named; empty if it can."""
    if not isinstance(model, LinearModel):
        return f"a {model.name} model is not linear, and shares train linear models alone"
    if not model.loss.elementwise:
        return f"the loss {model.loss.name} mixes the classes of a row, which no table of one sum gives"
    if optimizer is None and model.loss.curvature is None:
        return f"the loss {model.loss.name} states no curvature, which the steps rest on"
    if optimizer is None or isinstance(optimizer, BlockDescent):
        return ""
    if not isinstance(optimizer, FedBCD):
        return f"steps of {optimizer.name} are not linear in residuals"
    if optimizer.lr is None:
        return f"{optimizer.name} without lr goes by curvatures that move with the batches"
    if optimizer.mode != "parallel":
        return f"parties step in turn in {optimizer.name} of mode {optimizer.mode}, and all at once on shares"
    return "" if optimizer.update.linear else f"rule {optimizer.update.name} is not linear in gradients"


def _placeholders() -> dict[str, Any]:
    """Return an optimizer and a protocol as stand-ins where the model can't be read, so that the model alone is
    reported as wrong, and these are not reported as missing beside it."""
    return {"optimizer": BlockNewton(), "protocol": Protocol()}


def _protocol_for(model: Model, optimizer: Training | None) -> Protocol | None:
    """Choose the safest protocol that can train this model; None where the optimizer has a protocol of its own."""
    if not why_sealed(model, optimizer):
        fine = isinstance(model, LinearModel) and model.loss.reports_standard_errors
        return Protocol(shares=Shares(table_bits=8, step=2.0**-4) if fine else Shares())
    family = model.family or (BlockNewton.family if optimizer is None else optimizer.family)
    return Protocol(residual=Ckks()) if family in (*ROUNDS, "transfer") else None


def _schedule(model: Model, protocol: Protocol, given: Mapping[str, Any]) -> dict[str, Any]:
    """Choose an optimizer with its schedule for a job that names none; empty where every optimizer that fits asks the
    user for a choice."""
    weights = given.get("weights")
    room = weights.get("max_weight") if isinstance(weights, Mapping) else getattr(weights, "max_weight", None)
    more = longer(room) if isinstance(room, (int, float)) else 1.0
    if model.defaults:
        own = {"test_fraction": HELD_OUT, **model.defaults}
        if model.ends_early and _evaluated(given) and given.get("epochs", LONG_VISITS) > EVALUATE_EVERY:
            own |= _long(more) | {"patience": {"metric": "loss", "evaluations": 1}}
        elif "epochs" in own:
            own["epochs"] = math.ceil(more * own["epochs"])
        return own
    if protocol.shares is not None:
        if model.loss.reports_standard_errors:  # levels would tell no gain that small
            steps = BlockDescent(lr=model.loss.step_factor)
            more = (EXPOSED if given.get("exposure") else 1.0) * (
                math.sqrt(room or DEFAULT_MAX_WEIGHT) if weights else 1.0
            )
            own = {"optimizer": steps, "batch_size": "all", "epochs": math.ceil(more * FINE_VISITS)}
            return own | {"test_fraction": HELD_OUT}
        own = {"optimizer": BlockDescent(), "batch_size": "growing", "epochs": math.ceil(more * VISITS)}
        if _evaluated(given):
            own |= {"test_fraction": HELD_OUT} | _long(more)
        return own
    if model.family:
        return {}
    try:
        BlockNewton().check(model)
    except ValueError:
        return {"optimizer": FedBCD(local_steps=1, lr=STEP, rule=Adam()), "batch_size": "all", "epochs": 0}
    return {"optimizer": BlockNewton(), "batch_size": "all", "epochs": 0}


def _evaluated(given: Mapping[str, Any]) -> bool:
    """Whether rows are held out on which a training may be evaluated between visits."""
    return bool(given.get("test_fraction", HELD_OUT) and given.get("evaluate_every", EVALUATE_EVERY))


def _long(more: float) -> dict[str, Any]:
    """Return steps longer than safe ones, with evaluations that tell if they are too long; so many times the visits."""
    own = {"optimizer": BlockDescent(lr=LONG_STEP), "epochs": math.ceil(more * LONG_VISITS)}
    return own | {"evaluate_every": math.ceil(more * EVALUATE_EVERY)}
