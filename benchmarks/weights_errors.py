"""How often the verdict on a weight is wrong: false alarms on fresh matrices, and the power curve over the size of the update.

    python benchmarks/weights_errors.py alarms [--count 40000]
    python benchmarks/weights_errors.py power [--count 60] [--figure docs/weights_power.svg]

``alarms``: fresh matrices of every family, dtype and shape from 64 to 8192; each not called "at init" is an error. ``power``: updates of a
given size relative to the start, of several kinds; the share that is called trained. The seeds are none of those that the thresholds were set
on (below 40) or that the tests use. One thread; ``alarms`` takes about twenty minutes with its large shapes, ``power`` five.
"""

from __future__ import annotations

import argparse
import math
import time
from collections import Counter, defaultdict
from pathlib import Path

import torch
from torch import Tensor

from eagle3diag.faults.verdict import verdict
from eagle3diag.report.form import Lines, Series
from eagle3diag.report.svg import draw
from eagle3diag.weights import measure

SMALL = ((64, 64), (64, 192), (192, 64), (96, 288), (128, 512), (256, 256), (300, 100))
LARGE = ((512, 1536), (1024, 256), (1024, 3072), (2048, 2048), (2048, 6144), (4096, 1024), (8192, 1024), (1024, 8192))
FAMILIES = (
    "uniform_fan_in",
    "normal_0.02",
    "truncated_normal_0.02",
    "xavier_uniform",
    "xavier_normal",
    "kaiming_uniform",
    "kaiming_normal",
)
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
DRAWN = ((512, 1536), "normal_0.02")


def fresh(family: str, shape: tuple[int, int], g: torch.Generator) -> Tensor:
    """A matrix as ``torch.nn.init`` fills it."""
    w = torch.empty(shape)
    if family == "uniform_fan_in":
        return torch.nn.init.kaiming_uniform_(w, a=math.sqrt(5), generator=g)
    if family == "normal_0.02":
        return torch.nn.init.normal_(w, std=0.02, generator=g)
    if family == "truncated_normal_0.02":
        return torch.nn.init.trunc_normal_(w, std=0.02, a=-0.04, b=0.04, generator=g)
    return getattr(torch.nn.init, f"{family}_")(w, generator=g)


def updates(w: Tensor, size: float, g: torch.Generator) -> dict[str, Tensor]:
    """``w`` moved by ``size`` of its own Frobenius norm, in four ways."""
    rows, columns = w.shape
    scale = size * float(w.norm())

    def moved(by: Tensor) -> Tensor:
        return w + by * (scale / float(by.norm()))

    few = torch.randn(rows, 8, generator=g) @ torch.randn(8, columns, generator=g)
    spectrum = torch.arange(1, min(rows, columns) + 1, dtype=torch.float32) ** -0.5  # a gradient's: many directions, slowly falling
    broad = (torch.randn(rows, len(spectrum), generator=g) * spectrum) @ torch.randn(len(spectrum), columns, generator=g)
    strong = torch.randn(rows, columns, generator=g)
    strong[torch.rand(rows, generator=g) > 0.05] = 0
    return {
        "one direction": moved(torch.outer(torch.randn(rows, generator=g), torch.randn(columns, generator=g))),
        "8 directions": moved(few),
        "broad, falling as 1/sqrt(k)": moved(broad),
        "5 % of the rows": moved(strong),
        "evenly spread noise": moved(torch.randn(rows, columns, generator=g)),
    }


def alarms(count: int) -> None:
    wrong: Counter[str] = Counter()
    total: Counter[str] = Counter()
    named = began = 0
    start = time.monotonic()
    plan = [(SMALL, count), (LARGE, max(len(LARGE) * 6, count // 100))]
    for shapes, wanted in plan:
        for i in range(wanted):
            shape, family, dtype = shapes[i % len(shapes)], FAMILIES[i // len(shapes) % len(FAMILIES)], DTYPES[i // 7 % len(DTYPES)]
            w = fresh(family, shape, torch.Generator().manual_seed(1_000_000 + began)).to(dtype)
            began += 1
            v = verdict(measure("fc.weight" if shape[1] == 3 * shape[0] else "w", w))
            kind = f"{'small' if shapes is SMALL else 'large'} {family}"
            total[kind] += 1
            if v.state != "initial":
                wrong[kind] += 1
                print(f"  {v.state}: {family} {shape} {dtype} {'; '.join(v.signs)}", flush=True)
            named += v.null is not None and v.null.name == family
    print(
        f"{sum(wrong.values())} false alarms in {sum(total.values())} fresh matrices, {time.monotonic() - start:.0f} s; family named in {named}"
    )
    for kind in sorted(total):
        print(f"  {kind:32s} {wrong[kind]:4d} of {total[kind]}")


def power(count: int, figure: Path | None) -> None:
    sizes = (0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.1, 0.2, 0.3)
    drawn: list[Series] = []
    for shape in ((256, 768), (512, 1536)):
        for family in ("uniform_fan_in", "normal_0.02"):
            seen: dict[str, dict[float, list[bool]]] = defaultdict(lambda: defaultdict(list))
            for i in range(count):
                g = torch.Generator().manual_seed(2_000_000 + i)
                w = fresh(family, shape, g)
                for size in sizes:
                    for kind, moved in updates(w, size, g).items():
                        seen[kind][size].append(verdict(measure("fc.weight", moved.bfloat16())).state != "initial")
            print(f"{list(shape)}, {family}: share not called 'at init', by update relative to the start ({count} each, bfloat16)")
            print(f"  {'':30s}" + "".join(f"{size:>8.1%}" for size in sizes))
            for kind, by_size in seen.items():
                shares = [sum(by_size[size]) / count for size in sizes]
                print(f"  {kind:30s}" + "".join(f"{share:8.2f}" for share in shares), flush=True)
                if (shape, family) == DRAWN:
                    drawn.append(Series(kind, tuple(100 * size for size in sizes), tuple(shares), hue=len(drawn), points=True))
    if figure is not None:
        title = f"Share of matrices not called 'at init': {list(DRAWN[0])}, {DRAWN[1]}"
        words = ("power", title, f"{count} matrices a point", "update, % of the start's norm", "share")
        lines = Lines(*words, tuple(drawn), log_x=True, y_range=(0, 1))
        figure.write_text(draw(lines).replace("currentColor", "#777") + "\n")  # readable on a light page and on a dark one


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("alarms", "power"))
    parser.add_argument("--count", type=int)
    parser.add_argument("--figure", type=Path, help="draw the power curve of one shape and start into this SVG file")
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.what == "alarms":
        alarms(args.count or 40_000)
    else:
        power(args.count or 60, args.figure)


if __name__ == "__main__":
    main()
