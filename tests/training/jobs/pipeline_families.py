# SPDX-License-Identifier: Apache-2.0
"""Every family that is cut into stages, beside the whole model in the same process: weights, losses, evaluation.

`pipeline_families.py OUT.json MODELS TENSOR`: two stages on all ranks, layers over TENSOR of them. Rank 0 writes what differs, by family:
{"start": names of weights that do not start equal, "loss": largest relative difference of a step's loss,
"norm": of the gradient norm, "eval": of the held-out loss, "held": elements of each rank, "parts": layers of the stages, "read": tensors that each
rank has read from the safetensors files of MODELS/llama}.
"""

import copy
import json
import sys
from pathlib import Path
from typing import Any

import deepspeed
import torch
from torch import distributed as dist
from transformers import AutoConfig, AutoModelForCausalLM, set_seed

from harness.render import render_ds_config
from harness.run.resolved_run import ResolvedRun, resolve_run
from harness.runtime.distributed import Distributed, destroy_process_group, init_process_group
from harness.runtime.engine_checks.model_weights import master_weights
from harness.runtime.micro_batch import MicroBatch
from harness.runtime.models.safetensors_reader import SafetensorsFiles
from harness.runtime.objectives.causal_lm import CausalLM
from harness.runtime.pipeline.parameter_names import to_transformers_parameter
from harness.runtime.pipeline.pipeline_module import Pipeline, build_pipeline
from harness.runtime.pipeline.shard_rules import WeightPartition
from harness.runtime.step import Stepper
from harness.runtime.step_timer import StepTimer
from harness.runtime.topology import Topology
from harness.spec.run_spec import RunSpec

TENSOR = int(sys.argv[3]) if sys.argv[0].endswith("pipeline_families.py") else 1
STAGES, STEPS, ACCUMULATION, ROWS, RATE, DECAY, CLIP, SEED = 2, 4, 3, 2, 1e-3, 0.01, 0.5, 5
VOCABULARY = 96
_SIZES = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 64,
    "bos_token_id": 1,
    "eos_token_id": 1,
    "pad_token_id": 0,
}
_GPT2 = {
    **{k: v for k, v in _SIZES.items() if k.endswith("_id") or k == "vocab_size"},
    "n_embd": 32,
    "n_layer": 3,
    "n_head": 4,
    "n_positions": 64,
    **dict.fromkeys(("embd_pdrop", "resid_pdrop", "attn_pdrop"), 0.0),
}
_SLIDING = {"use_sliding_window": True, "sliding_window": 6, "max_window_layers": 1}
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {"model_type": "llama", "tie_word_embeddings": False, **_SIZES},
    "llama-tied": {"model_type": "llama", "tie_word_embeddings": True, **_SIZES},
    "mistral-window": {"model_type": "mistral", "sliding_window": 6, **_SIZES},
    "qwen2-tied-window": {"model_type": "qwen2", "tie_word_embeddings": True, **_SLIDING, **_SIZES},
    "qwen3": {"model_type": "qwen3", "head_dim": 8, **_SIZES},
    "gpt2-tied": {"model_type": "gpt2", **_GPT2},
    "olmo2": {"model_type": "olmo2", **_SIZES},
    "phi3": {"model_type": "phi3", **_SIZES},
}
WAYS: dict[str, dict[str, Any]] = {
    "llama": {"parallel": {"pipeline_partition_method": "type:DecoderLayer"}},
    "llama-tied": {"zero": {"stage": 1}},
    "mistral-window": {"train": {"gradient_checkpointing": True}, "zero": {"stage": 1}},
    "phi3": {"train": {"gradient_checkpointing": {"every": 2}}, "zero": {"stage": 1}},
    "gpt2-tied": {"parallel": {"pipeline_partition_method": "type:Layer|Block"}},
    "olmo2": {"parallel": {"pipeline_partition_method": "uniform"}},
}


def main() -> None:
    out, models = Path(sys.argv[1]), Path(sys.argv[2])
    ranks = init_process_group()
    found = {name: _compare(name, ranks) for name in (sys.argv[4:] or FAMILIES)}
    found["pretrained"] = {"read": ranks.all_gather_object(_read_by_stage(models, ranks))}
    if ranks.is_main_process:
        out.write_text(json.dumps(found))
    destroy_process_group()


def make_run(name: str, model: dict[str, Any], world_size: int, tensor: int) -> ResolvedRun:
    """The run of a family, on so many ranks of which `tensor` share each layer."""
    body: dict[str, Any] = {
        "name": name,
        "model": {**model, "tokenizer": "bytes"},
        "data": {"train": "builtin:python-docs"},
        "train": {
            "per_device_train_batch_size": ROWS,
            "gradient_accumulation_steps": ACCUMULATION,
            "max_grad_norm": CLIP,
            "seed": SEED,
        },
        "optimizer": {"learning_rate": RATE, "weight_decay": DECAY},
        "parallel": {"pipeline_parallel_size": STAGES, "tensor_parallel_size": tensor},
    }
    for section, more in WAYS.get(name, {}).items():
        body[section] = {**body.get(section, {}), **more}
    return resolve_run(RunSpec.model_validate_json(json.dumps(body)), world_size=world_size)


def _compare(name: str, ranks: Distributed) -> dict[str, Any]:
    fields = dict(FAMILIES[name])
    config = AutoConfig.for_model(fields.pop("model_type"), use_cache=False, **fields)
    run = make_run(name, {"config": FAMILIES[name]}, ranks.world_size, TENSOR)
    set_seed(SEED)
    whole = AutoModelForCausalLM.from_config(copy.deepcopy(config), dtype=torch.float32)
    pipeline = build_pipeline(run, config)
    weights = dict(whole.named_parameters())
    start = _find_unequal_weights(pipeline, config, weights)
    engine, *_ = deepspeed.initialize(
        model=pipeline, model_parameters=list(pipeline.parameters()), config=dict(render_ds_config(run).config)
    )
    topology = Topology.from_dims(run.parallel_dims, ranks.world_size, ranks.rank)
    stepper = CausalLM(run).make_stepper(engine, ranks, topology)
    optimizer = torch.optim.AdamW(whole.parameters(), lr=RATE, weight_decay=DECAY)
    clip = run.spec.train.max_grad_norm or float("inf")
    loss_gap = norm_gap = 0.0
    for step in range(STEPS):
        batches = _batches(step, topology.data_parallel_size)
        predicted = sum(b.num_targets for b in batches)
        mine = batches[topology.data_parallel_rank :: topology.data_parallel_size]
        loss = ranks.all_reduce_sum(stepper.train_step(mine, predicted, StepTimer()))[0] / (
            ACCUMULATION * topology.data_parallel_size
        )
        plain, norm = _plain_step(whole, optimizer, batches, predicted, clip)
        loss_gap = max(loss_gap, abs(loss - plain) / plain)
        ours = engine.get_global_grad_norm()
        norm_gap = max(norm_gap, 0.0 if ours is None else abs(float(ours) - norm) / norm)
    return {
        "start": ranks.all_gather_object(start),
        "loss": loss_gap,
        "norm": norm_gap,
        "eval": _evaluation_gap(whole, stepper, ranks),
        "held": ranks.all_gather_object(_count_elements(engine)),
        "parts": [int(p) for p in pipeline.parts],
        "recomputes": pipeline.activation_checkpoint_interval,
        "recomputed_layers": ranks.all_gather_object(sum(pipeline.is_checkpointable_results)),
    }


def _count_elements(engine: Any) -> list[int]:
    """Of this rank: parameters, and the elements that its optimizer steps."""
    trained = [p for p in engine.module.parameters() if p.requires_grad]
    return [sum(p.numel() for p in trained), sum(m.numel() for m in master_weights(engine))]


def _find_unequal_weights(pipeline: Pipeline, config: Any, weights: dict[str, Any]) -> list[str]:
    names = []
    for name, parameter in pipeline.named_parameters():
        full_name = to_transformers_parameter(config, name)
        partition = pipeline.partition_of(name) or WeightPartition(tuple(parameter.shape))
        rank = pipeline.mpu().get_slice_parallel_rank()
        if not parameter.equal(partition.take_shard(weights[full_name], rank, TENSOR)):
            names.append(name)
    return names


def _batches(step: int, data_size: int) -> list[MicroBatch]:
    """In turn: plain rows, packed rows, rows with padding at the end; another length in the third step."""
    draw = torch.Generator().manual_seed(step)
    length = 12 if step == 2 else 16
    batches = []
    for i in range(ACCUMULATION * data_size):
        ids = torch.randint(2, VOCABULARY, (ROWS, length), generator=draw)
        labels, positions, mask = ids.clone(), None, None
        if i % 3 == 1:
            positions = torch.cat([torch.arange(7), torch.arange(length - 7)]).expand(ROWS, length).contiguous()
            labels[:, 7] = -100
        elif i % 3 == 2:
            mask = torch.ones(ROWS, length, dtype=torch.int64)
            mask[0, -5:] = 0
            labels[0, -5:] = -100
        batches.append(MicroBatch(ids, labels, positions, mask))
    return batches


def _plain_step(
    whole: Any, optimizer: Any, batches: list[MicroBatch], predicted: int, clip: float
) -> tuple[float, float]:
    total = 0.0
    for batch in batches:
        loss = whole(
            **batch.to_model_inputs(torch.device("cpu")), labels=batch.labels, num_items_in_batch=predicted
        ).loss
        loss.backward()
        total += float(loss.detach())
    norm = float(torch.nn.utils.clip_grad_norm_(whole.parameters(), clip))
    optimizer.step()
    optimizer.zero_grad()
    return total, norm


def _evaluation_gap(whole: Any, stepper: Stepper, ranks: Distributed) -> float:
    """On one batch of other rows and length than training; every data rank computes it."""
    batch = _batches(99, 1)[1]
    batch = MicroBatch(batch.input_ids[:1], batch.labels[:1], batch.position_ids[:1])
    loss, tokens = stepper.eval_step(batch)
    total, count = ranks.all_reduce_sum(loss, tokens)
    with torch.no_grad():
        plain = float(whole(**batch.to_model_inputs(torch.device("cpu")), labels=batch.labels).loss)
    return abs(total / count - plain) / plain


def _read_by_stage(models: Path, ranks: Distributed) -> list[str]:
    """Names of the tensors that this rank reads, once they are known to arrive where they belong."""
    folder = models / "llama"
    run = make_run("pretrained", {"name_or_path": str(folder)}, ranks.world_size, TENSOR)
    whole = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    read: list[str] = []
    original = SafetensorsFiles.read_into
    SafetensorsFiles.read_into = lambda self, name, out: (read.append(name), original(self, name, out))[1]
    config = AutoConfig.from_pretrained(folder)
    pipeline = build_pipeline(run, config)
    SafetensorsFiles.read_into = original
    weights = dict(whole.named_parameters())
    assert not _find_unequal_weights(pipeline, config, weights)
    dist.barrier()
    return read


if __name__ == "__main__":
    main()
