"""The speculative token tree: building it, verifying it, and the token bookkeeping around it.

From the Triton twins in ``sglang/kernels/ops/speculative`` (``spec_tree.py``, ``eagle.py``, ``multi_layer_eagle.py``).
A tree has ``n`` nodes per request; node 0 is the last committed token, nodes 1.. are the selected candidates in ascending order.
"""

import torch
from torch import Tensor

FULL_MASK, QLEN_ONLY = 0, 1


def build_tree_kernel_efficient_cpu(
    parent_list: Tensor,
    selected_index: Tensor,
    seq_lens: Tensor,
    tree_mask: Tensor,
    positions: Tensor,
    retrieve_index: Tensor,
    retrieve_next_token: Tensor,
    retrieve_next_sibling: Tensor,
    topk: int,
    depth: int,
    draft_token_num: int,
    tree_mask_mode: int,
) -> None:
    """Fill, in place: who sees whom (``tree_mask``), each node's ``positions`` and the links first child / next sibling (-1: none).

    ``selected_index [batch, n - 1]`` names the chosen candidates; candidate ``s`` hangs below ``parent_list[s // topk]``, group 0 below
    the root. ``tree_mask`` is flat, per request ``[n, n]`` (``QLEN_ONLY``) or ``[n, length + n]`` (``FULL_MASK``, prefix columns preset).
    """
    if tree_mask_mode not in (FULL_MASK, QLEN_ONLY):
        raise NotImplementedError("the sgl_kernel stand-in has no bit-packed tree mask")
    n, mask_offset = draft_token_num, 0
    flat_mask, positions = tree_mask.view(-1), positions.view(-1, n)
    for request in range(parent_list.shape[0]):
        length = int(seq_lens[request])
        parents = _parents(parent_list[request].tolist(), selected_index[request].tolist()[: n - 1], topk)
        retrieve_index[request] = torch.arange(request * n, (request + 1) * n)
        for node in range(n - 1, 0, -1):  # downwards, so that the first child ends up being the lowest node
            parent = parents[node]
            if retrieve_next_token[request, parent] != -1:
                retrieve_next_sibling[request, node] = retrieve_next_token[request, parent]
            retrieve_next_token[request, parent] = node
        width = n if tree_mask_mode == QLEN_ONLY else length + n
        rows = flat_mask[mask_offset : mask_offset + n * width].view(n, width)[:, width - n :]
        mask_offset += n * width
        rows.fill_(False)
        for node in range(n):
            path = _path(parents, node)
            rows[node, path] = True
            positions[request, node] = length + len(path) - 1


def _parents(parent_list: list[int], selected: list[int], topk: int) -> list[int]:
    """Parent node of every node; the root is its own."""
    groups = [candidate // topk for candidate in selected]
    return [0] + [0 if group == 0 else selected.index(parent_list[group]) + 1 for group in groups]


def _path(parents: list[int], node: int) -> list[int]:
    """From ``node`` up to the root, both included."""
    path = [node]
    while path[-1] != 0:
        path.append(parents[path[-1]])
    return path


def verify_tree_greedy_cpu(
    predicts: Tensor,
    accept_index: Tensor,
    accept_token_num: Tensor,
    candidates: Tensor,
    retrive_index: Tensor,
    retrive_next_token: Tensor,
    retrive_next_sibling: Tensor,
    target_predict: Tensor,
) -> None:
    """Walk down from the root while a child is the token the target itself would say; fill the first three in place.

    ``accept_index [batch, depth + 1]``: flat node numbers of the accepted path, root first, the rest untouched; ``accept_token_num``:
    accepted drafts; ``predicts``: at every accepted node the target's next token (the last one is the bonus token).
    """
    said = target_predict.flatten()
    for request in range(candidates.shape[0]):
        node, here, accepted = 0, int(retrive_index[request, 0]), 0
        accept_index[request, 0] = here
        while accepted + 1 < accept_index.shape[1]:
            node = int(retrive_next_token[request, node])
            while node != -1 and int(candidates[request, node]) != int(said[here]):
                node = int(retrive_next_sibling[request, node])
            if node == -1:
                break
            predicts[here] = said[here].to(predicts.dtype)
            here, accepted = int(retrive_index[request, node]), accepted + 1
            accept_index[request, accepted] = here
        predicts[here] = said[here].to(predicts.dtype)
        accept_token_num[request] = accepted


def fill_bonus_tokens_cpu(accept_tokens: Tensor, accept_lens: Tensor, bonus_tokens: Tensor, stride: int) -> None:
    """Each request's last accepted token; ``accept_tokens`` is flat with ``stride`` places per request."""
    last = torch.arange(accept_lens.numel()) * stride + accept_lens.long() - 1
    bonus_tokens.copy_(accept_tokens.flatten()[last])


def rotate_input_ids_cpu(
    input_ids: Tensor, start_loc: Tensor, seq_lens: Tensor, new_tokens: Tensor, select_index: Tensor | None = None
) -> None:
    """Shift each request's ids left by one, in place, and put its new token last (or at ``select_index``)."""
    for request, (start, length) in enumerate(zip(start_loc.tolist(), seq_lens.tolist(), strict=True)):
        if length > 0:
            input_ids[start : start + length - 1] = input_ids[start + 1 : start + length].clone()
            last = start + length - 1 if select_index is None else int(select_index[request])
            input_ids[last] = new_tokens.flatten()[request]
