"""`gradients_once.py OUT.json FOLDER CASES`: engines with their optimizer on the CPU, or on NVMe below FOLDER, with gradients
held twice as DeepSpeed does it, and once. Of each: losses, norms, a digest of the weights, bytes of a step's swapping,
the files left by gradients, and bytes of the masters' gradients between steps.
"""

import hashlib
import json
import sys
from pathlib import Path

import deepspeed
import torch
from deepspeed.ops.op_builder import AsyncIOBuilder
from transformers import AutoConfig, AutoModelForCausalLM

from harness.runtime.distributed import destroy_process_group, init_process_group
from harness.runtime.patches.cpu_offload_single_grad import cast_grads_on_step, skip_cpu_grad_copies
from harness.runtime.patches.nvme_offload_no_grad_swap import keep_grads_in_host_memory
from harness.runtime.telemetry.nvme_io import NVME_COUNTERS, counting_handle_class

LLAMA = {
    "vocab_size": 1024,
    "hidden_size": 1024,
    "intermediate_size": 1024,
    "num_hidden_layers": 1,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "max_position_embeddings": 64,
}
STEPS, ACCUMULATION = 3, 2


def config(case, folder):
    """DeepSpeed's JSON."""
    offload = {"device": case["device"]}
    if case["device"] == "nvme":
        offload |= {"nvme_path": str(folder), "buffer_count": 12 if case["pipelined"] else 4}
        offload |= {"pipeline_read": case["pipelined"], "pipeline_write": case["pipelined"]}
    return {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": ACCUMULATION,
        "gradient_clipping": 1.0,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}},
        "bf16": {"enabled": case["bf16"]},
        "zero_optimization": {"stage": 3, "sub_group_size": 4_000_000, "offload_optimizer": offload},
    }


def left(zero):
    """Sum of the gradients that are still there after a step, but for sub-groups too small for the disk they belong on."""
    sizes = [int(size) for size in zero.fp16_partitioned_groups_flat_numel]
    parts = zero.grad_partitions_flat_buffer.split(sizes)
    small = [zero.swap_optimizer and not zero._swappable_optimizer_subgroup(i) for i in range(len(parts))]
    return sum(float(part.abs().sum()) for part, too_small in zip(parts, small, strict=True) if not too_small)


def trained(case, folder, once):
    """One engine, from the same weights with the same rows."""
    with deepspeed.zero.Init(config_dict_or_path=config(case, folder)):
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model("llama", **LLAMA))
    generator = torch.Generator().manual_seed(ranks.rank)
    for parameter in model.parameters():
        parameter.ds_tensor.data.normal_(std=0.02, generator=generator)
    matrices, vectors = ([p for p in model.parameters() if (len(p.ds_shape) > 1) is wide] for wide in (True, False))
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]
    with skip_cpu_grad_copies(once):
        engine, *_ = deepspeed.initialize(model=model, model_parameters=groups, config=config(case, folder))
    cast_grads_on_step(engine)
    if once:
        keep_grads_in_host_memory(engine)
    ids = torch.randint(0, 1024, (1, 32), generator=generator)
    losses, norms = [], []
    for micro in range(STEPS * ACCUMULATION):
        if micro == (STEPS - 1) * ACCUMULATION:
            NVME_COUNTERS.bytes_read = NVME_COUNTERS.bytes_written = 0
        loss = engine(input_ids=ids, labels=ids, use_cache=False).loss
        engine.backward(loss)
        engine.step()
        losses.append(loss.item())
        if micro % ACCUMULATION == ACCUMULATION - 1:
            norms.append(float(engine.get_global_grad_norm()))
    digest = hashlib.sha256()
    for parameter in model.parameters():
        digest.update(parameter.ds_tensor.contiguous().view(torch.uint8).numpy().tobytes())
    files = list(folder.rglob(f"rank{ranks.rank}/*_gradient_*"))
    masters = engine.optimizer.fp32_partitioned_groups_flat
    found = {"losses": losses, "norms": norms, "weights": digest.hexdigest(), "files": len(files)}
    found["left"] = left(engine.optimizer)
    found["masters_gradients"] = sum(m.grad.nbytes for m in masters if m.grad is not None)
    found |= {"read": NVME_COUNTERS.bytes_read, "written": NVME_COUNTERS.bytes_written}
    found["shard"] = sum(parameter.ds_tensor.numel() for parameter in model.parameters())
    engine.destroy()
    return found


ranks = init_process_group()
op = AsyncIOBuilder().load(verbose=False)
op.aio_handle = counting_handle_class(op.aio_handle)
results = []
for number, case in enumerate(json.loads(sys.argv[3])):
    place = Path(sys.argv[2]) / str(number)
    results.append({name: trained(case, place / name, name == "once") for name in ("twice", "once")})
everyone = ranks.all_gather_object(results)
if ranks.is_main_process:
    Path(sys.argv[1]).write_text(json.dumps(everyone))
destroy_process_group()
