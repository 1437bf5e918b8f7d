"""What the certificate costs and what it proves: prints tables, and writes them to results/certificate.json.

    NEAREXACT_DATA=<folder> python benchmarks/certificate.py tight        # tight bound against the ELBO, seconds
    NEAREXACT_DATA=<folder> python benchmarks/certificate.py training     # the same over the steps of a training run
    NEAREXACT_DATA=<folder> python benchmarks/certificate.py iterations   # conjugate gradients: seconds and memory
    NEAREXACT_DATA=<folder> python benchmarks/certificate.py gaps         # simple bounds next to the certificate
    NEAREXACT_DATA=<folder> python benchmarks/certificate.py exact        # the certificate next to the exact likelihood

`--rows` takes only the first rows of each data set, `--inducing` limits the number of points, for a quick look.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable, Sequence

import numpy as np
import result_files
import torch
from data import training_set
from memory import peak_resident_mb
from timing import interleaved

from nearexact import SGPRegressor
from nearexact.gp import (
    Numerics,
    SparseObjective,
    conjugate_gradients,
    gpr_objective,
    greedy_variance,
    minimise,
    tighten_bounds,
)
from nearexact.gp.factorisation import Factorisation
from nearexact.gp.kernel_product import KernelProduct
from nearexact.gp.linalg import add_gram, solve_rows
from nearexact.gp.memory import chunk_rows, row_chunks
from nearexact.gp.optimise import LBFGSSettings
from nearexact.kernels import SquaredExponential
from nearexact.kernels.stationary import SquaredExponentialCross
from nearexact.typing import FloatArray

RESULTS = "certificate.json"
NOISE = 0.01  # with unit lengthscales and variance: where training starts
REPEATS = 5
ITERATIONS = 20
WAYS = {  # of the sweeps over the data: the shortcuts for a well conditioned K_ZZ, and what is left without them
    "shortcut": Numerics(),
    "one solve": Numerics(direct_condition=0.0),
    "two solves": Numerics(direct_condition=0.0, merge_condition=0.0),
}
Row = dict[str, object]


def problem(name: str, rows: int | None, m: int) -> tuple[FloatArray, FloatArray, FloatArray]:
    """X, y and greedily selected inducing points."""
    X, y = (values[:rows] for values in training_set(name))
    return X, y, X[greedy_variance(SquaredExponential(), X, m, seed=0)]


def tight(rows: int | None, m: int) -> list[Row]:
    """Value and gradient of the tight bound against the ELBO, for every way in which the ELBO is computed."""
    X, y, Z = problem("kin40k", rows, m)
    table: list[Row] = []
    for numerics in WAYS.values():
        objectives = {
            bound: SparseObjective(SquaredExponential(), NOISE, X, y, Z, bound=bound, numerics=numerics)
            for bound in ("elbo", "tight")
        }
        alternatives = {bound: evaluation(objective) for bound, objective in objectives.items()}
        seconds = interleaved({**alternatives, "least for tight": needed_products(len(X), m)}, REPEATS)
        used = way(objectives["elbo"], objectives["elbo"].theta0)
        ratios = {"ratio": seconds["tight"] / seconds["elbo"], "goal": 1.5}
        ratios["ratio of the least"] = seconds["least for tight"] / seconds["elbo"]
        table.append({"n": len(X), "m": m, "elbo computed by": used, **seconds, **ratios})
    return table


def way(objective: SparseObjective, theta: FloatArray) -> str:
    """How the ELBO is computed there."""
    f = objective.factorise(*objective.layout.unpack(theta))
    return "shortcut" if f.direct else "one solve" if f.merges else "two solves"


def needed_products(n: int, m: int) -> Callable[[], object]:
    """What the tight bound and its gradient need of [N, M] arrays, 6M²N operations, and nothing else.

    V = L⁻¹K_ZX for q(x, x) of single rows, VVᵀ for the value, then VΔVᵀ and L⁻ᵀ(Ḡ2 V + VΔ) for the gradient.
    """
    rows = min(n, chunk_rows(m))
    generator = torch.Generator().manual_seed(0)
    V = torch.rand(rows, m, dtype=torch.float64, generator=generator)
    L = torch.eye(m, dtype=torch.float64) + torch.rand(m, m, dtype=torch.float64, generator=generator).tril_(-1) / m
    G, product = torch.zeros(m, m, dtype=torch.float64), torch.empty_like(V)

    def run() -> None:
        for chunk in row_chunks(n, rows):
            part = slice(0, chunk.stop - chunk.start)
            torch.mm(V[part], L, out=product[part])
            solve_rows(L, product[part])
            solve_rows(L, product[part], transposed=True)
            add_gram(G, V[part])
            add_gram(G, V[part])

    return run


def training(name: str, rows: int | None, m: int) -> Row:
    """Seconds of both bounds at the same hyperparameters: those that L-BFGS asks for when it maximises the ELBO."""
    X, y, Z = problem(name, rows, m)
    objectives = {b: SparseObjective(SquaredExponential(), NOISE, X, y, Z, bound=b) for b in ("elbo", "tight")}
    asked: list[FloatArray] = []

    def remember(theta: FloatArray) -> tuple[float, FloatArray]:
        asked.append(theta.copy())
        return objectives["elbo"](theta)

    minimise(remember, objectives["elbo"].theta0, settings=LBFGSSettings(max_iterations=ITERATIONS))
    seconds, ways = dict.fromkeys(objectives, 0.0), dict.fromkeys(WAYS, 0)
    for theta in asked:
        alternatives = {bound: evaluation(objective, theta) for bound, objective in objectives.items()}
        for bound, best in interleaved(alternatives, 2).items():
            seconds[bound] += best
        ways[way(objectives["elbo"], theta)] += 1
    ratio = seconds["tight"] / seconds["elbo"]
    counts = {"dataset": name, "n": len(X), "m": len(Z), "evaluations": len(asked), **ways}
    return {**counts, **seconds, "ratio": ratio, "goal": 1.5}


def evaluation(objective: SparseObjective, theta: FloatArray | None = None) -> Callable[[], object]:
    return lambda: objective(objective.theta0 if theta is None else theta)


def bare(kernel: SquaredExponential, X: torch.Tensor, rows: int) -> Callable[[], object]:
    """The distance product and exp for one half of the kernel matrix, in the same blocks: no iteration does less."""
    blocks = KernelProduct(kernel, NOISE, X, rows).blocks()

    def run() -> None:
        for j in range(len(blocks.features)):
            cross = blocks.against(j)
            assert isinstance(cross, SquaredExponentialCross)
            for features_X in blocks.features[: j + 1]:
                out = blocks.buffers[len(blocks.features[j])][: len(features_X)]
                torch.mm(features_X, cross.distances.factor, out=out).exp_()

    return run


def iterations(rows: int | None, m: int) -> list[Row]:
    """Seconds of an iteration, memory of all of them; best of several, with the bare product taking turns."""
    X, y, Z = problem("kin40k", rows, m)
    kernel = SquaredExponential([1.0] * X.shape[1])
    objective = SparseObjective(kernel, NOISE, X, y, Z, memory_limit="2GB")
    f = objective.factorise(kernel, NOISE, residuals=True)
    setup = peak_resident_mb()
    each: list[float] = []
    started = time.perf_counter()
    for step in conjugate_gradients(objective, f, tolerance=0.0):
        each.append(time.perf_counter() - started)
        if step.number == ITERATIONS:
            break
        started = time.perf_counter()
    peak = peak_resident_mb()
    blocks = KernelProduct(kernel, NOISE, objective.X)
    v = torch.ones(len(X), dtype=torch.float64)
    alternatives = {"bare": bare(kernel, objective.X, blocks.rows), "product": lambda: blocks(v)}
    seconds = interleaved(alternatives, REPEATS)
    whole = time.perf_counter()
    result = tighten_bounds(objective, f)
    whole = time.perf_counter() - whole
    return [
        {
            "n": len(X),
            "m": m,
            "block rows": blocks.rows,
            "iterations": len(each),
            "seconds each": float(np.median(each)),
            "fastest": min(each),
            "product alone": seconds["product"],
            "bare distances and exp": seconds["bare"],
            "ratio": min(each) / seconds["bare"],
            "goal": 1.5,
            "peak memory MB": peak,
            "before the iterations MB": setup,
            "whole certificate, seconds": whole,
            "of which iterations": result.iterations,
            "peak memory of it MB": peak_resident_mb(),
        }
    ]


def fitted(name: str, rows: int | None, m: int, time_limit: str) -> tuple[SGPRegressor, FloatArray, FloatArray]:
    X, y = (values[:rows] for values in training_set(name))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = SGPRegressor(random_state=0, max_inducing=m, time_limit=time_limit).fit(X, y)
    return model, X, y


def gaps_of(model: SGPRegressor, X: FloatArray, y: FloatArray) -> Row:
    """Gap per point by one bound after the other: what each adds."""
    objective, f = factorised(model, X, y)
    n = len(y)
    simple = (f.upper_bound - f.elbo) / n
    cheap = model.certificate_.gap_per_point
    by_gradients = f.bounds
    for step in conjugate_gradients(objective, f):
        by_gradients = step.bounds
    certificate = model.certify()
    return {
        "n": n,
        "m": len(model.inducing_points_),
        "ended": model.history_[-1].ended,
        "fit seconds": model.history_[-1].elapsed,
        "gap ELBO to Titsias 2014": simple,
        "gap with the tight bound": cheap,
        "gap with conjugate gradients": (by_gradients.upper - by_gradients.lower) / n,
        "gap of the certificate": certificate.gap_per_point,
        "dominated by": certificate.dominated_by,
        "KL bound": certificate.kl_bound,
        "iterations": certificate.iterations,
        "seconds": certificate.seconds,
        "verdict": certificate.verdict,
        "lower": certificate.lower,
        "upper": certificate.upper,
    }


def factorised(model: SGPRegressor, X: FloatArray, y: FloatArray) -> tuple[SparseObjective, Factorisation]:
    """The model at its hyperparameters, on the scale that it was fitted on."""
    inputs, targets = (X - X.mean(0)) / np.where(X.std(0) > 0.0, X.std(0), 1.0), (y - y.mean()) / y.std()
    Z = torch.as_tensor(model._posterior.inducing_points)
    objective = SparseObjective(model.kernel_, model.noise_variance_, inputs, targets, Z)
    return objective, objective.factorise(model.kernel_, model.noise_variance_, residuals=True)


def gaps(names: Sequence[str], rows: int | None, m: int, time_limit: str) -> list[Row]:
    return [{"dataset": name, **gaps_of(*fitted(name, rows, m, time_limit))} for name in names]


def exact(names: Sequence[str], rows: int | None, m: int, time_limit: str) -> list[Row]:
    """The same, and the exact log marginal likelihood at the same hyperparameters."""
    table: list[Row] = []
    for name in names:
        model, X, y = fitted(name, rows, m, time_limit)
        row = gaps_of(model, X, y)
        objective, _ = factorised(model, X, y)
        full = gpr_objective(model.kernel_, model.noise_variance_, objective.X, objective.y)
        lml = full.factorise(model.kernel_, model.noise_variance_).lml
        certificate = model.certificate_
        inside = certificate.lower <= lml <= certificate.upper
        distances = {"below, per point": (lml - certificate.lower) / len(y)}
        distances["above, per point"] = (certificate.upper - lml) / len(y)
        table.append({"dataset": name, **row, "exact": lml, "inside": inside, **distances})
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=["tight", "training", "iterations", "gaps", "exact"])
    parser.add_argument("--rows", type=int, help="of the data, all by default")
    parser.add_argument("--inducing", type=int, help="points: 1000 by default, at most 2000 for gaps and exact")
    parser.add_argument(
        "--datasets",
        nargs="+",
        help="for gaps (elevators skillcraft naval), exact (kin8nm) and training (kin40k elevators)",
    )
    parser.add_argument("--time-limit", default="10m", help="of each fit, for gaps and exact")
    arguments = parser.parse_args()
    rows, m, names = arguments.rows, arguments.inducing, arguments.datasets
    parts: dict[str, Callable[[], list[Row]]] = {
        "tight": lambda: tight(rows, m or 1000),
        "training": lambda: [training(name, rows, m or 1000) for name in names or ["kin40k", "elevators"]],
        "iterations": lambda: iterations(rows, m or 1000),
        "gaps": lambda: gaps(names or ["elevators", "skillcraft", "naval"], rows, m or 2000, arguments.time_limit),
        "exact": lambda: exact(names or ["kin8nm"], rows, m or 2000, arguments.time_limit),
    }
    table = parts[arguments.part]()
    for row in table:
        print("\n".join(f"{name:32} {value:.6g}" if isinstance(value, float) else f"{name:32} {value}"
                        for name, value in row.items()), end="\n\n", flush=True)  # fmt: skip
    if rows is None:  # a quick look is no result
        kept = result_files.earlier(RESULTS) or {}
        kept[arguments.part] = {"threads": torch.get_num_threads(), "rows": table}
        result_files.write(RESULTS, kept)


if __name__ == "__main__":
    main()
