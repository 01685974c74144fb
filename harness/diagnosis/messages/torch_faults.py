# SPDX-License-Identifier: Apache-2.0
"""Errors of torch about values, dtypes and devices, and in pipeline and tensor parallelism, told apart by frames."""

from __future__ import annotations

MESSAGES = r"""
LG093 'Pipeline(?P<kind>Engine|Module)' object has no attribute '(?P<name>generate|config|save_pretrained
    |gradient_checkpointing_enable|state_dict_for_save|resize_token_embeddings|can_generate|get_input_embeddings)'
    title: code called `{name}` on a pipeline, which is a list of layers and not a transformers model
    change: train with `engine.train_batch(data_iter)` in your own loop instead of the Trainer, and convert the
        checkpoint's layers to a model for `generate`
LG138 * (?:module '[\w.]*mpu[\w.]*'|'(?:MPU|NoneType|\w*Grid|\w*[Tt]opology)' object
    |module '[\w.]*parallel_state') has no attribute '(?P<name>get_(?:model|tensor_model|data|slice|pipe|pipeline
    |sequence)\w*_(?:world_size|rank|group|src_rank))'
    title: the `mpu` that DeepSpeed got has no `{name}`: it belongs to another Megatron or DeepSpeed release
    change: pass an `mpu` with `get_model_parallel_rank/group/world_size` and `get_data_parallel_rank/group/world_size`
        (Megatron: `mpu` or `core.parallel_state`), or pass no `mpu`; use the DeepSpeed release that the program was
        written for
LG131 * KeyError: '(?P<name>\w+)' ::! deepspeed/runtime/pipe/module
    title: the pipeline has no tied layers under the key `{name}` on this stage
    change: give every `TiedLayerSpec` of one pair the same key, module class and `tied_weight_attr`
LG130 * (?:TypeError: .*(?:must be Tensor, not|expected Tensor as element|'NoneType' object is not iterable
    |object is not iterable)|One of the differentiated Tensors does not require grad) ::! deepspeed/runtime/pipe
    title: a pipeline stage got or returned None, a value that is not a tensor, or a tensor without a gradient
    change: let each layer return the output that requires a gradient first, then masks, and never None; let the data
        loader yield (inputs, labels)
LG130 * TypeError: [\w.]*forward\(\) (?:takes|missing) .* ::! deepspeed/runtime/pipe
    title: a pipeline layer got a different number of inputs than its `forward` takes
    change: let `forward` take one argument, the output of the layer before it, and unpack a tuple inside
LG167 * (?:mat1 and mat2 shapes cannot be multiplied|shape '\[[\d, -]+\]' is invalid for input of size [1-9]
    |The size of tensor a \(\d+\) must match) ::! deepspeed/module_inject/|deepspeed/runtime/tensor_parallel
    |tensor_parallel/
    title: a layer that tensor parallelism sharded feeds one that it did not shard, or the other way round
    change: use a tensor degree that divides the numbers of heads and key-value heads, a model that AutoTP knows (or
        `injection_policy`, a partition configuration that names its row-parallel layers), and a newer DeepSpeed; code
        that reads `num_heads` must use the number of heads per rank
LG167 * KeyError: '(?P<name>[\w.]+)' ::! deepspeed/module_inject/
    title: AutoTP found no weight or layer `{name}` in the model or checkpoint
    change: give an `injection_policy` (or partition configuration) for this model, or load it without kernel injection
LG129 * (?:'(?:tuple|dict|NoneType|list|str)' object has no attribute|Backward pass
    |must be Tensor, not) .* ::! activation_checkpointing/checkpointing
    title: a layer under DeepSpeed's activation checkpointing got or returned a value that is not a tensor
    change: pass only tensors through `deepspeed.checkpointing.checkpoint`, no None, tuples or dictionaries; or use
        `torch.utils.checkpoint` (`use_reentrant=False`)
PP001 ZeRO-2 and ZeRO-3 (?:gradient partitioning is )?incompatible with pipeline
LG294 (?P<function>embedding|linear|layer_norm|cross_entropy_loss|native_layer_norm|conv\dd|rms_norm|nll_loss\w*|softmax
    |dropout)\(\): argument '(?P<name>\w+)' (?:\(position \d+\) )?must be Tensor, not (?P<type>\w+)
    title: `{function}` got {type} as `{name}`: the batch lacks an input of the model, or a layer returned another type
    change: check which input of `forward` is None (`input_ids`, `labels`, `pixel_values` of a text-only record), and
        whether a submodule returns a tuple
LG120 * 'DistributedDataParallel' object has no attribute '(?P<name>\w+)'
    title: code read `{name}` from the DistributedDataParallel wrapper, but it belongs to the wrapped model
    change: use `model.module.{name}`, or `accelerator.unwrap_model(model).{name}`
LG120 * 'DeepSpeedEngine' object is not (?:iterable|subscriptable)|'DeepSpeedEngine' object has no setter
    |cannot unpack non-iterable DeepSpeedEngine
    title: code unpacked or indexed the engine as if it were the tuple that `deepspeed.initialize` returns
    change: write `engine, optimizer, loader, scheduler = deepspeed.initialize(...)` and `engine(**batch)`; under
        accelerate unpack as many objects as you pass to `prepare`
LG227 * type object '(?P<class>\w+)' has no attribute '(?P<name>\w+)' :: site-packages/(?:transformers|accelerate|trl|peft
    |deepspeed|lightning|datasets)
    title: class `{class}` has no `{name}`, most often because the installed releases of two packages are incompatible
    change: install matching releases of transformers, accelerate, peft and trl; the last file in the traceback uses the
        name
LG227 'HfArgumentParser' object has no attribute '(?P<name>\w+)'
    title: the installed transformers is older than the script, which uses `HfArgumentParser.{name}`
    change: `pip install -U transformers`
LG227 * TypeError: (?:initialize|init_distributed|init_inference)\(\) got an unexpected keyword argument '(?P<name>\w+)'
    title: the installed DeepSpeed does not know the argument `{name}`
    change: install a newer DeepSpeed (very old releases take `config_params` instead of `config`), or leave it out
LG041 * TypeError: (?:not a string|stat: path should be string
    |expected str, bytes or os\.PathLike object, not NoneType) ::! tokeniz|sentencepiece|configuration|modeling_utils
    |trainer|checkpoint
    title: a path is None: the path of the tokenizer's vocabulary file, of the model or of the checkpoint
    change: check that the model's folder has `tokenizer.model` or `tokenizer.json` (install sentencepiece and
        tiktoken), and that the script passes the path on
LG147 * max\(\) arg is an empty sequence ::! deepspeed/runtime/(?:zero|engine)
LG231 * (?:received an empty list of sequences|stack expects a non-empty TensorList|expected a non-empty list of Tensors
    |max\(\) (?:arg|iterable argument) is (?:an )?empty|zero-size array to reduction operation
    |Could not infer dtype of \w+|need at least one array to (?:stack|concatenate))
    title: a batch, or one of its fields, is empty or has values that are not numbers (None, dictionaries)
    change: drop empty examples, keep only numeric fields in the batch (`remove_columns`, `remove_unused_columns=True`),
        and give every rank data
LG149 * torch\.cat\(\): expected a non-empty list ::! deepspeed/
    title: ZeRO concatenated an empty list of tensors: a parameter group is empty on this rank
    change: give the optimizer only groups with trainable parameters, and more parameters than ranks
LG082 * Given (?:groups=\d+, weight|normalized_shape|input size|transposed)|expected input\[.*\] to have \d+ channels
    |index (?:put|_\w+) .*shape mismatch|shape mismatch: (?:indexing tensors|value tensor)
    title: an input has a different shape than the layer expects
    change: print the shapes at the failing line and compare them with the layer (channels, hidden size); check that the
        processor belongs to this model
LG082 * (?:a Tensor with \d+ elements cannot be converted to Scalar|Boolean value of Tensor with more than one
    |only one element tensors can be converted|selected index k out of range|too many indices for tensor
    |invalid index of a 0-dim tensor|Dimension out of range)
    title: a tensor has a different number of elements or dimensions than the code expects
    change: reduce it first (`loss.mean()`), use `tensor.item()` for one number, and print the shapes at the failing
        line; a loss of shape [N] comes from several devices, one of shape [0] from an empty batch
LG081 * Index put requires the source and destination dtypes match|Half did not match Float|did not match (?:Half|Float
    |BFloat16)|Got unsupported ScalarType BFloat16|value cannot be converted to type (?:at::Half
    |c10::\w+) without overflow|expected (?:input and weight|both inputs) to have (?:the )?same dtype
    |Input type \(\S+\) and bias type
    title: an operation got tensors of two dtypes, or a value outside the range of fp16 or bf16
    change: cast before the operation (`x.to(y.dtype)`; numpy has no bf16: `x.float().cpu().numpy()`), use
        `torch.finfo(dtype).min` for masks instead of -1e9, and load model, adapters and inputs in one dtype
LG081 * Can't convert cuda:\d+ device type tensor to numpy
    |Expected a '(?P<a>\w+)' device type for generator but found '(?P<b>\w+)'
    |Expected one of cpu, cuda.*device type at start of device string|Invalid device string:
    title: an operation got a tensor or generator on the wrong device, or an invalid device name
    change: move tensors with `.detach().cpu()` before numpy, create the sampler's generator on the CPU (no
        `torch.set_default_device("cuda")`), and write devices as `cuda:0`
LG012 CUDA driver initialization failed
    title: CUDA could not be initialized on this host: no GPU is visible to the process
    change: check `nvidia-smi`, CUDA_VISIBLE_DEVICES and the container's `--gpus all`
LG019 * (?:cutlassF|No available kernel): ?.*(?:no kernel found|Aborting execution)|No available kernel\. Aborting
    |FlashAttention (?:forward|backward) only supports? head dim|no kernel found to launch
    title: no attention kernel supports this GPU, dtype or head size
    change: use `attn_implementation="eager"` (or `sdpa` with all its kernels enabled), fp16 or bf16 inputs, and a torch
        built for this GPU
LG206 Only Tensors created explicitly by the user \(graph leaves\) support the deepcopy
    title: `deepcopy` of the model failed, because the model holds a tensor with a gradient graph
    change: detach tensors that the module keeps between steps, or copy the model before the first forward pass
LG149 * start \(\d+\) \+ length \(\d+\) exceeds dimension size ::! deepspeed/
    title: a slice exceeds ZeRO's flat buffer: the checkpoint or the parameters have a different size than when the
        buffer was created
    change: load only the weights and start with a new optimizer, do not resize or replace parameters after
        `deepspeed.initialize`, or install a newer DeepSpeed
LG032 * The size of tensor a \(\d{6,}\) must match the size of tensor b \(\d{6,}\) ::! deepspeed/runtime/zero/
    |deepspeed/ops/
    title: a flat partition of ZeRO and an optimizer state differ in size: the checkpoint was saved with another world
        size or model
    change: resume with the same ranks, stage and model, convert to a universal checkpoint (`ds_to_universal`), or load
        only the weights
LG051 * Parent directory (?P<path>\S+) does not exist
    title: torch could not write a file: the folder {path} was never created
    change: check that the disk is mounted and writable on every host (DeepSpeed continues after it failed to create
        the folder); without a shared disk create the folder on every host and set `save_on_each_node=True`
LG215 * (?:EOFError|ConnectionResetError|BrokenPipeError|ConnectionRefusedError
    |FileNotFoundError).* ::$ multiprocessing/(?:connection|managers|queues|resource_sharer|reduction|synchronize)
    |/socket
    title: a process lost its connection to a worker: a data loader worker, or the process that started it, exited
    change: find the first error of the process that exited (often it was killed because memory or /dev/shm ran out);
        run once with `num_workers=0`
LG216 AF_UNIX path too long
    title: the path of a temporary socket is too long
    change: set TMPDIR to a short path such as /tmp
LG118 some parameters appear in more than one parameter group|can't optimize a non-leaf Tensor
    |optimizer can only optimize Tensors|param 'initial_lr' is not specified
    title: the optimizer got a parameter twice or a tensor that is not a leaf, or a scheduler resumes without
        `initial_lr`
    change: build the groups once from `model.named_parameters()` of the complete model, with tied weights in one group
        only; create a scheduler with `last_epoch=-1` and load its state
LG234 Provided `function` which is applied to .* returns a
    title: the function passed to `map` returned a value of a type that `datasets` does not support
    change: return a dictionary (with `batched=True`: of lists of equal length)
LG043 `rope_scaling`'s (?:type|factor|rope_type) field must be
    title: the installed transformers is too old for the model's `rope_scaling`
    change: install the transformers that the model's config.json names (`transformers_version`), on every host
LG228 mutable default <class '[^']*'> for field (?P<name>\w+) is not allowed: use default_factory
    title: a package does not support this Python: 3.11 and later refuse the mutable default of its dataclass field
        `{name}`
    change: install a newer release of the package whose file is last in the traceback, or use Python 3.10
"""
