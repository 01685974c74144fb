# SPDX-License-Identifier: Apache-2.0
"""Messages of peft, bitsandbytes, and of torch about adapters and quantized weights."""

from __future__ import annotations

MESSAGES = r"""
LG195 * element \d+ of tensors does not require grad and does not have a grad_fn
    change: call `model.enable_input_require_grads()` before training (LoRA with reentrant gradient checkpointing needs
        it, also under ZeRO-3), or set `use_reentrant=False` for gradient checkpointing
        (`gradient_checkpointing_kwargs={"use_reentrant": False}`); check with `print_trainable_parameters()` that some
        parameters are trainable, and look for `detach`, `no_grad` and `.item()`
LG195 none of output has requires_grad=True, this checkpoint\(\) is not necessary
LG202 only Tensors of floating point (?:and complex )?dtype can require gradients
    |Only Tensors of floating point and complex dtype can require gradients
LG202 can only change requires_grad flags of leaf|set requires_grad=True on .*integer
LG196 Target modules (?P<targets>.*?) not found in the base model
    title: none of the `target_modules` {targets} is in this model
LG196 No modules were targeted for adaptation|All modules were excluded\. This is likely unintended
    title: `target_modules`, `exclude_modules` and `modules_to_save` together leave no module to adapt
LG196 Please specify `?target_modules`?(?: or `target_parameters`)? ?in `?peft_config
    title: peft has no default `target_modules` for this model architecture
    change: set `target_modules` (names that `model.named_modules()` prints, or `all-linear`), or install a newer peft
LG196 Target module (?P<module>.*?) is not supported\. Currently, only
    title: peft cannot add an adapter to a module of this type: {module}
    change: name only linear, embedding or convolution layers in `target_modules`; add the adapter before the model is
        wrapped or sharded (tensor parallelism, AutoTP)
LG196 No matching LoRAs found|No adapter layers found (?:in|on) the model|[Tt]here are no adapters? in (?:the
    |this) model
    title: the model has no adapter layers
    change: add the adapter with `get_peft_model`, or load it with `PeftModel.from_pretrained`, before this call
LG199 (?P<class>\w+Config)\.__init__\(\) got an unexpected keyword argument '(?P<name>corda_config|eva_config
    |exclude_modules|lora_bias|trainable_token_indices|qalora_group_size|target_parameters|ensure_weight_tying
    |alora_invocation_tokens|arrow_config|layer_replication|use_dora|use_rslora|megatron_config|loftq_config
    |lora_ga_config|kasa_config|velora_config|peft_version)'
    title: the adapter was saved by a newer peft: the installed one does not know `{name}` in `{class}`
    change: install a newer peft (`pip install -U peft`), or remove `{name}` from `adapter_config.json`
LG199 (?:Lora|Peft|IA3|AdaLora|PromptTuning|Prefix\w+|LoKr
    |LoHa)Config\.__init__\(\) got an unexpected keyword argument '(?P<name>\w+)'
    title: the installed peft does not know `{name}` in the configuration of the adapter
    change: install a newer peft (`pip install -U peft`), or remove `{name}` from `adapter_config.json` or the script
LG203 size mismatch for (?P<name>base_model\S+): copying a param with shape torch\.Size\(\[0\]\) from checkpoint
    title: the adapter file has an empty tensor (shape [0]) for `{name}`: it was saved under ZeRO-3 without gathering
    change: save with `accelerator.get_state_dict(model)` on all ranks and `stage3_gather_16bit_weights_on_model_save:
        true`, or extract the weights from the ZeRO checkpoint with `zero_to_fp32.py`, or train under ZeRO stage 2
LG203 size mismatch for (?P<name>base_model\S+): copying a param with shape .* from checkpoint, the shape in current mo
    del is torch\.Size\(\[0\]\)
    title: an adapter was loaded into weights that ZeRO-3 has partitioned (`{name}` has shape [0])
    change: load the adapter before the engine is created (`PeftModel.from_pretrained` under the TrainingArguments),
        with the newest peft, or use ZeRO stage 2
LG199 Error\(s\) in loading state_dict for (?:Peft|Lora)\w*.*size mismatch for
    title: the adapter was trained with a different adapter rank, vocabulary or base model
LG199 Can't find weights for \S+ in|Can't find '?adapter_config\.json|adapter model file not found in
    |Couldn't find adapter
    title: the folder or repository has no complete adapter (`adapter_config.json` and `adapter_model.safetensors`)
    change: pass the path of the adapter's folder; a ZeRO checkpoint contains no such folder: save the adapter with
        `save_pretrained`
LG199 Adapter (?:with name )?'?(?P<name>\w+)'? (?:already exists|not found|does not exist)
    change: compare the name with those in `model.peft_config`: choose an unused name to add an adapter, an existing
        name to select one
LG199 Attempting to load .*modules_to_save|you are trying to load .*modules_to_save
LG199 You should either pass a `peft_model_id` or a `peft_config`|No adapter loaded\. Please load an adapter first
    change: load or add the adapter before you activate, save or merge it
LG201 Cannot merge L[Oo]RA layers when the model is|Dequantization is not supported for
    |Requantization is not supported for
    title: peft cannot merge the adapter into these quantized weights
LG201 (?:merge|unmerge|get_delta_weight|merge_and_unload).*(?:size|shape).*(?:\[0\]|\(0\))
    title: the script merged the adapter into weights that ZeRO-3 has partitioned
    change: merge in one process without DeepSpeed: load the base model, `PeftModel.from_pretrained`,
        `merge_and_unload()`; or merge inside `deepspeed.zero.GatheredParameters` with all parameters
LG201 Cannot delete adapter\(s\) .* while they are merged
    change: call `unmerge_adapter()` first
LG203 * existing size \(0\)|size of tensor [ab] \(0\)|torch\.Size\(\[0\]\)|'weight' must be 2-D ::! peft/(?:tuners
    |utils)
    title: peft used a weight of size 0, most often one that ZeRO-3 has partitioned
LG203 * (?:[Ll]o[Rr][Aa]|adapter)\S* weights?\b.* 0\b!?$
    title: the adapter's weights are empty (size 0), most often saved under ZeRO-3 without gathering the partitioned
        parameters
    change: use the adapter of a checkpoint that was saved with gathering (`stage3_gather_16bit_weights_on_model_save:
        true`, `accelerator.get_state_dict(model)` on all ranks), extract it from the ZeRO checkpoint with
        `zero_to_fp32.py`, or train LoRA under ZeRO stage 2
LG195 Multiple invocations of PEFT forward hooks before \.backward\(\)
    title: the adapter's forward ran twice before the backward pass, under gradient checkpointing
    change: disable gradient checkpointing, or run the backward pass after each forward
LG197 (?:prompt|prefix) tuning does not work with gradient checkpointing|does not work with gradient checkpointing\.$
    title: this adapter type does not work with gradient checkpointing
    change: turn gradient checkpointing off, or use LoRA
LG198 * Blockwise quantization only supports (?:16/32-bit floats|.*float)
    title: bitsandbytes was asked to quantize weights that are already packed (uint8), as when ZeRO-3 loads a 4-bit
        model
    change: use ZeRO stage 2 for the quantized model, or load it without quantization under stage 3; do not move a
        quantized model to the GPU again; 4-bit weights under ZeRO-3 need `bnb_4bit_quant_storage` equal to the model's
        dtype
LG198 * output tensor must have the same type as input tensor|expected there to be only one unique element in
    |output tensor must have the same (?:type|dtype) :: deepspeed/
    title: ZeRO-3 gathered parameters of several dtypes in one collective: fp32 adapters with a bf16 model, or quantized
        (uint8) weights
    change: give all parameters one dtype: `autocast_adapter_dtype=False` in `get_peft_model`, no quantization under
        stage 3 (or `bnb_4bit_quant_storage` of the model's dtype); or use ZeRO stage 2, or another DeepSpeed release
        (0.12.3 and later gather each dtype separately)
LG198 * 'Parameter' object has no attribute 'quant_state'|quant_state.*(?:None|shape|ds_)|Params4bit.*ds_
    |'Params4bit' object has no attribute '(?P<name>\w+)'
    title: a 4-bit weight lost its quantization state: ZeRO-3 or a copy kept only the packed tensor
LG198 * FP4 quantization state not initialized|AssertionError: .*quant_state|assert quant_state is not None
    title: a 4-bit weight has no quantization state: it was not moved to the GPU by `from_pretrained`, or ZeRO-3
        partitioned it
LG198 * Expected a cuda device, but got: cpu ::! bitsandbytes/
    title: bitsandbytes got a quantized weight that is on the CPU
    change: load the model with `device_map={"": local_rank}` and without `offload_param`; if a resume or
        `load_best_model_at_end` put the weights on the CPU, load the adapter alone into a new quantized model
LG198 * All input tensors need to be on the same GPU, but found some tensors to not be on a GPU
    title: bitsandbytes got a tensor that is on the CPU
    change: load the model with `device_map={"": local_rank}`, without `offload_param`, and move the inputs to this
        rank's GPU
LG198 * AttributeError: 'NoneType' object has no attribute '(?:absmax|shape|SCB|CB|state2|dtype)' ::! bitsandbytes/
    title: a quantized weight has no quantization state: ZeRO-3 partitioned it, or it was never moved to the GPU
LG198 (?:Error|Exception): .*(?:(?:QLoRA|BNB|bitsandbytes|[Qq]uantiz\w+).*(?:not (?:compatible|supported)|incompatible
    |not supported).*(?:ZeRO-?3|DeepSpeed|deepspeed|zero3)|(?:ZeRO-?3|DeepSpeed|deepspeed).*(?:incompatible
    |not compatible|not supported).*(?:quantiz|QLoRA|4-?bit|8-?bit|bitsandbytes))
    title: this program does not support quantization together with ZeRO-3
    change: use ZeRO stage 2 with the quantized model, or stage 3 with LoRA and no quantization
LG197 `?\.to`? is not supported for `?4-bit`? or `?8-bit`?|`?\.to`? is not supported for `?8-bit`?|Calling `(?:to|cuda
    |half|float)\(\)` is not supported for `?[48]-bit|`\.(?:half|float|cuda)\(\)` is not supported for (?:quantized
    |`?4-bit)
    title: the script or a package moved or cast a quantized model, which bitsandbytes does not support
    change: load it with `device_map={"": local_rank}` and leave out `.to()`, `.cuda()` and `.half()`; if DeepSpeed or
        accelerate makes the call, upgrade accelerate, transformers and bitsandbytes
LG197 You cannot cast a (?:bitsandbytes|GPTQ|\w+) model in a new `dtype`
    change: pass `torch_dtype` to `from_pretrained` instead of casting the quantized model
LG197 Some modules are dispatched on the CPU or the disk\. Make sure you have enough GPU RAM
    title: the quantized model did not fit on the GPU that `device_map` assigned it to
    change: load it with `device_map={"": local_rank}` on a free GPU, or use a smaller model; this also happens when all
        ranks load onto GPU 0
LG197 `bnb_4bit_\w+` must be|load_in_4bit and load_in_8bit can't be both|You can't pass `load_in_[48]bit`
    title: the quantization arguments conflict with each other
    change: pass one `BitsAndBytesConfig` as `quantization_config`, without `load_in_4bit` or `load_in_8bit` as separate
        arguments
LG220 Using `?(?:bitsandbytes|load_in_8bit=True)`? .*requires .*(?:bitsandbytes|[Aa]ccelerate)
    |requires the latest version of bitsandbytes
    title: 4- or 8-bit loading needs a newer bitsandbytes (and accelerate), or a GPU that bitsandbytes sees
    change: `pip install -U bitsandbytes accelerate` on every host, and check `python -m bitsandbytes`
LG220 You have a version of `bitsandbytes` that is not compatible with
    title: the installed bitsandbytes is too old
    change: `pip install -U bitsandbytes`
LG224 * CUDA [Ss]etup failed despite (?:GPU|CUDA) being available|CUDA SETUP: (?:Setup Failed
    |Required library version not found|CUDA detection failed)
LG224 * bitsandbytes.*(?:was compiled without GPU support|CPU-only version)|compiled without GPU support
    title: the installed bitsandbytes was built without GPU code, or did not find its CUDA library
LG224 libbitsandbytes_\w+\.so: (?:cannot open shared object|undefined symbol)|No compatible \S+ binary found at
    |undefined symbol: c(?:get_managed_ptr|quantize_blockwise\w*|adam\w*|\w*32bit\w*)
    title: bitsandbytes has no library for this CUDA version
LG224 Method '(?P<name>\w+)' not available in CPU-only version of bitsandbytes
LG224 Error (?P<what>invalid device function|named symbol not found) at line \d+ in file \S*csrc\S(?:ops|kernels)\.cu
    title: the installed bitsandbytes has no kernels for this GPU or this CUDA version: {what}
LG224 Could not run 'bitsandbytes::(?P<op>\w+)' with arguments from the '(?P<device>\w+)' backend
    title: the installed bitsandbytes has no `{op}` for {device} tensors
LG224 * cublasLt ran into an error
    title: the 8-bit matrix multiplication of bitsandbytes failed in cuBLASLt
    change: check free GPU memory, install a newer bitsandbytes, or use 4-bit weights (or no quantization) on this GPU
LG197 * ^NotImplementedError: .*?(?:_foreach_norm|aten::).*(?:uint8|Byte|Char)|not implemented for '(?:Byte|Char)'
    title: an operation got integer tensors, most often the weights of a quantized model
    change: freeze the quantized weights and train adapters (`prepare_model_for_kbit_training`), and use ZeRO stage 2
LG196 target_modules should (?:be a list or set of strings|not contain an empty string)
    |Invalid type \S+ found in target_modules|is incompatible with Mamba-based models
    |Requested bias: \S+, is not implemented|Targeting an nn\.Parameter|Trying to wrap an `nn\.Parameter`
    |Trying to target the same nn\.Parameter twice|No `target_modules` passed but also no `target_parameters`
    |does not support targeting nn\.Parameter
    title: the adapter's `target_modules` or `target_parameters` has a value that peft cannot use
    change: name linear layers in `target_modules` (a list of names that `model.named_modules()` prints, or
        `all-linear`)
LG199 Cannot combine adapters with different peft types|supports only 1 adapter with bias
    |all adapter configs should follow the same target modules|All adapters must have the same r
    |Attempted to set multiple .* adapters at once|Only one adapter can be set at a time
    |Found no adapter matching the names|invalid `selected_adapters`
    title: the model's adapters have different types, ranks or targets, or only one of them may be used here
    change: use one adapter, or adapters of the same type, rank and targets
LG203 The embedding layer is already marked to be trained fully|Cannot ensure weight tying when
    title: the adapter trains an embedding in two ways, or leaves out the layer that is tied to it
    change: set `modules_to_save` or `trainable_token_indices`, not both, and name both tied layers
LG201 NaNs detected in the merged weights
    title: the merged weights have NaN values: the adapter's training diverged, or its file is damaged
    change: use an earlier checkpoint of the adapter, and train in bf16 with a lower learning rate
LG199 The input config must be a PeftConfig|Expected PeftConfig object but got
    |`peft_config` must be a `peft\.PeftConfig`|Unknown PEFT type
    title: `peft_config` is not a PeftConfig that this peft knows
    change: pass `LoraConfig(...)`; an unknown type needs a newer peft
LG089 LoRA with (?:DTensor )?[Tt]ensor [Pp]arallel(?:ism)? .*transformers|does not support LoRA with Tensor Parallelism
    |Tensor Parallel with LoRA is only supported for transformers
    title: LoRA on a tensor-parallel model needs a newer transformers
    change: install a newer transformers and peft, or turn tensor parallelism off
LG220 Your transformers version is too old, please upgrade it to >= (?P<version>[\d.]+)
    title: peft needs transformers {version} or later
    change: `pip install -U transformers`
LG185 is not supported with PEFT \+ DeepSpeed ZeRO-3, which requires reentrant gradient checkpointing
    title: LoRA under ZeRO-3 needs reentrant gradient checkpointing, and the script uses another kind
    change: use reentrant gradient checkpointing (`use_reentrant=True`) with `enable_input_require_grads()`, or ZeRO
        stage 2
LG185 You passed `sync_ref_model=True` while using a PEFT model|Liger loss is not supported with a PEFT model
    |Applying a PEFT adapter to `lm_head` is not supported|`cast_lm_head_to_fp32=True` is not supported when
    title: the trainer does not support this setting with an adapter
    change: change the setting that the message names, or leave `lm_head` out of the adapter's targets
LG197 You passed `quantization_config` to the trainer, but your model is already instantiated
    |You set `quantization_config` both as a trainer argument
    change: pass `quantization_config` in one place only: to `from_pretrained`, or to the trainer with the model's name
LG224 has no attribute 'cget_managed_ptr'|name 'str2optimizer\w+' is not defined
    title: bitsandbytes has no GPU code: its CUDA library was not found or is incompatible
"""
