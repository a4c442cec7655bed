"""Tell the documentation which options a class takes: its fields, where its own constructor says `**options` alone."""

from __future__ import annotations

from typing import Any

import griffe
from pydantic.fields import FieldInfo

import securevfl
from securevfl.base.config import Config


class OptionFields(griffe.Extension):
    """Shows the fields of each public class of options, its bases' among them, as parameters of its constructor."""

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        """Give each public class of options a constructor that names them, once the package is read."""
        if pkg.path != "securevfl":
            return
        for name in securevfl.__all__:
            kind = getattr(securevfl, name)
            if isinstance(kind, type) and issubclass(kind, Config):
                made = _found(pkg, kind)
                fields = [_parameter(pkg, kind, key, field) for key, field in kind.model_fields.items()]
                own = griffe.Parameter("self", kind=griffe.ParameterKind.positional_or_keyword)
                made.set_member("__init__", griffe.Function("__init__", parameters=griffe.Parameters(own, *fields)))


def _found(pkg: griffe.Module, kind: type) -> griffe.Object:
    """Find what the documentation holds of a class of the package."""
    found = pkg[f"{kind.__module__}.{kind.__qualname__}".removeprefix("securevfl.")]
    assert isinstance(found, griffe.Object)
    return found


def _parameter(pkg: griffe.Module, kind: type[Config], key: str, field: FieldInfo) -> griffe.Parameter:
    """Describe a field as a parameter, annotated as where it is defined."""
    home = next(base for base in kind.__mro__ if key in vars(base).get("__annotations__", {}))
    default = None if field.is_required() else repr(field.get_default(call_default_factory=True))
    annotation = _found(pkg, home)[key].annotation
    return griffe.Parameter(
        field.alias or key, annotation=annotation, kind=griffe.ParameterKind.keyword_only, default=default
    )
