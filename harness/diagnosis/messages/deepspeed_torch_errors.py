# SPDX-License-Identifier: Apache-2.0
"""Errors that torch or Python raises inside deepspeed/runtime, or because of how DeepSpeed changed a model.

DeepSpeed itself raises none of them. The causes come from public reports; what the rows say about DeepSpeed comes from
its sources.
"""

from __future__ import annotations

MESSAGES = r"""
LG083 Error\(s\) in loading state_dict.*shape in current model is torch\.Size\(\[0\]\)
    title: `load_state_dict` loaded weights into parameters that ZeRO-3 has partitioned (their size is 0)
    change: load them inside `deepspeed.zero.GatheredParameters(params, modifier_rank=0)`, with `from_pretrained`
        while `HfDeepSpeedConfig` is alive, or before the model is partitioned (outside of `deepspeed.zero.Init`); or
        use ZeRO stage 2
LG031 * Error\(s\) in loading state_dict for Peft.*Missing key ::! deepspeed/runtime/engine
    title: the DeepSpeed checkpoint lacks the frozen weights: it was saved with the adapters alone
        (`exclude_frozen_parameters`)
    change: load it with `load_module_strict=False` after loading the base model's weights (newer Trainers do so), or
        save without `exclude_frozen_parameters`
LG083 size mismatch for (?!base_model).*shape in current model is torch\.Size\(\[0\]\)
    title: `load_state_dict` loaded weights into parameters that ZeRO-3 has partitioned (their size is 0)
    change: load them inside `deepspeed.zero.GatheredParameters(params, modifier_rank=0)`, with `from_pretrained`
        while `HfDeepSpeedConfig` is alive, or before the model is partitioned (outside of `deepspeed.zero.Init`); or
        use ZeRO stage 2
LG083 * Recomputed values for the following tensors have different metadata.*torch\.Size\(\[0\]\)
    title: activation checkpointing recomputed a layer whose parameters ZeRO-3 had partitioned again (their size is 0)
    change: use reentrant activation checkpointing at stage 3 (`use_reentrant=True`; for the Trainer
        `gradient_checkpointing_kwargs={"use_reentrant": True}`, with `model.enable_input_require_grads()` for
        adapters), ZeRO stage 2, or newer releases of torch and DeepSpeed
LG083 * must match the existing size \(0\)
    title: code used a parameter that ZeRO-3 has partitioned (its size is 0)
    change: use it in the forward pass of the module that owns it, gather it with `deepspeed.zero.GatheredParameters`,
        register it (`deepspeed.zero.register_external_parameter(module, parameter)`), or use ZeRO stage 2
LG083 * must match the size of tensor b \(0\)
    title: code used a parameter that ZeRO-3 has partitioned (its size is 0)
    change: use it in the forward pass of the module that owns it, gather it with `deepspeed.zero.GatheredParameters`,
        register it (`deepspeed.zero.register_external_parameter(module, parameter)`), or use ZeRO stage 2
LG083 * size of tensor a \(0\) must match
    title: code used a parameter that ZeRO-3 has partitioned (its size is 0)
    change: use it in the forward pass of the module that owns it, gather it with `deepspeed.zero.GatheredParameters`,
        register it (`deepspeed.zero.register_external_parameter(module, parameter)`), or use ZeRO stage 2
LG083 * shapes cannot be multiplied \(\d+x\d+ and (?:0x\d+|\d+x0|1x0)\)
    title: a layer ran with weights that ZeRO-3 has partitioned (their size is 0)
    change: run the layer through its own module (not its weight), gather it with `deepspeed.zero.GatheredParameters`,
        or use ZeRO stage 2
LG083 * got weight of shape \[0\]
    title: a normalization layer ran with weights that ZeRO-3 has partitioned (their size is 0)
    change: call its module, not its weight; gather it with `deepspeed.zero.GatheredParameters`, or use ZeRO stage 2
LG083 * weight should have at least three dimensions
    title: a convolution ran with weights that ZeRO-3 has partitioned
    change: call its module, not its weight; gather it with `deepspeed.zero.GatheredParameters`, or use ZeRO stage 2
LG083 * is invalid for input of size 0$
    title: code reshaped a parameter that ZeRO-3 has partitioned (its size is 0), or an empty tensor
    change: use the parameter in the forward pass of the module that owns it, gather it with
        `deepspeed.zero.GatheredParameters`, or use ZeRO stage 2; without ZeRO-3 look for an empty batch
LG083 * returned an invalid gradient at index \d+ - got \[.*\] but expected shape compatible with \[0\]
    title: a gradient was computed for a parameter that ZeRO-3 had partitioned again (its size is 0)
    change: mark the module as a leaf module (`deepspeed.utils.set_z3_leaf_modules`), use its forward pass rather than
        its weight, flip `use_reentrant` of activation checkpointing, or use ZeRO stage 2
LG083 * out of bounds for storage of size 0
    title: code created a view of a parameter whose storage ZeRO-3 has released
    change: gather it with `deepspeed.zero.GatheredParameters` before tying, transposing or exporting weights; do not
        compile the model with `torch.compile` around ZeRO-3 (use `engine.compile()`); or use ZeRO stage 2
LG083 * Dimension out of range \(expected to be in range of \[-1, 0\], but got 1\) ::! deepspeed/runtime/zero
    title: code read the second dimension of a parameter that ZeRO-3 has partitioned
LG084 'DeepSpeedZeRoOffload' object has no attribute '(?:backward|step|zero_grad|loss_scale|param_groups|optimizer|state_dict)'
    title: the engine at ZeRO stage 3 has no optimizer, so it cannot train
    change: set `optimizer` in the DeepSpeed JSON or pass one to `deepspeed.initialize`, or run only the engine's
        forward pass
LG147 * optimizer got an empty parameter list
LG147 * zip\(\) argument \d is (?:longer|shorter) than argument ::! deepspeed/runtime/(?:lr_schedules|engine)
    title: the scheduler has a learning rate for an empty parameter group, which DeepSpeed dropped
    change: pass no empty group to the optimizer: with adapters (LoRA) the group without weight decay is often empty
LG116 * grad can be implicitly created only for scalar outputs
    title: the loss is not a scalar
    change: reduce it before the backward pass: `loss.mean()` (a model that returns a loss for each sample or device)
LG118 * RuntimeError: Tensors must be contiguous ::! deepspeed/runtime/(?:engine|zero)
    title: a parameter of the model is not contiguous in memory, so `deepspeed.initialize` cannot broadcast it
    change: make the parameters contiguous before `deepspeed.initialize`: `for p in model.parameters(): p.data =
        p.data.contiguous()`
LG106 * Cannot copy out of meta tensor ::! deepspeed/runtime
    title: DeepSpeed got a model that has no weights yet (on the meta device)
    change: load it without `device_map`, `init_empty_weights` and `low_cpu_mem_usage`; at stage 3 let `from_pretrained`
        create it while `HfDeepSpeedConfig` is alive
LG083 * output with shape \[[01]\] doesn't match the broadcast shape
    title: a gradient was added to a parameter that ZeRO-3 has partitioned: its weight was used outside of its module
    change: call the module itself (`self.lm_head(x)`) instead of passing its weight to a function, register the weight
        with `deepspeed.zero.register_external_parameter`, or use ZeRO stage 1 or 2
LG106 * Global rank \d+ is not part of group ::! zero/partition_parameters
    title: `zero.Init` broadcasts parameters from a rank that is not in its data-parallel group, as with tensor
        parallelism
    change: use ZeRO stage 1 or 2 with tensor parallelism, pass the `data_parallel_group` to `zero.Init`, or install a
        newer DeepSpeed
LG109 * Expected all tensors to be on the same device ::$ deepspeed/runtime/(?:zero|bf16_opt|fp16/|zenflow|superoff)
    title: DeepSpeed's own optimizer step mixed CPU and GPU tensors under offload, which is a bug of that release, not
        of the script
    change: install a newer DeepSpeed, or the release that worked before; until then leave out `offload_optimizer` (with
        `gradient_clipping` the scale is on the GPU)
LG109 * (?:Tensors must be CUDA and dense|No backend type associated with device type cpu) ::! deepspeed/runtime
    title: DeepSpeed passed a CPU tensor to a GPU collective, as some releases do with offload
    change: install a newer DeepSpeed, or the release that worked before; leave out `offload_optimizer`; move the
        model and its buffers to the device before `deepspeed.initialize`
LG219 * Inference tensors cannot be saved for backward
    title: parameters that ZeRO-3 gathered in `torch.inference_mode` (evaluation, generation) were used in training
    change: use `torch.no_grad()` instead of `torch.inference_mode()` for evaluation and generation at ZeRO stage 3,
        or set `zero_optimization.stage3_prefetch_bucket_size: 0`
LG219 * (?:Inplace update to inference tensor outside InferenceMode|Cannot set version_counter for inference tensor)
    title: parameters that ZeRO gathered or updated in `torch.inference_mode` were used in training
    change: use `torch.no_grad()` instead of `torch.inference_mode()` for evaluation and generation under DeepSpeed
LG081 * output tensor must have the same type as input tensor :: zero/(?:partition|stage3)|comm/torch
    title: ZeRO-3 gathers parameters of two dtypes in one collective, such as fp32 adapters (LoRA) and a bf16 model
    change: cast adapters and model to one dtype (peft: `autocast_adapter_dtype=False`, or `model.to(torch.bfloat16)`),
        use DeepSpeed 0.19.3 or newer, which gathers each parameter in its own dtype, or ZeRO stage 2
LG102 * object has no attribute 'ds_grads_remaining'
    title: a backward hook of ZeRO-3 reached a module that it had never seen in a forward pass: a bug of DeepSpeed
        0.16.0 to 0.16.7, reported for 0.16.5
    change: install DeepSpeed 0.16.8 or newer, whose hook sets the count in each forward pass; do not replace modules
        after `deepspeed.initialize`
LG116 * '\w*DeepSpeedZeroOptimizer\w*' object has no attribute '(?:ipg_\w+|grads_in_ipg_bucket|params_in_ipg_bucket)'
    title: the script called `loss.backward()` itself, so ZeRO did not prepare its buffers
LG130 * Mismatch in shape: grad_output\[\d+\] has a shape of ::! deepspeed/runtime/pipe
    title: a micro-batch has a different length than the first one, whose shapes the pipeline keeps
    change: pad every micro-batch to the same shape and drop the last, smaller one (`drop_last`), call
        `engine.reset_activation_shape()` when the shape changes, or make the `PipelineModule` with `dynamic_shape=True`
LG004 * CUDA error: invalid argument ::$ accelerator/\S* pin_memory
    title: the driver refused to pin a buffer of host memory
    change: set `pin_memory: false` in `offload_optimizer` and `offload_param`, raise `ulimit -l` (memlock), or use more
        ranks, so that each pins a smaller shard
LG081 * Expected object of scalar type \w+ but got scalar type :: deepspeed/runtime/engine
    title: the batch has a different dtype than the model, which DeepSpeed casts to fp16 or bf16
    change: cast the inputs (and float labels) to the engine's dtype, `x.half()` or `x.to(torch.bfloat16)`, or set
        `fp16.auto_cast: true`
LG081 * expected (?:mat1 and mat2|m1 and m2) to have the same dtype ::$ deepspeed/runtime/zero/linear
    title: a linear layer under ZeRO-3 got an input of a different dtype than its weights
    change: cast adapters, norms and inputs to the model's dtype, or run under `torch_autocast`; in a bf16 run leave
        `zero_quantized_weights` out, or update DeepSpeed, which used to return those weights in fp16
LG081 * expected scalar type \w+ but found \w+ :: deepspeed/runtime/engine
    title: tensors of two dtypes met in the model: DeepSpeed casts the model to fp16 or bf16, but not its inputs
    change: cast the inputs (and float labels) to the engine's dtype, `x.half()` or `x.to(torch.bfloat16)`, or set
        `fp16.auto_cast: true`; do not create fp32 tensors inside the model
"""
