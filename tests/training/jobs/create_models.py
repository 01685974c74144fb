# SPDX-License-Identifier: Apache-2.0
"""Builds models as the harness does at a stage and tells what each parameter looks like: `create_models.py JOBS.json`.

A job: {"spec": model section, "config": DeepSpeed JSON, "out": file, "tokenizer": folder or bytes}.
"""

import json
import sys
from pathlib import Path

import deepspeed
import torch

from harness.run.resolved_run import resolve_run
from harness.runtime.distributed import Distributed, destroy_process_group, init_process_group
from harness.runtime.engine import build_engine
from harness.runtime.models import build_model, load_config
from harness.runtime.patch_selection import resolve_patches
from harness.runtime.tokenizer import load_tokenizer
from harness.spec.run_spec import RunSpec

peak = {"gathered": 0}
_enter = deepspeed.zero.GatheredParameters.__enter__


def _count(self: deepspeed.zero.GatheredParameters) -> None:
    if self.enabled:
        peak["gathered"] = max(peak["gathered"], sum(p.ds_numel for p in self.params))
    _enter(self)


deepspeed.zero.GatheredParameters.__enter__ = _count


def build(job: dict, ranks: Distributed) -> None:
    peak["gathered"] = 0
    run = resolve_run(RunSpec.model_validate_json(json.dumps({"model": job["spec"]})), world_size=2)
    config = load_config(run.spec.model, load_tokenizer(run.spec.model))
    model = build_model(run, job["config"], config)
    named = dict(model.named_parameters())
    created = {
        "held": sum(p.ds_tensor.numel() if hasattr(p, "ds_tensor") else p.numel() for p in named.values()),
        "whole": sum(p.data.numel() for p in named.values()),
        "total": sum(getattr(p, "ds_numel", p.numel()) for p in named.values()),
        "largest": max(getattr(p, "ds_numel", p.numel()) for p in named.values()),
        "gathered_at_once": peak["gathered"],
        "dtype": str(next(iter(named.values())).dtype),
        "tied": model.get_output_embeddings().weight is model.get_input_embeddings().weight,
    }
    patches = resolve_patches(run, job["config"], is_main_process=True)
    engine = build_engine(run, job["config"], model, 10, patches, ranks)
    tensors = {n: deepspeed.utils.safe_get_full_fp32_param(p) for n, p in engine.module.named_parameters()}
    if None in tensors.values():  # stage 0 in fp32 has no master copy
        tensors = {n: p.detach() for n, p in engine.module.named_parameters()}
    created["shapes"] = {n: list(t.shape) for n, t in tensors.items()}
    created["std"] = {n: float(t.float().std(correction=0)) for n, t in tensors.items()}
    created["mean"] = {n: float(t.float().mean()) for n, t in tensors.items()}
    if ranks.is_main_process:
        Path(job["out"]).with_suffix(".pt").unlink(missing_ok=True)
        torch.save({n: t.float().clone() for n, t in tensors.items()}, Path(job["out"]).with_suffix(".pt"))
    everyone = ranks.all_gather_object(created)
    if ranks.is_main_process:
        Path(job["out"]).write_text(json.dumps(everyone))
    engine.destroy()


if __name__ == "__main__":
    ranks = init_process_group()
    for job in json.loads(Path(sys.argv[-1]).read_text()):
        build(job, ranks)
    destroy_process_group()
