# SPDX-License-Identifier: Apache-2.0
"""The two sides of a comparison: the same training with a patch switched off in the run spec, and as the spec's default
has it. For ranks that are forked; DeepSpeed is imported by the first engine.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch

from harness.render import render_ds_config
from harness.run.resolved_run import resolve_run
from harness.spec.run_spec import RunSpec
from tests.support.training.runtime_helpers import TINY

LLAMA = {**TINY, "attention_dropout": 0.0, "tie_word_embeddings": True}
WORDS = "the of a shard rank step loss token gradient swaps gathers keeps every when weights".split()


class Measurement(NamedTuple):
    """`fault`: what the patch is against, as a number that is 0 without it. `result`: all that must be the same to the
    bit. `details` are for tests of one patch alone.
    """

    fault: float
    result: Any = None
    details: Any = None


class Side:
    """Trains with these patches switched off. `states` are those of all patches, `not needed` where no run so far was in
    need of one.
    """

    def __init__(self, folder: Path, switches: Any = "auto") -> None:
        from harness.patches.no_mlflow import import_deepspeed

        import_deepspeed(switches)
        from harness.runtime.distributed import init_process_group

        self.folder, self.switches = folder, switches
        self.distributed = init_process_group()
        self.states: dict[str, str] = {}
        self.folder.mkdir(parents=True, exist_ok=True)

    def resolve(self, **sections: Any) -> Any:
        """The run of a spec with these sections."""
        spec = RunSpec.model_validate_json(json.dumps(self._spec(sections)))
        return resolve_run(spec, world_size=self.distributed.world_size)

    def build(self, model: torch.nn.Module, **sections: Any) -> Any:
        """The harness's engine around a model, for a spec with these sections."""
        from harness.runtime.engine import build_engine, install_step
        from harness.runtime.patch_selection import resolve_patches

        run = self.resolve(**sections)
        config = dict(render_ds_config(run).config)
        patches = resolve_patches(run, config, is_main_process=self.distributed.is_main_process)
        engine = build_engine(run, config, model, run.spec.train.max_steps, patches, self.distributed)
        is_main = self.distributed.is_main_process
        self._add_states(
            install_step(
                engine, patches, self.distributed, is_main_process=is_main, overlap_gib=run.spec.zero.overlap_step_gib
            )
        )
        return engine

    def train(
        self,
        name: str,
        *,
        resume: Path | None = None,
        change: Callable[[Any], Any] = lambda _: None,
        **sections: Any,
    ) -> Any:
        """The harness's loop to its end, in the run directory `name`; returns its context, to which `change` is done
        before the first step.
        """
        from harness.runtime.rank_status import RankStatusWriter
        from harness.runtime.run_config import RunDir
        from harness.runtime.train import train
        from harness.runtime.train_context import build_context
        from harness.runtime.worker import _load_run_config_on_all_ranks, _set_log_levels

        folder = self.folder / name
        if self.distributed.is_main_process:
            run = self.resolve(**sections)
            for part in ("logs", "status", "checkpoints"):
                (folder / part).mkdir(parents=True)
            (folder / "spec.resolved.json").write_text(json.dumps(run.to_json()))
            (folder / "ds_config.json").write_text(render_ds_config(run).json_text)
        self.distributed.barrier()
        run_dir = RunDir(folder)
        run_config = _load_run_config_on_all_ranks(run_dir, self.distributed)
        _set_log_levels("error")
        status = RankStatusWriter(run_dir, self.distributed.rank)
        ctx = build_context(run_config, run_dir, self.distributed, status, is_resumed=resume is not None)
        self._add_states(ctx.patches)
        change(ctx)
        train(ctx, resume)
        ctx.metrics.close()
        self.distributed.barrier()
        return ctx

    def rows(self, name: str) -> list[dict[str, Any]]:
        """The lines of the run's steps in its metrics.jsonl."""
        lines = map(json.loads, (self.folder / name / "metrics.jsonl").read_text().splitlines())
        return [line for line in lines if line["type"] == "step"]

    def _add_states(self, patches: Any) -> None:
        self.states = {**patches.to_json(), **{k: v for k, v in self.states.items() if v != "not needed"}}

    def close(self) -> None:
        """Leave the process group."""
        from harness.runtime.distributed import destroy_process_group

        destroy_process_group()

    def _spec(self, sections: dict[str, Any]) -> dict[str, Any]:
        text = self.folder.parent / "text.txt"
        text.write_text("\n".join(" ".join(WORDS[: 3 + n % 12]) for n in range(200)))
        base: dict[str, Any] = {
            "name": "patch",
            "model": {"name_or_path": None, "tokenizer": "bytes", "config": LLAMA},
            "data": {"train": str(text), "max_length": 32, "eval_fraction": 0.0},
            "train": {"max_steps": 4, "per_device_train_batch_size": 1, "gradient_accumulation_steps": 2},
            "optimizer": {"learning_rate": 1e-2, "weight_decay": 0.1},
            "scheduler": {"type": "constant"},
            "precision": {"bf16": False},
            "checkpoint": {"save_at_end": False},
            "launch": {"patches": self.switches},
        }
        return {k: {**base.get(k, {}), **sections[k]} if k in sections else base[k] for k in base | sections}


def make_model(kind: str = "llama", **fields: Any) -> Any:
    """A tiny model with random weights, the same in each process."""
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(7)
    config = {**LLAMA, **fields} if kind == "llama" else fields
    config.pop("model_type", None)
    return AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **config))


def train_on(engine: Any, steps: int = 3) -> list[float]:
    """Losses of so many steps on this rank's row."""
    row, losses = draw_row(torch.distributed.get_rank()), []
    for _ in range(steps * engine.gradient_accumulation_steps()):
        loss = engine(input_ids=row, labels=row, use_cache=False).loss
        engine.backward(loss)
        engine.step()
        losses.append(loss.item())
    return losses


def draw_row(rank: int) -> torch.Tensor:
    """The token ids (1, 32) of a rank."""
    return torch.randint(0, 256, (1, 32), generator=torch.Generator().manual_seed(rank))


def digest_weights(module: torch.nn.Module) -> str:
    """Of this rank's weights, or shards of them."""
    digest = hashlib.sha256()
    for parameter in module.parameters():
        shard = getattr(parameter, "ds_tensor", parameter).detach()
        digest.update(shard.contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
