# SPDX-License-Identifier: Apache-2.0
"""Memory of an import: shards of a made-up ZeRO-3 save with a billion parameters, and the peak of their reader.

    python benchmarks/import_memory.py [--parameters N] [--ranks R] [--folder DIR] [--write]

Needs 24 bytes of disk a parameter. The peak is that of the worker's own memory (`RssAnon`), and with the mapped pages
of the shards (`VmHWM`). `--write` keeps it in `benchmarks/results/import-memory-DATE.md`.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parents[1]
SHAPE = (4096, 4096)


def write_shards(tag: Path, parameters: int, ranks: int) -> int:
    """A save with as many matrices as that takes; returns the bytes of one optimizer shard."""
    tag.mkdir(parents=True)
    names = {f"model.layers.{i}.weight": torch.Size(SHAPE) for i in range(max(1, round(parameters / (4096 * 4096))))}
    piece = len(names) * 4096 * 4096 // ranks
    for rank in range(ranks):
        vectors = [torch.empty(piece).fill_(rank + part) for part in range(3)]
        adam = {"step": 20, "exp_avg": vectors[1], "exp_avg_sq": vectors[2]}
        state = {
            "zero_stage": 3,
            "partition_count": ranks,
            "optimizer_state_dict": {"state": {0: adam}, "param_groups": [{"lr": 1e-3, "params": [0]}]},
            "fp32_flat_groups": [vectors[0]],
        }
        torch.save({"optimizer_state_dict": state}, tag / f"zero_pp_rank_{rank}_mp_rank_00_optim_states.pt")
        head = {
            "module": {}, "buffer_names": [], "param_shapes": [names], "shared_params": {}, "global_steps": 20,
            "global_samples": 160, "skipped_steps": 0, "dp_world_size": ranks, "mp_world_size": 1,
            "ds_version": "0.19.8", "lr_scheduler": None, "ds_config": {"train_batch_size": 8},
        }  # fmt: skip
        torch.save(head, tag / f"zero_pp_rank_{rank}_mp_rank_00_model_states.pt")
    return (tag / "zero_pp_rank_0_mp_rank_00_optim_states.pt").stat().st_size


def measure(folder: Path) -> tuple[int, int, float]:
    """Peak of the worker's own memory, peak with mapped pages, in bytes, and seconds."""
    request = {
        "action": "import", "tag": str(folder / "save/global_step20"), "folder": str(folder / "save"),
        "run": str(folder / "run"), "settings": {}, "model": None, "global_batch": 8,
    }  # fmt: skip
    file = folder / "request.json"
    file.write_text(json.dumps(request))
    worker = [sys.executable, str(ROOT / "harness/workers/foreign_checkpoint_worker.py"), str(file)]
    started, own, mapped = time.monotonic(), 0, 0
    process = subprocess.Popen(worker, env={**os.environ, "OMP_NUM_THREADS": "1"})
    while process.poll() is None:
        try:
            status = Path(f"/proc/{process.pid}/status").read_text().splitlines()
        except OSError:
            break
        values = {line.split(":")[0]: int(line.split()[1]) * 1024 for line in status if line.endswith(" kB")}
        own, mapped = max(own, values.get("RssAnon", 0)), max(mapped, values.get("VmHWM", 0))
        time.sleep(0.02)
    if process.wait():
        raise SystemExit(process.returncode)
    return own, mapped, time.monotonic() - started


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parameters", type=int, default=1_000_000_000)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="import-memory-", dir=arguments.folder))
    try:
        shard = write_shards(folder / "save/global_step20", arguments.parameters, arguments.ranks)
        own, mapped, seconds = measure(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    today, gib = datetime.datetime.now(tz=datetime.UTC).date(), 2**30
    text = (
        f"{arguments.parameters:,} parameters on {arguments.ranks} ranks, {today}: a shard has {shard / gib:.2f} GiB; "
        f"the import's own memory was at most {own / gib:.2f} GiB ({own / shard:.2f} shards), "
        f"{mapped / gib:.2f} GiB with mapped pages ({mapped / shard:.2f} shards), in {seconds:.0f} s"
    )
    print(text)
    if arguments.write:
        (ROOT / f"benchmarks/results/import-memory-{today}.md").write_text(
            f"# Memory of an import, {today}\n\n{text}\n", encoding="utf-8"
        )
    return 0 if mapped < 1.2 * shard else 1


if __name__ == "__main__":
    raise SystemExit(main())
