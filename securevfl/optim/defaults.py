"""Defaults of a job: the protocol, the optimizer and the number of iterations that fit its model.

    only a model                  shares, block descent on all rows, a quarter of the rows held out, a fixed number of
                                  iterations
    protocol "shares"             the same
    protocol with a residual      block newton on all rows, for as many epochs as the leak checks of disclosures allow
    models that cannot be         encrypted residuals (CKKS), for the reason that `why_not_on_shares` returns
    trained on shares
    a model with `defaults`       these defaults, on shares; if rows are held out, a model that can end early takes
                                  long steps until evaluations show no improvement

Protocols: "shares" trains on additive secret shares; the others send residuals, the derivatives of each row's loss by
the model's outputs. The leak checks refuse a job that would disclose too much, unless the job accepts that by name.
Defaults never send residuals in the clear and never accept a leak. An optimizer without a protocol trains on shares if
it can, and otherwise with residuals encrypted under CKKS. An optimizer that stops early gets the rows and the number of
iterations of a job without one. Keys that the user has set are never changed. A step is safe if it cannot increase the
loss, whatever columns the parties have; longer steps may be undone after an evaluation.
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

DEFAULT_ITERATIONS = 40  # enough if the rarest class is 2 % of 20,000 rows; AUCs converge in 10 to 30 iterations
PRECISE_ITERATIONS = 100  # for losses whose coefficients are published with standard errors, and for models with l2
EXPOSURE_FACTOR = 1.5  # factor of the iterations if rows have exposures, since large ones increase rounding errors
# step size and number of iterations if evaluations can detect too long steps; half of this step size is always safe
LONG_STEP, LONG_STEP_ITERATIONS = 2.0, 30
EVALUATE_EVERY = 10  # iterations between evaluations with long steps; only evaluated models can be chosen
EVALUATE_SAFE_STEPS_EVERY = 20  # with safe steps, which are never rolled back, evaluations only detect divergence
HELD_OUT_FRACTION = 0.25
ADAM_STEP = 0.05  # step size for models without a curvature bound
PRECISE_TABLE = {"table_bits": 8, "step": 2.0**-4}  # finer lookup table of the residual if standard errors are reported
MAX_TABLE_BITS = 8
RESIDUAL_FAMILIES = ("rounds", "transfer")  # protocol families whose jobs send a residual


def fill_defaults(keys: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a job's keys, with missing ones filled in to fit its model.

    If the model is invalid, fill in placeholders, so that only the model is reported.
    """
    try:
        model = MODELS.read(keys.get("model"))
        protocol = Protocol.read(keys["protocol"]) if "protocol" in keys else None
        optimizer = OPTIMIZERS.read(keys["optimizer"]) if "optimizer" in keys else None
    except ValueError:
        return _placeholders() | dict(keys)
    if not isinstance(model, Model):
        return _placeholders() | dict(keys)
    if not (optimizer is None or isinstance(optimizer, Training)):
        return {"protocol": Protocol()} | dict(keys)
    if not (protocol is None or isinstance(protocol, Protocol)):
        return keys
    if protocol is None:
        protocol = _protocol_for(model, optimizer)
        if protocol is None:
            return keys
    protocol = _with_table(model, protocol)
    if optimizer is None:
        return _schedule(model, protocol, keys) | dict(keys) | {"protocol": protocol}
    if optimizer.smallest_gain is not None and protocol.shares is not None:
        schedule = _schedule(model, protocol, {**keys, "evaluate_every": 0}) | {"test_fraction": HELD_OUT_FRACTION}
        return schedule | dict(keys) | {"protocol": protocol}
    batch_size = {"batch_size": "all"} if model.defaults.get("batch_size") == "growing" and not optimizer.grows else {}
    return {**model.defaults, **batch_size, **keys, "protocol": protocol}


def iteration_factor(room: float) -> float:
    """Return the factor by which the number of iterations grows if rows have weights; `room` is the largest weight."""
    return math.sqrt(max(1.0, room / DEFAULT_MAX_WEIGHT))


def why_not_on_shares(model: Model, optimizer: Training | None = None) -> str:
    """Return why a model cannot be trained on secret shares (with this optimizer); empty if it can."""
    if not isinstance(model, LinearModel):
        return f"a {model.name} model is not linear, and only linear models can be trained on shares"
    if not model.loss.elementwise:
        reason = f"the loss {model.loss.name} combines the outputs of a row, which a lookup table of one output cannot"
        return f"{reason}; one_vs_rest (vfl.OneVsRest) trains several classes on shares"
    if optimizer is None and model.loss.curvature is None:
        return f"the loss {model.loss.name} has no curvature bound, which the step size needs"
    if optimizer is None or isinstance(optimizer, BlockDescent):
        return ""
    if not isinstance(optimizer, FedBCD):
        return f"the steps of {optimizer.name} are not linear in residuals"
    if optimizer.lr is None:
        return f"{optimizer.name} without lr uses step sizes that change with the batches"
    if optimizer.mode != "parallel":
        return f"in mode {optimizer.mode} of {optimizer.name} parties update in turn, but on shares all update at once"
    return "" if optimizer.update.linear else f"rule {optimizer.update.inner.name} is not linear in gradients"


def _placeholders() -> dict[str, Any]:
    """Return an optimizer and a protocol for a job with an invalid model, so that these are not reported as missing."""
    return {"optimizer": BlockNewton(), "protocol": Protocol()}


def _protocol_for(model: Model, optimizer: Training | None) -> Protocol | None:
    """Return the safest protocol for this model; None if its protocol family uses neither shares nor residuals."""
    if not why_not_on_shares(model, optimizer):
        return Protocol(shares=Shares())
    family = model.family or (BlockNewton.family if optimizer is None else optimizer.family)
    return Protocol(residual=Ckks()) if family in RESIDUAL_FAMILIES else None


def _with_table(model: Model, protocol: Protocol) -> Protocol:
    """Return the protocol with the lookup table of residuals that fits the model, unless the job sets its options.

    If the job sets a smaller step between entries than the default, the table gets more entries, so that it still
    covers the same range of sums.
    """
    shares = protocol.shares
    if shares is None or not isinstance(model, LinearModel):
        return protocol
    table: dict[str, Any] = dict(PRECISE_TABLE) if model.loss.reports_standard_errors else {}
    if shares.step is not None:
        halvings = math.log2((table.get("step") or model.loss.spacing) / shares.step)
        bits = table.get("table_bits", Shares.model_fields["table_bits"].default)
        table["table_bits"] = min(MAX_TABLE_BITS, bits + max(0, round(halvings)))
    missing = {key: value for key, value in table.items() if key not in shares.model_fields_set}
    return protocol.model_copy(update={"shares": shares.model_copy(update=missing)}) if missing else protocol


def _schedule(model: Model, protocol: Protocol, job_keys: Mapping[str, Any]) -> dict[str, Any]:
    """Return an optimizer with its schedule for a job without one; empty if the user must choose an optimizer."""
    weights = job_keys.get("weights")
    room = weights.get("max_weight") if isinstance(weights, Mapping) else getattr(weights, "max_weight", None)
    # values that are no numbers are reported when the job is validated
    room = room if isinstance(room, (int, float)) and math.isfinite(room) and room >= 1 else None
    epochs = job_keys.get("epochs", LONG_STEP_ITERATIONS)
    is_long = isinstance(epochs, int) and epochs > EVALUATE_EVERY  # it is evaluated before its end
    factor = 1.0 if room is None else iteration_factor(room)
    if model.defaults:
        keys = {"test_fraction": HELD_OUT_FRACTION, **model.defaults}
        if model.ends_early and _evaluated(job_keys) and is_long:
            keys |= _long_steps(factor, EVALUATE_EVERY) | {"patience": {"metric": "loss", "evaluations": 1}}
        elif "epochs" in keys:
            keys["epochs"] = math.ceil(factor * keys["epochs"])
        return keys
    if protocol.shares is not None:
        if model.loss.reports_standard_errors:  # a measured loss is too coarse to show the last small improvements
            steps = BlockDescent(lr=model.loss.step_factor)
            factor = math.sqrt(room or DEFAULT_MAX_WEIGHT) if weights else 1.0
            factor *= EXPOSURE_FACTOR if job_keys.get("exposure") else 1.0
            keys = {"optimizer": steps, "batch_size": "all", "epochs": math.ceil(factor * PRECISE_ITERATIONS)}
            return keys | {"test_fraction": HELD_OUT_FRACTION}
        penalised = model.by_column and model.l2 > 0
        iterations = PRECISE_ITERATIONS if penalised else DEFAULT_ITERATIONS
        keys = {"optimizer": BlockDescent(), "batch_size": "growing", "epochs": math.ceil(factor * iterations)}
        if _evaluated(job_keys):
            keys |= {"test_fraction": HELD_OUT_FRACTION}
            keys |= {"evaluate_every": math.ceil(factor * EVALUATE_SAFE_STEPS_EVERY)}
            # many bins without a penalty overfit at the optimum, so evaluations choose an earlier model
            if not penalised and _has_bins(job_keys) and is_long:
                keys |= _long_steps(factor)
        return keys
    if model.family:
        return {}
    try:
        BlockNewton().check(model)
    except ValueError:
        return {"optimizer": FedBCD(local_steps=1, lr=ADAM_STEP, rule=Adam()), "batch_size": "all", "epochs": 0}
    return {"optimizer": BlockNewton(), "batch_size": "all", "epochs": 0}


def _evaluated(keys: Mapping[str, Any]) -> bool:
    """Return whether held-out rows are evaluated during the training."""
    return bool(keys.get("test_fraction", HELD_OUT_FRACTION) and keys.get("evaluate_every", EVALUATE_EVERY))


def _has_bins(keys: Mapping[str, Any]) -> bool:
    """Return whether the job replaces columns by indicators of bins."""
    prepare = keys.get("prepare")
    return (prepare.get("bins") if isinstance(prepare, Mapping) else getattr(prepare, "bins", None)) is not None


def _long_steps(factor: float, warm_up: int = 0) -> dict[str, Any]:
    """Return options for steps longer than safe ones, with evaluations that detect whether they are too long.

    Args:
        factor: factor of the numbers of iterations.
        warm_up: number of safe steps before the long ones. On tables on which a model overfits, long steps pass its
            best weights before the first evaluation (`python -m benchmarks tree-schedule`).

    Returns:
        The options.
    """
    keys = {
        "optimizer": BlockDescent(lr=LONG_STEP, warm_up=math.ceil(factor * warm_up)),
        "epochs": math.ceil(factor * LONG_STEP_ITERATIONS),
    }
    return keys | {"evaluate_every": math.ceil(factor * EVALUATE_EVERY)}
