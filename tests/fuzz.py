# SPDX-License-Identifier: Apache-2.0
"""Files that nobody would write, put through all of `validate-config`: findings or a verdict, never a traceback or a hang.

`python -m tests.fuzz --minutes 10 --seed 1`; `tests/test_fuzz.py` runs some seconds of it.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import random
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import yaml

from harness.cli.output_format import FindingsFormat
from harness.cli.validate_config import validate_config
from harness.facts.deepspeed_keys import block_keys, block_paths
from harness.spec.run_spec import RunSpec

ROOT = Path(__file__).parents[1]
RECIPES = [path.read_text() for path in sorted((ROOT / "ds_configs").glob("*.*")) if path.suffix in (".yaml", ".json")]
KEYS = [(path, name) for path in block_paths() for name in block_keys(path) or ()]
FIELDS = [(s, n) for s, f in RunSpec.model_fields.items() for n in getattr(f.annotation, "model_fields", {"": 0})]
ODD: list[Any] = [
    None, True, False, 0, 1, -1, 2, 3, 1.5, 5e8, float("nan"), float("inf"), 10**30, "auto", "8", "", "cpu", "nvme", "x",
    "\u00e9", "$X", "$(id)", "a\nb", [], [1], [[]], {}, {"a": 1}, {"device": "cpu"}, {"enabled": True}, {"stage": 3},
    {"type": "Adam", "params": {"lr": "auto"}}, {"device": "nvme", "nvme_path": "/nvme"}, list(range(50)),
]  # fmt: skip
SLOWEST = 10.0
"""CPU seconds for one file beyond which it counts as a hang."""


def deepspeed_json(draw: random.Random) -> tuple[str, bytes]:
    """Documented keys with values of any kind."""
    config: dict[str, Any] = {"train_micro_batch_size_per_gpu": 1} if draw.random() < 0.5 else {}
    for path, name in draw.choices(KEYS, k=draw.randint(1, 12)):
        node = config
        for part in path.split(".") if path else ():
            node = node.setdefault(part, {}) if isinstance(node.get(part, {}), dict) else {}
        node[name] = deepcopy(draw.choice(ODD))
    return "a.json", json.dumps(config).encode()


def run_spec(draw: random.Random) -> tuple[str, bytes]:
    """Fields of the run spec with values of any kind, some of them DeepSpeed's own."""
    spec: dict[str, Any] = {}
    for section, name in draw.choices(FIELDS, k=draw.randint(1, 10)):
        if name and isinstance(spec.setdefault(section, {}), dict):
            spec[section][name] = deepcopy(draw.choice(ODD))
        elif not name:
            spec[section] = deepcopy(draw.choice(ODD))
    if draw.random() < 0.5:
        spec["deepspeed"] = json.loads(deepspeed_json(draw)[1])
    return "a.yaml", yaml.safe_dump(spec).encode()


def torn_recipe(draw: random.Random) -> tuple[str, bytes]:
    """A good file with bytes lost, doubled, swapped or replaced."""
    text = bytearray(draw.choice(RECIPES).encode())
    for _ in range(draw.randint(1, 6)):
        at = draw.randrange(len(text) or 1)
        match draw.randrange(4):
            case 0:
                del text[at : at + draw.randint(1, 20)]
            case 1:
                text[at:at] = text[at : at + draw.randint(1, 30)]
            case 2:
                text[at : at + 1] = bytes([draw.randrange(256)])
            case _:
                text[at:at] = draw.choice(
                    [b": ", b"{", b"]", b'"', b"\n", b"\n  ", b"&a ", b"*a", b"!!int ", b"- ", b"#", b"\t"]
                )
    return draw.choice(["a.yaml", "a.json"]), bytes(text)


def any_bytes(draw: random.Random) -> tuple[str, bytes]:
    """Noise."""
    alphabet = draw.choice([bytes(range(256)), b"{}[]\",:\n#/ 'ax1.-$\t", b"ab: -\n[]{}&*!|>%@`'\""])
    return draw.choice(["a.yaml", "a.json"]), bytes(draw.choice(alphabet) for _ in range(draw.randint(0, 300)))


MAKERS: tuple[Callable[[random.Random], tuple[str, bytes]], ...] = (deepspeed_json, run_spec, torn_recipe, any_bytes)


def one(seed: int, folder: Path) -> str:
    """Check the file of a seed in one of the formats; what went wrong, or nothing."""
    draw = random.Random(seed)  # noqa: S311
    name, content = draw.choice(MAKERS)(draw)
    file = folder / name
    file.write_bytes(content)
    diff = draw.random() < 0.3
    options = {
        "format": FindingsFormat(draw.choice(["text", "json", "github", "sarif"])),
        "world_size": draw.choice([None, 1, 2, 8]),
        "deepspeed_version": draw.choice(["0.14.5", "0.16.9", "0.18.3", "0.19.8"]),
        "diff": diff,
        "unsafe_fixes": diff and draw.random() < 0.5,
    }
    output = io.StringIO()
    began, code = time.process_time(), 0
    try:
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
            validate_config([str(file)], **options)
    except SystemExit as end:
        code = int(end.code or 0)
    except BaseException:
        return f"seed {seed}: {traceback.format_exc()}"
    if (took := time.process_time() - began) > SLOWEST:
        return f"seed {seed}: {took:.0f} s"
    if "GT001" in output.getvalue():
        return f"seed {seed}: a gate failed: {output.getvalue()[:2000]}"
    return "" if code in (0, 1, 2) else f"seed {seed}: exit code {code}"


def fuzz(seconds: float, seed: int) -> tuple[int, list[str]]:
    """How many files were checked in that time, and what went wrong."""
    wrong, count, end = [], 0, time.monotonic() + seconds
    with tempfile.TemporaryDirectory() as folder:
        while time.monotonic() < end:
            told = one(seed * 1_000_000 + count, Path(folder))
            wrong += [told] if told else []
            count += 1
    return count, wrong


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    count, wrong = fuzz(asked.minutes * 60, asked.seed)
    print(f"{count} files in {asked.minutes:g} minutes, seed {asked.seed}: {len(wrong)} went wrong")
    print(*wrong[:20], sep="\n\n")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
