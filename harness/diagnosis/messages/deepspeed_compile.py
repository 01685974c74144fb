# SPDX-License-Identifier: Apache-2.0
"""Messages of DeepCompile and AutoSP (`deepspeed.compile`), from releases 0.16.9 to 0.19.8."""

from __future__ import annotations

MESSAGES = r"""
CC003 compile\.offload_opt_states cannot be combined with ZeRO's
    title: both ZeRO and DeepCompile are configured to offload the optimizer states
    change: set `compile.offload_opt_states: false`, or remove `zero_optimization.offload_optimizer`
CC004 compile\.offload_activation cannot be combined with
    change: enable only one of `offload_activation`, `offload_parameters` and `offload_opt_states`
CC004 offload_parameters and offload_opt_states cannot be enabled together
    change: enable only one of the two; DeepSpeed sets `offload_parameters` itself if `offload_param` and
        `offload_optimizer` are both on `cpu`
CC008 offload_parameters may have been enabled implicitly
CC005 AutoTP compile pass (?:cannot rewrite|reached \S+ tensor-parallel layer)
    title: DeepCompile's AutoTP pass does not know a layer of this model
    change: remove `autotp` from `compile.passes`: AutoTP then works without the compiler
CC005 AutoTP compile pass does not support tp_overlap_comm
    change: set `tensor_parallel.tp_overlap_comm: false`
LG089 The AutoTP compile pass requires PyTorch >=
    title: DeepCompile's AutoTP pass needs a newer torch
    change: install the torch version that the message names, or remove `autotp` from `compile.passes`
LG089 mutates the MoE routing tensor in place inside batched_mm_experts_forward
    title: this transformers cannot be compiled with the AutoTP pass
    change: install the transformers version that the message names, or remove `autotp` from `compile.passes`
CC002 The schedule contains the ZeRO-3 pass add_z3_gather_release, but ZeRO stage
    title: the DeepCompile schedule has a pass for a different ZeRO stage
    change: use the pass for this stage in the schedule (`add_z1_reduce`, `add_z2_reduce`), or leave the schedule out
LG091 * ValueError: Unsupported backend (?P<backend>\S+)
LG089 AutoSP requires PyTorch >= (?P<wanted>[\d.]+)
    title: AutoSP needs a newer torch
    change: install torch 2.9 or newer, or remove `autosp` from `compile.passes`
SQ004 AutoSP requires the number of (?:\w+ )?(?:attention )?heads \(\S+\) to be divisible
    change: choose a sequence degree that divides the attention heads
SQ003 AutoSP mesh .*must cover the distributed world size
    change: launch as many ranks as sequence degree times data degree
SQ003 AutoSP mesh dimensions must be positive
    change: write a sequence degree of at least 1 that divides the number of ranks
SQ003 World mesh-size should be divisible by SP_SIZE
    change: choose a sequence degree that divides the number of ranks
LG170 Incorrect initialization of SP/DP mesh
    title: AutoSP ran before its process groups were initialized
    change: set `sequence_parallel_size`, and call `engine.compile()` after `deepspeed.initialize`
LG170 [SD]P_SIZE not init properly
    title: AutoSP ran before its process groups were initialized
    change: set `sequence_parallel_size`, and call `engine.compile()` after `deepspeed.initialize`
LG170 AutoSP process groups are already initialized for mesh
    change: use one sequence degree for all engines of a process
LG172 AutoSP currently supports torch\.nn\.functional\.scaled_dot_product_attention
    title: AutoSP found no SDPA attention in the model
    change: load the model with `attn_implementation="sdpa"`
LG172 AutoSP cannot rebuild an attention mask
    title: AutoSP cannot shard this attention mask
    change: build the mask from the padding mask of the whole sequence
LG172 AutoSP expects
    title: AutoSP cannot shard this attention
    change: use attention of the form [batch, heads, sequence, head size] with a mask for one or all heads
LG172 * (?:input_id|label_id) is required$
    title: `prepare_autosp_inputs` needs the token ids and the labels
    change: pass `input_id` and `label_id`
LG172 seq_dim \S+ (?:must be a valid index|is out of bounds) for
    title: the sequence dimension that AutoSP was given does not exist
    change: pass the index of the sequence dimension (1 for [batch, sequence])
LG172 Failed to find a node for the (?:input sequence|label)
    title: AutoSP did not find its inputs in the compiled graph
    change: pass the tensors that `prepare_autosp_inputs` returned straight to the model
LG172 (?:expected|Expected) sequence dimension to be
    title: the sequence length was compiled as a constant
    change: call `prepare_autosp_inputs` on every batch before the forward pass: it marks the sequence dimension as
        dynamic
LG172 Unable to find symbolic placeholder for
    change: call `prepare_autosp_inputs` on every batch before the forward pass
CC002 schedule should be a list, but got
    title: the DeepCompile schedule is not a list of (step, [passes])
    change: pass a list of (step, [passes])
CC002 Each step in schedule should be an integer
    title: the DeepCompile schedule is not a list of (step, [passes])
    change: pass a list of (step, [passes])
CC002 Passes at a certain step should be a list
    title: the DeepCompile schedule is not a list of (step, [passes])
    change: pass a list of (step, [passes])
CC005 Pass '(?P<name>[^']*)' \(step \S+\) (?:requires|conflicts with)
    title: a pass of the schedule conflicts with another pass, or lacks one that it requires
    change: remove `{name}` from the schedule, or schedule the pass that it requires before it
CC005 Pass callable is registered under multiple names
    change: refer to the pass by one of its registered names, not by its function
LG064 Please install scipy to use communication profiler in DeepCompile
    change: `pip install scipy`
LG166 partition_sizes=\S+ does not match TP world size
LG166 produced width \S+, but partition_sizes expects
LG166 No real inputs available for graph_id
    title: DeepCompile lost the inputs of a graph
    change: call `engine.compile()` once, before the first step, and keep the shapes of all batches the same; if the
        error stays, remove `compile.deepcompile`, and report it to DeepSpeed
LG166 No inputs stored in InputStorage
    title: DeepCompile lost the inputs of a graph
    change: set `compile.keep_int_input_tensors: true`; if the error stays, remove `compile.deepcompile`, and report it
        to DeepSpeed
LG166 All param inputs should have param_id
    title: DeepCompile found a parameter that ZeRO-3 does not manage
    change: initialize the engine before `compile()`, and add no parameters afterwards
LG166 DeepCompile ZeRO-3 (?:final schedule fingerprint mismatch|\S+ node has no stable integer ds_id)
    title: the ranks compiled different schedules
    change: feed all ranks batches of the same shape, with the same model code; if the error stays, remove
        `compile.deepcompile`, and report it to DeepSpeed
LG166 * No output node found
    title: DeepCompile's scheduler found its graph inconsistent
    change: remove `compile.deepcompile`, and report it to DeepSpeed with the model
LG166 Backward graph is not added yet
    title: DeepCompile's scheduler found its graph inconsistent
    change: remove `compile.deepcompile`, and report it to DeepSpeed with the model
LG166 There are unscheduled nodes
    title: DeepCompile's scheduler found its graph inconsistent
    change: remove `compile.deepcompile`, and report it to DeepSpeed with the model
LG166 No runnable allgather nodes
    title: DeepCompile's scheduler found its graph inconsistent
    change: remove `compile.deepcompile`, and report it to DeepSpeed with the model
LG166 * should be fake tensor
    title: DeepCompile found its graph inconsistent
    change: remove `compile.deepcompile`, and report it to DeepSpeed with the model
LG166 x doesn't have get_name
    title: DeepCompile found its graph inconsistent
    change: remove `compile.deepcompile`, and report it to DeepSpeed with the model
LG166 no tensor placeholder found to anchor
    title: DeepCompile found its graph inconsistent
    change: remove `compile.deepcompile`, and report it to DeepSpeed with the model
LG166 not in ds_ids
    title: DeepCompile found its graph inconsistent
    change: remove `compile.deepcompile`, and report it to DeepSpeed with the model
LG166 * specs is empty
    title: DeepCompile found its graph inconsistent
    change: remove `compile.deepcompile`, and report it to DeepSpeed with the model
LG166 * has no shape metadata
    title: DeepCompile found its graph inconsistent
    change: remove `compile.deepcompile`, and report it to DeepSpeed with the model
LG166 does not have tensor_size
    title: DeepCompile found its graph inconsistent
    change: remove `compile.deepcompile`, and report it to DeepSpeed with the model
LG166 Inputs must be real tensors
    title: DeepCompile found its graph inconsistent
    change: remove `compile.deepcompile`, and report it to DeepSpeed with the model
LG166 profiling failed on another rank
    title: DeepCompile could not profile its graph
    change: remove `compile.deepcompile`; if another rank failed, its error is the cause
LG166 Error\. Duration is 0
    title: DeepCompile could not profile its graph
    change: remove `compile.deepcompile`; if another rank failed, its error is the cause
LG166 wrong comm_op specified
    title: DeepCompile could not profile its graph
    change: remove `compile.deepcompile`; if another rank failed, its error is the cause
LG153 Distributed environment is not initialized but comm operator
    change: call `deepspeed.initialize` before `compile`
"""
