# SPDX-License-Identifier: Apache-2.0
"""Bare DeepSpeed, nothing of the harness: is each fault that the harness works around still there?

`tripwires.py OUT.json`: rank 0 writes {name: true (still there), false, or the text of an error} of those for so many ranks.
"""

import json
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import deepspeed
import torch
import torch.distributed as dist
from transformers import AutoConfig, AutoModelForCausalLM, set_seed

TINY = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "vocab_size": 256,
}


def main() -> None:
    deepspeed.init_distributed()
    deepspeed.utils.logger.setLevel("ERROR")
    found: dict[str, Any] = {}
    for fault in FAULTS[dist.get_world_size()]:
        try:
            found[fault.__name__] = bool(fault())
        except Exception as error:
            traceback.print_exc()
            found[fault.__name__] = f"{type(error).__name__}: {error}"[:400]
    if dist.get_rank() == 0:
        Path(sys.argv[-1]).write_text(json.dumps(found))
    dist.destroy_process_group()


def _model(kind: str = "llama", **fields: Any) -> Any:
    set_seed(7)
    if kind == "gpt2":
        fields = {"n_embd": 64, "n_layer": 1, "n_head": 4, "n_positions": 64, "vocab_size": 256}
    return AutoModelForCausalLM.from_config(
        AutoConfig.for_model(kind, **(TINY | fields if kind == "llama" else fields))
    )


def _engine(model: Any, **more: Any) -> Any:
    config: dict[str, Any] = {"train_micro_batch_size_per_gpu": 1, "gradient_clipping": 0.0}
    config["optimizer"] = {"type": "AdamW", "params": {"lr": 0.01, "weight_decay": 0.1}}
    return deepspeed.initialize(model=model, model_parameters=list(model.parameters()), config=config | more)[0]


def _step(engine: Any, spoil: float | None = None) -> None:
    ids = torch.arange(16).view(1, 16)
    loss = engine(input_ids=ids, labels=ids, use_cache=False).loss
    engine.backward(loss * spoil if spoil is not None else loss)
    engine.step()


def initialisation_lost() -> bool:
    set_seed(7)
    with deepspeed.zero.Init(
        config_dict_or_path={"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 3}}
    ):
        model = _model()
    weight = model.get_input_embeddings().weight
    with deepspeed.zero.GatheredParameters([weight]):
        return float(weight.std()) > 0.5


def warmup_starts_at_nothing_twice() -> bool:
    params = {"warmup_min_lr": 0, "warmup_max_lr": 0.01, "warmup_num_steps": 10}
    engine = _engine(_model(), zero_optimization={"stage": 0}, scheduler={"type": "WarmupLR", "params": params})
    rates = []
    for _ in range(2):
        rates.append(engine.get_lr()[0])
        _step(engine)
    return rates == [0, 0]


def warmup_decay_forgets_the_rate() -> bool:
    schedule = {"type": "WarmupDecayLR", "params": {"total_num_steps": 10, "warmup_num_steps": 2}}
    engine = _engine(_model(), zero_optimization={"stage": 0}, scheduler=schedule)
    return engine.lr_scheduler.max_lrs[0] == 0.001


def zenflow_scrambles() -> bool:
    model = _model()
    before = model.model.layers[0].mlp.up_proj.weight.detach().clone()
    zenflow = {"select_strategy": "step", "select_interval": 1, "update_interval": 1, "full_warm_up_rounds": 0}
    zero = {"stage": 2, "offload_optimizer": {"device": "cpu", "pin_memory": False}, "zenflow": zenflow}
    engine = _engine(model, gradient_accumulation_steps=1, zero_optimization=zero)
    return not torch.equal(engine.module.model.layers[0].mlp.up_proj.weight, before)


def nvme_below_stage_3() -> bool:
    zero = {"stage": 2, "offload_optimizer": {"device": "nvme", "nvme_path": "/nowhere/at/all", "pin_memory": False}}
    engine = _engine(_model(), zero_optimization=zero)
    return bool(engine.optimizer.cpu_offload) and not Path("/nowhere").exists()


def parameter_offload_below_stage_3() -> bool:
    zero = {"stage": 2, "offload_param": {"device": "cpu", "pin_memory": False}}
    return not getattr(_engine(_model(), zero_optimization=zero).optimizer, "offload_param", False)


def stage_auto_is_none() -> bool:
    return bool(_engine(_model(), zero_optimization={"stage": "auto"}).zero_optimization_stage() == 0)


def bf16_auto_is_fp32() -> bool:
    return next(_engine(_model(), bf16={"enabled": "auto"}).module.parameters()).dtype == torch.float32


def checkpoint_runs_code() -> bool:
    from deepspeed.runtime.checkpoint_engine.torch_checkpoint_engine import TorchCheckpointEngine

    with tempfile.TemporaryDirectory() as folder:
        torch.save({"x": _Runs(f"{folder}/ran")}, f"{folder}/state.pt")
        TorchCheckpointEngine(None).load(f"{folder}/state.pt", map_location="cpu")
        return Path(folder, "ran").exists()


class _Runs:
    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (Path(self.path),)


def nothing_to_load_is_no_error() -> bool:
    with tempfile.TemporaryDirectory() as folder:
        path, _ = _engine(_model(), zero_optimization={"stage": 1}).load_checkpoint(folder)
    return path is None


def stale_lock_waits() -> bool:
    """torch's, which DeepSpeed's builder of ops goes through."""
    from torch.utils.file_baton import FileBaton

    with tempfile.TemporaryDirectory() as folder:
        lock = Path(folder, "lock")
        lock.touch()
        waiter = threading.Thread(target=FileBaton(str(lock)).wait, daemon=True)
        waiter.start()
        waiter.join(0.5)
        waits = waiter.is_alive()
        lock.unlink()
        waiter.join(5)
    return waits


def autotp_counts_the_world() -> bool:
    engine = _engine(_model(), tensor_parallel={"autotp_size": 2}, zero_optimization={"stage": 1})
    return bool(engine.train_batch_size() == 2)


def autotp_saves_a_part() -> bool:
    whole = sum(p.numel() for p in _model().state_dict().values())
    engine = _engine(_model(), tensor_parallel={"autotp_size": 2}, zero_optimization={"stage": 1})
    folder = [tempfile.mkdtemp() if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(folder)
    engine.save_16bit_model(folder[0], "whole.pt")
    dist.barrier()
    saved = sum(p.numel() for p in torch.load(Path(str(folder[0]), "whole.pt")).values())
    return saved < whole


def autotp_looks_at_data_once() -> bool:
    engine = _engine(_model(), tensor_parallel={"autotp_size": 2}, zero_optimization={"stage": 0})
    for step in range(2):
        ids = torch.arange(16).view(1, 16) + step * dist.get_rank()
        engine.backward(engine(input_ids=ids, labels=ids, use_cache=False).loss)
        engine.step()
    return True  # without a word


def sequence_key_alone_makes_no_group() -> bool:
    engine = _engine(_model(), sequence_parallel_size=2, zero_optimization={"stage": 1})
    return bool(engine.train_batch_size() == 1) and bool(engine.dp_world_size == 2)


def pipeline_clips_by_stage() -> bool:
    """A step of plain SGD at rate 1 moves by the clipping norm at most, over all stages together."""
    from deepspeed.pipe import PipelineModule

    set_seed(7)
    layers = [torch.nn.Linear(8, 8, bias=False) for _ in range(2)]
    model = PipelineModule(layers=layers, num_stages=2, loss_fn=torch.nn.functional.mse_loss)
    before = [p.detach().clone() for p in model.parameters()]
    config = {"train_micro_batch_size_per_gpu": 1, "gradient_clipping": 1e-3}
    config |= {"optimizer": {"type": "SGD", "params": {"lr": 1.0}}, "zero_optimization": {"stage": 0}}
    engine = deepspeed.initialize(model=model, model_parameters=list(model.parameters()), config=config)[0]
    engine.train_batch(iter([(torch.full((1, 8), 10.0), torch.zeros(1, 8))] * 2))
    moved = sum((a - b).detach().square().sum() for a, b in zip(model.parameters(), before, strict=True))
    total = torch.as_tensor(moved).reshape(1)
    dist.all_reduce(total)
    return float(total.sqrt()) > 1.05e-3  # not one factor for all


FAULTS: dict[int, tuple[Callable[[], bool], ...]] = {
    1: (
        initialisation_lost,
        warmup_starts_at_nothing_twice,
        warmup_decay_forgets_the_rate,
        zenflow_scrambles,
        nvme_below_stage_3,
        parameter_offload_below_stage_3,
        stage_auto_is_none,
        bf16_auto_is_fp32,
        checkpoint_runs_code,
        nothing_to_load_is_no_error,
        stale_lock_waits,
    ),
    2: (
        sequence_key_alone_makes_no_group,
        autotp_counts_the_world,
        autotp_saves_a_part,
        autotp_looks_at_data_once,
        pipeline_clips_by_stage,
    ),
}

if __name__ == "__main__":
    main()
