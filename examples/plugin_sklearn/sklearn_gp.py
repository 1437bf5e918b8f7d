"""scikit-learn's GP as a method: nearexact bench check examples/plugin_sklearn/sklearn_gp.py:SklearnGP"""

import numpy as np
import numpy.typing as npt
from scipy.optimize import minimize
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel

from nearexact.bench.protocol import Report, Task

FloatArray = npt.NDArray[np.float64]


class SklearnGP:
    """Maximum likelihood by L-BFGS, with scikit-learn's likelihood and predictions."""

    name = "sklearn-gp"

    def run(self, task: Task, report: Report) -> None:
        kernel = ConstantKernel() * RBF(np.ones(task.X_train.shape[1])) + WhiteKernel(0.1, (1e-5, 1e5))
        model = GaussianProcessRegressor(kernel, optimizer=None).fit(task.X_train, task.y_train)

        def objective(theta: FloatArray) -> tuple[float, FloatArray]:
            value, gradient = model.log_marginal_likelihood(theta, eval_gradient=True)
            return -value, -gradient

        def show(theta: FloatArray, milestone: bool = False) -> None:
            fitted = GaussianProcessRegressor(kernel.clone_with_theta(theta), optimizer=None)

            def predict(X: FloatArray) -> tuple[FloatArray, FloatArray]:
                if not hasattr(fitted, "X_train_"):
                    fitted.fit(task.X_train, task.y_train)
                mean, std = fitted.predict(X, return_std=True)
                return mean, std**2  # of an observation: the noise is part of the kernel

            report(predict, elbo=lambda: model.log_marginal_likelihood(theta), milestone=milestone)

        optimum = minimize(objective, kernel.theta, jac=True, bounds=kernel.bounds, callback=show)
        show(optimum.x, milestone=True)
