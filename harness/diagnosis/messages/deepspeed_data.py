# SPDX-License-Identifier: Apache-2.0
"""Messages of deepspeed/runtime/data_pipeline and of rollouts (0.14.5 to 0.19.8)."""

from __future__ import annotations

MESSAGES = r"""
UT008 Curriculum learning is enabled, curriculum_metrics must be specified
LG134 Curriculum learning (?:requires the config|with \w+ schedule requires the schedule_config)
    title: a curriculum lacks a key that its schedule needs
LG134 Unsupported (?:curriculum|random LTD) schedule type
    title: `schedule_type` names a schedule that curriculum learning or random layer-token dropping does not have
    change: set `schedule_type` to `fixed_linear`, `fixed_root`, `fixed_discrete` or `custom` (random-LTD:
        `fixed_linear`)
LG134 random_ltd_layer_num \S+ must be
    title: `random_ltd_layer_num` differs from the number of layers in `random_ltd_layer_id` that the model has
LG134 ValueError: not yet support$ ::! deepspeed/runtime/engine
    title: `layer_token_lr_schedule` of random layer-token dropping is not implemented
    change: set `random_ltd.layer_token_lr_schedule.enabled: false`
LG134 * ^NotImplementedError$ ::$ data_pipeline/data_routing
    title: random layer-token dropping does not support this kind of model
    change: set `random_ltd.model_type` to `encoder` or `decoder` and the schedule to `fixed_linear`, or switch it off
LG134 * ^AssertionError$ ::$ curriculum_scheduler\S* __init__
    title: the lists `difficulty` and `max_step` of a `fixed_discrete` curriculum are empty or of different length
    change: give `difficulty` one entry more than `max_step`
LG134 * ^AssertionError$ ::$ runtime/engine\S* random_ltd_initialize
LG136 metric_dtype \S+ not supported
LG136 metric_(?:function must return a tensor|function result dtype|type \S+ not implemented)
LG136 The number of samples in map result files are not correct
LG136 * (?:all_gather|recv) failed ::! data_analyzer
LG136 * all_gather did not return the same sizes
LG136 * only rank 0 can write to file
LG136 files \S+ are not identical ::! data_analyzer
LG136 * ^AssertionError$ ::$ data_analyzer
    title: the files of the map workers do not cover the metrics of all samples
LG134 no sample to consume
    title: the data sampler was given no samples
    change: check that the dataset is not empty on this rank
LG134 data_parallel_rank should be smaller than data size
    title: the data sampler was given a rank beyond the number of data-parallel ranks
    change: give the sampler the rank and size of the data-parallel group
LG134 * ^AssertionError$ ::$ data_sampler
    title: the data sampler was given no micro-batch size or no data-parallel ranks
LG135 ValueError: \S+ not supported\. Supported types ::! indexed_dataset
LG135 Index file doesn't match expected format
LG135 * IndexError: index out of range ::! indexed_dataset
LG135 Slices into indexed_dataset must be contiguous
    change: read single rows, or slices of step 1
LG135 Zero-sized file: ::! indexed_dataset
    title: a file of an indexed dataset is empty
LG135 * ^AssertionError$ ::$ indexed_dataset
    title: the index of an indexed dataset has an unsupported version or dtype
LG137 not enough datapoints to create a single sample per dataloader
    title: `dynamic_batching` found fewer samples within its limits than there are data-parallel ranks
LG137 size of microbatch exceeds max tokens ::! variable_batch_size
    title: a sample is longer than `max_tokens`
LG137 Unknown scaling method ::! variable_batch_size
    change: set `lr_scaling_method` to `linear`, `sqrt` or `none`
LG137 padding dataloader_padding_fn must be provided
LG137 some samples are longer than the computed max seqlen
LG137 Unknown type for lr_scheduler_or_optimizer
LG137 Dynamic batching is not enabled in the config
    change: set `data_efficiency.data_sampling.dynamic_batching.enabled: true`
LG137 sample_seqlen_fn must be provided if dataset_seqlens is not
LG137 Seqlens size does not match the input dataset size
LG137 * ^AssertionError$ ::$ variable_batch_size_and_lr
    title: `dynamic_batching` has an unknown `sequence_picking_order`, or batches that cannot be divided evenly over the
        ranks
    change: set `sequence_picking_order` to `random`, `seqlen` or `dataloader`
LG141 Unable to retake inference workspace
    title: the device has no memory left for the hybrid engine's inference workspace, which was released before
    change: lower `hybrid_engine.max_out_tokens` or the generation batch, or set `release_inference_cache: false`
LG141 HybridEngine CUDA graph: generation exceeded the declared length
LG141 Shared prefill (?:does not support|requires HybridEngine)
LG142 Shared prefill (?:requires (?!rebuilding)|input batch does not match|did not reduce)
LG142 hybrid_engine rollout needs both student_engine and tokenizer
LG142 Unknown rollout engine ::! rollout
LG142 (?:prompt_ids|input_ids) must be 2-D ::! rollout
LG142 (?:prompt_attention_mask|attention_mask) shape .* does not match ::! rollout
LG142 response_start_idx must be 1-D
LG142 max_(?:batch_size|new_tokens) must be positive ::! rollout
LG142 request must be a ContinuousBatchRequest
LG142 duplicate request_id: ::! rollout
LG142 finished request is not active ::! rollout
LG142 The tokenizer must define pad_token_id or eos_token_id
    title: the tokenizer has neither a padding nor an end token
    change: set `tokenizer.pad_token`
LG142 continuous (?:batching|CUDA graph|prefill|_cache) ::! rollout
LG142 continuous_cache_capacity must
LG142 rollout (?:input_ids|response_start_idx) (?:and|must)
LG143 logits must be 3-D \[batch, sequence_length ::! rollout
LG143 logits batch and sequence dimensions must match input_ids ::! rollout
LG143 (?:student_logits and teacher_logits must have matching|response_mask shape must match logits) ::! rollout
LG143 (?:beta must be in \[0, 1\]|temperature must be positive|teacher_top_k must) ::! rollout/opsd
LG143 pointwise_clip must be non-negative ::! rollout
"""
