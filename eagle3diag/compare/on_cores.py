"""Records on all cores of this machine: opened one after the other, ahead of the work, which threads do; every answer in its turn."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

T = TypeVar("T")
WAITING = 2  # records opened for each thread: enough to keep it and the disk busy, few enough to hold no dump's worth of rows
MOST = 16  # threads: each holds Python's lock for 1 of the 22 us that an operation on a chunk takes; more cores work inside the operations


def run(opened: Callable[[int], Callable[[], T]], numbers: Sequence[int]) -> Generator[T, None, None]:
    """``opened(number)()`` of every number, in their order.

    Opening is done by the thread that asks, since readers are made for one; what it leaves to do, by as many threads as torch may use
    (``torch.set_num_threads``), each with its share of the cores for its own operations. What either raises passes through.
    """
    cores = torch.get_num_threads()
    threads = min(cores, len(numbers), MOST)
    if threads < 2:
        yield from _in_turn(opened, numbers, lambda rest: rest, WAITING)
        return
    pool = ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(cores // threads,))
    try:
        yield from _in_turn(opened, numbers, lambda rest: pool.submit(rest).result, WAITING * threads)
    finally:
        pool.shutdown(cancel_futures=True)
        torch.set_num_threads(cores)  # what a thread sets for itself holds for threads to come as well


def _in_turn(
    opened: Callable[[int], Callable[[], T]], numbers: Sequence[int], begin: Callable[[Callable[[], T]], Callable[[], T]], most: int
) -> Generator[T, None, None]:
    """Every answer, while at most so many records are open."""
    waiting: deque[Callable[[], T]] = deque()
    for number in numbers:
        waiting.append(begin(opened(number)))
        if len(waiting) == most:
            yield waiting.popleft()()
    while waiting:
        yield waiting.popleft()()
