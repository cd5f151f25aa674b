"""Loads the stand-in kernels before SGLang in every process that has this folder on its path (Python imports this file at start).

SGLang asks once, while it is imported, whether the CPU has AMX tiles, and offers multi-step drafting on CPU only if so. The plain-torch
kernels need no AMX, so :mod:`sgl_kernel` answers yes; but it has to be there first, in the server's child processes too.
"""

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder


class _KernelsFirst(MetaPathFinder):
    def find_spec(self, name: str, path: Sequence[str] | None, target: object = None) -> None:
        if name == "sglang":
            sys.meta_path.remove(self)
            import sgl_kernel  # noqa: F401  (imported for what it sets)


sys.meta_path.insert(0, _KernelsFirst())
