# SPDX-License-Identifier: Apache-2.0
"""Ten faults more, which nobody who builds the watch reads before it is done. `mutants` says what they are."""

from __future__ import annotations

from tests.support.code_edits import CodeEdit
from tests.training.engine_witness.mutants import (
    ENGINE,
    STAGE3,
    STAGE3_WAYS,
    STAGE12,
    STAGE12_WAYS,
    WAYS,
    Mutant,
)

MUTANTS = (
    Mutant(
        "fp32-partition-overwritten",
        "accumulation",
        ("zero2_bf16",),
        "A reduced bf16 gradient replaces what the fp32 partition holds of earlier micro-batches (stage_1_and_2.py:1326).",
        (CodeEdit(f"{STAGE12}._add_to_grad_partition_buffer", "output.add_(", "output.copy_("),),
        ("accumulation",),
    ),
    Mutant(
        "boundary-one-micro-batch-early",
        "accumulation",
        WAYS,
        "The step is taken one micro-batch early (engine.py:3463): the first with half of its gradients, the others with"
        " micro-batches of two steps.",
        (
            CodeEdit(
                f"{ENGINE}.is_gradient_accumulation_boundary",
                "return (self.micro_steps + 1) % self.gradient_accumulation_steps() == 0",
                "return self.micro_steps % self.gradient_accumulation_steps() == 0",
            ),
        ),
        ("accumulation",),
        "before initialize",
    ),
    Mutant(
        "stage3-evaluation-forgets-micro-batches",
        "accumulation",
        STAGE3_WAYS,
        "A forward without gradients between two micro-batches makes the second the first of its step (stage3.py:2407).",
        (
            CodeEdit(
                f"{STAGE3}.clear_backward_seen_flag",
                "self.micro_step_id += 1",
                "self.micro_step_id = self.micro_step_id + 1 if torch.is_grad_enabled() else 0",
            ),
        ),
        ("accumulation", "evaluation"),
    ),
    Mutant(
        "stage3-half-of-the-gradients-stale",
        "stale",
        STAGE3_WAYS,
        "Shards of every second parameter are added to those of the steps before (stage3.py:2024).",
        (
            CodeEdit(
                f"{STAGE3}.partition_grads",
                "if self.micro_step_id == 0:",
                "if self.micro_step_id == 0 and param.ds_id % 2 == 0:",
            ),
        ),
    ),
    Mutant(
        "stage3-last-sub-group-not-updated",
        "step",
        STAGE3_WAYS,
        "The loop over sub-groups leaves out the last one (stage3.py:2910), whose weights stay as they are.",
        (
            CodeEdit(
                f"{STAGE3}.step",
                "for sub_group_id, group in enumerate(self.fp16_groups):",
                "for sub_group_id, group in enumerate(self.fp16_groups[:-1]):",
            ),
        ),
        ("decay",),
    ),
    Mutant(
        "offload-clip-norm-of-norms",
        "clip",
        ("zero2_cpu",),
        "The norm for clipping sums norms of parameters that are not squared (stage_1_and_2.py:1929).",
        (
            CodeEdit(
                f"{STAGE12}.complete_grad_norm_calculation_for_cpu_offload",
                "total_norm += param_norm.item()**2",
                "total_norm += param_norm.item()",
            ),
        ),
        ("clipping", "gradient size"),
    ),
    Mutant(
        "stage12-last-rank-left-out",
        "reduction",
        (*STAGE12_WAYS, "zero2_cpu"),
        "The last rank adds zeros to the reduction (stage_1_and_2.py:1688): its data trains nothing.",
        (
            CodeEdit(
                f"{STAGE12}.average_tensor",
                "tensor.div_(dist.get_world_size(group=self.dp_process_group) / float(self.sequence_parallel_size))",
                "tensor.mul_(float(dist.get_rank() + 1 < dist.get_world_size()) / (dist.get_world_size() - 1))",
            ),
        ),
    ),
    Mutant(
        "stage12-shared-parameter-off-by-one",
        "shard",
        ("zero1", "zero2"),
        "The part of a shared parameter's gradient begins one element early on the second rank (stage_1_and_2.py:2884).",
        (
            CodeEdit(
                f"{STAGE12}._get_flat_partition_unpadded",
                "flat_tensor_list.append(tensor.contiguous().view(-1).narrow(0, int(tensor_offset), int(num_elements)))",
                "begin = max(int(tensor_offset) - 1, 0)\n"
                "                flat_tensor_list.append(tensor.contiguous().view(-1).narrow(0, begin, int(num_elements)))",
            ),
        ),
        ("shared parameter",),
    ),
    Mutant(
        "weights-of-later-groups-not-gathered",
        "shard",
        ("zero1", "zero1_bf16", "zero2", "zero2_bf16", "zero2_cpu"),
        "Updated weights are gathered for the first group alone (utils.py:1012): of the others each rank has its own shard"
        " and old ones.",
        (
            CodeEdit(
                "deepspeed.runtime.utils:all_gather_into_tensor_dp_groups",
                "if dp_world_size == 1:",
                "if dp_world_size == 1 or group_id > 0:",
            ),
        ),
        ("decay",),
    ),
    Mutant(
        "fused-adam-counts-steps-twice",
        "update",
        ("zero0", "zero1", "zero1_bf16", "zero2", "zero2_bf16", "zero3"),
        "FusedAdam corrects its moments for twice the steps that were taken (fused_adam.py:189).",
        (
            CodeEdit(
                "deepspeed.ops.adam.fused_adam:FusedAdam.step",
                "            if len(g_32) > 0:\n                state['step'] += 1\n",
                "            if len(g_32) > 0:\n                state['step'] += 2\n",
            ),
        ),
    ),
)
