# SPDX-License-Identifier: Apache-2.0
"""Ends of a run: SIGTERM, SIGKILL and an allocation that fails on one of two ranks, and resumes to the same weights.

Three runs are ended in their third step. A fourth start trains a run to its end, resumes the ended ones and compares
the sha256 of their master weights.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

from benchmarks.gpu_checks.check import Ending, Figures, Scene, Start
from benchmarks.gpu_checks.device import make_deterministic
from benchmarks.gpu_checks.runs import newest_checkpoint, train_run, write_run
from benchmarks.gpu_checks.training import digest_masters, llama, make_spec

MODES = ("sigterm", "sigkill", "oom")
STEPS, KILLED_AT, SAVED_AT = 5, 3, 2
TOO_LARGE = 1 << 46
"""Bytes that no machine has."""
OUT_OF_MEMORY = ("out of memory", "allocate memory")
END_SECONDS = 60.0
MEMORY_LEFT = 512 << 20


def drive(start: Start) -> Figures:
    """Start ranks in each mode, then let one start finish all."""
    folder, before = Path(start.task.folder), _used_gpu_memory()
    ended: Figures = {}
    for mode in MODES:
        ending = start(mode)
        ended[mode] = {**_describe(folder / mode, ending), "memory_left": _used_gpu_memory() - before}
    finished = start("finish")
    return {"ended": ended, "finish_codes": list(finished.codes), **finished.figures, "output": finished.output[-1500:]}


def _describe(run: Path, ending: Ending) -> Figures:
    """How a start ended: codes, seconds, the status that each rank wrote last, the newest checkpoint."""
    files = sorted((run / "status").glob("rank-*.json"))
    statuses = [json.loads(file.read_text(encoding="utf-8")) for file in files]
    saved = newest_checkpoint(run)
    return {
        "codes": list(ending.codes),
        "seconds": ending.seconds,
        "states": [status.get("state") for status in statuses],
        "errors": [str(status.get("error") or "")[:300] for status in statuses],
        "checkpoint": saved.name if saved else None,
    }


def _used_gpu_memory() -> int:
    """Bytes in use on the GPU of the ranks, of all processes; 0 without nvidia-smi."""
    command = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    first = os.environ.get("CUDA_VISIBLE_DEVICES", "").partition(",")[0]
    command += ["-i", first] if first else []  # a number or a UUID
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return 0
    return int(done.stdout.split()[0]) << 20


def measure(scene: Scene) -> Figures:
    """Train as `harness launch` does until the mode ends it; or finish."""
    make_deterministic()
    return _finish(scene) if scene.task.mode == "finish" else _train_until_ended(scene)


def _make_spec(scene: Scene) -> dict[str, Any]:
    model = llama(scene.pick(512, 32), scene.pick(2, 1))
    zero = {"stage": 3, "offload_optimizer": {"device": "cpu"}}
    checkpoint = {"save_steps": SAVED_AT, "save_at_end": True}
    return make_spec(scene.folder, model, train={"max_steps": STEPS}, zero=zero, checkpoint=checkpoint)


def _train_until_ended(scene: Scene) -> Figures:
    import harness.runtime.train as loop
    from harness.runtime.worker import WorkerArgs, run_rank

    mode, run, agree, steps = scene.task.mode, scene.folder / scene.task.mode, loop.gather_stop_reason, [0]
    if scene.distributed.is_main_process:
        write_run(run, _make_spec(scene), scene.world_size)
    scene.distributed.barrier()

    def end_here(*arguments: Any) -> Any:
        steps[0] += 1
        if steps[0] == KILLED_AT:
            _end_rank(mode, scene)
        return agree(*arguments)

    loop.gather_stop_reason = end_here
    code = run_rank(WorkerArgs(run), scene.rank)
    scene._distributed = None  # the rank has left its group
    if code:
        raise SystemExit(code)
    return {"code": code}


def _end_rank(mode: str, scene: Scene) -> None:
    import torch

    if mode == "sigterm" and scene.rank == 0:
        os.kill(os.getpid(), signal.SIGTERM)
    if mode == "sigkill" and scene.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    if mode == "oom" and scene.rank == 1:
        torch.empty(TOO_LARGE, dtype=torch.uint8, device=scene.pick("cuda", "cpu"))


def _finish(scene: Scene) -> Figures:
    """Digests, of all ranks, of a run that nobody ended and of those that were ended and resumed."""
    spec, digests = _make_spec(scene), {}
    ended = [mode for mode in scene.pick(MODES, MODES[:2]) if (scene.folder / mode).is_dir()]
    for name in ("untouched", *ended):
        folder = scene.folder / name
        resume = newest_checkpoint(folder) if name != "untouched" else None
        (folder / "stop").unlink(missing_ok=True)
        scene.distributed.barrier()
        context = train_run(scene, folder, spec, resume=resume)
        digests[name] = scene.distributed.all_gather_object(digest_masters(context.engine))
        context.engine.destroy()
    return {"sha256": digests}


def judge(figures: Figures, _rehearse: bool) -> list[str]:
    """Each end is the one that it should be, leaves a checkpoint and no process, and resumes to the same weights."""
    wanted = {"sigterm": KILLED_AT, "sigkill": SAVED_AT, "oom": SAVED_AT}
    reasons = []
    for mode, found in figures["ended"].items():
        codes = found["codes"]
        if mode == "sigterm" and (any(codes) or set(found["states"]) != {"stopped"}):
            reasons.append(f"sigterm: codes {codes}, states {found['states']}: the ranks did not stop in order")
        if mode == "sigkill" and codes[-1] != -signal.SIGKILL:
            reasons.append(f"sigkill: codes {codes}")
        if mode != "sigterm" and not all(codes):
            reasons.append(f"{mode}: codes {codes}: a rank ended well without its peer")
        if mode == "oom" and not any(w in text.lower() for text in found["errors"] for w in OUT_OF_MEMORY):
            reasons.append(f"oom: the ranks say {found['errors']}")
        if found["checkpoint"] is None or int(found["checkpoint"].rpartition("-")[2]) != wanted[mode]:
            reasons.append(f"{mode}: the newest checkpoint is {found['checkpoint']}, should be of step {wanted[mode]}")
        if found["seconds"] > END_SECONDS:
            reasons.append(f"{mode}: the ranks ended after {found['seconds']:.0f} s")
        if found["memory_left"] > MEMORY_LEFT:
            reasons.append(f"{mode}: {found['memory_left']:,} bytes are left on the GPU")
    digests = figures.get("sha256", {})
    if any(figures["finish_codes"]) or len(digests) < 1 + min(2, len(figures["ended"])):
        reasons.append(f"runs were not resumed: {figures['finish_codes']}, {figures['output'][-600:]}")
    reasons += [f"{n} resumed to other weights" for n, d in digests.items() if d != digests.get("untouched")]
    return reasons
