# SPDX-License-Identifier: Apache-2.0
"""Run by two ranks: does the installed DeepSpeed do what the gates say that it does?

Each claim builds an engine and notes what happened; rank 0 writes the notes as JSON. (`test_gate_claims.py` judges.)
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import deepspeed
import torch
from deepspeed.pipe import PipelineModule
from torch import nn
from torch.optim.lr_scheduler import LambdaLR

OUT = Path(sys.argv[-1])


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))


def config(zero: dict, **more) -> dict:
    return {
        "train_micro_batch_size_per_gpu": 1,
        "optimizer": {"type": "AdamW", "params": {"lr": 0.01, "weight_decay": 0.0}},
        "zero_optimization": zero,
        "gradient_clipping": 0.0,
        **more,
    }


def build(zero: dict, model: nn.Module | None = None, **more):
    model = model or net()
    engine, optimizer, *_ = deepspeed.initialize(
        model=model, model_parameters=model.parameters(), config=config(zero, **more)
    )
    return engine, optimizer


def step(engine, dtype=torch.float32) -> None:
    loss = engine(torch.ones(1, 8, dtype=dtype)).float().square().mean()
    engine.backward(loss)
    engine.step()


def attempt(claim) -> dict:
    """What the claim returned, or the exception that DeepSpeed raised."""
    try:
        return {"ok": claim()}
    except Exception as error:
        return {"error": type(error).__name__, "message": str(error)}


def pipeline(stage: int):
    layers = [nn.Linear(8, 8), nn.Linear(8, 8)]
    model = PipelineModule(layers=layers, num_stages=2, loss_fn=nn.MSELoss(), partition_method="uniform")
    deepspeed.initialize(
        model=model,
        model_parameters=[p for p in model.parameters() if p.requires_grad],
        config=config({"stage": stage}),
    )
    return "built"


def parameter_offload_below_3():
    engine, _ = build({"stage": 2, "offload_param": {"device": "nvme", "nvme_path": "/nowhere/at/all"}})
    step(engine)
    return {"stage": engine.zero_optimization_stage(), "folder": Path("/nowhere").exists()}


def nvme_without_path():
    build({"stage": 3, "offload_optimizer": {"device": "nvme"}})


def optimizer_nvme_below_3():
    engine, _ = build({"stage": 2, "offload_optimizer": {"device": "nvme", "nvme_path": "/nowhere/at/all"}})
    step(engine)
    return {"cpu_offload": engine.optimizer.cpu_offload, "folder": Path("/nowhere").exists()}


def optimizer_offload_at_0():
    _, optimizer = build({"stage": 0, "offload_optimizer": {"device": "cpu"}})
    return type(optimizer).__name__


def hidden_step(stage: int, **precision):
    engine, _ = build({"stage": stage}, **precision or {"bf16": {"enabled": True}})
    inner = engine.optimizer.optimizer
    steps = [float(torch.as_tensor(s["step"])) for s in inner.state.values() if "step" in s]
    steps += [float(g["step"]) for g in inner.param_groups if "step" in g]
    return max(steps, default=0.0)


def fp16_at_0(stage: int):
    engine, _ = build(
        {"stage": stage},
        fp16={"enabled": True},
        optimizer={"type": "SGD", "params": {"lr": 1.0}},
        zero_allow_untested_optimizer=True,
    )
    before = [p.detach().clone() for p in net().parameters()]
    step(engine, torch.float16)
    return max(float((p.float() - b).abs().max()) for p, b in zip(engine.module.parameters(), before, strict=True))


def adagrad(stage: int, *, own_schedule: bool = False, decay: float = 0.0) -> dict:
    """The rates of the optimizer that steps, in three steps; the schedule is DeepSpeed's or a client's."""
    model = net()
    matrices, vectors = ([p for p in model.parameters() if (p.ndim > 1) is wide] for wide in (True, False))
    groups = [{"params": matrices, "weight_decay": decay}, {"params": vectors, "weight_decay": 0.0}]
    params = {"lr": 0.01, "weight_decay": decay}
    warmup = {"type": "WarmupLR", "params": {"warmup_min_lr": 0.001, "warmup_max_lr": 0.01, "warmup_num_steps": 4}}
    more = {"optimizer": {"type": "Adagrad", "params": params}} | ({"scheduler": warmup} if own_schedule else {})
    engine, optimizer, *_ = deepspeed.initialize(
        model=model,
        model_parameters=groups if decay else model.parameters(),
        config=config({"stage": stage}, **more),
        lr_scheduler=None if own_schedule else lambda made: LambdaLR(made, lambda count: (count + 1) / 10),
    )
    rates = []
    for _ in range(3):
        rates.append(round(optimizer.optimizer.param_groups[0]["lr"], 6))
        step(engine)
    return {"rates": rates}


def tiny_llama() -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    shape = LlamaConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=4,
    )
    torch.manual_seed(0)
    return LlamaForCausalLM(shape)


def autotp_with_3():
    engine, _ = build({"stage": 3}, tiny_llama(), tensor_parallel={"autotp_size": 2})
    ids = torch.arange(8)[None]
    engine.backward(engine(input_ids=ids, labels=ids).loss)
    engine.step()
    return engine.zero_optimization_stage()


def mesh_over_tensor_ranks(**mesh) -> list[list[bool]]:
    """Of each rank: has it its own shard of a weight, has it that of rank 0?"""
    model = tiny_llama()
    shards = model.model.layers[0].self_attn.q_proj.weight.detach().clone().chunk(2)
    engine, _ = build({"stage": 0}, model, tensor_parallel={"autotp_size": 2}, **mesh)
    weight = engine.module.model.layers[0].self_attn.q_proj.weight.detach()
    mine = torch.tensor([torch.equal(weight, shards[torch.distributed.get_rank()]), torch.equal(weight, shards[0])])
    answers = [torch.zeros_like(mine) for _ in shards]
    torch.distributed.all_gather(answers, mine)
    return [answer.tolist() for answer in answers]


def half_inputs(*, by_keyword: bool = False, **formats) -> str:
    engine, _ = build({"stage": 1}, fp16={"auto_cast": True}, **formats)
    rows = torch.ones(1, 8, dtype=torch.bfloat16 if formats else torch.float32)
    return str((engine(input=rows) if by_keyword else engine(rows)).dtype)


def logged_operations(**block) -> list[str]:
    from deepspeed.comm import comm
    from deepspeed.utils.comms_logging import CommsLogger

    comm.comms_logger = CommsLogger()
    step(build({"stage": 0}, comms_logger=block)[0])
    operations = sorted(comm.comms_logger.comms_dict)
    comm.comms_logger = CommsLogger()
    return operations


LTD = {
    "total_layer_num": 2,
    "random_ltd_layer_num": 1,
    "random_ltd_schedule": {
        "min_value": 4,
        "max_value": 8,
        "schedule_type": "fixed_linear",
        "schedule_config": {"require_steps": 4, "seq_per_step": 2},
    },
}


def efficient(part: str, **block):
    return build({"stage": 0}, data_efficiency={"enabled": True, part: {"enabled": True, **block}})[0]


def token_dropping(left_out: str = "") -> str:
    keys = json.loads(json.dumps(LTD))
    *sections, last = left_out.split(".")
    block = keys
    for section in sections:
        block = block[section]
    block.pop(last, None)
    step(efficient("data_routing", random_ltd={"enabled": True, **keys}))
    return "ran"


LTD_KEYS = [
    *LTD,
    *(f"random_ltd_schedule.{name}" for name in LTD["random_ltd_schedule"]),
    *(f"random_ltd_schedule.schedule_config.{name}" for name in ("require_steps", "seq_per_step")),
]


def curriculum(**switch) -> str:
    metrics = {"seqlen": {"min_difficulty": 8}}
    engine = efficient("data_sampling", curriculum_learning={**switch, "curriculum_metrics": metrics})
    return str(engine.curriculum_learning_enabled())


def safe_modules(name: str):
    return build(
        {"stage": 2}, torch_autocast={"enabled": True, "dtype": "bfloat16", "lower_precision_safe_modules": [name]}
    )


CLAIMS = {
    "OF001": parameter_offload_below_3,
    "OF002": nvme_without_path,
    "OF003": optimizer_nvme_below_3,
    "OF004": optimizer_offload_at_0,
    "OF005": lambda: build({"stage": 2, "offload_optimizer": {"device": "cpu", "ratio": 0.5}}),
    "PR001": lambda: build({"stage": 1}, fp16={"enabled": True}, bf16={"enabled": True}),
    "PR002-0": lambda: fp16_at_0(0),
    "PR002-1": lambda: fp16_at_0(1),
    "PR003-0": lambda: hidden_step(0),
    "PR003-fp16": lambda: hidden_step(0, fp16={"enabled": True, "loss_scale": 1}),
    "PR026": lambda: step(build({"stage": 1}, data_types={"grad_accum_dtype": "int8"})[0]),
    "PR003-1": lambda: hidden_step(1),
    **{f"OP041-{n}": lambda n=n: adagrad(n) for n in (1, 2, 3)},
    **{f"OP041-{n}-own": lambda n=n: adagrad(n, own_schedule=True) for n in (1, 2, 3)},
    **{f"OP041-{n}-decay": lambda n=n: adagrad(n, decay=0.1) for n in (1, 2, 3)},
    "BT001": lambda: build({"stage": 0}, train_batch_size=7),
    "BT002": lambda: deepspeed.initialize(model=net(), config={"gradient_accumulation_steps": 1}),
    "unknown-top": lambda: build({"stage": 0}, zero_optimisation={"stage": 3})[0].zero_optimization_stage(),  # noqa: PLW0108
    "unknown-zero": lambda: build({"stage": 0, "stagee": 3}),
    "PR037-fp32": half_inputs,
    "PR037-bf16": lambda: half_inputs(bf16={"enabled": True}),
    "PR037-keyword": lambda: half_inputs(by_keyword=True),
    "UT019": lambda: logged_operations(enabled=False),
    "UT019-empty": logged_operations,
    "UT021": lambda: logged_operations(enabled=True, prof_all=False, prof_ops=["all_reduce", "bogus"]),
    **{f"UT022-{name}": lambda name=name: token_dropping(name) for name in ("", *LTD_KEYS)},
    "UT020": curriculum,
    "UT020-on": lambda: curriculum(enabled=True),
    "PR038": lambda: safe_modules("torch.nn.Linearr"),
    "PR038-right": lambda: safe_modules("torch.nn.Linear"),
    # these leave process groups behind in DeepSpeed's module state, so they come last
    "TP001": autotp_with_3,
    "PP001-2": lambda: pipeline(2),
    "PP001-1": lambda: pipeline(1),
    "SQ012-without": mesh_over_tensor_ranks,
    "SQ012": lambda: mesh_over_tensor_ranks(sequence_parallel_size=1, data_parallel_size=2),
}


def main() -> None:
    deepspeed.init_distributed()
    from deepspeed.accelerator import get_accelerator

    get_accelerator().is_fp16_supported = lambda: True  # most CPUs say no, and torch computes it all the same
    notes = {"claims": {}}
    for name, claim in CLAIMS.items():
        notes["claims"][name] = attempt(claim)
        if "ok" in notes["claims"][name] and not isinstance(notes["claims"][name]["ok"], (str, int, float, dict, list)):
            notes["claims"][name]["ok"] = "built"
    if deepspeed.comm.get_rank() == 0:
        OUT.write_text(json.dumps(notes))
    deepspeed.comm.barrier()
    torch.distributed.destroy_process_group()


main()
