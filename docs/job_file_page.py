"""The reference of job.toml, made from the models that read it (docs/made_pages.py).

A key's type, bounds and default are those that pydantic checks; its meaning is the docstring below the field in the
source. A new kind of option is on the page as soon as it is in its registry; a key without a docstring is an error.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Mapping
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import annotated_types
from pydantic.fields import FieldInfo

from securevfl.base.config import Config, NamedOption, Registry
from securevfl.data.preparation import Preparation
from securevfl.data.woe import Woe
from securevfl.errors import ConfigError
from securevfl.families import leak_kinds
from securevfl.families.fdml.local_noise import LocalNoise
from securevfl.families.fdml.stored_sum import StoredSum
from securevfl.families.fdml.stored_sums import STORED_SUMS
from securevfl.job import Job
from securevfl.models import MODELS, metrics
from securevfl.models.base import Model
from securevfl.models.losses import LOSSES
from securevfl.models.row_weights import Weights
from securevfl.optim import OPTIMIZERS
from securevfl.optim.optimizer import Training
from securevfl.optim.rule_choice import RULES
from securevfl.optim.rules import Rule
from securevfl.options import Patience, Target
from securevfl.protocols.engines import ENGINES, Engine
from securevfl.protocols.protocol_options import RESIDUALS, SUMS, Protocol
from securevfl.protocols.residuals.base import ResidualProtocol
from securevfl.protocols.residuals.defences import DEFENCES, Defence
from securevfl.protocols.shares.shares_options import Shares
from securevfl.protocols.sums.base import SumProtocol

TABLES: dict[type[Config], str] = {
    Protocol: "protocol",
    Shares: "shares",
    LocalNoise: "noise",
    Preparation: "prepare",
    Woe: "woe",
    Target: "target",
    Patience: "patience",
    Weights: "weights",
}  # keys that hold a table of one kind
KINDS: dict[type[Config], tuple[str, Registry[Any]]] = {  # keys that name one of several kinds
    Model: ("model", MODELS),
    Training: ("optimizer", OPTIMIZERS),
    Rule: ("rule", RULES),
    SumProtocol: ("sum", SUMS),
    ResidualProtocol: ("residual", RESIDUALS),
    StoredSum: ("stored", STORED_SUMS),
    Engine: ("engine", ENGINES),
    Defence: ("defence", DEFENCES),
}
_TYPES = {int: "whole number", float: "number", str: "text", bool: "true or false"}

_HEAD = """# Keys of job.toml

Every key, its type, its default and what it means. `securevfl explain job.toml` checks a file and states what each
party would learn. In Python the same words are the keyword arguments of `vfl.Job`, `vfl.Protocol` and the classes named
below.

Where a key names one of several kinds, the file has the name alone, `sum = "tree"`, or a table with the name and keys
of that kind:

```toml
accepts = ["columns"]

[model]
name = "logistic"
l2 = 0.001

[optimizer]
name = "fedbcd"
lr = 0.1
rule = "momentum"

[protocol]
sum = "auto"
residual = { name = "paillier", bits = 3072 }
```

The name of an encryption scheme, or a table with its name and keys, is short for a sealed residual with this `engine`:
`residual = "ckks"` means `residual = { name = "sealed", engine = "ckks" }`.
"""


_MODELS_WITHOUT_OPTIMIZER: dict[str, Any] = {
    "logistic": "logistic",
    "logistic with `l2`": {"name": "logistic", "l2": 0.01},
    "trees": "trees",
    "poisson": "poisson",
    "softmax": "softmax",
}
_KEYS_WITHOUT_OPTIMIZER = ("optimizer", "batch_size", "epochs", "test_fraction", "evaluate_every", "patience")


def _without_optimizer() -> list[str]:
    """List what some jobs get for the keys whose defaults depend on the model, if they name no optimizer."""
    rows = []
    for title, model in _MODELS_WITHOUT_OPTIMIZER.items():
        job = Job(model=model)
        optimizer = next(name for name, kind in OPTIMIZERS.items() if type(job.optimizer) is kind)
        others = [getattr(job, key) for key in _KEYS_WITHOUT_OPTIMIZER[1:-1]]
        patience = "none" if job.patience is None else f"{job.patience.evaluations} evaluation"
        rows.append("| " + " | ".join([title, *(f"`{value}`" for value in (optimizer, *others)), patience]) + " |")
    header = "| " + " | ".join(["model", *(f"`{key}`" for key in _KEYS_WITHOUT_OPTIMIZER)]) + " |"
    return [
        "The defaults of the table above are those of a job that names an optimizer. In a job that names none, some "
        "depend on the model and on the protocol:\n",
        header,
        "|---" * (len(_KEYS_WITHOUT_OPTIMIZER) + 1) + "|",
        *rows,
        '\nIf each epoch has one batch, as with `"all"` and `"growing"`, an epoch is one iteration.',
    ]


def page() -> str:
    """Build the whole page as Markdown. ConfigError names a key that has no meaning or a kind that has no registry."""
    parts = [_HEAD, "## The job\n", *_keys(Job), "", *_without_optimizer()]
    for kind, name in TABLES.items():
        parts += [f"\n## {name}\n", _first_line(kind), "", *_keys(kind)]
    for name, registry in KINDS.values():
        parts += [f"\n## {name}\n", f"One of {', '.join(f'`{each}`' for each in registry)}."]
        for each, kind in registry.items():
            parts += [f"\n### {name} {each}\n", f"`{kind.__name__}`. {_first_line(kind)}", "", *_keys(kind)]
    return "\n".join([*parts, *_losses(), *_leaks()]).rstrip() + "\n"


def _losses() -> list[str]:
    """List what models minimise, with the metrics that a `target` may name."""
    rows = [
        f"| `{name}` | {', '.join(f'`{each}`' for each in metrics.metric_names(loss))} |"
        for name, loss in LOSSES.items()
    ]
    head = (
        "On shares, models of counts and amounts have `deviance` (without an exposure) and `loss`, and the\n"
        "others from 2,000 held-out rows on, if rows have neither weights nor an exposure. `one_vs_rest` has `auc`\n"
        "and `loss`, and a `target` names `loss` ([reasons](modelling.md#counts-amounts-and-quantiles)).\n"
    )
    return ["\n## loss\n", head, "| loss | metrics of a run, and of a `target` |", "|---|---|", *rows]


def _leaks() -> list[str]:
    """List what jobs may accept by name, and which attacks of an audit carry it out."""
    rows = [
        f"| `{leak.name}` | {leak.formula} | {leak.remedy} | {', '.join(leak.attacks).replace('_', ' ') or 'none'} |"
        for leak in leak_kinds().values()
    ]
    head = "What a job may give away once it `accepts` it by name (see the [threat model](threat-model.md)).\n"
    return ["\n## leaks\n", head, "| leak | what it is | remedy | attacks in `audit` |", "|---|---|---|---|", *rows]


def _keys(kind: type[Config]) -> list[str]:
    """Build the table of one kind's keys."""
    rows, known = [], meanings(kind)
    for option, field in kind.model_fields.items():
        meaning = known.get(option)
        if meaning is None:
            raise ConfigError(f"{kind.__name__}.{option}: a docstring below the field was expected; say what it means")
        default = "required" if field.is_required() else f"`{_default(field)}`"
        cells = f"`{field.alias or option}`", _type(_whole(field)), default, meaning
        rows.append(f"| {' | '.join(each.replace('|', chr(92) + '|') for each in cells)} |")
    return ["| key | type | default | meaning |", "|---|---|---|---|", *rows] if rows else ["No keys."]


def meanings(kind: type[Config]) -> dict[str, str]:
    """Return, by field, what the docstrings below the fields of a class and of its bases say."""
    found: dict[str, str] = {}
    for each in reversed(kind.__mro__):
        if issubclass(each, Config) and each is not Config:
            found |= _below_fields(each)
    return found


@cache
def _below_fields(kind: type[Config]) -> dict[str, str]:
    body = ast.parse(textwrap.dedent(inspect.getsource(kind))).body[0]
    assert isinstance(body, ast.ClassDef)
    found: dict[str, str] = {}
    for field, below in zip(body.body, body.body[1:], strict=False):
        match field, below:
            case (
                ast.AnnAssign(target=ast.Name(id=name)),
                ast.Expr(value=ast.Constant(value=str(text))),
            ):
                found[name] = " ".join(text.split())
    return found


def _first_line(kind: type[Config]) -> str:
    """Return the first paragraph of a class's docstring."""
    return " ".join((inspect.getdoc(kind) or "").split("\n\n")[0].split())


def _whole(field: FieldInfo) -> Any:
    """Return a field's annotation with what pydantic has taken off it."""
    return Annotated[field.annotation, *field.metadata] if field.metadata else field.annotation


def _type(hint: Any) -> str:
    """Describe a type in words: choices, bounds, and links to the kinds that a key can name."""
    origin, args = get_origin(hint), get_args(hint)
    if origin is Annotated:
        bounds = [_bound(each) for each in args[1:]]
        return " ".join([_type(args[0]), *filter(None, bounds)])
    if origin is Literal:
        return " or ".join(f"`{_value(each)}`" for each in args)
    if origin in (Union, UnionType):
        return " or ".join(dict.fromkeys(_type(each) for each in args if each is not NoneType))
    if origin in (tuple, list):
        return f"list of {_type(args[0]).replace(' or ', ', ')}"
    if origin is dict or origin is Mapping:
        return "table"
    if hint in TABLES:
        return f"[table](#{TABLES[hint]})"
    if hint in KINDS:
        return f"[{KINDS[hint][0]}](#{KINDS[hint][0]})"
    if hint in _TYPES:
        return _TYPES[hint]
    raise ConfigError(f"{hint}: a type with a word of its own was expected; add it to KINDS, TABLES or _TYPES")


def _bound(mark: Any) -> str:
    match mark:
        case annotated_types.Ge(ge=low):
            return f"≥ {low}"
        case annotated_types.Gt(gt=low):
            return f"> {low}"
        case annotated_types.Le(le=high):
            return f"≤ {high:g}" if isinstance(high, float) else f"≤ {high}"
        case annotated_types.Lt(lt=high):
            return f"< {high}"
    return ""


def _default(field: FieldInfo) -> str:
    value = field.get_default(call_default_factory=True)
    if isinstance(value, Config):
        return _value(value.name) if isinstance(value, NamedOption) else "as below"
    return "none" if value is None else _value(value)


def _value(value: Any) -> str:
    """Write a value as TOML has it."""
    match value:
        case bool():
            return str(value).lower()
        case str():
            return f'"{value}"'
        case tuple() | list():
            return "[" + ", ".join(map(_value, value)) + "]"
    return str(value)
