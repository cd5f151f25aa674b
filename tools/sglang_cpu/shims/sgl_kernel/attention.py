"""Attention over the paged KV cache; call sites in ``sglang/srt/layers/attention/intel_amx_backend.py``."""

import torch
from torch import Tensor


def extend_attention_cpu(
    query: Tensor,
    key: Tensor | None,
    value: Tensor | None,
    output: Tensor,
    key_buffer: Tensor,
    value_buffer: Tensor,
    key_scale: float,
    value_scale: float,
    req_to_token: Tensor,
    req_pool_indices: Tensor,
    seq_lens: Tensor,
    extend_seq_lens: Tensor,
    extend_start_loc: Tensor,
    max_extend_len: int,
    scaling: float,
    logit_cap: float,
    is_cross_attention: bool,
    sliding_window: int,
    encoder_lens: Tensor | None,
    sinks: Tensor | None,
    tree_mask: Tensor | None,
    is_causal: bool,
) -> None:
    """Prefill, target verify and draft extend: request ``i`` adds its last ``extend_seq_lens[i]`` tokens.

    ``query``, ``output`` ``[tokens, heads, head_dim]``; the buffers ``[slots, kv_heads, head_dim]``. The caller has stored ``key`` and
    ``value`` already, so everything is read from the buffers. ``tree_mask`` is flat: ``[n, n]`` bools per request, which tree node sees
    which; what came before the tree is seen by all nodes.
    """
    _require_plain(is_cross_attention, sinks, key_scale, value_scale)
    mask_offset = 0
    for request, row in enumerate(req_pool_indices.tolist()):
        total, new, start = int(seq_lens[request]), int(extend_seq_lens[request]), int(extend_start_loc[request])
        slots = req_to_token[row, :total].long()
        own, seen = torch.arange(total - new, total)[:, None], torch.arange(total)[None, :]
        visible = seen <= own if is_causal else torch.ones(new, total, dtype=torch.bool)
        if sliding_window > 0:
            visible = visible & (seen > own - sliding_window)
        if tree_mask is not None:
            tree = tree_mask.flatten()[mask_offset : mask_offset + new * new].view(new, new)
            mask_offset += new * new
            visible = torch.cat([torch.ones(new, total - new, dtype=torch.bool), tree.bool()], dim=1)
        here = slice(start, start + new)
        output[here] = _attend(query[here], key_buffer[slots], value_buffer[slots], visible, scaling, logit_cap).to(output.dtype)


def decode_attention_cpu(
    query: Tensor,
    key_buffer: Tensor,
    value_buffer: Tensor,
    key_scale: float,
    value_scale: float,
    output: Tensor,
    key: Tensor | None,
    value: Tensor | None,
    cache_loc: Tensor,
    attn_logits: Tensor,
    req_to_token: Tensor,
    req_pool_indices: Tensor,
    seq_lens: Tensor,
    scaling: float,
    logit_cap: float,
    is_cross_attention: bool,
    sliding_window: int,
    encoder_lens: Tensor | None,
    sinks: Tensor | None,
) -> None:
    """One new token per row: store its key and value at ``cache_loc``, then attend to the row's ``seq_lens`` tokens, itself included.

    ``attn_logits`` is scratch space of the real kernel and stays unused.
    """
    _require_plain(is_cross_attention, sinks, key_scale, value_scale)
    if key is not None and value is not None:
        key_buffer[cache_loc] = key.reshape(-1, *key_buffer.shape[1:]).to(key_buffer.dtype)
        value_buffer[cache_loc] = value.reshape(-1, *value_buffer.shape[1:]).to(value_buffer.dtype)
    for request, row in enumerate(req_pool_indices.tolist()):
        total = int(seq_lens[request])
        first = max(0, total - sliding_window) if sliding_window > 0 else 0
        slots = req_to_token[row, first:total].long()
        here = slice(request, request + 1)
        output[here] = _attend(query[here], key_buffer[slots], value_buffer[slots], None, scaling, logit_cap).to(output.dtype)


def build_draft_decode_metadata_cpu(
    req_to_token: Tensor, req_pool_indices: Tensor, seq_lens: Tensor, topk: int, num_steps: int, pool_len: int
) -> Tensor:
    """One slot table row per (request, branch) ``[batch * topk, pool_len]``: the committed prefix, then the branch's own draft slots.

    As ``generate_draft_decode_kv_indices`` with pages of one token: branch ``t`` owns the ``num_steps`` slots from
    ``seq_lens + t * num_steps`` on, whichever branch its parent came from.
    """
    table = torch.zeros(req_pool_indices.numel() * topk, pool_len, dtype=req_to_token.dtype)
    for request, row in enumerate(req_pool_indices.tolist()):
        length, slots = int(seq_lens[request]), req_to_token[row]
        for branch in range(topk):
            own = length + branch * num_steps
            target = table[request * topk + branch]
            target[:length] = slots[:length]
            target[length : length + num_steps] = slots[own : own + num_steps]
    return table


def _attend(query: Tensor, key: Tensor, value: Tensor, visible: Tensor | None, scaling: float, logit_cap: float) -> Tensor:
    """Grouped-query attention in float32: ``query [n, heads, d]``, ``key``/``value [m, kv_heads, d]``, ``visible [n, m]``."""
    group = query.shape[1] // key.shape[1]
    q = query.float().transpose(0, 1)
    k = key.float().transpose(0, 1).repeat_interleave(group, dim=0)
    v = value.float().transpose(0, 1).repeat_interleave(group, dim=0)
    scores = q @ k.transpose(1, 2) * scaling
    if logit_cap > 0:
        scores = logit_cap * torch.tanh(scores / logit_cap)
    if visible is not None:
        scores = scores.masked_fill(~visible, float("-inf"))
    return (scores.softmax(dim=-1) @ v).transpose(0, 1)


def _require_plain(is_cross_attention: bool, sinks: Tensor | None, key_scale: float, value_scale: float) -> None:
    if is_cross_attention or sinks is not None or key_scale != 1.0 or value_scale != 1.0:
        raise NotImplementedError("the sgl_kernel stand-in has no cross attention, attention sinks or scaled KV cache")
