"""Record the four servers of ``data_samples``: one that is right, and three with one fault each. Run by ``make record-samples``.

PYTHONPATH=. python tools/sglang_cpu/record_samples.py --target DIR --draft DIR --prompts held.jsonl --out data_samples

eagle3         the draft as it was trained
eagle_flag     the same, but the server is started with EAGLE where EAGLE3 was meant
dropped_names  the decoder layer is called draft_layers.0, a name that SGLang 0.5.23 drops without a word
wrong_layers   the config lists boundaries where SGLang expects the layers whose outputs they are, so it captures one block later
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import serve
from record import Recording, record

from eagle3diag.checkpoints import Draft, open_draft


def dropped_names(draft: Draft) -> Draft:
    """The decoder layer under names that no SGLang loader rule matches; before 0.5.12 ``layers.0.`` was such a name too."""
    return draft.replace(rename=lambda name: name.replace("midlayer.", "draft_layers.0."))


def wrong_layers(draft: Draft) -> Draft:
    """Boundaries in the field where SGLang reads layer outputs: 2, 15, 27 for what should be 1, 14, 26."""
    ids = [b for b in draft.config.aux_boundaries or ()]
    return draft.replace(config={"eagle_config": {**draft.config.raw.get("eagle_config", {}), "eagle_aux_hidden_state_layer_ids": ids}})


def recordings(job: Recording, scratch: Path) -> Mapping[str, Recording]:
    """The four servers, by the name of their folder; changed drafts are written to ``scratch``."""
    draft = open_draft(job.draft)
    renamed = dropped_names(draft).save(scratch / "dropped_names")
    shifted = wrong_layers(draft).save(scratch / "wrong_layers")
    return {
        "eagle3": job,
        "eagle_flag": replace(job, chain=replace(job.chain, algorithm="EAGLE")),
        # What is fed is right here, the layer behind it is not: a few sequences show that.
        "dropped_names": replace(job, draft=str(renamed), draft_name="draft-dropped-names", keep=4),
        "wrong_layers": replace(job, draft=str(shifted), draft_name="draft-wrong-layers"),
    }


def main() -> None:
    parser = serve.arguments(__doc__)
    parser.set_defaults(limit=10)
    parser.add_argument("--out", required=True, type=Path)
    parser.add_argument("--only", nargs="+", help="names of the recordings to make; default: all four")
    given = parser.parse_args()
    job = Recording(given.target, given.draft, given.prompts, limit=given.limit, max_new=given.max_new)
    summary: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as scratch:
        for name, one in recordings(job, Path(scratch)).items():
            if not given.only or name in given.only:
                accepted = record(one, given.out / name)
                summary[name] = {key: accepted[key] for key in ("accept_length", "accepted", "rounds", "histogram")}
                sys.stderr.write(f"{name}: {json.dumps(summary[name])}\n")
    sys.stdout.write(json.dumps(summary, indent=1) + "\n")


if __name__ == "__main__":
    main()
