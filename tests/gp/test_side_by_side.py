"""Tests of calls that compute at the same time."""

import threading
from collections.abc import Iterator

import pytest
import torch

from nearexact.gp.side_by_side import side_by_side


@pytest.fixture(autouse=True)
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def unexpected() -> None:
    raise AssertionError("nothing was to be stopped")


def test_results_come_in_order_and_each_has_one_thread() -> None:
    meeting = threading.Barrier(2, timeout=30.0)  # passed only by two that are under way at once

    def call(number: int) -> tuple[int, int]:
        meeting.wait()
        return number, torch.get_num_threads()

    calls = [lambda number=number: call(number) for number in range(4)]
    assert side_by_side(calls, unexpected, at_most=2) == [(number, 1) for number in range(4)]
    assert torch.get_num_threads() == 2


def test_no_more_are_under_way_than_may_be() -> None:
    under_way, most = [0], [0]

    def call() -> None:
        under_way[0] += 1
        most[0] = max(most[0], under_way[0])
        torch.linalg.inv(torch.eye(300))
        under_way[0] -= 1

    side_by_side([call] * 6, unexpected, at_most=1)
    assert most == [1]


def test_threads_that_come_later_have_as_many_of_their_own_as_before() -> None:
    side_by_side([lambda: None] * 3, unexpected, at_most=2)
    found: list[int] = []
    thread = threading.Thread(target=lambda: found.append(torch.get_num_threads()))
    thread.start()
    thread.join()
    assert found == [2]


def test_an_exception_stops_the_others_and_is_raised() -> None:
    stopped, begun = threading.Event(), []

    def fails() -> None:
        raise ZeroDivisionError

    def waits() -> None:
        begun.append(1)
        assert stopped.wait(timeout=30.0)

    for calls in ([fails, waits, waits, waits], [waits, fails, waits, waits]):
        stopped.clear()
        begun.clear()
        with pytest.raises(ZeroDivisionError):
            side_by_side(calls, stopped.set, at_most=2)
        assert len(begun) <= 2  # what was not begun is not begun any more


def test_the_mode_of_the_caller_is_that_of_the_calls() -> None:
    with torch.inference_mode():
        assert side_by_side([torch.is_inference_mode_enabled] * 3, unexpected, at_most=2) == [True] * 3
    assert side_by_side([torch.is_inference_mode_enabled] * 3, unexpected, at_most=2) == [False] * 3
