"""Records on all cores of this machine: opened one after the other, ahead of the work, which threads do; every answer in its turn."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

import torch

T = TypeVar("T")
WAITING = 2  # records opened for each thread: enough to keep it and the disk busy, few enough to hold no dump's worth of rows


def run(opened: Callable[[int], Callable[[], T]], numbers: Sequence[int]) -> Generator[T, None, None]:
    """``opened(number)()`` of every number, in their order.

    Opening is done by the thread that asks, since readers are made for one; what it leaves to do, by as many threads as torch may use
    (``torch.set_num_threads``), each with its share of the cores for its own operations. What either raises passes through.
    """
    cores = torch.get_num_threads()
    threads = max(min(cores, len(numbers)), 1)
    pool = ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(cores // threads,))
    waiting: deque[Future[T]] = deque()
    try:
        for number in numbers:
            waiting.append(pool.submit(opened(number)))
            if len(waiting) == WAITING * threads:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)
        torch.set_num_threads(cores)  # what a thread sets for itself holds for threads to come as well
