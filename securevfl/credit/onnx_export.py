"""A party's part of a linear model as an ONNX graph, with the preparation of its columns (`securevfl[onnx]`).

A party's part of the model contains the weights of its columns and the steps that prepare them. The model's output f
for a row is the sum of all parties' contributions; the ONNX file computes only this party's. m is the number of rows, d
of columns, and c of outputs for each row:

    input X (m, d)       the unprepared columns in double precision, in the order of the part, NaN for missing values
    output part (m, c)   the party's contribution to f

The preparation fills missing values and special codes (numbers with a meaning, such as -999), and may add 0/1 columns
that mark them. The file contains the party's weights and must be protected like its part.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from securevfl.base.extras import import_extra
from securevfl.base.files import write_atomic
from securevfl.credit.explanations import check_weights
from securevfl.data.column_transforms import BinTransform, ColumnTransform, ImputedTransform, NumericTransform
from securevfl.data.scaling import GRID_BITS, Scaling
from securevfl.data.woe import NumericWoe
from securevfl.errors import ConfigError
from securevfl.training.model_part import ModelPart

OPSET = 17  # version of ONNX's set of operators
IR = 8  # version of ONNX's file format


def export_onnx(part: ModelPart, path: str | Path) -> None:
    """Write the part of the model as ONNX to a file; raises the errors of `to_onnx`."""
    write_atomic(Path(path), to_onnx(part))


def to_onnx(part: ModelPart) -> bytes:
    """Return the party's part of the model as the bytes of an ONNX file.

    Raises ConfigError if onnx is not installed, the party does not know its weights, or a column is of texts or dates.
    """
    check_weights(part, "export")
    graph = _Graph()
    steps = part.preparation.steps or [NumericTransform(column=name) for name in part.columns]
    columns = [feature for j, step in enumerate(steps) for feature in graph.features(step, graph.column(j))]
    X = graph.op("Concat", *columns, axis=1)
    scaled = graph.scaled(part.scaling, X)
    d = len(part.features)
    outcome = graph.op("MatMul", scaled, graph.const(part.theta[:d]))
    graph.op("Add", outcome, graph.const(part.theta[d:].sum(axis=0)), to="part")
    return graph.model_bytes(len(part.columns), part.outputs, part.name)


class _Graph:
    """A builder of an ONNX graph: methods add nodes to it. m is the number of rows of the graph's input."""

    def __init__(self) -> None:
        self._onnx = import_extra("onnx", "onnx", "export")
        self._nodes: list[Any] = []
        self._constants: list[Any] = []

    def const(self, values: Any) -> str:
        """Add a constant (doubles, or integers if all values are integers) and return its name."""
        array = np.asarray(values)
        name = f"c{len(self._constants)}"
        values = array if array.dtype == np.int64 else array.astype(np.float64)
        self._constants.append(self._onnx.numpy_helper.from_array(values, name))
        return name

    def op(self, kind: str, *inputs: str, to: str = "", **options: Any) -> str:
        """Add a node, and return the name of its output."""
        name = to or f"n{len(self._nodes)}"
        self._nodes.append(self._onnx.helper.make_node(kind, list(inputs), [name], **options))
        return name

    def column(self, j: int) -> str:
        """Add a node that selects column j of the input (m, 1), and return the name of its output."""
        return self.op("Gather", "X", self.const(np.array([j], np.int64)), axis=1)

    def _cast(self, x: str, kind: str = "DOUBLE") -> str:
        """Add a node that converts x to another type (booleans become 0 and 1), and return the name of its output."""
        name = f"n{len(self._nodes)}"
        to = getattr(self._onnx.TensorProto, kind)
        self._nodes.append(self._onnx.helper.make_node("Cast", [x], [name], to=to))
        return name

    def features(self, step: ColumnTransform, x: str) -> list[str]:
        """Add the nodes of the step that prepares a column x (m, 1), and return the names of its features."""
        lacks = self.op("IsNaN", self._cast(x, "FLOAT"))
        match step:
            case NumericTransform():
                filled = self._filled(step, x, lacks)
                if step.low is not None:
                    filled = self.op("Max", filled, self.const([[step.low]]))
                if step.high is not None:
                    filled = self.op("Min", filled, self.const([[step.high]]))
                if step.spread is not None:
                    z = self.op("Div", self.op("Sub", filled, self.const([[step.centre]])), self.const([[step.spread]]))
                    size = self.op("Abs", z)
                    root = self.op("Sqrt", self.op("Add", self.op("Mul", z, z), self.const(1.0)))
                    filled = self.op("Mul", self.op("Sign", z), self.op("Log", self.op("Add", size, root)))
                return [filled, *self._marks(step, x, lacks)]
            case BinTransform():
                filled = self._filled(step, x, lacks)
                over = self._cast(self.op("GreaterOrEqual", filled, self.const([list(step.edges)])))
                return [over, *self._marks(step, x, lacks)]
            case NumericWoe():
                weights = np.array(step.weights)
                rises = np.diff(weights[: len(step.edges) + 1])[:, None]
                evidence = self.const([[weights[0]]])
                if step.edges:
                    over = self._cast(self.op("GreaterOrEqual", x, self.const([list(step.edges)])))
                    evidence = self.op("Add", self.op("MatMul", over, self.const(rises)), evidence)
                missing = self.const([[np.nan if step.missing is None else weights[step.missing]]])
                # a column of m zeros, so that the result has m rows even if the column has no edge
                zero = self.op("Mul", self._cast(lacks), self.const(0.0))
                evidence = self.op("Where", lacks, missing, self.op("Add", evidence, zero))
                for (_, code), bin_number in zip(step.special, step.special_bins, strict=True):
                    is_code = self.op("Equal", x, self.const([[code]]))
                    evidence = self.op("Where", is_code, self.const([[weights[bin_number]]]), evidence)
                return [evidence]
        raise ConfigError(
            f"export: column {step.column} holds texts or dates, and only numbers can be exported",
            "leave it out of the training, or predict with this package instead of ONNX",
            code="SVFL-MODEL-UNSUPPORTED",
            column=step.column,
        )

    def _filled(self, step: ImputedTransform, x: str, lacks: str) -> str:
        """Add the nodes that replace missing values and special codes, and return the name of their output."""
        filled = x if step.fill is None else self.op("Where", lacks, self.const([[step.fill]]), x)
        for _, code in step.special:
            is_code = self.op("Equal", x, self.const([[code]]))
            filled = self.op("Where", is_code, self.const([[step.special_fill]]), filled)
        return filled

    def _marks(self, step: ImputedTransform, x: str, lacks: str) -> list[str]:
        """Add the 0/1 columns that mark special codes and missing values, and return the names of their outputs."""
        marks = [self._cast(self.op("Equal", x, self.const([[code]]))) for _, code in step.marked]
        return [*marks, *([self._cast(lacks)] if step.indicator else [])]

    def scaled(self, scaling: Scaling, X: str) -> str:
        """Add the nodes that scale the features X, and return the name of their output."""
        scaled = self.op("Div", self.op("Sub", X, self.const(scaling.mean)), self.const(scaling.deviation))
        if scaling.clip is None:
            return scaled
        cut = self.op("Min", self.op("Max", scaled, self.const(-scaling.clip)), self.const(scaling.clip))
        grid = self.const(2.0**GRID_BITS)
        return self.op("Div", self.op("Round", self.op("Mul", cut, grid)), grid)

    def model_bytes(self, columns: int, outputs: int, name: str) -> bytes:
        """Assemble and check the graph, and return the bytes of its file."""
        onnx = self._onnx
        double = onnx.TensorProto.DOUBLE
        graph = onnx.helper.make_graph(
            self._nodes,
            f"part of {name}",
            [onnx.helper.make_tensor_value_info("X", double, ["m", columns])],
            [onnx.helper.make_tensor_value_info("part", double, ["m", outputs])],
            self._constants,
        )
        model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", OPSET)], ir_version=IR)
        onnx.checker.check_model(model)
        return model.SerializeToString()
