"""Lines of SGLang's log that matter to a draft. Read in the wheels 0.4.5 to 0.5.23; those that CPU prints were seen."""

from __future__ import annotations

from eagle3diag.engines.logs import Line

#: The resolved arguments, printed once a start: a dictionary since 0.5.6 or so, ``ServerArgs(name=value, ...)`` before.
START = b"server_args="

LINES = (
    Line("aux", b"layers_to_capture", "which layers are captured", "models/*.py, only with added prints"),
    Line("aux", b"aux hidden", "about aux states", "model_runner.py; any version"),
    Line("aux", b"aux_hidden", "about aux states", "spec_aux_hidden_state.py"),
    Line("aux", b"uxiliary hidden", "about aux states", "any version"),
    Line(
        "capture", b"does not implement set_eagle3_layers_to_capture", "the target's class cannot give aux states", "0.5.23 model_runner.py"
    ),
    Line(
        "capture",
        b"no attribute 'set_eagle3_layers_to_capture'",
        "the target's class cannot give aux states",
        "AttributeError, earlier versions",
    ),
    Line("weights", b"not found in params_dict", "a weight was dropped at load", "models/llama.py, 0.4.5-0.4.8 for drafts"),
    Line("weights", b"skipping unexpected weight", "a weight was dropped at load", "models/kimi_k25_eagle3.py, since 0.5.12"),
    Line("graph", b"apture cuda graph begin", "CUDA graphs are captured", "cuda_graph_runner.py, all versions"),
    Line("graph", b"apture draft cuda graph begin", "CUDA graphs of the draft are captured", "eagle_worker.py"),
    Line("settings", b"num_draft_tokens is adjusted to", "slots were set to steps + 1", "server_args.py, topk 1"),
    Line("settings", b"token map specified, but EAGLE3", "the token map is not used", "eagle_worker.py"),
    Line("settings", b"spec v2 is used", "the synchronous worker V2", "speculative_hook.py, 0.5.14 on"),
    Line("settings", b"Spec v2 is enabled", "the overlapping worker V2", "server_args.py, 0.5.4-0.5.13"),
    Line("numbers", b"NaN in the logits", "logits are not finite", "layers/sampler.py"),
    Line("numbers", b"invalid eagle tree", "the tree of drafts is broken, as with NaN scores", "build_tree kernel, up to 0.5.x"),
)
