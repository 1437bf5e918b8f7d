"""Is there a simpler form of the kernel that explains more than chance would?

Fitted to noise, every hyperparameter gains about a nat, so a likelihood must be higher than noise alone by more than
their number. But where inputs are many and rows are few, no function could pay for a lengthscale of each input, however
clear it is. What shows that there is a function is then a form of the same kernel that has few parameters to pay for:
one lengthscale for all inputs, or only those inputs that matter, with the price of choosing them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np
from scipy.special import gammaln

from nearexact.gp.exact import ExactObjective
from nearexact.gp.optimise import LBFGSSettings, minimise
from nearexact.gp.parameters import LogCoordinates
from nearexact.gp.row_noise import noise_only
from nearexact.gp.safety import NumericalError
from nearexact.gp.starts import INPUT_POWERS, NO_INFLUENCE, SMOOTH_NOISE, unit_start, with_less_influence
from nearexact.noise_only import explains_nothing
from nearexact.typing import FloatArray

SETTINGS = LBFGSSettings(max_iterations=30, ftol=1e-5)
SWITCHED_OFF = 1e6  # a lengthscale, in standard deviations of an input


class SimplerForm(NamedTuple):
    """A likelihood, and how many parameters it must pay for."""

    likelihood: float
    price: float

    def beats(self, noise: float, n: int) -> bool:
        """Whether it explains n rows better than noise alone, and by more than chance."""
        return not explains_nothing(self.likelihood, noise, n, self.price)


def with_one_lengthscale(objective: ExactObjective) -> SimplerForm:
    """The highest likelihood with a common factor for each of the kernel's parameters that has a value for each input.

    It starts from a smooth θ.
    """
    layout = objective.layout
    smooth = LogCoordinates.from_theta(with_less_influence(layout, unit_start(layout, SMOOTH_NOISE)))
    in_logs, sizes = LogCoordinates.objective(objective), [value.size for value in layout.kernel.parameters.values()]
    groups = [*sizes, 1]  # how many entries of θ belong together; the last one is the noise
    firsts = np.cumsum([0, *sizes])

    def shared(factors: FloatArray) -> tuple[float, FloatArray]:
        value, gradient = in_logs(smooth + np.repeat(factors, groups))
        return value, np.add.reduceat(gradient, firsts)

    optimum = minimise(shared, np.zeros(len(groups)), settings=SETTINGS)
    return SimplerForm(-optimum.value, len(sizes))


def with_inputs_that_matter(objective: ExactObjective, theta: FloatArray) -> SimplerForm:
    """The likelihood at θ without the inputs that hardly matter there.

    The others must pay for their parameters, and for being the best of all choices of as many.
    """
    kernel, noise_variance = objective.layout.unpack(theta)
    changed: dict[str, FloatArray] = {}
    price = 0.0
    for name, value in kernel.parameters.items():
        power = INPUT_POWERS.get(name.rpartition(".")[2])
        if power is None or not value.ndim:
            price += value.size
            continue
        matters = value ** (1.0 / power) < NO_INFLUENCE
        off = max(SWITCHED_OFF**power, objective.layout.numerics.floor)
        changed[name] = np.where(matters, value, off)
        count = int(matters.sum())
        price += count + gammaln(value.size + 1) - gammaln(count + 1) - gammaln(value.size - count + 1)
    model = objective.factorise(kernel.with_parameters(changed), noise_variance)
    return SimplerForm(model.lml, price)


def least_price(objective: ExactObjective, theta: FloatArray) -> float:
    """How many parameters a likelihood must pay for: those of the cheapest form that explains more than chance would.

    As many as the kernel has if there is no such form. `theta` is the best that is known.
    """
    n, noise, price = len(objective.y), noise_only(objective.y, objective.row_noise), objective.layout.kernel.size
    forms = partial(with_inputs_that_matter, objective, theta), partial(with_one_lengthscale, objective)
    return min([float(price), *(form.price for form in map(_computed, forms) if form.beats(noise, n))])


def _computed(find: Callable[[], SimplerForm]) -> SimplerForm:
    """A form, or one that explains nothing if it cannot be computed."""
    try:
        return find()
    except NumericalError:
        return SimplerForm(-math.inf, math.inf)
