# SPDX-License-Identifier: Apache-2.0
"""Messages of DeepSpeed's engine, optimizers and configuration, from releases 0.14.5 to 0.19.8."""

from __future__ import annotations

MESSAGES = r"""
LG115 no_sync context manager is incompatible with gradient partitioning :: (?:^|/)deepspeed/
    title: the loop entered `no_sync`, which ZeRO stages 2 and 3 do not support: they reduce gradients in every backward
        pass
LG115 no_sync context manager reentry is unsupported :: (?:^|/)deepspeed/
    title: `engine.no_sync()` was entered inside another one
    change: enter it once around the backward passes of an accumulation, or leave accumulation to DeepSpeed
        (`gradient_accumulation_steps`)
LG115 It is illegal to call Engine\.step\(\) inside no_sync context manager :: (?:^|/)deepspeed/
    title: `engine.step()` was called inside `engine.no_sync()`
    change: leave the context before `engine.step()`, and run the last backward pass of an accumulation outside of it
LG119 coalesce_grad_reduction (?:cannot be nested|requires ZeRO|is not supported under|does not yet support)
    change: use `coalesce_grad_reduction` at ZeRO stage 1 to 3 with a plain engine, and not inside `no_sync`; or leave
        accumulation to `gradient_accumulation_steps`
PP007 Direct calls to tensor\.backward\(\) are not supported ::! deepspeed/runtime/pipe
LG116 Direct calls to tensor\.backward\(\) are not supported
    title: the script called `loss.backward()` itself, which is not supported with this torch or at ZeRO stage 0
PP007 Loss scaling is required for this configuration, but backward\(\) was called directly ::! deepspeed/runtime/pipe
LG116 Loss scaling is required for this configuration, but backward\(\) was called directly
    title: the script called `loss.backward()` itself under fp16, without applying the loss scale
LG116 loss must be a scalar tensor
    title: the loss passed to the engine is not a scalar, or is detached from the graph
    change: reduce it first (`loss.mean()`), and do not detach it
LG116 Optimizer's backward\(\) only accepts a scalar tensor
    title: the loss passed to the engine is not a scalar
    change: reduce it first (`loss.mean()`)
LG116 (?:Apex AMP|Eigenvalue) is (?:not )?supported with non-scalar backward
LG116 engine\.scale\(\) is not compatible with AMP
LG117 LOCAL_RANK \(\S+\) != OMPI_COMM_WORLD_LOCAL_RANK
    title: LOCAL_RANK and mpirun's OMPI_COMM_WORLD_LOCAL_RANK differ
    change: unset LOCAL_RANK in the script that mpirun starts, or set it to OMPI_COMM_WORLD_LOCAL_RANK
LG117 DeepSpeed requires the LOCAL_RANK environment variable
LG117 Mismatch in local rank setting, args\.local_rank
    title: the script's `--local_rank` and the variable LOCAL_RANK differ
    change: read the local rank from LOCAL_RANK (torchrun passes no `--local_rank`), and let `--local_rank` default to
        -1
LG117 args\.local_rank of .* is an unknown type
    change: declare `--local_rank` with `type=int`
LG118 Client Optimizer is of unexpected type
LG118 Client Optimizer \(type = .* is not instantiated but Client LR Scheduler is
    title: the script passed a scheduler without its optimizer
    change: pass the optimizer as well, or a function `optimizer -> scheduler` as `lr_scheduler`
LG118 occurs multiple times in optimizer\.param_groups
    title: a parameter is in the optimizer's groups more than once
    change: build the groups from `model.named_parameters()`, which lists tied weights once, and let each parameter
        match one group
LG118 packed several source parameters into one tensor, but the client optimizer holds only
    change: pass all experts of a layer to the optimizer, or configure the optimizer in the JSON
LG118 built a single parameter from sources that the client optimizer had split across param groups
    change: put all experts of a layer into one group
LG118 cannot preserve already-populated optimizer state for \S+ replaced parameter
    change: pass a fresh optimizer to `deepspeed.initialize`, and restore its state with `load_checkpoint`
OP013 optimizer requires dynamic loss scaling
LG148 (?:0/1 Adam|1bit-Adam|1bit-Lamb|1bit-LAMB) is not compatible with ZeRO
    change: set `zero_optimization.stage: 0` with a 1-bit optimizer, or use an ordinary one
LG148 (?:1-bit Adam|1-bit Lamb|0/1 Adam) does not support (?:sparse gradients|the AMSGrad variant)
LG148 Please use torch 1\.8 or greater to enable NCCL backend in
LG148 Please initialize the torch distributed backend\. :: fp16/onebit
    change: call `deepspeed.init_distributed()` before the optimizer is created
LG148 (?:Eigenvalue based MoQ is temporarily disabled|MoQ \(quantize in optimization step\) weight quantization)
LG148 Quantization (?:bit is|rounding is not|type is not) ::! runtime/quantize
LG148 layer_name configuration is invalid
LG148 * ^AssertionError$ ::$ (?:eigenvalue\.py|zero/mics)
LG148 Given sparsity mode, .* has not been implemented yet
LG148 Elasticity is not currently supported with (?:model|pipeline) parallelism
LG148 graph harvesting is incompatible with setting lp grads to None
    change: leave out `graph_harvesting`
LG119 Train batch size must be divisible by micro-batch data parallelism
    title: `set_train_batch_size` got a batch size that is not a multiple of micro-batch size times data-parallel ranks
    change: pass a multiple of `train_micro_batch_size_per_gpu` times the number of data-parallel ranks
LG119 Training data must be a torch Dataset
    change: pass a `torch.utils.data.Dataset` as `training_data`; for other data build the data loader yourself
LG119 ZeRO stage \S+ not implemented
    title: `zero_optimization.stage` names a stage that does not exist
    change: set `zero_optimization.stage` to 0, 1, 2 or 3
LG119 save_dir must be a non-empty string, got
    title: `save_checkpoint` got no folder
    change: pass the path of the folder to `save_dir` as a non-empty string
LG119 consolidated_16bit_state_dict is only applicable to cases where weights are partitioned
    title: the weights are not partitioned, so there is nothing to consolidate
    change: use `engine.module.state_dict()` below ZeRO stage 3
LG119 this function requires ZeRO-3 mode
    change: use `engine.module.state_dict()` below ZeRO stage 3
LG119 * attempting to reduce grads in unsupported way w\.r\.t\. MoE
LG119 all lora_config offload ratios should be the same across the model
    change: give every `LoRAConfig` the same `offload_ratio`
LG145 attempting to reduce an unsupported grad type
LG145 SparseTensor is only built from a natively sparse gradient
LG145 * ^AssertionError$ ::$ (?:sparse_tensor\.py|engine\S* sparse_all_gather)
LG119 Overriding only supported for|Loss scale overriding only supported for
    change: call `override_loss_scale` under fp16 only
LG119 Dynamic loss scaling parameters must be defined
LG119 \S+ does not support closure\. :: deepspeed/
    title: `step` was given a closure, which this DeepSpeed optimizer does not support
    change: call `engine.step()` without arguments
LG120 * AttributeError: '\w+' object has no attribute '[\w.]+' ::$ deepspeed/runtime/engine\S* __getattr__
LG121 BF16 Muon currently (?:requires FP32 accumulation|supports dense two-dimensional)
LG121 The Muon optimizer needs every parameter tagged with use_muon
    title: the Muon optimizer got parameters without the tag `use_muon`
    change: pass the `model_parameters` of the same model that you pass to `deepspeed.initialize`, or set
        `param.use_muon` on each
LG121 Muon cannot be used with the BF16_Optimizer
    change: use ZeRO stage 1 with `grad_accum_dtype: bf16`, or stage 2
LG121 Muon optimizer is not yet compatible with ZeRO Stage 3
    change: use ZeRO stage 1 or 2, or DeepSpeed 0.18.9 or newer
LG121 * ^AssertionError$ ::$ zero/muon/
    title: Muon was given a parameter with one dimension, or a group without `use_muon`
LG019 BF16Optimizer: requires bfloat16 to be enabled
    title: the run uses DeepSpeed's bf16 optimizer, but `bf16` is not enabled
    change: set `bf16.enabled: true`, and leave `fp16` out
PR025 BF16Optimizer: Unsupported gradient accumulation data type
PR025 Bfloat16 wrapper must use a gradient accumulation type of fp32
PR025 unsupported mix of model dtype and gradient accumulation type
LG109 * high precision param has no gradient, lp param_id
LG149 * ^AssertionError$ ::$ runtime/(?:bf16_optimizer|fp16/fused_optimizer)
    title: an internal check failed in DeepSpeed's bf16 or fp16 optimizer, which runs without ZeRO
    change: use ZeRO stage 1, and do not add parameter groups after `deepspeed.initialize`; report it to DeepSpeed
        with the JSON and the traceback
LG081 is enabled but the following parameters have dtype that is not
    title: the model has parameters in a different dtype than the one that the JSON enables
    change: load the model in that dtype (`torch_dtype=torch.bfloat16`), or leave `fp16` and `bf16` out
LG084 zero stage \S+ requires an optimizer
LG086 Cannot enable both amp with \(legacy\) fp16 or bfloat16 mode
LG086 Model data type and gradient accumulation data type must be equal to use Amp
PR015 Invalid module names for torch autocast
PR008 Invalid dtype for torch autocast
PR038 Failed to import lower precision safe module
PR011 Cannot enable both torch autocast and bfloat16
PR010 Cannot enable both torch autocast and fp16
PR016 Communication data type must be float32 for torch autocast
LG081 All parameters must be float32 for torch autocast
    change: load the model in fp32 if `torch_autocast` is enabled
LG081 torch\.autocast is enabled outside DeepSpeed, but not in the DeepSpeed config
    title: the script runs under `torch.autocast`, but the DeepSpeed JSON does not enable it
    change: add `torch_autocast: {enabled: true, dtype: bfloat16}` to the JSON, or remove `torch.autocast` from the
        script
SP006 fp16\.\S+ must be (?:a number|an integer)
    change: write a plain number for the key of `fp16` that the message names
SP007 fp16\.\S+ must be (?:a finite number|>= 0)
    change: write a finite number of at least 0 for the key of `fp16` that the message names; `loss_scale: 0` means
        dynamic loss scaling
SP008 DeepSpeedConfig: \S+ is not defined
    change: add the key that the message names to the JSON, as a number
SP007 DeepSpeedConfig: Maximum supported ZeRO stage is
    change: set `zero_optimization.stage` to 0, 1, 2 or 3
SP005 * is not a field in ::! deepspeed/runtime/config_utils
    title: the configuration of this DeepSpeed release has no such field
    change: install the DeepSpeed that the calling program (accelerate, transformers, a plugin) supports
SP008 is a required field and does not have a default value ::! deepspeed/runtime/config_utils
    change: add the key that the message names to the JSON
OP024 (?:lr_range_test_step_size must be a positive|cycle_first_step_size must be positive)
OP024 cycle_second_step_size must be non-negative
ZR001 'stage' must be defined before 'overlap_comm'
OP025 is not a subclass of torch\.optim\.Optimizer
OP024 expected \d+ (?:value for|lr_range_test_min_lr) :: lr_schedules
    title: a list of the scheduler has a different length than the optimizer's parameter groups
    change: give one number for all groups, or one for each
LG087 (?:Model-Parallel size|NUmber of GPUs per node) cannot be less than 1
LG087 batch related parameters were found in your ds_config
LG146 need to call step\(\) first ::! lr_schedules
LG122 compile is not supported in your version of PyTorch :: deepspeed/
    change: install torch 2.1 or newer, or leave out `engine.compile()`
EX018 compile\.autoep_non_moe
EX018 AutoEP compile region
LG122 AssertionError: Unknown pass \S+ ::! deepspeed/
    title: the schedule names a DeepCompile pass that does not exist
    change: use registered names in the schedule, such as `zero1_compile`, `zero3_compile`, `prefetch` or
        `selective_gather` (`z1`, `z3` and `autosp` belong in `compile.passes`)
LG122 Currently DeepCompile (?:is not supported without an optimizer|supports stage 1 or 3 only)
LG122 DeepCompile with ZeRO stage 3 is not currently supported on PyTorch >= 2\.9
    change: use DeepCompile at stage 1 or 2, update DeepSpeed to 0.19.0 or newer, or install torch 2.8
LG081 * expected there to be only one unique element in
    title: ZeRO needs parameters of one dtype on one device, but got several, such as fp32 or quantized weights in a
        bf16 model
    change: cast model and adapters to one dtype before `deepspeed.initialize` (`model.to(torch.bfloat16)`; peft:
        `autocast_adapter_dtype=False`), use ZeRO stage 2 with quantized base weights, and move all parameters to one
        device
LG149 * self\.params and param_groups both cannot be none
LG149 * expected (?:Iterable type not|list of only tensors)
LG089 count_used_parameters_in_backward requires internal PyTorch APIs
    change: install a torch that this DeepSpeed supports, or call `engine.backward(loss)` with a scalar loss
LG116 count_used_parameters_in_backward must be called during backward execution
LG149 * ^AssertionError$ ::$ runtime/utils\S* (?:from_meta|all_gather_dp_groups)
LG106 * ^AssertionError$ ::$ zero/partition_parameters\S* __init__
    title: `zero.Init` got a `module` that is not a `torch.nn.Module`
LG109 * ^AssertionError$ ::$ zero/stage_1_and_2\S* __init__
    title: ZeRO's optimizer could not be created: a loss scale is set without fp16, or a partition is not aligned
    change: remove `fp16.loss_scale` and the script's own loss scaler in bf16 or fp32 training, and set
        `allgather_bucket_size` to a multiple of 2
LG109 * ^AssertionError$ ::$ runtime/zero/(?:stage|utils|partition|parameter_offload|contiguous)
    title: an internal check of ZeRO failed, without a message
LG144 * ^AssertionError$ ::$ zero/tiling
"""
