"""What both estimators share, with scikit-learn's interface: fitting, certifying, adding rows, saving.

Data are standardised on the way in and predictions come back in the user's units; hyperparameters and bounds are those
of the standardised problem.
"""

from __future__ import annotations

import os
import time
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from numbers import Real
from typing import Any, Self

import numpy as np
import torch
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.validation import check_is_fitted

from nearexact import persistence
from nearexact.certificate import NEAR_EXACT, Certificate, Doubt, Estimate, Verdict, judge_estimate
from nearexact.certifying import certify, check_iterations
from nearexact.certifying_predictions import CertifiedPredictions, certify_predictions
from nearexact.evidence import CERTIFIED_GAP, Evidence
from nearexact.gp.bounds import LikelihoodBounds
from nearexact.gp.exact_training import ExactTraining
from nearexact.gp.iterative_posterior import IterativePosterior
from nearexact.gp.iterative_training import IterativeTraining
from nearexact.gp.more_rows import AllAdded
from nearexact.gp.posterior import ExactPosterior, SparsePosterior
from nearexact.gp.rounds import Round
from nearexact.gp.row_noise import noise_variances
from nearexact.gp.rows import LocalRows
from nearexact.gp.safety import DEFAULT_NUMERICS, LEAST_NOISE, Numerics
from nearexact.gp.schedule import check_max_inducing
from nearexact.gp.stages import Stage, TrainingEnd
from nearexact.gp.starts import Start
from nearexact.gp.training import Training
from nearexact.kernels import Kernel
from nearexact.kernels.parameter_bounds import checked_bounds
from nearexact.known_noise import KnownNoise
from nearexact.limits import parse_bytes, parse_seconds, written
from nearexact.model_verdict import verdict_on
from nearexact.noise_only import LEAST_VARIANCE
from nearexact.notebook import estimator_html
from nearexact.predictor import Predictor
from nearexact.problem import (
    Problem,
    check_targets_vary,
    device_named,
    is_dask_collection,
    target_checks,
)
from nearexact.progress import Display, ShownTime, progress_display
from nearexact.resuming import keep_state
from nearexact.scaling import Scaling
from nearexact.typing import FloatArray, MemoryLimit, NoiseBounds, TimeLimit
from nearexact.updating import update

SAME_ROWS = 1e-6  # standard deviations by which numbers may differ that were written to text and read again


class Regressor(Predictor):
    """What the sparse and the exact estimator share: data in, a model out."""

    kernel: Kernel | str | None
    time_limit: TimeLimit
    memory_limit: MemoryLimit
    max_inducing: int
    noise_bounds: NoiseBounds
    device: str
    random_state: Any
    progress: bool
    inducing_points_: FloatArray
    elbo_: float
    upper_bound_: float
    certificate_: Certificate
    history_: list[Stage]
    search_: list[Round]  # empty in a loaded model
    n_features_in_: int
    method_: str  # "cholesky", "iterative" or "sparse"
    metadata_: dict[str, Any]  # JSON-serialisable values that other layers keep with the model, under keys of their own
    _problem: Problem | None  # not in a loaded model
    _added: AllAdded = AllAdded()  # by updates
    # Limits that clones of one estimator have warned about, shared by all of them: a cross-validation warns once, not
    # once for each fold. None in an estimator that is no clone, which always warns.
    _warned: set[str] | None = None
    # What the display says about time, where the estimator's own limit is a share of one that the user has written.
    _shown_time: ShownTime | None = None

    def fit(
        self,
        X: Any,
        y: Any,
        *,
        noise_variance: Any = None,
        sample_weight: Any = None,
        start: Start | None = None,
        client: Any = None,
        resume: str | os.PathLike[str] | None = None,
    ) -> Self:
        """Fit to inputs X [N, D] and targets y [N]. Ctrl-C keeps the best model so far, and is then passed on.

        y may have several columns [N, T], targets that share all hyperparameters: their likelihoods add up.
        `noise_variance` [N] is noise that is known of each row, such as a squared standard error of measurement in the
        units of y, on top of the noise that is learnt. A row with `sample_weight` [N] of 2 has half the learnt noise;
        weights count relative to their mean, and a row of weight 0 is left out.

        `start` is a kernel with hyperparameters and a noise variance, on the standardised scale, that the search for
        hyperparameters tries too. It is of the same kind as `kernel`, whose own values are tried in any case.

        X and y may be Dask arrays or DataFrames, whose rows stay on the workers of the `client`, a distributed.Client
        (the default one if it is None). The fitted model is as any other; it does not hold the training data.

        `resume` is a file that gets the state of a sparse GP's training after each number of inducing points. Where it
        is there already, the fit goes on from it, as it would have without the break; data and parameters must be the
        same, limits may differ.
        """
        started = time.perf_counter()
        check_max_inducing(self.max_inducing)
        time_limit = parse_seconds(self.time_limit)
        memory_limit = None if self.memory_limit is None else parse_bytes(self.memory_limit)
        shown = self._shown_time or ShownTime(written(self.time_limit, " s"))
        with self._unchanged_by_errors(), progress_display(self.progress, shown) as display:
            with self._problem_of(X, y, noise_variance, sample_weight, client) as unstarted:
                problem = replace(unstarted, start=start)
                seconds = time_limit - (time.perf_counter() - started)
                training = self._training(problem, seconds, memory_limit, display)
                if resume is not None:
                    keep_state(self, training, problem, resume)
                self._run(training, problem)
            if not self.history_[-1].complete:
                display.stage(self.history_[-1], self.certificate_.verdict)
        self._warn_if_cut_short()
        return self

    def _training(
        self, problem: Problem, time_limit: float, memory_limit: int | None, display: Display
    ) -> Training | ExactTraining | IterativeTraining:
        raise TypeError(f"{type(self).__name__} must define _training")

    def certify(
        self,
        X: Any = None,
        y: Any = None,
        *,
        noise_variance: Any = None,
        sample_weight: Any = None,
        cg_iterations: int | None = None,
        time_limit: TimeLimit = None,
        client: Any = None,
    ) -> Certificate:
        """Proved bounds on the exact log marginal likelihood at the fitted hyperparameters, from the training data.

        The data are at hand after `fit`; after `nearexact.load` they have to be passed, with what `fit` was told about
        their noise. The bounds that came with the
        fit are tightened by conjugate gradients with the exact kernel matrix, then by moments of what the inducing
        points leave unexplained. An iteration takes time of order N², the moments as long as about M/10 of them. The
        iterations end when more would not help, or after `cg_iterations` (default 100; with 0, nothing of order N² is
        done); all of it ends at the `time_limit` (seconds or "5m"). The result is returned, and kept as `certificate_`
        if it is no looser, so that `save` keeps it.
        The verdict "converged" can only come from `fit`, which has seen other M.
        X and y may be Dask collections on the `client`, as in `fit`: then nothing of order N² is done unless
        `cg_iterations` are asked for, which workers do, and no moments are computed.
        """
        check_is_fitted(self, "_posterior")
        check_iterations(cg_iterations)
        parse_seconds(time_limit)
        if isinstance(self._posterior, ExactPosterior):
            self._training_data(X, y, noise_variance, sample_weight)  # checks what is passed
            return self.certificate_  # an exact GP needs no bounds
        if is_dask_collection(X):
            iterations = 0 if cg_iterations is None else cg_iterations
            scalings = self._scaling_X, self._scaling_y
            with self._rows_on(client, X, y, noise_variance, sample_weight, scalings) as (rows, *_):
                certificate = certify(self, self._checked_length(Problem(rows, *scalings)), iterations, time_limit)
        else:
            problem = self._training_data(X, y, noise_variance, sample_weight)
            certificate = certify(self, problem, cg_iterations, time_limit)
        if not certificate.upper - certificate.lower > self.certificate_.upper - self.certificate_.lower:
            self.certificate_ = certificate
        return certificate

    def certify_predictions(
        self,
        X: Any,
        *,
        time_limit: TimeLimit = None,
        X_train: Any = None,
        y_train: Any = None,
        noise_variance: Any = None,
        sample_weight: Any = None,
    ) -> CertifiedPredictions:
        """Mean and std of the function without noise at the rows of X, and how far the exact GP's can be from them.

        `mean, mean_error, std, std_lower, std_upper`, in the user's units: the exact GP with the same hyperparameters
        has a mean within `mean_error` of `mean`, and a standard deviation from `std_lower` to `std_upper`. That is
        proved, with rounding errors allowed for; `mean` and `std` are those of `predict(X, noise=False)`. The bounds
        are tightened, in time of order N² and more, until the exact mean is known to 0.1 % of the std of a new
        observation and the exact std to 1 %, until nothing is gained any more, or until the `time_limit` (seconds or
        "5m"). After `nearexact.load`, a sparse model needs its training data as `X_train` and `y_train`, with what
        `fit` was told about their noise.
        """
        inputs = self._new_inputs(X)
        return certify_predictions(self, inputs, (X_train, y_train, noise_variance, sample_weight), time_limit)

    def update(self, X: Any, y: Any, *, noise_variance: Any = None, sample_weight: Any = None) -> Self:
        """Add rows to the data of a fitted model, at the same hyperparameters and inducing points.

        Predictions and bounds are then those of a fit to all rows at these hyperparameters. Of a sparse GP the earlier
        rows are not needed, so that a loaded model can be updated too, in time of order M² for each new row. A warning
        says when the new rows call for other hyperparameters, or when there are more than twice as many rows as these
        were learnt from; `fit` learns them anew. Arguments are as in `fit`, but no Dask collections; inputs and targets
        are scaled as there.
        """
        check_is_fitted(self, "_posterior")
        if is_dask_collection(X) or is_dask_collection(y):
            raise ValueError("update is for arrays, not for Dask collections: fit again with all rows")
        with self._unchanged_by_errors(BaseException):  # Ctrl-C too
            update(self, self._more_data(X, y, noise_variance, sample_weight))
        return self

    @property
    def log_marginal_likelihood_(self) -> float:
        """The log marginal likelihood at the fitted hyperparameters, in nats, of the standardised data.

        Exact by Cholesky; by conjugate gradients the estimate, whose standard error is in `certificate_`; of a sparse
        GP the best proved lower bound on that of the exact GP, which `certify` raises. In the units of y it is lower by
        N times the logarithm of the standard deviation of y.
        """
        check_is_fitted(self, "_posterior")
        estimate = self.certificate_.known_estimate
        return self.certificate_.lower if estimate is None else estimate.value

    def __sklearn_clone__(self) -> Self:
        """A clone that gives no warning which another clone of the same estimator has given."""
        copy: Self = super().__sklearn_clone__()
        copy._warned = self._warned if self._warned is not None else self.__dict__.setdefault("_clones_warned", set())
        return copy

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the fitted estimator to one file, from which `nearexact.load` makes it again.

        Of a sparse GP the inducing points are in it, of an exact GP all rows.
        """
        check_is_fitted(self, "_posterior")
        persistence.save(self, path)

    def _repr_html_inner(self) -> str:
        """What notebooks show: scikit-learn's diagram, and before it what was learnt."""
        diagram: str = super()._repr_html_inner()
        return f"{estimator_html(self)}{diagram}" if hasattr(self, "certificate_") else diagram

    def _repr_mimebundle_(self, **options: Any) -> dict[str, str]:
        bundle: dict[str, str] = super()._repr_mimebundle_(**options)
        return {**bundle, "text/html": self._repr_html_inner()} if "text/html" in bundle else bundle

    # ---- inside ----------------------------------------------------------------------------------------------------

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags

    @contextmanager
    def _problem_of(self, X: Any, y: Any, noise_variance: Any, sample_weight: Any, client: Any) -> Iterator[Problem]:
        """Checked and standardised training data, on the device or on a cluster."""
        if not is_dask_collection(X):
            if client is not None or is_dask_collection(y):
                raise ValueError(f"a client, or a y on it, is for X that is a Dask collection, got {type(X).__name__}")
            yield self._prepare(X, y, noise_variance, sample_weight)
            return
        with self._rows_on(client, X, y, noise_variance, sample_weight) as (rows, scaling_X, scaling_y):
            check_targets_vary(np.atleast_1d(rows.squares) > 0.0)
            yield Problem(rows, scaling_X, scaling_y)

    @contextmanager
    def _rows_on(
        self,
        client: Any,
        X: Any,
        y: Any,
        noise_variance: Any,
        sample_weight: Any,
        scalings: tuple[Scaling, Scaling] | None = None,
    ) -> Iterator[Any]:
        """Standardised rows on a cluster, which forgets them afterwards, and their scalings."""
        from nearexact.cluster.blocks import standardised_rows  # here, since Dask is an extra

        if noise_variance is not None or sample_weight is not None:
            raise ValueError("noise_variance and sample_weight are for arrays, not for Dask collections")
        rows, *scalings_found = standardised_rows(self, X, y, client, scalings)
        try:
            yield rows, *scalings_found
        except ConnectionError as error:  # then there is nobody to forget anything
            if scalings is None:  # in a fit
                error.add_note("fit(…, resume=path) goes on from the last number of inducing points that was finished")
            raise
        except BaseException:
            rows.close()
            raise
        rows.close()

    def _prepare(self, X: Any, y: Any, noise_variance: Any, sample_weight: Any) -> Problem:
        """Checked and standardised training data on the device."""
        device = device_named(self.device)
        inputs, targets = self._validated(X, y, order="C", **target_checks(y), ensure_min_samples=2)
        targets = targets.astype(np.float64)
        noise = KnownNoise.of(noise_variance, sample_weight, targets)
        if noise is None:
            scaling_y = Scaling.of(targets)
        else:
            if len(noise.used) < 2:
                raise ValueError("sample_weight must be positive for at least 2 rows, got 1")
            inputs, targets = inputs[noise.used], targets[noise.used]
            scaling_y = noise.scaling(targets)
        problem = Problem.of(inputs, targets, Scaling.of(inputs), scaling_y, device, noise)
        check_targets_vary(np.atleast_1d(problem.y.any(0).cpu().numpy()))
        return problem

    def _numerics(self) -> Numerics:
        """Numerical constants, with the user's bounds on the noise variance."""
        if self.noise_bounds is None:
            return DEFAULT_NUMERICS
        is_number = isinstance(self.noise_bounds, Real) and not isinstance(self.noise_bounds, bool)
        ends = (self.noise_bounds, self.noise_bounds) if is_number else self.noise_bounds
        bounds = checked_bounds("noise_variance", ends, per_input=False)
        if isinstance(bounds, str):
            raise ValueError("noise_bounds must be (low, high), or a number to fix the noise variance at, got 'fixed'")
        if 0.0 < bounds[0] < LEAST_NOISE:
            raise ValueError(
                f"noise_bounds must be {LEAST_NOISE:g} or more, or 0 for no bound, got {float(bounds[0]):g}"
            )
        return replace(DEFAULT_NUMERICS, noise_bounds=(float(bounds[0]), float(bounds[1])))

    def _run(self, training: Training | ExactTraining | IterativeTraining, problem: Problem) -> None:
        """Train, and become the best model, also after Ctrl-C, which is then passed on."""
        pressed: KeyboardInterrupt | None = None
        try:
            training.run()
        except KeyboardInterrupt as interrupt:
            pressed = interrupt
        for last_try in (False, True):  # Ctrl-C may also come while the model is put together
            try:
                if pressed is not None:
                    traceback.clear_frames(pressed.__traceback__)  # they hold the buffers of what was under way
                    training.interrupted()
                self._adopt(training, problem)
                break
            except KeyboardInterrupt as interrupt:
                pressed = interrupt
                if last_try:
                    break
        if pressed is not None:
            raise pressed

    def _adopt(self, training: Training | ExactTraining | IterativeTraining, problem: Problem) -> None:
        posterior, (elbo, upper) = persistence.contiguous(training.posterior()), training.bounds()
        bounds, evidence = training.likelihood_bounds(), training.evidence()  # which may take its time
        self.__dict__.pop("certificate_", None)  # that of an earlier fit must never stay with this model
        self._posterior, self._problem = posterior, problem if problem.data.here else None
        self._scaling_X, self._scaling_y, self._weight_unit = problem.scaling_X, problem.scaling_y, problem.weight_unit
        self.history_ = training.history
        self.search_ = [] if training.search is None else training.search.rounds
        self.kernel_, self.noise_variance_ = posterior.kernel, posterior.noise_variance
        self.inducing_points_ = problem.scaling_X.undo(posterior.inducing_points.cpu().numpy())
        self.elbo_, self.upper_bound_ = elbo, upper
        self.method_ = persistence.method_of(posterior)
        from_training = training.estimate() if isinstance(training, IterativeTraining) else None
        estimate = None if from_training is None else Estimate(from_training.value, from_training.standard_error)
        verdict = self._verdict(bounds, problem.data.noise_only(LEAST_VARIANCE), evidence, estimate)
        self.certificate_ = Certificate.of(bounds, verdict, evidence, estimate=estimate)
        self._added = AllAdded()
        self.metadata_ = {}  # what was kept with an earlier fit belongs to other data

    def _training_data(self, X: Any, y: Any, noise_variance: Any = None, sample_weight: Any = None) -> Problem:
        """The data that the model was fitted to: those passed, or those it holds."""
        if (X is None) != (y is None):
            raise ValueError("X and y must be passed both or not at all, got one of them")
        posterior = self._posterior
        if X is not None:
            problem = self._checked_length(self._more_data(X, y, noise_variance, sample_weight))
            if not isinstance(posterior, SparsePosterior):
                self._check_rows(posterior, problem)
        elif not (noise_variance is None and sample_weight is None):
            raise ValueError(
                "noise_variance and sample_weight are for training data that are passed, too: pass X and y"
            )
        elif self._problem is not None:
            problem = self._problem
        elif not isinstance(posterior, SparsePosterior):  # it holds its rows
            rows = LocalRows(posterior.X, posterior.y, posterior.row_noise)
            problem = Problem(rows, self._scaling_X, self._scaling_y, weight_unit=self._weight_unit)
        else:
            raise ValueError("a loaded model, or one from a cluster, does not hold its training data: pass X and y")
        return self._checked_length(problem)

    def _checked_length(self, problem: Problem) -> Problem:
        if problem.data.n != self.certificate_.n:
            raise ValueError(f"the model was fitted to {self.certificate_.n} rows, got {problem.data.n} others")
        return problem

    def _more_data(self, X: Any, y: Any, noise_variance: Any, sample_weight: Any) -> Problem:
        """Data, standardised as those that the model was fitted to."""
        inputs, targets = self._new_inputs_and_targets(X, y)
        noise = KnownNoise.of(noise_variance, sample_weight, targets, self._weight_unit)
        if noise is not None:
            inputs, targets = inputs[noise.used], targets[noise.used]
        device = self._posterior.inducing_points.device
        return Problem.of(inputs, targets, self._scaling_X, self._scaling_y, device, noise)

    def _check_rows(self, posterior: ExactPosterior | IterativePosterior, problem: Problem) -> None:
        """Raise a ValueError if these are not the rows that an exact GP holds."""
        for given, held in ((problem.X, posterior.X), (problem.y, posterior.y)):
            if not torch.allclose(given.to(held.device), held, rtol=SAME_ROWS, atol=SAME_ROWS):
                raise ValueError("these are not the data that the model was fitted to: the rows differ")
        noise, held_noise = (
            torch.as_tensor(noise_variances(part.row_noise, self.noise_variance_), device=posterior.X.device)
            for part in (problem, posterior)
        )
        if not bool(((noise - held_noise).abs() <= SAME_ROWS * held_noise).all()):
            raise ValueError(
                "these are not the data that the model was fitted to, with their noise_variance and sample_weight:"
                " the noise of the rows differs"
            )

    def _warn_if_cut_short(self) -> None:
        ended, is_sparse = self.history_[-1].ended, isinstance(self._posterior, SparsePosterior)
        limits = {
            TrainingEnd.TIME_LIMIT: f"time_limit={self.time_limit!r}",
            TrainingEnd.MEMORY_LIMIT: "half of the free memory (memory_limit=None)"
            if self.memory_limit is None
            else f"memory_limit={self.memory_limit!r}",
            TrainingEnd.MAX_INDUCING: f"max_inducing={self.max_inducing}",
            TrainingEnd.MAX_ITERATIONS: "the largest number of iterations",
        }
        limit = next((words for end, words in limits.items() if end == ended), None)
        certificate = self.certificate_
        lacks_evidence = certificate.verdict == "not reached" and certificate.doubt is Doubt.STILL_RISING
        if limit is None and lacks_evidence and self.time_limit is not None:  # other starts had no time
            limit = limits[TrainingEnd.TIME_LIMIT]
        if limit is None or certificate.verdict in NEAR_EXACT or limit in (self._warned or ()):
            return
        if self._warned is not None:
            self._warned.add(limit)
        is_done_at_theta = ended == TrainingEnd.OPTIMUM_FOUND or (
            is_sparse and certificate.gap_per_point <= CERTIFIED_GAP
        )
        if lacks_evidence and is_done_at_theta:
            message = (
                f"{limit} ended the fit before it was clear that no other hyperparameters are better:"
                f" {certificate.about_theta}. Raise the limit to let it finish."
            )
        elif not is_sparse:
            message = (
                f"{limit} ended the fit before the optimiser had converged: the log marginal likelihood is"
                f" {self.elbo_:.6g} so far. Raise the limit to let it finish."
            )
        else:
            message = (
                f"{limit} ended the fit at {len(self.inducing_points_)} inducing points, before the model was near to"
                f" the exact GP. {certificate}. A gap of {CERTIFIED_GAP} would be certified. Raise the limit."
            )
        warnings.warn(message, ConvergenceWarning, stacklevel=3)

    @contextmanager
    def _unchanged_by_errors(self, errors: type[BaseException] = Exception) -> Iterator[None]:
        """A fit that fails leaves this object as it was."""
        before = self.__dict__.copy()
        try:
            yield
        except errors:
            self.__dict__ = before
            raise

    def _verdict(
        self,
        bounds: LikelihoodBounds,
        constant: float,
        evidence: Evidence | None,
        estimate: Estimate | None = None,
    ) -> Verdict:
        """The verdict on this model, next to the log likelihood of the constant predictor."""
        if isinstance(self._posterior, IterativePosterior) and estimate is not None:
            error = self._posterior.mean_error
            verdict = judge_estimate(estimate, constant, bounds.n, evidence, error)
            # Estimates of several rounds are no steps up in M, so that only the proved bounds can say more.
            if verdict != "not reached":
                return verdict
            return verdict_on(bounds, [], self.elbo_, constant, evidence, is_exact=False)
        is_exact = isinstance(self._posterior, ExactPosterior)
        return verdict_on(bounds, self.history_, self.elbo_, constant, evidence, is_exact)
