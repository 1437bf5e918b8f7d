"""SGPR value and gradient against GPflow, which runs in an environment of its own: `make bench-gpflow`.

The GPflow process evaluates whenever it is sent a line, so that the two still take turns.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
from pathlib import Path

import numpy as np
from core import NOISE, Row, points, ratio_row
from data import training_set
from timing import interleaved

from nearexact.gp import sgpr_objective
from nearexact.kernels import SquaredExponential

SERVER = """
import sys
import gpflow, numpy as np, tensorflow as tf
gpflow.config.set_default_float(np.float64)
data = np.load(sys.argv[1])
kernel = gpflow.kernels.SquaredExponential(lengthscales=np.ones(data["X"].shape[1]))
model = gpflow.models.SGPR((data["X"], data["y"][:, None]), kernel, data["Z"], noise_variance=float(data["noise"]))
gpflow.set_trainable(model.inducing_variable, False)
loss = model.training_loss_closure(compile=True)

@tf.function
def evaluate():
    with tf.GradientTape(watch_accessed_variables=False) as tape:
        tape.watch(model.trainable_variables)
        value = loss()
    return value, tape.gradient(value, model.trainable_variables)

for _ in sys.stdin:
    value, gradient = evaluate()
    print(float(value), flush=True)
"""


def against_gpflow(python: Path, repeats: int) -> Row:
    X, y = training_set("kin40k")
    Z = points(X, 1000)
    ours = sgpr_objective(SquaredExponential(), NOISE, X, y, Z)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "problem.npz"
        np.savez(path, X=X, y=y, Z=Z, noise=NOISE)
        command = [str(python), "-c", SERVER, str(path)]
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        ) as gpflow:
            assert gpflow.stdin is not None
            assert gpflow.stdout is not None
            stdin, stdout = gpflow.stdin, gpflow.stdout

            def theirs() -> float:
                stdin.write("evaluate\n")
                stdin.flush()
                return float(stdout.readline())

            difference = abs(theirs() / ours(ours.theta0)[0] - 1.0)
            if difference > 1e-3:  # they use a larger jitter
                raise SystemExit(f"the two objectives differ by a relative {difference:.1e}")
            seconds = interleaved({"nearexact": lambda: ours(ours.theta0), "gpflow": theirs}, repeats)
            stdin.close()
    return ratio_row("SGPR value+gradient, kin40k, M=1000, against GPflow", seconds, "gpflow", 6.0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gpflow-python", type=Path, required=True, help="interpreter of an environment with GPflow")
    parser.add_argument("--output", type=Path, help="where to write the row as JSON")
    arguments = parser.parse_args()
    row = against_gpflow(arguments.gpflow_python, 4)
    print(f"| {row.what} | {row.measured} | {row.goal}{'' if row.reached else ' (MISSED)'} |")
    if arguments.output:
        arguments.output.parent.mkdir(parents=True, exist_ok=True)
        arguments.output.write_text(json.dumps(row.__dict__, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
