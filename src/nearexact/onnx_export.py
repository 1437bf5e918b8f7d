"""A sparse GP as an ONNX graph: mean and variance in the user's units, in float64, for any runtime.

The graph is put together by hand, operation by operation, from those that onnxruntime has in float64. Where it has one
in float32 only (the arc cosine), a step of Newton's method makes up for it. Needs the extra "onnx".
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from functools import reduce
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from nearexact.files import check_output, replacing
from nearexact.gp.posterior import SparsePosterior
from nearexact.kernels import ArcCosine, Kernel, Linear, Matern12, Matern32, Matern52, Periodic, SquaredExponential
from nearexact.kernels.composite import Composite
from nearexact.typing import FloatArray

if TYPE_CHECKING:
    from nearexact.base_estimator import Regressor

OPSET, IR_VERSION = 17, 8  # of 2022, which runtimes of these years read
Builder = Callable[["Graph", Any, str, FloatArray], str]


def save_onnx(estimator: Regressor, path: str | os.PathLike[str], *, noise: bool = True) -> None:
    """Write the graph of a fitted sparse GP, from X [N, D] to mean [N] and variance [N]."""
    posterior = estimator._posterior
    if not isinstance(posterior, SparsePosterior):
        raise ValueError(f'only a sparse GP can be exported to ONNX, got method_ "{estimator.method_}"')
    try:
        import onnx
    except ImportError as error:
        raise ImportError('exporting to ONNX needs the extra "onnx": pip install "nearexact[onnx]"') from error
    check_output(path)
    graph = Graph()
    _predictions(graph, estimator, posterior, noise)
    model = graph.model(estimator.n_features_in_, posterior.weights.shape[1:])
    with replacing(path) as temporary:
        onnx.save(model, str(temporary))


class Graph:
    """Operations and constants of an ONNX graph; values go by the names that they get here."""

    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self.constants: list[Any] = []

    def constant(self, value: Any, dtype: Any = np.float64) -> str:
        """A number or an array."""
        from onnx import numpy_helper

        name = f"constant_{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.ascontiguousarray(value, dtype=dtype), name))
        return name

    def apply(
        self, operation: str, *inputs: str | float | FloatArray, name: str | None = None, **attributes: Any
    ) -> str:
        """The result of an operation; numbers and arrays become constants."""
        from onnx import helper

        names = [value if isinstance(value, str) else self.constant(value) for value in inputs]
        output = f"value_{len(self.nodes)}" if name is None else name
        self.nodes.append(helper.make_node(operation, names, [output], **attributes))
        return output

    def scale(self, matrix: str, factors: float | FloatArray) -> str:
        """A matrix [N, F] times a number or one number for each column.

        onnxruntime takes a number next to a product of matrices for a part of that, and holds it in float32 there. So a
        number is followed by an operation that changes nothing.
        """
        product = self.apply("Mul", matrix, factors)
        return product if np.size(factors) > 1 else self.apply("Max", product, -np.finfo(np.float64).max)

    def sum_over(self, values: str, axis: int, *, keeps: bool = False) -> str:
        """Sums over an axis."""
        axes = self.constant([axis], np.int64)
        return self.apply("ReduceSum", values, axes, keepdims=int(keeps))

    def model(self, n_inputs: int, targets: Sequence[int]) -> Any:
        """All of it, checked. `targets` is the number of them, if there are several."""
        import onnx
        from onnx import TensorProto, helper

        shape: list[str | int] = ["N", *targets]
        X = helper.make_tensor_value_info("X", TensorProto.DOUBLE, ["N", n_inputs])
        outputs = [helper.make_tensor_value_info(name, TensorProto.DOUBLE, shape) for name in ("mean", "variance")]
        graph = helper.make_graph(self.nodes, "sparse GP", [X], outputs, self.constants)
        model = helper.make_model(
            graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION, producer_name="nearexact"
        )
        onnx.checker.check_model(model)
        return model


def _predictions(graph: Graph, estimator: Regressor, posterior: SparsePosterior, noise: bool) -> None:
    """The values "mean" and "variance" from "X": the formulas of `SparsePosterior.predict`."""
    scaling_X, scaling_y = estimator._scaling_X, estimator._scaling_y
    scale = np.asarray(scaling_y.scale)  # of the target, or of each
    x = graph.scale(graph.apply("Sub", "X", scaling_X.shift), 1.0 / scaling_X.scale)
    K = _cross(graph, posterior.kernel, x, posterior.Z.cpu().numpy())  # [N, M]
    V = graph.apply("MatMul", K, _inverse(posterior.L).T)  # rows L⁻¹k
    U = graph.apply("MatMul", V, _inverse(posterior.L_B).T)
    mean = graph.apply("MatMul", V, posterior.weights.cpu().numpy() * scale)
    graph.apply("Add", mean, np.asarray(scaling_y.shift), name="mean")
    squares = [graph.sum_over(graph.apply("Mul", part, part), 1) for part in (V, U)]
    latent = graph.apply("Add", graph.apply("Sub", _diagonal(graph, posterior.kernel, x), squares[0]), squares[1])
    if scale.ndim:
        latent = graph.apply("Unsqueeze", latent, graph.constant([1], np.int64))
    variance = graph.apply("Mul", graph.apply("Max", latent, 0.0), scale**2)
    graph.apply("Add", variance, posterior.noise_variance * scale**2 if noise else 0.0, name="variance")


def _inverse(L: Tensor) -> FloatArray:
    eye = torch.eye(len(L), dtype=L.dtype, device=L.device)
    return np.asarray(torch.linalg.solve_triangular(L, eye, upper=False).cpu())


# ---- kernels: from standardised rows x [N, D] and points Z [M, D] to K [N, M], and to k(x, x) [N] --------------------


def _cross(graph: Graph, kernel: Kernel, x: str, Z: FloatArray) -> str:
    if isinstance(kernel, Composite):
        operation = "Add" if kernel.operation == "+" else "Mul"
        return reduce(lambda a, b: graph.apply(operation, a, b), [_cross(graph, part, x, Z) for part in kernel.parts])
    if type(kernel) not in CROSSES:
        raise ValueError(f"only kernels of nearexact.kernels can be exported to ONNX, got {kernel!r}")
    return CROSSES[type(kernel)](graph, kernel, x, Z)


def _diagonal(graph: Graph, kernel: Kernel, x: str) -> str:
    if isinstance(kernel, Composite):
        operation = "Add" if kernel.operation == "+" else "Mul"
        return reduce(lambda a, b: graph.apply(operation, a, b), [_diagonal(graph, part, x) for part in kernel.parts])
    p = kernel.parameters
    if isinstance(kernel, Linear):
        return graph.apply("Add", _squared_norms(graph, x, p["variances"]), p["bias_variance"])
    if isinstance(kernel, ArcCosine):
        squares = graph.apply("Pow", _arc_cosine_norms(graph, kernel, x), float(kernel.order))
        return graph.apply("Mul", squares, p["variance"] * (3.0 if kernel.order == 2 else 1.0))  # J_n(0)/π
    return graph.constant(p["variance"][None])


def _squared_norms(graph: Graph, x: str, weights: FloatArray | float, *, keeps: bool = False) -> str:
    """Σ_d weights_d x_d²: [N], or [N, 1]."""
    return graph.sum_over(graph.apply("Mul", graph.apply("Mul", x, x), weights), 1, keeps=keeps)


def _squared_distances(graph: Graph, x: str, Z: FloatArray, *, by_differences: bool = False) -> str:
    """|x − z|², [N, M]; by differences [N, M, D] where rounding errors of small distances matter."""
    if by_differences:
        difference = graph.apply("Sub", graph.apply("Unsqueeze", x, graph.constant([1], np.int64)), Z[None])
        return graph.sum_over(graph.apply("Mul", difference, difference), 2)
    norms = graph.apply("Add", _squared_norms(graph, x, 1.0, keeps=True), np.square(Z).sum(1)[None])
    return graph.apply("Max", graph.apply("Sub", norms, graph.apply("MatMul", x, 2.0 * Z.T)), 0.0)


def _scaled(graph: Graph, kernel: Kernel, x: str, Z: FloatArray) -> tuple[str, FloatArray]:
    """Rows and points in lengthscales, measured from the middle of the points, which saves digits."""
    lengthscales, centre = kernel.parameters["lengthscales"], Z.mean(0)
    return graph.scale(graph.apply("Sub", x, centre), 1.0 / lengthscales), (Z - centre) / lengthscales


def _times_variance(graph: Graph, kernel: Kernel, values: str) -> str:
    return graph.scale(values, kernel.parameters["variance"])


def _squared_exponential(graph: Graph, kernel: SquaredExponential | Periodic, x: str, Z: FloatArray) -> str:
    if isinstance(kernel, Periodic):
        x, Z = _on_circles(graph, kernel, x, Z)
    else:
        x, Z = _scaled(graph, kernel, x, Z)
    exponent = graph.apply("Mul", _squared_distances(graph, x, Z), -0.5)
    return _times_variance(graph, kernel, graph.apply("Exp", exponent))


def _on_circles(graph: Graph, kernel: Periodic, x: str, Z: FloatArray) -> tuple[str, FloatArray]:
    """Each input as a point on a circle, in lengthscales; cosines are sines of other angles, which exist in float64."""
    p = kernel.parameters
    factor, lengthscales = 2.0 * math.pi / p["period"], np.tile(p["lengthscales"], 2)
    angle = graph.scale(x, factor)
    cosine = graph.apply("Sin", graph.apply("Add", angle, 0.5 * math.pi))
    points = graph.apply("Concat", cosine, graph.apply("Sin", angle), axis=1)
    return graph.scale(points, 1.0 / lengthscales), np.hstack([np.cos(Z * factor), np.sin(Z * factor)]) / lengthscales


def _matern(graph: Graph, kernel: Matern12 | Matern32 | Matern52, x: str, Z: FloatArray) -> str:
    x, Z = _scaled(graph, kernel, x, Z)
    rough = isinstance(kernel, Matern12)
    scale = 1.0 if rough else 3.0 if isinstance(kernel, Matern32) else 5.0
    squares = _squared_distances(graph, x, Z, by_differences=rough)  # no derivative at zero: its root takes no rounding
    r = graph.apply("Mul", graph.apply("Sqrt", squares), math.sqrt(scale))
    decay = graph.apply("Exp", graph.apply("Neg", r))
    if rough:
        return _times_variance(graph, kernel, decay)
    polynomial = graph.apply("Add", r, 1.0)
    if isinstance(kernel, Matern52):
        polynomial = graph.apply("Add", polynomial, graph.apply("Mul", graph.apply("Mul", r, r), 1.0 / 3.0))
    return _times_variance(graph, kernel, graph.apply("Mul", polynomial, decay))


def _linear(graph: Graph, kernel: Linear, x: str, Z: FloatArray) -> str:
    p = kernel.parameters
    return graph.apply("Add", graph.apply("MatMul", x, (Z * p["variances"]).T), p["bias_variance"])


def _arc_cosine_norms(graph: Graph, kernel: ArcCosine, x: str) -> str:
    """|x|² under the kernel's inner product: [N]."""
    p = kernel.parameters
    measured = graph.apply("Sub", x, np.asarray(kernel.origin))
    return graph.apply("Add", _squared_norms(graph, measured, p["weight_variances"]), p["bias_variance"])


def _arc_cosine(graph: Graph, kernel: ArcCosine, x: str, Z: FloatArray) -> str:
    p, origin = kernel.parameters, np.asarray(kernel.origin)
    roots, bias = np.sqrt(p["weight_variances"]), math.sqrt(float(p["bias_variance"]))
    lengths = graph.apply(
        "Unsqueeze", graph.apply("Sqrt", _arc_cosine_norms(graph, kernel, x)), graph.constant([1], np.int64)
    )
    inner = graph.scale(graph.apply("Sub", x, origin), roots)
    unit_x = graph.apply(
        "Concat", graph.apply("Div", inner, lengths), graph.apply("Div", bias, lengths), axis=1
    )  # [N, D + 1]
    z = np.hstack([(Z - origin) * roots, np.full((len(Z), 1), bias)])
    lengths_Z = np.linalg.norm(z, axis=1)
    unit_z = z / lengths_Z[:, None]
    half_sine, half_cosine = (
        graph.apply("Mul", graph.apply("Sqrt", _squared_distances(graph, unit_x, end, by_differences=True)), 0.5)
        for end in (unit_z, -unit_z)
    )
    angle, sine, cosine = _angle(graph, half_sine, half_cosine)
    rest = graph.apply("Sub", math.pi, angle)
    if kernel.order == 0:
        J = rest
    elif kernel.order == 1:
        J = graph.apply("Add", sine, graph.apply("Mul", rest, cosine))
    else:
        factor = graph.apply("Add", graph.apply("Mul", graph.apply("Mul", cosine, cosine), 2.0), 1.0)
        first = graph.apply("Mul", graph.apply("Mul", sine, cosine), 3.0)
        J = graph.apply("Add", first, graph.apply("Mul", rest, factor))
    if kernel.order:
        both = graph.apply("Mul", lengths, lengths_Z[None])
        J = graph.apply("Mul", J, graph.apply("Pow", both, float(kernel.order)))
    return graph.scale(J, p["variance"] / math.pi)


def _angle(graph: Graph, half_sine: str, half_cosine: str) -> tuple[str, str, str]:
    """An angle φ, its sine and its cosine, from sin φ/2 and cos φ/2.

    φ₀ from the arc cosine in float32 is off by less than 1e-3; sin(φ − φ₀) then says by how much, to float64.
    """
    from onnx import TensorProto

    sine = graph.apply("Mul", graph.apply("Mul", half_sine, half_cosine), 2.0)
    cosine = graph.apply("Sub", graph.apply("Mul", half_cosine, half_cosine), graph.apply("Mul", half_sine, half_sine))
    within = graph.apply("Min", graph.apply("Max", cosine, -1.0), 1.0)
    first = graph.apply("Acos", graph.apply("Cast", within, to=TensorProto.FLOAT))
    first = graph.apply("Cast", first, to=TensorProto.DOUBLE)
    first_cosine = graph.apply("Sin", graph.apply("Add", first, 0.5 * math.pi))
    error = graph.apply(
        "Sub",
        graph.apply("Mul", sine, first_cosine),
        graph.apply("Mul", cosine, graph.apply("Sin", first)),
    )  # sin(φ − φ₀)
    cubed = graph.apply("Mul", graph.apply("Mul", error, error), error)
    correction = graph.apply("Add", error, graph.apply("Mul", cubed, 1.0 / 6.0))  # arcsin, but for a fifth power
    return graph.apply("Add", first, correction), sine, cosine


CROSSES: dict[type[Kernel], Builder] = {
    SquaredExponential: _squared_exponential,
    Periodic: _squared_exponential,
    Matern12: _matern,
    Matern32: _matern,
    Matern52: _matern,
    Linear: _linear,
    ArcCosine: _arc_cosine,
}
