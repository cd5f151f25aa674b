"""The faults, each put into the real material in its own way; none of this is shared with the counterfactuals that are to find it.

A row of :data:`INJECTIONS` is a fault of the catalogue, how it is injected, and what makes it: a broken file, other rows that are fed, other
weights or another loop in the engine, another command line. Healthy drafts and legal oddities are in :data:`HEALTHY`.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from benchmarks.injection import fed, files
from benchmarks.injection.kinds import Broken, Injection
from benchmarks.injection.world import World

SAMPLE, WIDE, MLA = "sample", "two layers", "latent"
DENSE = (SAMPLE, WIDE)

INJECTIONS: tuple[Injection, ...] = (
    Injection("FM-01", "flag EAGLE", fed.eagle, "files"),
    Injection("FM-03", "a draft, and no algorithm", partial(fed.launch, algorithm="", served=False), "files"),
    Injection(
        "FM-03", "draft weights of format dummy", partial(fed.launch, flags=" --speculative-draft-load-format dummy", served=False), "files"
    ),
    Injection("FM-04", "24 slots for a chain", partial(fed.launch, slots=24), "files"),
    Injection(
        "FM-05",
        "layer under an unknown name",
        partial(files.dropped, prefixes=("draft_layers.0.", "decoder.", "model.layer."), engines=("0.5.23",)),
        "files",
    ),
    Injection(
        "FM-05",
        "layers.0 in an engine before 0.5.12",
        partial(files.dropped, prefixes=("layers.0.",), engines=("0.4.9", "0.5.4", "0.5.8", "0.5.11")),
        "files",
        (SAMPLE,),
    ),
    Injection("FM-06", "no head", files.no_head, "files"),
    Injection(
        "FM-07",
        "draft_vocab_size null: the target's head",
        partial(files.config, fields={"draft_vocab_size": None}, net=files.target_head),
        "files",
    ),
    Injection("FM-08", "an idle map, so no head is shared", partial(files.whole, rows=49152), "files", (SAMPLE,)),
    Injection("FM-09", "random embedding in the file, SGLang", partial(files.random_embedding, engine="0.5.23"), "files"),
    Injection("FM-09", "random embedding in the file, vLLM", partial(files.random_embedding, engine="vllm==0.25.0"), "files", (SAMPLE,)),
    Injection(
        "FM-10", "tie_word_embeddings true", partial(files.config, fields={"tie_word_embeddings": True}, net=files.first_rows), "files"
    ),
    Injection("FM-11", "no d2t", partial(files.map, kind="none"), "files"),
    Injection("FM-11", "d2t never filled", partial(files.map, kind="zeros"), "files"),
    Injection("FM-12", "absolute d2t", partial(files.map, kind="absolute"), "files"),
    Injection("FM-12", "arange d2t", partial(files.map, kind="arange"), "files"),
    Injection("FM-13", "another run's d2t", partial(files.map, kind="another run's"), "files"),
    Injection("FM-14", "map dropped by the engine", files.map_dropped, "number"),
    Injection("FM-15", "the first ids as vocabulary", files.first_ids, "files", (SAMPLE,)),
    Injection("FM-16", "a whole vocabulary with 64 rows of padding", partial(files.whole, rows=49216), "files", (SAMPLE,)),
    Injection(
        "FM-17",
        "one layer id too few",
        partial(files.config, fields={"eagle_config": {"eagle_aux_hidden_state_layer_ids": [14]}, "num_aux_hidden_states": 1}, net=None),
        "files",
    ),
    Injection("FM-18", "head_dim 32 in the config", partial(files.config, fields={"head_dim": 32}, net=None), "files", DENSE),
    Injection("FM-19", "query heads packed in another order", files.packed, "number", DENSE),
    Injection("FM-20", "flag of the norm before fc lost", files.norm_unread, "files", (WIDE,)),
    Injection("FM-20", "an engine before 0.5.17", files.old_engine, "files", (WIDE,)),
    Injection("FM-22", "one rank's half of the MLP", files.cut, "files"),
    Injection("FM-22", "a matrix of zeros", files.empty_block, "files"),
    Injection(
        "FM-23",
        "the target's quantisation in the config",
        partial(files.config, fields={"quantization_config": {"quant_method": "fp8", "activation_scheme": "dynamic"}}, net=None),
        "files",
    ),
    Injection("FM-26", "biases that are not built", files.biases, "files", DENSE),
    Injection(
        "FM-27",
        "an MLA class for dense weights",
        partial(files.config, fields={"architectures": ["Eagle3DeepseekV2ForCausalLM"]}, net=None),
        "files",
        (SAMPLE,),
    ),
    Injection(
        "FM-27",
        "a dense class for MLA weights",
        partial(files.config, fields={"architectures": ["LlamaForCausalLMEagle3"]}, net=None),
        "files",
        (MLA,),
    ),
    Injection("FM-28", "another set of layers", fed.other_layers, "dumps"),
    Injection("FM-29", "one boundary early", partial(fed.feeds, fed=fed.at(lambda w: tuple(b - 1 for b in w.boundaries))), "dumps"),
    Injection("FM-29", "one boundary late", partial(fed.feeds, fed=fed.at(lambda w: tuple(b + 1 for b in w.boundaries))), "dumps"),
    Injection(
        "FM-30", "the last state missing", partial(fed.feeds, fed=fed.at(lambda w: w.boundaries[:-1]), served=False), "dumps", (SAMPLE, MLA)
    ),
    Injection(
        "FM-32",
        "states of five more layers",
        partial(fed.feeds, fed=fed.at(lambda w: tuple(sorted({*w.boundaries, 3, 6, 9, 20, 24}))), served=False),
        "dumps",
    ),
    Injection("FM-33", "blocks in another order", fed.order, "dumps"),
    Injection("FM-34", "the branch without the residual", partial(fed.feeds, fed=fed.each(fed.branch)), "dumps"),
    Injection("FM-35", "the final norm on every state", partial(fed.feeds, fed=fed.each(fed.normed)), "dumps"),
    Injection("FM-36", "one buffer for all", partial(fed.feeds, fed=fed.overwritten), "dumps"),
    Injection("FM-37", "half of the last block's sum", partial(fed.feeds, fed=fed.each(fed.half_sum)), "dumps"),
    Injection("FM-38", "a rotated basis", partial(fed.feeds, fed=fed.rotated), "dumps"),
    Injection("FM-39", "rows of padding taken for tokens", partial(fed.feeds, fed=fed.padded), "dumps"),
    Injection("FM-39", "rows of two requests swapped", partial(fed.feeds, fed=fed.swapped), "dumps"),
    Injection(
        "FM-40",
        "pipeline parallelism: the last state alone",
        partial(fed.feeds, fed=fed.at(lambda w: w.boundaries[-1:]), served=False, flags=" --pp-size 2"),
        "files",
        (SAMPLE, MLA),
    ),
    Injection("FM-41", "numbers that drift with depth", partial(fed.feeds, fed=fed.noisy(0.6)), "dumps"),
    Injection("FM-42", "a target in eight bits", partial(fed.feeds, fed=fed.eight_bits), "dumps"),
    Injection("FM-43", "rows that are not finite", partial(fed.feeds, fed=fed.not_finite), "dumps"),
    Injection("H3", "another scale", partial(fed.feeds, fed=fed.scaled), "dumps"),
    Injection("H6", "states of the token before, captured so", partial(fed.feeds, fed=fed.moved(1)), "dumps"),
    Injection("FM-46", "the other state carried on", fed.other_carry, "number"),
    Injection("FM-47", "the residual normed", partial(fed.holds, residual="normed"), "number"),
    Injection("FM-47", "the residual from the embedding", partial(fed.holds, residual="embedding"), "number"),
    Injection("FM-48", "the state of the position before", partial(fed.arrives, by=1), "number"),
    Injection("FM-48", "the state of the position after", partial(fed.arrives, by=-1), "number"),
    Injection("FM-49", "positions one on", partial(fed.holds, offset=1), "number"),
    Injection("FM-49", "positions one back", partial(fed.holds, offset=-1), "number"),
    Injection("FM-50", "keys of accepted drafts kept", partial(fed.holds, stale=True), "number"),
    Injection("FM-51", "no keys of the prompt", partial(fed.holds, forgets="prompt"), "number"),
    Injection("FM-51", "keys of the end of the prompt only", partial(fed.holds, forgets="most of the prompt"), "number"),
    Injection("FM-52", "pages that read as zeros", partial(fed.holds, deaf=True), "number"),
    Injection("FM-52", "another request's pages", partial(fed.holds, foreign=True), "number"),
    Injection("FM-53", "base 10000", partial(fed.holds, theta=1e4), "number"),
    Injection("FM-53", "the other pairs turned", lambda w, d: fed.holds(w, d, neighbours=not w.net.neighbours), "number"),
    Injection("FM-56", "a window of 24 tokens", partial(fed.holds, window=24), "number"),
    Injection("FM-59", "the neighbour's rows", fed.mixed, "number"),
    Injection("FM-76", "a simulated accept length", partial(fed.launch, environment="SGLANG_SIMULATE_ACC_LEN=3.5 ", served=False), "files"),
    Injection("FM-78", "through three bits and back", files.coarse, "number"),
)


# -- healthy, and legal oddities --------------------------------------------------------------------------------------------------


def _healthy(world: World, draw: random.Random) -> Broken:
    return Broken(world.draft, world.net)


def _files(world: World, draw: random.Random, engine: str = "0.5.23", **changes: Any) -> Broken:
    return Broken(world.draft.replace(**changes), world.net, engine=engine)


def _named(world: World, draw: random.Random, old: str, new: str) -> Broken:
    return _files(world, draw, rename=lambda n: n.replace(old, new))


def _own_embedding(world: World, draw: random.Random) -> Broken:
    return _files(world, draw, tensors={"embed_tokens.weight": world.target.embedding()})


def _ulp(world: World, draw: random.Random) -> Broken:
    """A copy that went through float16 and back."""
    return _files(world, draw, tensors={"embed_tokens.weight": world.target.embedding().half().to(torch.bfloat16)})


def _narrow_map(world: World, draw: random.Random) -> Broken:
    return _files(world, draw, tensors={"d2t": world.draft.tensors["d2t"].int()})


def _rounder(world: World, draw: random.Random) -> Broken:
    """Another kernel: twice the rounding."""
    return Broken(world.draft, world.net, lambda w, r: w.trained(r) * (1 + 2**-9 * torch.randn(r.tokens, 1)))


HEALTHY: tuple[Injection, ...] = (
    Injection("", "as it is", _healthy, "files"),
    Injection("", "layers.0, which loads since 0.5.12", partial(_named, old="midlayer.", new="layers.0."), "files", (SAMPLE,)),
    Injection(
        "",
        "names with model. in front",
        lambda w, d: _files(w, d, rename=lambda n: n if "2" in n or n == "lm_head.weight" else f"model.{n}"),
        "files",
        (SAMPLE, WIDE),
    ),
    Injection("", "a copy of the target's embedding", _own_embedding, "files"),
    Injection("", "the same through float16", _ulp, "files"),
    Injection("", "no t2d, which serving does not use", lambda w, d: _files(w, d, tensors={"t2d": None}), "files"),
    Injection("", "d2t in int32", _narrow_map, "files"),
    Injection("", "a release between", lambda w, d: _files(w, d, engine=d.choice(["0.5.18", "0.5.20", "0.5.22"])), "files"),
    Injection(
        "",
        "the trainer's notes in the config",
        lambda w, d: _files(w, d, config={"ttt_length": 7, "transformers_version": "4.57.1"}),
        "files",
    ),
    Injection("", "more rounding than usual", _rounder, "dumps"),
)


def of(world: World, rows: tuple[Injection, ...] = INJECTIONS) -> list[Injection]:
    """The rows that this draft can have."""
    return [i for i in rows if not i.drafts or world.name in i.drafts]


def pairs(world: World, draw: random.Random, count: int) -> Iterator[tuple[Injection, Injection]]:
    """Pairs of a fault of the files, under which the server starts, and one of what is fed."""
    rows = of(world)
    files = [i for i in rows if i.fault in ("FM-05", "FM-06", "FM-10", "FM-11", "FM-12", "FM-13") and "engine" not in i.name]
    fed = [i for i in rows if i.fault in ("FM-01", "FM-28", "FM-29", "FM-33", "FM-34", "FM-35", "FM-38", "H6")]
    for _ in range(count):
        yield draw.choice(files), draw.choice(fed)


def both(first: Broken, second: Broken) -> Broken:
    """A deployment with the files of the first and the features and flags of the second."""
    held = second.held if second.algorithm.endswith("EAGLE ") else first.held
    return replace(first, held=held, fed=second.fed, after=second.after, algorithm=second.algorithm, flags=second.flags)
