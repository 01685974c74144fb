# SPDX-License-Identifier: Apache-2.0
"""One rank of a job: build the model, `deepspeed.initialize`, some steps, save, and a report of what was seen.

Plain DeepSpeed as a training script uses it; nothing of the harness.
"""

from __future__ import annotations

import importlib
import json
import math
import time
import traceback
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import deepspeed
import torch
import torch.distributed as dist
from deepspeed.accelerator import get_accelerator

from . import attest, models

IMPORTS = (
    "deepspeed.module_inject.auto_tp",
    "deepspeed.ops.adam",
    "deepspeed.runtime.pipe.engine",
    "deepspeed.runtime.sequence_parallel.ulysses_sp",
    "deepspeed.runtime.zero.muon.muon_optimizer",
)
MODELS = tuple(f"transformers.models.{name}.modeling_{name}" for name in ("gpt2", "llama", "mixtral"))


def warm_up(*, has_transformers: bool = True) -> None:
    """Import what ranks import on their way, so that forked ranks have it (Muon alone brings all of inductor: 7 s)."""
    for name in (*IMPORTS, *(MODELS if has_transformers else ())):
        with nullcontext() if has_transformers else suppress(ImportError):  # an old release has not all of them
            importlib.import_module(name)

    _ = deepspeed.ops.__compatible_ops__  # probed by compiling a small program
    # fp16 is computed by torch on any CPU; DeepSpeed asks for AVX512-FP16. Without this no fp16 claim could be tried.
    accelerator = get_accelerator()
    accelerator.is_fp16_supported = lambda: True
    accelerator.supported_dtypes = lambda: [torch.float, torch.bfloat16, torch.float16]


def main(job: dict[str, Any], folder: Path, index: int) -> int:
    """Run the job; the report goes to `rank-N.json`. The exit code is 0 when everything passed."""
    report: dict[str, Any] = {}

    def enter(phase: str) -> None:
        (folder / f"rank-{index}.phase").write_text(phase)

    code = 0
    try:
        torch.set_num_threads(1)
        Script(job, folder, report, enter).run()
    except SystemExit as left:
        report["left"] = f"exit({left.code})"
    except BaseException as error:
        code = 1
        traceback.print_exc()
        report["error"] = {"type": type(error).__name__, "message": str(error).replace(str(folder), "{DIR}")[:600]}
        files = [frame.filename for frame in traceback.extract_tb(error.__traceback__)]
        report["parsed"] = not any(file.endswith("deepspeed/runtime/config.py") for file in files)
    report["at"] = time.monotonic()
    (folder / f"rank-{index}.json").write_text(json.dumps(report))
    return code


class Script:
    """A training script of a user, in the order in which one is written."""

    def __init__(self, job: dict[str, Any], folder: Path, report: dict[str, Any], enter: Any) -> None:
        self.job, self.folder, self.report, self.enter = job, folder, report, enter
        self.model: dict[str, Any] = job.get("model") or {"kind": "llama"}
        self.pipeline = self.model.get("kind") == "pipe"
        self.config = self._config()

    def _config(self) -> Any:
        """The dict, or the path of a file with the text; `{DIR}` stands for a folder of this case."""
        here = str(self.folder / "work")
        if self.job.get("text") is not None:
            file = self.folder / "work" / "ds_config.json"
            file.write_bytes(self.job["text"].replace("{DIR}", here).encode())
            return str(file)
        return json.loads(json.dumps(self.job["config"]).replace("{DIR}", here))

    def run(self) -> None:
        self.enter("start")
        deepspeed.init_distributed()
        self.enter("build")
        module, mpu, keep = self._build()
        self.enter("initialize")
        engine = self._initialize(module, mpu)
        self.report["facts"] = attest.engine_facts(engine)
        self._compare_initial(engine)
        self.enter("step")
        self._train(engine)
        self.enter("save")
        self._save(engine)
        self.enter("end")
        dist.barrier()
        del keep

    def _build(self) -> tuple[Any, Any, Any]:
        """(model, Ulysses' parallel state or None, what must stay alive)."""
        keep = None
        if self.pipeline:
            return models.pipeline(self.model, int(self.job.get("pipeline", 1))), None, keep
        if self.job.get("creation") == "shards":
            from transformers.integrations import HfDeepSpeedConfig

            keep = HfDeepSpeedConfig(self.config)
        model = models.build(self.model, self.job.get("seed", 0))
        if self.job.get("recompute"):
            model.gradient_checkpointing_enable({"use_reentrant": False})
        if self.job.get("sequence", 1) == 1:
            return model, None, keep
        from deepspeed.runtime.sequence_parallel.ulysses_sp import UlyssesSPAttentionHF

        mpu = UlyssesSPAttentionHF.register_with_transformers(
            model_name_or_path=model,
            core_attn_implementation=self.model.get("attn_implementation", "sdpa"),
            sequence_parallel_size=self.job["sequence"],
            micro_batch_size=self._micro(),
            seq_length_is_variable=True,
        )
        return model, mpu, keep

    def _micro(self) -> int:
        """What a script that splits sequences has to know before the engine is there."""
        asked = (self.job.get("asked") or {}).get("micro")
        written = self.config.get("train_micro_batch_size_per_gpu") if isinstance(self.config, dict) else None
        return int(asked or written or 1)

    def _initialize(self, model: Any, mpu: Any) -> Any:
        config = self.config
        client = None
        if isinstance(config, dict) and not _names_optimizer(config) and self.job.get("client_optimizer", True):
            client = self._client_optimizer(model, config)
        parameters = [p for p in model.parameters() if p.requires_grad]
        engine, *_ = deepspeed.initialize(
            model=model, optimizer=client, model_parameters=None if client else parameters, config=config, mpu=mpu
        )
        return engine

    def _client_optimizer(self, model: Any, config: dict[str, Any]) -> Any:
        """What a script brings that knows DeepSpeed: its CPU Adam where the optimizer is offloaded."""
        zero = config.get("zero_optimization")
        offload = zero.get("offload_optimizer") if isinstance(zero, dict) else None
        device = offload.get("device") if isinstance(offload, dict) else None
        parameters = [p for p in model.parameters() if p.requires_grad]
        if device in ("cpu", "nvme") or (isinstance(zero, dict) and zero.get("cpu_offload")):
            from deepspeed.ops.adam import DeepSpeedCPUAdam

            return DeepSpeedCPUAdam(parameters, lr=1e-2)
        from deepspeed.ops.adam import FusedAdam

        return FusedAdam(parameters, lr=1e-2)

    def _compare_initial(self, engine: Any) -> None:
        """Weights that `initialize` changed, beyond rounding; nothing to compare when they were created in shards."""
        if self.job.get("creation") == "shards":
            return
        dtype = next(engine.module.parameters()).dtype
        changed = attest.differences(attest.weights(engine), self._initial(), dtype)
        facts = self.report["facts"]
        facts["resharded"] = sum(gap < 0 for gap in changed.values())
        facts["changed_by_initialize"] = {k: v for k, v in changed.items() if v > 0}

    def _initial(self) -> dict[str, torch.Tensor]:
        return {n: p.detach() for n, p in models.build(self.model, self.job.get("seed", 0)).named_parameters()}

    def _train(self, engine: Any) -> None:
        self.report |= {"losses": [], "lr": [], "norms": [], "skipped": []}
        accumulation = engine.gradient_accumulation_steps()
        micro = engine.train_micro_batch_size_per_gpu()
        self.report["replica"] = replica = self._replica(engine)
        parts = max(1, math.ceil(accumulation))
        for step in range(self.job.get("steps", 3)):
            self.report["lr"].append(_rates(engine))
            batches = [
                models.batch(step, part, replica, max(1, int(micro)), self._vocabulary()) for part in range(parts)
            ]
            loss = self._pipe_step(engine, batches) if self.pipeline else self._plain_step(engine, batches)
            self.report["losses"].append(loss)
            self.report["norms"].append(_number(engine.get_global_grad_norm()))
            self.report["skipped"].append(int(engine.skipped_steps))
        self.report["global_steps"] = int(engine.global_steps)
        self.report["scale"] = _number(getattr(engine.optimizer, "loss_scale", None)) if engine.optimizer else None

    def _vocabulary(self) -> int:
        return int(self.model.get("vocab_size", models.VOCABULARY))

    def _replica(self, engine: Any) -> int:
        """Which share of the global batch this rank gets."""
        if self.job.get("sequence", 1) > 1:
            return dist.get_rank() // int(self.job["sequence"])
        if self.pipeline:
            return int(engine.grid.get_data_parallel_id())
        if self.job.get("tensor", 1) > 1 and engine.autotp_size() > 1:
            from deepspeed.utils import groups

            return int(groups.get_data_parallel_rank())
        return dist.get_rank()

    def _plain_step(self, engine: Any, batches: list[torch.Tensor]) -> float:
        total = 0.0
        for ids in batches:
            loss = self._sequence_loss(engine, ids) if self.job.get("sequence", 1) > 1 else self._loss(engine, ids)
            total += float(loss.detach())
            engine.backward(loss)
            engine.step()
        return total / len(batches)

    def _loss(self, engine: Any, ids: torch.Tensor) -> torch.Tensor:
        return engine(input_ids=ids, labels=ids).loss

    def _sequence_loss(self, engine: Any, ids: torch.Tensor) -> torch.Tensor:
        """This rank's part of the sequence; the loss is the mean over all of it."""
        import deepspeed.runtime.sequence_parallel.parallel_state_sp as state

        group, size, place = (
            state.get_sequence_parallel_group(),
            state.get_sequence_parallel_world_size(),
            state.get_sequence_parallel_rank(),
        )
        targets = torch.nn.functional.pad(ids[:, 1:], (0, 1), value=-100)
        width = ids.shape[1] // size
        part = slice(place * width, (place + 1) * width)
        positions = torch.arange(ids.shape[1])[None].expand_as(ids)
        logits = engine(input_ids=ids[:, part], position_ids=positions[:, part], use_cache=False).logits
        wanted = targets[:, part].reshape(-1)
        loss = torch.nn.functional.cross_entropy(
            logits.float().reshape(-1, logits.shape[-1]), wanted, ignore_index=-100
        )
        count = (wanted != -100).sum()
        whole = count.clone()
        dist.all_reduce(whole, group=group)
        share = loss * count / whole
        shown = share.detach().clone()
        dist.all_reduce(shown, group=group)
        # Stages 0 to 2 add up the gradients of the group, stage 3 averages them. (The recipe that gathers the losses with
        # gradients is right at stage 3; below it, gradients and norms come out `size` times too large.)
        scale = size if engine.zero_optimization_stage() == 3 else 1
        return scale * share - (scale * share - shown).detach()

    def _pipe_step(self, engine: Any, batches: list[torch.Tensor]) -> float:
        return float(engine.train_batch(data_iter=iter([(ids, ids) for ids in batches])))

    def _save(self, engine: Any) -> None:
        if self.job.get("tensor", 1) == 1 or self.pipeline:
            found = attest.weights(engine)
            self.report["digest"] = sum(float(w.double().sum()) for w in found.values())
            first = dist.get_rank() == 0
            if first or self.pipeline:
                torch.save(found, self.folder / f"rank-{dist.get_rank()}.weights")
        if not self.job.get("save", True):
            return
        target = self.folder / "checkpoint"
        engine.save_checkpoint(str(target))
        dist.barrier()
        self.report["saved"] = (target / "latest").exists()
        if self.job.get("load"):
            self.enter("load")
            path, _ = engine.load_checkpoint(str(target))
            self.report["loaded"] = path is not None
        if self.job.get("save_16bit"):
            self.enter("save_16bit_model")
            self.report["saved_16bit"] = bool(engine.save_16bit_model(str(target)))


def _names_optimizer(config: dict[str, Any]) -> bool:
    block = config.get("optimizer")
    return block is not None and not (isinstance(block, dict) and not block.get("type"))


def _rates(engine: Any) -> list[float]:
    return [_number(rate) for rate in (engine.get_lr() if engine.optimizer is not None else [])]


def _number(value: Any) -> Any:
    if value is None or isinstance(value, (str, bool)):
        return value
    number = float(value)
    return number if math.isfinite(number) else str(number)
