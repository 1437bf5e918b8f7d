"""First values of θ: where training starts."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from scipy.special import expit

from nearexact.gp.parameters import ParameterLayout
from nearexact.kernels.base import Kernel
from nearexact.typing import FloatArray

START_NOISE = 0.01  # variance, on standardised targets
SMOOTH_NOISE = 0.1
ROUGH_NOISE = 0.001
SHORT, LONG = 0.15, 2.0  # lengthscales of a rough start, in standard deviations of an input, but for √D
RANDOM_NOISE = (-4.0, -0.3)  # log10 of the noise variances that random starts are drawn between
RANDOM_SPREAD = 1.0  # of the logarithm of a random start's parameters, input by input ...
COMMON_SPREAD = 0.5  # ... and in common: all of them shorter, or all of them longer

NO_INFLUENCE = 20.0  # lengthscale, in standard deviations of an input, from which on the input hardly matters
FINER, FINER_NOISE = 0.5, 0.1  # times lengthscales and noise variance, where finer details are looked for
UNRELATED = 3.0  # lengthscales between two values that have nothing to do with each other
SOME_INFLUENCE = 3.0  # lengthscale of an input that gets another chance, but for the root of their number

Start = tuple[Kernel, float]  # a kernel with hyperparameters, and a noise variance
Factor = Callable[[str, FloatArray], FloatArray | float]  # of a parameter's name and value

# The power of c by which each of these parameters is multiplied where inputs are divided by c. Others do not change.
INPUT_POWERS = {"lengthscales": 1.0, "weight_variances": -2.0, "variances": -2.0}
SCALES = ("variance", "bias_variance")  # parameters that do not depend on the scale of inputs, but on that of y


def unit_start(layout: ParameterLayout, noise_variance: float) -> FloatArray:
    """Lengthscales and variances of 1, whatever a kernel comes with; other parameters, such as periods, stay.

    What is tried around a kernel's own values finds nothing but what is near to them.
    """
    kernel = layout.kernel
    ones = {
        name: np.ones_like(value)
        for name, value in kernel.parameters.items()
        if name.rpartition(".")[2] in INPUT_POWERS or name.rpartition(".")[2] in SCALES
    }
    return layout.pack(kernel.with_parameters(ones), noise_variance)


def with_less_influence(layout: ParameterLayout, theta: FloatArray) -> FloatArray:
    """θ with the inputs divided by √D: distances grow like that, and with many inputs no two rows look similar."""
    factor = math.sqrt(layout.n_inputs)
    return _scaled(layout, theta, lambda name, value: factor ** INPUT_POWERS.get(name, 0.0))


def rough_start(
    layout: ParameterLayout,
    theta: FloatArray,
    inputs: Sequence[int],
    *,
    short: float = SHORT,
    noise: float = ROUGH_NOISE,
) -> FloatArray:
    """θ with short lengthscales for these inputs, long ones for the others, and little noise.

    A function with fast details in few inputs looks like a smooth one with noise from every other start.
    """
    factors = np.full(layout.n_inputs, LONG * math.sqrt(layout.n_inputs))
    factors[list(inputs)] = short * math.sqrt(len(inputs))
    changed = _scaled(layout, theta, lambda name, value: factors ** INPUT_POWERS[name] if name in INPUT_POWERS else 1.0)
    kernel, _ = layout.unpack(changed)
    return layout.pack(kernel, max(noise, layout.numerics.noise_floor))


def with_all_inputs(layout: ParameterLayout, theta: FloatArray) -> FloatArray | None:
    """θ with some influence for the inputs that have none; None if there are no such inputs, or if bounds forbid it.

    The likelihood is flat where a lengthscale is very long: an optimiser that has once switched an input off never
    switches it on again, even where that has become worth it.
    """
    kernel, noise_variance = layout.unpack(theta)
    changed: dict[str, FloatArray] = {}
    for name, value in kernel.parameters.items():
        power = INPUT_POWERS.get(name.rpartition(".")[2])
        if power is None or not value.ndim:
            continue
        lengthscales = value ** (1.0 / power)
        off = lengthscales > NO_INFLUENCE
        if off.any():
            shorter = np.minimum(lengthscales, SOME_INFLUENCE * math.sqrt(off.sum()))
            changed[name] = np.where(off, shorter, lengthscales) ** power
    revived = layout.pack(kernel.with_parameters(changed), noise_variance) if changed else theta
    return None if np.allclose(revived, theta) else revived


def with_related_values(layout: ParameterLayout, theta: FloatArray, gaps: FloatArray) -> FloatArray | None:
    """θ with longer lengthscales for inputs of which no two values have anything to do with each other; None if none.

    `gaps` are distances between neighbouring values of each input. The likelihood is flat there, too: an optimiser that
    has once taken an input for a mere name of groups does not see that near values mean similar groups.
    """
    kernel, noise_variance = layout.unpack(theta)
    changed: dict[str, FloatArray] = {}
    for name, value in kernel.parameters.items():
        if name.rpartition(".")[2] == "lengthscales" and value.ndim:
            changed[name] = np.where(UNRELATED * value < gaps, gaps, value)
    related = layout.pack(kernel.with_parameters(changed), noise_variance) if changed else theta
    return None if np.allclose(related, theta) else related


def with_finer_details(layout: ParameterLayout, theta: FloatArray) -> FloatArray | None:
    """θ with shorter lengthscales for the inputs that matter, and less noise; None if bounds leave nothing of that.

    More rows show finer details: what fewer rows took for noise may be some, and then θ of fewer rows leads elsewhere.
    """
    kernel, noise_variance = layout.unpack(theta)
    changed: dict[str, FloatArray] = {}
    for name, value in kernel.parameters.items():
        power = INPUT_POWERS.get(name.rpartition(".")[2])
        if power is not None:
            lengthscales = value ** (1.0 / power)
            finer_value = np.where(lengthscales < NO_INFLUENCE, FINER**power * value, value)
            changed[name] = np.maximum(finer_value, layout.numerics.floor)
    noise = max(FINER_NOISE * noise_variance, layout.numerics.noise_floor)
    finer = layout.pack(kernel.with_parameters(changed), noise)
    return None if np.allclose(finer, theta) else finer


def with_capped_lengthscales(layout: ParameterLayout, theta: FloatArray) -> FloatArray:
    """θ with lengthscales of at most the one from which on an input hardly matters."""
    kernel, noise_variance = layout.unpack(theta)
    capped: dict[str, FloatArray] = {}
    for name, value in kernel.parameters.items():
        power = INPUT_POWERS.get(name.rpartition(".")[2])
        if power is not None:
            capped[name] = np.minimum(value ** (1.0 / power), NO_INFLUENCE) ** power
    return layout.pack(kernel.with_parameters(capped), noise_variance)


def gain_by_switching_on(
    layout: ParameterLayout, theta: FloatArray, gradient: FloatArray, revived: FloatArray
) -> float:
    """What moving from θ to its revived form would gain, to first order in the squared inverse lengthscales.

    `gradient` is that of the function that is maximised, by θ. In these coordinates an input that is off is no flat
    place: the slope says whether switching it on helps.
    """
    gain = 0.0
    by_value = gradient / expit(theta)
    before, after = (layout.unpack(at)[0].parameters for at in (theta, revived))
    start = 0
    for name, value in before.items():
        power = INPUT_POWERS.get(name.rpartition(".")[2])
        slopes = by_value[start : start + value.size].reshape(value.shape)
        start += value.size
        if power is not None and value.ndim:
            exponent = -2.0 / power  # influence = value^exponent, that is 1/lengthscale²
            by_influence = slopes / (exponent * value ** (exponent - 1.0))
            change = after[name] ** exponent - value**exponent
            gain += float(np.maximum(by_influence * change, 0.0).sum())
    return gain


def random_start(layout: ParameterLayout, theta: FloatArray, random: np.random.Generator) -> FloatArray:
    """θ with every parameter multiplied at random, and with any noise variance."""
    common = COMMON_SPREAD * random.normal()

    def factor(name: str, value: FloatArray) -> FloatArray:
        power = INPUT_POWERS.get(name)
        spread = COMMON_SPREAD * random.normal(size=value.shape)
        return np.exp(spread if power is None else power * (common + RANDOM_SPREAD / COMMON_SPREAD * spread))

    kernel, _ = layout.unpack(_scaled(layout, theta, factor))
    return layout.pack(kernel, max(10.0 ** random.uniform(*RANDOM_NOISE), layout.numerics.floor))


def _scaled(layout: ParameterLayout, theta: FloatArray, factor: Factor) -> FloatArray:
    """θ with each of the kernel's parameters multiplied; parts of sums and products keep their names."""
    kernel, noise_variance = layout.unpack(theta)
    changed = {
        name: np.maximum(value * factor(name.rpartition(".")[2], value), layout.numerics.floor)
        for name, value in kernel.parameters.items()
    }
    return layout.pack(kernel.with_parameters(changed), noise_variance)
