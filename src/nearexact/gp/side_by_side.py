"""Computations that do not need each other, at the same time.

Where rows are few, all cores together compute hardly faster than one of them: they wait for each other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from typing import TypeVar

import torch

from nearexact.gp.threads import numpy_on_one_thread

T = TypeVar("T")
POLL = 0.5  # seconds: a thread that waits without end is not reached by Ctrl-C on every system


def side_by_side(calls: Sequence[Callable[[], T]], stop: Callable[[], None] = lambda: None, *, at_most: int) -> list[T]:
    """What these calls return, each computed on one of torch's threads; one after the other where there is only one.

    `at_most` so many are under way at once. An exception, or Ctrl-C, calls `stop`, which is to let those under way end
    soon if they take long, and is raised after that.
    """
    threads = torch.get_num_threads()
    abreast = min(len(calls), threads, at_most)
    if abreast < 2:
        return [call() for call in calls]
    mode = torch.is_inference_mode_enabled()  # each thread has its own

    def in_mode(call: Callable[[], T]) -> T:
        with torch.inference_mode(mode):
            return call()

    try:
        with numpy_on_one_thread(), _pool(abreast) as pool:
            futures = [pool.submit(in_mode, call) for call in calls]
            try:
                return _results(futures)
            except BaseException:
                stop()
                pool.shutdown(wait=False, cancel_futures=True)
                raise
    finally:
        torch.set_num_threads(threads)  # the pool's threads have set what is the default for others


def _results(futures: list[Future[T]]) -> list[T]:
    """Of all of them, or the first exception."""
    waiting = set(futures)
    while waiting:
        done, waiting = wait(waiting, timeout=POLL, return_when=FIRST_EXCEPTION)
        for future in done:
            future.result()
    return [future.result() for future in futures]


def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, "nearexact", torch.set_num_threads, (1,))
