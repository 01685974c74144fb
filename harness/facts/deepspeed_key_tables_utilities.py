# SPDX-License-Identifier: Apache-2.0
"""The documented keys of DeepSpeed's JSON, continued: blocks that serve training. The lines are explained in
`deepspeed_key_tables`.
"""

from __future__ import annotations

TABLES: dict[str, str] = {
    "activation_checkpointing": """
        partition_activations switch =false
        contiguous_memory_optimization switch =false
        cpu_checkpointing switch =false
        number_checkpoints int? =null
        synchronize_checkpoint_boundary switch =false
        profile switch =false
    """,
    "aio": """
        block_size int =1048576 exact
        queue_depth int =8 exact
        intra_op_parallelism int =1 exact >=0.16.4
        thread_count int <0.16.4 ->intra_op_parallelism
        single_submit flag =false
        overlap_events flag =true
        use_gds switch =false >=0.15.0
    """,
    "autotuning": """
        enabled switch =false
        start_step int?
        end_step int?
        metric_path str? =null
        arg_mappings dict? =null
        metric str ="throughput"
        model_info block? =null
        results_dir str ="autotuning_results" filled
        exps_dir str ="autotuning_exps" filled
        overwrite switch =true
        fast switch =true
        start_profile_step int =3
        end_profile_step int =5
        tuner_type str ="gridsearch" in:gridsearch|random|model_based
        tuner_early_stopping int =5
        tuner_num_trials int =50
        model_info_path str? =null
        mp_size int =1
        max_train_batch_size int? =null
        min_train_batch_size int =1
        max_train_micro_batch_size_per_gpu int =1024
        min_train_micro_batch_size_per_gpu int =1
        num_tuning_micro_batch_sizes int =3
    """,
    "autotuning.model_info": """
        profile switch =false
        num_params int? =null
        hidden_size int? =null
        num_layers int? =null
    """,
    "checkpoint": """
        tag_validation str ="WARN" IN:Ignore|Warn|Fail
        load_universal switch =false
        use_node_local_storage switch =false
        checkpoint_serialization switch =true >=0.17.1
        parallel_write block ={}
        writer block? =null >=0.17.1
    """,
    "checkpoint.parallel_write": """
        pipeline_stage flag =false
    """,
    "checkpoint.writer": """
        type str? ="FAST" IN:mock|python|fast
        io_buffer_size int =67108864
        io_buffer_double switch =true
        show_statistics switch =false
        data_parallel str? =null IN:replica|socket|machine
        decoupled switch =false
        io_multiplier int =1
    """,
    "comet": """
        enabled bool =false
        samples_log_interval int =100
        project str? =null
        workspace str? =null
        api_key str? =null
        experiment_name str? =null
        experiment_key str? =null
        online bool? =null
        mode str? =null
    """,
    "comms_logger": """
        enabled bool =false
        prof_all bool =true
        prof_ops list =[]
        verbose bool =false
        debug bool =false
    """,
    "csv_monitor": """
        enabled bool =false
        output_path str =""
        job_name str ="DeepSpeedJobName"
    """,
    "data_efficiency": """
        enabled switch =false
        seed int =1234
        data_sampling block
        data_routing block
    """,
    "data_efficiency.data_routing": """
        enabled switch =false
        random_ltd block
    """,
    "data_efficiency.data_routing.random_ltd": """
        enabled switch =false
        layer_token_lr_schedule block
        total_layer_num int
        random_ltd_layer_num int
        random_ltd_layer_id list
        model_mask_name str?
        model_type str
        hidden_state_order str
        micro_batch_size int
        global_batch_size int
        sample_idx any
        attention_mask any
        random_ltd_schedule block
    """,
    "data_efficiency.data_routing.random_ltd.layer_token_lr_schedule": """
        enabled switch =false
        total_layer_tokens int
        warmup_type str
        warmup_layer_tokens int
    """,
    "data_efficiency.data_routing.random_ltd.random_ltd_schedule": """
        min_value int
        max_value int
        schedule_type str in:fixed_linear
        schedule_config block
    """,
    "data_efficiency.data_routing.random_ltd.random_ltd_schedule.schedule_config": """
        require_steps int
        seq_per_step int
    """,
    "data_efficiency.data_sampling": """
        enabled switch =false
        num_epochs int =1000
        num_workers int =0
        pin_memory switch =false
        curriculum_learning block
        dynamic_batching block >=0.16.5
    """,
    "data_efficiency.data_sampling.curriculum_learning": """
        enabled switch =false
        data_cluster_path str
        curriculum_metrics maps
    """,
    "data_efficiency.data_sampling.curriculum_learning.curriculum_metrics": """
        index_to_sample_path str
        index_to_metric_path str
        difficulty_type str in:value|percentile
        clustering_type str in:single_cluster|schedule_based
        min_difficulty number
        max_difficulty number
        schedule_type str in:fixed_linear|fixed_root|fixed_discrete|custom
        schedule_config block
    """,
    "data_efficiency.data_sampling.curriculum_learning.curriculum_metrics.schedule_config": """
        total_curriculum_step int
        difficulty_step int
        root_degree number
        difficulty list
        max_step list
    """,
    "data_efficiency.data_sampling.dynamic_batching": """
        enabled switch =false
        metrics_path str
        lr_scaling_method str ="linear" in:linear|sqrt|none
        min_batch_size int =1
        max_batch_size int =null
        sequence_picking_order str ="dataloader" in:random|seqlen|dataloader
        max_tokens int
        verbose switch =false
    """,
    "expert_parallel": """
        enabled switch =false
        autoep_size int =1
        expert_tensor_parallel_size int =1 >=0.19.3
        validate_folding_routing flag =false >=0.19.3
        async_split_plan flag =false >=0.19.8
        preset_model str? =null
        moe_layer_pattern str? =null
        expert_pattern str? =null
        router_pattern str? =null
        use_grouped_mm switch =true
        disable_triton_grouped_mm switch =false >=0.19.4
        route_norm bool? =null
        route_scale number =1.0
        score_apply str ="auto" in:auto|pre|post
        combine_impl str ="auto" in:auto|weighted_sum|fused_weighted_sum|legacy_bmm
        row_weighting_impl str ="auto" in:auto|eager|fused >=0.19.8
        gate_up_impl str ="separate" in:separate|fused >=0.19.8
        comm_backend str ="comm" in:comm|deepep >=0.19.7
        comm_num_sm int =12 >=0.19.7
        comm_qp_margin int =4 >=0.19.7
        comm_max_tokens_per_rank int =0 >=0.19.7
        num_expert_groups int? =null
        num_limited_groups int? =null
        score_func str ="auto" in:auto|softmax|sigmoid
        top_k any ="auto"
        load_balance_coeff number? =null
        routed_scaling_factor any ="auto"
        expert_w1 str? =null
        expert_w2 str? =null
        expert_w3 str?
        num_experts_attr str? =null
        top_k_attr str? =null
        has_shared_experts flag? =null
        shared_experts_pattern str? =null
        shared_experts_gate_pattern str? =null
        expert_activation str? =null >=0.19.8
    """,
    "flops_profiler": """
        enabled flag =false
        recompute_fwd_factor number =0.0
        profile_step int =1
        module_depth int =-1
        top_modules int =1
        detailed switch =true
        output_file str? =null
    """,
    "hybrid_engine": """
        enabled bool =false
        max_out_tokens int =512 gt:0@0.19.7
        inference_tp_size int =1
        release_inference_cache bool =false
        pin_parameters bool =true
        tp_gather_partition_size int =8
        enable_cuda_graph bool =false >=0.19.6
    """,
    "tensorboard": """
        enabled bool =false
        output_path str =""
        job_name str ="DeepSpeedJobName"
    """,
    "timers": """
        throughput block
    """,
    "timers.throughput": """
        enabled bool =true
        synchronized bool =true
    """,
    "wandb": """
        enabled bool =false
        group str? =null
        team str? =null
        project str ="deepspeed"
    """,
    "weight_quantization": """
        enabled bool =true
        num_bits int =8
        q_type str ="symmetric" in:symmetric|asymmetric
        q_groups int =1
        quantized_initialization dict ={}
        post_init_quant dict ={}
    """,
}
