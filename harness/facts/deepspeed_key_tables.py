"""The documented keys of DeepSpeed's JSON, block by block, a line a key; read by `deepspeed_keys`.

Sources: the fields of DeepSpeed 0.19.8's own pydantic models (a test compares them), and for blocks it reads by hand,
`runtime/constants.py` and `runtime/config.py`. Releases: the class bodies at each tag.

A line is `key type [>=since] [<gone] [->successor] [=>alias]`; a key with a successor is deprecated or gone, one with
an alias is only another name. Types: bool, int, float, number, str, list, dict (free form), block (has a table of its
own), any; `?` allows null.
"""

from __future__ import annotations

TABLES: dict[str, str] = {
    "": """
        train_batch_size int
        train_micro_batch_size_per_gpu int
        gradient_accumulation_steps int
        gradient_clipping number
        gradient_allreduce_op str >=0.19.6
        gradient_predivide_factor number
        prescale_gradients bool
        managed_gradient_accumulation bool >=0.19.4
        communication_data_type str?
        seq_parallel_communication_data_type str? >=0.16.5
        seq_parallel_comm_data_type str? <0.16.5 ->seq_parallel_communication_data_type
        sequence_parallel_size int >=0.15.0
        data_parallel_size int >=0.15.0
        dataloader_drop_last bool
        disable_allgather bool
        disable_python_gc bool >=0.19.8
        dump_state bool
        log_level str? >=0.19.3
        memory_breakdown bool
        steps_per_print int?
        use_data_before_expert_parallelism bool
        vocabulary_size int
        wall_clock_breakdown bool
        zero_allow_untested_optimizer bool
        zero_force_ds_cpu_optimizer bool
        optimizer block
        scheduler block
        zero_optimization block
        bf16 block
        bfloat16 block ->bf16
        fp16 block
        torch_autocast block >=0.17.2
        data_types block
        activation_checkpointing block
        aio block
        autotuning block
        checkpoint block
        comet block
        comms_logger block
        compile block >=0.16.6
        csv_monitor block
        data_efficiency dict
        datastates_ckpt any >=0.18.1
        expert_parallel block >=0.19.2
        flops_profiler block
        hybrid_engine block
        pipeline block
        tensor_parallel block >=0.16.4
        tensorboard block
        timers block
        wandb block
        weight_quantization dict
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
        type str
        params dict
        legacy_fusion bool
    """,
    "scheduler": """
        type str
        params dict
    """,
    "zero_optimization": """
        stage int
        contiguous_gradients bool
        reduce_scatter bool
        reduce_bucket_size int
        use_multi_rank_bucket_allreduce bool
        allgather_partitions bool
        allgather_bucket_size int
        overlap_comm bool?
        compute_grad_norm bool >=0.19.7
        load_from_fp32_weights bool
        elastic_checkpoint bool
        offload_param block?
        offload_optimizer block?
        zenflow block? >=0.17.5
        sub_group_size int
        cpu_offload_param bool? ->offload_param
        cpu_offload_use_pin_memory bool? ->offload_optimizer.pin_memory
        cpu_offload bool? ->offload_optimizer
        stage3_prefetch_bucket_size int
        stage3_param_persistence_threshold int
        stage3_model_persistence_threshold int
        stage3_max_live_parameters int
        stage3_max_reuse_distance int
        stage3_gather_16bit_weights_on_model_save bool
        stage3_module_granularity_threshold int >=0.16.0
        stage3_use_all_reduce_for_fetch_params bool
        stage3_allgather_sequential bool >=0.18.5
        stage3_gather_fp16_weights_on_model_save bool ->stage3_gather_16bit_weights_on_model_save
        prefetch_bucket_size int =>stage3_prefetch_bucket_size
        param_persistence_threshold int =>stage3_param_persistence_threshold
        model_persistence_threshold int =>stage3_model_persistence_threshold
        max_live_parameters int =>stage3_max_live_parameters
        max_reuse_distance int =>stage3_max_reuse_distance
        gather_16bit_weights_on_model_save bool =>stage3_gather_16bit_weights_on_model_save
        module_granularity_threshold int =>stage3_module_granularity_threshold
        use_all_reduce_for_fetch_params bool =>stage3_use_all_reduce_for_fetch_params
        allgather_sequential bool =>stage3_allgather_sequential
        ignore_unused_parameters bool
        legacy_stage1 bool
        round_robin_gradients bool
        parameter_alignment bool >=0.19.7
        zero_hpz_partition_size int
        zero_quantized_weights bool
        zero_quantized_nontrainable_weights bool
        zero_quantized_gradients bool
        memory_efficient_linear bool
        pipeline_loading_checkpoint bool
        override_module_apply bool
        log_trace_cache_warnings bool >=0.16.4
        enable_sanity_checks bool >=0.17.6
        save_muon_momentum_buffer_in_memory bool >=0.18.9
        leaf_module block >=0.18.0
        mics_shard_size int <0.19.7 ->zero_hpz_partition_size
        mics_hierarchical_params_gather bool <0.19.7
        zeropp_loco_param dict? >=0.16.2 <0.19.8
    """,
    "zero_optimization.offload_optimizer": """
        device str
        nvme_path str?
        buffer_count int
        pin_memory bool
        pipeline_read bool
        pipeline_write bool
        fast_init bool
        ratio number
        super_offload bool >=0.18.0
        cpuadam_cores_perc number >=0.18.0
    """,
    "zero_optimization.offload_param": """
        device str
        nvme_path str?
        buffer_count int
        buffer_size int
        max_in_cpu int
        pin_memory bool
    """,
    "zero_optimization.leaf_module": """
        classes list
        names list
        name_suffixes list
    """,
    "zero_optimization.zenflow": """
        topk_ratio number
        select_strategy str
        select_interval any
        update_interval any
        overlap_step bool
        offload bool
        auto_ratio number
        full_warm_up_rounds int
        pt_reserved_cores_perc number >=0.17.6
        steps_per_epoch int?
    """,
    "bf16": """
        enabled bool
        immediate_grad_update bool
        check_grad_overflow bool
        bf16_master_weights_and_grads bool >=0.18.3
        bf16_optimizer_states bool >=0.18.3
    """,
    "fp16": """
        enabled bool
        auto_cast bool
        loss_scale number
        initial_scale_power int
        loss_scale_window int
        hysteresis int
        consecutive_hysteresis bool
        min_loss_scale int
        fp16_master_weights_and_grads bool
    """,
    "torch_autocast": """
        enabled bool
        dtype str?
        lower_precision_safe_modules list?
    """,
    "data_types": """
        grad_accum_dtype str?
        param_dtype str?
        buffer_dtype str?
        keep_in_fp32_modules any
    """,
    "activation_checkpointing": """
        partition_activations bool
        contiguous_memory_optimization bool
        cpu_checkpointing bool
        number_checkpoints int?
        synchronize_checkpoint_boundary bool
        profile bool
    """,
    "aio": """
        block_size int
        queue_depth int
        intra_op_parallelism int >=0.16.4
        thread_count int <0.16.4 ->intra_op_parallelism
        single_submit bool
        overlap_events bool
        use_gds bool
    """,
    "autotuning": """
        enabled bool
        start_step int?
        end_step int?
        metric_path str?
        arg_mappings dict?
        metric str
        model_info dict?
        results_dir str
        exps_dir str
        overwrite bool
        fast bool
        start_profile_step int
        end_profile_step int
        tuner_type str
        tuner_early_stopping int
        tuner_num_trials int
        model_info_path str?
        mp_size int
        max_train_batch_size int?
        min_train_batch_size int
        max_train_micro_batch_size_per_gpu int
        min_train_micro_batch_size_per_gpu int
        num_tuning_micro_batch_sizes int
    """,
    "checkpoint": """
        tag_validation str
        load_universal bool
        use_node_local_storage bool
        checkpoint_serialization bool
        parallel_write dict
        writer dict?
    """,
    "comet": """
        enabled bool
        samples_log_interval int
        project str?
        workspace str?
        api_key str?
        experiment_name str?
        experiment_key str?
        online bool?
        mode str?
    """,
    "comms_logger": """
        enabled bool
        prof_all bool
        prof_ops list
        verbose bool
        debug bool
    """,
    "compile": """
        deepcompile bool
        autoep_non_moe bool >=0.19.8
        free_activation bool
        free_activation_threshold int >=0.18.0
        offload_activation bool
        offload_activation_pin_memory bool >=0.19.6
        offload_opt_states bool
        double_buffer bool
        symmetric_memory bool
        debug_log bool
        offload_parameters bool
        sync_before_reduce bool
        sync_after_reduce bool
        sync_before_allgather bool
        sync_after_allgather bool
        keep_int_input_tensors bool >=0.17.2
        keep_all_input_tensors bool >=0.17.2
        passes list? >=0.18.9
    """,
    "csv_monitor": """
        enabled bool
        output_path str
        job_name str
    """,
    "expert_parallel": """
        enabled bool
        autoep_size int
        expert_tensor_parallel_size int
        validate_folding_routing bool
        async_split_plan bool
        preset_model str?
        moe_layer_pattern str?
        expert_pattern str?
        router_pattern str?
        use_grouped_mm bool
        disable_triton_grouped_mm bool
        route_norm bool?
        route_scale number
        score_apply str
        combine_impl str
        row_weighting_impl str
        gate_up_impl str
        comm_backend str
        comm_num_sm int
        comm_qp_margin int
        comm_max_tokens_per_rank int
        num_expert_groups int?
        num_limited_groups int?
        score_func str
        top_k any
        load_balance_coeff number?
        routed_scaling_factor any
        expert_w1 str?
        expert_w2 str?
        expert_w3 str?
        num_experts_attr str?
        top_k_attr str?
        has_shared_experts bool?
        shared_experts_pattern str?
        shared_experts_gate_pattern str?
        expert_activation str?
    """,
    "flops_profiler": """
        enabled bool
        recompute_fwd_factor number
        profile_step int
        module_depth int
        top_modules int
        detailed bool
        output_file str?
    """,
    "hybrid_engine": """
        enabled bool
        max_out_tokens int
        inference_tp_size int
        release_inference_cache bool
        pin_parameters bool
        tp_gather_partition_size int
        enable_cuda_graph bool >=0.19.6
    """,
    "pipeline": """
        stages any
        partition str
        seed_layers bool
        activation_checkpoint_interval int
        pipe_partitioned bool
        grad_partitioned bool
        use_reentrant bool
    """,
    "tensor_parallel": """
        dtype any
        autotp_size int
        tp_overlap_comm bool >=0.16.6
        vocab_parallel_lm_head bool? >=0.19.8
        vocab_parallel_ce_backend str >=0.19.8
        tp dict
        injection_policy_tuple any
        partition_config dict? >=0.18.6
        preset_model str? >=0.18.6
        keep_module_on_host bool
        kernel_inject bool
    """,
    "tensorboard": """
        enabled bool
        output_path str
        job_name str
    """,
    "timers": """
        throughput dict
    """,
    "wandb": """
        enabled bool
        group str?
        team str?
        project str
    """,
}
TABLES["bfloat16"] = TABLES["bf16"]
