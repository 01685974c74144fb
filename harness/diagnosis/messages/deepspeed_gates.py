# SPDX-License-Identifier: Apache-2.0
"""DeepSpeed's own messages about a configuration -> the gate that finds the same fault before the job.

The messages come from releases 0.14.5 to 0.19.8.
"""

from __future__ import annotations

MESSAGES = r"""
BT001 Check batch related parameters\. train_batch_size is not equal to .*?
    (?P<batch>\d+) != (?P<micro>\d+) \* (?P<steps>\d+) \* (?P<ranks>\d+)
    title: `train_batch_size` {batch} is not {micro} per micro-batch x {steps} accumulation steps x {ranks} ranks
    change: remove one of `train_batch_size`, `train_micro_batch_size_per_gpu` and `gradient_accumulation_steps`, so
        that DeepSpeed computes it, or set `train_batch_size` to the product of the other two and the data-parallel
        ranks; the Trainer fills in "auto"
BT001 Check batch related parameters\. train_batch_size is not equal
BT001 Micro batch size per gpu: 0 has to be greater than 0
BT002 Either train_batch_size or train_micro_batch_size_per_gpu needs to be provided
BT001 Gradient accumulation steps: 0 has to be greater than 0
    title: `train_batch_size` is smaller than one micro-batch on each rank, so `gradient_accumulation_steps` becomes 0
    change: raise `train_batch_size` to a multiple of `train_micro_batch_size_per_gpu` times the number of
        data-parallel ranks, lower the micro-batch size, or start fewer ranks; with AutoTP see `harness explain BT005`
SP007 (?:Train batch size|Micro batch size per gpu|Gradient accumulation steps): -[\d.]+ has to be greater
SP007 Train batch size: 0 has to be greater than 0
    change: set `train_batch_size` to micro-batch size times accumulation steps times data-parallel ranks
SP002 * (?:Train batch size|Micro batch size per gpu|Gradient accumulation steps): nan has to be greater
OP001 \b(?!auto\b)\w+ is not a supported DeepSpeed Optimizer
HF003 \bauto is not a supported DeepSpeed Optimizer
HF003 (?:invalid literal for int\(\) with base 10|could not convert string to float): '"?auto
OP011 You are using an untested ZeRO Optimizer
OP004 'max_grad_norm' is not supported as an optimizer parameter
OP005 (?:Adam\w{0,20}|SGD|Adagrad|Lion|Lamb|RMSprop|Muon\w{0,20})\.__init__\(\) got an unexpected keyword :: deepspeed/
OP003 Optimizer\.__init__\(\) got an unexpected keyword argument
OP003 * TypeError: 'module' object is not callable
OP006 ns_method must be one of
OP006 * multi_tensor_adam\(\): incompatible function arguments
OP006 * too many values to unpack \(expected 2\) :: deepspeed/|torch/optim
OP013 lamb optimizer requires dynamic loss scaling
OP017 FusedAdam has been updated\.
OP018 Muon and reduce scatter cannot be used together
OP001 Muon only supports 2D parameters
OP021 DeepSpeed does not recognize LR scheduler
OP023 (?:WarmupLR|WarmupDecayLR|WarmupCosineLR|OneCycle|LRRangeTest)\S* ?(?:\(\) argument after|\.__init__\(\) )
OP024 warmup_num_steps must be a positive integer|total_num_steps must be
OP025 (?:FP16_\w+|DeepSpeedZeroOptimizer\w*|BF16_Optimizer) is not an Optimizer
OP026 * TypeError: 'str' object is not callable :: lr_scheduler|deepspeed/
OF002 "nvme_path" in DeepSpeed Config cannot be None
OF008 More elements \d+ than buffer size
OF009 Not enough (?:buffers|swap in buffers)|No swap buffers to allocate for fp16 param
OF031 param \d+ already assigned swap buffer id
OF010 * range\(\) arg 3 must not be zero :: swap|deepspeed/
OF012 numel of fp16 buffers .* is too small for initializing fp32 params
OF013 Hybrid Optimizer Only Supports DeepSpeedCPUAdam
OF016 SuperOffload only supports NVIDIA CUDA GPUs
OF022 * ZeroDivisionError: integer modulo by zero
OF023 GDS currently only supported for CUDA accelerator
SP006 async_io\.aio_handle\(
OF026 * FileNotFoundError: \[Errno 2\] .* ::! swap_tensor|zero/(?:stage3|partition)
TP001 compatibility between 'autotp' and 'zero_stage = 3' has not been validated
TP001 'DeepSpeedEngine' object has no attribute '_deepcompile_active'
TP006 AutoTP not supported for model\. Please use kernel injection
TP006 Not able to determine model policy automatically
TP012 tensor_parallel\.tp\.tp_size \(\d+\) does not match tensor_parallel\.autotp_size
SP007 is not a valid PartitionType
TP020 Invalid device string: '\d'
PP001 ZeRO-2 and ZeRO-3 are incompatible with pipeline parallelism
ZR036 Torch not compiled with CUDA enabled ::! zenflow
BT003 * ^AssertionError$ ::! deepspeed/utils/groups|deepspeed/runtime/pipe/topology
TP003 * shape '\[\d+, \d+, -1, \d+\]' is invalid for input of size :: transformers/models
PP003 * optimizer got an empty parameter list ::! deepspeed/runtime/pipe
PP006 * element 0 of tensors does not require grad ::! deepspeed/runtime/pipe
PP005 bwd_microstep timer has already been started
PR001 (?:fp16 and bf16|bfloat16 and fp16) modes cannot be simultaneously enabled|bf16 and fp16 cannot both
PR006 is not a valid DtypeEnum
HF003 Invalid communication_data_type\. .*Got: '?auto
SP006 * Invalid communication_data_type\. .*Got: (?:None|True|False)
PR007 Invalid communication_data_type\. Supported data types
PR017 Type fp16 is not supported
PR021 (?:[Bb]f16|[Ff]p16)_master_weights_and_grads is only supported with ZeRO
PR022 Master weights feature requires ZeRO-2 Offload with DeepSpeedCPUAdam
PR025 unsupported mix of model_dtype=\S+ and grad_accum_dtype
PR027 data_types\.param_dtype=.* conflicts with the enabled precision mode
PR031 keep_in_fp32_modules must be "auto" or a list
PR036 loss_scale_window must be > 0|min_loss_scale must be
ZR004 allgather_bucket_size must be a multiple of nccl_start_alignment_factor
ZR005 gradient_predivide_factor != 1\.0 is not yet supported with ZeRO-
ZR006 * ZeroDivisionError: float division by zero :: deepspeed/
ZR007 gradient_allreduce_op='sum' is not supported
HF003 Invalid gradient_allreduce_op\. .*Got: 'auto'
SP006 Invalid gradient_allreduce_op\. .*Got: (?:None|True|False|\d)
SP007 Invalid gradient_allreduce_op
    change: set `gradient_allreduce_op` to one of the operations that the message lists
ZR012 compute_grad_norm=false
ZR014 managed_gradient_accumulation=False
ZR014 unmanaged gradient accumulation does not support ZeRO
ZR016 * AssertionError: \d+ is not divisible by \d+ :: deepspeed/
ZR019 Cannot enable both torch autocast and zero quantized weights
ZR032 If use auto select strategy, select_interval will be set to 1
ZR035 has no attribute '(?:zenflow_need_update|reduce_gradients)'
SQ003 Mesh should not be bigger than default world size
SQ004 (?:Attention|KV attention) head count \d+ is not divisible by SP size
SQ005 eager attn_implementation isn't currently supported by Ulysses
EX004 must divide the stage size \(world_size
EX006 Unknown preset_model
EX007 load_balance_coeff=\S+ is not supported
CC005 The AutoTP compile pass cannot yet be combined
CK006 'UniversalParallelInfo' object has no attribute 'dp_rank'
CK006 writer contains invalid value
SP006 parallel_write::pipeline_stage value of
    change: set `checkpoint.parallel_write.pipeline_stage` to true or false
UT004 * unsupported operand type\(s\) for %: 'int' and 'str'
UT007 KeyError: 'total_layer_num'
UT009 Dynamic batching is enabled, so max_tokens must be specified
UT014 Please install DataStates
    title: `datastates_ckpt` is configured, but its package is not installed
    change: remove `datastates_ckpt` from the JSON (even an empty value switches it on), or install DataStates
UT017 * FileNotFoundError: \[Errno 2\] .* ::! deepspeed/monitor
SP007 is not one of the valid logging levels
HF003 invalid tag_validation value of AUTO
SP007 invalid tag_validation value
    change: set `checkpoint.tag_validation` to `Ignore`, `Warn` or `Fail`
SP012 \b(?:has|have) been removed\b.*issues/8489
SP012 DeepSpeedConfigError: .*\bhas been removed
SP012 * KeyError: 'different_groups'
SP022 Cannot provide deprecated parameter .* and replacing parameter
    change: remove the deprecated key that the message names, and keep the one that replaces it
SP004 Duplicate keys in DeepSpeed config
    change: remove all but one of each key that the message lists
SP002 HjsonDecodeError
SP001 UnicodeDecodeError: 'utf-8' codec .* :: hjson|deepspeed/runtime/config
SP001 * binascii\.Error|^Error: (?:Incorrect padding|Invalid base64-encoded string)
SP001 Expected a string path to an existing deepspeed config
    change: pass a path to the DeepSpeed JSON that exists on this rank's host, or pass the configuration as a dict
SP006 deepspeed\.[\w.]+\(\) argument after \*\* must be a mapping
SP006 bucket_size \|.*type=int_from_float
    title: a bucket size is a fraction: `auto` became 0.9 times the squared hidden size, and this DeepSpeed accepts only
        integers
    change: update transformers and accelerate, which round it, or write an integer for the key instead of `auto`
SP006 type=int_from_float
    title: a key has a fraction where DeepSpeed accepts only integers
    change: write an integer for the key that the message names
SP005 extra fields not permitted \(type=value_error\.extra\)
    title: the installed DeepSpeed does not know the keys of the JSON that the message names
    change: install a newer DeepSpeed if a newer release has those keys (ZeRO++ keys need 0.10), or correct or remove
        them
SP006 * '(?:str|bool|NoneType|list|int|float)' object has no attribute '(?:get|keys|items|lower|upper)' :: deepspeed/
SP006 * '[<>]=?' not supported between instances of '(?:str|NoneType|list|int)' and '(?:str|int|float)' :: deepspeed/
SP006 * unsupported operand type\(s\) for [/|%*+-]{1,2}:? ?'\w+' and '\w+' :: deepspeed/
SP006 * not all arguments converted during string formatting :: deepspeed/
LG147 * IndexError: list index out of range ::$ runtime/(?:zero/stage|bf16_optimizer|fp16/)\S* __init__
    title: a parameter group of the optimizer is empty, so ZeRO finds no parameter in it
    change: leave empty groups out (with adapters, often the one without weight decay), and check that some parameters
        require a gradient
BT003 * IndexError: list index out of range :: deepspeed/(?:utils/groups|runtime/(?:pipe|engine|seq)|module_inject)
"""
