"""Work shared by processes."""

import os
import signal
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection

import pytest

from megalith.data.workers import WorkerDied, map_in_processes


def _double(number: int) -> int:
    return 2 * number


def _fail_at_three(number: int) -> int:
    if number == 3:
        raise ValueError("three")
    return number


def _die(number: int) -> int:
    os.kill(os.getpid(), signal.SIGKILL)
    return number


def _die_within_the_answer(number: int) -> bytes:
    def send_half(self: Connection, message: bytes) -> None:
        os.write(self.fileno(), message[: len(message) // 2])
        os.kill(os.getpid(), signal.SIGKILL)

    Connection._send = send_half  # type: ignore[attr-defined]
    return bytes(1000)


def test_results_keep_the_order_of_the_items() -> None:
    assert list(map_in_processes(_double, iter(range(50)), 3)) == [(i, 2 * i) for i in range(50)]


def test_items_are_read_only_a_little_ahead() -> None:
    read = []

    def items() -> Iterator[int]:
        for number in range(100):
            read.append(number)
            yield number

    results = map_in_processes(_double, items(), 2)
    for taken in range(20):
        assert next(results) == (taken, 2 * taken)
        assert len(read) <= taken + 10
    results.close()  # type: ignore[attr-defined]


def test_an_error_of_the_work_is_raised_in_its_place() -> None:
    results = map_in_processes(_fail_at_three, iter(range(10)), 2)
    assert [next(results)[1] for _ in range(3)] == [0, 1, 2]
    with pytest.raises(ValueError, match="three") as caught:
        next(results)
    assert "_fail_at_three" in caught.value.__notes__[0]


@pytest.mark.parametrize("work", [_die, _die_within_the_answer])
def test_a_killed_process_is_told(work: Callable[[int], object]) -> None:
    with pytest.raises(WorkerDied):
        list(map_in_processes(work, iter(range(3)), 2))
