# SPDX-License-Identifier: Apache-2.0
"""Messages of deepspeed/runtime/pipe and of activation checkpointing (0.14.5 to 0.19.8)."""

from __future__ import annotations

MESSAGES = r"""
LG133 DualPipeV (?:needs|does not|exchanges|cannot)
LG133 model must base DualPipeVModule
LG093 model must base PipelineModule
    title: the pipeline engine was given a model that is not a `PipelineModule`
    change: pass a `deepspeed.pipe.PipelineModule` to `deepspeed.initialize`, or leave `pipeline` out
LG093 train_batch\(\) requires gradients enabled
    title: `train_batch` was called while gradients were switched off
    change: call it outside `torch.no_grad()`, or call `eval_batch` instead
LG093 custom_load_fn not supported w\. pipeline parallelism
    title: `load_checkpoint` was given a `custom_load_fn`, which a pipeline does not support
    change: leave it out; the layers are loaded one by one
LG130 reduction type \S+ not supported ::! runtime/pipe
    title: `eval_batch` does not support this `reduce_output`
    change: give `reduce_output="avg"`, or None
LG130 * expecting a tensor or a tuple of tensors ::! runtime/pipe
LG130 Buffer for metadata is too small\. Current buffer size
    title: a layer outputs a tensor with too many dimensions, or too many tensors
    change: pass fewer, larger tensors from stage to stage
LG130 Could not (?:send|receive) (?:meta type|type|output of type)
    title: a layer outputs something that is neither a tensor nor a tuple of tensors
LG131 LayerSpec only supports torch\.nn\.Module types
LG131 must provide num_stages or topology
LG131 param `checkpointable_layers` must be type of list
    change: give the class names of the layers as a list
LG093 num_stages \(\d+\) must divide distributed world size
    title: the number of pipeline stages does not divide the number of ranks
    change: launch a number of ranks that `num_stages` divides, or lower `num_stages`
LG131 RECURSIVE BUILD NOT YET IMPLEMENTED
    title: a `PipelineModule` is inside another one
    change: give one flat list of layers
LG131 Partitioning '.*' found no valid layers to partition
    title: `partition_method: type:REGEX` matches no layer's class
    change: write a regular expression that matches the class names of the layers
LG131 Partitioning method \S+ not implemented
    title: `partition_method` names a method that does not exist
    change: use `parameters`, `uniform` or `type:REGEX`
LG132 * Layer \S+ not owned\? parts=
LG131 There is no pipeline parallelism :: pipe/p2p
    change: start at least two pipeline stages, or train without a `PipelineModule`
LG132 * Functionality currently limited to send and receive between adjacent ranks only
LG132 * Doesn't support async_op true ::! pipe/p2p
LG132 * does not understand instruction
    title: a schedule has an instruction that the pipeline engine does not know
LG131 get_rank\(\) does not support slices
    change: call `topology.filter_match()` for several ranks, and give `get_rank` one index for every axis
LG131 AssertionError: key \S+ invalid ::! pipe/topology
    title: the topology has no rank with these indices
LG131 rank \d+ not found in topology
    title: the job has more ranks than the topology
    change: launch as many ranks as the product of the topology's axes
LG131 * Values must be strictly positive ::! pipe/topology
LG131 AssertionError: Invalid Grid
    title: the axes of the pipeline's topology do not multiply to the number of ranks
    change: launch as many ranks as the product of the pipeline, data and tensor degrees
LG093 * ^AssertionError$ ::$ pipe/engine\S* set_has_attention_mask
    title: `set_has_attention_mask` got a value that is not a bool
    change: give it True or False
LG130 * ^AssertionError$ ::$ pipe/engine\S* _(?:exec_load_micro|reduce_outputs|exec_forward|send_tensor|exec_recv_act)
    title: the batch or the output of a layer is not a tensor or a tuple of tensors
LG130 * ^AssertionError$ ::$ pipe/engine\S* (?:_exec_send_grads|_exec_backward_pass|_exec_recv_grads)
    title: a tensor between pipeline stages lacks a gradient, or has one that was not expected
    change: let each layer return its trainable output first, and integer or bool tensors (masks) after it; use every
        output in the next layer; keep the number of outputs the same for every micro-batch
BT001 * ^AssertionError$ ::$ pipe/engine\S* __init__
    title: the batch sizes or degrees of the pipeline do not fit together, or `pipe_partitioned` or `grad_partitioned`
        is not a bool
    change: set `train_batch_size` to micro-batch size times `gradient_accumulation_steps` times data-parallel ranks,
        and both keys of `pipeline` to true or false
LG132 * ^AssertionError$ ::$ deepspeed/runtime/pipe/(?:engine|dualpipev|schedule|module|p2p)
LG129 Only tuple of tensors is supported\. Got Unsupported input type
    title: a checkpointed layer got an input that is not a tensor
LG129 seed \d+ already exists :: deepspeed/
    title: the tensor-parallel RNG state was initialized twice
    change: call `model_parallel_cuda_manual_seed` (or `deepspeed.checkpointing.model_parallel_reconfigure_tp_seed`)
        once
LG129 cuda rng state \S+ already exists :: deepspeed/
    title: the tensor-parallel RNG state was initialized twice
    change: call `deepspeed.checkpointing.model_parallel_cuda_manual_seed` once
LG129 cuda rng state \S+ is not added :: deepspeed/
    title: the tensor-parallel RNG state was never initialized
    change: call `deepspeed.checkpointing.model_parallel_cuda_manual_seed(seed)` after the process groups are
        initialized
LG129 Doesn't handle if partition activation if item is not divisible by mp size
    title: `partition_activations` cannot split an activation whose size the tensor degree does not divide
    change: pad the sequence, or set `activation_checkpointing.partition_activations: false`
LG129 * (?:Expected even count of tensors, instead got|save_for_backward called with odd number of args)
    change: set `activation_checkpointing.partition_activations: false`, and pass only tensors to checkpointed layers
LG129 Checkpointing is not compatible with \.grad\(\)
    title: the script computed a gradient with `torch.autograd.grad` or `backward(inputs=...)`, which activation
        checkpointing does not support
LG129 You are calling backwards on a tensor that is never exposed
LG129 Attempt to retrieve a tensor saved by autograd multiple times
    title: a backward pass ran twice through a checkpointed module
    change: call `backward` once for each forward pass, without `retain_graph`
UT011 Contiguous Checkpointing is only available with partitioned activations
UT011 Must specify the number of layers with contiguous memory checkpointing
"""
