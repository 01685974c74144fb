# SPDX-License-Identifier: Apache-2.0
"""The allocation with which a GPU ran out of memory: from the frames of the traceback and torch's numbers."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from harness.diagnosis.diagnosis_types import FailedAllocation, Frame
from harness.units import format_bytes, parse_bytes

_LAST_FRAMES = 12
"""Frames at the end of a traceback that say what was being computed."""
_SIZE = r"([\d.]{1,12} ?[KMGT]i?B)"
_RECOMPUTE = (
    "recompute activations (`gradient_checkpointing: true` of the Trainer, `train.gradient_checkpointing` of a run "
    "spec)"
)
_SMALLER_BATCH = (
    "lower `train_micro_batch_size_per_gpu` (the Trainer's `per_device_train_batch_size`) and raise "
    "`gradient_accumulation_steps`"
)
_SHORTER = "shorten the longest sequence (`cutoff_len`, `max_length`)"


class _Rule(NamedTuple):
    """`frames` is searched in `file function | code` of the last frames."""

    name: str
    frames: re.Pattern[str]
    text: str
    change: str
    phases: tuple[str, ...] = ()


def _rule(name: str, frames: str, text: str, change: str, *phases: str) -> _Rule:
    return _Rule(name, re.compile(frames), text, change, phases)


_RULES = (
    _rule(
        "evaluation-logits",
        r" nested_concat | torch_pad_and_concatenate |preds_host|EvalLoopContainer|all_preds|"
        r" nested_gather | gather_for_metrics |pad_across_processes",
        "the logits of all evaluation batches, which the Trainer keeps on the GPU until it moves them to the host",
        "set `eval_accumulation_steps` (a few batches), `prediction_loss_only: true` where only the loss is read, or "
        "`preprocess_logits_for_metrics` that keeps only the predicted ids; lower `per_device_eval_batch_size`",
    ),
    _rule(
        "key-value-cache",
        r"transformers/cache_utils\.py| past_key_values?|DynamicCache|StaticCache",
        "the keys and values of generated tokens",
        "generate fewer or shorter sequences (`max_new_tokens`, `per_device_eval_batch_size`, fewer generations per"
        " prompt), or give the inference engine less memory",
        "generation",
    ),
    _rule(
        "logits",
        r"ForCausalLMLoss|cross_entropy|\blogits\.float\(\)|\blm_head\(|log_softmax|selective_log_softmax|logprobs",
        "the logits of a whole micro-batch or their loss: sequences x tokens x vocabulary, partly in fp32",
        "compute both in chunks of tokens: `train.loss_chunk_size` of a run spec, a fused or chunked cross-entropy "
        "of the "
        f"trainer (`use_liger_kernel: true` of the Trainer); or {_SMALLER_BATCH}",
    ),
    _rule(
        "consolidated-model",
        r"_zero3_consolidated_16bit_state_dict|_consolidated_16bit_state_dict| save_16bit_model ",
        "a full copy of the model, gathered from the ranks to save it",
        "set `stage3_gather_16bit_weights_on_model_save: false` in `zero_optimization`, and consolidate the weights"
        " from the checkpoint later (`zero_to_fp32.py`, or `harness export`)",
    ),
    _rule(
        "optimizer-states",
        r" initialize_optimizer_states |_create_fp32_partitions| initialize_fp32_groups|_init_group .*zeros_like|"
        r"exp_avg|state\['?\"?(?:exp|momentum)|torch\.zeros_like\(p|single_partition_of_fp32_groups|fp32_groups_flat",
        "the states of the optimizer: fp32 copies of the weights and Adam's moments, 12 bytes for each parameter of "
        "a rank",
        "partition them over more ranks (ZeRO stage 1 to 3), or move them to the host: "
        "`zero_optimization.offload_optimizer: {\"device\": \"cpu\"}` (`zero.offload_optimizer.device: cpu` of a run "
        "spec); the batch size does not change them",
    ),
    _rule(
        "optimizer-step",
        r"torch/optim/\w+\.py|_optimizer_step|unscale_and_clip_grads|_take_model_step|multi_tensor_adam|"
        r"zero/stage(?:3|_1_and_2)\.py step |_multi_tensor|foreach",
        "copies that the optimizer step makes: gradients in fp32, temporaries of Adam, states made at the first step",
        "move the optimizer to the host (`zero_optimization.offload_optimizer.device: cpu`), use a higher ZeRO stage "
        "or more ranks, lower `sub_group_size` at stage 3, or use a fused optimizer; a smaller batch does not change "
        "them",
    ),
    _rule(
        "gather",
        r"all_gather_coalesced|_all_gather|fetch_sub_module|__all_gather_params|_allgather_params|"
        r"all_gather_into_tensor|partitioned_param_coordinator|GatheredParameters|_all_gather_dtype",
        "full parameters that ZeRO-3 gathers for a layer and prefetches for the next ones",
        "lower `stage3_max_live_parameters`, `stage3_prefetch_bucket_size` and `stage3_param_persistence_threshold` in "
        f"`zero_optimization` (`zero.stage3_...` of a run spec), or {_SMALLER_BATCH}; inside `GatheredParameters`, "
        f"gather "
        "fewer parameters at a time",
    ),
    _rule(
        "gradient-buckets",
        r"ipg|reduce_independent_p_g_buckets|reduce_bucket|allreduce_bucket|average_tensor|reduce_ready_partitions|"
        r"setup_buckets|gradient_reduction|reduce_partition|_reduce_and_partition|__add_grad|get_flat_partition|"
        r"grad_partitions",
        "gradients and the buckets in which ZeRO reduces them",
        "lower `reduce_bucket_size` (and `allgather_bucket_size`) in `zero_optimization`, set `overlap_comm: false` "
        "(overlap keeps a second bucket), set `contiguous_gradients: true`, or offload the optimizer",
    ),
    _rule(
        "whole-model",
        r"_configure_distributed_model |_move_model_to_device |modeling_utils\.py (?:to|cuda) |"
        r"torch/nn/modules/module\.py (?:convert|_apply|cuda) | \.cuda\(\)| caching_allocator_warmup ",
        "the whole model: it was moved to this GPU before it was partitioned",
        "set up ZeRO stage 3 before `from_pretrained` (create `TrainingArguments(deepspeed=...)` or "
        "keep an `HfDeepSpeedConfig` alive, or use `deepspeed.zero.Init`), load it in 16 bits, and do not move "
        "it by hand (`.cuda()`, `device_map`)",
    ),
    _rule(
        "layer-under-construction",
        r"zero/partition_parameters\.py",
        "a layer that `deepspeed.zero.Init` builds whole before it partitions it",
        "build it on the host: `zero.Init(remote_device=\"cpu\")` or `offload_param.device: cpu`, and in 16 bits "
        "(`dtype`)",
        "model", "weights",
    ),
    _rule(
        "attention-scores",
        r"eager_attention_forward|scaled_dot_product_attention|sdpa_attention|torch\.matmul\(q|matmul\(query|"
        r"attn_weights|attention_scores|_make_causal_mask|causal_mask|_prepare_4d|_update_causal_mask|_expand_mask|"
        r"torch\.baddbmm",
        "scores or a mask of attention, which grow with the square of the sequence length",
        "use an attention that does not materialize them (`attn_implementation: flash_attention_2` or `sdpa`; "
        f"`model.attn_implementation` of a run spec), {_SHORTER}, or divide sequences over ranks "
        "(`parallel.sequence_parallel_size`, Ulysses)",
    ),
    _rule(
        "recomputed-activations",
        r"torch/utils/checkpoint\.py|activation_checkpointing/checkpointing\.py",
        "activations of a layer (they are already recomputed)",
        f"{_SMALLER_BATCH}, {_SHORTER}, divide sequences over ranks (`parallel.sequence_parallel_size`), or free "
        "memory that the model states take: use a higher ZeRO stage or offload",
    ),
    _rule(
        "backward",
        r"torch/autograd/|runtime/engine\.py backward | backward ",
        "gradients and temporaries of the backward pass, on top of the activations",
        f"{_RECOMPUTE}, {_SMALLER_BATCH}, {_SHORTER}, or free memory that the model states take: use a higher "
        "ZeRO stage or offload",
    ),
    _rule(
        "activations",
        r"torch/nn/(?:modules|functional)|modeling_\w+\.py (?:forward|\w+) |runtime/engine\.py forward ",
        "activations of the forward pass",
        f"{_RECOMPUTE}, {_SMALLER_BATCH}, or {_SHORTER}",
    ),
)  # fmt: skip


def find_gpu_allocation(frames: Sequence[Frame], phase: str) -> FailedAllocation | None:
    """The block that was being allocated; None where neither the frames nor the numbers show it."""
    texts = [f"{frame.file} {frame.function} | {frame.code}" for frame in frames[-_LAST_FRAMES:]]
    is_chunked = any("chunked_" in frame.file for frame in frames[-4:])
    for rule in _RULES:
        if rule.phases and phase not in rule.phases:
            continue
        rows = texts[-4:] if rule.name == "logits" else texts
        if rule.name == "logits" and (is_chunked or phase == "generation"):
            continue
        if any(rule.frames.search(row) for row in rows):
            return FailedAllocation(rule.name, rule.text, rule.change)
    if phase in ("model", "weights"):
        whole = next(rule for rule in _RULES if rule.name == "whole-model")
        return FailedAllocation(whole.name, "the model, as it is loaded onto this GPU", whole.change)
    if phase in ("engine", "optimizer states"):
        states = next(rule for rule in _RULES if rule.name == "optimizer-states")
        return FailedAllocation(states.name, f"probably {states.text}", states.change)
    return None


def compare_numbers(text: str) -> tuple[str, ...]:
    """Notes on torch's numbers: fragmentation, other processes, memory outside torch, a request larger than the GPU."""
    sizes = {name: _find_size(pattern, text) for name, pattern in _SIZES.items()}
    wanted, total, unallocated = sizes["wanted"], sizes["total"], sizes["unallocated"]
    own, allocated = sizes["own"], sizes["allocated"]
    if sizes["reserved total"]:
        own = sizes["reserved total"]
        unallocated = max(own - allocated, 0)
    notes = []
    if wanted and total and wanted > total:
        notes.append("the request alone is larger than the GPU: one tensor, most often logits, a mask or a flat buffer")
    if wanted and unallocated >= wanted:
        notes.append(
            f"torch had {format_bytes(unallocated)} reserved but not allocated: fragmentation; set "
            "`PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True`"
        )
    others = (
        sum(_parse_size(size) for size in re.findall(rf"Process \d+ has {_SIZE} memory in use", text)) if own else 0
    )
    if sizes["reserved total"]:
        others = total - own - sizes["free"]
    if total and others > total // 8 and own:
        notes.append(
            f"other processes, or memory outside torch, hold {format_bytes(others)} of this GPU: check `nvidia-smi` "
            f"for a leftover job, another rank on the same GPU, or an inference server"
        )
    outside = own - allocated - unallocated if sizes["own"] and allocated else 0
    if outside > 3 << 30:
        notes.append(
            f"this process holds {format_bytes(outside)} outside torch: the CUDA context, NCCL's buffers (one set "
            f"for each "
            "process group), other libraries"
        )
    return tuple(notes)


_SIZES = {
    "wanted": rf"Tried to allocate {_SIZE}",
    "total": rf"(?:total capacity of|GPU \d+;) {_SIZE}",
    "free": rf"(?:of which|;) {_SIZE} (?:is )?free",
    "own": rf"this process has {_SIZE} memory in use",
    "allocated": rf"{_SIZE} (?:is allocated by PyTorch|already allocated)",
    "unallocated": rf"and {_SIZE} is reserved by PyTorch but unallocated",
    "reserved total": rf"{_SIZE} reserved in total by PyTorch",
}


def _find_size(pattern: str, text: str) -> int:
    match = re.search(pattern, text)
    return _parse_size(match[1]) if match else 0


def _parse_size(text: str) -> int:
    try:
        return parse_bytes(text)
    except ValueError:
        return 0
