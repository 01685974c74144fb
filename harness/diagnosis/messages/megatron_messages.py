# SPDX-License-Identifier: Apache-2.0
"""Messages of Megatron-DeepSpeed, Megatron-core and GPT-NeoX about arguments, groups, checkpoints and data."""

from __future__ import annotations

MESSAGES = r"""
LG290 (?:Error|Exception|Exit)\b.*?(?:world.?size \((?P<ranks>\d+)\) is not divisible by (?P<what>[\w ()-]*(?:parallel
    |pipeline)[\w ()-]*))
    title: the number of ranks, {ranks}, is not divisible by {what}
    change: make the world size a multiple of the product of the tensor, pipeline, sequence and context degrees, or
        lower `--tensor-model-parallel-size`, `--pipeline-model-parallel-size` or `--ds-sequence-parallel-size`
LG290 (?:Error|Exception|Exit)\b.*?(?:world.?size: ?\(?(?P<ranks>\d+)\)? not divisible by (?P<what>.*)
    |world size cannot be smaller than (?:the )?(?P<what2>(?:model|tensor|pipeline)\S* ?parallel\S* ?size)
    |world_size=(?P<all>\d+), pp=\d+, mp=\d+|\(global_num_gpus / pp_size\) / mp_size .* must be a whole number)
    title: the world size is not a multiple of the tensor-parallel degree times the pipeline degree
    change: make the world size a multiple of tensor x pipeline degree (GPT-NeoX: `model_parallel_size` x
        `pipe_parallel_size`), or lower a degree
LG290 (?:Error|Exception|Exit)\b.*?(?:(?:global
    |current global) batch size \((?P<batch>\d+)\) is not divisible by micro.batch.size \((?P<micro>\d+)\))
    title: the global batch size, {batch}, is not a multiple of the micro-batch size times the data-parallel ranks
    change: set `--global-batch-size` to a multiple of `--micro-batch-size` times data-parallel ranks (world size
        divided by tensor times pipeline degree)
LG290 (?:Error|Exception|Exit)\b.*?(?:expected global batch size interval
    |expected the following format: --rampup-batch-size|expected global batch.size interval)
    title: `--rampup-batch-size` does not reach the global batch size in equal increments
    change: give `--rampup-batch-size START INCREMENT SAMPLES` with (global batch - START) divisible by INCREMENT
LG290 (?:Error|Exception|Exit)\b.*?(?:(?:number of layers|num.layers\S*(?: \(\d+\)| ?: ?\d+)?) (?:is not|should be
    |must be) divisible by|num_layers_per_stage must be divisible|(?:en|de)coder_num_layers \(\d+\) must be divisible
    |Number of layers \(\d+\) is not divisible by the length of pattern
    |num-layers should be divisible by num-unique-layers|number of layers is not divisible by)
    title: the number of layers is not divisible by the number of pipeline stages, or by another group of layers
    change: choose `--num-layers` as a multiple of `--pipeline-model-parallel-size` (times virtual stages), or another
        number of stages
LG290 (?:Error|Exception|Exit)\b.*?(?:(?P<a>num_attention_heads|hidden_size|num_kv_heads|num_key_value_heads
    |num_query_groups|ffn_hidden_size|vocab\w*_size|vocab size|num_heads|n_heads|hidden size
    |attention heads)\b.{0,60}(?:must|should|has to|needs to) (?:be )?(?:evenly )?(?:divisible by|divide|a multiple of))
    title: `{a}` is not divisible by the number that the message names, such as the number of heads or the
        tensor-parallel degree
    change: make the hidden size a multiple of the heads, and heads and key-value heads multiples of the tensor-parallel
        degree, or lower the degree
LG290 (?:Error|Exception|Exit)\b.*?(?:(?P<a>\d+) is not divisible by (?P<b>\d+)$) ::! megatron|mpu|tensor_parallel
    |parallel_state
    title: a size, {a}, is not divisible by a parallel degree, {b}
    change: choose heads, hidden size, vocabulary (`--make-vocab-size-divisible-by`) and batches that the
        tensor-parallel degree divides, or lower the degree
LG290 (?:Error|Exception|Exit)\b.*?(?:(?:[Ff]irst
    |[Ll]ast) dimension of the tensor should be divisible by (?:the )?tensor.parallel
    |Number of KV heads must be at least model_parallel_size
    |number of microbatches \(\d+\) is not divisible by pipeline.model.parallel.size|sequence length \S* ?(?:must
    |should) be divisible by|[Mm]icro.?batch\S* .*(?:divisible|multiple).*pipeline)
    title: a size is not divisible by the degree of tensor, sequence or pipeline parallelism
    change: choose a sequence length that the tensor (sequence) degree divides, and a number of micro-batches that the
        number of stages divides, or lower the degree
LG290 (?:Error|Exception|Exit)\b.*?(?:pipeline.model.parallel.size should be greater than 2 with interleaved
    |interleaved pipeline parallelism expected|Interleav(?:ing|ed schedule)(?: is)? not supported|(?:non-interleaved
    |non-pipeline-parallel) (?:schedule|pipeline parallelism) does not support model chunk)
    title: the interleaved pipeline schedule does not support this setting
    change: use more than two pipeline stages with `--num-layers-per-virtual-pipeline-stage`, or leave that option out
LG131 (?:Error|Exception|Exit)\b.*?(?:[Pp]ipeline parallel(?:ism)? is (?:currently )?(?:unsupported|not supported)
    |not supported in pipeline parallelism yet|pipeline_model_parallel_size must be 1 if pipeline parallel is disabled
    |(?:Pipe and/or Grad partitioning|MoE) (?:are|is) not supported (?:for|with) (?:MoE|pipeline)
    |legacy get_model_parallel_\w+ is only supported if PP is disabled|Use DeepSpeed to use zero-bubble
    |Exact semantics require ZBH1)
    title: pipeline parallelism does not support this setting
    change: train without pipeline parallelism (`--no-pipeline-parallel`, `--pipeline-model-parallel-size 1`; GPT-NeoX:
        `pipe_parallel_size: 0`), or turn off the setting that the message names
LG138 (?:Error|Exception|Exit)\b.*?(?:sequence.?parallel\S* (?:size )?> 1 enables DeepSpeed's sequence parallel, which i
    s not compatible|DeepSpeed's sequence parallel does not work with tensor parallel or pipeline
    |Can not use sequence paralll?elism without tensor|To enable `sequence_parallel`, `input_is_parallel`
    |sequence_parallel` cannot be enabled at the same time
    |sequence_parallel=True and gather_output=True are incompatible
    |Cannot have self\.input_is_parallel=False and self\.sequence_parallel)
    title: the sequence-parallel setting conflicts with tensor or pipeline parallelism, or needs tensor parallelism
    change: use DeepSpeed's (`--ds-sequence-parallel-size`) without tensor and pipeline parallelism, or Megatron's
        (`--sequence-parallel`) with tensor parallelism
LG138 (?:Error|Exception|Exit)\b.*?(?:sequence parallelism requires DeepSpeed version
    |Distributed attention is not supported in this DeepSpeed version)
    change: install DeepSpeed 0.10.2 or later
LG291 (?:Error|Exception|Exit)\b.*?(?:requires? setting the environment variable CUDA_DEVICE_MAX_CONNECTIONS to 1)
    title: the environment variable CUDA_DEVICE_MAX_CONNECTIONS is not 1, but this kind of parallelism needs 1
    change: export `CUDA_DEVICE_MAX_CONNECTIONS=1` on every host (DeepSpeed's launcher: in `.deepspeed_env`)
LG291 (?:Error|Exception|Exit)\b.*?(?:(?P<old>--[\w-]+) (?:argument )?is no longer valid, use (?P<new>--[\w-]+))
    title: this Megatron has `{new}` instead of `{old}`
    change: write `{new}` instead of `{old}`
LG291 (?:Error|Exception|Exit)\b.*?(?:(?P<name>[\w-]+) argument is None) ::! megatron|arguments
    title: Megatron requires the argument `--{name}`, which is missing
    change: give `--{name}` (with hyphens) on the command line
LG291 (?:Error|Exception|Exit)\b.*?(?:expected (?P<kind>iteration|sample)-based (?P<what>training|learning? rate decay
    |learni?n?g rate warmup)|expected no batch-size rampup for iteration-based|can only specify one of lr-warmup
    |cannot have both num-layers and encoder-num-layers|either (?:num-layers or encoder-num-layers
    |train-iters or train-samples) should be|Must specify either train_epochs or train_iters
    |Cannot specify both train epochs and train iters)
    title: arguments for the training length, the warm-up or the layers conflict with each other, or one is missing
    change: give all in iterations (`--train-iters`, `--lr-decay-iters`, `--lr-warmup-iters`) or all in samples
        (`--train-samples`, `--lr-decay-samples`, `--lr-warmup-samples`), and `--num-layers` once
LG291 (?:Error|Exception|Exit)\b.*?(?:NeoXArgs (?P<what>keys|types|values) cannot be validated
    |to be updated property .* does not exist)
    title: GPT-NeoX does not accept some entries of its configuration: {what}
    change: read the lines above, which name the key; compare the YAML with `configs/neox_arguments.md` of that release
LG291 (?:Error|Exception|Exit)\b.*?(?:has the following duplicate keys with previously loaded file
    |At least two config files have the same filename|is already specified elsewhere\. Reading in a different value)
    title: two configuration files of GPT-NeoX have the same key or the same name
    change: set each key in one YAML file only, and give the files different names
LG291 (?:Error|Exception|Exit)\b.*?(?:max_position_embeddings must be bigger or equal seq_length
    |min_lr must be smaller or equal lr|checkpoint_factor or extra_save_iters must be defined if save
    |validate_values\(\) .*(?:is None|lr is None)|DeepSpeed (?:fp16|bf16) field was set but precision conflicts
    |OneBitAdam requires train_iters|Please provide \*either\* `data_path` or
    |One or more of train/valid/test data_path are not provided|tokenizer_type must be specified in the \.yml
    |Must be using deepspeed to (?:use|run) neox|Zero Stage must be an integer|If use_mup == True, you must specify
    |Length of attention config list must equal|`load` parameter must be supplied|Must use `train_label_data_paths`
    |Packing implementations other than|train_data_weights != None|Weighting by number of documents)
    title: the configuration of GPT-NeoX conflicts with itself or lacks a key
    change: in the YAML, change the key that the message names
LG291 (?:Error|Exception|Exit)\b.*?(?:MoE is not compatible with zero stages 2 and 3
    |Zero stage 3 not compatible with (?:Mamba|RWKV)|GMLP Blocks are not compatible|(?:RWKV|Mamba)\S* (?:not
    |does not) \S* ?\S* ?(?:compatible|have dropout)|Sparse attention not compatible with
    |GQA / MQA currently only compatible|GQA currently does not support
    |Gradient Noise Scale logging does not work with zero stage 2|Retro\S* .*not support
    |Transformer.?[Ee]ngine (?:does not support|is only approved)|lm cross entropy in fp16 only support
    |residual connection in fp32 only supported)
    title: the model's architecture conflicts with another setting
    change: change one of the two that the message names (lower the ZeRO stage, use another attention, turn the logging
        off)
LG291 (?:Error|Exception|Exit)\b.*?(?:(?:distribut\w+[- ](?:checkpointed[- ]activations|recompute activations)
    |recompute_?\w+|recomput\w+ (?:method|granularity)).* (?:must|need|require|only|not yet|supported|available)
    |for distribute\S*-activations to work|distribute_saved_activations: \S+ must be false
    |Invalid activation recompute method|inference does not work with activation checkpointing
    |number of layers is not divisible by checkpoint-num-layers)
    title: the activation-recomputation options conflict with each other or with another setting
    change: use `--recompute-granularity full --recompute-method uniform --recompute-num-layers 1`, or `selective`
        without a method
LG031 (?:Error|Exception|Exit)\b.*?(?:value from checkpoint \((?P<saved>[^)]*)\) is not equal to the (?:currently set ar
    gument|input argument) value \((?P<given>[^)]*)\))
    title: the checkpoint was saved with other model arguments: {saved} then, {given} now
    change: give the arguments (layers, hidden size, heads, vocabulary, tokenizer) with which the checkpoint was saved,
        or start without `--load`
LG031 (?:Error|Exception|Exit)\b.*?(?:checkpoint versions do not match
    |forward after load of checkpoint does not yield a close result|could not find data for \S+ in the checkpoint)
    title: the checkpoint has another format version, or belongs to another model
    change: load it with the release of the program that saved it, or convert it with its tools
LG034 (?:Error|Exception|Exit)\b.*?(?:error parsing metadata file|Unable to load (?:checkpoint for iteration
    |iteration from checkpoint)|could not find (?:BERT )?checkpoint|--use-checkpoints-args requires --load)
    title: the `--load` folder has no readable checkpoint for the requested iteration
    change: compare `latest_checkpointed_iteration.txt` (or `latest`) with the folders that exist, on every host
LG032 (?:Error|Exception|Exit)\b.*?(?:(?:class input ?value\S* .*
    |class input value)(?:and )?checkpoint ?values? .*for .* do not match|both override and use-checkpoint are set)
    title: the arguments set a different learning-rate schedule than the checkpoint has
    change: give `--override-opt_param-scheduler` (`override_lr_scheduler: true` in GPT-NeoX) to use the arguments, or
        `--use-checkpoint-opt_param-scheduler` to use the checkpoint's
LG170 (?:Error|Exception|Exit)\b.*?(?:(?:model|data|tensor model|pipeline model|embedding
    |position embedding)[ -]parallel group(?:-gloo)? is (?:already|not) (?:yet )?initialized|(?:embedding
    |FP8 amax reduction|position embedding) group is (?:already|not) initialized|memory buffer is (?:already
    |not) (?:initialized|allocated)|fp32_allreduce is (?:already|not) [Ii]nitialized)
    title: a process group or buffer of Megatron was used before it was created, or created twice
    change: call `initialize_megatron` (`mpu.initialize_model_parallel`) once, before the model and DeepSpeed are set up
LG117 (?:Error|Exception|Exit)\b.*?(?:expected local-rank to be the same as rank % device-count)
    title: LOCAL_RANK does not equal the rank modulo the number of visible GPUs
    change: start as many ranks on each host as it has visible GPUs, and let one launcher set RANK and LOCAL_RANK
LG012 (?:Error|Exception|Exit)\b.*?(?:Megatron requires (?:CUDA|accelerator))
    title: Megatron found no GPU
    change: check `nvidia-smi` and CUDA_VISIBLE_DEVICES, and that torch is a CUDA build
LG048 (?:Error|Exception|Exit)\b.*?(?:Skipped (?P<count>\d+) iterations in a row due to Overflow)
    title: the gradients overflowed in {count} steps in a row; each step was skipped and the loss scale lowered
    change: use bf16, lower the learning rate or warm up longer, and check the data and the loaded weights
LG291 (?:Error|Exception|Exit)\b.*?(?:Only one of self\.fp16.*should be True
    |Either config\.fp16 or config\.bf16 should be True|both fp16 and bf16 flags cannot be active
    |softmax should be in fp32 when scaled)
    title: the dtype settings of the Megatron model conflict with each other
    change: give one of `--fp16` and `--bf16`, and leave the softmax in fp32
LG130 (?:Error|Exception|Exit)\b.*?(?:(?:pipeline_dtype|dtype|tensor_shape) must be (?:provided
    |specified) if recv_(?:prev|next)|When using pipeline parallelism, pipeline_dtype must
    |Can not use both overlap_p2p_comm and batch_p2p|input_tensor (?:should only be|must have either) length
    |expected Tensor, found \w+\.$|counter-productive to free a view|output should be pseudo-'freed'|grad_output == ')
    title: a pipeline stage does not know the shape or dtype that it receives, or sent a value that is not a tensor
    change: set the pipeline's dtype (`pipeline_dtype`, `--bf16`) and the sequence length and micro-batch of all stages
        to the same values; let every stage return one tensor
LG130 (?:Error|Exception|Exit)\b.*?(?:(?:ParallelTransformerLayerPipe|\w*(?:Mamba|RWKV|GMLP|gMLP)\w*|ParallelLinearPipe
    |NormPipe|\w+Pipe) (?:expects|should only receive) |Expected 3 arguments \(input_ids, position_ids, attention_mask\)
    |Expecting an input tuple of size >= 2|Received more inputs than understood|Incorrect number of arguments to _(?:pre
    |post)_transformer_block)
    title: a pipeline layer got a different number of inputs than it takes
    change: let the layer before it return what this one expects (hidden states and mask)
LG046 (?:Error|Exception|Exit)\b.*?(?:(?P<name>\S+) has data type (?P<a>\S+) which is different than (?P<b>\S+)
    |you should increase MAX_DATA_DIM)
    title: a batch that is broadcast in the tensor-parallel group has a different dtype or more dimensions than expected
    change: give tokens as int64 (`torch.long`), with at most the dimensions that `broadcast_data` takes
LG135 (?:Error|Exception|Exit)\b.*?(?:(?:last epoch number of samples|BlendedDataset size is improperly))
    title: the indexed dataset has fewer samples than the training requests
    change: lower `--train-samples` or `--train-iters`, give more data or another `--split`, and delete the cached
        `*_idx.npy` index files in the data's folder
LG045 (?:Error|Exception|Exit)\b.*?(?:no samples left to consume: (?P<numbers>.*))
    title: the training has consumed all samples of the dataset ({numbers})
    change: lower `--train-iters`, give more data, or reset the consumed samples when another dataset is loaded
LG135 (?:Error|Exception|Exit)\b.*?(?:Index (?:file )?doesn'?t match (?:the )?expected format
    |num_tokens \(\d+\) is greater than max_seq_length|make sure each sample has at least two sentences
    |dataloader type is not supported|(?:Dataset type not fully implemented|Invalid dataset_type
    |dataset_impl=\S+ not implemented))
    title: the data files or `dataset` options do not match the program's indexed dataset format
    change: prepare them with the program's own `preprocess_data.py` and the same tokenizer, and give the prefix without
        `.bin` or `.idx` as `--data-path`
LG230 (?:Error|Exception|Exit)\b.*?(?:(?:PAD|MASK|CLS|SEP|EOD|detokenizer) is not (?:provided|implemented) for
    |tokenizer is not implemented\.$|--vocab-extra-ids 100|Requested token doesn't exist in current tokenizer)
    title: the tokenizer lacks a special token, or the program does not know its type
    change: use a `--tokenizer-type` that this release has, with its vocabulary files (`--vocab-file`, `--merge-file`,
        `--tokenizer-model`)
LG220 (?:Error|Exception|Exit)\b.*?(?:Please install (?P<name>FlashAttention|einops|flash-attn)\b.* first
    |Cannot import FlashAttention|Triton version of FlashAttention is not installed
    |Apex must currently be installed to use megatron|einops is required for Rotary|transformer-engine required for fp8
    |Cannot find FlashAttention op builder|fused_weight_gradient_mlp_cuda module is not found
    |custom CUDA extension fused_weight_gradient_mlp_cuda)
    title: a package that Megatron needs for this option is not installed
    change: install it for this torch and CUDA (flash-attn, einops, apex with `--cpp_ext --cuda_ext`,
        transformer-engine), or leave the option out (`--use-flash-attn*`, `--no-gradient-accumulation-fusion`)
LG182 (?:Error|Exception|Exit)\b.*?(?:(?P<name>\S+) optimizer is not supported\.$|Optimizer type \S+ not recognized
    |CPU offloading is for Adam|Only Adam currently supported, due to checkpointing|fp16 expects a grad scaler)
    title: the program does not support this optimizer, or does not support it with another setting
    change: use an optimizer that the program's documentation lists, such as `adam` or `sgd`
LG024 Creation of the build directory \S+ failed|fused_kernels.*(?:error|failed|RuntimeError)
    title: the fused kernels of the program could not be built
    change: remove `megatron/fused_kernels/build`, check `nvcc --version` against torch's CUDA, and build on one host
        first
LG291 * (?:AssertionError|ValueError|RuntimeError): .* ::$ megatron/(?:training/)?arguments|neox_arguments/
    title: the arguments of Megatron or GPT-NeoX conflict, or one is missing
    change: change the option that the message names
"""
