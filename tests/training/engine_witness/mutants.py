# SPDX-License-Identifier: Apache-2.0
"""Twenty faults of DeepSpeed that make training silently wrong. The watch over an engine has to stop each within 3 steps.

The list was written before the gradient witness, by somebody who did not build it. Ten more are in `held_back_mutants`, for
the end. `tests/training/jobs/mutant_runs.py` trains with each: it raises nothing, and after 3 steps its weights differ from
those of the clean run. Lines are of DeepSpeed 0.19.8.

A mutant replaces the code of functions in memory (`tests/support/code_edits.py`), so digests of sources stay as they are.
It is injected before `deepspeed.initialize`, or with `moment="any"` at any time, also between two steps.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Literal

from tests.support.code_edits import CodeEdit, apply_edits

WAYS = (
    "zero0",
    "zero1",
    "zero1_bf16",
    "zero2",
    "zero2_bf16",
    "zero2_cpu",
    "zero3",
    "zero3_cpu",
)
"""Ways to train: the stage, then `bf16` with gradients in fp32 (else fp32), or `cpu` with the optimizer offloaded."""

Kind = Literal["accumulation", "scale", "subgraph", "stale", "step", "clip", "reduction", "shard", "update"]

Need = Literal[
    "accumulation",  # 2 micro-batches a step
    "clipping",  # a threshold below the norm of the gradients, no lower than a tenth of it
    "decay",  # weight decay on the matrices, none on the vectors, in two groups of parameters
    "evaluation",  # a forward without gradients between the two micro-batches
    "gradient size",  # an update that depends on it: Adam's epsilon near the gradients; and no clipping, if not needed
    "reused module",  # used twice in a forward
    "several buckets",  # `reduce_bucket_size` holds a few parameters
    "shared parameter",  # the border between the ranks' shards is inside a parameter
]
"""Settings of the run without which the fault changes nothing. Each fault needs 2 data-parallel ranks."""

ENGINE = "deepspeed.runtime.engine:DeepSpeedEngine"
STAGE12 = "deepspeed.runtime.zero.stage_1_and_2:DeepSpeedZeroOptimizer"
STAGE3 = "deepspeed.runtime.zero.stage3:DeepSpeedZeroOptimizer_Stage3"
BF16 = "deepspeed.runtime.bf16_optimizer:BF16_Optimizer"
REDUCE_SCATTER = "deepspeed.runtime.comm.coalesced_collectives:reduce_scatter_coalesced"
CPU_ADAM = "deepspeed.ops.adam.cpu_adam:DeepSpeedCPUAdam"

STAGE12_WAYS = ("zero1", "zero2", "zero2_bf16")
STAGE3_WAYS = ("zero3", "zero3_cpu")


@dataclass(frozen=True)
class Mutant:
    """A fault: what becomes wrong, in which ways to train, and what else the run needs for it."""

    name: str
    kind: Kind
    ways: tuple[str, ...]
    description: str
    edits: tuple[CodeEdit, ...]
    needs: tuple[Need, ...] = ()
    moment: Literal["any", "before initialize"] = "any"

    def inject(self) -> AbstractContextManager[None]:
        """A context in which the fault is there. Raises EditError where it does not fit the installed package."""
        return apply_edits(*self.edits)


MUTANTS = (
    Mutant(
        "stage2-accumulation-overwritten",
        "accumulation",
        ("zero2",),
        "The gradient of a micro-batch replaces those before it in the step (stage_1_and_2.py:1045): the last one trains.",
        (
            CodeEdit(
                f"{STAGE12}.independent_gradient_partition_epilogue",
                "accumulated_grad.add_(new_avg_grad)",
                "accumulated_grad.copy_(new_avg_grad)",
            ),
        ),
        ("accumulation",),
    ),
    Mutant(
        "stage3-accumulation-overwritten",
        "accumulation",
        STAGE3_WAYS,
        "Each micro-batch counts as the first of its step (stage3.py:2024), so its shard of the gradient is copied over.",
        (CodeEdit(f"{STAGE3}.partition_grads", "if self.micro_step_id == 0:", "if self.micro_step_id >= 0:"),),
        ("accumulation",),
    ),
    Mutant(
        "offload-accumulation-lost",
        "accumulation",
        ("zero2_cpu",),
        "What earlier micro-batches left in host memory is not added to the last gradient (stage_1_and_2.py:1855).",
        (
            CodeEdit(
                f"{STAGE12}.async_accumulate_grad_in_cpu_via_gpu",
                "if self.micro_step_id > 0:",
                "if self.micro_step_id < 0:",
            ),
        ),
        ("accumulation",),
    ),
    Mutant(
        "bf16-optimizer-accumulation-overwritten",
        "accumulation",
        ("zero1_bf16",),
        "The fp32 gradient is that of the last micro-batch, not the sum (bf16_optimizer.py:523).",
        (CodeEdit(f"{BF16}._update_hp_grad", "hp_grad.data.add_(lp.grad", "hp_grad.data.copy_(lp.grad"),),
        ("accumulation",),
    ),
    Mutant(
        "loss-not-divided-by-accumulation",
        "scale",
        WAYS,
        "`engine.backward` leaves the loss as it is (engine.py:3413): the gradient is the sum over micro-batches, not the mean.",
        (
            CodeEdit(
                f"{ENGINE}.backward",
                "loss = loss / self.gradient_accumulation_steps() if scale_wrt_gas else loss",
                "loss = loss / 1.0 if scale_wrt_gas else loss",
            ),
        ),
        ("accumulation", "gradient size"),
    ),
    Mutant(
        "output-gradient-divided-again",
        "scale",
        WAYS,
        "The hook on the model's output divides by the accumulation steps though `engine.backward` did (engine.py:3183).",
        (CodeEdit(f"{ENGINE}._backward_prologue_per_tensor", "if graph_loss_scaled:", "if False:"),),
        ("accumulation", "gradient size"),
    ),
    Mutant(
        "stage12-sum-over-ranks",
        "scale",
        (*STAGE12_WAYS, "zero2_cpu"),
        "Gradients are summed over ranks and not averaged (stage_1_and_2.py:1688).",
        (
            CodeEdit(
                f"{STAGE12}.average_tensor",
                "tensor.div_(dist.get_world_size(group=self.dp_process_group) / float(self.sequence_parallel_size))",
                "pass",
            ),
        ),
        ("gradient size",),
    ),
    Mutant(
        "stage3-divided-by-ranks-twice",
        "scale",
        STAGE3_WAYS,
        "The bucket is divided by the number of ranks twice before the reduce-scatter (coalesced_collectives.py:124).",
        (
            CodeEdit(
                REDUCE_SCATTER,
                "tensor_partition_flat_buffer.div_(world_sz)",
                "tensor_partition_flat_buffer.div_(world_sz * world_sz)",
            ),
        ),
        ("gradient size",),
    ),
    Mutant(
        "stage3-last-use-without-gradient",
        "subgraph",
        STAGE3_WAYS,
        "The hook before a module's backward gives zeros to its last use in a forward (parameter_offload.py:482): the"
        " subgraph of that use adds nothing to the gradients of its weights and of what is before it.",
        (
            CodeEdit(
                "deepspeed.runtime.zero.parameter_offload:DeepSpeedZeRoOffload._register_deepspeed_module",
                "ctx.pre_backward_function(ctx.module)\n                    return args",
                "last_of_many = ctx.module.applied_pre_backward_ref_cnt > 1\n"
                "                    ctx.pre_backward_function(ctx.module)\n"
                "                    return tuple(a * 0 for a in args) if last_of_many else args",
            ),
        ),
        ("reused module",),
        "before initialize",
    ),
    Mutant(
        "stage12-gradients-of-earlier-steps-kept",
        "stale",
        STAGE12_WAYS,
        "The sums of a step are not dropped after it (stage_1_and_2.py:1059, 3132): the next step adds to them.",
        (
            CodeEdit(f"{STAGE12}.independent_gradient_partition_epilogue", "self.all_grad_tensors[i] = None", "pass"),
            CodeEdit(
                f"{STAGE12}.step",
                "                self.averaged_gradients[i] = None\n                self.all_grad_tensors[i] = None\n",
                "                if not hasattr(self.averaged_gradients[i], 'flat_partition'):\n"
                "                    self.averaged_gradients[i] = None\n",
            ),
        ),
    ),
    Mutant(
        "stage0-vector-gradients-kept",
        "stale",
        ("zero0",),
        "`engine.zero_grad` leaves the gradients of biases and norms (engine.py:3500): later steps add to them.",
        (CodeEdit(f"{ENGINE}.zero_grad", "param.grad = None", "param.grad = None if param.dim() > 1 else param.grad"),),
    ),
    Mutant(
        "stage12-optimizer-stepped-twice",
        "step",
        (*STAGE12_WAYS, "zero2_cpu"),
        "The optimizer steps twice with the same gradients (stage_1_and_2.py:2983).",
        (
            CodeEdit(
                f"{STAGE12}._optimizer_step",
                "        else:\n            self.optimizer.step()\n",
                "        else:\n            self.optimizer.step()\n            self.optimizer.step()\n",
            ),
        ),
    ),
    Mutant(
        "stage12-clip-norm-of-own-shard",
        "clip",
        STAGE12_WAYS,
        "The norm for clipping is not summed over ranks (stage_1_and_2.py:2693): each rank clips by that of its own shard.",
        (
            CodeEdit(
                f"{STAGE12}.get_grad_norm_direct",
                "dist.all_reduce(total_norm, op=dist.ReduceOp.SUM, group=self.dp_process_group)",
                "pass",
            ),
        ),
        ("clipping", "gradient size"),
    ),
    Mutant(
        "stage3-clip-norm-of-last-group",
        "clip",
        STAGE3_WAYS,
        "The norm for clipping is that of the last sub-group and not of all (stage3.py:2887).",
        (
            CodeEdit(
                f"{STAGE3}.step",
                "scaled_global_grad_norm = combine_grad_norm_groups(norm_groups)",
                "scaled_global_grad_norm = combine_grad_norm_groups(norm_groups[-1:])",
            ),
        ),
        ("clipping", "decay", "gradient size"),
    ),
    Mutant(
        "stage2-vectors-not-reduced",
        "reduction",
        ("zero2",),
        "The hook leaves gradients of biases and norms out of the buckets (stage_1_and_2.py:2290): each rank steps with its own.",
        (
            CodeEdit(
                f"{STAGE12}.process_gradients",
                "if self.partition_gradients or self.overlap_comm:",
                "if param.dim() > 1:",
            ),
        ),
    ),
    Mutant(
        "stage3-lone-gradient-not-reduced",
        "reduction",
        STAGE3_WAYS,
        "A bucket that holds one gradient is not reduced (coalesced_collectives.py:128): each rank keeps its part of its own.",
        (
            CodeEdit(
                REDUCE_SCATTER,
                "    _torch_reduce_scatter_fn(tensor_partition_flat_buffer,",
                "    len(tensors) > 1 and _torch_reduce_scatter_fn(tensor_partition_flat_buffer,",
            ),
        ),
        ("several buckets",),
    ),
    Mutant(
        "stage0-rank-left-out",
        "reduction",
        ("zero0",),
        "The average of gradients leaves out the main process (engine.py:3808).",
        (
            CodeEdit(
                f"{ENGINE}.allreduce_bucket",
                "            if self.gradient_predivide_factor() != 1.0:\n"
                "                tensor_to_allreduce.mul_(1.0 / self.gradient_predivide_factor())\n",
                "            tensor_to_allreduce.mul_(float(dist.get_rank() > 0) * dp_world_size / (dp_world_size - 1))\n",
            ),
        ),
    ),
    Mutant(
        "stage3-gradient-shards-swapped",
        "shard",
        STAGE3_WAYS,
        "Each rank gets the shard of the gradient that belongs to the other end of the ranks (coalesced_collectives.py:97).",
        (
            CodeEdit(
                REDUCE_SCATTER,
                "for rank in range(0, world_sz)\n",
                "for rank in reversed(range(0, world_sz))\n",
            ),
        ),
    ),
    Mutant(
        "stage3-decay-of-first-group",
        "update",
        STAGE3_WAYS,
        "All sub-groups are updated with the settings of the first group (stage3.py:1236): biases and norms decay too.",
        (
            CodeEdit(
                f"{STAGE3}._optimizer_step",
                "param_group_id = self.sub_group_to_group_id[sub_group_id]",
                "param_group_id = 0",
            ),
        ),
        ("decay",),
    ),
    Mutant(
        "cpu-adam-bias-correction-off-by-one",
        "update",
        ("zero2_cpu", "zero3_cpu"),
        "CPUAdam corrects its moments for one step more than were taken (cpu_adam.py:170).",
        (
            CodeEdit(
                f"{CPU_ADAM}.step",
                "self.ds_opt_adam.adam_update(self.opt_id, state['step'],",
                "self.ds_opt_adam.adam_update(self.opt_id, state['step'] + 1,",
            ),
        ),
    ),
)
