"""Every option that somebody sets is read: no function, and no command, takes an argument that it then forgets.

Methods may leave arguments unread that their interface prescribes. Functions of modules and commands may not, apart
from handlers that another library calls.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tests.parsed import PACKAGE, nodes_of_package

CALLED_BY_OTHERS = {
    ("crypto/lattice/lattice_gradient.py", "uses"): "the same layout for any number of uses",
    ("models/torch_jacobian.py", "layer"): "a hook of torch",
    ("optim/celu.py", "t"): "a rule that ignores the step",
    ("optim/celu.py", "uses"): "a rule that ignores the number of uses",
    ("training/cross_validation.py", "y"): "a score of scikit-learn",
    ("organisations/http_endpoints.py", "request"): "an endpoint of starlette",
    ("organisations/monitor.py", "request"): "an endpoint of starlette",
    ("cli/entry.py", "frame"): "a handler of signals",
    ("cli/signals.py", "frame"): "a handler of signals",
    ("cli/live.py", "task"): "a column of rich",
    ("cli/main.py", "version"): "an option whose callback ends the command",
}
"""Arguments that nothing reads, by file and name, and who prescribes them."""


def arguments(function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[str]:
    every = [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]
    yield from (item.arg for item in every if not item.arg.startswith("_") and item.arg not in ("self", "cls"))


def read_names(nodes: list[ast.stmt]) -> set[str]:
    loaded = (node for statement in nodes for node in ast.walk(statement))
    return {node.id for node in loaded if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}


def test_no_function_and_no_command_forgets_an_argument() -> None:
    forgotten, seen = set(), 0
    for path, (module, *parts) in nodes_of_package().items():
        assert isinstance(module, ast.Module)
        name = str(path.relative_to(PACKAGE))
        for function in parts if name.startswith("cli/") else module.body:
            if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
                used = read_names(function.body)
                seen += 1
                forgotten |= {(name, argument) for argument in arguments(function) if argument not in used}
    assert seen > 500
    assert not {item for item in forgotten if item not in CALLED_BY_OTHERS}


def test_every_field_of_the_groups_of_options_is_read() -> None:
    """A field that is set by an option of the command line and that nothing reads is an option without effect."""
    trees = {str(path.relative_to(PACKAGE)): tree for path, tree in nodes_of_package().items()}
    read = {
        node.attr
        for tree in trees.values()
        for node in tree
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load)
    }
    fields = {
        (item.name, statement.target.id)
        for name, tree in trees.items()
        if name in ("cli/option_groups.py", "organisations/peer_settings.py", "protocols/shares/shares_options.py")
        for item in tree
        if isinstance(item, ast.ClassDef)
        for statement in item.body
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name)
    }
    assert len(fields) > 15
    assert not {field for field in fields if field[1] not in read}
