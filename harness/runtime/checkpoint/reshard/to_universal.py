# SPDX-License-Identifier: Apache-2.0
"""Convert a checkpoint of any layout into DeepSpeed's universal layout, tensor by tensor.

    zero/NAME/fp32.pt        {"param": the whole tensor}, and so for each of the optimizer's states
    zero/NAME/step.pt        the optimizer's count of steps
    zero/optimizer_state.pt  settings of the optimizer's groups, in the forms that stages 1 and 2 and stage 3 read
    *model_states.pt         counters and schedule, no weights, under the names that DeepSpeed looks for
    universal.json           written last: the source of the conversion

NAME is the name in `transformers`. An incomplete folder never gets its final name.
"""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from harness import input_limits
from harness.checkpoints.manifest import UNIVERSAL, Manifest
from harness.errors import UserError, user_error
from harness.file_io import parse_json, read_regular, replace_file
from harness.runtime.checkpoint.consolidate import WEIGHT, FullWeights, open_checkpoint
from harness.runtime.checkpoint.disk_space import free_bytes
from harness.runtime.distributed import divide_over_ranks
from harness.runtime.run_config import RunDir
from harness.runtime.train_context import TrainContext
from harness.units import format_bytes

FORMAT_VERSION = 1
SOURCE_FILE = "universal.json"
_MODEL_STATE_KEYS = ("lr_scheduler", "global_steps", "global_samples", "skipped_steps", "ds_version")
_SPARE_BYTES = 64 << 20


def universal_folder(run_dir: RunDir) -> Path:
    """The folder of a run's conversions, until it has saved a checkpoint in its own layout."""
    return run_dir.checkpoints / "universal"


def remove_converted(run_dir: RunDir) -> None:
    """Remove the conversions. Call it on one rank."""
    shutil.rmtree(universal_folder(run_dir), ignore_errors=True)


def convert_to_universal(ctx: TrainContext, folder: Path, manifest: Manifest) -> Path:
    """The universal folder of checkpoint `folder`, converted unless it exists. A collective: each rank writes a share.

    Raises UserError on all ranks (CK105, CK120, CK131 the source; CK121 no room or not writable; CK122 hosts apart).
    """
    if manifest.get("layout") == UNIVERSAL:
        return folder / manifest.tag
    distributed, source = ctx.distributed, {"format_version": FORMAT_VERSION, "checksum": manifest["checksum"]}
    out = universal_folder(ctx.run_dir) / folder.name
    if distributed.call_or_fail_everywhere(lambda: _is_converted(out, source)):
        return out
    weights = distributed.call_or_fail_everywhere(lambda: _open_source(folder, manifest))
    temporary = out.with_name(f".tmp-{out.name}")
    if distributed.is_main_process:
        _log(f"converting `{folder}` for another layout, {format_bytes(universal_bytes(weights))}")
    distributed.call_or_fail_everywhere(
        lambda: _create_folder(temporary, out, universal_bytes(weights)) if distributed.is_main_process else None
    )
    shares = assign_params(weights, distributed.world_size)
    on_progress = _progress_logger(len(shares[0])) if distributed.is_main_process else None
    error = None
    with ctx.status.enter_phase("data"):  # the phase without a time limit: others wait for the slowest rank
        try:
            names = shares[distributed.rank]
            _call_reporting_io_errors(temporary, lambda: write_params(weights, temporary, names, on_progress))
            if distributed.is_main_process:
                _call_reporting_io_errors(temporary, lambda: write_metadata(weights, temporary, manifest))
        except UserError as refusal:
            error = refusal
        distributed.long_barrier()
    distributed.raise_everywhere(error)
    distributed.call_or_fail_everywhere(
        lambda: _publish_folder(temporary, out, source) if distributed.is_main_process else None
    )
    distributed.barrier()
    return out


def assign_params(weights: FullWeights, world_size: int) -> list[list[str]]:
    """Names by rank, so that all have about the same to write."""
    shapes = sorted(weights.shapes.items(), key=lambda item: (-item[1].numel(), item[0]))
    loads = ((name, shape.numel() * len(weights.states.get(name, (WEIGHT,)))) for name, shape in shapes)
    return divide_over_ranks(loads, world_size)


def universal_bytes(weights: FullWeights) -> int:
    """Bytes of the universal folder, at 4 bytes an element."""
    return sum(4 * shape.numel() * len(weights.states.get(name, (WEIGHT,))) for name, shape in weights.shapes.items())


def write_params(
    weights: FullWeights, out: Path, names: list[str], on_progress: Callable[[int], None] | None = None
) -> None:
    """Write these parameters with their states; memory holds one tensor at a time."""
    for i, name in enumerate(names, start=1):
        folder = out / "zero" / name
        folder.mkdir(parents=True, exist_ok=True)
        for key in weights.states.get(name, (WEIGHT,)):
            torch.save({"param": weights.get(name, key)}, folder / f"{key}.pt")
        if name in weights.states and weights.step is not None:
            torch.save(weights.step, folder / "step.pt")
        if on_progress is not None:
            on_progress(i)


def write_metadata(weights: FullWeights, out: Path, manifest: Manifest) -> None:
    """Write settings, counters and the schedule, in every form that DeepSpeed reads."""
    groups = [{**group.options, "params": []} for group in weights.groups]
    state = {
        "ds_version": weights.model_states["ds_version"],
        "param_groups": groups,
        "optimizer_state_dict": {"param_groups": groups, "state": {0: {"step": weights.step}}},
        **weights.loss_scaler,
    }
    (out / "zero").mkdir(parents=True, exist_ok=True)
    torch.save(state, out / "zero" / "optimizer_state.pt")
    head = {key: weights.model_states[key] for key in _MODEL_STATE_KEYS if key in weights.model_states}
    head |= {"module": None, "dp_world_size": weights.model_states["dp_world_size"], "mp_world_size": 1}
    head |= {"universal_checkpoint_info": {"universal_checkpoint_version": 0.2}}
    for name in ("mp_rank_00_model_states.pt", "zero_pp_rank_0_mp_rank_00_model_states.pt"):
        torch.save(head, out / name)
    groups_by_name = [{"options": _plain_options(g.options), "names": g.names} for g in weights.groups]
    step = None if weights.step is None else int(weights.step)
    body = {"groups": groups_by_name, "step": step, "dtype": manifest["dtype"]}
    (out / "groups.json").write_text(json.dumps(body), encoding="utf-8")


def _plain_options(options: dict[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in options.items() if isinstance(v, str | int | float | bool | list | tuple | type(None))}


def _open_source(folder: Path, manifest: Manifest) -> FullWeights:
    if manifest.get("layout") == "per-host":
        raise user_error(
            "CK122",
            f"`{folder}` has the shards of each host only on that host, and this run needs another layout",
            fix="copy the shards of all hosts into one shared folder, or resume in the checkpoint's layout",
        )
    return open_checkpoint(folder, manifest.body)


def _is_converted(out: Path, source: dict[str, Any]) -> bool:
    """Is this the complete conversion of `source`, without a link in it? No conversion has one."""
    try:
        body = parse_json(read_regular(out / SOURCE_FILE, input_limits.RUN_FILE, follow=False))
    except (OSError, ValueError):
        return False
    return bool(body == source) and not any(p.is_symlink() for p in (out.parent, out, *out.rglob("*")))


def _create_folder(temporary: Path, out: Path, size: int) -> None:
    """Create an empty folder with enough free space. Raises UserError (CK121)."""

    def create() -> None:
        for old in (out.parent, temporary, out):
            if old.is_symlink():  # of somebody else: what it names is not ours
                old.unlink()
        for old in (temporary, out):
            shutil.rmtree(old, ignore_errors=True)
        temporary.mkdir(parents=True)
        free = free_bytes(temporary)
        if free < size + _SPARE_BYTES:
            temporary.rmdir()
            raise user_error(
                "CK121",
                f"the conversion needs {format_bytes(size + _SPARE_BYTES)} in `{out.parent}`,"
                f" where {format_bytes(free)} are free",
                notes=("the checkpoint was saved in another layout: ranks, ZeRO stage, offload or degrees",),
                fix="make room there, or resume with the checkpoint's layout",
            )

    _call_reporting_io_errors(temporary, create)


def _call_reporting_io_errors(folder: Path, work: Callable[[], None]) -> None:
    """Call `work`, and turn an error of the file system into a finding."""
    try:
        work()
    except (OSError, RuntimeError) as error:  # torch.save raises RuntimeError when the disk is full
        raise user_error(
            "CK121",
            f"the conversion could not be written to `{folder}`",
            notes=((str(error).strip() or type(error).__name__).splitlines()[0][:200],),
            fix="make room there, or resume with the checkpoint's layout",
        ) from None


def _publish_folder(temporary: Path, out: Path, source: dict[str, Any]) -> None:
    replace_file(temporary / SOURCE_FILE, json.dumps(source) + "\n")
    temporary.replace(out)


def _progress_logger(total: int) -> Callable[[int], None]:
    """A callback that logs the progress every few seconds."""
    logged_at = time.monotonic()

    def log_progress(i: int) -> None:
        nonlocal logged_at
        if time.monotonic() - logged_at > 5:
            _log(f"converting: {i} of {total} tensors of this rank")
            logged_at = time.monotonic()

    return log_progress


def _log(text: str) -> None:
    sys.stderr.write(text + "\n")
    sys.stderr.flush()
