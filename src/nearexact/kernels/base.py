"""What every kernel can do: be evaluated, differentiated, printed, added and multiplied.

A kernel is an immutable value: named positive parameters, and the mathematics that uses them, as a `formula` that torch
differentiates or as a hand-written `Form` that is faster. The interface for users (`__call__`, `diag`, `parameters`)
takes NumPy arrays or tensors and returns the kind that came in. The interface for the models in `nearexact.gp` works on
float64 tensors: `features` is what can be computed from the inputs before the parameters are known, once for a data
set, and `against` is k(·, z) for fixed z, prepared once for a sweep over the data.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from nearexact.kernels.autodiff import FormulaForm, matrix, row_by_row
from nearexact.kernels.form import Cross, Form, Tensors, add_to, quadratic_features, with_diagonal
from nearexact.kernels.parameter_bounds import Bounds, CheckedBounds, checked_bounds, interval, same_bounds
from nearexact.kernels.random_features import Features
from nearexact.typing import FloatArray
from nearexact.validation import as_matrix

if TYPE_CHECKING:
    from nearexact.kernels.composite import Composite

__all__ = ["Cross", "Form", "Kernel", "Tensors", "add_to", "as_kernel", "with_diagonal"]

Array = TypeVar("Array", Tensor, npt.NDArray[Any])


class Kernel:
    """A positive semi-definite function k(x, z) of two rows of inputs.

    A kernel is a frozen dataclass with its parameters as fields and a `formula`; docs/kernels.md has an example. Every
    parameter may have one value per input (a scalar is broadcast over the inputs) except those listed in `shared`.
    """

    shared: ClassVar[frozenset[str]] = frozenset({"variance", "bias_variance"})
    settings: ClassVar[tuple[str, ...]] = ()  # fields that are not parameters, such as an order
    # Whether k(x, z) depends on x − z alone: then inputs are measured from a centre, so that an offset costs no digits.
    stationary: ClassVar[bool] = False
    _bounds: Mapping[str, CheckedBounds] = {}  # never changed: `with_bounds` makes another

    def __init_subclass__(cls) -> None:
        # Kernels are compared, hashed and printed by the methods below; a dataclass would make its own, which cannot
        # compare arrays, unless the class itself has them.
        for name in ("__eq__", "__hash__", "__repr__"):
            setattr(cls, name, getattr(cls, name))

    def __post_init__(self) -> None:
        for name in self._parameter_names():
            value = _positive(name, getattr(self, name), per_input=name not in self.shared)
            object.__setattr__(self, name, value)  # since the dataclass is frozen

    def formula(self, p: Tensors, X: Tensor, Z: Tensor) -> Tensor:
        """K [N, M] between the rows of X [N, D] and Z [M, D], by torch operations that can be differentiated.

        `p` has the parameters by name, as tensors of shape [], or [D] where there is one value per input.
        """
        raise TypeError(f"{type(self).__name__} must define formula(self, p, X, Z)")

    # ---- for users -------------------------------------------------------------------------------------------------

    def __call__(self, X: Array, Z: Array | None = None) -> Array:
        """Kernel matrix [N, M] between the rows of X [N, D] and Z [M, D]; Z is X if it is left out."""
        rows = as_matrix(X, "X")
        kernel = self.for_inputs(rows.shape[1])
        if Z is None:
            return _like(kernel.gram(kernel.features(rows, rows.mean(0))), X)
        columns = as_matrix(Z, "Z", rows.device, columns=rows.shape[1])
        centre = columns.mean(0)
        return _like(kernel.cross(kernel.features(rows, centre), kernel.features(columns, centre)), X)

    def diag(self, X: Array) -> Array:
        """The values k(x, x) for each row of X, [N], without forming the matrix."""
        rows = as_matrix(X, "X")
        kernel = self.for_inputs(rows.shape[1])
        return _like(kernel.diagonal(kernel.features(rows, rows.mean(0))), X)

    @property
    def parameters(self) -> dict[str, FloatArray]:
        """Parameter values by name, in a fixed order: arrays of shape [] or, where there is one per input, [D]."""
        return {name: getattr(self, name) for name in self._parameter_names()}

    @property
    def size(self) -> int:
        """How many numbers training may change."""
        return sum(int((low < high).sum()) for low, high in self.intervals().values())

    def with_parameters(self, values: Mapping[str, npt.ArrayLike]) -> Self:
        """The same kernel with some parameters changed."""
        self._check_names(values)
        return type(self)(**{**self._setting_values(), **self.parameters, **values})._bounded(self._bounds)

    @property
    def bounds(self) -> dict[str, CheckedBounds]:
        """Bounds by parameter name, of those parameters that have any."""
        return dict(self._bounds)

    def with_bounds(self, **bounds: Bounds | None) -> Self:
        """The same kernel with bounds that training keeps: `kernel.with_bounds(variance="fixed", period=(0.5, 2.0))`.

        A parameter that is fixed keeps its value. (low, high) are numbers, or one per input where the parameter has one
        value per input; a value outside starts at the nearer one. None takes bounds away. They are on the scale of the
        parameters, which in estimators is that of standardised data.
        """
        self._check_names(bounds)
        changed = dict(self._bounds)
        for name, given in bounds.items():
            if given is None:
                changed.pop(name, None)
            else:
                changed[name] = checked_bounds(name, given, per_input=name not in self.shared)
        return self.with_parameters({})._bounded(changed)

    def intervals(self) -> dict[str, tuple[FloatArray, FloatArray]]:
        """The least and the largest value of each parameter in training, in the shape of the parameter."""
        bounds = self.bounds
        return {name: interval(name, value, bounds.get(name)) for name, value in self.parameters.items()}

    def is_like(self, other: Kernel) -> bool:
        """Whether both differ at most in the values of their parameters and in bounds on these."""
        return type(other) is type(self) and self._setting_values() == other._setting_values()

    def for_inputs(self, n_inputs: int) -> Self:
        """The same kernel with one value per input for each parameter that can have one."""
        per_input = {name: value for name, value in self.parameters.items() if name not in self.shared}
        for name, value in per_input.items():
            if value.ndim == 1 and len(value) != n_inputs:
                raise ValueError(f"{name} has {len(value)} values, but the inputs have {n_inputs} columns")
        if all(value.ndim == 1 for value in per_input.values()):
            return self
        return self.with_parameters({name: np.broadcast_to(value, n_inputs) for name, value in per_input.items()})

    def __add__(self, other: Kernel) -> Composite:
        return self._combined("+", other)

    def __mul__(self, other: Kernel) -> Composite:
        return self._combined("*", other)

    def __repr__(self) -> str:
        settings = [f"{name}={value}" for name, value in self._setting_values().items()]
        values = [f"{name}={_readable(value)}" for name, value in self.parameters.items()]
        bounds = [f"{name}={_readable_bounds(value)}" for name, value in self._bounds.items()]
        return f"{type(self).__name__}({', '.join(settings + values)})" + (
            f".with_bounds({', '.join(bounds)})" if bounds else ""
        )

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Kernel) or type(other) is not type(self):
            return NotImplemented
        same_values = all(np.array_equal(value, other.parameters[name]) for name, value in self.parameters.items())
        return self.is_like(other) and same_values and same_bounds(self._bounds, other._bounds)

    def __deepcopy__(self, _: dict[int, Any]) -> Self:
        return self  # kernels are immutable

    def __hash__(self) -> int:
        return hash((type(self), *(value.tobytes() for value in self.parameters.values())))

    # ---- for the models: float64 tensors, parameters already one per input -----------------------------------------

    def features(self, X: Tensor, centre: Tensor) -> Tensor:
        """What can be computed from each row of X [N, D] without the parameters: [N, F].

        Rows between which the kernel is evaluated need features with the same centre.
        """
        return quadratic_features(self.measured(X, centre))

    def measured(self, X: Tensor, centre: Tensor) -> Tensor:
        """Rows X as the kernel sees them: one that depends on differences alone measures from the centre."""
        return X - centre if self.stationary else X

    @property
    def temporaries(self) -> int:
        """How many [N, M] arrays its values and gradients make besides their arguments, at most at once."""
        return self._form().temporaries

    def against(self, B: Tensor) -> Cross:
        """k(·, z) for the rows z with features B [M, F]."""
        return self._form().against(self._tensors(B), B)

    def cross(self, A: Tensor, B: Tensor, out: Tensor | None = None) -> Tensor:
        """K [N, M] between rows with features A and B, written into `out` if given."""
        return self.against(B).values(A, out)

    def gram(self, A: Tensor, out: Tensor | None = None) -> Tensor:
        """K [N, N] of rows with themselves, its diagonal free of the rounding noise that `cross` leaves there."""
        return with_diagonal(self.cross(A, A, out), self.diagonal(A))

    def cross_vjp(
        self, A: Tensor, B: Tensor, K_bar: Tensor, scratch: Tensor | None = None, *, holds_values: bool = False
    ) -> Tensors:
        """Σ_nm K_bar[n, m] ∂k(x_n, z_m)/∂p by parameter name. May overwrite K_bar and `scratch`, both [N, M].

        `holds_values` says that `scratch` is what `cross` returned, which may save computing it again.
        """
        cross = self.against(B)
        cross.add_adjoint(A, K_bar, scratch, holds_values=holds_values)
        return cross.gradients()

    def diagonal(self, A: Tensor) -> Tensor:
        """The values k(x_n, x_n), [N]."""
        return self._form().diagonal(self._tensors(A), A)

    def diagonal_vjp(self, A: Tensor, weights: Tensor) -> Tensors:
        """Σ_n weights[n] ∂k(x_n, x_n)/∂p by parameter name."""
        return self._form().diagonal_vjp(self._tensors(A), A, weights)

    def differentiable(self, X: Tensor, Z: Tensor) -> Tensor:
        """K [N, M] between rows X and Z, by operations that torch differentiates by both; slower than `cross`."""
        centre = Z.mean(0)
        return matrix(self.formula, self._tensors(X), self.measured(X, centre), self.measured(Z, centre))

    def differentiable_diagonal(self, X: Tensor) -> Tensor:
        """The values k(x_n, x_n), [N], by operations that torch differentiates by X."""
        p, inputs = self._tensors(X), self.measured(X, X.detach().mean(0))
        if self.stationary:  # then they are the same for all x
            return matrix(self.formula, p, inputs[:1].detach(), inputs[:1].detach())[0].expand(len(X))
        return row_by_row(self.formula, p, inputs)

    def random_features(self, count: int, random: np.random.Generator, like: Tensor) -> Features | None:
        """So many draws of features for float64 rows on the device of `like`; None where it is not known how."""
        return None

    def _form(self) -> Form:
        """The mathematics. Kernels with gradients written by hand return a form of their own, besides their formula."""
        return FormulaForm(self.formula, self.stationary)

    # ---- inside ----------------------------------------------------------------------------------------------------

    def _combined(self, operation: Literal["+", "*"], other: Kernel) -> Composite:
        # Sums and products are kernels, so that their module imports this one: it can be imported here only on use.
        from nearexact.kernels.composite import Composite

        return Composite(operation, (self, other)) if isinstance(other, Kernel) else NotImplemented

    def _bounded(self, bounds: Mapping[str, CheckedBounds]) -> Self:
        """This kernel, which was made just now, with these bounds."""
        object.__setattr__(self, "_bounds", bounds)  # since the dataclass is frozen
        return self

    def _tensors(self, like: Tensor) -> Tensors:
        return {name: torch.tensor(value, device=like.device) for name, value in self.parameters.items()}

    @classmethod
    @cache
    def _parameter_names(cls) -> tuple[str, ...]:
        names = (field.name for field in fields(cls))  # type: ignore[arg-type]  # every kernel is a dataclass
        return tuple(name for name in names if name not in cls.settings)

    def _setting_values(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.settings}

    def _check_names(self, values: Iterable[str]) -> None:
        unknown = sorted(set(values) - set(self.parameters))
        if unknown:
            raise ValueError(f"this kernel has the parameters {list(self.parameters)}, got {unknown}")


def _positive(name: str, value: npt.ArrayLike, *, per_input: bool) -> FloatArray:
    """A checked, read-only copy of a parameter's value."""
    try:
        array = np.array(value.detach().cpu() if isinstance(value, Tensor) else value, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name} must be numeric, got {value!r}") from error
    if array.size == 0 or array.ndim > (1 if per_input else 0):
        expected = "a number or one number per input" if per_input else "one number"
        raise ValueError(f"{name} must be {expected}, got shape {array.shape}")
    if not (np.isfinite(array).all() and (array > 0).all()):
        raise ValueError(f"{name} must be positive and finite, got {_readable(array)}")
    array.flags.writeable = False
    return array


def _readable(value: FloatArray) -> str:
    return f"{value:.4g}" if value.ndim == 0 else f"[{', '.join(f'{number:.4g}' for number in value)}]"


def _readable_bounds(bounds: CheckedBounds) -> str:
    return repr(bounds) if isinstance(bounds, str) else f"({_readable(bounds[0])}, {_readable(bounds[1])})"


def _like(result: Tensor, given: Array) -> Array:
    return result if isinstance(given, Tensor) else result.numpy()


def as_kernel(kernel: Kernel, n_inputs: int) -> Kernel:
    """The kernel with its parameters one per input."""
    if not isinstance(kernel, Kernel):
        raise ValueError(f"kernel must be a kernel such as SquaredExponential(), got {kernel!r}")
    return kernel.for_inputs(n_inputs)
