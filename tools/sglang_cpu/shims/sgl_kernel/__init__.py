"""A stand-in for the CPU build of ``sgl_kernel``, which no package registry has: the operations a dense Llama and an EAGLE-3 draft need.

Written from the call sites in the ``sglang==0.5.23`` wheel and from the Triton twins of the same operations there. Plain torch, one loop
per request, float32 inside: for being right on small models, not for being quick.

SGLang reaches some operations by import and the others through ``torch.ops.sgl_kernel``; both lead to the same functions here. Its model
files look many more up when they are imported: those are found there too, and fail by name when they are called.
"""

from collections.abc import Callable
from typing import NoReturn

import torch

from sgl_kernel.attention import build_draft_decode_metadata_cpu, decode_attention_cpu, extend_attention_cpu
from sgl_kernel.cache import (
    assign_draft_cache_locs_contiguous_cpu,
    assign_extend_cache_locs_cpu,
    assign_req_to_token_pool_cpu,
    copy_all_layer_kv_cache_cpu,
    fill_accept_out_cache_loc_cpu,
    store_cache_cpu,
)
from sgl_kernel.layers import (
    convert_weight_packed,
    fused_add_rmsnorm_cpu,
    rmsnorm_cpu,
    rotary_embedding_cpu,
    silu_and_mul_cpu,
    weight_packed_linear,
)
from sgl_kernel.process import init_cpu_threads_env, initialize, shm_allgather, shm_allreduce
from sgl_kernel.tree import build_tree_kernel_efficient_cpu, fill_bonus_tokens_cpu, rotate_input_ids_cpu, verify_tree_greedy_cpu

__version__ = "0.0.0+torch"
__all__ = [
    "assign_draft_cache_locs_contiguous_cpu",
    "assign_extend_cache_locs_cpu",
    "assign_req_to_token_pool_cpu",
    "build_draft_decode_metadata_cpu",
    "build_tree_kernel_efficient_cpu",
    "convert_weight_packed",
    "copy_all_layer_kv_cache_cpu",
    "decode_attention_cpu",
    "extend_attention_cpu",
    "fill_accept_out_cache_loc_cpu",
    "fill_bonus_tokens_cpu",
    "fused_add_rmsnorm_cpu",
    "init_cpu_threads_env",
    "initialize",
    "rmsnorm_cpu",
    "rotary_embedding_cpu",
    "rotate_input_ids_cpu",
    "shm_allgather",
    "shm_allreduce",
    "silu_and_mul_cpu",
    "store_cache_cpu",
    "verify_tree_greedy_cpu",
    "weight_packed_linear",
]

# SGLang picks its "intel_amx" attention backend, the only one on CPU with multi-step drafting, only where the CPU has AMX tiles. These
# functions need none, so they stand in for the tiles as well.
torch.cpu._is_amx_tile_supported = lambda: True

# Names that SGLang only asks about, to choose a path: "no" sends it to its plain-torch one.
_PROBED = {"fused_qk_norm_cpu", "fused_qk_norm_rope_cpu"}
# Names without the suffix are probed, all but this one, which the vision models take when they are imported.
_TAKEN = {"flash_attn_varlen_func"}


class _Operations:
    """What ``torch.ops.sgl_kernel`` is replaced by."""

    def __init__(self) -> None:
        self.__dict__.update({name: globals()[name] for name in __all__})

    def __getattr__(self, name: str) -> Callable[..., NoReturn]:
        if name in _PROBED or not (name.endswith("_cpu") or name in _TAKEN):
            raise AttributeError(name)

        def absent(*args: object, **options: object) -> NoReturn:
            raise NotImplementedError(f"the sgl_kernel stand-in has no {name}")

        return absent


# An instance attribute on torch.ops hides the dispatcher's own, empty, namespace of this name.
torch.ops.sgl_kernel = _Operations()
