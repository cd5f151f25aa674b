"""The stand-in kernels of tools/sglang_cpu, each against an independent reference."""

from __future__ import annotations

import importlib
import itertools
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

SHIMS = Path(__file__).resolve().parents[2] / "tools/sglang_cpu/shims"


@pytest.fixture(scope="module")
def kernels() -> Iterator[ModuleType]:
    """The package, imported and taken out again: it sets attributes of torch."""
    tiles = torch.cpu._is_amx_tile_supported
    sys.path.insert(0, str(SHIMS))
    try:
        yield importlib.import_module("sgl_kernel")
    finally:
        sys.path.remove(str(SHIMS))
        torch.cpu._is_amx_tile_supported = tiles
        del torch.ops.sgl_kernel
        for name in [n for n in sys.modules if n.partition(".")[0] == "sgl_kernel"]:
            del sys.modules[name]


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


# --- layers -------------------------------------------------------------------------------------------------------------------------


def test_norms_agree_with_torch(kernels: ModuleType) -> None:
    """The plain one returns, the fused one adds in place and norms the sum."""
    x, residual, weight = torch.randn(5, 64), torch.randn(5, 64), torch.randn(64)
    torch.testing.assert_close(kernels.rmsnorm_cpu(x, weight, 1e-5), F.rms_norm(x, (64,), weight, 1e-5))
    expected_residual = x + residual
    kernels.fused_add_rmsnorm_cpu(x, residual, weight, 1e-5)
    torch.testing.assert_close(residual, expected_residual)
    torch.testing.assert_close(x, F.rms_norm(expected_residual, (64,), weight, 1e-5))


def test_activation_and_linear_agree_with_torch(kernels: ModuleType) -> None:
    """The gate comes first; a packed weight gives the same product as the weight."""
    x, weight, bias = torch.randn(3, 8), torch.randn(6, 8), torch.randn(6)
    torch.testing.assert_close(kernels.silu_and_mul_cpu(x), F.silu(x[:, :4]) * x[:, 4:])
    packed = kernels.convert_weight_packed(weight)
    torch.testing.assert_close(kernels.weight_packed_linear(x, packed, bias, True), x @ weight.T + bias)


@pytest.mark.parametrize("neox", [True, False])
def test_rotation_is_a_complex_product(kernels: ModuleType, neox: bool) -> None:
    """Each channel pair, read as a complex number, is turned by its angle; channels past the rotated ones stay."""
    positions, heads, size, turning = torch.tensor([0, 3, 7]), 2, 12, 8
    angles = torch.outer(torch.arange(10.0), 100.0 ** (-torch.arange(turning // 2) / (turning // 2)))
    cache = torch.cat([angles.cos(), angles.sin()], dim=-1)
    query, key = torch.randn(3, heads * size), torch.randn(3, size)

    def reference(x: Tensor) -> Tensor:
        x = x.view(3, -1, size).clone()
        for token, head, pair in itertools.product(range(3), range(x.shape[1]), range(turning // 2)):
            first, second = (pair, pair + turning // 2) if neox else (2 * pair, 2 * pair + 1)
            turned = complex(x[token, head, first], x[token, head, second]) * complex(*cache[positions[token], [pair, pair + turning // 2]])
            x[token, head, first], x[token, head, second] = turned.real, turned.imag
        return x.view(3, -1)

    got_query, got_key = kernels.rotary_embedding_cpu(positions, query, key, size, cache, neox)
    torch.testing.assert_close(got_query, reference(query))
    torch.testing.assert_close(got_key, reference(key))


# --- attention ----------------------------------------------------------------------------------------------------------------------

HEADS, KV_HEADS, DIM, SLOTS = 6, 2, 8, 64
LENGTHS = [9, 14]


def _pool() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Keys, values, a slot table with scattered slots, and the table rows of two requests."""
    table = torch.randperm(SLOTS).view(4, 16).int()
    return torch.randn(SLOTS, KV_HEADS, DIM), torch.randn(SLOTS, KV_HEADS, DIM), table, torch.tensor([2, 0])


def _sdpa(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
    parts = (part.transpose(0, 1)[None] for part in (query, key, value))
    return F.scaled_dot_product_attention(*parts, attn_mask=mask, scale=0.3, enable_gqa=True)[0].transpose(0, 1)


@pytest.mark.parametrize("kind", ["causal", "full", "window", "tree"])
def test_extend_attention_agrees_with_torch(kernels: ModuleType, kind: str) -> None:
    """Two requests of unequal length, grouped heads, cached prefix: as torch's own attention, mask by mask."""
    keys, values, table, rows = _pool()
    new = [5, 5] if kind == "tree" else [4, 6]
    query, output = torch.randn(sum(new), HEADS, DIM), torch.empty(sum(new), HEADS, DIM)
    trees = torch.rand(2, 5, 5) < 0.5
    trees |= torch.eye(5, dtype=torch.bool)
    window = 3 if kind == "window" else 0
    starts = torch.tensor([0, new[0]])
    kernels.extend_attention_cpu(
        query, None, None, output, keys, values, 1.0, 1.0, table, rows, torch.tensor(LENGTHS), torch.tensor(new), starts, max(new),
        0.3, 0.0, False, window, None, None, trees.flatten() if kind == "tree" else None, kind != "full",
    )  # fmt: skip
    for request, (length, count) in enumerate(zip(LENGTHS, new, strict=True)):
        mask = torch.zeros(count, length, dtype=torch.bool)
        for i, j in itertools.product(range(count), range(length)):
            at = length - count + i
            if kind == "tree":
                mask[i, j] = j < length - count or bool(trees[request, i, j - (length - count)])
            else:
                mask[i, j] = {"causal": j <= at, "full": True, "window": at - 3 < j <= at}[kind]
        slots = table[rows[request], :length].long()
        here = slice(int(starts[request]), int(starts[request]) + count)
        torch.testing.assert_close(output[here], _sdpa(query[here], keys[slots], values[slots], mask))


@pytest.mark.parametrize("window", [0, 4])
def test_decode_attention_stores_and_attends(kernels: ModuleType, window: int) -> None:
    """The new key and value land in their slots and are part of what is attended to."""
    keys, values, table, rows = _pool()
    query, key, value = torch.randn(2, HEADS, DIM), torch.randn(2, KV_HEADS * DIM), torch.randn(2, KV_HEADS * DIM)
    where = torch.stack([table[rows[i], LENGTHS[i] - 1] for i in range(2)]).long()
    output, scratch = torch.empty(2, HEADS, DIM), torch.empty(0)
    kernels.decode_attention_cpu(
        query, keys, values, 1.0, 1.0, output, key, value, where, scratch, table, rows, torch.tensor(LENGTHS), 0.3, 0.0, False,
        window, None, None,
    )  # fmt: skip
    torch.testing.assert_close(keys[where].flatten(1), key)
    for request, length in enumerate(LENGTHS):
        slots = table[rows[request], (length - window if window else 0) : length].long()
        torch.testing.assert_close(output[request : request + 1], _sdpa(query[request : request + 1], keys[slots], values[slots], None))


def test_what_attention_cannot_do_is_said(kernels: ModuleType) -> None:
    """Sinks and scaled caches raise instead of giving a wrong number."""
    keys, values, table, rows = _pool()
    query = torch.randn(2, HEADS, DIM)
    with pytest.raises(NotImplementedError, match="scaled KV cache"):
        kernels.decode_attention_cpu(
            query, keys, values, 0.5, 1.0, query, None, None, rows, rows, table, rows, torch.tensor(LENGTHS), 0.3, 0.0, False, 0, None, None
        )


def test_draft_slots_are_the_branchs_own(kernels: ModuleType) -> None:
    """Branch t reads the prefix and then its own column of slots, whichever branch its parent was on."""
    _, _, table, rows = _pool()
    lengths, topk, steps = torch.tensor([3, 5]), 2, 3
    built = kernels.build_draft_decode_metadata_cpu(table, rows, lengths, topk, steps, 16)
    for request, branch in itertools.product(range(2), range(topk)):
        length = int(lengths[request])
        source = [*range(length), *(length + branch * steps + s for s in range(steps))]
        assert built[request * topk + branch, : length + steps].tolist() == [int(table[rows[request], s]) for s in source]


# --- cache slots --------------------------------------------------------------------------------------------------------------------


def test_slots_are_given_and_found_again(kernels: ModuleType) -> None:
    """What assign_req_to_token_pool wrote, assign_extend_cache_locs reads; drafting takes what follows the committed tokens."""
    table, rows = torch.zeros(4, 16, dtype=torch.int32), torch.tensor([3, 1])
    start, end, new = torch.tensor([2, 0]), torch.tensor([5, 4]), torch.arange(100, 107)
    kernels.assign_req_to_token_pool_cpu(rows, table, start, end, new, 16)
    assert table[3, 2:5].tolist() == [100, 101, 102] and table[1, :4].tolist() == [103, 104, 105, 106]
    found = torch.empty(7, dtype=torch.int64)
    kernels.assign_extend_cache_locs_cpu(rows, table, start, end, found, 16)
    assert found.equal(new)
    drafts = torch.empty(4, dtype=torch.int64)
    kernels.assign_draft_cache_locs_contiguous_cpu(rows, table, torch.tensor([2, 1]), drafts, 16, 1, 2)
    assert drafts.tolist() == [100, 101, 104, 105]


def test_rows_are_stored_and_moved(kernels: ModuleType) -> None:
    """Moving between overlapping slots reads everything before it writes anything."""
    keys, values = torch.zeros(10, 2, 4), torch.zeros(10, 2, 4)
    key, value = torch.randn(3, 8), torch.randn(3, 2, 4)
    kernels.store_cache_cpu(key, value, keys, values, torch.tensor([7, 2, 3]), 8)
    assert keys[[7, 2, 3]].flatten(1).equal(key) and values[[7, 2, 3]].equal(value)
    before = keys.clone(), values.clone()
    pointers = torch.tensor([keys.data_ptr(), values.data_ptr()], dtype=torch.uint64)
    kernels.copy_all_layer_kv_cache_cpu(pointers, torch.tensor([32, 32]), torch.tensor([3, 4]), torch.tensor([2, 3]))
    for now, then in zip((keys, values), before, strict=True):
        assert now[3].equal(then[2]) and now[4].equal(then[3]) and now[2].equal(then[2])


def test_accepted_slots_are_packed(kernels: ModuleType) -> None:
    """In order, and nothing for -1."""
    packed = torch.full((6,), -7)
    kernels.fill_accept_out_cache_loc_cpu(torch.tensor([[0, 2, -1], [3, -1, -1]]), torch.arange(10, 20), packed)
    assert packed.tolist() == [10, 12, 13, -7, -7, -7]


# --- tree ---------------------------------------------------------------------------------------------------------------------------


def _random_tree(topk: int, levels: int, nodes: int, rng: random.Random) -> tuple[list[int], list[int], list[int]]:
    """A tree as drafting makes it: (parent_list, selected candidates, parent node of each node), the last one kept while growing.

    Level 0 has ``topk`` candidates; each later level expands ``topk`` frontier candidates into ``topk`` children each.
    """
    parent_of: dict[int, int | None] = dict.fromkeys(range(topk))  # candidate -> the candidate it hangs below
    parent_list, frontier = [-1, *range(topk)], list(range(topk))
    for level in range(1, levels):
        base = topk + topk * topk * (level - 1)
        children = {base + r * topk + c: frontier[r] for r, c in itertools.product(range(topk), range(topk))}
        parent_of |= children
        frontier = sorted(rng.sample(sorted(children), topk), key=lambda _: rng.random())
        parent_list += frontier
    chosen: set[int] = set()
    while len(chosen) < nodes - 1:  # a child only after its parent
        chosen.add(rng.choice([c for c, p in parent_of.items() if c not in chosen and (p is None or p in chosen)]))
    selected = sorted(chosen)
    parents = [0] + [0 if parent_of[c] is None else selected.index(parent_of[c]) + 1 for c in selected]  # type: ignore[arg-type]
    return parent_list, selected, parents


def _ancestors(parents: list[int], node: int) -> set[int]:
    return {node} if node == 0 else {node} | _ancestors(parents, parents[node])


@pytest.mark.parametrize(("topk", "levels", "nodes"), [(1, 4, 5), (2, 3, 6), (4, 4, 8), (3, 5, 16)])
@pytest.mark.parametrize("mode", [0, 1])
def test_the_tree_is_built_and_verified_node_by_node(kernels: ModuleType, topk: int, levels: int, nodes: int, mode: int) -> None:
    """Mask, positions and links against a recursive reading of the tree; then the greedy walk against a walk over the parents."""
    rng = random.Random(topk * 100 + nodes)
    trees = [_random_tree(topk, levels, nodes, rng) for _ in range(3)]
    lengths = [4, 9, 2]
    size = sum(nodes * (nodes if mode == 1 else nodes + length) for length in lengths)
    mask, positions = torch.ones(size, dtype=torch.bool), torch.empty(3 * nodes, dtype=torch.int64)
    index, child, sibling = torch.full((3, 3, nodes), -1)
    kernels.build_tree_kernel_efficient_cpu(
        torch.tensor([t[0] for t in trees]), torch.tensor([t[1] for t in trees]), torch.tensor(lengths), mask, positions, index, child,
        sibling, topk, levels, nodes, mode,
    )  # fmt: skip
    taken = 0
    for request, (length, (_, _, parents)) in enumerate(zip(lengths, trees, strict=True)):
        before = 0 if mode == 1 else length
        seen = mask[taken : taken + nodes * (nodes + before)].view(nodes, nodes + before)
        taken += seen.numel()
        assert seen[:, :before].all()
        assert index[request].tolist() == list(range(request * nodes, (request + 1) * nodes))
        for node in range(nodes):
            family = _ancestors(parents, node)
            assert set(seen[node, before:].nonzero().flatten().tolist()) == family
            assert positions[request * nodes + node] == length + len(family) - 1
            children, at = [], int(child[request, node])
            while at != -1:
                children.append(at)
                at = int(sibling[request, at])
            assert children == [n for n in range(1, nodes) if parents[n] == node]

    tokens = torch.randint(0, 3, (3, nodes))
    said = torch.randint(0, 3, (3, nodes))
    predicts = torch.full((3 * nodes,), -1, dtype=torch.int32)
    accepted, count = torch.full((3, levels + 1), -1, dtype=torch.int32), torch.zeros(3, dtype=torch.int32)
    kernels.verify_tree_greedy_cpu(
        predicts=predicts, accept_index=accepted, accept_token_num=count, candidates=tokens, retrive_index=index,
        retrive_next_token=child, retrive_next_sibling=sibling, target_predict=said,
    )  # fmt: skip
    for request, (_, _, parents) in enumerate(trees):
        path = [0]
        while (nxt := [n for n in range(1, nodes) if parents[n] == path[-1] and tokens[request, n] == said[request, path[-1]]]) and len(
            path
        ) <= levels:
            path.append(nxt[0])
        assert int(count[request]) == len(path) - 1
        assert accepted[request, : len(path)].tolist() == [request * nodes + n for n in path]
        assert predicts[[request * nodes + n for n in path]].tolist() == said[request, path].tolist()


def test_token_bookkeeping(kernels: ModuleType) -> None:
    """The bonus token is the last accepted one; rotating drops the first id and appends the new one, per request."""
    bonus = torch.empty(2, dtype=torch.int32)
    kernels.fill_bonus_tokens_cpu(torch.tensor([[5, 6, 7], [8, 9, 10]]), torch.tensor([1, 3]), bonus, 3)
    assert bonus.tolist() == [5, 10]
    ids = torch.tensor([1, 2, 3, 4, 5])
    kernels.rotate_input_ids_cpu(ids, torch.tensor([0, 3]), torch.tensor([3, 2]), torch.tensor([[30], [50]]))
    assert ids.tolist() == [2, 3, 30, 5, 50]
    kernels.rotate_input_ids_cpu(ids, torch.tensor([0, 3]), torch.tensor([3, 2]), torch.tensor([7, 8]), torch.tensor([1, 4]))
    assert ids.tolist() == [3, 7, 30, 50, 8]


# --- as SGLang finds it -------------------------------------------------------------------------------------------------------------


def test_unknown_operations_fail_by_name_and_probes_say_no(kernels: ModuleType) -> None:
    """Model files may look names up at import; calling one names it; names that choose a path are absent."""
    assert torch.ops.sgl_kernel.rmsnorm_cpu is kernels.rmsnorm_cpu
    with pytest.raises(NotImplementedError, match="fused_experts_cpu"):
        torch.ops.sgl_kernel.fused_experts_cpu()
    assert not hasattr(torch.ops.sgl_kernel, "fused_qk_norm_cpu")
    assert not hasattr(torch.ops.sgl_kernel, "gptq_marlin_repack")
    assert torch.cpu._is_amx_tile_supported()
