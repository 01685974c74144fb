# SPDX-License-Identifier: Apache-2.0
"""Errors of Python itself in the packages around DeepSpeed, recognized by the value, the name and the frames."""

from __future__ import annotations

MESSAGES = r"""
LG224 'NoneType' object has no attribute 'c(?:de)?(?:quantize|get|adam|lion|gemm|igemm|scale|sgd|percentile|rmsprop)\w*'
    title: bitsandbytes loaded no GPU code: its CUDA library was not found or does not match
    change: run `python -m bitsandbytes`; install a bitsandbytes whose wheel has this CUDA version, or set
        BNB_CUDA_VERSION and LD_LIBRARY_PATH to an installed toolkit
LG293 'NoneType' object has no attribute '(?P<name>get_last_lr|_last_lr)'
    title: the Trainer has no learning-rate scheduler
    change: keep both `scheduler` and `optimizer` in the DeepSpeed JSON, or let the Trainer create both
        (`lr_scheduler_type`, no `scheduler` in the JSON), or pass `optimizers=(optimizer, scheduler)` with both set
LG293 * 'NoneType' object has no attribute '(?P<name>step|zero_grad|param_groups|train|state_dict
    |load_state_dict)' ::! transformers/trainer|accelerate/(?:optimizer|scheduler|accelerator|checkpointing)|trl/
    title: the optimizer or the scheduler of the Trainer is None when `{name}` is called on it
    change: set `optimizer` in the DeepSpeed JSON, let the Trainer create it (`optim`), or pass `optimizers=(optimizer,
        scheduler)` with both set; if neither is missing, install matching releases of transformers and accelerate
LG293 'NoneType' object has no attribute '(?P<name>hf_ds_config|deepspeed_config|zero_stage|is_zero3_init_enabled|dschf
    |zero3_init_flag|select|deepspeed_plugin|set_mixed_precision|deepspeed_config_process)'
    title: accelerate has no DeepSpeed plugin: the job was not started for DeepSpeed
    change: start it with `accelerate launch --use_deepspeed` (or `--config_file` with `distributed_type: DEEPSPEED`),
        or pass `deepspeed=...` in TrainingArguments
LG293 'Dummy(?P<kind>Optim|Scheduler)' object has no attribute '(?P<name>\w+)'
    title: the script used the placeholder `Dummy{kind}`: accelerate did not replace it with DeepSpeed's
    change: use what `accelerator.prepare(...)` returns, start the job with DeepSpeed enabled (`accelerate launch
        --use_deepspeed`), and put `optimizer` (and `scheduler`) in the DeepSpeed JSON; without DeepSpeed, create real
        ones
LG227 * '(?P<class>\w*(?:TrainingArguments|TrainingArguments\w*|SFTConfig|DPOConfig|GRPOConfig|ModelArguments
    |ScriptArguments))' object has no attribute '(?P<name>\w+)'
    title: `{class}` has no `{name}`: the trainer got a different configuration class than it needs, or packages are
        incompatible
    change: pass the trainer's own configuration class (`SFTConfig` for `SFTTrainer`, not TrainingArguments), and
        install transformers, trl and accelerate released at about the same time
LG227 * '(?P<class>DeepSpeedPlugin|PartialState|GradientState|AcceleratedOptimizer|AcceleratedScheduler|DataLoaderShard
    |DataLoaderDispatcher|DeepSpeedEngineWrapper|DeepSpeedOptimizerWrapper|HfDeepSpeedConfig
    |SeedableRandomSampler)' object has no attribute '(?P<name>\w+)'
    title: `{class}` of the installed accelerate or transformers has no `{name}`: its release does not match the
        caller's, or the Accelerator was not created yet
    change: install accelerate, transformers and trl released at about the same time (`pip install -U accelerate
        transformers`), and create the Accelerator before anything else of accelerate
LG295 '(?:<|<=|>|>=)' not supported between instances of '(?:float|int|str)' and '(?:str|float|int)' ::! torch/optim
    |deepspeed/ops/(?:adam|lion|lamb|adagrad)|transformers/(?:optimization|trainer)|bitsandbytes/optim
    title: the learning rate or another optimizer setting is a string: YAML reads `1e-5` without a decimal point as a
        string
    change: write `1.0e-5` in YAML, a number without quotation marks in JSON, or convert it with `float(...)`
LG295 (?:unsupported operand type\(s\) for [^:]+: .*'str'|can't multiply sequence by non-int of type 'float'
    |must be real number, not str|bad operand type for unary .*'str') ::$ optim|deepspeed/|lr_sched|train\.py
    title: a setting is a string where the program needs a number
    change: write it as a number: `1.0e-5` in YAML (`1e-5` is a string there), no quotation marks in JSON; replace an
        `"auto"` that nothing filled in
LG295 * '(?:<|<=|>|>=)' not supported between instances of 'str' and '(?:int|float)'|'(?:<|<=|>
    |>=)' not supported between instances of '(?:int|float)' and 'str'
    title: the program compares a string with a number, most often a setting that was written as a string
    change: write it as a number: `1.0e-5` in YAML (`1e-5` is a string there), no quotation marks in JSON
LG182 * '>' not supported between instances of 'NoneType' and 'int'
    |unsupported operand type\(s\) for [-+*/]+: 'NoneType' and '(?:int|float)'
    |unsupported operand type\(s\) for [-+*/]+: '(?:int|float)' and 'NoneType' ::! lr_schedules
    title: the scheduler got None for `warmup_num_steps`, `total_num_steps` or a learning rate
    change: set `total_num_steps`, `warmup_num_steps`, `warmup_min_lr` and `warmup_max_lr` in `scheduler.params` to
        numbers, or to `"auto"` under the Trainer
LG293 * unsupported operand type\(s\) for [-+/]+: 'NoneType' and '(?:int|float)'
    |unsupported operand type\(s\) for [-+*/]+: '(?:int|float)' and 'NoneType'|'NoneType' and '(?:int
    |float)' ::! transformers/trainer|trl/
    title: the trainer got None instead of a number, such as a number of steps, a batch size or a length
    change: set `max_steps` for data without a length, a batch size for every data loader, and check which argument the
        failing line reads; incompatible releases of transformers and accelerate cause it too
LG227 * '(?P<class>dict|str|list|tuple)' object has no attribute '(?P<name>\w+)' ::$ transformers/integrations/deepspeed
    |accelerate/utils/(?:deepspeed|dataclasses)
    title: the DeepSpeed configuration or the model's configuration has a different type than this code expects
        (`{class}` without `{name}`)
    change: pass the DeepSpeed configuration once, as a dictionary or as the path of a JSON file; write numbers instead
        of `auto` for bucket sizes where `model.config` is not a transformers configuration
LG149 * 'NoneType' object has no attribute '(?P<name>\w+)' ::$ deepspeed/runtime/zero/(?:parameter_offload
    |partitioned_param_coordinator|partition_parameters)
    title: a hook of ZeRO-3 got None as a module output or a parameter
    change: let `forward` return tensors, or tuples or dictionaries of them, and do not remove parameters after
        `deepspeed.initialize`; if that does not help, install a newer DeepSpeed
LG102 * '(?P<class>Tensor|Parameter|Linear|Embedding|NoneType)' object has no attribute '(?P<name>ds_(?:id|status|tensor
    |numel|shape|persist|active_sub_modules|process_group|summary|param_type))' ::! deepspeed/runtime/zero/
    title: ZeRO-3 got an unpartitioned parameter: code created or replaced it after `deepspeed.initialize`,
        or it is a plain tensor
    change: add layers, adapters and embeddings before `deepspeed.initialize` (or create them inside
        `deepspeed.zero.Init`), and do not replace `weight` with another tensor
LG130 * (?:'NoneType' object has no attribute '(?:size|shape|dtype|grad|device|is_floating_point|dim|numel)'|'(?:tuple
    |list|dict|int|float|str)' object has no attribute '(?:size|shape|dtype|grad|device|requires_grad|is_floating_point
    |to)') ::! deepspeed/runtime/pipe
    title: the pipeline got None or a value that is not a tensor where it sends or receives activations
    change: let every layer return a tensor or a tuple of tensors without None, and the data loader yield (inputs,
        labels) of tensors; return masks after the output that requires a gradient
LG130 * IndexError: (?:tuple|list) index out of range ::! deepspeed/runtime/pipe
    title: the pipeline got a batch or an output with fewer tensors than it expects
    change: let the data loader yield (inputs, labels), and let each layer return the same number of tensors for every
        micro-batch
LG130 * (?:not enough values to unpack|too many values to unpack|cannot unpack non-iterable) ::! deepspeed/runtime/pipe
    title: the pipeline got a batch with a different structure than (inputs, labels)
    change: let the data loader yield a tuple (inputs, labels), each a tensor or a tuple of tensors, not a dictionary
LG045 ^(?:\w+\.)?StopIteration\b ::! deepspeed/runtime/pipe|pipe/engine
    title: the data iterator of a pipeline stage ended inside `train_batch`
    change: pass an iterator that does not end (`deepspeed.utils.RepeatingLoader`): `train_batch` reads
        `gradient_accumulation_steps` micro-batches on the first and the last stage
LG211 ^StopIteration$ ::$ torch/nn/parallel|data_parallel
    title: `torch.nn.DataParallel` replicated the model over several GPUs, and the replica has no parameters
    change: start one process per GPU (`deepspeed`, `torchrun`, `accelerate launch`), or set CUDA_VISIBLE_DEVICES to one
        GPU
LG294 (?P<function>[\w.]*)forward\(\) got an unexpected keyword argument '(?P<name>token_type_ids|labels|text|idx|index
    |length|special_tokens_mask|offset_mapping|prompt|image|images|pixel_values|label|input_ids|attention_mask
    |position_ids|overflow_to_sample_mapping)'
    title: the batch has `{name}`, which the model's `forward` does not take
    change: leave it out of the batch: `tokenizer(..., return_token_type_ids=False)`, `remove_unused_columns=True` or a
        collator that keeps the model's inputs; `labels` needs a model with a head for the task
        (`AutoModelForCausalLM`), not the bare model
LG294 (?P<function>[\w.]*)forward\(\) missing \d+ required (?:positional|keyword-only) arguments?: (?P<names>.*)
    title: the model was called without {names}
    change: give the model its inputs under the names that its `forward` has (`engine(**batch)`, not `engine(batch)`),
        and keep these columns (`remove_unused_columns=False` where the collator makes them)
LG294 * (?P<function>[\w.]*)forward\(\) takes (?:from )?\d+ (?:to \d+ )?positional arguments? but (?P<count>\d+) (?:was
    |were) given
    title: the model's `forward` was given {count} positional arguments, more than it takes
    change: call it with a dictionary (`engine(**batch)`); if a layer inside the model fails, remove patches that were
        written for another transformers
LG294 You have to specify either `?(?:decoder_)?input_ids|You (?:cannot|must) specify (?:both
    |exactly one of) `?(?:decoder_)?input_ids|either `?decoder_input_ids`? or|exactly one of `?input_ids
    title: the model got neither `input_ids` nor `inputs_embeds`, or both
    change: give the model one of the two; an encoder-decoder also needs `labels` or `decoder_input_ids`; check that
        `remove_unused_columns` did not drop the columns
LG296 Expected input batch_size \((?P<a>\d+)\) to match target batch_size \((?P<b>\d+)\)
    title: the loss got {a} predictions for {b} labels: logits and labels have different lengths
    change: give `labels` the shape of `input_ids` (the collator pads both with -100), use a model with the head for the
        task (causal, sequence-to-sequence, classification), and check whether virtual prompt tokens or images make the
        logits longer
LG296 Target size \(torch\.Size\((?P<a>[^)]*)\)\) must be the same as input size \(torch\.Size\((?P<b>[^)]*)\)\)
    |Using a target size .* that is different to the input size
    title: the labels have shape {a}, and the loss needs the shape of the logits, {b}
    change: give the labels that shape (one-hot floats for `multi_label_classification`), or set the model's
        `num_labels` and `problem_type` to match the task
LG296 * Expected floating point type for target with class probabilities|"(?:nll_loss|cross_entropy|binary_cross
    |log_softmax|mse_|smooth_l1)\w*" not implemented for '(?:Int|Char|Short|Byte|Bool|Long)'
    |result type Float can't be cast to the desired output type Long|0D or 1D target tensor expected
    |multi-target not supported|Expected target size|only batches of spatial targets supported|Found dtype (?:Long|Int
    |Double) but expected
    title: the loss got labels or another tensor with a dtype or shape that it does not support
    change: pass class indices as int64 (`labels.long()`) with one dimension fewer than the logits; use float labels for
        regression (`num_labels=1`) and multi-label problems
LG294 Expected tensor for argument #1 'indices' to have one of the following scalar types
    title: the token ids are not integers: the dataset has floats, or code cast the whole batch
    change: pass `input_ids` as int64 (`.long()`), and cast only floating-point inputs to fp16 or bf16
LG044 IndexError: Invalid key: (?P<key>\d+) is out of bounds for size (?P<size>\d+)
    title: row {key} of a dataset with {size} rows was requested: the columns of the dataset were removed, or it is
        empty
    change: set `remove_unused_columns=False` where the collator uses raw columns; else compare `len(dataset)` and
        `column_names` with the model's inputs
LG044 * IndexError: (?:list index|tuple index|index \d+ is) out of (?:range|bounds).* ::! datasets/|torch/utils/data
    |data_collator
    title: a dataset or collator read a record or field that does not exist
    change: check the record that the failing line reads (an empty message, a missing field), and run once with
        `num_workers=0`
LG082 * view size is not compatible with input tensor's size and stride
    title: `view` got a tensor that is not contiguous
    change: call `.reshape(...)`, or `.contiguous()` before `.view(...)`
LG116 unscale_\(\) has already been called on this optimizer
    title: gradients were unscaled twice in one step: the script clips or steps in addition to the Trainer or accelerate
    change: clip in one place: `accelerator.clip_grad_norm_` once per step under `if accelerator.sync_gradients:`, or
        `max_grad_norm` of the Trainer; under DeepSpeed set `gradient_clipping` in the JSON
LG081 Must flatten tensors with uniform dtype but got (?P<a>\S+) and (?P<b>\S+)
    title: trainable and frozen parameters of one block have different dtypes ({a} and {b})
    change: cast the model and its adapters to one dtype before `prepare` (`model.to(torch.bfloat16)`; bitsandbytes:
        `bnb_4bit_quant_storage`; peft: `autocast_adapter_dtype=False`)
LG207 * is not on the expected device meta|Tensor on device \S+ is not on the expected device
    title: tensors of the model are on the meta device or another unexpected device, most often because some weights
        were never loaded
    change: load the model without `device_map` and `low_cpu_mem_usage`; under ZeRO-3, create TrainingArguments (or
        `HfDeepSpeedConfig`) before `from_pretrained`
LG102 * Trying to resize storage that is not resizable
    title: code resized a tensor whose storage is fixed: a ZeRO-3 parameter, or memory shared with numpy or another
        process
    change: do not resize ZeRO-3 parameters; in data loader workers return copies (`tensor.clone()`), or use
        `num_workers=0`
LG297 Object of type (?P<name>\w+) is not JSON serializable
    title: json cannot serialize an object of type `{name}`
    change: convert it before it is saved: dtypes and paths with `str(...)`, tensors and numpy numbers with `.item()`,
        configurations with `.to_dict()`; keep plain values in `config.json` and TrainingArguments
LG216 can't pickle \w+ objects
    title: an object that should be saved or sent to another process cannot be pickled
    change: move functions and classes to the top level of a module, do not pass lambdas, locks, open files or the
        engine to workers, or use `num_workers=0`
LG231 * only integer tensors of a single element can be converted to an index|only (?:one element tensors
    |length-1 arrays) can be converted to
    title: code used a tensor or array with several elements as one number
    change: pass a number (`tensor.item()`) or index with the tensor; in a collator, pass lists of numbers to
        `torch.tensor`
LG230 OverflowError: (?:out of range integral type conversion attempted|int too big to convert
    |can't convert negative int to unsigned) ::! tokeniz
    title: the tokenizer got ids that it cannot decode (-100 of masked labels) or a length that is too large (no
        `model_max_length`)
    change: replace -100 with `tokenizer.pad_token_id` before `batch_decode`, and give `max_length` (or set
        `tokenizer.model_max_length`) where the text is truncated
LG227 * TypeError: (?:cannot unpack non-iterable NoneType object|'NoneType' object is not subscriptable) ::$ modeling_
    |transformers_modules|transformers/models
    title: the model's code got None where it expects a value: it was written for another transformers, or an input is
        missing
    change: install the transformers that the model's config.json names (`transformers_version`), set `use_cache=False`
        for training, and give the inputs that its `forward` has
LG227 * ValueError: (?:too many values to unpack|not enough values to unpack) .* ::$ modeling_|transformers_modules
    |transformers/models|peft/|trl/|flash_attn|llava|fastchat|monkey_patch
    title: a function returned a different number of values than its caller unpacks: the model's code, or an attention
        patch, was written for another version
    change: install the transformers that the code was written for (config.json has `transformers_version`), or remove
        the patch and use `attn_implementation`; check also the dimensions of the batch
LG292 One of the subprocesses has abruptly died during map operation
    |result list .* still contains None - at least one worker failed|Failed to retrieve results from (?:map
    |prepare_split)
    title: a process of `datasets.map` (`num_proc`) died, most often killed for lack of host memory
LG292 A process in the process pool was terminated abruptly|BrokenProcessPool
    |concurrent\.futures\.process\.BrokenProcessPool
    title: a process of a process pool died, most often killed for lack of host memory
LG047 * OverflowError: cannot convert float infinity to integer
    title: a number is infinite: the loss scale, a length such as `model_max_length`, or a number of steps
    change: give finite numbers (`model_max_length`, `max_steps`, `total_num_steps`), and use bf16 where the loss scale
        overflows
LG045 * ZeroDivisionError: .* ::! transformers/trainer
    title: the Trainer divided by zero: the training ended before its first step, or the dataset is empty
    change: compare the number of examples with micro-batch times accumulation times ranks, lower
        `gradient_accumulation_steps`, and check whether a resumed run has already reached `max_steps` or the number of
        epochs
BT001 * ZeroDivisionError: .* ::$ deepspeed/runtime/config
    title: a batch size of the DeepSpeed JSON is 0
    change: set `train_batch_size` to micro-batch size times `gradient_accumulation_steps` times data-parallel ranks,
        each at least 1
LG182 * ZeroDivisionError: .* ::! lr_schedule|optimization|lr_scheduler
    title: the learning-rate schedule divides by zero: its number of steps, or of steps after the warm-up, is 0
    change: set `total_num_steps` above `warmup_num_steps`, both above 0; under the Trainer, set `max_steps` or provide
        more data
LG045 * UnboundLocalError: .*'(?:tr_loss\w*|inputs|step|outputs|batch|loss|model_inputs)' ::! trainer|train
    title: the training loop got no batch: the data loader of this rank is empty
    change: compare the number of examples with micro-batch times ranks (`drop_last` drops the rest), and check the
        filters and `max_samples`
LG293 * KeyError: '(?P<name>loss|logits)' ::! transformers/trainer|trl/
    title: the model's output has no `{name}`
    change: add `labels` to the batches, use a model with the head for the task, or return `{name}` from your own model
LG189 * KeyError: '(?P<name>input_ids|labels|attention_mask)' ::! data_collator|collator|trl/
    title: the examples have no `{name}` when the collator builds a batch
    change: tokenize the data first (`dataset.map(tokenize, remove_columns=...)`), keep the columns that the collator
        reads (`remove_unused_columns=False`), and compare them with `dataset.column_names`
LG125 * KeyError: '(?P<name>module|optimizer_state_dict|dp_world_size|mp_world_size|ds_version|ds_config|buffer_names
    |param_shapes|zero_stage|partition_count|base_optimizer_state|single_partition_of_fp32_groups|optimizer|loss_scaler
    |lr_scheduler|global_steps|shared_params|frozen_param_fragments)' ::! deepspeed/|zero_to_fp32|checkpoint
    title: the checkpoint file has no `{name}`: it is not a DeepSpeed checkpoint of this type, or another release wrote
        it
    change: load it with the DeepSpeed (and ZeRO stage) that saved it; weights alone are loaded with `from_pretrained`
        or `load_state_dict`, not with `load_checkpoint`
LG032 * KeyError: '(?P<name>exp_avg|exp_avg_sq|momentum_buffer|step|fp32|state|param_groups)' ::! deepspeed/|optim
    title: the optimizer state has no `{name}`: the checkpoint was saved without it, or with another optimizer
    change: resume with the optimizer and the stage that saved it, or load the weights alone
        (`load_optimizer_states=False`, `load_module_only=True`)
LG227 '(?P<class>\w*DeepSpeed\w*Optimizer\w*)' object has no attribute '(?P<name>loss_scale|cur_scale|dynamic_loss_scale
    |overflow|custom_loss_scaler|loss_scaler|defaults|param_groups|state|zero_grad|get_lr|clip_grad)'
    title: ZeRO's optimizer has no `{name}` in the installed DeepSpeed, at this stage or precision
    change: read it through the engine (`engine.optimizer`, `engine.loss_scale()`, `engine.get_lr()`), and install
        matching releases of DeepSpeed and the calling package
"""
