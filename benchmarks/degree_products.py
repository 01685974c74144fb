# SPDX-License-Identifier: Apache-2.0
"""Do the gates, the harness and DeepSpeed agree about products of degrees?

A hundred drawn runs of 1 to 8 gloo ranks: pipeline x tensor x sequence x data ranks, ZeRO stages, heads, vocabularies.
What the gates accept trains two steps and is compared with one plain process; what they refuse is put to plain
DeepSpeed, which refuses it too or does otherwise than asked, unless each gate that objects names it as the harness's
own limit. Writes nothing without --write. Ends with 1 where anything disagrees.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from datetime import date
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.conformance.judge import Judge  # noqa: E402
from tests.support.training.degree_products import OPS, PRODUCTS, SEED, Answer, draw_products, try_products  # noqa: E402
from tests.support.training.forked_ranks import ForkedRanks  # noqa: E402


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", metavar="TEXT", help="products whose name has this in it")
    parser.add_argument("--answers", type=Path, metavar="FILE", help="keep answers there; a later call adds the rest")
    parser.add_argument("--list", action="store_true", help="print the names and run nothing")
    parser.add_argument("--write", action="store_true", help="write benchmarks/results/degree-products-DATE.md")
    options = parser.parse_args()
    products = [product for product in draw_products() if options.only in product.name]
    if options.list:
        print("\n".join(product.name for product in products))
        return 0
    known = _read_answers(options.answers)
    pending = [product for product in products if product.name not in known]
    began, ranks = time.monotonic(), ForkedRanks()
    try:
        with tempfile.TemporaryDirectory(prefix="degree-products-") as folder, Judge(ops=OPS) as judge:
            for answer in try_products(pending, Path(folder), ranks, judge):
                known[answer.product.name] = (answer.kind, answer.gates, answer.text)
                if options.answers:
                    options.answers.write_text(json.dumps(known, indent=1))
                seconds = time.monotonic() - began
                print(f"{seconds:4.0f} s {_line(answer)}", file=sys.stderr, flush=True)
    finally:
        ranks.close()
    answers = [Answer(product, *known[product.name]) for product in products]
    text = render(answers)
    print(text)
    if options.write:
        (ROOT / "benchmarks" / "results" / f"degree-products-{date.today().isoformat()}.md").write_text(text)
    return int(not all(answer.is_right for answer in answers))


def _read_answers(file: Path | None) -> dict[str, tuple[str, tuple[str, ...], str]]:
    if file is None or not file.exists():
        return {}
    return {name: (kind, tuple(gates), text) for name, (kind, gates, text) in json.loads(file.read_text()).items()}


def _line(answer: Answer) -> str:
    return f"{answer.product.name}: {answer.kind} {' '.join(answer.gates)} {answer.text}"


def render(answers: Sequence[Answer]) -> str:
    """The dated result."""
    kinds = Counter(answer.kind for answer in answers)
    counts = ", ".join(f"{number} {kind}" for kind, number in kinds.most_common())
    wrong = sum(not answer.is_right for answer in answers)
    used = ", ".join(f"{name} {version(name)}" for name in ("deepspeed", "torch", "transformers"))
    lines = [
        f"# Products of degrees, {date.today().isoformat()}",
        "",
        f"{len(answers)} of {PRODUCTS} drawn products (seed {SEED}): {counts}; {wrong} disagree."
        f" `python benchmarks/degree_products.py --write` on {used}, Python {platform.python_version()}, CPU"
        f" accelerator, gloo, {os.cpu_count()} cores.",
        "",
        "`trains`: the gates accept it, and the losses of two steps in fp32 are within 1e-5 of those of one plain"
        " process; the difference is shown. `refused by both`: the gates refuse it, and plain DeepSpeed fails or does"
        " otherwise than asked. `own limit`: DeepSpeed trains it, and the gate says why the harness does not.",
        "",
        "| Ranks | Pipeline | Tensor | Sequence | ZeRO | Model | Answer | Gates | What happened |",
        "| ---: | ---: | ---: | ---: | ---: | --- | --- | --- | --- |",
    ]
    for answer in answers:
        p = answer.product
        mark = "" if answer.is_right else "**"
        cells = (p.ranks, p.pipeline, p.tensor, p.sequence, p.stage, p.shape, f"{mark}{answer.kind}{mark}")
        text = answer.text.replace("|", "/")[:150]
        lines.append(f"| {' | '.join(map(str, cells))} | {' '.join(answer.gates)} | {text} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    raise SystemExit(main())
