# SPDX-License-Identifier: Apache-2.0
"""Thirty-three faults of device code to seed: each leaves out one synchronisation, or one copy to the device.

They are what a detector of races has to find. Lines are of DeepSpeed 0.19.8. Streams of PyTorch do not wait for the
default stream, nor it for them (`cudaStreamNonBlocking`): only waits, events, collectives' handles and the host order
them. `float(tensor)` and `.item()` order the host after the current stream alone.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Literal

from tests.support.code_edits import CodeEdit, apply_edits

_ZERO12 = ("zero1", "zero2")
_NVME = ("zero3_nvme", "zero3_nvme_params")
_ZERO3 = ("zero3", "zero3_cpu", *_NVME)
_EVERY_WAY = (*_ZERO12, *_ZERO3)

_PARTITION = "deepspeed.runtime.zero.partition_parameters"
_STAGE3 = "deepspeed.runtime.zero.stage3:DeepSpeedZeroOptimizer_Stage3"
_STAGE12 = "deepspeed.runtime.zero.stage_1_and_2:DeepSpeedZeroOptimizer"
_COORDINATOR = "deepspeed.runtime.zero.partitioned_param_coordinator:PartitionedParameterCoordinator"
_STATE_SWAPPER = "deepspeed.runtime.swap_tensor.pipelined_optimizer_swapper:PipelinedOptimizerSwapper"
_PARAM_SWAPPER = "deepspeed.runtime.swap_tensor.partitioned_param_swapper:AsyncPartitionedParameterSwapper"
_ACTIVATIONS = "deepspeed.runtime.activation_checkpointing.offload_activations:_ActivationOffloadEngine"

_COPIES = "harness.patches.one_pass_adam:DeviceCopies"
_EARLY = "harness.patches.overlapped_step:OverlappedStep"
_EARLY_SETTINGS = "`overlap_step_gib`, 3 sub-groups"
_ON_CPU = "the patch one-pass-adam: page-locked buffers, weights on the device"
_SUB_GROUPS = "3 sub-groups"
_BEGUN = (
    "        if not zero.is_gradient_accumulation_boundary() or self._misses >= _MISSES or self._op.is_observed():\n"
    "            return buffers\n"
    "        for group, parameter in owners:\n"
    "            self._groups[group].final.add(parameter.ds_id)\n"
    "        ready = sorted({group for group, _ in owners if self._groups[group].is_ready}, reverse=True)\n"
    "        event = "
)

_SEVERAL_RANKS = "2 data-parallel ranks"
_OVERLAP = "`overlap_comm`"
_BF16 = "bf16: the overflow check of fp16 waits too"


@dataclass(frozen=True)
class SeededFault:
    """A fault: where it is reached, what must be reported, and why it is one on a real device.

    `ways` are the ways to train that reach it, each under the settings in `needs`. `certainty` is "certain" where no
    other synchronisation orders the two accesses, as far as reading tells.
    """

    name: str
    ways: tuple[str, ...]
    expected: Literal["race", "device"]
    description: str
    edits: tuple[CodeEdit, ...]
    needs: tuple[str, ...] = ()
    certainty: Literal["certain", "likely"] = "certain"

    def inject(self) -> AbstractContextManager[None]:
        """A context in which the fault is there. Raises EditError where it does not fit the installed package."""
        return apply_edits(*self.edits)


FAULTS = (
    SeededFault(
        "stage12-reduction-not-waited-for",
        _ZERO12,
        "race",
        "The all-reduce of a bucket (stage_1_and_2.py:2384) is started with a handle that nobody waits for. NCCL reduces"
        " on a stream of its own; `allreduce_and_copy_with_multiple_ranks` (1541) copies the result to the gradients in"
        " the next lines, on the stream that waited only because the collective was a synchronous one.",
        (
            CodeEdit(
                f"{_STAGE12}.allreduce_bucket",
                "dist.all_reduce(tensor_to_allreduce, group=process_group)",
                "dist.all_reduce(tensor_to_allreduce, group=process_group, async_op=True)",
            ),
        ),
        (_SEVERAL_RANKS, "`reduce_scatter`"),
    ),
    SeededFault(
        "stage12-bucket-not-flipped",
        _ZERO12,
        "race",
        "The index of the double buffer stays (stage_1_and_2.py:1427): the next gradients are copied on the compute stream"
        " into the bucket that the reduction stream is still reducing. `average_tensor` makes the compute stream wait for"
        " the reduction stream (1612) before it enqueues the reduction, so for the bucket before this one alone.",
        (
            CodeEdit(
                f"{_STAGE12}.reduce_independent_p_g_buckets_and_remove_grads", "bucket.index = 1 - bucket.index", "pass"
            ),
        ),
        (_OVERLAP, "gradients of 2 buckets", "no optimizer offload, which has events of its own"),
    ),
    SeededFault(
        "gathered-weights-not-waited-for",
        _ZERO3,
        "race",
        "The compute stream no longer waits for the all-gather stream (partitioned_param_coordinator.py:415), on which"
        " `AllGatherCoalescedHandle.wait` puts the weights together (partition_parameters.py:795). The module's kernels"
        " read them next. Events that the host waits for (404) are of fetches three or more before.",
        (
            CodeEdit(
                f"{_COORDINATOR}._fetch_sub_module_impl",
                "get_accelerator().current_stream().wait_stream(self.__allgather_stream)",
                "pass",
            ),
        ),
        (_SEVERAL_RANKS, _OVERLAP),
    ),
    SeededFault(
        "gather-handle-not-waited-for",
        _ZERO3,
        "race",
        "The handle of an asynchronous all-gather is not waited for (partition_parameters.py:765). The all-gather stream"
        " concatenates the parts (795) that NCCL's stream may not have received. Nothing else orders the two streams.",
        (
            CodeEdit(
                f"{_PARTITION}:AllGatherCoalescedHandle.wait", "instrument_w_nvtx(self.allgather_handle.wait)()", "pass"
            ),
        ),
        (_SEVERAL_RANKS, "2 parameters in one fetch: a prefetch, from the second micro-batch on"),
    ),
    SeededFault(
        "freed-weights-not-recorded",
        _ZERO3,
        "race",
        "Gathered weights are freed without `record_stream` (partition_parameters.py:327). They were allocated on the"
        " all-gather stream, so the allocator gives their memory to the next gather on it at once, while kernels of the"
        " compute stream that read them wait in their queue. The all-gather stream never waits for the compute stream.",
        (CodeEdit(f"{_PARTITION}:free_param", "param.data.record_stream(get_accelerator().current_stream())", "pass"),),
        (_SEVERAL_RANKS, _OVERLAP, "2 weights of one size, which a later fetch allocates"),
    ),
    SeededFault(
        "gradient-copied-before-computed",
        _ZERO3,
        "race",
        "The reduction stream no longer waits for the compute stream (stage3.py:1623) and copies a gradient into the"
        " bucket (1637) that backward has only enqueued. No host wait is between: the hook runs in backward.",
        (
            CodeEdit(
                f"{_STAGE3}.__add_grad_to_ipg_bucket",
                "self.reduce_and_partition_stream.wait_stream(get_accelerator().current_stream())",
                "pass",
            ),
        ),
        (_OVERLAP,),
    ),
    SeededFault(
        "freed-gradient-not-recorded",
        _ZERO3,
        "race",
        "A gradient is freed without `record_stream` (stage3.py:1639) when its copy into the bucket is enqueued on the"
        " reduction stream. It was allocated by backward, which gets the memory back at once and writes the next"
        " gradient there. The compute stream does not wait for the reduction stream before the step.",
        (
            CodeEdit(
                f"{_STAGE3}.__add_grad_to_ipg_bucket",
                "param.grad.record_stream(get_accelerator().current_stream())",
                "pass",
            ),
        ),
        (_OVERLAP, "`contiguous_gradients`", "a gradient that fits in the bucket"),
    ),
    SeededFault(
        "norm-before-reduction",
        _ZERO3,
        "race",
        "The end of backward does not wait for the reduction stream (stage3.py:1414). The step then reads partitions of"
        " the gradient on the compute stream (`get_grad_norm_direct`, 2457), or with offload their norms (`float`, 1989)"
        " and the host's copies. `float` orders the host after the compute stream alone; events that the host waits for"
        " (1667) are of buckets three or more before.",
        (
            CodeEdit(
                f"{_STAGE3}.independent_gradient_partition_epilogue",
                "self.reduce_and_partition_stream.synchronize()",
                "pass",
            ),
        ),
        (_OVERLAP, _BF16),
    ),
    SeededFault(
        "reduce-scatter-not-waited-for",
        _ZERO3,
        "race",
        "The reduce-scatter (coalesced_collectives.py:23) is started with a handle that nobody waits for. The reduction"
        " stream copies the partitions out of its output in `partition_grads` (stage3.py:2025) while NCCL's writes them.",
        (
            CodeEdit(
                "deepspeed.runtime.comm.coalesced_collectives:_torch_reduce_scatter_fn",
                "group=group, async_op=False)",
                "group=group, async_op=True)",
            ),
        ),
        (_SEVERAL_RANKS, "`reduce_scatter`"),
    ),
    SeededFault(
        "norm-of-gradients-in-flight",
        ("zero3_cpu", *_NVME),
        "race",
        "The norm is taken of the partition in pinned host memory, not of the one on the device. Its copy was enqueued on"
        " the reduction stream a line before (stage3.py:2025, 2036, `non_blocking`); the host waits at the end of"
        " backward (1414), later. Both for DeepSpeed's method and for the one of the patch cpu-offload-single-grad.",
        (
            CodeEdit(
                f"{_STAGE3}._offload_grad_partition_at_boundary",
                "self._constant_buffered_norm2(grad_buffer)",
                "self._constant_buffered_norm2(self.__param_id_to_grad_partition[param.ds_id])",
            ),
            CodeEdit(
                "harness.patches.cpu_offload_single_grad:cast_grads_on_step",
                "zero._constant_buffered_norm2(buffer)",
                "zero._constant_buffered_norm2(zero._DeepSpeedZeroOptimizer_Stage3__param_id_to_grad_partition[parameter.ds_id])",
            ),
        ),
        ("`offload_optimizer.pin_memory`, without which the copy is a synchronous one",),
    ),
    SeededFault(
        "accumulated-gradient-left-on-host",
        ("zero3_cpu", *_NVME),
        "device",
        "The accumulated partition of the host is not copied to the device (stage3.py:2034) before the new one, which is"
        " there, is added: PyTorch refuses to add a tensor of a GPU to one of the CPU.",
        (
            CodeEdit(
                f"{_STAGE3}.partition_grads",
                "cuda_grad_buffer = grad_buffer.to(grad_partition.device, non_blocking=True)",
                "cuda_grad_buffer = grad_buffer",
            ),
        ),
        ("2 accumulation steps",),
    ),
    SeededFault(
        "states-read-from-nvme-not-waited-for",
        _NVME,
        "race",
        "The read of a sub-group's states is not waited for (pipelined_optimizer_swapper.py:119): Adam reads and writes"
        " buffers on the host that the threads of the aio handle still fill. Nothing else waits for the read handle.",
        (
            CodeEdit(
                f"{_STATE_SWAPPER}.swap_in_optimizer_state",
                "self.swap_ops[SYNC_SWAP_IN].wait()",
                "self.swap_ops[SYNC_SWAP_IN].wait_required = False",
            ),
        ),
        ("the optimizer on NVMe", "`pipeline_read` or `pipeline_write`, the harness' default"),
    ),
    SeededFault(
        "written-states-freed-at-once",
        _NVME,
        "race",
        "The swap buffers of a sub-group are given back when their write begins (pipelined_optimizer_swapper.py:147), not"
        " when `_complete_swap_out` has waited for it, a sub-group later. The buffer manager hands out the last freed"
        " ones first: the read of the sub-group after next, on the other handle, overwrites what is still being written.",
        (
            CodeEdit(
                f"{_STATE_SWAPPER}.swap_out_optimizer_state",
                "            self.swap_ops[ASYNC_SWAP_OUT] = swap_op\n",
                "            self.swap_buffer_manager.free(swap_op.allocated_buffers)\n"
                "            swap_op.allocated_buffers = []\n"
                "            self.swap_ops[ASYNC_SWAP_OUT] = swap_op\n",
            ),
        ),
        ("the optimizer on NVMe", "`pipeline_read` and `pipeline_write`, the harness' default", "3 sub-groups"),
    ),
    SeededFault(
        "weights-read-from-nvme-not-waited-for",
        ("zero3_nvme_params",),
        "race",
        "Reads of partitions are taken as complete without a wait (partitioned_param_swapper.py:217). The copy to the"
        " device for the gather (partition_parameters.py:1360, 1396) reads a page-locked buffer that aio still fills.",
        (
            CodeEdit(
                f"{_PARAM_SWAPPER}.synchronize_reads",
                "assert self.pending_reads == self.aio_read_handle.wait()",
                "pass",
            ),
        ),
    ),
    SeededFault(
        "weights-written-to-nvme-not-waited-for",
        ("zero3_nvme_params",),
        "race",
        "The write of a sub-group's updated weights is not waited for (partitioned_param_swapper.py:415). The host casts"
        " the next sub-group's into the same page-locked buffer, which `synchronize_writes` does not protect: it counts other"
        " writes (205). The next forward also reads files that are not written.",
        (
            CodeEdit(
                f"{_PARAM_SWAPPER}.swap_out_partitioned_params",
                "self.partitioned_swap_pool.swap_out(self.aio_write_handle)",
                "self.partitioned_swap_pool.swap_out(self.aio_write_handle, async_op=True)",
            ),
        ),
        ("2 sub-groups, or 2 steps",),
    ),
    SeededFault(
        "partitions-left-on-host",
        ("zero3_nvme_params",),
        "device",
        "Partitions in host memory are not copied to the device (partition_parameters.py:1360) before they are"
        " concatenated into a buffer there: PyTorch refuses `torch.cat` of CPU tensors with `out` on a GPU.",
        (
            CodeEdit(
                f"{_PARTITION}:Init._convert_to_deepspeed_param",
                "[p.ds_tensor.to(get_accelerator().current_device_name()).to(allgather_dtype) for p in params]",
                "[p.ds_tensor.to(allgather_dtype) for p in params]",
            ),
        ),
        (_SEVERAL_RANKS, "2 parameters in one fetch: a prefetch, from the second micro-batch on"),
    ),
    SeededFault(
        "loss-read-in-flight",
        _EVERY_WAY,
        "race",
        "The loss is read from pinned memory without waiting for the event after its copy (`event.synchronize()` in"
        " harness/runtime/distributed.py, `copy_to_host_async`). A loss that is read a step late is ordered by the step's"
        " own reads of the norm, but that of the last step, of a save or an evaluation is read at once.",
        (CodeEdit("harness.runtime.distributed:copy_to_host_async", "event.synchronize()", "pass"),),
        ("a loss that is read at once: the last step, a save or an evaluation",),
    ),
    SeededFault(
        "pinned-batch-cleared-in-flight",
        _EVERY_WAY,
        "race",
        "The pinned rows of a micro-batch are cleared for reuse once their copies are enqueued, not once they are through"
        " (harness/runtime/micro_batch.py, `to_model_inputs`). PyTorch's allocator of pinned memory protects a freed"
        " buffer by an event, not one that is written; the host waits for nothing between the copy and the write.",
        (
            CodeEdit(
                "harness.runtime.micro_batch:MicroBatch.to_model_inputs",
                "return {name: copy_to_device(t, device) for name, t in inputs.items() if t is not None}",
                "copies = {name: copy_to_device(t, device) for name, t in inputs.items() if t is not None}\n"
                "        self.input_ids.zero_()\n"
                "        return copies",
            ),
        ),
        ("batches in pinned memory", "no pipeline or sequence parallelism"),
    ),
    SeededFault(
        "inputs-left-on-host",
        _EVERY_WAY,
        "device",
        "The ids of a micro-batch are not copied to the device (harness/runtime/micro_batch.py, `to_model_inputs`): the"
        " embedding looks up CPU indices in a weight on a GPU, which PyTorch refuses. DeepSpeed's engine moves no inputs.",
        (CodeEdit("harness.runtime.micro_batch:MicroBatch.to_model_inputs", "copy_to_device(t, device)", "t"),),
        ("no pipeline or sequence parallelism",),
    ),
    SeededFault(
        "weights-buffer-written-while-copied",
        ("zero3_cpu",),
        "race",
        "`take_buffer` of harness/patches/one_pass_adam.py does not wait for the copy out of the buffer, which was enqueued"
        " two sub-groups before: Adam writes the weights of this one into what the device may still read.",
        (CodeEdit(f"{_COPIES}.take_buffer", "sent.synchronize()", "pass"),),
        (_ON_CPU, _SUB_GROUPS),
    ),
    SeededFault(
        "weights-buffer-not-flipped",
        ("zero3_cpu",),
        "race",
        "`take_buffer` waits for the copy before the last, as it does with two buffers, and returns the first buffer"
        " always: Adam writes into what the last copy may still read.",
        (
            CodeEdit(
                f"{_COPIES}.take_buffer",
                "return self.buffers[self._next].narrow",
                "return self.buffers[0].narrow",
            ),
        ),
        (_ON_CPU, "2 sub-groups"),
    ),
    SeededFault(
        "weights-copy-marked-before-it-begins",
        ("zero3_cpu",),
        "race",
        "The event of a copy is recorded in front of it (`send`): the host waits for it before it writes the buffer again,"
        " and the copy may not have begun.",
        (
            CodeEdit(
                f"{_COPIES}.send",
                "            target.copy_(source, non_blocking=True)\n"
                "            event = self._accelerator.Event()\n"
                "            event.record(self._stream)\n",
                "            event = self._accelerator.Event()\n"
                "            event.record(self._stream)\n"
                "            target.copy_(source, non_blocking=True)\n",
            ),
        ),
        (_ON_CPU, _SUB_GROUPS),
    ),
    SeededFault(
        "weights-sent-before-stepped",
        ("zero3_cpu",),
        "race",
        "The copy of a sub-group to the device begins in `step`, before Adam writes the buffer that it reads.",
        (
            CodeEdit(
                "harness.patches.one_pass_adam:_Stage3Step.step",
                "        self.step_with(group, weights)\n",
                "        self._copies.send(weights, self._weights_of(group))\n        self.step_with(group, weights)\n",
            ),
        ),
        (_ON_CPU,),
    ),
    SeededFault(
        "updated-weights-read-before-copied",
        ("zero3_cpu",),
        "race",
        "Neither the compute stream nor the all-gather stream waits for the copies of updated weights (`finish`). The"
        " gathers of the next forward pass read their targets, and nothing else orders the stream of the copies.",
        (CodeEdit(f"{_COPIES}.finish", "stream.wait_stream(self._stream)", "pass"),),
        (_ON_CPU,),
    ),
    SeededFault(
        "early-step-before-its-gradients",
        ("zero3_cpu",),
        "race",
        "`partition` of harness/patches/overlapped_step.py gives the thread no event: it steps a sub-group whose gradients"
        " are still on their way to the host.",
        (CodeEdit(f"{_EARLY}.partition", "event = _record_event() if ready else None", "event = None"),),
        (_ON_CPU, _EARLY_SETTINGS),
    ),
    SeededFault(
        "early-step-not-waited-for",
        ("zero3_cpu",),
        "race",
        "`begin_step` does not wait for the sub-group that the thread steps: its weights are sent before they are written.",
        (CodeEdit(f"{_EARLY}.begin_step", "each.work.result()", "pass"),),
        (_ON_CPU, _EARLY_SETTINGS),
    ),
    SeededFault(
        "weights-copy-marked-on-another-stream",
        ("zero3_cpu",),
        "race",
        "The event of a copy is recorded on the default stream (`send`), not on that of the copies: the host's wait before"
        " it writes the buffer again says nothing of the copy.",
        (
            CodeEdit(
                f"{_COPIES}.send", "event.record(self._stream)", "event.record(self._accelerator.default_stream())"
            ),
        ),
        (_ON_CPU, _SUB_GROUPS),
    ),
    SeededFault(
        "early-step-marked-before-its-gradients",
        ("zero3_cpu",),
        "race",
        "`partition` records the thread's event in front of the copies of the last gradients to the host.",
        (
            CodeEdit(
                f"{_EARLY}.partition",
                f"        buffers = self._partition(parameters, partitions)\n{_BEGUN}_record_event() if ready else None",
                "        marked = _record_event()\n"
                f"        buffers = self._partition(parameters, partitions)\n{_BEGUN}marked",
            ),
        ),
        (_ON_CPU, _EARLY_SETTINGS),
    ),
    SeededFault(
        "early-step-marked-on-another-stream",
        ("zero3_cpu",),
        "race",
        "The thread's event is recorded on the default stream (`_record_event`); gradients are copied on that of the"
        " reductions.",
        (
            CodeEdit(
                "harness.patches.overlapped_step:_record_event",
                "accelerator.current_stream()",
                "accelerator.default_stream()",
            ),
        ),
        (_ON_CPU, _EARLY_SETTINGS, _OVERLAP),
    ),
    SeededFault(
        "gradients-written-while-stepped",
        ("zero3_cpu",),
        "race",
        "Sub-groups are begun in every micro-batch, and `partition` neither waits for them nor takes them back: the next"
        " micro-batch adds to the gradients that the thread reads.",
        (
            CodeEdit(
                f"{_EARLY}.partition",
                "            self._drop(group)\n        buffers = self._partition(parameters, partitions)\n"
                "        if not zero.is_gradient_accumulation_boundary() or ",
                "            pass\n        buffers = self._partition(parameters, partitions)\n        if ",
            ),
        ),
        (_ON_CPU, _EARLY_SETTINGS),
    ),
    SeededFault(
        "early-step-dropped-before-it-ends",
        ("zero3_cpu",),
        "race",
        "A guess that is wrong: neither `begin_step` nor `_drop` waits for the thread, which reads old masters and states"
        " while the sub-group's turn writes them.",
        (
            CodeEdit(f"{_EARLY}.begin_step", "each.work.result()", "pass"),
            CodeEdit(f"{_EARLY}._drop", "each.work.result()", "pass"),
            CodeEdit(f"{_EARLY}.step", "is_plain or each.guess != (self._op.scale, *self._numbers(group))", "True"),
        ),
        (_ON_CPU, _EARLY_SETTINGS),
    ),
    SeededFault(
        "early-weights-sent-while-stepped",
        ("zero3_cpu",),
        "race",
        "`_begin` sends new weights to the device once the thread has the sub-group, which still writes them. (Sent once"
        " they are written they would be no race: what has its gradient is not gathered again.)",
        (
            CodeEdit(
                f"{_EARLY}._begin",
                "each.work = self._thread.submit(event, lambda: update(*numbers, *tensors, scale, weights, new, threads))",
                "each.work = self._thread.submit(event, lambda: update(*numbers, *tensors, scale, weights, new, threads))\n"
                "        self._one_pass._copies.send(weights, self._zero.fp16_partitioned_groups_flat[group])",
            ),
        ),
        (_ON_CPU, _EARLY_SETTINGS),
    ),
    SeededFault(
        "activation-offloaded-before-computed",
        _EVERY_WAY,
        "race",
        "The copy stream no longer waits for the compute stream (offload_activations.py:186) and copies a layer's input to"
        " the host (193) that is only enqueued. `keep_last_count` delays the copy by a layer, which orders nothing.",
        (CodeEdit(f"{_ACTIVATIONS}._start_offload", "self.s1.wait_stream(self.compute_stream)", "pass"),),
        ("`train.offload_activations`", "3 layers"),
    ),
)
