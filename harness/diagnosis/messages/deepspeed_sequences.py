# SPDX-License-Identifier: Apache-2.0
"""Messages of sequence and tensor parallelism, AutoEP, Domino and losses in deepspeed/runtime (0.14.5 to 0.19.8)."""

from __future__ import annotations

MESSAGES = r"""
LG138 world_size \(\d+\) is (?:less than|not divisible by) sequence_parallel_size
    title: the sequence degree does not divide the number of ranks
LG138 sequence_parallel_size must be greater than 1
LG138 sequence (?:data )?parallel group is (?:already|not) initialized
    title: the process groups of sequence parallelism are not initialized, or were initialized twice
LG138 * ^AssertionError$ ::$ parallel_state_sp
    title: the process groups of sequence parallelism were requested before `torch.distributed` was initialized
LG089 transformers>=4\.51\.3 is required ::! ulysses
    title: Ulysses sequence parallelism needs transformers 4.51.3 or newer
    change: `pip install -U transformers` on every host
LG139 Ulysses SP requires `?position_ids`?
    title: the batches have no `position_ids`, which sequence parallelism needs
    change: let the collator add `position_ids` (`torch.arange(length)` for each sample; in packed rows they restart at
        each document)
LG139 (?:query|key or value) input tensor does not match the required shape
    title: attention got a different sequence length from the one that sequence parallelism was set up for
    change: set `seq_length_is_variable=True` in `register_with_transformers`, or pad to `seq_length`; pass each rank
        its own shard of the sequence
LG139 The context shape .* is not of the expected shape
LG139 Either `seq_length_is_variable` needs to be `True` or `seq_length` needs to be set
    change: set `seq_length_is_variable=True`, or give a fixed `seq_length`
LG090 core_attn_implementation='.*' does not match model config attn_implementation
    title: the model uses another attention implementation than the one that sequence parallelism replaces
    change: load the model with the `attn_implementation` that `core_attn_implementation` names
SQ005 attn_implementation isn't currently supported by Ulysses
LG089 Hub kernel attention requires a transformers version
    title: attention kernels from the Hub need a newer transformers
    change: install a newer transformers, or use `flash_attention_2` or `sdpa`
LG139 's shape torch\.Size\(.*\) must match input_ids's shape
    title: a tensor of the batch has a different shape than `input_ids`, so it cannot be sharded along the sequence
    change: pad it to the same length in the collator, or drop it from the batch
LG139 Borked batch batch\["input_ids"\]
    title: `position_ids` or `labels` have a different shape than `input_ids`
SQ009 batch's seqlen=\d+ isn't divisible by sp-size
LG143 unknown (?:value|reduction) \S+: valid values are ::! ulysses
LG143 (?:x|y) must be at least 2D \[batch_size, seq_len ::! ulysses
LG143 x and y batch/seq dims must match ::! ulysses
LG143 mask (?:must be 2D \[batch_size, seq_len\]|shape must match x and y) ::! ulysses
LG143 Unsupported chunked cross-entropy backend
    change: give `backend="torch"` or `"triton"`
LG143 The Triton chunked cross-entropy backend needs CUDA logits
    change: give `backend="torch"`
LG143 block_rows must be a positive integer ::! chunked_cross_entropy
LG143 The chunked cross entropy has no second derivative
    change: leave out `create_graph=True`, or use the model's own loss
LG143 Expected \[rows, vocab\] logits and \[rows\] targets ::! chunked_cross_entropy
LG143 ValueError: Unsupported reduction: ::! chunked_cross_entropy
    change: give `reduction` as `mean`, `sum` or `none`
LG143 Expected torch\.long class-index targets ::! chunked_cross_entropy
LG143 install_chunked_causal_lm_loss only replaces the stock Hugging Face ForCausalLMLoss
    change: use it for models with the ordinary causal loss, or compute the loss yourself
LG143 Unable to install the chunked causal-LM loss
LG140 Conflicting (?:tp_model_init arguments detected|tensor_parallel\.|dtype: config uses)
LG140 tp_model_init provided tp_group; deepspeed\.initialize must not receive mpu
    change: pass the group to `tp_model_init` alone, and no `mpu` to `deepspeed.initialize`
LG140 tp_model_init tp_size \(\d+\) does not match tp_group size
SP006 tensor_parallel\.tp must be a dict
    change: write `tensor_parallel.tp` as a block with `tp_size`, or set `tensor_parallel.autotp_size`
LG164 tensor parallel layout cannot be described per sub-parameter
    title: AutoTP cannot consolidate the shards of a fused layer
    change: export from a run without AutoTP, or unfuse the layer (separate query, key and value) before training
LG164 its fused qkv layout interleaves or replicates blocks across tensor parallel
    title: AutoTP cannot consolidate the shards of a fused query-key-value layer
    change: export from a run without AutoTP, or unfuse the layer (separate query, key and value) before training
LG164 Yuan shared-QK tensor parallelism selects noncontiguous head groups
    title: AutoTP cannot consolidate the shards of Yuan's shared query and key
    change: export from a run without AutoTP, and save its ordinary checkpoints
TP017 vocab_parallel_ce_backend='liger' requires a no-gather
LG140 vocab_parallel_lm_head requires a supported nn\.Linear
    title: `vocab_parallel_lm_head` found no output head that it can shard
    change: leave `vocab_parallel_lm_head` out: the model has no linear layer named `lm_head` or `embed_out`
LG140 Unable to choose a loss for multiple no-gather vocab-parallel LM heads
    title: the model has several output heads that are sharded along the vocabulary
    change: leave `vocab_parallel_lm_head` out
EX010 AutoEP does not currently support tensor model parallelism from mpu
EX010 AutoEP with ZeRO Stage 3 does not support sequence parallelism
EX011 AutoEP with ZeRO Stage 3 does not support (?:zero_quantized_gradients|hpZeRO)
EX008 AutoEP with ZeRO Stage 3 only supports expert_parallel\.expert_tensor_parallel_size=1
EX009 AutoEP with ZeRO Stage 3 does not support AutoTP
LG128 AutoEP with ZeRO Stage 3 does not support MiCS
LG128 AutoEP (?:replacement )?expert parameter '.*' is missing a ZeRO partition group name
LG128 AutoEP expert parameter '.*' was already ZeRO-partitioned
    title: ZeRO-3 partitioned the experts before AutoEP replaced their layers
    change: create the model without `deepspeed.zero.Init` where `expert_parallel` is set, and let
        `deepspeed.initialize` replace the layers
LG128 Parameter '.*' has unsupported ZeRO placement family
LG128 * AutoEP expert ZeRO Stage 3 subgroup (?:mixes expert-parallel group names|is missing an expert-parallel)
LG127 Folded AutoEP\+AutoTP checkpoint requires a folded runtime
    title: the checkpoint was saved with folded AutoEP and AutoTP, and this run has other degrees
LG127 Missing AutoEP\+AutoTP folding metadata in folded checkpoint
LG127 Legacy checkpoint format \(old_moe_load\) is incompatible with AutoEP
    change: convert the checkpoint with `ds_to_universal.py` first
LG034 Expert checkpoint file not found
    title: an expert's file is missing from the checkpoint
LG033 Expert checkpoint file is corrupt
    title: an expert's file lacks a tensor, or has one of another shape
    change: resume from an older checkpoint; if the number of experts or layers changed, convert it
        (`ds_to_universal.py`)
LG031 Checkpoint module state did not match the model outside AutoEP expert
LG127 AutoEP ZeRO-3 partition-native checkpoint metadata did not identify any live expert
LG127 AutoEP with ZeRO Stage 3 checkpointing does not support
LG127 AutoEP expert parameter .* is missing save-time affine map metadata
LG127 AutoEP checkpointing requires a single EP group size
    change: give every `AutoEPMoELayer` the same expert degree
LG127 AutoEP ZeRO-3 checkpoint metadata references expert parameters that are missing
EX014 is not supported for AutoEP with ZeRO Stage 3 checkpoint partitions
LG127 AutoEP ZeRO-3 checkpoints can only be loaded with the same parameter placement
LG127 AutoEP universal expert checkpoint (?:state in|target parameter|tensor)
LG127 ds_autoep_layers (?:entry|metadata)
    title: the checkpoint's description of its AutoEP layers is damaged or was written by a different release
LG144 projection size \d+ should be multiple of TP world size
LG144 AssertionError: Only support self_attn for now ::! domino
    title: Domino supports self-attention only
    change: leave Domino out for cross-attention layers
LG144 deepspeed\.comm (?:failed to initialize!|is not initialized!)
    title: Domino was created before the process groups were initialized
    change: call `deepspeed.init_distributed()` before the model is created
"""
