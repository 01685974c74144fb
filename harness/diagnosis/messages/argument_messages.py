# SPDX-License-Identifier: Apache-2.0
"""Arguments that trainers refuse: argument parsers, trl, LLaMA-Factory, ms-swift, axolotl, Lightning, trackers."""

from __future__ import annotations

MESSAGES = r"""
LG065 (?:Error|Exception|Exit)\b.*?(?:Some (?:specified arguments
    |keys) are not used by the HfArgumentParser: (?P<names>.*))
    title: the script does not know these arguments: {names}
    change: remove them or correct the spelling; `--local_rank` (`--local-rank`) comes from an old launcher: start with
        `torchrun` or `deepspeed --no_local_rank`, or let the script accept it; compare the other names with `--help` of
        the installed version
LG065 (?:Error|Exception|Exit)\b.*?(?:Unknown arguments from config file: (?P<names>.*)|Truthy value expected: got
    |invalid truth value|must contain a YAML mapping|`env` field should be a dict|No YAML config files found)
    title: the script's configuration file has keys or values that the script does not accept
    change: compare the file with the script's arguments (`--help`), and write `true` or `false` for switches
LG298 (?:Error|Exception|Exit)\b.*?(?:(?P<name>Wandb|Trackio|Comet|MLflow|AzureML|Neptune|ClearML|CodeCarbon|DVCLive
    |SwanLab|TensorBoard|DagsHub|Kubeflow|Flyte)Callback requires)
    title: `report_to` names {name}, which is not installed or not set up
    change: install it on every host, or set `report_to="none"`
LG298 * (?:wandb\.errors|wandb\.sdk|mlflow\.exceptions|swanlab\.error|comet_ml\.exceptions)\S*(?:Error|Exception)\b
    |api_key not configured \(no-tty\)|No API key configured|wandb: ERROR|You must call wandb\.init\(\)
    |Logging with `\w+` requires a `logging_dir`|Unsupported logging capability|is not an available tracker
    title: the experiment tracker failed: it has no API key, no network or no project
    change: set WANDB_API_KEY (`wandb login`) on every host, WANDB_MODE=offline without a network, or `report_to="none"`
LG185 (?:Error|Exception|Exit)\b.*?(?:\S+ is not supported, only .* are supported\.$) ::! integration_utils
    |transformers/integrations
    title: `report_to` names a tracker that transformers does not know
    change: use `wandb`, `tensorboard`, `mlflow` or `none`
LG185 (?:Error|Exception|Exit)\b.*?(?:generation_batch_size \(\d+\) must be divisible by
    |'generation_batch_size' and 'steps_per_generation' can not be both|global eval batch size \(.*must be divisible
    |requires at least 2 generations per prompt|batch size per SP group|batch size must be > 1\. KTO
    |the KL term will be equivalent|[Nn]ot enough samples \(\d+\) to fill)
    title: the batch size does not fit the number of generations per prompt or of ranks, or is below this trl trainer's
        minimum
    change: make micro-batch x ranks x `steps_per_generation` a multiple of `num_generations` (2 or more), and use a
        batch size of at least 2 for KTO
LG185 (?:Error|Exception|Exit)\b.*?(?:(?:does not|doesn't) support sequence-dim parallelism
    |auto_find_batch_size is not supported by|`precompute_ref_log_probs=True|sync_ref_model=True
    |truncation_mode='keep_end' is not supported|padding_free=True|[Pp]acking is not (?:supported|compatible)
    |Padding-free training is|`completion_only_loss`|completion_only_loss=True|assistant_only_loss
    |custom data collator is not supported when|When packing is enabled, `max_length`|Unknown loss type
    |Invalid `loss_type`|`loss_weights` must have|`f_divergence_type|Label smoothing must be|router_aux_loss_coef
    |(?:GRPO|RLOO|DPO|SFT|KTO)Trainer does not support|You cannot set both|is not supported with IterableDataset
    |SFTTrainer cannot prepare a dataset that uses|prompt-learning PEFT methods|`use_transformers_continuous_batching`
    |liger_kernel_config=)
    title: this trl trainer does not support this combination of options, or one of the options with this dataset or
        model
    change: turn off the option that the message names (packing, padding-free, precomputed reference log-probs, a custom
        collator)
LG185 (?:Error|Exception|Exit)\b.*?(?:(?:`train_dataset` (?:is required|must be a)|`(?:args|processing_class
    |reward_funcs)` must be provided|`reward_model` is necessary|No reward source provided|No model name or path
    |Please provide `model_name_or_path`|`processing_class` must be either|is_encoder_decoder|teacher model is required
    |Either `datasets` or `dataset_name` must))
    title: the trainer was created without a required argument
    change: pass the argument that the message names
LG185 (?:Error|Exception|Exit)\b.*?(?:You passed (?:\w*model_(?:init_)?kwargs|`model_init_kwargs`) to the .* (?:but
    |already)|your (?:model|teacher_model) is already instantiated)
    title: the script passed `model_init_kwargs` together with a model that is already loaded
    change: pass the model's name to the trainer, or load the model with these arguments yourself and do not pass
        `model_init_kwargs`
LG186 (?:Error|Exception|Exit)\b.*?(?:DeepSpeed ZeRO-3 is enabled and is not compatible with `create_reference_model)
    title: `create_reference_model` copies weights that ZeRO-3 has partitioned
    change: load the reference model a second time with `from_pretrained`, or use peft and `ref_model=None`
LG189 (?:Error|Exception|Exit)\b.*?(?:reward models require `num_labels=1`|The model has `num_labels=)
    title: a reward model must have one label
    change: load it with `AutoModelForSequenceClassification.from_pretrained(..., num_labels=1)`
LG067 (?:Error|Exception|Exit)\b.*?(?:The vLLM server can't be reached at (?P<address>\S+)
    |vLLM server at \S+ (?:does not|has no))
    title: the trainer cannot reach the vLLM server {address}, or the server lacks an endpoint
    change: start `trl vllm-serve` (`vllm serve`) first, on GPUs that the training does not use, with matching versions,
        and check the host and port
LG290 (?:Error|Exception|Exit)\b.*?(?:tensor_parallel_size \(\d+\) must divide world size
    |must be divisible by (?:the )?(?:tensor|pipeline|context|sequence)[ _-]parallel|vllm_tensor_parallel_size .*(?:divi
    |evenly)|expert_parallel_size \(\d+\).*world_size|num_experts\S* not divisible by ep_size
    |WORLD_SIZE \(\d+\) must be divisible by|Cannot evenly shard \d+ experts|The parallel mesh requires \d+ processes
    |(?:world|WORLD)[ _]?(?:size|SIZE) ?\(?\d*\)? .*(?:divisible|multiple))
    title: the number of ranks (or experts) is not divisible by a degree of parallelism
    change: make the world size a multiple of the product of the tensor, pipeline, sequence, context and expert degrees,
        or lower a degree
LG185 (?:Error|Exception|Exit)\b.*?(?:`(?:predict_with_generate|pure_bf16)` is incompatible with DeepSpeed ZeRO-3
    |Cannot use multiple adapters in DeepSpeed ZeRO-3|Cannot use `?predict_with_generate`? and)
    title: this option does not work under ZeRO-3
    change: use ZeRO stage 2, or turn the option off (evaluate with `predict_with_generate` after training; merge
        adapters first)
LG185 (?:Error|Exception|Exit)\b.*?(?:Distributed training does not support (?:layer-wise|lora)|(?:Radio
    |Ratio)-based BAdam does not yet support|Per-layer (?:GaLore|APOLLO) does not)
    title: this memory-saving optimizer does not work with several ranks or with gradient accumulation
    change: use it on one GPU without its layer-wise form, or `adamw_torch` with DeepSpeed
LG185 (?:Error|Exception|Exit)\b.*?(?:(?:Cannot specify `(?:val_size|num_train_epochs)`|`(?:max_samples|mask_history
    |neat_packing|train_on_prompt|use_dora|pissa_init|use_rslora|loraplus_lr_ratio|interleave_probs|use_llama_pro
    |dpo_label_smoothing|predict_with_generate|resume_from_checkpoint|reward_model_type|lora_alpha)`.* (?:is|are|cannot
    |only|will)|Adapter is only valid|Please (?:make sure eval_dataset|enable `predict_with|specify `export_dir)
    |Cannot use LoRA with GaLore|Cannot use GaLore, APOLLO|Cannot use PiSSA|RM and PPO stages|PPO training (?:does|is)
    |PPO only accepts|Turn off `?streaming|Unknown task: |Unknown finetuning type|Unknown load type
    |Unknown mixing strategy|Unknown attention type))
    title: arguments of LLaMA-Factory exclude each other
    change: remove or change the argument that the message names
LG185 (?:Error|Exception|Exit)\b.*?(?:Output directory (?:\S+ )?(?:already exists
    |\(\S+\) already exists) and is not empty)
    title: the output folder exists and is not empty
    change: choose another `output_dir`, set `overwrite_output_dir: true` (`--overwrite_output_dir`), or resume with
        `resume_from_checkpoint`
LG290 (?:Error|Exception|Exit)\b.*?(?:`?num_layers`? \d+ should be divisible by
    |q_len \d+ should be divisible by group size|devices in the Ray cluster \(\d+\) should be greater)
    title: a number of layers, tokens or devices is not divisible by the group size of this method
    change: change `num_layer_trainable`, the cutoff length or the number of workers so that the group size divides it
LG220 (?:Error|Exception|Exit)\b.*?(?:Unsupported torch version detected: (?P<what>.*)|Please update `transformers`
    |DenseMixer is not installed|needs? to be installed to (?:be able to )?(?:return|use)
    |requires `?kernels`? to be installed|blobfile` is required|Please install (?:https?\S+|grokadamw)
    |bitsandbytes is not available, please install|You need to have PEFT library|Polars needs to be installed)
    title: a package that this option needs is missing or has an unsupported version
    change: install the package and version that the message names, on every host
LG034 (?:Error|Exception|Exit)\b.*?(?:DeepSpeed was unable to load the checkpoint\. Ensure you passed in a DeepSpeed com
    patible checkpoint|is not a valid DeepSpeed checkpoint: (?P<path>\S+))
    title: Lightning's DeepSpeed strategy found no DeepSpeed checkpoint at that path
    change: pass the folder (`*.ckpt/`) that the DeepSpeed strategy saved and that contains `checkpoint/`; to load a
        single-file `.ckpt`, set `load_full_weights=True` on the strategy; consolidate a DeepSpeed checkpoint with
        `zero_to_fp32.py`
LG185 (?:Error|Exception|Exit)\b.*?(?:DeepSpeed handles gradient clipping automatically within the optimizer)
    title: the script clips gradients through Fabric, but DeepSpeed clips them inside its optimizer
    change: set `gradient_clipping` in the DeepSpeed configuration, and do not call `clip_gradients`
LG185 (?:Error|Exception|Exit)\b.*?(?:`precision='?(?P<value>[^')]*)'?\)?` is not supported in DeepSpeed)
    title: Lightning's DeepSpeed strategy does not support the precision {value}
    change: use `32-true`, `16-mixed`, `bf16-mixed`, `16-true` or `bf16-true`
LG185 (?:Error|Exception|Exit)\b.*?(?:DeepSpeedStrategy\.save_checkpoint\(\.\.\., \w+=\.\.\.\)` is not supported)
    title: this argument of `save_checkpoint` does not work with DeepSpeed, which writes the files itself
    change: leave `storage_options` and `filter` out
LG013 (?:Error|Exception|Exit)\b.*?(?:selected device indices .* don't match the local rank values
    |You requested (?:to find \d+ devices|gpu: ).*(?:only|no visible)|But your machine only has
    |GPUs requested but none are available|No supported gpu backend found|Device ID's \(GPU\) must be unique)
    title: the script requested GPUs that are not visible on this host
    change: set `devices` to at most the number of visible GPUs (`nvidia-smi`, CUDA_VISIBLE_DEVICES), and check that
        torch is a CUDA build
LG154 (?:Error|Exception|Exit)\b.*?(?:number of tasks per node configured in SLURM|You set `--ntasks=\d+` in your SLURM
    |number of nodes configured in SLURM|You set `(?:devices|num_nodes)=\d+` in Lightning)
    title: Lightning's `devices` and `num_nodes` differ from the Slurm job's tasks per node and number of nodes
    change: set Slurm's `--ntasks-per-node` to `devices` and `--nodes` to `num_nodes`, and start with `srun`
LG182 (?:Error|Exception|Exit)\b.*?(?:Training with multiple optimizers is only supported with manual optimization)
    change: return one optimizer from `configure_optimizers`, since DeepSpeed accepts only one
LG191 (?:Error|Exception|Exit)\b.*?(?:`?ModelCheckpoint\(monitor='?(?P<name>[^'`]*)'?\)`? could not find the monitored k
    ey|Early stopping conditioned on metric `(?P<name2>[^`]*)`)
    title: the metric `{name}{name2}` that a callback monitors was never logged
    change: log it under this name (`self.log("{name}{name2}", value)`), or monitor a metric that the message lists
LG045 (?:Error|Exception|Exit)\b.*?(?:within local rank has zero length
    |Skipping the `training_step` by returning None in distributed)
    title: a rank has no batch, or its `training_step` returned None, while other ranks train
    change: give every rank the same number of batches (`drop_last`, more data), and return a loss in each step
LG032 (?:Error|Exception|Exit)\b.*?(?:Trying to restore (?:optimizer
    |learning rate scheduler) state but checkpoint contains only the model)
    title: the checkpoint has weights but no optimizer or scheduler state, so Lightning cannot resume from it
    change: load the weights before training (`load_from_checkpoint`, `load_state_dict`) instead of passing `ckpt_path`
LG216 (?:Error|Exception|Exit)\b.*?(?:Lightning can't create new processes if CUDA is already initialized)
    title: the process used CUDA before Lightning forked the ranks
    change: do not call `torch.cuda.*` before `fit`, or use `strategy="deepspeed"` started as a script (not
        `ddp_notebook`)
LG216 (?:Error|Exception|Exit)\b.*?(?:(?:CUDA|\w+) has been initialized before the `notebook_launcher`
    |Could not start distributed process\. Libraries known
    |`?Accelerator`? should only be initialized inside your training function)
    title: CUDA was used in the notebook before `notebook_launcher` forked the ranks
    change: restart the kernel, and create the Accelerator, the model and everything on the GPU inside the function that
        is launched
LG089 (?:Error|Exception|Exit)\b.*?(?:You passed a `\S+` object .* to a `\S+` Trainer\. Please switch to a single impor
    t style)
    title: the script mixes objects of `lightning` and of `pytorch_lightning`
    change: import everything from `lightning.pytorch`, or everything from `pytorch_lightning`
LG185 * MisconfigurationException: .*
    title: Lightning refused the configuration of its Trainer or module
    change: change the argument that the message names
LG184 (?:Error|Exception|Exit)\b.*?(?:Passing in an FP8 configuration requires|Using `fp8` precision requires
    |FP8 is not available on this machine|TransformerEngine is not available|MS-AMP is not available
    |(?:Transformer ?Engine|TransformersEngine|MSAMP|torchao) (?:was selected, but )?(?:it )?is not installed)
    title: FP8 was requested, but its package is missing or the GPU does not support it
    change: install transformer-engine (or torchao) for this torch, or set `mixed_precision: bf16`
LG186 (?:Error|Exception|Exit)\b.*?(?:You must initialize the accelerate state by calling)
    title: the script used accelerate's logger before it created the Accelerator
    change: create `Accelerator()` (or `PartialState()`) before the first log line
LG034 (?:Error|Exception|Exit)\b.*?(?:Number of custom checkpoints in folder .* does not match the number of registere
    d objects)
    title: the checkpoint has a different number of custom objects than the script registered
    change: call `register_for_checkpointing` for the same objects in the same order as when the checkpoint was saved
LG183 (?:Error|Exception|Exit)\b.*?(?:(?:We need|please pass along) an `?offload_(?:dir|folder)`?
    |model submodule will be offloaded to disk|passing a string for `device_map`|does not support `device_map=
    |Passing along a `device_map` requires)
    title: `device_map` would offload layers without an offload folder, or has a value that is not supported here
    change: under DeepSpeed remove `device_map` and use ZeRO-3 with `offload_param`; without DeepSpeed pass
        `offload_folder`
LG184 (?:Error|Exception|Exit)\b.*?(?:You can only pass one `(?P<name>\w+)` in `kwargs_handlers?`)
    title: `kwargs_handlers` has more than one `{name}`
    change: pass only one
LG138 (?:Error|Exception|Exit)\b.*?(?:Sequence parallelism does not support attention layers|`(?:cp_size
    |sp_size) ?> ?1` specified|Context parallelism does not support|cp_size>1` requires FSDP2)
    title: sequence or context parallelism does not support this model or backend
    change: use `sp_backend="deepspeed"` with full causal attention (`sdpa` or `flash_attention_2`) and without
        recurrent layers, or turn sequence parallelism off
LG196 (?:Error|Exception|Exit)\b.*?(?:`?layers_(?:to_transform|pattern)`? cannot be used
    |When `layers_pattern` is specified|should be a positive integer value but the value passed
    |Unknown initialization init_lora_weights|`?loftq_config`? must be|lora_bias=|lora\.\w+ does not work with
    |does not support (?:Ve|Do|KaS|a)L?o?RA|`r` should be a positive|rank \d+ is larger than the weight
    |target_parameters` must be|The chosen rank)
    title: `LoraConfig` has values that conflict with each other or that the target layers do not support
    change: change the argument of `LoraConfig` that the message names
LG199 (?:Error|Exception|Exit)\b.*?(?:(?:Following adapter\(s\)
    |Adapter(?:\(s\))?(?: with name)?) \S+ (?:could not be found|not found|does not exist|already exists)
    |missing required keys: |Invalid task type: |Expected target PEFT class|Multiple active adapters detected)
    title: the adapter's name or type does not match the adapters of this model
    change: compare the name with `model.peft_config`, add each name once, and use the PEFT class of the adapter's
        `task_type`
LG118 (?:Error|Exception|Exit)\b.*?(?:Invalid (?:learning rate|beta parameter|epsilon value|weight_decay value|momentum
    |eps|beta)\b.*:|Betas \S+ must be in range|lr_end \(\S+\) must be smaller|requires `num_(?:warmup|training)_steps`
    |One of min_lr or min_lr_rate|Cannot combine manual `lr`|`warmup_init=True` requires
    |Either num_training_steps or num_stable_steps)
    title: an argument of the optimizer or scheduler is out of range or missing
    change: correct the argument that the message names: the learning rate must be at least 0, the betas below 1, and
        the scheduler needs its number of steps
"""
