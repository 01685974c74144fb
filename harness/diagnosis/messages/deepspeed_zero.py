# SPDX-License-Identifier: Apache-2.0
"""Messages of deepspeed/runtime/zero in DeepSpeed 0.14.5 to 0.19.8 about the parameters and gradients of ZeRO.

The rows come from the sources; `python benchmarks/log_catalogue.py` looks up the cause of each message there.
"""

from __future__ import annotations

MESSAGES = r"""
LG100 * still have inflight params
    title: ZeRO-3 gathered parameters of a module that then did not run, which an old DeepSpeed treats as an error
    change: update DeepSpeed: 0.15.3 and newer release the parameters that a step left in flight; until then, mark
        modules whose submodules run conditionally (such as a mixture of experts) as leaf modules with
        `deepspeed.utils.set_z3_leaf_modules(model, [Block])`, make every rank run the same modules, or set
        `zero_optimization.stage3_prefetch_bucket_size: 0`
LG100 * RuntimeError: param \{.*\} still in flight
LG101 * tracing error at step :: (?:^|/)deepspeed/
    title: the modules ran in a different order than in the step that ZeRO-3 recorded
LG101 * Detected a disagreement on list (?:length|contents) between rank0 and rank :: (?:^|/)deepspeed/
    title: the ranks ran different modules under ZeRO-3, so their records differ
    change: look for a branch that only some ranks take (an expert without tokens, a batch without images, a frozen
        module); make all ranks run the same modules, or mark the conditional module as a leaf module with
        `deepspeed.utils.set_z3_leaf_modules`
LG101 * RuntimeError: disagreement between rank0 and rank :: (?:^|/)deepspeed/
    title: the ranks ran different modules under ZeRO-3, so their records differ
    change: look for a branch that only some ranks take (an expert without tokens, a batch without images, a frozen
        module); make all ranks run the same modules, or mark the conditional module as a leaf module with
        `deepspeed.utils.set_z3_leaf_modules`
LG101 * attempted to (?:record trace when status|invalidate already invalid trace) :: (?:^|/)deepspeed/
LG101 * expected trace to be complete :: (?:^|/)deepspeed/
LG101 * IndexError: pop from an empty deque ::! zero/partitioned_param_coordinator
    title: ZeRO-3's record of the module order is inconsistent: a module ran that is not in the record
    change: make all ranks run the same modules in all steps, mark conditional ones as leaf modules
        (`deepspeed.utils.set_z3_leaf_modules`), or update DeepSpeed: 0.19.2 and newer clear the stale record
LG102 * RuntimeError: (?:\{.*\} already in registry|attempted to add non-inflight parameter to registry)
LG102 * expected param .*to (?:not )?be (?:available|inflight)
    title: ZeRO-3 tried to gather a parameter that is already gathered, or to use one that is not
LG102 * expect param\.ds_status == ZeroParamStatus\.NOT_AVAILABLE
LG102 * \{'id': \d+, 'status': '\w+'.*\} expected to be released
    title: ZeRO-3 tried to release all parameters while a module still used one
    change: do not save, evaluate or gather during a forward pass (as in a hook, or after an exception was caught in the
        middle of a step), and mark conditional modules as leaf modules (`deepspeed.utils.set_z3_leaf_modules`)
LG102 * ^(?:AssertionError|RuntimeError): \{'id': \d+, 'status': '\w+'
    title: a ZeRO-3 parameter is not gathered (`NOT_AVAILABLE`) or is still being gathered (`INFLIGHT`) when a module
        needs it
LG102 * Cannot partition a param in flight
    title: ZeRO-3 tried to partition a parameter that is still being gathered
LG102 * active_backward_submodules is empty during backward pass
    title: in the backward pass, ZeRO-3 released a module that it had not seen start
    change: call `engine.backward` once for each forward pass, and call no submodule outside the engine; use
        `use_reentrant=False` in activation checkpointing; mark modules that return several tensors as leaf modules
LG102 * backward pass is invalid for module in evaluation mode
    title: a backward pass ran through a module in evaluation mode, which ZeRO-3 of DeepSpeed up to 0.15.3 refuses
    change: call `model.train()` before the forward pass (a frozen module may stay in evaluation mode without
        gradients), or update DeepSpeed to 0.15.4 or newer
LG102 * Cannot free a ZeRO-3 parameter while it is still active in submodules
    title: a ZeRO-3 parameter was released while a module still used it
    change: give `modifier_rank=0` to `GatheredParameters` where the block changes weights, and do not gather, save or
        call submodules in the middle of a forward or backward pass
LG102 * 'Parameter' object has no attribute 'ds_\w+'
    title: ZeRO-3 found an unpartitioned parameter: it was created or replaced after `deepspeed.initialize`
    change: add layers, adapters and embeddings before `deepspeed.initialize`, or create them inside
        `deepspeed.zero.Init`; do not assign new `torch.nn.Parameter`s later
LG103 Nested GatheredParameters contexts cannot overlap parameters
    title: a block of `GatheredParameters` was opened inside another one over the same parameters
    change: gather all that both need in the outer block, and remove the inner one (also in libraries that gather by
        themselves, such as `save_pretrained` or `resize_token_embeddings`)
LG103 Detected in-place modification of ZeRO-3 parameters inside GatheredParameters
    title: weights were changed inside `GatheredParameters` with `modifier_rank=None`, which would discard the change
    change: give `modifier_rank=0`, so that ZeRO-3 broadcasts the change of rank 0 to all ranks
LG103 Parameter \S+ is on \S+ but broadcast requires it to be on
    title: a parameter was moved off the device inside `GatheredParameters(..., modifier_rank=N)`
    change: leave it on the device and copy into it in place (`param.data.copy_`), or give `modifier_rank=None` where
        the block only reads
LG103 Parameter is not a (?:torch\.nn\.Parameter|registered external parameter) :: partition_parameters
    title: `register_external_parameter` got something that is not a parameter, or the parameter was unregistered twice
    change: pass the `torch.nn.Parameter` itself, once, while the module exists
LG104 The parameter .* has already been reduced\.
    title: ZeRO got the gradient of a parameter twice in one backward pass
LG104 Gradient computed twice for this partition
LG105 This assert indicates that your module has parameters that
LG105 (?<!This error indicates that your )module has parameters that were not used in producing loss
LG105 Invalid to reduce Param \d+ with None gradient
    title: ZeRO tried to reduce the gradient of a parameter that got no gradient
LG105 * 'NoneType' object has no attribute '\w+' ::$ stage_1_and_2\S* \w*(?:reduce|average|grad|epilogue)
    title: ZeRO found a parameter without a gradient while it reduced gradients at the end of the backward pass
    change: set `requires_grad_(False)` on parameters that the loss does not use before `deepspeed.initialize`; on
        DeepSpeed 0.17.6 to 0.18.2, whose accumulation at stage 2 is faulty, install a newer release
LG106 Both 'data_parallel_group' and 'sequence_data_parallel_group' were specified
LG106 'device' in DeepSpeed Config cannot be \S+ if remote device is
    title: `zero.Init` keeps parameters in `remote_device`, and the JSON offloads them to another device
    change: do not pass `remote_device` to `deepspeed.zero.Init`: it reads `offload_param` from the JSON
LG106 "offload_param" must be defined in DeepSpeed Config if remote device is
    change: add `zero_optimization.offload_param` with `device: nvme` and `nvme_path`, or leave out `remote_device`
LG106 Parameters cannot be scattered without initializing deepspeed\.comm
    title: `zero.Init` was entered before the process group existed
    change: call `deepspeed.init_distributed()` before `deepspeed.zero.Init` or `from_pretrained` at stage 3
LG106 Invalid data type \S+, allowed values are \[torch\.half
    change: give `dtype` as `torch.half`, `torch.bfloat16` or `torch.float`, or leave it to the JSON's `bf16` and
        `fp16`
PR001 bfloat16 and fp16 cannot be enabled at once
LG106 zero\.Init resolved a process group of world_size=1
    title: `zero.Init` found a process group of one rank in a job of several, and would have put the full model on each
    change: call `deepspeed.init_distributed()` before `from_pretrained` and before any library that creates its own
        process group
LG102 * all params in a coalesced bucket must have the same communication dtype
    title: ZeRO-3 gathers parameters of two dtypes in one collective
    change: cast the model to one dtype before `deepspeed.initialize` (`model.to(torch.bfloat16)`), including adapters,
        heads and routers
LG102 * AssertionError: all params must have the same dtype
    title: ZeRO-3 gathers parameters of two dtypes in one collective
    change: cast the model to one dtype before `deepspeed.initialize` (`model.to(torch.bfloat16)`), including adapters,
        heads and routers
ZR020 Qantized weight requires the number of weights be a multiple of 8
ZR020 * / \S+ is larger than 16k ::! zero/partition_parameters
ZR020 * Adaptive grouping algorithm cannot find a group size
LG102 * param id \d+ aligned size \d+ does not match tensor size
    title: the partition of a ZeRO-3 parameter has a different size than its data
    change: do not resize or replace parameters after `deepspeed.initialize`; with quantized weights (ZeRO++) leave
        `zero_quantized_weights` out
LG108 Cannot reduce scatter gradients whose size is not same as the params
LG108 * No buffer to accumulate to
LG108 * partition buffer size \S+ should match the size of param\.ds_tensor
LG109 * different number of elements tha[nt] partition size
    title: the gradients of a partition do not add up to its size: a parameter got no gradient, or a different one than
        in the first step
    change: do not change `requires_grad`, freeze or add parameters after `deepspeed.initialize`; before that, set
        `requires_grad_(False)` on parameters that the loss does not use
LG109 * This can happen either zero or only once as this must be the first tensor in the partition
LG109 * AssertionError: world size \d+ and p_ids:
LG109 * Unable to find ZeRO parameter group for
    title: a gradient arrived for a parameter that ZeRO's optimizer does not hold
    change: pass all trainable parameters of the model to the optimizer, and do not unfreeze parameters after
        `deepspeed.initialize`
LG109 * (?:more than 1 param in ipg bucket|param in ipg bucket does not match extra-large param)
LG109 * only L2 norm supported ::! deepspeed/
    change: clip by the L2 norm: set `gradient_clipping` in the JSON
LG109 * params and buffers_to_allgather must have the same
LG109 * ZeRO Stage 3 parameter bucket mixes partition process groups
LG109 * (?:Not enough memory in buffer\. Allocation failed|Allocation bookkeeping error|Release bookkeeping error)
LG109 * (?:No such tensor allocated by the allocator|Assert tensor buffer does is not large enough)
LG109 * This tensor has already been assigned to a param
LG109 * (?:Invalid tensor id|Tensor id \d+ not found|address cannot be None) ::! contiguous_memory_allocator
LG109 * (?:Size mismatch\. \d+ is allocated at addr|Cannot have same empty address)
LG109 * Tensor numel \d+ is large than available
LG109 * Partitioned Param must be available here
LG109 * Unexpected that largest partition is empty
LG109 * Either params are in nvme, or they are in CPU memory
    change: raise `offload_param.max_in_cpu` so that the parameters fit, or set it to 0
LG109 * fp32 parameters of sub_group \d+ is None
LG109 * Parameter \d+ of numel=\d+ is not swappable
    title: an optimizer state is too small to be swapped to NVMe
    change: raise `zero_optimization.sub_group_size`, or offload the optimizer to `cpu`
LG109 * The parameter does not contain the partitioned copy of the tensor
LG109 * Number of elements do not match: \d+ != \d+
    title: a `safe_set_*` function of ZeRO-3 got a tensor of the wrong size
    change: pass a tensor of the full shape (`param.ds_shape`) to the `safe_set_full_*` functions, and one of the
        partition's shape to `safe_set_local_*`
LG109 * quantize_dstensor\(\) expects tensor\.dtype == torch\.float16
    change: train in fp16, or leave `zero_quantized_weights` out
LG109 * AssertionError: unknown event ::! partitioned_param_profiler
LG107 communication_data_type with reduce scatter enabled\. Got
ZR005 pre-scale gradients is not yet supported with
ZR022 when enable all_to_all_reduce, reduce_scatter should also be enabled
ZR022 Muon and all2all process group cannot be used together
ZR025 final_output\.numel\(\)=\d+ is not divisible by num_nodes
LG012 Cannot use \S+ without accelerator
    title: 16-bit training needs an accelerator, and DeepSpeed found none
LG012 Accelerator is not detected, cannot perform low precision training
    title: 16-bit training needs an accelerator, and DeepSpeed found none
PR022 Master weights feature requires
PR022 fp16_master_and_gradients requires optimizer to support
PR001 fp16_master_weights_and_gradients and bf16_master_weights_and_gradients are mutually exclusive
PR023 bf16_optimizer_states requires bf16_master_weights_and_grad
PR023 bf16_optimizer_states with ZeRO-Offload requires DeepSpeedCPUAdam
    title: bf16 optimizer states with offload need `DeepSpeedCPUAdam` with `fp32_optimizer_states=False`
    change: configure the optimizer in the JSON (`optimizer.type: AdamW`), or give `DeepSpeedCPUAdam(...,
        fp32_optimizer_states=False)`
PR021 bf16_optimizer_states is only supported with ZeRO
OF005 Partial offloading only supported for ZeRO Stage 3
LG121 All Muon parameter groups must have the same momentum
LG121 if use muon, then tensor dim > 1, got
    title: a parameter with one dimension is in a Muon group
    change: set `param.use_muon = False` on biases and norms, or let `deepspeed.initialize` tag the parameters
LG121 (?:Per-head Muon expects a 2D attention projection|Per-head Muon needs the output dim)
OP018 Muon with reduce scatter does not support optimizer offload
LG089 Leaf module requires PyTorch >= 1\.8
    change: install torch 1.8 or newer
LG100 A module cannot be set as a leaf module when it does not have any input tensors that require gradients
    title: a leaf module of ZeRO-3 gets no input that requires a gradient, which DeepSpeed up to 0.17.6 refuses
    change: update DeepSpeed to 0.18.0 or newer, call `model.enable_input_require_grads()`, or mark an inner module
SP006 leaf_module configuration must be a mapping
    change: write `zero_optimization.leaf_module` as a block with `classes`, `names` or `name_suffixes`
ZR011 ZeRO-3 does not yet support elastic checkpointing
ZR011 ZeRO-3 elastic checkpointing is deprecated and unsupported
ZR010 The deprecated version of ZeRO Stage 1 is not supported in deepspeed >= 0\.5\.9
LG092 All params in MoE group must be MoE params
LG092 The model has moe layers, but None of the param groups are marked as MoE
    title: the optimizer has no group for the experts
    change: create the groups with `deepspeed.moe.utils.split_params_into_different_moe_groups_for_optimizer` and pass
        them to the optimizer, or configure the optimizer in the JSON
LG092 Reduce Scatter in ZeRO Stage 2 must be set to True for MoE
    change: set `zero_optimization.reduce_scatter: true`
LG092 Expert (?:data )?parallel group should be configured with MoE
    change: create the layers with `deepspeed.moe.layer.MoE`, which sets the groups up, before `deepspeed.initialize`
LG092 MoE not supported with Stage 3
    title: DeepSpeed's MoE layer does not support ZeRO stage 3
    change: use ZeRO stage 1 or 2
LG092 Native DeepSpeed MoE is not supported with ZeRO Stage 3
    title: DeepSpeed's MoE layer does not support ZeRO stage 3
    change: use ZeRO stage 1 or 2, or AutoEP (`expert_parallel`)
LG144 (?:in|out) splits must be in range \[1,
LG144 * Col splits \d+ does not match input splits
LG149 * world size should be divisible by parameter parallel size
    title: the parameter-parallel size does not divide the number of ranks
    change: set `parameter_parallel_size` to a divisor of the world size, or leave it out
LG148 Must provide configuration for MiCS Initialization
    change: give `config_dict_or_path` to `deepspeed.zero.MiCS_Init`
LG148 Sharded parameters don't have the MiCS_CommGroups attached
    title: `mics_shard_size` is set, but the model was created without `deepspeed.zero.MiCS_Init`
    change: create the model inside `deepspeed.zero.MiCS_Init`, or leave `mics_shard_size` out and use
        `zero_hpz_partition_size`
LG148 Local sharding has no support for CPU offloading
    change: leave out `offload_param` or `mics_shard_size`
LG148 dp group size is not dividable by dp_shard_size
    change: set `mics_shard_size` to a divisor of the number of data-parallel ranks
LG148 * (?:all sharded ranks|number of shard groups|replicate groups|shard groups must have) ::! zero/mics
LG148 * sharding spans on single node, no need for hierarchy allgather
    change: set `mics_hierarchical_params_gather: false`
LG148 * (?:param_buffers|params_to_gather_buffers)\[\d+\] size \d+ does not match
"""
