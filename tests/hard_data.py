"""Data that are hard to fit: constant, duplicated, collinear, huge, tiny, noisy, noiseless."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

N = 40
Data = tuple[np.ndarray, np.ndarray]


def smooth(n: int = N, d: int = 3) -> Data:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, d))
    return X, np.sin(X[:, 0]) + 0.1 * rng.normal(size=n)


def constant_columns() -> Data:
    X, y = smooth()
    return np.column_stack([X, np.full(N, 3.7), np.zeros(N), np.full(N, 1e12)]), y


def nearly_constant_column() -> Data:
    X, y = smooth()
    return np.column_stack([X, 1e12 + 1e-4 * np.arange(N)]), y  # differences below the precision of the values


def constant_target() -> Data:
    return smooth()[0], np.full(N, -42.5)


def duplicated_rows() -> Data:
    X, y = smooth()
    return np.repeat(X, 3, axis=0), np.repeat(y, 3)


def duplicated_inputs() -> Data:
    X, _ = smooth()
    return np.repeat(X[:8], N // 8, axis=0), np.random.default_rng(1).normal(size=N)


def one_input_repeated() -> Data:
    return np.ones((N, 2)), np.random.default_rng(1).normal(size=N)


def collinear_columns() -> Data:
    X, y = smooth()
    return np.column_stack([X, X[:, 0], -2.0 * X[:, 0], X.sum(1)]), y


def more_columns_than_rows() -> Data:
    return smooth(n=20, d=60)


def one_column() -> Data:
    return smooth(d=1)


def tiny_target() -> Data:
    X, y = smooth()
    return X, 1e-8 * y


def huge_target() -> Data:
    X, y = smooth()
    return X, 1e8 * y + 1e10


def huge_columns() -> Data:
    X, y = smooth()
    return X * [1e12, 1e-12, 1.0] + [1e12, 0.0, 0.0], y


def enormous_numbers() -> Data:
    X, y = smooth()
    return X * 1e200, y * 1e200


def minute_numbers() -> Data:
    X, y = smooth()
    return X * 1e-200, y * 1e-200


def input_outlier() -> Data:
    X, y = smooth()
    X[7, 1] = 1e6
    return X, y


def target_outlier() -> Data:
    X, y = smooth()
    y[7] = -1e6
    return X, y


def mostly_zeros() -> Data:
    X, y = smooth()
    hidden = np.random.default_rng(2).uniform(size=X.shape) < 0.9
    return np.where(hidden, 0.0, X), np.where(hidden[:, 0], 0.0, y)


def integer_grid() -> Data:
    X = np.stack(np.meshgrid(np.arange(9), np.arange(9)), -1).reshape(-1, 2)
    return X, X[:, 0] * X[:, 1]


def pure_noise() -> Data:
    return smooth()[0], np.random.default_rng(3).normal(size=N)


def noiseless() -> Data:
    X, _ = smooth()
    return X, np.cos(X[:, 0]) + X[:, 1]


def two_rows() -> Data:
    return np.array([[0.0], [1.0]]), np.array([1.0, 2.0])


def binary_target() -> Data:
    X, y = smooth()
    return X, y > 0.0


HARD: list[Callable[[], Data]] = [
    constant_columns, nearly_constant_column, constant_target, duplicated_rows, duplicated_inputs, one_input_repeated,
    collinear_columns, more_columns_than_rows, one_column, tiny_target, huge_target, huge_columns, enormous_numbers,
    minute_numbers, input_outlier, target_outlier, mostly_zeros, integer_grid, pure_noise, noiseless, two_rows,
    binary_target,
]  # fmt: skip
