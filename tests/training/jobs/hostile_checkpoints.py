# SPDX-License-Identifier: Apache-2.0
"""Resumes of one rank from checkpoints that somebody else made: `hostile_checkpoints.py FOLDER`.

The attacks are below, by the name of their attempt in `tests/security/test_hostile_resume.py`. FOLDER/outcomes.json has
for each: the finding's id and message, or "loaded", or the exception's type.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from harness.checkpoints.manifest import write_manifest
from harness.errors import UserError
from harness.render import render_ds_config
from harness.run.resolved_run import resolve_run
from harness.runtime import train as loop
from harness.runtime.checkpoint import restore_checkpoint
from harness.runtime.distributed import destroy_process_group, init_process_group
from harness.runtime.rank_status import RankStatusWriter
from harness.runtime.run_config import RunDir
from harness.runtime.step_timer import StepTimer
from harness.runtime.train_context import TrainContext, build_context
from harness.runtime.worker import _load_run_config_on_all_ranks, _set_log_levels
from harness.spec.run_spec import RunSpec
from tests.support.training.runtime_helpers import TINY

STEP = "step-00000003"
OPTIMIZER = "global_step3/zero_pp_rank_0_mp_rank_00_optim_states.pt"
MODEL = "global_step3/mp_rank_00_model_states.pt"
WEIGHT = "zero/model.norm.weight"
Change = Callable[[Any], Any]


class Call:
    """Pickled as a call of a function."""

    def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:
        self.function, self.arguments = function, arguments

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return self.function, self.arguments


def endless_tensor() -> Call:
    """2^40 elements in 16 bytes."""
    storage = torch.storage.TypedStorage(
        wrap_storage=torch.zeros(4).untyped_storage(), dtype=torch.float32, _internal=True
    )
    return Call(torch._utils._rebuild_tensor_v2, storage, 0, (2**40,), (0,), False, OrderedDict())


def base_state(content: Any) -> Any:
    return content["optimizer_state_dict"]["base_optimizer_state"]


def set_key(get: Change, key: Any, value: Any) -> Change:
    def change(content: Any) -> Any:
        get(content)[key] = value
        return content

    return change


def made_dir(folder: Path) -> Call:
    return Call(os.mkdir, str(folder / "marker"))


def same_layout(folder: Path) -> dict[str, tuple[str, Change]]:
    """Attacks by a shard: the file, and what becomes of its content."""
    step = set_key(lambda c: base_state(c)["state"][0], "step", 2**60)
    return {
        "K53": (OPTIMIZER, set_key(lambda c: base_state(c)["state"][0], "exp_avg", torch.zeros(7))),
        "K54": (OPTIMIZER, set_key(lambda c: base_state(c)["state"][0], "exp_avg", endless_tensor())),
        "K55": (OPTIMIZER, set_key(lambda c: base_state(c)["param_groups"][0], "betas", "fast")),
        "K56": (OPTIMIZER, step),
        "K57": (MODEL, set_key(lambda c: c, "lr_scheduler", None)),
        "K58": (OPTIMIZER, lambda _: made_dir(folder)),
    }


def converted(folder: Path) -> dict[str, Callable[[Path], None]]:
    """Attacks by `checkpoints/universal`, which another resume has written."""

    def hollow(universal: Path) -> None:
        torch.save({"param": torch.zeros(3)}, universal / WEIGHT / "exp_avg.pt")

    def link(universal: Path) -> None:
        elsewhere = shutil.copytree(universal / WEIGHT, folder / "elsewhere")
        shutil.rmtree(universal / WEIGHT)
        (universal / WEIGHT).symlink_to(elsewhere)

    def link_all(universal: Path) -> None:
        shutil.move(universal.parent, folder / "private")
        (folder / "private" / STEP / "universal.json").unlink()
        universal.parent.symlink_to(folder / "private")

    return {
        "K50": lambda universal: torch.save(made_dir(folder), universal / WEIGHT / "fp32.pt"),
        "K51": link,
        "K52": link_all,
        "K60": hollow,
        "K61": lambda universal: (universal / "groups.json").write_text("[]"),
    }


def sign(checkpoint: Path) -> None:
    """A manifest that agrees with the files, which needs no key."""
    body = json.loads((checkpoint / "manifest.json").read_text())
    del body["checksum"]
    for name, record in body["files"].items():
        data = (checkpoint / name).read_bytes()
        record |= {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    write_manifest(checkpoint, body)


class Attacks:
    """One engine after the other, in FOLDER."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.ranks = folder, init_process_group()
        (folder / "text.txt").write_text("".join(f"{i} and {i + 7}, and no more.\n" for i in range(400)))
        self.outcomes: dict[str, list[str]] = {}

    def build(self, name: str, stage: int, steps: int) -> TrainContext:
        """The engine of a run directory NAME."""
        spec = {
            "model": {"config": TINY, "tokenizer": "bytes"},
            "data": {"train": str(self.folder / "text.txt"), "max_length": 32},
            "train": {"max_steps": steps, "global_batch_size": 2, "per_device_train_batch_size": 1},
            "optimizer": {"learning_rate": 3e-3},
            "zero": {"stage": stage},
            "checkpoint": {"save_steps": 3},
        }
        resolved = resolve_run(RunSpec.model_validate_json(json.dumps(spec)), world_size=1)
        run_dir = RunDir(self.folder / name)
        run_dir.root.mkdir()
        (run_dir.root / "spec.resolved.json").write_text(json.dumps(resolved.to_json()))
        (run_dir.root / "ds_config.json").write_text(json.dumps(dict(render_ds_config(resolved).config)))
        orders = _load_run_config_on_all_ranks(run_dir, self.ranks)
        _set_log_levels("error")
        return build_context(orders, run_dir, self.ranks, RankStatusWriter(run_dir, 0))

    def resume(self, name: str, ctx: TrainContext, checkpoint: Path) -> None:
        """Resume, and take a step: note what came of it."""
        try:
            state = restore_checkpoint(ctx, checkpoint, ("train",))
            batch = ctx.train_data.batch_at(state.position)
            ctx.stepper.train_step(batch.micro_batches, batch.num_targets, StepTimer())
            self.outcomes[name] = ["loaded", ""]
        except UserError as refused:
            self.outcomes[name] = [refused.findings[0].gate, refused.findings[0].message]
        except Exception as error:
            self.outcomes[name] = [type(error).__name__, str(error)]

    def run(self) -> None:
        """All attacks."""
        source = self.build("source", 1, 3)
        loop.train(source, None)
        source.metrics.close()
        source.engine.destroy()  # type: ignore[attr-defined]  # the harness itself never calls it
        saved = self.folder / "source/checkpoints" / STEP
        for stage, attack in ((1, self.attack_shards), (3, self.attack_conversion)):
            ctx = self.build(f"stage{stage}", stage, 9)
            checkpoint = self.folder / f"stage{stage}/checkpoints" / STEP
            shutil.copytree(saved, checkpoint)
            attack(ctx, checkpoint)
            ctx.metrics.close()
            ctx.engine.destroy()  # type: ignore[attr-defined]  # the harness itself never calls it

    def attack_shards(self, ctx: TrainContext, checkpoint: Path) -> None:
        """In the layout of the checkpoint."""
        for name, (file, change) in same_layout(self.folder).items():
            content = (checkpoint / file).read_bytes()
            torch.save(change(torch.load(checkpoint / file, weights_only=False)), checkpoint / file)
            sign(checkpoint)
            self.resume(name, ctx, checkpoint)
            (checkpoint / file).write_bytes(content)
            sign(checkpoint)
            self.resume("sound", ctx, checkpoint)

    def attack_conversion(self, ctx: TrainContext, checkpoint: Path) -> None:
        """In another layout, from a conversion that is there already."""
        universal = checkpoint.parent / "universal" / STEP
        for name, change in converted(self.folder).items():
            self.resume("sound", ctx, checkpoint)
            change(universal)
            self.resume(name, ctx, checkpoint)
            if universal.parent.is_symlink():
                universal.parent.unlink()
            shutil.rmtree(universal.parent, ignore_errors=True)


def main() -> None:
    attacks = Attacks(Path(sys.argv[-1]))
    attacks.run()
    (attacks.folder / "outcomes.json").write_text(json.dumps(attacks.outcomes))
    destroy_process_group()


if __name__ == "__main__":
    main()
