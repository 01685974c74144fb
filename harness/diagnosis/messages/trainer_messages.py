# SPDX-License-Identifier: Apache-2.0
"""Messages of the Trainer of transformers and of trl's trainers."""

from __future__ import annotations

MESSAGES = r"""
LG180 values that mismatch TrainingArguments +values:(?: \| )?(?P<pairs>.*?)(?: \| The easiest|$)
    title: the DeepSpeed JSON and the TrainingArguments have different values for the same setting: {pairs}
    change: write `"auto"` for these keys in the DeepSpeed JSON, so that they take the arguments' values, or give both
        the same value
LG180 ^- ds (?P<key>\S+?)=(?P<json>\S+) vs hf (?P<arg>\S.*?)=(?P<value>\S+)$
    title: the DeepSpeed JSON has {key}={json}, but the argument {arg} is {value}
    change: write `"auto"` for `{key}` in the DeepSpeed JSON, or give both the same value
LG182 --adafactor was passed, but also found `optimizer` configured in the DeepSpeed config
    title: Adafactor was requested, but the DeepSpeed JSON also has an `optimizer`
    change: remove `optimizer` from the JSON, or drop the argument that requests Adafactor
LG182 Found `optimizer` configured in the DeepSpeed config, but no `scheduler`
    title: the DeepSpeed JSON has an `optimizer` but no `scheduler`, and the installed transformers needs both
    change: add a `scheduler` with `auto` values to the JSON, or remove `optimizer` from it
LG182 Passing `optimizers` is not allowed if (?:Fairscale, )?(?:Deepspeed|PyTorch FSDP)
    title: the script passed `optimizers` to the Trainer, which does not support them under DeepSpeed or FSDP
    change: set `optimizer` in the DeepSpeed JSON or the `optim` argument, or override `create_optimizer`
LG034 \[deepspeed\] failed to resume from checkpoint (?P<path>\S+)
    title: DeepSpeed found no complete checkpoint in {path}
    change: resume from a folder with `global_stepN` and `latest`, complete on every host (with `save_only_model` the
        Trainer saves neither); to start from the weights alone, pass the folder as the model
LG034 (?:Can't|Cannot) find a valid checkpoint at (?P<path>\S+)
    title: {path} is not a DeepSpeed checkpoint: it has no `global_stepN` folder
    change: set `resume_from_checkpoint` to a `checkpoint-N` folder that was saved with DeepSpeed (without
        `save_only_model`), or start from the weights in this folder: pass the folder as `model_name_or_path` instead of
        resuming
LG034 No valid checkpoint found in output directory \((?P<path>[^)]*)\)
    title: `resume_from_checkpoint` is true, but {path} has no `checkpoint-N` folder
    change: give the path of a checkpoint, or leave `resume_from_checkpoint` out in the first run; all hosts must see
        the folder
LG034 Checkpoint found at \S+ is only supported when using PyTorch FSDP
    title: the checkpoint was saved with FSDP, and DeepSpeed cannot resume it
    change: resume with FSDP, or export its weights and start from them
LG183 DeepSpeed Zero-3 is not compatible with (?:`?low_cpu_mem_usage=True`? or with )?passing a `?device_map
    title: `device_map` (or `low_cpu_mem_usage=True`) conflicts with ZeRO-3, which places the weights itself
    change: remove `device_map` and `low_cpu_mem_usage` from `from_pretrained`, or use ZeRO stage 2 (quantized models:
        `device_map={"": local_rank}` and stage 2)
LG183 Using a `device_map`(?:, `tp_plan`)?.* requires `accelerate`
    |Using `low_cpu_mem_usage=True` or a `device_map` requires
    title: `device_map` or `low_cpu_mem_usage` needs accelerate
    change: `pip install accelerate`, or leave them out
LG197 You cannot perform fine-tuning on purely quantized models
    title: the model has only quantized weights, which cannot be trained
    change: add adapters before the Trainer is created (`get_peft_model(model, LoraConfig(...))`), or load the model
        without quantization
LG197 is quantized with \S+ but that quantization method do(?:es)? not support training
    change: use bitsandbytes (4 or 8 bit) with LoRA, or the model without quantization
LG197 You cannot fine-tune quantized model with `torch\.compile\(\)`
    change: leave `torch_compile` out for a quantized model
LG197 The model you want to train is loaded in 8-bit precision
    change: add adapters with peft, and install `bitsandbytes>=0.37`
LG185 ZeRO inference only makes sense with ZeRO Stage 3
    title: the script only evaluates or predicts, and for that the Trainer accepts DeepSpeed only at ZeRO stage 3
    change: set `zero_optimization.stage: 3`, or evaluate without `--deepspeed`
LG185 `?auto_find_batch_size`? isn't supported yet with DeepSpeed Zero-3|doesn't support `auto_find_batch_size`
    title: `auto_find_batch_size` does not work with DeepSpeed ZeRO-3
    change: set `auto_find_batch_size=False` and a micro-batch size that fits
LG185 can't be used with `save_only_model` along with `load_best_model_at_end`
    title: under DeepSpeed, `load_best_model_at_end` needs the whole checkpoint, which `save_only_model` leaves out
    change: set one of the two to False
LG185 load_best_model_at_end requires the save and eval strategy to match
    title: `load_best_model_at_end` needs the same strategy for saving and evaluation
    change: set `save_strategy` and `eval_strategy` (`evaluation_strategy` before 4.41) to the same value, or
        `load_best_model_at_end=False`
LG185 load_best_model_at_end requires the saving steps to be a (?:round )?multiple of the evaluation steps
    title: `load_best_model_at_end` needs `save_steps` to be a multiple of `eval_steps`
    change: set `save_steps` to a multiple of `eval_steps`
LG185 Using --(?:fsdp|sharded_ddp) xxx together with --deepspeed is not possible
    change: give `--deepspeed` or `--fsdp`, not both; also check accelerate's configuration file
LG185 Tried to use an already configured `Accelerator` or `PartialState` that was not initialized for DeepSpeed
    title: an Accelerator without DeepSpeed was created before TrainingArguments with `deepspeed`
    change: create TrainingArguments first, or start with `accelerate launch --use_deepspeed`, or set
        `use_configured_state: False`
LG185 num_steps` is set but `gradient_accumulation_steps` is greater than 1
    title: gradient accumulation is set twice: in `accelerator_config` and in the TrainingArguments
    change: set `gradient_accumulation_steps` in one of them
LG185 trainer_config_process\(\) wasn't called yet
    title: code read the Trainer's DeepSpeed configuration before the Trainer filled it in
    change: create TrainingArguments with `deepspeed=...` before the model and the Trainer
LG185 sweeps with deepspeed, `args\.deepspeed` must be set
    change: pass `deepspeed=...` in TrainingArguments for the sweep
LG185 The train_dataset does not implement __len__|max_steps must be set to a positive value if dataloader does not have
    title: the training data has no length (it is iterable), so the number of steps is unknown
    change: set `max_steps`
LG185 At most one of fp16 and bf16 can be True
    change: set `fp16` or `bf16`, not both
LG185 (?:evaluation|logging) strategy \S+ requires (?:either )?non-zero|requires a positive value for `steps`
    change: set `eval_steps`, `save_steps` or `logging_steps` to a positive number, or the strategy to `no` or `epoch`
LG185 warmup_ratio must lie in range|warmup_steps must be of type int|Expected value warmup_steps >= 0
    change: give a ratio between 0 and 1, or a number of steps
LG185 dataloader_prefetch_factor can only be set when data is loaded in a different process
    change: set `dataloader_num_workers` to 1 or more, or leave `dataloader_prefetch_factor` out
LG191 but you didn't pass an `eval_dataset` to `Trainer`|Trainer: evaluation requires an eval_dataset
    title: evaluation is on, but the Trainer has no `eval_dataset`
LG191 metric_for_best_model` must be provided|The `metric_for_best_model` training argument is set to
    title: the evaluation does not report the metric that `metric_for_best_model` names
    change: use a key that `compute_metrics` returns or `eval_loss` (the model then needs `labels` in the evaluation),
        and give an `eval_dataset`
LG191 KeyError: 'eval_(?P<metric>\w+)' ::! transformers/trainer
    title: `metric_for_best_model` names `eval_{metric}`, which the evaluation does not report
    change: use a key that `compute_metrics` returns, or `eval_loss` (the model then needs `labels` in the evaluation)
LG191 EarlyStoppingCallback requires
    change: set `metric_for_best_model`, `eval_strategy` and `load_best_model_at_end=True` for early stopping
LG189 The model did not return a loss from the inputs
    title: the model returned no loss, most often because the batch has no labels
    change: add `labels` to the batches (the collator of the task creates them), or use a model class with a head for
        the task
LG189 No columns in the dataset match the model's forward method signature
    title: no column of the dataset is an argument of the model's `forward`
    change: tokenize first (`input_ids`, `labels`), or set `remove_unused_columns=False` where the collator does it;
        with a wrapped model (peft, a chat model) set `label_names`
LG189 The batch received was empty, your model won't be able to train on it
    title: a batch was empty, most often because none of its columns is an argument of the model's `forward`
    change: tokenize the data, or set `remove_unused_columns=False` if you use your own collator
LG189 cannot be used as is for training: it only computes hidden states
    change: load it with a class that has a head, such as `AutoModelForCausalLM`
LG081 Calculated loss must be on the original device
    title: the loss was computed on a different device than the rank's
    change: do not load the model with `device_map="auto"`, and compute the loss on the model's device
LG089 (?:Using the `Trainer` with `PyTorch` requires `accelerate>=
    |--deepspeed requires Accelerate to be installed: `pip install '?accelerate>?=?)(?P<version>[\d.]*)
    title: accelerate is missing, or older than this transformers needs: {version}
    change: `pip install -U accelerate` in the ranks' environment on every host, to at least the version that the
        message names
LG089 (?:equires|need to have|require) ?(?:Accelerate version )?`?[Aa]ccelerate`? ?>=? ?v?(?P<version>[\d.]+)
    |requires accelerate>(?P<newer>[\d.]+)
    title: this transformers needs a newer accelerate for the requested setting
    change: `pip install -U accelerate` on every host
LG089 `non_blocking` is only supported in accelerate v0\.30\.0 and above
    change: `pip install -U accelerate` (0.30 or later)
LG089 (?:Seq2Seq)?TrainingArguments\.__init__\(\) got an unexpected keyword argument '(?:evaluation_strategy)'
    title: this transformers has `eval_strategy` instead of `evaluation_strategy` (removed in 4.51)
    change: write `eval_strategy`, or install a transformers before 4.51
LG089 TrainingArguments\.__init__\(\) got an unexpected keyword argument 'eval_strategy'
    title: this transformers is older than 4.41, which renamed `evaluation_strategy` to `eval_strategy`
    change: write `evaluation_strategy`, or install transformers 4.41 or later
LG089 (?P<class>\w*(?:TrainingArguments|Config))\.__init__\(\) got an unexpected keyword argument '(?P<name>\w+)'
    title: the installed `{class}` has no argument `{name}`: its package is older or newer than the script expects
    change: install the version of transformers, trl or peft that the script was written for, or leave `{name}` out
LG089 (?P<class>\w*Trainer)\.__init__\(\) got an unexpected keyword argument 'tokenizer'
    title: this `{class}` takes `processing_class` instead of `tokenizer` (trl since 0.12)
    change: pass `processing_class=tokenizer`, or install a trl before 0.12
LG089 (?P<class>\w*Trainer)\.__init__\(\) got an unexpected keyword argument '(?P<name>\w+)'
    title: the installed version of `{class}` does not know the argument `{name}`
    change: in newer trl pass it in the trainer's configuration (`SFTConfig`, `DPOConfig`), or install the version that
        the script was written for
LG089 (?P<class>\w*Trainer)\.(?P<method>compute_loss|training_step|log|evaluation_loop|_save_checkpoint
    |create_optimizer|_get_train_sampler|get_batch_samples|_maybe_log_save_evaluate|_wrap_model
    |prediction_step)\(\) (?:got an unexpected keyword argument|takes|missing)
    title: a subclass overrides the Trainer's `{method}` with the signature of another transformers version
    change: give `{method}` the signature of the installed transformers (`num_items_in_batch=None` in `compute_loss`
        since 4.46), or install the transformers that the script was written for
LG089 * '(?P<class>\w*Trainer)' object has no attribute '(?P<name>\w+)'
    title: `{class}` has no `{name}` in the installed transformers or trl, or the script never set it
    change: install transformers, accelerate and trl released at about the same time
LG089 'DeepSpeedEngine' object has no attribute '(?P<name>generate|config|dtype|save_pretrained
    |gradient_checkpointing_\w+|resize_token_embeddings|peft_config|print_trainable_parameters|merge_and_unload)'
    title: code looked up `{name}` on DeepSpeed's engine, but it belongs to the wrapped model
    change: call it on the model: `engine.module.{name}` or `accelerator.unwrap_model(model).{name}`
LG089 * 'DeepSpeedEngine' object has no attribute '(?P<name>\w+)'
    title: DeepSpeed's engine has no `{name}`: it belongs to the wrapped model, or to another DeepSpeed release
    change: call it on `engine.module`, or install matching releases of DeepSpeed, accelerate and transformers
LG089 'HfTrainerDeepSpeedConfig' object has no attribute '(?P<name>\w+)'
    |'HfDeepSpeedConfig' object has no attribute '(?P<name2>\w+)'
    title: the DeepSpeed configuration object has no `{name}{name2}`: the installed transformers and accelerate are
        incompatible
    change: install an accelerate and a transformers released at about the same time (`pip install -U accelerate
        transformers`)
LG089 * 'NoneType' object has no attribute '(?:is_zero3|is_zero2|config|trainer_config_\w+
    |del_config_sub_tree)' ::! transformers/|accelerate/
    title: the DeepSpeed configuration of transformers was never created, or was garbage-collected
    change: keep the `HfDeepSpeedConfig` or the TrainingArguments alive, and create them before the model
LG220 (?:You have set `use_liger_kernel`|liger-kernel >= \S+ is not available)
    title: `use_liger_kernel` is on, but liger-kernel is missing or too old
    change: `pip install -U liger-kernel` on every host, or set `use_liger_kernel=False`
LG220 Trainer tried to instantiate (?P<what>\w+) .*but
    title: the requested optimizer needs `{what}`, which is not installed
    change: install it, or set `optim="adamw_torch"`
LG220 You need to (?:install|have) `(?P<name>[\w-]+)(?:[>=]+(?P<version>[\d.]+))?` (?:in order to|to be able to) use
    title: `{name}` is missing or too old
    change: `pip install -U {name}` on every host
LG220 vLLM is not available and `use_vllm` is set to True
    title: `use_vllm` is set, but vLLM is not installed
    change: `pip install trl[vllm]` (the vLLM that this trl supports), or set `use_vllm=False`
LG220 PEFT is (?:not installed and you passed a|required to use) `peft_config`
    change: `pip install peft`
LG019 Your setup doesn't support bf16
    title: the Trainer found no bf16 support: it needs an Ampere GPU or later, and a torch with CUDA
    change: set `fp16` instead of `bf16`; where the GPU is new enough check `nvidia-smi` and that torch is a CUDA build
LG019 (?:FP16|BF16) Mixed precision training with AMP.*can only be used on|--tf32 requires Ampere
    title: torch sees no GPU, or the GPU is too old for the requested precision
    change: check `nvidia-smi` and `torch.cuda.is_available()` (a CPU build of torch?), or leave the flag out
LG185 You cannot use `precompute_ref_log_probs=True` with Deepspeed ZeRO-3
    change: set `precompute_ref_log_probs=False`, or ZeRO stage 2
LG185 `model` and `ref_model` cannot be the same object
    change: pass `ref_model=None` with peft, or load a second copy
LG185 You passed both a ref_model and a peft_config|No reference model and model is not a Peft model
    change: with peft pass `ref_model=None`; without peft give a `ref_model`
LG185 effective (?:train|eval) batch size \(.*must be evenly divisible by the number of generations
    title: the effective batch size (ranks x micro-batch x accumulation) is not divisible by `num_generations`
    change: choose `num_generations` as a divisor of that product, or change the batch size
LG185 inexact division: (?P<numbers>.*)
    title: a batch size is not divisible by the number of ranks or mini-batches: {numbers}
    change: choose batch sizes that divide evenly
LG185 You passed a `PeftModel` instance together with a `peft_config`
    change: pass the base model with `peft_config`, or the PeftModel without it
LG203 ZeRO3 is incompatible with LoRA when finetuning on base model
    title: the script refuses LoRA with ZeRO-3 on a base model, where it would also train the embedding and output
        layers
    change: use ZeRO stage 2, use the chat model (no new tokens), or leave `embed_tokens` and `lm_head` out of the
        adapter
LG185 is not a valid (?P<enum>\w+), please select one of
    title: an argument has a value that the installed transformers does not know
    change: use one of the values that the message lists, or a newer transformers
TP001 Weight conversions \(e\.g\., MoE expert fusion\) with DeepSpeed Tensor Parallelism are not yet implemented
    title: transformers converts this model's weights while loading, which DeepSpeed's tensor parallelism does not
        support
    change: remove `tensor_parallel` from the JSON, or convert the checkpoint to the new format first
LG031 Failed to apply weight conversion for '(?P<name>[^']*)'
    title: the checkpoint's `{name}` cannot be converted to the layout of the installed transformers
    change: load it with the transformers that saved it, or download the model again in the new format
LG185 Sequence parallelism is enabled but no SP process group is available
    title: sequence parallelism is on, but no sequence-parallel process group exists
    change: set `sp_size` and `sp_backend="deepspeed"` in ParallelismConfig and start through the Accelerator or Trainer
LG034 Resuming is not supported for models sharded at load time
    change: start without `DistributedConfig`, or set `save_only_model=True` and start from the weights
LG185 Passing both `optimizers` and `optimizer_cls_and_kwargs`
    |Passing a `model_init` is incompatible with providing the `optimizers`
    title: the optimizer was given in two ways
    change: pass one of `optimizers`, `optimizer_cls_and_kwargs` and `model_init`, or override `create_optimizer`
LG185 The `data_collator` should be a simple callable
    change: pass a function or another callable as `data_collator`
LG185 Trainer: training requires a train_dataset
    title: the Trainer has no `train_dataset`
    change: pass `train_dataset`, and check that the script loads it (its path, `do_train`)
LG185 `Trainer` requires either a `model` or `model_init` argument|model_init should (?:have|not return)
    |To use hyperparameter search, you need to pass your model
    change: pass `model`, or a `model_init` function that returns a model
LG185 (?:unsupported optimizer|Invalid optimizer|Invalid schedulefree optimizer)
    title: the installed transformers does not know this `optim`
    change: set `optim="adamw_torch"` (or configure `optimizer` in the DeepSpeed JSON), or install a newer transformers
LG001 Evaluation hit an out-of-memory error
    title: the GPU ran out of memory during evaluation
    change: lower `per_device_eval_batch_size`, set `prediction_loss_only=True` or `eval_accumulation_steps`
LG185 Context parallelism (?:is supported only|only supports)
    change: use `attn_implementation="sdpa"` with causal attention, or turn off context parallelism
LG185 must be an integer(?: bigger than 0| if bigger than 1)|lr_scheduler_type \w+ requires an eval strategy
    title: an argument of the Trainer has a value that it does not support
    change: set step counts to integers, and an `eval_strategy` for `reduce_lr_on_plateau`
LG185 Passing `'use_configured_state':True` to the AcceleratorConfig requires
    |Tried passing in a callable to `accelerator_config`
    change: pass a fully constructed AcceleratorConfig, and set `use_configured_state` only where an Accelerator already
        exists
LG183 When passing device_map as a string, the value needs to be|The `device_map` does not contain the module
    |You can't pass device_map as a negative int|doesn't have any device set
    |The current `device_map` had weights offloaded to the disk
    title: `device_map` has a value that transformers does not support here
    change: under DeepSpeed leave `device_map` out; a quantized model takes `device_map={"": local_rank}`
LG034 Can't find a checkpoint index
    title: the folder has no index of a sharded checkpoint (`*.index.json`)
    change: give the folder that has the weights; a ZeRO checkpoint needs `zero_to_fp32.py` first
LG182 `optim_target_modules` |You need to define `?a? ?`?optim_target_modules
    |Layer-?wise \w+ (?:optimizer )?do(?:es)? not support|You need to pass a `?model`? (?:to initialize
    |in order to correctly initialize)|No target modules found for
    title: the Trainer cannot use the requested optimizer here, because of its target modules, DDP or gradient
        accumulation
    change: set `optim_target_modules` to module names of the model, or use `adamw_torch`; layer-wise optimizers do not
        work with several ranks or accumulation
LG180 Batch size cannot be None\. Ensure the dataloader
    change: give the data loader a `batch_size`, equal to `train_micro_batch_size_per_gpu`
"""
