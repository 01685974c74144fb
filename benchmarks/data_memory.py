# SPDX-License-Identifier: Apache-2.0
"""Does preparing a large file take more memory than preparing a small one?

Writes JSON Lines of chats into a temporary folder, small and large, prepares each in a process of its own, and reads
the peak resident set that the kernel counted for it, mapped files included; the peak of anonymous memory, which is what
a machine must have, is sampled beside it. Writes nothing without --write.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import subprocess
import sys
import tempfile
import threading
import time
from datetime import date
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
WORDS = "the model reads one record after the other and keeps none of them in memory while it goes on".split()
CHILD = """
import json, sys
sys.path.insert(0, {root!r})
from pathlib import Path
from harness.run.resolved_run import resolve_run
from harness.runtime.dataset.cache import prepare_or_reuse
from harness.runtime.tokenizer import EOS_TOKEN, PAD_TOKEN, byte_tokenizer
from harness.spec.run_spec import RunSpec
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast
core = Tokenizer(models.BPE())
core.pre_tokenizer, core.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
letters = pre_tokenizers.ByteLevel.alphabet()
trainer = trainers.BpeTrainer(vocab_size=400, initial_alphabet=letters, show_progress=False)
core.train_from_iterator([{words!r}], trainer)
template = byte_tokenizer().chat_template
tokenizer = PreTrainedTokenizerFast(
    tokenizer_object=core, eos_token=EOS_TOKEN, pad_token=PAD_TOKEN, chat_template=template
)
data = {{"train": {file!r}, "cache_dir": {cache!r}, "max_length": 2048, "packing": {packing}, "num_proc": 1}}
_, found, _ = prepare_or_reuse(resolve_run(RunSpec.model_validate_json(json.dumps({{"data": data}}))), tokenizer)
rows = sum(part.rows for part in found.train)
print(json.dumps([found.train_documents, found.train_tokens, found.train_tokens / rows / 2048]))
"""


def write_chats(path: Path, size: int) -> None:
    """About `size` bytes of chats, of two to six turns of 5 to 300 words."""
    rng, written = random.Random(1), 0  # noqa: S311  (words, no secrets)
    with path.open("w", encoding="utf-8") as file:
        while written < size:
            turns = []
            for i in range(2 * rng.randint(1, 3)):
                words = " ".join(rng.choices(WORDS, k=min(300, 5 + int(rng.expovariate(1 / 60)))))
                turns.append({"role": ("user", "assistant")[i % 2], "content": words})
            written += file.write(json.dumps({"messages": turns}) + "\n")


def measure(file: Path, cache: Path, *, packing: bool) -> dict[str, float]:
    """Peak resident and anonymous bytes, seconds, and what was prepared."""
    code = CHILD.format(root=str(ROOT), file=str(file), cache=str(cache), packing=packing, words=" ".join(WORDS))
    began = time.monotonic()
    environment = {**os.environ, "HARNESS_PROGRESS": "none", "OMP_NUM_THREADS": "1"}
    child = subprocess.Popen([sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE, text=True)
    anonymous = [0]
    watcher = threading.Thread(target=_watch, args=(child.pid, anonymous), daemon=True)
    watcher.start()
    said = child.stdout.read() if child.stdout else ""
    _, status, usage = os.wait4(child.pid, 0)
    if status:
        raise SystemExit(f"preparing {file} failed")
    records, tokens, filled = json.loads(said)
    return {
        "file": file.stat().st_size,
        "records": records,
        "tokens": tokens,
        "filled": filled,
        "resident": usage.ru_maxrss * 1024,
        "anonymous": anonymous[0],
        "seconds": time.monotonic() - began,
    }


def _watch(pid: int, peak: list[int]) -> None:
    while True:
        try:
            lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        except OSError:
            return
        found = next((line for line in lines if line.startswith("RssAnon")), None)
        if found is None:
            return
        peak[0] = max(peak[0], int(found.split()[1]) * 1024)
        time.sleep(0.05)


def table(rows: list[dict[str, float]]) -> str:
    """A Markdown table, MiB."""
    head = "| File | Records | Tokens | Peak resident | Peak anonymous | Positions used | Seconds |"
    lines = [head, "|" + " ---: |" * 7]
    for row in rows:
        mib = [f"{row[k] / 2**20:,.0f} MiB" for k in ("file", "resident", "anonymous")]
        lines.append(
            f"| {mib[0]} | {row['records']:,.0f} | {row['tokens']:,.0f} | {mib[1]} | {mib[2]} | {row['filled']:.2%} "
            f"| {row['seconds']:.0f} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=[50, 1000], metavar="MB", help="of the files")
    parser.add_argument("--no-packing", action="store_true", help="one record a row")
    parser.add_argument("--write", action="store_true", help="write benchmarks/results/data-memory-DATE.md, too")
    arguments = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for size in arguments.sizes:
            file = Path(folder) / f"{size}.jsonl"
            write_chats(file, size * 1_000_000)
            rows.append(measure(file, Path(folder) / "cache", packing=not arguments.no_packing))
            print(f"{size} MB: {rows[-1]['anonymous'] / 2**20:,.0f} MiB anonymous", file=sys.stderr, flush=True)
            file.unlink()
    grown = (rows[-1]["anonymous"] - rows[0]["anonymous"]) / 2**20
    machine = f"Python {platform.python_version()}, {os.cpu_count()} cores"
    text = f"{table(rows)}\n\nChats, a small BPE, sequences of 2,048, one process; {machine}. Resident counts the "
    text += "mapped token files that happen to be in memory and can be dropped at any time; anonymous is what must be "
    text += "there.\n"
    text += f"From the smallest file to the largest, anonymous memory grew by {grown:,.0f} MiB.\n"
    print(text, end="")
    if arguments.write:
        target = ROOT / "benchmarks" / "results" / f"data-memory-{date.today().isoformat()}.md"
        target.write_text(f"# Memory of preparing data, {date.today().isoformat()}\n\n{text}", encoding="utf-8")
        print(f"wrote {target.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
