# SPDX-License-Identifier: Apache-2.0
"""Messages of DeepSpeed's offload (0.14.5 to 0.19.8): NVMe swapping, ZenFlow, SuperOffload, activations."""

from __future__ import annotations

MESSAGES = r"""
LG112 FileExistsError: \[Errno 17\] File exists: '.*offloaded_tensors
    title: several ranks copied their NVMe swap folders into one folder of the checkpoint (`offloaded_tensors`), or a
        save under this tag was interrupted
LG112 * FileExistsError: \[Errno 17\] File exists ::! deepspeed/runtime/engine\S* (?:_?save_checkpoint|_save_zero)
LG034 * FileNotFoundError: .*offloaded_tensors
    title: the checkpoint has no copy of this rank's NVMe swap folder (`offloaded_tensors`)
    change: resume on the same hosts with the same number of ranks, from a checkpoint that was saved with
        `offload_optimizer.device: nvme`
LG113 * cannot be applied to a 0-dim tensor ::! zenflow
    title: ZenFlow tried to split an empty gradient: NVMe offload keeps no gradients in memory
LG113 * (?:RuntimeError|IndexError|AttributeError): .*(?:narrow\(\)|'NoneType' object) ::$ zenflow
LG110 ZenFlow optimizer process (?:exited during a step|failed to become ready)
    title: the optimizer process of ZenFlow ended
LG110 Optimizer process did not (?:finish stepping|initialize) correctly
    title: the optimizer process of ZenFlow ended
LG110 * SuperOffload CPU optimizer timeout after
    title: the CPU optimizer of SuperOffload did not finish its steps within the timeout
    change: give the rank more cores and memory of its own NUMA node (`--bind_cores_to_rank`, fewer ranks per host),
        lower `offload_optimizer.cpuadam_cores_perc` (only if other processes starve), or leave `super_offload` out
LG110 * RuntimeError: Worker process is not alive ::! superoffload
    title: the CPU optimizer process of SuperOffload ended
LG110 * Error in worker process: ::! superoffload
    title: the CPU optimizer process of SuperOffload failed; its error is in the message
LG110 * Event type mismatch: expected ::! superoffload
    title: the CPU optimizer process of SuperOffload returned the result of a different request
    change: leave `offload_optimizer.super_offload` out, and report it to DeepSpeed
OF019 cpuadam_cores_perc must be between 0 and 1
LG089 Please use PyTorch 2\.1 or later to enable ZenFlow
    title: ZenFlow needs torch 2.1 or newer
    change: install a newer torch, or leave `zenflow` out
ZR034 If don't use auto select strategy, select_interval must be a number
ZR034 Select interval must be greater or equal to update interval
ZR031 Zenflow must be used with cpu offload
ZR038 offload selective optimizer should be used with overlap_comm
SP007 select_strategy must be one of "auto", "step", or "epoch"
    change: set `zenflow.select_strategy` to `auto`, `step` or `epoch`
SP007 If (?:select|update)_interval is a string, it must be "auto"
    change: set `zenflow.select_interval` and `update_interval` to a number or to `auto`
SP007 If update_interval is a number, it must be at least 1
    change: set `zenflow.update_interval` to at least 1
SP006 (?:full_warm_up_rounds must be an integer|pt_reserved_cores_perc must be a float)
    change: write `zenflow.full_warm_up_rounds` as an integer and `pt_reserved_cores_perc` as a fraction such as 0.5
LG114 Moving (?:states|buffers) (?:across devices|back) is (?:not )?supported
LG114 NVMe offload is not supported for offloading states
    change: give `device=OffloadDeviceEnum.cpu` to `engine.offload_states`
LG114 Offloading is supported only for DeepSpeed FusedAdam
    change: configure the optimizer in the JSON (`optimizer.type: AdamW`, no `torch_adam`): on a GPU this is FusedAdam
OF011 PipelinedOptimizerSwapper ran out of swap buffers
LG055 * ^AssertionError$ ::$ swap_tensor/\S* (?:swap_(?:in|out)_tensors|\w*_wait_for_swap_complete|synchronize_\w+)$
    title: a read or write of swapped tensors on NVMe did not complete
LG055 * ^AssertionError$ ::$ swap_tensor/\S* (?:_swap_in_pinned_grad|_writeback_grad|_swap_out_unpinned)
    title: a read or write of swapped tensors on NVMe did not complete
LG055 * ^AssertionError$ ::$ swap_tensor/(?:utils|pipelined_optimizer_swapper)\S* (?:swap_in|swap_out|wait)$
    title: a read or write of swapped tensors on NVMe did not complete
LG055 * buffer nbytes != file bytes
    title: a swap file on NVMe is shorter than the tensor that was written to it
    change: free space on the disk of `nvme_path`, and give each job its own folder: another job may have
        overwritten the file
LG111 * (?:Either tensor or numel|Both parma and numel|Either param or numel) (?:must|cannot) be provided
LG111 * Path for param id \d+ does not exist
LG111 * param \d+ has not been assigned a swap buffer
LG111 * param \d+ has already been assigned a swap buffer
LG111 * AssertionError: Partitioned tensor is None
LG111 * AssertionError:  ?Number of elements in param \d+ is unknown
LG111 * Missing buffer id for releasing
LG111 * Should not release preallocated buffers without completing the swap out
LG111 * Some params are already available or in flight
    title: ZeRO-3 requested parameters from NVMe that are already in memory or being read
    change: set `zero_optimization.stage3_prefetch_bucket_size: 0`, mark modules with conditional submodules as leaf
        modules (`deepspeed.utils.set_z3_leaf_modules`), or offload parameters to `cpu`
LG111 * param \d+ is already available or inflight
LG111 * No buffer available to swap param
LG111 * partitioned swap (?:buffers|pool) for fp16 params not initialized
LG111 * mismatch in number of fp16 params
LG111 * AssertionError: num_elems \d+ > buffer \d+
    title: a tensor is larger than the swap buffer for it
    change: raise `offload_optimizer.buffer_count`, or lower `zero_optimization.sub_group_size`: one buffer must hold
        the states of a sub-group
LG111 * AssertionError: \d+ does not match \d+ ::! swap_tensor
LG111 * ^AssertionError ::$ deepspeed/runtime/swap_tensor/
LG111 * ^AssertionError ::$ stage3\S* (?:_swap_in_sub_group_to_flat_buffer|_create_fp32_partitions)$
LG102 * ^AssertionError$ ::$ partition_parameters\S* _ensure_availability_of_partitioned_params
    title: ZeRO-3 requested a partition from NVMe that is already in memory or being read
    change: set `zero_optimization.stage3_prefetch_bucket_size: 0`, or offload parameters to `cpu`
LG105 * ^AssertionError$ ::$ async_inplace_copy_grad_to_fp32_buffer_from_gpu
    title: a parameter got no gradient, and the offloaded optimizer needs one
LG105 * tensor does not have a device :: cpu_adam|deepspeed/
    title: the CPU optimizer that offload uses (DeepSpeedCPUAdam) got a tensor without storage: a parameter that has no
        gradient, was never initialized, or was not placed by DeepSpeed
    change: give `deepspeed.initialize` the model and the optimizer's parameters together and let it place and offload
        them, freeze unused parameters (`requires_grad_(False)`) before that, and call `engine.backward` and
        `engine.step`, not the optimizer's own methods
LG129 offloaded activation \S+ is no longer tracked
    change: call `backward()` for each forward pass before the offload engine is reset or its context ends
LG129 CheckpointHiddenStatesOffload is not re-entrant
    change: give each nested context its own instance
LG089 patch_gradient_checkpointing_layer_marker requires the `transformers` package
    title: activation offload needs transformers 4.52 or newer
    change: `pip install "transformers>=4.52"`
SP007 (?:keep_last_count|max_fwd_stash_count|max_cpu_buffer_pool_count|min_offload_bytes) must be >= 0
    change: set it to 0 or more
"""
