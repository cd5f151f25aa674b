"""KV cache slots: storing rows, and the bookkeeping of which token of which request lies in which slot.

Call sites in ``sglang/srt/mem_cache`` and ``sglang/kernels/ops/{speculative,kvcache}``; ``req_to_token`` is ``[requests, pool_len]``.
"""

import ctypes

from torch import Tensor


def store_cache_cpu(key: Tensor, value: Tensor, key_cache: Tensor, value_cache: Tensor, indices: Tensor, row_dim: int) -> None:
    """Write row ``i`` of ``key`` and ``value`` to slot ``indices[i]``; a row is ``row_dim`` numbers, all heads together."""
    key_cache.view(-1, row_dim)[indices] = key.reshape(-1, row_dim).to(key_cache.dtype)
    value_cache.view(-1, row_dim)[indices] = value.reshape(-1, row_dim).to(value_cache.dtype)


def assign_req_to_token_pool_cpu(
    req_pool_indices: Tensor, req_to_token: Tensor, start: Tensor, end: Tensor, out_cache_loc: Tensor, pool_len: int
) -> None:
    """Give request ``i`` the next ``end[i] - start[i]`` of the packed new slots, for its tokens ``start[i]..end[i]``."""
    taken = 0
    for row, first, last in zip(req_pool_indices.tolist(), start.tolist(), end.tolist(), strict=True):
        req_to_token[row, first:last] = out_cache_loc[taken : taken + last - first].to(req_to_token.dtype)
        taken += last - first


def assign_extend_cache_locs_cpu(
    req_pool_indices: Tensor, req_to_token: Tensor, start: Tensor, end: Tensor, out_cache_loc: Tensor, pool_len: int
) -> None:
    """The reverse: pack the slots of tokens ``start[i]..end[i]`` of every request into ``out_cache_loc``."""
    taken = 0
    for row, first, last in zip(req_pool_indices.tolist(), start.tolist(), end.tolist(), strict=True):
        out_cache_loc[taken : taken + last - first] = req_to_token[row, first:last].to(out_cache_loc.dtype)
        taken += last - first


def assign_draft_cache_locs_contiguous_cpu(
    req_pool_indices: Tensor, req_to_token: Tensor, seq_lens: Tensor, out_cache_loc: Tensor, pool_len: int, topk: int, num_steps: int
) -> None:
    """Pack the ``topk * num_steps`` slots that follow every request's committed tokens: the ones drafting writes to."""
    count = topk * num_steps
    for request, (row, length) in enumerate(zip(req_pool_indices.tolist(), seq_lens.tolist(), strict=True)):
        slots = req_to_token[row, length : length + count]
        out_cache_loc[request * count : (request + 1) * count] = slots.to(out_cache_loc.dtype)


def fill_accept_out_cache_loc_cpu(accept_index: Tensor, out_cache_loc: Tensor, accept_out_cache_loc: Tensor) -> None:
    """Pack the slots of the accepted tree nodes, in order; ``accept_index`` is -1 where nothing was accepted."""
    accepted = accept_index.flatten()
    accepted = accepted[accepted > -1].long()
    accept_out_cache_loc[: accepted.numel()] = out_cache_loc[accepted]


def copy_all_layer_kv_cache_cpu(data_ptrs: Tensor, strides: Tensor, target_loc: Tensor, source_loc: Tensor) -> None:
    """Move rows between slots in every layer's buffers, given by address and row length in bytes.

    All rows are read before the first is written, since the two lists of slots may overlap.
    """
    for address, stride in zip(data_ptrs.tolist(), strides.tolist(), strict=True):
        rows = [ctypes.string_at(address + stride * slot, stride) for slot in source_loc.tolist()]
        for slot, row in zip(target_loc.tolist(), rows, strict=True):
            ctypes.memmove(address + stride * slot, row, stride)
