# SPDX-License-Identifier: Apache-2.0
"""The documented keys of DeepSpeed's JSON, block by block, a line a key: what decides how a model is trained.

What serves training (checkpoints, monitors, profilers, data, autotuning) is in `deepspeed_key_tables_utilities`; both
are read by `deepspeed_keys`. Sources: the fields of DeepSpeed 0.19.8's own pydantic models, and for blocks that it
reads by hand its `constants.py` and `config.py` (a test compares both). Releases: the class bodies at each tag.

A line is `key type` and any of
  `=1.0` the default, as JSON (`=*`: one that JSON cannot say, or a long list)   `was:0.0<0.19.3` the default before
  `ge:0 gt:0 le:1 lt:1` the range, `gt:0@0.19.6` from that release on           `nobool` true is no number here
  `in:a|b` the allowed values (`in:dtype`: any name of a number format), `IN:a|b` whatever their case
  `exact` 8.0 is no whole number here   `filled` no empty text   `raw` never converted
  `>=0.19.6` since, `<0.19.7` gone
  `->key` its successor                 `=>key` the key that it is only another name of
Types: bool, int, number, str, list, dict (free form), block (has a table), blocks (a list of such), maps (names to
such), switch (read by truth), flag (a switch that refuses texts), python (no JSON value fits), any; `?` allows null.
"""

from __future__ import annotations

TABLES: dict[str, str] = {
    "": """
        train_batch_size int? =null gt:0
        train_micro_batch_size_per_gpu int? =null gt:0
        gradient_accumulation_steps int? =null gt:0
        gradient_clipping number =1.0 ge:0 was:0.0<0.19.3
        gradient_allreduce_op str ="mean" IN:mean|sum >=0.19.6
        gradient_predivide_factor number =1.0
        prescale_gradients switch =false
        managed_gradient_accumulation switch =true >=0.19.4
        communication_data_type str? =null IN:fp32|fp16|bf16
        seq_parallel_communication_data_type str? ="fp32" IN:fp32|fp16|bf16 >=0.16.5
        seq_parallel_comm_data_type str? <0.16.5 ->seq_parallel_communication_data_type
        sequence_parallel_size int >=0.15.0
        data_parallel_size int >=0.15.0
        dataloader_drop_last switch =false
        disable_allgather switch =false
        disable_python_gc switch =false >=0.19.8
        dump_state switch =false
        log_level str? =null in:debug|info|warning|error|critical >=0.19.3
        memory_breakdown switch =false
        steps_per_print int? =null was:10<0.15.2
        use_data_before_expert_parallelism switch =false
        vocabulary_size int? =null
        wall_clock_breakdown flag =false
        zero_allow_untested_optimizer switch =false
        zero_force_ds_cpu_optimizer switch =true
        optimizer block
        scheduler block
        zero_optimization block
        bf16 block?
        bfloat16 block ->bf16
        fp16 block
        torch_autocast block >=0.17.2
        data_types block
        activation_checkpointing block
        aio block?
        autotuning block
        checkpoint block
        comet block >=0.14.3
        comms_logger block
        compile block >=0.16.6
        csv_monitor block
        data_efficiency block
        datastates_ckpt any =false >=0.18.1
        expert_parallel block? >=0.19.2
        flops_profiler block
        hybrid_engine block
        pipeline block
        tensor_parallel block >=0.16.4
        tensorboard block
        timers block
        wandb block
        weight_quantization block
        amp dict <0.19.8 ->bf16
        compression_training dict <0.19.7
        curriculum_learning dict <0.19.8 ->data_efficiency
        eigenvalue dict <0.19.8
        elasticity dict <0.19.8
        graph_harvesting any <0.19.8
        nebula dict <0.19.7
        progressive_layer_drop dict <0.19.8
        quantize_training dict <0.19.7
        sparse_attention dict <0.19.7
        sparse_gradients any <0.19.8
    """,
    "optimizer": """
        type str? =null
        params dict? =null
        legacy_fusion switch =false
    """,
    "scheduler": """
        type str? =null
        params dict? =null
    """,
    "zero_optimization": """
        stage int =0 ge:0 le:3
        contiguous_gradients bool =true
        reduce_scatter bool =true
        reduce_bucket_size int =500000000 gt:0@0.19.6 ge:0
        use_multi_rank_bucket_allreduce bool =true
        allgather_partitions bool =true
        allgather_bucket_size int =500000000 ge:0
        overlap_comm bool? =null
        compute_grad_norm bool =true >=0.19.7
        load_from_fp32_weights bool =true
        elastic_checkpoint bool =false
        offload_param block? =null
        offload_optimizer block? =null
        zenflow block? =null >=0.17.5
        sub_group_size int =1000000000 ge:0
        cpu_offload_param bool? =null ->offload_param
        cpu_offload_use_pin_memory bool? =null ->offload_optimizer.pin_memory
        cpu_offload bool? =null ->offload_optimizer
        stage3_prefetch_bucket_size int =50000000 ge:0
        stage3_param_persistence_threshold int =100000 ge:0
        stage3_model_persistence_threshold int =9223372036854775807 ge:0
        stage3_max_live_parameters int =1000000000 ge:0
        stage3_max_reuse_distance int =1000000000 ge:0
        stage3_gather_16bit_weights_on_model_save bool =false
        stage3_module_granularity_threshold int =0 >=0.16.0
        stage3_use_all_reduce_for_fetch_params bool =false >=0.14.3
        stage3_allgather_sequential bool =false >=0.18.5
        stage3_gather_fp16_weights_on_model_save bool =false ->stage3_gather_16bit_weights_on_model_save
        prefetch_bucket_size int =>stage3_prefetch_bucket_size
        param_persistence_threshold int =>stage3_param_persistence_threshold
        model_persistence_threshold int =>stage3_model_persistence_threshold
        max_live_parameters int =>stage3_max_live_parameters
        max_reuse_distance int =>stage3_max_reuse_distance
        gather_16bit_weights_on_model_save bool =>stage3_gather_16bit_weights_on_model_save
        module_granularity_threshold int =>stage3_module_granularity_threshold
        use_all_reduce_for_fetch_params bool =>stage3_use_all_reduce_for_fetch_params
        allgather_sequential bool =>stage3_allgather_sequential
        ignore_unused_parameters bool =true
        legacy_stage1 bool =false
        round_robin_gradients bool =false
        parameter_alignment bool =false >=0.19.7
        zero_hpz_partition_size int =1 ge:0
        zero_quantized_weights bool =false
        zero_quantized_nontrainable_weights bool =false
        zero_quantized_gradients bool =false
        memory_efficient_linear bool =true
        pipeline_loading_checkpoint bool =false
        override_module_apply bool =true
        log_trace_cache_warnings bool =false >=0.16.4
        enable_sanity_checks bool =false >=0.17.6
        save_muon_momentum_buffer_in_memory bool =false >=0.18.9
        leaf_module block ={} >=0.18.0
        mics_shard_size int <0.19.7 ->zero_hpz_partition_size
        mics_hierarchical_params_gather bool <0.19.7
        zeropp_loco_param dict? >=0.16.2 <0.19.8
    """,
    "zero_optimization.offload_optimizer": """
        device str ="none" in:none|cpu|nvme
        nvme_path str? =null
        buffer_count int =4 ge:0
        pin_memory bool =true was:false<0.19.5
        pipeline_read bool =false
        pipeline_write bool =false
        fast_init bool =false
        ratio number =1.0 ge:0 le:1
        super_offload bool =false >=0.18.0
        cpuadam_cores_perc number =0.8 ge:0 le:1 >=0.18.0
    """,
    "zero_optimization.offload_param": """
        device str ="none" in:none|cpu|nvme
        nvme_path str? =null
        buffer_count int =5 ge:0
        buffer_size int =100000000 ge:0
        max_in_cpu int =1000000000 ge:0
        pin_memory bool =true was:false<0.19.5
    """,
    "zero_optimization.leaf_module": """
        classes list =*
        names list =[]
        name_suffixes list =[]
    """,
    "zero_optimization.zenflow": """
        topk_ratio number =0.1 gt:0@0.19.6 lt:1@0.19.6 ge:0 le:1
        select_strategy str ="auto" in:auto|step|epoch
        select_interval any ="auto"
        update_interval any ="auto"
        overlap_step bool =false
        offload bool =false
        auto_ratio number =0.99 ge:0 le:1
        full_warm_up_rounds int =0
        pt_reserved_cores_perc number =0.5 ge:0 le:1 >=0.17.6
        steps_per_epoch int? =null
    """,
    "bf16": """
        enabled bool =false
        immediate_grad_update bool =false
        check_grad_overflow bool =true was:false<0.19.3 >=0.17.1
        bf16_master_weights_and_grads bool =false >=0.18.3
        bf16_optimizer_states bool =false >=0.18.3
    """,
    "fp16": """
        enabled bool =false
        auto_cast bool =false
        loss_scale number =0 ge:0 nobool
        initial_scale_power int =16
        loss_scale_window int =1000 nobool
        hysteresis int =2
        consecutive_hysteresis bool =false
        min_loss_scale int =1 nobool
        fp16_master_weights_and_grads bool =false
    """,
    "torch_autocast": """
        enabled switch =false
        dtype str in:dtype
        lower_precision_safe_modules list
    """,
    "data_types": """
        grad_accum_dtype str? =null in:dtype
        param_dtype str? =null in:dtype >=0.19.2
        buffer_dtype str? =null in:dtype >=0.19.2
        keep_in_fp32_modules any ="auto" >=0.19.8
    """,
    "tensor_parallel": """
        dtype python =*
        autotp_size int =0 raw
        tp_overlap_comm bool =false >=0.16.6
        vocab_parallel_lm_head bool? =null >=0.19.8
        vocab_parallel_ce_backend str ="torch" in:torch|liger >=0.19.8
        tp block ={}
        injection_policy_tuple list? =null
        partition_config block? =null >=0.18.6
        preset_model str? =null >=0.18.6
        keep_module_on_host bool =false
        kernel_inject bool =false
        tensor_parallel block =>tp
        replace_with_kernel_inject bool =>kernel_inject
    """,
    "tensor_parallel.tp": """
        tp_size int =1
        tp_grain_size int =1
        mpu any =null
        tp_group any =null
    """,
    "tensor_parallel.partition_config": """
        use_default_specs switch =true
        layer_specs blocks =[]
        tp_size int =1
        embedding_partition_dim int =1
        lm_head_patterns list =["lm_head","embed_out"]
        strict_mode switch =false
    """,
    "tensor_parallel.partition_config.layer_specs": """
        patterns list =[]
        partition_type str ="column" IN:column|row|skip
        gather_output switch =false
        grad_allreduce switch =false >=0.19.6
        shape list? =null
        partition_dim int? =null
        model_types list? =null
    """,
    "pipeline": """
        stages any ="auto"
        partition str ="best"
        seed_layers switch =false
        activation_checkpoint_interval int =0
        pipe_partitioned flag =true
        grad_partitioned flag =true
        use_reentrant switch =true
    """,
    "compile": """
        deepcompile bool =false
        autoep_non_moe bool =false >=0.19.8
        free_activation bool =false
        free_activation_threshold int =10485760 >=0.18.0
        offload_activation bool =false
        offload_activation_pin_memory bool =true >=0.19.6
        offload_opt_states bool =false
        double_buffer bool =true
        symmetric_memory bool =false
        debug_log bool =false
        offload_parameters bool =false
        sync_before_reduce bool =false
        sync_after_reduce bool =false
        sync_before_allgather bool =false
        sync_after_allgather bool =false
        keep_int_input_tensors bool =true >=0.17.2
        keep_all_input_tensors bool =false >=0.17.2
        passes list? =null in:z1|z3|autosp|autotp >=0.18.9
    """,
}
TABLES["bfloat16"] = TABLES["bf16"]
