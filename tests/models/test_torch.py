"""Modules of torch as parties' models: gradients against autograd, refusals, and storage."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from builders import raises_code  # noqa: E402

import securevfl as vfl  # noqa: E402
from securevfl.base import chunked_matrix  # noqa: E402
from securevfl.base.chunked_matrix import ChunkedMatrix  # noqa: E402
from securevfl.errors import ConfigError  # noqa: E402
from securevfl.models import torch_block  # noqa: E402
from securevfl.models.block import BlockSpec  # noqa: E402
from securevfl.models.torch_block import LazyJacobian, TorchBlock  # noqa: E402
from securevfl.models.torch_jacobian import by_layers, by_torch, is_layered  # noqa: E402

D, C = 12, 3
nn = torch.nn
torch.set_num_threads(1)


def dense(outputs: int = C) -> torch.nn.Module:
    return nn.Sequential(nn.Linear(D, 5), nn.Tanh(), nn.Linear(5, 4, bias=False), nn.GELU(), nn.Linear(4, outputs))


def convolutional(outputs: int = C) -> torch.nn.Module:
    layers = [nn.Unflatten(1, (1, 3, 4)), nn.Conv2d(1, 2, 3, padding=1), nn.ReLU(), nn.Flatten()]
    return nn.Sequential(*layers, nn.LayerNorm(24), nn.Linear(24, outputs))


MODULES = {"dense": dense, "convolutional": convolutional}


def part(make: Callable[[], torch.nn.Module] = dense, outputs: int = C) -> TorchBlock:
    return TorchBlock("shop", vfl.TorchModel(lambda: make().double()), D, outputs, l2=0.0)


def drawn(n: int = 9) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(1)
    return generator.normal(size=(n, D)), generator.uniform(-1, 1, size=(n, C))


@pytest.mark.parametrize("kind", MODULES)
def test_gradients_are_those_of_autograd(kind: str) -> None:
    model, (X, g) = part(MODULES[kind]), drawn()
    module = MODULES[kind]().double()
    torch.nn.utils.vector_to_parameters(torch.tensor(model.theta), module.parameters())
    H = module(torch.tensor(X))
    (H * torch.tensor(g)).sum().backward()
    expected = torch.cat([parameter.grad.reshape(-1) for parameter in module.parameters()]).numpy()
    np.testing.assert_allclose(model.forward(X), H.detach().numpy(), atol=1e-12)
    np.testing.assert_allclose(model.vjp(X, g), expected, atol=1e-12)
    np.testing.assert_allclose(model.jacobian(X).vjp(g), expected, atol=1e-12)


def test_both_ways_to_a_jacobian_agree() -> None:
    module, X = dense().double(), torch.tensor(drawn()[0])
    named = {name: parameter.detach() for name, parameter in module.named_parameters()}
    assert is_layered(module, X)
    assert not is_layered(convolutional().double(), X)
    J = by_layers(module, named, {}, X)
    assert J.shape == (9 * C, model_size(module))
    np.testing.assert_allclose(J, by_torch(module, named, {}, X), atol=1e-12)


def test_a_layer_used_twice_is_not_taken_for_two() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(D, D), nn.Linear(D, C)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.last(self.first(torch.tanh(self.first(x))))

    model, (X, g) = part(Twice), drawn()
    np.testing.assert_allclose(model.jacobian(X).vjp(g), model.vjp(X, g), atol=1e-12)


def test_a_tensor_with_two_names_has_the_same_weights_under_both() -> None:
    class Shared(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second, self.last = nn.Linear(D, D), nn.Linear(D, D), nn.Linear(D, C)
            self.second.weight = self.first.weight

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.last(self.second(torch.tanh(self.first(x))))

    model, (X, g) = part(Shared), drawn()
    weights = torch.tensor(np.random.default_rng(1).normal(size=model.theta.shape))
    model.theta = weights.numpy()
    first, bias, other_bias, last, last_bias = torch.split(weights, [D * D, D, D, D * C, C])
    hidden = torch.tanh(torch.tensor(X) @ first.reshape(D, D).T + bias) @ first.reshape(D, D).T + other_bias
    expected = hidden @ last.reshape(C, D).T + last_bias
    np.testing.assert_allclose(model.forward(X), expected.numpy(), atol=1e-12)
    np.testing.assert_allclose(model.jacobian(X).vjp(g), model.vjp(X, g), atol=1e-12)


def model_size(module: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def test_a_large_jacobian_is_read_in_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunked_matrix, "MAX_MATERIALIZED_NUMBERS", 1)
    monkeypatch.setattr(torch_block, "MAX_CHUNK_ROWS", 4)
    model, (X, g) = part(), drawn()
    J = model.jacobian(X)
    assert isinstance(J.matrix, ChunkedMatrix)
    matrix = LazyJacobian(model, X, C)
    jacobian = matrix[:]
    pieces = np.concatenate([matrix[:7], matrix[7:20], matrix[20:]])
    np.testing.assert_allclose(J.dense, jacobian, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(J.vjp(g), model.vjp(X, g), atol=1e-12)
    np.testing.assert_allclose(pieces, jacobian, rtol=1e-12)
    np.testing.assert_allclose(jacobian.T @ g.reshape(-1), model.vjp(X, g), atol=1e-12)
    before, model.theta = jacobian, model.theta + 1.0
    np.testing.assert_array_equal(matrix[:], before)  # the Jacobian at the weights for which it was created


def test_a_function_draws_from_the_seed_and_the_data() -> None:
    model, (X, _) = part(), drawn()
    starts = []
    for rows, seed in ((X, 0), (X, 0), (X, 1), (X + 1, 0)):
        torch.rand(3)
        model.start(rows, rows, None, seed)
        starts.append(model.theta)
    np.testing.assert_array_equal(starts[0], starts[1])
    assert len({tuple(theta) for theta in starts}) == 3
    module = dense()
    block = TorchBlock("shop", vfl.TorchModel(module), D, C, l2=0.0)
    block.start(X, X, None, 5)
    expected = torch.nn.utils.parameters_to_vector(module.parameters()).detach().numpy()
    np.testing.assert_array_equal(block.theta, expected.astype(np.float64))


def test_what_is_not_trained_is_kept() -> None:
    class Projected(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("fixed", torch.randn(D, 4))
            self.frozen, self.last = nn.Linear(4, 4), nn.Linear(4, C)
            self.frozen.requires_grad_(False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.last(torch.tanh(self.frozen(x @ self.fixed)))

    (X, g), one = drawn(), part(Projected)
    assert one.parameters == 4 * C + C
    np.testing.assert_allclose(one.jacobian(X).vjp(g), one.vjp(X, g), atol=1e-12)
    other = TorchBlock("shop", vfl.TorchModel(lambda: Projected().double()), D, C, l2=0.0)
    other.start(X, X, None, 1)
    assert not np.allclose(other.forward(X), one.forward(X))
    other.restore(one.state())
    np.testing.assert_array_equal(other.forward(X), one.forward(X))
    with raises_code(ConfigError, "SVFL-JOB-MODULE"):
        part().restore(one.state())
    with raises_code(ConfigError, "SVFL-JOB-MODULE"):
        part().theta = np.zeros(3)


class Noisy(nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) + torch.randn(1)


class Centred(nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x - x.mean(dim=0))


REFUSED = {
    r"layer 1 \(BatchNorm1d\) makes a row's output depend on the other rows": nn.Sequential(
        nn.Linear(D, C), nn.BatchNorm1d(C)
    ),
    r"layer 0 \(Dropout\) draws random numbers": nn.Sequential(nn.Dropout(0.5), nn.Linear(D, C)),
    "the same rows give other outputs": Noisy(D, C),
    "a row's output depends on the other rows": Centred(D, C),
    r"outputs of shape \(n, 3\) were expected of its module, \(n, 2\) came": nn.Linear(D, 2),
    r"a module of 12 columns was expected, rows of so many fail": nn.Linear(D + 1, C),
    "numbers to train was expected": nn.Flatten(),
}


@pytest.mark.parametrize("why", REFUSED)
def test_a_module_that_cannot_be_used_is_refused(why: str) -> None:
    with raises_code(ConfigError, "SVFL-JOB-MODULE"):
        TorchBlock("shop", vfl.TorchModel(REFUSED[why]), D, C, l2=0.0)


def test_a_module_comes_from_a_file_of_its_owner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("net.py").write_text(f"import torch\ndef shop():\n    return torch.nn.Linear({D}, {C})\nnumber = 3\n")
    assert vfl.TorchModel("net.py:shop").parameters("shop") == (D + 1) * C
    for name in ("net.py", "net:shop", "none.py:shop", "net.py:bank", "net.py:number"):
        with raises_code(ConfigError, "SVFL-JOB-MODULE"):
            vfl.TorchModel(name)
    model = vfl.Neural(modules={"shop": "net.py:shop"}, module_weights={"shop": (D + 1) * C}, loss="softmax")
    assert model.module_parameters("shop", None) == (D + 1) * C
    with raises_code(ConfigError, "SVFL-JOB-MODULE"):
        model.build(BlockSpec("shop", False, D, C))
    spec = BlockSpec("shop", False, D, C, model=vfl.TorchModel("net.py:shop"))
    assert model.build(spec).parameters == (D + 1) * C
    with raises_code(ConfigError, "SVFL-JOB-MODULE"):
        model.model_copy(update={"module_weights": {"shop": 7}}).build(spec)
    assert (model.module_parameters("bank", None), model.build(BlockSpec("bank", True, 4, C)).parameters) == (0, 5 * C)


def test_a_module_where_there_is_no_place_for_one_is_refused() -> None:
    bank, shop = vfl.datasets.breast_cancer()
    shop.model = vfl.TorchModel(nn.Linear(15, 1))
    keys: dict[str, object] = {"optimizer": vfl.FedSGD(lr=0.1), "protocol": vfl.Protocol(residual="open")}
    with raises_code(ConfigError, "SVFL-JOB-COMBINATION"):
        vfl.simulate(vfl.Job(model=vfl.Logistic(), **keys), [bank, shop])
    shop.model = nn.Linear(15, 1)
    with raises_code(ConfigError, "SVFL-JOB-MODULE"):
        vfl.simulate(vfl.Job(model=vfl.Neural(), **keys), [bank, shop])


def test_without_torch_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    monkeypatch.setattr("securevfl.base.extras.import_module", missing)
    with raises_code(ConfigError, "SVFL-EXTRA-MISSING"):
        vfl.TorchModel(lambda: nn.Linear(D, C))
    with raises_code(ConfigError, "SVFL-EXTRA-MISSING"):
        vfl.Neural().build(BlockSpec("shop", False, D, C))


class Fails(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(D, C)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        raise KeyError("no column of that name")


@pytest.mark.parametrize(
    ("make", "says", "note"),
    [
        (lambda: nn.LSTM(D, C), "the module returns a tuple instead of one tensor", None),
        (lambda: nn.Linear(D, C, device="meta"), "weight is on the device meta", None),
        (Fails, "the module fails on rows with 12 columns (KeyError)", "no column of that name"),
        (lambda: {}["net"], "the function that creates the module fails (KeyError)", "'net'"),
    ],
)
def test_a_module_that_fails_says_why_at_home(make: Callable[[], object], says: str, note: str | None) -> None:
    """The text that other parties may read contains no text of the module's error; a note for its owner does."""
    with raises_code(ConfigError, "SVFL-JOB-MODULE") as caught:
        TorchBlock("shop", vfl.TorchModel(make), D, C, l2=0.0)
    assert says in str(caught.value)
    notes = getattr(caught.value, "__notes__", [])
    assert any(note in line for line in notes) if note else not notes
    assert note is None or note not in str(caught.value)


def test_unsupported_layers_are_refused_before_any_counting() -> None:
    bank, shop = vfl.datasets.breast_cancer()
    shop.model = vfl.TorchModel(lambda: nn.Sequential(nn.Linear(15, 400), nn.BatchNorm1d(400), nn.Linear(400, 1)))
    job = vfl.Job(model=vfl.Neural(), optimizer=vfl.FedBCD(lr=0.1), protocol="ckks", batch_size=64, epochs=1)
    with raises_code(ConfigError, "SVFL-JOB-MODULE"):
        vfl.simulate(job, [bank, shop])
