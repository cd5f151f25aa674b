"""capture(): the rows it records are the model's own, the sequences are the right ones, and the model is left as it was."""

from __future__ import annotations

import copy
import inspect
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from eagle3diag import CaptureError, capture, open_dump
from eagle3diag.capture import Tape
from eagle3diag.capture.sequences import valid_columns

transformers = pytest.importorskip("transformers")

VOCABULARY, PAD, EOS = 101, 0, 1
# Transformers 5.2x renamed the argument
CACHE = "cache" if "cache" in inspect.signature(transformers.LlamaModel.forward).parameters else "past_key_values"
SMALL = {"vocab_size": VOCABULARY, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 4, "num_attention_heads": 4}
SMALL |= {"num_key_value_heads": 2, "head_dim": 8, "pad_token_id": PAD, "eos_token_id": EOS, "bos_token_id": 2}


def llama() -> Any:
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**SMALL))


def qwen3() -> Any:
    return transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**SMALL))


def gemma3() -> Any:
    return transformers.Gemma3ForCausalLM(transformers.Gemma3TextConfig(**SMALL, sliding_window=4, query_pre_attn_scalar=8))


def multimodal() -> Any:
    """Gemma 3 with a vision tower: the decoder is three levels down, and is handed embeddings instead of ids."""
    vision = {
        "hidden_size": 16,
        "intermediate_size": 16,
        "num_hidden_layers": 6,
        "num_attention_heads": 2,
        "image_size": 28,
        "patch_size": 14,
    }
    config = transformers.Gemma3Config(
        text_config={**SMALL, "sliding_window": 4, "query_pre_attn_scalar": 8}, vision_config=vision, mm_tokens_per_image=4
    )
    config.image_token_id = VOCABULARY - 1
    return transformers.Gemma3ForConditionalGeneration(config)


class Wrapped(nn.Module):
    """A wrapper as adapters make them: everything passes through ``*args, **kwargs``."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.base_model = inner

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.base_model(*args, **kwargs)


MODELS: list[Callable[[], Any]] = [llama, qwen3, gemma3, multimodal]


@pytest.fixture
def model() -> Any:
    return made(llama)


def made(build: Callable[[], Any]) -> Any:
    torch.manual_seed(0)
    built = build().eval()
    with torch.no_grad():  # initial norms are all ones, which would hide a norm that is applied twice
        for name, p in built.named_parameters():
            if "norm" in name:
                p.add_(torch.randn_like(p) * 0.3)
    return built


def tokens(*shape: int) -> torch.Tensor:
    return torch.randint(3, VOCABULARY - 1, shape, generator=torch.Generator().manual_seed(7))


def decoder_of(model: Any) -> Any:
    return next(m for m in model.modules() if hasattr(m, "layers") and hasattr(m, "embed_tokens"))


def hooks_of(model: nn.Module) -> dict[str, Any]:
    return {f"{name}.{field}": copy.copy(value) for name, m in model.named_modules() for field, value in vars(m).items() if "hook" in field}


@pytest.mark.parametrize("build", MODELS)
@torch.inference_mode()
def test_boundaries_equal_hidden_states_bit_for_bit(build: Callable[[], Any]) -> None:
    """Boundary b is hidden_states[b]; the last is the residual stream before the final norm, which turns it into hidden_states[-1]."""
    model, ids = made(build), tokens(1, 9)
    with capture(model, boundaries=range(5)) as tape:
        model(ids)
    expected = model(ids, output_hidden_states=True).hidden_states
    record = tape.dump[0]
    for b in range(4):
        assert torch.equal(record.state(b), expected[b][0])
    assert not torch.equal(record.state(4), expected[4][0])
    assert torch.equal(decoder_of(model).norm(record.state(4)), expected[4][0])
    assert record.final is not None and torch.equal(record.final, expected[4][0])
    assert torch.equal(record.input_ids, ids[0]) and record.prompt_length is None and record.positions is None


@pytest.mark.parametrize("build", MODELS)
@torch.inference_mode()
def test_generate_appends_steps_to_the_right_sequences(build: Callable[[], Any]) -> None:
    """Every row that left-padded, batched generation feeds equals the row of a plain forward over the finished text."""
    model = made(build)
    prompts = [tokens(5), tokens(9)[3:], tokens(8)]
    width = max(map(len, prompts))
    ids = torch.stack([torch.cat([torch.full((width - len(p),), PAD), p]) for p in prompts])
    with capture(model, boundaries=[0, 2, 4]) as tape:
        text = model.generate(ids, attention_mask=(ids != PAD).long(), max_new_tokens=6, do_sample=False, eos_token_id=None)
    assert [r.prompt_length for r in tape.dump] == [len(p) for p in prompts]
    assert tape.forwards == 6
    for record, row, prompt in zip(tape.dump, text, prompts, strict=True):
        whole = row[width - len(prompt) :]
        assert torch.equal(record.input_ids, whole[:-1])  # the last token is never fed
        with capture(model, boundaries=[0, 2, 4]) as plain:
            model(whole[None, :-1])
        for b in (0, 2, 4):
            torch.testing.assert_close(record.state(b), plain.dump[0].state(b), rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(record.final, plain.dump[0].final, rtol=1e-4, atol=1e-4)


@torch.inference_mode()
def test_features_follow_the_order_asked_for(model: Any) -> None:
    """The fused features are the captured boundaries side by side, in the caller's order."""
    with capture(model, boundaries=[3, 0, 2]) as tape:
        model(tokens(1, 5))
    record = tape.dump[0]
    assert tape.dump.boundaries == (3, 0, 2)
    assert torch.equal(record.features, torch.cat([record.state(3), record.state(0), record.state(2)], -1))


@torch.inference_mode()
def test_right_padding_and_rows_of_padding_are_removed(model: Any) -> None:
    """Masked columns are no tokens, wherever they are; a row without any token is no sequence."""
    ids = tokens(3, 7)
    mask = torch.tensor([[1] * 7, [1] * 4 + [0] * 3, [0] * 7])
    with capture(model, boundaries=[1]) as tape:
        model(input_ids=ids, attention_mask=mask)
    assert [r.input_ids.tolist() for r in tape.dump] == [ids[0].tolist(), ids[1, :4].tolist()]
    assert [r.name for r in tape.dump] == ["sequence-00000", "sequence-00001"]
    with capture(model, boundaries=[1]) as plain:
        model(ids[1:2, :4])
    torch.testing.assert_close(tape.dump[1].state(1), plain.dump[0].state(1))


@torch.inference_mode()
def test_rows_that_finish_early_do_not_keep_the_padding_they_were_fed(model: Any) -> None:
    """generate() feeds unmasked padding to finished rows; their records end with the end token."""
    ids = tokens(2, 4)
    with capture(model, boundaries=[1]) as free:
        text = model.generate(ids, max_new_tokens=8, do_sample=False, eos_token_id=None)
    stop = int(text[0, 5])
    assert stop not in text[1, 4:].tolist() and len(free.dump[0].input_ids) == 11
    # the end token is the model's own affair here, so it is told through the config that generate() was given
    model.generation_config.eos_token_id = stop
    with capture(model, boundaries=[1]) as tape:
        text = model.generate(ids, max_new_tokens=8, do_sample=False)
    first, second = tape.dump
    end = text[0].tolist().index(stop, 4)
    assert first.input_ids.tolist() == text[0, : end + 1].tolist()
    assert second.input_ids.tolist() == text[1, :-1].tolist()


@torch.inference_mode()
def test_a_static_cache_with_four_dimensional_masks(model: Any) -> None:
    """With a compilable cache the model only sees a 4-D mask; padding is still found."""
    ids = tokens(2, 6)
    ids[0, :2] = PAD
    with capture(model, boundaries=[2]) as tape:
        text = model.generate(
            ids,
            attention_mask=(ids != PAD).long(),
            max_new_tokens=4,
            do_sample=False,
            eos_token_id=None,
            cache_implementation="static",
            disable_compile=True,
        )
    assert [r.input_ids.tolist() for r in tape.dump] == [text[0, 2:-1].tolist(), text[1, :-1].tolist()]


@torch.inference_mode()
def test_beams_are_followed_when_they_change_rows(model: Any) -> None:
    """After beam search every record's states are those of its own ids."""
    with capture(model, boundaries=[2]) as tape:
        model.generate(tokens(1, 5), max_new_tokens=8, num_beams=3, do_sample=False, eos_token_id=None)
    assert len(tape.dump) == 3
    for record in tape.dump:
        with capture(model, boundaries=[2]) as plain:
            model(record.input_ids[None])
        torch.testing.assert_close(record.state(2), plain.dump[0].state(2), rtol=1e-4, atol=1e-5)


@torch.inference_mode()
def test_a_cache_that_is_cut_back_and_one_that_is_continued(model: Any) -> None:
    """Rows that the cache forgot are forgotten; two caches used in turn stay two sequences."""
    ids, other = tokens(1, 8), tokens(1, 8).flip(1)
    one, two = transformers.DynamicCache(config=model.config), transformers.DynamicCache(config=model.config)
    with capture(model, boundaries=[2]) as tape:
        model(ids[:, :5], **{CACHE: one})
        model(other[:, :4], **{CACHE: two})
        one.crop(-2)
        model(ids[:, 3:], **{CACHE: one})
        model(other[:, 4:], **{CACHE: two})
    assert [r.input_ids.tolist() for r in tape.dump] == [ids[0].tolist(), other[0].tolist()]
    with capture(model, boundaries=[2]) as plain:
        model(ids)
    torch.testing.assert_close(tape.dump[0].state(2), plain.dump[0].state(2), rtol=1e-4, atol=1e-5)


@torch.inference_mode()
def test_a_cache_that_cannot_count(model: Any) -> None:
    """Linear attention keeps no tokens, and its cache refuses to say how many there were: what was fed through it is counted instead."""

    class Uncounted(transformers.DynamicCache):  # type: ignore[misc]
        def get_seq_length(self, *args: Any, **kwargs: Any) -> int:
            if sys._getframe(1).f_globals["__name__"].startswith("eagle3diag"):
                raise ValueError("only attention layers have a length")
            return super().get_seq_length(*args, **kwargs)  # type: ignore[no-any-return]

    ids, cache = tokens(1, 8), Uncounted(config=model.config)
    with capture(model, boundaries=[2]) as tape:
        for start in (0, 5, 6, 7):
            model(ids[:, start : {0: 5}.get(start, start + 1)], **{CACHE: cache})
    with capture(model, boundaries=[2]) as plain:
        model(ids)
    assert [r.input_ids.tolist() for r in tape.dump] == [ids[0].tolist()]
    torch.testing.assert_close(tape.dump[0].state(2), plain.dump[0].state(2), rtol=1e-4, atol=1e-5)


@torch.inference_mode()
def test_a_cache_filled_before_the_capture_gives_positions(model: Any) -> None:
    """Rows begin where the capture began, say so, and warn."""
    ids, cache = tokens(1, 8), transformers.DynamicCache(config=model.config)
    model(ids[:, :5], **{CACHE: cache})
    with pytest.warns(RuntimeWarning, match="5 tokens of the cache"), capture(model, boundaries=[2]) as tape:
        model(ids[:, 5:], **{CACHE: cache})
    assert tape.dump[0].positions is not None and tape.dump[0].positions.tolist() == [5, 6, 7]
    assert tape.dump[0].input_ids.tolist() == ids[0, 5:].tolist()


@torch.inference_mode()
def test_wrappers_and_bare_decoders(model: Any) -> None:
    """The decoder is found inside a wrapper, and may be called or given directly."""
    ids = tokens(1, 6)
    with capture(model, boundaries=[3]) as expected:
        model(ids)
    for given, run in ((Wrapped(model), None), (model, model.model), (model.model, None)):
        with capture(given, boundaries=[3]) as tape:
            (run or given)(ids)
        assert torch.equal(tape.dump[0].state(3), expected.dump[0].state(3))


@torch.inference_mode()
def test_blocks_that_return_tuples(model: Any) -> None:
    """Older blocks return (hidden states, ...): the first item is taken."""

    class Tuple(nn.Module):
        def __init__(self, block: nn.Module) -> None:
            super().__init__()
            self.block = block

        def forward(self, *args: Any, **kwargs: Any) -> Any:
            return (self.block(*args, **kwargs), None)

    class Unpacked(nn.Module):
        def __init__(self, inner: Any) -> None:
            super().__init__()
            self.embed_tokens, self.layers = inner.embed_tokens, nn.ModuleList(Tuple(b) for b in inner.layers)
            self.rotary_emb, self.norm = inner.rotary_emb, inner.norm

        def forward(self, input_ids: torch.Tensor) -> Any:
            x = self.embed_tokens(input_ids)
            rotary = self.rotary_emb(x, torch.arange(x.shape[1])[None])
            for block in self.layers:
                x = block(x, position_embeddings=rotary)[0]
            return (self.norm(x),)

    ids = tokens(1, 6)
    with capture(model, boundaries=[0, 2]) as expected:
        model(ids)
    old = Unpacked(model.model)
    with capture(old, boundaries=[0, 2]) as tape:
        old(ids)
    torch.testing.assert_close(tape.dump[0].state(2), expected.dump[0].state(2))
    torch.testing.assert_close(tape.dump[0].final, expected.dump[0].final)


@torch.inference_mode()
def test_copies_do_not_change_when_the_model_writes_in_place(model: Any) -> None:
    """A block that overwrites its input does not reach what was captured before it (FM-36)."""
    ids = tokens(1, 6)
    with capture(model, boundaries=[2]) as expected:
        model(ids)
    handle = model.model.layers[2].register_forward_pre_hook(lambda m, args: args[0].mul_(3.0) is None or None)
    with capture(model, boundaries=[2]) as tape:
        model(ids)
    handle.remove()
    assert torch.equal(tape.dump[0].state(2), expected.dump[0].state(2))


def test_training_with_gradients_and_checkpointing(model: Any) -> None:
    """States are detached, gradients flow as before, and blocks run again for the backward pass are not recorded."""
    model.train()
    model.gradient_checkpointing_enable()
    ids = tokens(2, 6)
    with capture(model, boundaries=[2, 4]) as tape:
        model(ids, labels=ids, use_cache=False).loss.backward()
    assert len(tape.dump) == 2 and tape.forwards == 1 and not tape.dump[0].state(2).requires_grad
    assert model.model.layers[0].mlp.up_proj.weight.grad is not None


@torch.inference_mode()
def test_the_dump_on_disk_is_the_one_in_memory(model: Any, tmp_path: Path) -> None:
    """With ``out`` the tape is the dump that was written, bf16 kept; the identity is that of the target opened from disk."""
    model = model.bfloat16()
    model.save_pretrained(tmp_path / "target")
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "target", dtype=torch.bfloat16)
    ids = tokens(1, 5)
    for out in (None, tmp_path / "dump"):
        with capture(model, boundaries=[1, 4], out=out, side="live") as tape:
            model.generate(ids, max_new_tokens=3, do_sample=False, eos_token_id=None)
        if out is None:
            memory = tape.dump
    disk = open_dump(tmp_path / "dump")
    assert disk.complete and disk.side == memory.side == "live" and disk.engine == "transformers" and disk.boundaries == (1, 4)
    assert disk.target == memory.target and disk.target.n_layers == 4 and disk.target.hidden_size == 32 and disk.target.dtype == "bfloat16"
    assert disk.engine_version == transformers.__version__
    a, b = memory[0], disk[0]
    assert a.name == b.name and a.prompt_length == b.prompt_length == 5 and torch.equal(a.input_ids, b.input_ids)
    for x, y in ((a.features, b.features), (a.final, b.final), (a.state(4), b.state(4))):
        assert x is not None and y is not None and x.dtype == torch.bfloat16 and torch.equal(x, y)

    from eagle3diag import open_target

    assert open_target(tmp_path / "target").config_hash == disk.target.config_hash


@pytest.mark.parametrize("fails", [False, True])
@torch.inference_mode()
def test_the_model_is_left_as_it_was(model: Any, tmp_path: Path, fails: bool) -> None:
    """Hook dictionaries are those from before, also after an exception; what was finished by then is a readable dump."""
    model.model.layers[1].register_forward_hook(lambda *a: None)  # somebody else's hook stays
    before = hooks_of(model)
    cache = transformers.DynamicCache(config=model.config)
    try:
        with capture(model, boundaries=[1], out=tmp_path / "dump") as tape:
            model(tokens(1, 4))
            model(tokens(1, 6), **{CACHE: cache})
            assert hooks_of(model) != before
            if fails:
                raise KeyError("stop")
    except KeyError:
        assert fails
    assert hooks_of(model) == before and "reorder_cache" not in vars(cache)
    dump = open_dump(tmp_path / "dump")
    assert dump.complete is not fails and [len(r.input_ids) for r in dump] == [4, 6]
    if fails:
        with pytest.raises(CaptureError):
            _ = tape.dump
    else:
        assert len(tape.dump) == 2


def test_a_hook_that_never_fires_is_an_error(model: Any) -> None:
    """An unused model, and a model whose blocks are bypassed, are told apart from a quiet success."""
    before = hooks_of(model)
    with pytest.raises(CaptureError, match="0 of 0"), capture(model, boundaries=[2]):
        pass
    model.config.num_hidden_layers = 2  # Llama then runs its first two blocks only
    with pytest.raises(CaptureError, match=r"boundary 3 at model\.layers\.2: 0 of 1"), capture(model, boundaries=[1, 3]):
        model(tokens(1, 4))
    assert hooks_of(model) == before


def test_a_hook_that_never_fires_only_warns_when_an_exception_is_on_its_way(model: Any) -> None:
    """The first problem is the one that is raised; a forward that fails half-way is no silent hook."""
    with pytest.raises(KeyError), pytest.warns(RuntimeWarning, match="did not fire"), capture(model, boundaries=[2]):
        raise KeyError
    model.model.layers[0].register_forward_pre_hook(lambda *a: (_ for _ in ()).throw(MemoryError()))
    with warnings.catch_warnings(), pytest.raises(MemoryError):
        warnings.simplefilter("error")
        with capture(model, boundaries=[2]):
            model(tokens(1, 4))


@torch.inference_mode()
def test_a_forward_that_failed_is_not_recorded(model: Any) -> None:
    """A forward that was tried again counts once."""
    handle = model.model.layers[2].register_forward_pre_hook(lambda *a: (_ for _ in ()).throw(MemoryError()))
    with capture(model, boundaries=[1, 3]) as tape:
        with pytest.raises(MemoryError):
            model(tokens(1, 4))
        handle.remove()
        model(tokens(1, 5))
    assert [len(r.input_ids) for r in tape.dump] == [5]


@pytest.mark.parametrize(
    ("boundaries", "message"),
    [([5], "0 .*to 4"), ([-1], "do not exist"), ([1, 1], "twice"), ([], "none given"), ([1.5], "do not exist"), (3, "list of integers")],
)
def test_boundaries_are_checked_before_anything_runs(model: Any, boundaries: Any, message: str) -> None:
    """What exists is listed."""
    with pytest.raises(CaptureError, match=message):
        capture(model, boundaries=boundaries)


def test_things_without_a_decoder() -> None:
    """The lists of blocks that exist are named."""
    with pytest.raises(CaptureError, match=r"no decoder found.*0 \(2\)"):
        capture(nn.Sequential(nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2)])))
    with pytest.raises(CaptureError, match=r"expected a torch\.nn\.Module, found str"):
        capture("model")  # type: ignore[arg-type]
    with pytest.raises(CaptureError, match="2 decoders found"):
        capture(nn.ModuleDict({"a": llama().model, "b": llama().model}))


@torch.inference_mode()
def test_embeddings_without_ids_are_refused(model: Any) -> None:
    """Rows that no token id belongs to could never be compared."""
    with pytest.raises(CaptureError, match="inputs_embeds without input_ids"), capture(model, boundaries=[1]):
        model(inputs_embeds=torch.randn(1, 4, 32))


def test_the_library_does_not_need_transformers() -> None:
    """capture() finds everything by structure: importing and running it works where Transformers is not installed."""
    code = """
import sys
sys.modules["transformers"] = None
import torch
from torch import nn
from eagle3diag import capture
class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed_tokens, self.layers = nn.Embedding(9, 4), nn.ModuleList(nn.Linear(4, 4) for _ in range(3))
    def forward(self, input_ids):
        x = self.embed_tokens(input_ids)
        for layer in self.layers:
            x = layer(x)
        return x * 2
model = Decoder()
with capture(model, [0, 3]) as tape:
    model(torch.arange(5)[None])
record = tape.dump[0]
assert torch.equal(record.state(0), model.embed_tokens(record.input_ids)) and torch.equal(record.final, record.state(3) * 2)
"""
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[2])


def test_the_default_boundaries_are_the_engines(model: Any) -> None:
    """2, n/2, n-3, each once."""
    assert capture(model).boundaries == (2, 1)
    assert isinstance(capture(model), Tape)


def test_a_tape_is_read_after_the_block(model: Any) -> None:
    """Half a capture is not handed out."""
    with torch.inference_mode(), capture(model, boundaries=[1]) as tape:
        model(tokens(1, 4))
        with pytest.raises(CaptureError, match="still recording"):
            _ = tape.dump
    with pytest.raises(CaptureError, match="records once"), tape:
        pass


@pytest.mark.parametrize("additive", [False, True])
def test_padding_is_read_off_four_dimensional_masks(additive: bool) -> None:
    """Left padding, right padding, and fully masked rows that a kernel work-around unmasked."""
    real = torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 0, 0], [1, 1, 1, 1, 1]]).bool()
    mask = torch.ones(5, 5).tril().bool()[None] & real[:, None, :]
    for unmask in (False, True):
        seen = mask.clone()
        if unmask:
            seen[~seen.any(-1)] = True
        given = torch.where(seen, 0.0, torch.finfo(torch.float32).min) if additive else seen
        got = valid_columns(given[:, None], 3, 5, 0)
        assert got is not None and torch.equal(got, real)
        step = valid_columns({"sliding_attention": None, "full_attention": given[:, None, 4:]}, 3, 1, 4)
        assert step is not None and torch.equal(step, real[:, 4:])
