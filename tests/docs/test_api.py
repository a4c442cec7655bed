"""The page of the Python interface names the options of a class, with their defaults, in place of `**options`."""

import inspect
from pathlib import Path

import pytest

import securevfl as vfl
from securevfl.base.config import Config

CI = Path(__file__).parents[2] / ".ci"
griffe = pytest.importorskip("griffe", reason="needs the extra docs")
pytestmark = pytest.mark.skipif(not CI.is_dir(), reason="needs a checkout")


@pytest.mark.long
def test_every_public_class_of_options_names_them() -> None:
    extensions = griffe.load_extensions(str(CI / "option_fields.py"))
    package = griffe.load("securevfl", extensions=extensions)
    kinds = [getattr(vfl, name) for name in vfl.__all__]
    options = [kind for kind in kinds if isinstance(kind, type) and issubclass(kind, Config)]
    assert {vfl.Job, vfl.AdaGrad, vfl.Softmax} <= set(options)
    for kind in options:
        page = package[f"{kind.__module__}.{kind.__qualname__}".removeprefix("securevfl.")]
        lines = {parameter.name: parameter.default for parameter in page.parameters if parameter.name != "self"}
        assert list(lines) == list(inspect.signature(kind).parameters), kind
        required = [field.alias or name for name, field in kind.model_fields.items() if field.is_required()]
        assert [name for name, default in lines.items() if default is None] == required, kind
    page = package["optim.adagrad.AdaGrad"]
    eps = page.parameters["eps"]
    assert (eps.name, str(eps.annotation), eps.default) == ("eps", "float", "1e-10")
