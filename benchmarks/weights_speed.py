"""What the weights' measurements cost, as ratios to plain torch in one run: fc at full size, the exact spectrum, a whole draft's moments.

    python benchmarks/weights_speed.py verdict  [--shape 7168,21504] [--kind noise]   # all of measure() against svdvals, and the peak memory
    python benchmarks/weights_speed.py spectrum [--shape 7168,21504]                  # all singular values against svdvals
    python benchmarks/weights_speed.py moments  [--gigabytes 2.4]                     # moments, norms, dead parts, nulls against read-and-sum
    python benchmarks/weights_speed.py weightwatcher --python PATH [--shape 2048,6144]  # another venv's python, with weightwatcher in it

The matrix is written to a safetensors file in ``--folder`` and read from its memory map. Both sides run in this process, one after the other, on
``--threads`` threads, so that a busy machine slows both; memory is measured in a process of its own.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from eagle3diag.checkpoints.tensors import TensorFiles
from eagle3diag.faults.verdict import verdict
from eagle3diag.weights import measure
from eagle3diag.weights.values import from_gram, gram, wide


def clock(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def matrix(folder: Path, rows: int, columns: int, kind: str) -> Path:
    """A bfloat16 file: PyTorch's default start, ``kind`` "trained" with 40 directions of 10 % of the energy on top."""
    path = folder / f"fc-{rows}-{columns}-{kind}.safetensors"
    if not path.exists():
        g = torch.Generator().manual_seed(5)
        w = torch.empty(rows, columns).uniform_(-(columns**-0.5), columns**-0.5, generator=g)
        if kind == "trained":
            left, right = torch.randn(rows, 40, generator=g) * torch.linspace(2, 0.3, 40), torch.randn(40, columns, generator=g)
            scale = (0.1 * w.square().sum() / (left.T @ left * (right @ right.T)).sum()).sqrt()  # |left @ right| without forming it
            for rows_of, part in zip(w.split(256), left.split(256), strict=True):
                rows_of.addmm_(part * scale, right)
        save_file({"fc.weight": w.bfloat16()}, path)
    return path


def read(path: Path) -> Tensor:
    return TensorFiles.open(path)["fc.weight"]


def peak(path: Path, threads: int) -> float:
    """GB of resident memory at most while a fresh process measures the file."""
    code = (
        "import sys, resource, torch; torch.set_num_threads(int(sys.argv[2]))\n"
        "from eagle3diag.checkpoints.tensors import TensorFiles\nfrom eagle3diag.weights import measure\n"
        "measure('fc.weight', TensorFiles.open(sys.argv[1])['fc.weight'])\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9)"
    )
    return float(subprocess.run([sys.executable, "-c", code, str(path), str(threads)], check=True, capture_output=True, text=True).stdout)


def compare_verdict(path: Path, threads: int) -> None:
    w = read(path)
    found: list[object] = []
    ours = clock(lambda: found.append(measure("fc.weight", w)))
    print(f"measure(): {ours:.1f} s; verdict: {verdict(found[0]).words}", flush=True)  # type: ignore[arg-type]
    print(f"peak memory of a process that measures it: {peak(path, threads):.2f} GB", flush=True)
    full = w.float()
    truth: list[Tensor] = []
    theirs = clock(lambda: truth.append(torch.linalg.svdvals(full)))
    top = torch.tensor(found[0].spectrum.singular_values[:64])  # type: ignore[attr-defined]
    off = (top / truth[0][:64] - 1).abs().max()
    share = truth[0].double() / truth[0].double().sum()
    rank = float(torch.exp(-(share * share.log()).sum()))
    s = found[0].spectrum  # type: ignore[attr-defined]
    print(f"svdvals of float32: {theirs:.1f} s -> ratio {ours / theirs:.3f} (wanted: at most 0.2)")
    print(f"64 largest off by at most {off:.1e} (wanted: 1e-3)")
    print(
        f"above the edge: {s.outside}, truly {int((truth[0] > s.tracy_widom_high).sum())}; effective rank off by {s.effective_rank / rank - 1:+.1e}"
    )
    stable = float(full.square().sum() / truth[0][0] ** 2)
    print(f"stable rank off by {s.stable_rank / stable - 1:+.1e}")
    exact(w, truth[0], theirs)


def compare_spectrum(path: Path) -> None:
    w = read(path)
    full = w.float()
    truth: list[Tensor] = []
    theirs = clock(lambda: truth.append(torch.linalg.svdvals(full)))
    exact(w, truth[0], theirs)


def exact(w: Tensor, truth: Tensor, theirs: float) -> None:
    found = []
    ours = clock(lambda: found.append(from_gram(gram(wide(w)))))
    off = (found[0].values / truth.double() - 1).abs()
    print(f"all values: {ours:.1f} s, svdvals {theirs:.1f} s -> ratio {ours / theirs:.3f} (wanted: at most 0.7)")
    for share in (0.1, 0.03):
        kept = truth > share * truth[0]
        print(f"  above {share:g} of the largest ({int(kept.sum())} values): off by at most {float(off[kept].max()):.1e}")
    marked = found[0].errors > 1e-3 * found[0].values
    print(f"  marked as less exact than 1e-3: {int(marked.sum())}")


def compare_moments(folder: Path, gigabytes: float) -> None:
    """A draft of this size: the embedding, head, fc and layer of an 8192-wide draft, scaled."""
    path = folder / f"draft-{gigabytes:g}.safetensors"
    rows = int(gigabytes * 1e9 / 2 / 8 / 6144)
    if not path.exists():
        g = torch.Generator().manual_seed(6)
        save_file({f"w{i}.weight": (torch.randn(rows, 6144, generator=g) * 0.02).bfloat16() for i in range(8)}, path)
    ratios = []
    for turn in range(3):
        times = {}
        for side in ("sum", "measure") if turn % 2 else ("measure", "sum"):
            times[side] = clock(lambda side=side: read_and_sum(path) if side == "sum" else measured(path))  # type: ignore[misc]
        ratios.append(times["measure"] / times["sum"])
        print(
            f"read-and-sum {times['sum']:.2f} s, moments, norms, dead parts and nulls {times['measure']:.2f} s: ratio {ratios[-1]:.2f}",
            flush=True,
        )
    print(f"median ratio {sorted(ratios)[1]:.2f} (wanted: at most 1.5)")


def read_and_sum(path: Path) -> float:
    """What anyone would write to check a file: every tensor in float32, summed."""
    with safe_open(path, "pt") as file:
        return sum(float(file.get_tensor(name).float().sum()) for name in file.keys())


def measured(path: Path) -> None:
    files = TensorFiles.open(path)
    for name in files:
        measure(name, files[name], spectra="none")


WATCH = """
import sys, time, torch, logging, warnings
warnings.filterwarnings("ignore"); logging.disable(logging.CRITICAL)
import weightwatcher as ww
torch.set_num_threads(int(sys.argv[2]))
from safetensors.torch import load_file
w = load_file(sys.argv[1])["fc.weight"].float()
layer = torch.nn.Linear(w.shape[1], w.shape[0], bias=False); layer.weight.data = w
model = torch.nn.Sequential(layer)
start = time.perf_counter(); details = ww.WeightWatcher(model=model).analyze(mp_fit=True, randomize=True, plot=False, savefig=False)
print("seconds", time.perf_counter() - start)
row = details.iloc[0]
print({k: row[k] for k in ("alpha", "warning", "stable_rank", "num_spikes", "rand_num_spikes", "mp_softrank") if k in row})
"""


def compare_weightwatcher(path: Path, python: str, threads: int) -> None:
    w = read(path)
    ours = min(clock(lambda: measure("fc.weight", w)) for _ in range(2))
    done = subprocess.run([python, "-c", WATCH, str(path), str(threads)], capture_output=True, text=True)
    lines = [line for line in done.stdout.splitlines() if line.startswith(("seconds", "{"))]
    if not lines:
        raise SystemExit(done.stderr[-2000:])
    theirs = float(lines[0].split()[1])
    print(f"WeightWatcher {theirs:.1f} s, measure() {ours:.2f} s: {theirs / ours:.0f} times faster (wanted: 20)")
    print(f"it says: {lines[1]}\nwe say: {verdict(measure('fc.weight', w)).words}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("verdict", "spectrum", "moments", "weightwatcher"))
    parser.add_argument("--shape")
    parser.add_argument("--kind", choices=("noise", "trained"), default="trained")
    parser.add_argument("--gigabytes", type=float, default=2.4)
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    rows, columns = (int(side) for side in (args.shape or ("2048,6144" if args.what == "weightwatcher" else "7168,21504")).split(","))
    print(f"[{rows}, {columns}], {args.kind}, {args.threads} threads, torch {torch.__version__}")
    if args.what == "verdict":
        compare_verdict(matrix(args.folder, rows, columns, args.kind), args.threads)
    elif args.what == "spectrum":
        compare_spectrum(matrix(args.folder, rows, columns, args.kind))
    elif args.what == "moments":
        compare_moments(args.folder, args.gigabytes)
    else:
        compare_weightwatcher(matrix(args.folder, rows, columns, args.kind), args.python, args.threads)


if __name__ == "__main__":
    main()
