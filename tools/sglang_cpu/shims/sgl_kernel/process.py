"""Host-side set-up of a server process; with one process there is nothing to bind and nobody to talk to."""

from torch import Tensor


def init_cpu_threads_env(cpu_ids: object) -> str:
    """Threads are left where the operating system puts them."""
    return "sgl_kernel stand-in: threads are not bound"


def initialize(size: int, rank: int) -> None:
    """Shared-memory collectives need no set-up for one process, and more are not supported."""
    if size != 1:
        raise NotImplementedError(f"the sgl_kernel stand-in runs in one process, not {size}")


def shm_allreduce(data: Tensor, operation: object) -> None:
    """The sum over one process: in place, so nothing to do."""


def shm_allgather(data: Tensor, dim: int) -> Tensor:
    """The rows of one process."""
    return data
