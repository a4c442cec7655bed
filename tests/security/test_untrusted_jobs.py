"""A job file from a stranger: it selects no code, and every size in it is bounded before anything is computed."""

import codecs
import re
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import pytest
from annotated_types import Le, Lt
from typer.testing import CliRunner

import securevfl as vfl
from securevfl.base.config import Config
from securevfl.base.extensions import ALLOW_VARIABLE
from securevfl.cli.main import app
from securevfl.errors import ConfigError, SecureVFLError
from securevfl.families.fdml.stored_sums import STORED_SUMS
from securevfl.job import column_types_in
from securevfl.models import MODELS
from securevfl.optim import OPTIMIZERS
from securevfl.optim.rule_choice import RULES
from securevfl.options import JobOptions
from securevfl.protocols.engines import ENGINES
from securevfl.protocols.protocol_options import RESIDUALS, SUMS
from securevfl.protocols.residuals.defences import DEFENCES
from securevfl.transport.peers import Peers
from securevfl.untrusted import MAX_INTEGER, MAX_TOML_BYTES, UntrustedInputError, check_plain
from tests.builders import raises_code, random_parties

torch = pytest.importorskip("torch")

SECONDS = 2.0
"""Processor time within which `explain` must answer for any job."""
NEURAL = """
batch_size = "all"
epochs = 1
protocol = "ckks"
optimizer = {{ name = "fedsgd", lr = 1.0 }}
accepts = ["columns", "fresh_equations"]
model = {{ name = "neural", modules = {{ shop = "{module}" }}, module_weights = {{ shop = 9 }} }}
"""
RAN = """
from pathlib import Path
import torch
Path({trace!r}).write_text("ran")
def make():
    return torch.nn.Linear({columns}, 1, dtype=torch.float64)
"""


def written_tables(folder: Path) -> list[str]:
    """Write two small tables and return the options that name them."""
    (folder / "bank.csv").write_text("id,age,y\n" + "".join(f"{k},{k % 7},{k % 2}\n" for k in range(200)))
    (folder / "shop.csv").write_text("id,a,b\n" + "".join(f"{k},{k % 5},{k % 3}\n" for k in range(200)))
    return ["--data", f"bank={folder / 'bank.csv'}", "--data", f"shop={folder / 'shop.csv'}"]


READERS: dict[str, Callable[[Path], object]] = {
    "job": vfl.Job.load,
    "types": column_types_in,
    "peers": Peers.load,
}
BEGINNINGS = {
    "job": 'model = "logistic"\n',
    "types": 'age = "number"\n',
    "peers": 'active = "bank"\npassives = ["shop"]\n[address]\nbank = "localhost:7301"\n',
}


@pytest.mark.parametrize("mark", [b"", codecs.BOM_UTF8], ids=["no mark", "byte order mark"])
@pytest.mark.parametrize("name", READERS)
def test_files_are_read_whole_or_refused(name: str, mark: bytes, tmp_path: Path) -> None:
    """A comment fills the file to its largest size. A key after it is not ignored, and a larger file is refused."""
    path, beginning = tmp_path / "file.toml", BEGINNINGS[name].encode()

    def written(size: int, end: bytes = b"") -> Path:
        comment = b"#" * (size - len(beginning) - len(end) - 1) + b"\n"
        path.write_bytes(mark + beginning + comment + end)
        return path

    READERS[name](written(MAX_TOML_BYTES))
    unknown_key = b'[another]\nkey = "of no use"\n'
    for size, end in ((MAX_TOML_BYTES, unknown_key), *((MAX_TOML_BYTES + k, b"") for k in (1, 2, 3, 4, 5, 4096))):
        with pytest.raises(ConfigError) as refused:
            READERS[name](written(size, end))
        assert ("more than the 1,048,576 bytes" in str(refused.value)) == (size > MAX_TOML_BYTES)


@pytest.mark.parametrize(
    "module", ["/etc/code.py:make", "../code.py:make", "sub/code.py:make", "code:make", "c.py:a.b"]
)
def test_a_module_with_a_path_is_refused(module: str) -> None:
    with raises_code(ConfigError, "SVFL-JOB-OPTION"):
        vfl.Neural(modules={"shop": module}, module_weights={"shop": 3})


def test_explain_runs_no_module_that_a_job_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trace, job = tmp_path / "trace", tmp_path / "job.toml"
    (tmp_path / "code.py").write_text(RAN.format(trace=str(trace), columns=2))
    job.write_text(NEURAL.format(module="code.py:make"))
    tables = written_tables(tmp_path)
    for allowed in ("", "code.py:make"):
        monkeypatch.setenv(ALLOW_VARIABLE, allowed)
        for words in (tables, [*tables[2:], "--size", "bank=1"], []):
            result = CliRunner().invoke(app, ["explain", str(job), *words])
            assert result.exit_code == 0, result.output
        assert not trace.exists(), "explain has run the file of a job"


def test_a_module_runs_only_if_its_party_allows_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trace, job = tmp_path / "trace", tmp_path / "job.toml"
    (tmp_path / "code.py").write_text(RAN.format(trace=str(trace), columns=2))
    job.write_text(NEURAL.format(module="code.py:make"))
    command = ["train", str(job), *written_tables(tmp_path)]
    for allowed in ("", "other.py:make", "code.py"):
        monkeypatch.setenv(ALLOW_VARIABLE, allowed)
        refused = CliRunner().invoke(app, command)
        assert (refused.exit_code, "SVFL-JOB-MODULE" in refused.output) == (2, True), refused.output
        assert not trace.exists()
    monkeypatch.setenv(ALLOW_VARIABLE, "made-up, code.py:make")
    wrong = CliRunner().invoke(app, command)
    assert "module_weights.shop = 3 in the job" in " ".join(wrong.output.split())
    job.write_text(job.read_text().replace("shop = 9", "shop = 3"))
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0, done.output
    assert trace.exists()


BASES: dict[str, dict[str, Any]] = {
    "rounds": {"model": "logistic", "protocol": "ckks", "optimizer": {"name": "fedbcd", "lr": 0.1}},
    "paillier": {"model": "softmax", "protocol": "paillier", "optimizer": {"name": "pipeline", "lr": 0.1}},
    "newton": {"model": "logistic", "protocol": "ckks", "optimizer": "block_newton"},
    "proximal": {
        "model": "huber",
        "protocol": "open",
        "optimizer": {"name": "fedsgd", "lr": 0.1, "rule": {"name": "proximal", "mu": 1.0, "rule": "adam"}},
    },
    "defence": {
        "model": "logistic",
        "protocol": {"residual": {"name": "open", "defence": {"name": "gaussian", "sigma": 1.0}}},
        "optimizer": {"name": "fedsgd", "lr": 0.1},
    },
    "woe": {
        "model": "logistic",
        "protocol": "ckks",
        "prepare": {"woe": {}},
        "weights": {"max_weight": 2.0},
        "optimizer": {"name": "fedsgd", "lr": 0.1},
    },
    "celu": {"model": "neural", "protocol": "ckks", "optimizer": {"name": "celu", "lr": 0.1}},
    "top": {
        "model": {"name": "neural", "joint": "top"},
        "protocol": {"residual": "ckks", "sum": "direct"},
        "optimizer": {"name": "fedsgd", "lr": 0.1},
    },
    "shares": {"model": "logistic", "protocol": "shares", "target": {"metric": "loss", "value": 0.2}},
    "patience": {"model": "tweedie", "protocol": "shares", "patience": {"metric": "loss"}, "prepare": {"bins": 4}},
    "trees": {"model": "trees", "protocol": "shares"},
    "fdml": {
        "test_fraction": 0.25,
        "model": "logistic",
        "protocol": "open",
        "optimizer": {
            "name": "fdml",
            "lr": 0.1,
            "stored": {"name": "open", "noise": {"epsilon": 1.0, "delta": 0.1, "clip": 1.0}},
        },
    },
    "fdskl": {
        "model": {"name": "kernel", "gamma": 0.1},
        "optimizer": {"name": "fdskl"},
        "protocol": {"sum": "direct"},
    },
    "transfer": {"model": "transfer", "protocol": "ckks", "optimizer": {"name": "fedbcd", "lr": 0.1}},
}
"""Jobs of all families, optimizers and options, whose numbers the test replaces by the largest possible ones."""


def bounded_numbers(option: Config, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], float]]:
    """Yield the path and the largest value of every number of an option."""
    for name, field in type(option).model_fields.items():
        key, value = field.alias or name, getattr(option, name)
        if isinstance(value, Config):
            yield from bounded_numbers(value, (*path, key))
        for limit in field.metadata:
            if isinstance(limit, Le):
                yield (*path, key), limit.le  # type: ignore[misc]
            elif isinstance(limit, Lt):
                yield (*path, key), limit.lt * (1 - 1e-9)  # type: ignore[operator,misc]


def with_value(keys: dict[str, Any], path: tuple[str, ...], value: float) -> dict[str, Any]:
    """Return plain keys in which the value at a path is replaced."""
    if len(path) == 1:
        return keys | {path[0]: value}
    inner = keys.get(path[0], {})
    return keys | {path[0]: with_value({"name": inner} if isinstance(inner, str) else inner, path[1:], value)}


@pytest.mark.long
@pytest.mark.parametrize("name", BASES)
def test_explain_is_fast_for_the_largest_values_of_a_job(name: str) -> None:
    job = vfl.Job.from_dict({"accepts": ["columns"], "epochs": 2} | BASES[name])
    slow = {}
    extremes: list[tuple[tuple[str, ...], float]] = [
        *bounded_numbers(job),
        (("batch_size",), 1),
        (("batch_size",), 2**31),
    ]
    assert len(extremes) > 8
    for parties in (None, random_parties(rows=400, columns=2)):  # imports modules, which takes time once
        with suppress(SecureVFLError):
            vfl.explain(job, parties)
    for path, value in extremes:
        for more in ({}, {"epochs": 100_000, "batch_size": 1}):
            try:
                extreme = vfl.Job.from_dict(with_value(job.to_dict(), path, value) | more)
            except ConfigError:
                continue  # refused together with other options
            started = time.process_time()
            for parties in (None, random_parties(rows=400, columns=2)):
                with suppress(SecureVFLError):
                    vfl.explain(extreme, parties)
            if (seconds := time.process_time() - started) > SECONDS:
                slow[".".join(path), bool(more)] = round(seconds, 1)
    assert not slow


UNBOUNDED = {
    "JobOptions.batch_size": "checked in _read_batch_size",
    "Weights.classes": "weights by class: checked against the labels, and bounded by max_weight",
    "Neural.module_weights": "checked in _check_modules",
    "Target.value": "compared with a metric only",
    "Trees.ridge": "checked in _check_sizes",
    "Transfer.hidden": "every width is bounded as an element of the tuple",
}
"""Numbers of options whose bound is not declared with the field, and the reason."""


def options_of_jobs() -> Iterator[type[Config]]:
    """Yield every class of options that a job file can set."""
    pending: list[type[Config]] = [JobOptions]
    for registry in (MODELS, OPTIMIZERS, SUMS, RESIDUALS, ENGINES, DEFENCES, RULES, STORED_SUMS):
        pending += registry.values()
    seen = set[type[Config]]()
    while pending:
        kind = pending.pop()
        if kind in seen:
            continue
        seen.add(kind)
        yield kind
        for field in kind.model_fields.values():
            pending += [
                part for part in parts_of(field.annotation) if isinstance(part, type) and issubclass(part, Config)
            ]


def parts_of(annotation: Any) -> Iterator[Any]:
    """Yield a type and all types inside it, without literals."""
    yield annotation
    if get_origin(annotation) is not Literal:
        for part in get_args(annotation):
            yield from parts_of(part)


def test_every_number_of_a_job_has_an_upper_bound() -> None:
    missing, kinds = [], list(options_of_jobs())
    assert len(kinds) > 30
    for kind in kinds:
        for name, field in kind.model_fields.items():
            numbers = {part for part in parts_of(field.annotation) if part in (int, float)}
            bounded = any(isinstance(limit, Le | Lt) for limit in field.metadata)
            owner = next(base for base in reversed(kind.__mro__) if name in getattr(base, "__annotations__", {}))
            if numbers and not bounded and f"{owner.__name__}.{name}" not in UNBOUNDED:
                missing.append(f"{kind.__name__}.{name}")
    assert not missing


DEEP = 10_000
MALFORMED = {
    "nested arrays": "a = " + "[" * DEEP + "]" * DEEP,
    "nested tables": "a = " + "{a = " * DEEP + "1" + "}" * DEEP,
    "dotted key": ".".join("a" * DEEP) + " = 1",
    "long integer": "epochs = " + "9" * 5000,
    "large integer": "epochs = " + "9" * 400,
    "not a number": "epochs = nan",
    "infinite": 'model = { name = "logistic", l2 = inf }',
    "escape": 'positive = "\\u001b[2J"',
    "key with an escape": '"\\u001b[2J" = 1',
    "long text": f'positive = "{"a" * 5000}"',
    "long list": f"accepts = [{'1,' * 70_000}]",
    "many keys": "\n".join(f"a{k} = 1" for k in range(60_000)),
    "large file": "# " + "a" * (2 << 20),
    "bytes": "\xff\xfe",
}


@pytest.mark.parametrize("name", MALFORMED)
@pytest.mark.parametrize("command", ["explain", "peers"])
def test_a_malformed_file_is_refused_in_printable_characters(tmp_path: Path, name: str, command: str) -> None:
    path = tmp_path / "job.toml"
    path.write_bytes(MALFORMED[name].encode("latin-1"))
    started = time.process_time()
    if command == "explain":
        result = CliRunner().invoke(app, ["explain", str(path)])
        assert (result.exit_code, result.exception is None or isinstance(result.exception, SystemExit)) == (2, True)
        output = result.output
    else:
        with pytest.raises(ConfigError) as caught:
            Peers.load(path)
        output = str(caught.value)
    assert time.process_time() - started < SECONDS
    assert len(output) < 20_000
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f]", output)


@pytest.mark.parametrize("sign", [1, -1])
def test_whole_numbers_of_either_sign_end_at_53_bits(sign: int) -> None:
    for value in (MAX_INTEGER - 1, MAX_INTEGER):
        check_plain({"a": [sign * value]})
    for value in (MAX_INTEGER + 1, 2 * MAX_INTEGER):
        with pytest.raises(UntrustedInputError):
            check_plain({"a": [sign * value]})
