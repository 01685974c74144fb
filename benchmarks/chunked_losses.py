# SPDX-License-Identifier: Apache-2.0
"""Head and loss by chunk size, and by DeepSpeed's chunked cross entropy: bytes at once and bytes moved, counted.

    python benchmarks/chunked_losses.py [--tokens 1024] [--size 128] [--vocabulary 16000] [--write]

Forward and backward of hidden states to loss in bf16 on the CPU. At once: of the storages that exist at the same time
beyond hidden states and weight. Moved: what every operation of torch reads and writes, products included; kernels that
do more at once move less. Both are counted and not timed. The error is that of the weight's gradient by fp32's.
`--write` puts the table into `benchmarks/results/chunked-losses-DATE.md`. A minute.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
MIB = 1 << 20


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=1024)
    parser.add_argument("--size", type=int, default=128)
    parser.add_argument("--vocabulary", type=int, default=16_000)
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    text = render_page(options, measure(options))
    print(text)
    if options.write:
        day = datetime.now(UTC).strftime("%Y-%m-%d")
        (ROOT / "benchmarks" / "results" / f"chunked-losses-{day}.md").write_text(text, encoding="utf-8")
    return 0


def measure(options: argparse.Namespace) -> dict[str, tuple[int, int, float]]:
    """Of each way the most bytes at once, the bytes moved, and the relative error of the weight's gradient."""
    import torch
    from deepspeed.runtime.chunked_cross_entropy import chunked_cross_entropy as cross_entropy_of_deepspeed
    from torch.nn.functional import cross_entropy, linear

    from harness.runtime.chunked_cross_entropy import chunked_cross_entropy
    from tests.support.training.allocations import peak_of

    torch.manual_seed(0)
    exact = torch.randn(options.tokens, options.size), torch.randn(options.vocabulary, options.size) / options.size**0.5
    targets = torch.randint(options.vocabulary, (options.tokens,))

    def run(loss_of: Callable[[Any, Any], Any], dtype: Any) -> Any:
        hidden, weight = (tensor.to(dtype, copy=True).requires_grad_() for tensor in exact)
        loss_of(hidden, weight).backward()
        return weight.grad

    def whole(hidden: Any, weight: Any) -> Any:
        return cross_entropy(linear(hidden, weight).float(), targets)

    ways: dict[str, Callable[[Any, Any], Any]] = {
        "`cross_entropy` of all logits": whole,
        "DeepSpeed's, of all logits": lambda h, w: cross_entropy_of_deepspeed(linear(h, w), targets),
    }
    for chunk in (64, 128, 256, 512, options.tokens):
        ways[f"ours, chunks of {chunk:,}"] = lambda h, w, c=chunk: chunked_cross_entropy(
            h, w, targets, float(options.tokens), c
        )
    reference = run(whole, torch.float32)
    answers = {}
    for name, loss_of in ways.items():
        error = float((run(loss_of, torch.bfloat16).float() - reference).norm() / reference.norm())
        inputs = sum(tensor.numel() * 2 for tensor in exact)
        peak = peak_of(lambda way=loss_of: run(way, torch.bfloat16)) - inputs
        answers[name] = peak, moved_by(lambda way=loss_of: run(way, torch.bfloat16)), error
    return answers


def moved_by(work: Callable[[], object]) -> int:
    """Bytes of the tensors that all operations read and write; views move none."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves

    moved = 0

    class Count(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            nonlocal moved
            out = func(*args, **(kwargs or {}))
            if not func.is_view and "empty" not in str(func):
                moved += sum(t.nbytes for t in tree_leaves((args, kwargs, out)) if isinstance(t, torch.Tensor))
            return out

    with Count():
        work()
    return moved


def render_page(options: argparse.Namespace, answers: dict[str, tuple[int, int, float]]) -> str:
    """The page: a line for each way."""
    rows = [
        f"| {name} | {peak / MIB:,.0f} | {moved / MIB:,.0f} | {error:.1e} |"
        for name, (peak, moved, error) in answers.items()
    ]
    versions = ", ".join(f"{name} {version(name)}" for name in ("deepspeed", "torch"))
    return "\n".join(
        [
            f"# Head and loss in chunks, {datetime.now(UTC).strftime('%Y-%m-%d')}",
            "",
            f"`python benchmarks/chunked_losses.py --write`, {versions}: {options.tokens:,} tokens of"
            f" {options.size}, {options.vocabulary:,} words, bf16 on the CPU, counted and not timed.",
            "",
            "| Way | MiB at once | MiB moved | Error of the weight's gradient |",
            "| --- | ---: | ---: | ---: |",
            *rows,
            "",
        ]
    )


if __name__ == "__main__":
    sys.exit(main())
