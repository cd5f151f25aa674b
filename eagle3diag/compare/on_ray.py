"""Tasks on a Ray cluster: each is done again when its worker or node dies, and every answer is taken exactly once."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from itertools import islice
from typing import Any, TypeVar

from eagle3diag.errors import BadArgument, MissingDependency, UnusableServer

T = TypeVar("T")
RETRIES = 8  # of one task, each time its worker or its node is lost; what the task itself raises is final
WAITING = 2  # tasks handed out for each core: enough to keep it busy, few enough to hold no dump's worth of rows


def run(do: Callable[[Any, Any], T], shared: Any, wanted: Iterator[tuple[int, Any]], address: str) -> Generator[tuple[int, T], None, None]:
    """``(number, do(shared, what))`` of every ``(number, what)``, as they become ready; ``wanted`` is gone through as workers take more.

    ``address``: ``auto`` for the cluster that this machine belongs to, or that of a head node (``ray://HOST:10001``, ``HOST:6379``); a
    connection that the process has already is used. eagle3diag must be installed on all nodes, in one version, and see the same paths.

    Raises
    ------
    MissingDependency: ray is not installed. UnusableServer: no cluster there, or it is lost for good. What ``do`` raises passes through.
    """
    ray = _connected(address)
    remote = ray.remote(num_cpus=1, max_retries=RETRIES)(_told)
    common = ray.put((do, shared))
    running: dict[Any, int] = {}
    try:
        while True:
            room = WAITING * max(int(ray.cluster_resources().get("CPU", 1)), 1) - len(running)
            for number, what in islice(wanted, max(room, 0)):
                running[remote.remote(common, what, _version())] = number
            if not running:
                return
            for ready in ray.wait(list(running), timeout=None)[0]:
                yield running.pop(ready), ray.get(ready)
    except ray.exceptions.RayTaskError as error:
        raise error.cause from None
    except ray.exceptions.RayError as error:
        raise UnusableServer(f"the work was lost: {str(error)[:300]}", where=address, hint="run it again with resume=") from error
    finally:
        for one in running:
            ray.cancel(one, force=True)


def _told(common: tuple[Callable[[Any, Any], T], Any], wanted: Any, version: str) -> T:
    if version != _version():
        raise BadArgument(f"a node has {_version()}, this process {version}", hint="install one version everywhere")
    do, shared = common
    return do(shared, wanted)


def _version() -> str:
    import torch

    from eagle3diag import __version__

    return f"eagle3diag {__version__} on torch {torch.__version__}"


def _connected(address: str) -> Any:
    try:
        import ray
    except ImportError:
        raise MissingDependency("working on a cluster needs ray", hint="pip install 'eagle3diag[ray]'") from None
    if not ray.is_initialized():
        try:
            ray.init(address=address, log_to_driver=False)
        except (ConnectionError, ValueError, RuntimeError) as error:
            raise UnusableServer(f"no Ray cluster there: {str(error)[:300]}", where=address, hint="ray start --head starts one") from error
    return ray
