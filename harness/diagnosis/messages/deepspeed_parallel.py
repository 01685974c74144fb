# SPDX-License-Identifier: Apache-2.0
"""Messages of AutoTP, kernel injection, process groups and sequence parallelism. From DeepSpeed 0.14.5 to 0.19.8."""

from __future__ import annotations

MESSAGES = r"""
TP006 AutoTP not supported for model\. Please provide policy
    title: AutoTP has no plan for this model
    change: describe its layers in `tensor_parallel.partition_config`, use a newer DeepSpeed (0.19.6 uses the TP plan of
        transformers), or train without tensor parallelism
TP006 * ^AssertionError$ ::! module_inject/auto_tp\.py _replace_module
LG162 * ^AssertionError$ ::! module_inject/auto_tp\.py copy
    title: AutoTP cannot copy weights into a parameter on the meta device
    change: load the model with its weights before tensor parallelism, or use `deepspeed.OnDevice` with a checkpoint
LG167 * ^AssertionError$ ::! module_inject/fusedqkv_utils
    title: the fused attention of this model does not divide evenly over the tensor ranks
    change: choose a tensor degree that divides the number of heads
LG162 No default policy found! Please specify your policy injection_policy
    title: DeepSpeed does not know the layers of this model
    change: pass `injection_policy={LAYER: ("name of the output projection", ...)}` to `init_inference`, or set
        `replace_with_kernel_inject: false`
LG167 Row-parallel output-head training (?:can only share|requires|does not support)
    title: AutoTP cannot shard the output head along its input dimension
    change: keep `lm_head` unsharded (`partition_type: skip`), or shard it by column; use neither `shape` nor the
        DeepCompile pass `autotp` for it
LG167 vocab_parallel_lm_head requires (?:nonempty vocabulary shards|a vocabulary of at least)
    title: the vocabulary is too small for this tensor degree
    change: lower the tensor degree, or set `tensor_parallel.vocab_parallel_lm_head: false`
LG167 Unable to choose among multiple vocab-parallel LM heads
    title: the model has several output heads
    change: set `tensor_parallel.vocab_parallel_lm_head: false`
LG167 Vocab-parallel LM head '[^']*' changed during AutoTP partitioning
    change: set `tensor_parallel.vocab_parallel_lm_head: false`, and report it to DeepSpeed
TP015 No matching spec for (?P<parameter>\S+)
    title: `strict_mode` is on, and no layer spec matches a parameter
    change: add a spec for it (`partition_type: skip` keeps it unsharded), or set `strict_mode: false`
TP014 AutoTP gather_output does not yet support shaped sub-parameter layers
    change: leave out `gather_output` or `shape` of that layer spec
LG167 Head shard sizes .* do not partition
    title: the attention heads do not divide evenly over the tensor ranks
    change: choose a tensor degree that divides the number of heads
LG167 Cannot invoke get_alibi_mask with the original total head count
    change: set the tensor degree to 1 for this model (ALiBi), or use a newer DeepSpeed
TP014 AutoTP (?:shape|nested sub-parameter|partition_dim) ?
    title: the `shape` of a layer spec is not valid
    change: write a list of integers (-1 at most once, for the inferred dimension) with at most one nested list of
        sizes, at `partition_dim`
TP014 shape (?:last dim \S+ must match weight input dim|must include at least one output dimension)
    title: the `shape` of a layer spec does not fit the layer's weight
    change: make the product of `shape` equal to the size of the weight that the message names, with the input width
        last; nested sizes must add up to the dimension at `partition_dim`
TP014 shape product \S+ != weight (?:numel|output dim)
    title: the `shape` of a layer spec does not fit the layer's weight
    change: make the product of `shape` equal to the size of the weight that the message names, with the input width
        last; nested sizes must add up to the dimension at `partition_dim`
TP014 shape (?:has multiple inferred dims|dimensions must be (?:positive )?integers)
    title: the `shape` of a layer spec does not fit the layer's weight
    change: make the product of `shape` equal to the size of the weight that the message names, with the input width
        last; nested sizes must add up to the dimension at `partition_dim`
TP014 partition_dim (?:size must be a positive|spec must be )
    title: the `shape` of a layer spec does not fit the layer's weight
    change: make the product of `shape` equal to the size of the weight that the message names, with the input width
        last; nested sizes must add up to the dimension at `partition_dim`
TP014 partition_dim size \S+ not divisible by sub-param count
    title: the `shape` of a layer spec does not fit the layer's weight
    change: make the product of `shape` equal to the size of the weight that the message names, with the input width
        last; nested sizes must add up to the dimension at `partition_dim`
TP014 sub-parameter size(?: tuple cannot be empty|s must be positive integers|s sum \S+ != partition_dim)
    title: the `shape` of a layer spec does not fit the layer's weight
    change: make the product of `shape` equal to the size of the weight that the message names, with the input width
        last; nested sizes must add up to the dimension at `partition_dim`
TP014 nested tuple only allowed at partition_dim
    title: the `shape` of a layer spec does not fit the layer's weight
    change: make the product of `shape` equal to the size of the weight that the message names, with the input width
        last; nested sizes must add up to the dimension at `partition_dim`
TP014 supports only 1-level nesting at partition_dim
    title: the `shape` of a layer spec does not fit the layer's weight
    change: make the product of `shape` equal to the size of the weight that the message names, with the input width
        last; nested sizes must add up to the dimension at `partition_dim`
TP014 cannot infer shape for weight with numel
    title: the `shape` of a layer spec does not fit the layer's weight
    change: make the product of `shape` equal to the size of the weight that the message names, with the input width
        last; nested sizes must add up to the dimension at `partition_dim`
TP014 AutoTP layer '(?P<layer>[^']*)' bias size
    title: the bias of a layer does not fit the `shape` of its spec
    change: correct `shape`, or set `partition_type: skip` for the bias
LG167 AutoTP cannot shard this QWen attention
    title: the tensor degree is larger than the attention of this model allows
    change: lower `tensor_parallel.autotp_size`
LG167 codgen autoTP requires num_kv_heads
    title: CodeGen's attention is not divisible by this tensor degree
    change: choose a tensor degree that divides the number of heads / 4
LG167 unknown fused_qkv_type
    title: AutoTP does not know how the fused QKV weight of this model is laid out
    change: describe it in `tensor_parallel.partition_config` with `shape`, or train without tensor parallelism
LG167 world_size \S+ is larger than half of num_heads
    title: Yuan's attention needs at least two heads for each tensor rank
    change: lower the tensor degree to at most half the number of heads
LG167 Rank \S+ produced .+ output features, but the partition scheme
    title: the width of a layer changed after AutoTP sharded it
    change: do not resize or replace layers (adapters, vocabulary) after `deepspeed.initialize`; if you did not, report
        it to DeepSpeed
LG167 holds .+ elements along dim \S+ of \S+, but the partition scheme expects
    title: a sharded layer has a different size than AutoTP expects
    change: do not resize layers after `deepspeed.initialize`; load weights of the same model
LG167 (?:Output head expects|lm_head was partitioned for an input of) \S+ (?:input )?features
    title: the output head got inputs of the wrong width
    change: shard the layer before it so that its output is gathered, or keep `lm_head` unsharded (`partition_type:
        skip`)
LG167 (?:Vocabulary|Hidden)-parallel sharding does not support the custom embedding forward
    title: AutoTP cannot shard an embedding with a custom forward
    change: set `tensor_parallel.vocab_parallel_lm_head: false`, or keep the embedding unsharded (`partition_type:
        skip`)
LG167 (?:Vocabulary|Hidden)-parallel embedding options .* not supported
    title: AutoTP cannot shard an embedding with `max_norm`, `scale_grad_by_freq` or `sparse`
    change: leave those options out of the embedding, or keep it unsharded (`partition_type: skip`)
LG164 its fused qkv layout interleaves
LG167 'fused_module' is required but not provided
    change: pass `fused_module` to the fused QKV layer: it is the module that holds the weight
LG167 The module name must be provided in the initialization
    change: pass `name` to the AutoTP layer
CC005 has its tensor-parallel collectives deferred to the AutoTP compile pass, but
    title: a model that was prepared for DeepCompile's AutoTP pass ran uncompiled
    change: call `engine.compile()` and do not disable compilation (TORCH_COMPILE_DISABLE), or remove `autotp` from
        `compile.passes`
LG162 No implementation of backward
    title: a backward pass reached a layer that AutoTP created for inference
    change: train with `tensor_parallel.autotp_size` in the configuration of `deepspeed.initialize`, not with
        `init_inference`
LG167 Sub-parameter of size
LG167 Sub-parameter shard widths
TP007 HuggingFace tp_plan contains unsupported partition style
LG167 AutoTP shard sizes .* for layer '(?P<layer>[^']*)' do not sum to
    title: the shard sizes of a layer do not add up to its full size
    change: set `tensor_parallel.tp.tp_grain_size` to 1, and report the message to DeepSpeed
LG170 get_shard_size requires a group-local rank or process group
    title: AutoTP needs the process group to compute shard sizes for a group that is smaller than the world size
    change: pass the tensor group (`mp_group`), or the rank within it
LG167 \S+ partition_dim size \S+ not divisible by tp_size
    title: a dimension is not divisible by the tensor degree
    change: choose a tensor degree that divides it, or install DeepSpeed 0.19.7 or newer, which shards unevenly
LG167 sub-parameter size \S+ not divisible by tp_size
    title: a sub-parameter of a fused weight is not divisible by the tensor degree
    change: choose a tensor degree that divides it, or install DeepSpeed 0.19.7 or newer, which shards unevenly
LG167 Merging tensors is not allowed here!
    title: loading would have to merge the weights of several tensor shards, which is not supported here
    change: load a checkpoint of the same tensor degree, or one that is not sharded
TP003 To run the model parallel across the GPUs, the attention_heads require to be divisible by the world_size
    title: the number of attention heads is not divisible by the tensor degree of kernel injection
    change: choose a tensor degree that divides the number of heads, or set `replace_with_kernel_inject: false`
LG162 Meta [Tt]ensor(?:s are| checkpoint loading| support is) not (?:supported|available)
    title: this model cannot be loaded from meta tensors for inference
    change: load the model with its weights before `init_inference`, or set `replace_with_kernel_inject: false`
LG162 Triton kernels are only for BERT-like models yet
    change: set `use_triton: false`
LG162 Transformers version \S+ exceeds version 4\.43\.4
    title: DeepSpeed's inference supports BLOOM up to transformers 4.43.4
    change: install `transformers==4.43.4`, or set `replace_with_kernel_inject: false`
LG162 (?:A \w+\(\) function|get_lora_matched_pair\(\)) must be defined (?:in the model|for the relevant)
    title: the container of this model lacks a function that the hybrid engine or injection needs
    change: use a model that the hybrid engine supports (OPT, LLaMA, GPT-NeoX, BLOOM, GPT-2), or switch `hybrid_engine`
        off
LG162 DeepSpeed kernel injection cannot serve rope_type
    title: kernel injection does not support the RoPE scaling of this model
    change: set `replace_with_kernel_inject: false` for this model
LG162 * Unsupported activation function:
    change: set `replace_with_kernel_inject: false`: the kernels do not support this activation
LG162 We require the quantization scales for larger TP-size when loading INT8 checkpoint
    change: load the fp16 checkpoint and quantize it for this tensor degree
LG162 Merging of the checkpoints are not supported when using INT8 checkpoint
    change: use as many ranks as the INT8 checkpoint has shards
LG162 (?:qkvw|qw|kw|vw) can't be None
    title: kernel injection did not find the attention weights of a layer
    change: set `replace_with_kernel_inject: false`, or pass the right `injection_policy`
LG162 Generic injection only supported with FP16
    change: use fp16, or set `replace_with_kernel_inject: false`
LG162 enable_cuda_graph is not supported with replace_with_kernel_inject for this model
    change: set `enable_cuda_graph: false`
LG162 cuda graph is not supported with this model, please disable
    change: set `enable_cuda_graph: false`
LG162 we require pipe-module to have the list of fwd_functions
    change: pass a plain model, not a pipeline module, to `init_inference`
LG162 * ^NotImplementedError ::! module_inject/policy
    title: the policy for this model does not say where its attention and MLP are
    change: implement `attention`, `get_hidden_heads`, `mlp` and `layernorm` in your policy class, or set
        `replace_with_kernel_inject: false`
LG162 Policy cannot be None
    change: pass an `injection_policy` for this model, or set `replace_with_kernel_inject: false`
LG170 mpu does not support pipeline parallel group
    title: the `mpu` of the script has no pipeline group
    change: give the `mpu` a `get_pipe_parallel_group` or `get_pipeline_model_parallel_group`
LG170 Please do not use the groups\.initialize\(\) API as it is deprecated
    change: remove `groups.initialize`, and pass `ep_size` to `deepspeed.moe.layer.MoE`
LG170 (?:data|tensor|model|intra_layer_model|expert|expert data) parallel group is not initialized
LG170 Warning! Process group not initialized
LG153 * \bdist is not initialized$
LG170 ZeRO parameter intra parallel group is already initialized
    title: the process groups of hpZ were initialized twice
    change: use one `zero_hpz_partition_size` for all engines of a process
BT003 data_parallel_size \(\S+\) \* tensor_model_parallel_size \(\S+\) must equal world_size
LG170 use_data_before_expert_parallel_ is not supported with mp_size > 1
    change: set `use_data_before_expert_parallelism: false` with tensor parallelism
ZR022 num_gpus must >=1, cannot initialize All-To-All
ZR022 num_gpus not equal to device per node, cannot initialize All-To-All
    title: ZeRO++'s quantized gradients need all GPUs of the host
    change: launch one rank for each GPU of the host, or leave out `zero_quantized_gradients`
ZR021 num_nodes<2 cannot initialize All-To-All
    title: ZeRO++'s quantized gradients need at least two hosts
    change: leave out `zero_quantized_gradients` on one host
LG170 No sequence parallel group found
    title: sequence parallelism was used before its process group was initialized
    change: set `sequence_parallel_size` in the configuration or pass an `mpu` with a sequence group
LG171 vocab_parallel_logits (?:and|must)
LG171 student_logits (?:and|must)
LG171 vocab_start_index (?:and|requires)
LG171 global_vocab_size (?:and|requires)
LG171 Target is out of range for vocabulary size
    title: a label is outside the vocabulary
    change: compare the labels with the vocabulary of the model; set ignored labels to -100
LG171 index is out of range for vocabulary size
    title: a token id is outside the vocabulary
    change: compare the token ids with the vocabulary of the model
LG171 index must match the non-vocabulary dimensions
LG171 Unsupported (?:reduction|vocabulary-parallel CE backend):
    change: use the reduction `mean`, `sum` or `none`, and the backend `torch` or `liger`
LG171 gather_sequence_loss is only supported with reduction='none'
LG171 sp_group is required when gather_sequence_loss=True
    change: pass the sequence group as `sp_group`
LG171 A no-gather vocab-parallel LM head requires
    title: DeepSpeed cannot replace the model's loss with one over a sharded vocabulary
    change: set `gather_output: true` for the output head, or compute the loss with `VocabParallelCausalLMLoss`
LG171 Unable to install the vocab-parallel
    title: DeepSpeed cannot replace the model's loss with one over a sharded vocabulary
    change: set `gather_output: true` for the output head, or compute the loss with `VocabParallelCausalLMLoss`
TP017 Liger vocabulary-parallel CE requires liger-kernel
    title: Liger's kernels are missing or too old
    change: `pip install "liger-kernel>=0.8.1"`, or use the backend `torch`
LG171 Liger CE supports one first-order backward per forward
    change: use the backend `torch` for a retained graph or second derivatives
LG171 Vocabulary shard bounds (?:must|for TP rank)
    title: the bounds of the vocabulary shards do not cover the vocabulary
    change: pass the bounds that AutoTP recorded for the output head, in rank order
LG171 Explicit vocabulary shard bounds are required
    change: pass `vocab_start_index` and `vocab_end_index` of each rank: the shards have different sizes
LG171 TP rank \S+ received an empty vocabulary shard
    change: lower the tensor degree below the vocabulary size
LG171 VocabParallelCausalLMLoss shard metadata changed after its first call
    change: create a new `VocabParallelCausalLMLoss` for each output head
LG171 labels or shift_labels must be provided
    change: pass `labels` to the model
LG171 hidden and target must have matching
LG171 weight must have shape \[local_vocab
LG171 * chunk_size must be positive
LG172 auto_wrap_model_for_sp: no recognisable attention modules found
    title: AutoSP does not know the attention of this model
    change: add the class of its attention to `_LLM_ATTN_CLASSNAMES` or `_VIT_ATTN_CLASSNAMES` of
        `deepspeed.sequence.autosp_detector`, or register Ulysses by hand
LG172 \w+\._splice_visual_into_text is not implemented
    change: subclass `ModalityFusionSPAdapter` for this model and write that method
LG172 gpu_chunk \S+ shound be on
    title: FPDT found a chunk of the sequence on the wrong device
    change: turn FPDT's offloading off, and report it to DeepSpeed
LG172 first update_out_and_lse should not pass slice_ args
LG064 DeepSpeed FPDT requires flash-attn
    title: FPDT needs flash-attn
    change: `pip install flash-attn --no-build-isolation` in the version that the message names
LG172 batch_dim_idx must be either 0 or 1
    change: pass 0 or 1 to `DistributedAttention`
LG172 Dim 0 \S+ is not world size
    title: sequence parallelism got a tensor that is not sharded over its group
LG172 Number of key-value heads \(\S+\) must be at least the sequence parallel size
    title: there are fewer key-value heads than sequence ranks
    change: lower the sequence degree to the number of key-value heads
LG172 Number of heads \(\S+\) must be (?:divisible by|larger than) (?:the )?sequence parallel size
    title: the attention heads do not divide evenly over the sequence ranks
    change: choose a sequence degree that divides the number of heads
LG172 uneven head sp does not support async op
    change: choose a sequence degree that divides the number of heads, or leave out `sp_stream`
LG173 This API is only defined for ZeRO-3 partitioned parameters
    title: a `safe_get_local_*` function was called on a parameter that ZeRO-3 does not partition
    change: use `safe_get_full_*` below stage 3; at stage 3 pass a parameter of the engine's model
LG173 fragment start \S+ should be < fragment_end
LG173 (?P<key>\S+) not found in optimizer state fragment
    title: the optimizer has no state of that name
    change: read it after the first step, by a state name of this optimizer (`exp_avg`, `exp_avg_sq` for Adam)
LG173 Gradients are only available immediately after backward and before engine step
    title: a gradient was read before the backward pass or after the optimizer step
    change: call `safe_get_full_grad` after `engine.backward` and before `engine.step`, on all ranks
LG173 leaf_module_classes must be a list of types
    change: pass a list of classes (or, from 0.16, of names) to `set_z3_leaf_modules`
LG173 No modules (?:of type|named|matching suffixes) .* found in model
    title: no module of the model matches the configured ZeRO-3 leaf modules
    change: correct the class or the name in `set_z3_leaf_modules` or `zero_optimization.leaf_module`: name the classes
        of the model before it is wrapped
"""
