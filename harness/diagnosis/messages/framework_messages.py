# SPDX-License-Identifier: Apache-2.0
"""Messages about DeepSpeed from Lightning, LLaMA-Factory, ms-swift and axolotl."""

from __future__ import annotations

MESSAGES = r"""
LG220 To use the `DeepSpeedStrategy`, you must have DeepSpeed installed
    title: Lightning found no DeepSpeed in the environment of this rank
    change: run `pip install deepspeed` in that environment, on every host; `python -c "import deepspeed"` shows an
        import error of DeepSpeed itself
SP001 You passed in a path to a DeepSpeed config but the path does not exist: (?P<path>\S+)
    |To use DeepSpeed you must pass in a DeepSpeed config dict
    title: Lightning found no DeepSpeed configuration {path}
    change: give `DeepSpeedStrategy(config=...)` a dictionary, or the path of a JSON that exists on every host
LG182 (?:Currently only one optimizer is supported with DeepSpeed
    |DeepSpeed currently only supports single optimizer, single optional scheduler)
    title: Lightning's DeepSpeed strategy takes one optimizer and at most one scheduler
    change: return one optimizer (with parameter groups) from `configure_optimizers`, or use another strategy
LG185 DeepSpeed does not support clipping gradients by value
    change: set `gradient_clip_algorithm="norm"`, or `gradient_clipping` in the DeepSpeed JSON
LG185 DeepSpeed currently does not support different `accumulate_grad_batches`
    change: set one number for `accumulate_grad_batches`
LG012 (?:The )?DeepSpeed strategy is only supported on (?:CUDA )?GPUs? but
    title: Lightning's DeepSpeed strategy needs GPUs, but the run uses another accelerator
    change: set `accelerator="gpu"`, and check `nvidia-smi` and that torch is a CUDA build
LG185 is not a valid choice with `DeepSpeedStrategy` when ZeRO stage 3
    change: leave `empty_init` out under ZeRO-3
LG186 (?:Could not find a DeepSpeed model in the provided checkpoint state
    |Found multiple DeepSpeed engine modules in the given state
    |a state with at least +a model instance to reload is required)
    title: the state to save or load contains no DeepSpeed engine, or several
    change: set up the model through the strategy first, and pass `state={"model": model, ...}` with one engine
LG211 Please use `FORCE_TORCHRUN=1` to launch DeepSpeed training|Please launch distributed training with
    title: DeepSpeed was requested, but the program was started as a single process
    change: set FORCE_TORCHRUN=1, or start with `torchrun` or `deepspeed`
LG198 (?:PTQ|HQQ|EETQ|GPTQ|AWQ|\w+) quantization is incompatible with DeepSpeed ZeRO-3
    |DeepSpeed ZeRO-3 or FSDP is incompatible with (?:PTQ-)?quantized models
    title: a quantized model of this kind does not work under ZeRO-3
    change: use ZeRO stage 2, or the model without quantization
LG197 Cannot (?:create new adapter upon|merge adapters to|resize embedding layers of
    |initialize PiSSA adapter on) a? ?quantized models?|Quantiz(?:ation is only compatible with
    |ed models? (?:can only be used for|only accepts)) |Cannot use device map for quantized models in training
    |Can't (?:load|merge) qlora|Require cfg\.load_in_4bit to be True for qlora|DoRA is not compatible with PTQ
    title: the requested adapter or step does not support a quantized model
    change: train a plain LoRA adapter on the quantized model, and merge it into the model loaded without quantization
LG203 Please use scripts/pissa_init\.py to initialize PiSSA|Unsloth is incompatible with DeepSpeed ZeRO-3
    |KTransformers is incompatible with DeepSpeed ZeRO-3
    title: this adapter or kernel library does not work with ZeRO-3
    change: use ZeRO stage 2 or plain LoRA; for PiSSA, prepare the adapter beforehand (`scripts/pissa_init.py`)
LG182 (?:GaLore and APOLLO are|Muon optimizer is currently|\w+ (?:optimizer )?is) (?:incompatible
    |not compatible) with DeepSpeed|Layer-wise BAdam only supports DeepSpeed ZeRO-3
    title: the requested optimizer does not work with DeepSpeed, or not at this stage
    change: use `adamw_torch` (or an optimizer of the DeepSpeed JSON), or run without DeepSpeed; layer-wise BAdam needs
        stage 3
LG183 (?:DeepSpeed|GRPO with vLLM|GKD with vLLM) is not compatible with `device_map`
    title: one process sees several GPUs and would spread the model over them (`device_map`), which DeepSpeed and vLLM
        do not support
    change: set NPROC_PER_NODE to the number of GPUs (`torchrun --nproc_per_node`), so that each rank has one
LG185 DeepSpeed ZeRO3 not supported for|Only Zero stage 3 is currently supported when using DeepSpeed
    |DeepSpeed only supports bf16 mixed precision|Flash Checkpoint only supports
    |DeepCompile is only supported with DeepSpeed
    title: the program does not support the requested ZeRO stage or feature for this method
    change: use the stage or method that the message names, or a newer DeepSpeed
LG184 DeepSpeed ZeRO-3 model-loading bootstrap failed|Distributed State already initialized before Deepspeed setup
    title: the program could not enable ZeRO-3 before it loaded the model
    change: create the Accelerator or TrainingArguments (with the DeepSpeed configuration) first, and check that only
        one transformers is installed
LG185 Please specify `max_steps` in streaming mode|Streaming mode should have an integer val size|(?:Packing
    |Streaming) and lazy_tokenize are incompatible|does not support padding[ _]free or packing
    |Neat packing is not supported|does not support padding_free/packing
    title: streaming, packing or padding-free batches conflict with another setting
    change: set `max_steps` for streaming, and turn off packing, padding-free batches or lazy tokenization where the
        message names it
LG230 Template (?P<name>\S+) does not exist|Template '(?P<name2>[^']*)' not found
    title: the program has no chat template of that name
    change: use a template that its documentation lists for this model, or a newer release of the program
LG043 Model "?(?P<name>[^" ]+)"? is not supported because no suitable `model_type` was found
    title: the program does not know the `model_type` of {name}
    change: give `--model_type`, or install a newer release of the program
LG234 Cannot find valid samples, check|Cannot find sufficient samples|Undefined dataset \S+ in
    |Please specify dataset for training|keys are required for (?:KTO|DPO/ORPO) datasets
    |requires? pair(?:-format)? (?:data|samples)
    title: the dataset has no usable record, or lacks the columns that the training method needs
    change: compare the columns and the format of the data with the program's documentation, and check the filters
        (`cutoff_len`)
LG196 Please set lora_modules_to_save to
    title: the script adds special tokens, but the adapter does not train and save the embeddings
    change: set `lora_modules_to_save: [embed_tokens, lm_head]`, or add no tokens
"""
