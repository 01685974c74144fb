# SPDX-License-Identifier: Apache-2.0
"""Messages that accelerate prints when it runs DeepSpeed."""

from __future__ import annotations

MESSAGES = r"""
LG181 When using DeepSpeed,? `accelerate\.prepare\(\)` requires you to pass at least one of training or evaluation
LG181 unsupported operand type\(s\) for \*: 'NoneType' and 'int' ::! accelerate/accelerator
    title: accelerate cannot compute the batch size: the DeepSpeed JSON lacks `train_micro_batch_size_per_gpu` or
        `gradient_accumulation_steps`
    change: write `train_micro_batch_size_per_gpu` and `gradient_accumulation_steps` into the DeepSpeed JSON, as numbers
        or `"auto"`
HF003 (?:unsupported operand type\(s\) for|not supported between instances of) .*'str' ::! accelerate/
    |transformers/integrations/deepspeed
    title: a value of the DeepSpeed JSON is still the string `auto` where accelerate or transformers needs a number
    change: write a number instead of `auto` for batch sizes, accumulation, clipping and bucket sizes, or start the
        script through the Trainer or accelerate, which fill them in
LG181 At least one of the dataloaders passed to `accelerate\.prepare\(\)` has `None` as batch size
    title: a data loader has no batch size (`batch_size` is None, as with a batch sampler), so accelerate
        cannot fill in the micro-batch size
LG181 (?:You must specify|must specify) a training or evaluation dataloader in `accelerate\.prepare\(\)`
    change: pass the data loader to the same `accelerator.prepare()` call as the model and the optimizer
LG180 values that mismatch kwargs +values:(?: \| )?(?P<pairs>.*?)(?: \| The easiest|$)
    title: the DeepSpeed JSON contradicts what accelerate computed: {pairs}
    change: write `"auto"` for these keys in the DeepSpeed JSON, or give the script the same values (the batch size of
        the data loader, `gradient_accumulation_steps`, the mixed precision)
HF003 `(?P<key>[\w.]+)` not found in kwargs\. Please specify `[\w.]+` without `auto`
    title: the DeepSpeed JSON has `auto` for `{key}`, which accelerate cannot fill in
    change: write a number for `{key}` in the DeepSpeed JSON; accelerate replaces `auto` only where the script's objects
        give the value: batch size, accumulation, clipping, precision and bucket sizes
HF003 Can't find `model\.config` entry,
    title: `auto` in the DeepSpeed JSON needs `model.config.hidden_size`, and this model has no `config`
    change: write integers for `reduce_bucket_size`, `stage3_prefetch_bucket_size` and
        `stage3_param_persistence_threshold`
HF003 neither `model\.config\.hidden_size` nor `model\.config\.hidden_sizes`
    |has neither `hidden_size` nor `hidden_sizes`
    title: `auto` in the DeepSpeed JSON needs the model's `hidden_size`, which its configuration does not have
    change: write integers instead of `auto` for `reduce_bucket_size` (hidden size squared),
        `stage3_prefetch_bucket_size` (0.9 times that) and `stage3_param_persistence_threshold` (10 times hidden size)
HF003 Can't find (?P<key>[\w.]+) entry in the config
    title: accelerate needs `{key}`, which the DeepSpeed JSON does not have
    change: add `{key}` to the DeepSpeed JSON, as a value or `"auto"`
LG182 You cannot specify an optimizer in the config file and in the code at the same time
    title: the optimizer is both in the DeepSpeed JSON and in the script
    change: remove `optimizer` from the DeepSpeed JSON, or prepare `accelerate.utils.DummyOptim(params)` in the script
LG182 You cannot create a `DummyOptim` without specifying an optimizer in the config file
    title: the script prepares a `DummyOptim`, but the DeepSpeed JSON has no `optimizer`
    change: add `optimizer` to the DeepSpeed JSON, or create a real optimizer in the script
LG182 You cannot specify a scheduler in the config file and in the code at the same time
    title: the scheduler is both in the DeepSpeed JSON and in the script
    change: remove `scheduler` from the DeepSpeed JSON, or prepare `accelerate.utils.DummyScheduler` in the script
LG182 specify a scheduler in the config file or pass in the `lr_scheduler_callable`
    title: the script prepares a `DummyScheduler`, but the DeepSpeed JSON has no `scheduler`
    change: add `scheduler` to the DeepSpeed JSON, or give `DummyScheduler` an `lr_scheduler_callable`
LG182 You can only specify `accelerate\.utils\.DummyScheduler` in the code when using `accelerate\.utils\.DummyOptim`
    title: the script prepares a `DummyScheduler` together with a real optimizer
    change: use `DummyOptim` and `DummyScheduler` together (with `optimizer` and `scheduler` in the DeepSpeed JSON), or
        create a real scheduler
LG183 You can't train a model that has been loaded with `device_map='auto'` in any distributed mode
    title: the model was loaded with `device_map="auto"`, which spreads it over all GPUs that a rank sees
    change: remove `device_map` from `from_pretrained` for training on several ranks, or set `device_map={"":
        local_rank}`
LG183 Your model contains `DTensor` parameters, which is incompatible with DDP
LG183 You can't customize device placements with DeepSpeed
    title: the script passed `device_placement` to `prepare`, but DeepSpeed places the model itself
    change: leave out `device_placement` under DeepSpeed
LG183 You can't move a model that has some modules offloaded to cpu or disk
    title: `device_map` offloaded modules to the CPU or disk, and accelerate cannot move such a model
    change: load without `device_map`; for offload under DeepSpeed use `offload_param` of ZeRO-3
LG197 You can't train a model that has been loaded in 8-bit(?: or 4-bit)? precision on multiple devices
    title: the quantized model was spread over several GPUs (`device_map="auto"`) and the job runs several ranks
    change: load it with `device_map={"": local_rank}` (`PartialState().local_process_index`), so that each rank has the
        whole quantized model
LG197 You can't train a model that has been loaded in 8-bit(?: or 4-bit)? precision on a different device
    title: the quantized model was loaded on a GPU that is not its rank's own
    change: load it with `device_map={"": local_rank}` (`PartialState().local_process_index`), and call
        `torch.cuda.set_device(local_rank)` first
LG197 You can't train a model that has been loaded in 8-bit(?: or 4-bit)? precision with CPU or disk offload
    title: `device_map="auto"` offloaded parts of the quantized model, because they did not fit on the GPU
    change: load it with `device_map={"": local_rank}`; if it does not fit, use a smaller model or 4-bit instead of
        8-bit
LG184 When using `deepspeed_config_file`, the following accelerate config variables will be ignored
    title: accelerate's config file sets `deepspeed_config_file`, and also DeepSpeed settings that accelerate then
        ignores
    change: remove `gradient_accumulation_steps`, `gradient_clipping`, `zero_stage`, `offload_*`,
        `zero3_save_16bit_model` and `mixed_precision` from accelerate's file, and write them in the DeepSpeed JSON
LG184 `--mixed_precision` arg cannot be set to `(?P<arg>\w+)` when `(?P<key>\w+)` is set in the DeepSpeed config file
    title: accelerate's mixed precision is `{arg}` and the DeepSpeed JSON enables `{key}`
    change: give both the same format: `--mixed_precision {key}` (or `mixed_precision: {key}`), or enable `{arg}` in the
        DeepSpeed JSON
LG184 had unknown keys \(\[?(?P<keys>.*?)\]?\), please try upgrading your `accelerate`
    title: accelerate's configuration file has keys that the installed accelerate does not know: {keys}
    change: install a newer accelerate, or remove these keys; `accelerate config` writes a file for the installed
        version
LG185 had unknown keys \(\[?(?P<keys>.*?)\]?\), please try upgrading your `transformers`
    title: a configuration file has keys that the installed transformers does not know: {keys}
    change: install a newer transformers, or remove these keys
LG184 Please specify the ZeRO optimization config in the DeepSpeed config
    title: the DeepSpeed JSON has no `zero_optimization` block, which accelerate needs
    change: add `"zero_optimization": {"stage": 1}` (or another stage) to the JSON
LG184 You cannot pass in a `deepspeed_plugin` when creating a second `Accelerator`
    change: give all plugins to the first Accelerator (`deepspeed_plugins={"a": ..., "b": ...}`, accelerate 1.0 and
        later) and select one with `state.select_deepspeed_plugin`
LG184 Couldn't retrieve the active `DeepSpeedPlugin` as none were enabled|A `DeepSpeedPlugin` object must be enabled
    title: the script reads the DeepSpeed plugin, but the Accelerator was created without DeepSpeed
    change: start it with `accelerate launch --use_deepspeed` (or `distributed_type: DEEPSPEED` in accelerate's file),
        or pass a `deepspeed_plugin` to the Accelerator
LG184 DeepSpeed is not enabled, please make sure that an `Accelerator` is configured for `deepspeed`
    title: the script calls DeepSpeed, but the Accelerator was created without it
    change: start it with `accelerate launch --use_deepspeed`, or pass a `deepspeed_plugin` to the Accelerator
LG184 (?:cannot|You can't) pass in both `(?P<a>\w+)` and `(?P<b>\w+)`
    |`deepspeed_plugin` must be a(?:n `accelerate| DeepSpeedPlugin)
    title: the script gave the Accelerator plugins that exclude each other
    change: pass a single `deepspeed_plugin` (a DeepSpeedPlugin), or a dictionary as `deepspeed_plugins`
LG184 'enabled' can only be set through calling 'AcceleratorState
    change: call `AcceleratorState().select_deepspeed_plugin(name)`
LG184 You can only use one of `--cpu`, `--multi_gpu`|A `distributed_type` must be specified in the config file
    change: pass `--use_deepspeed` alone, or set `distributed_type: DEEPSPEED` in accelerate's config file
LG184 Unknown mixed_precision mode: (?P<mode>\S+)\. Choose between
    title: accelerate does not know the mixed precision `{mode}`
    change: set `mixed_precision` to `no`, `fp16`, `bf16` or `fp8`
LG184 You need to manually pass in `--num_processes` using this config yaml
    change: pass `--num_processes N` to `accelerate launch`, where N is the world size over all hosts
LG184 Less than two GPU ids were configured and tried to run on multiple GPUs|need to use at least 2 processes to use
    change: give `--num_processes` and `--gpu_ids` for at least two GPUs, or leave out `--multi_gpu`
LG184 When using multiple machines, you need to specify the main process (?P<what>IP|port)
    title: `accelerate launch` was configured for several machines without the {what} of the main process
    change: give `--main_process_ip`, `--main_process_port` and `--machine_rank` on every machine
LG184 nossh launcher requires DeepSpeed >= 0\.14\.5
    title: the launcher `nossh` needs DeepSpeed 0.14.5 or later
    change: install DeepSpeed 0.14.5 or later, or use another `deepspeed_multinode_launcher` (pdsh)
LG184 The passed configuration file `(?P<path>[^`]*)` does not exist|The passed config file located at \S+ doesn't exist
    title: accelerate's configuration file does not exist
    change: give its path with `--config_file`, on every host, or run `accelerate config`
LG184 Specified distributed type \S+ but only using 1 GPU on a single machine
    change: set `num_processes` to the number of GPUs, or `distributed_type: NO` for a single one
LG066 Tried to launch distributed communication on port `(?P<port>[^`]*)`, but another process is utilizing it
    title: port {port} of accelerate's rendezvous is in use by another process
    change: give another `--main_process_port` (0 for any free one on a single host), or end the process that holds it:
        `ss -ltnp`
LG067 Tried to launch on distributed with multinode, but `MASTER_ADDR` env was not set
    title: the job runs on several nodes and MASTER_ADDR is not set
    change: export MASTER_ADDR (the first host's name) and MASTER_PORT on every node
LG186 You can't use same `Accelerator\(\)` instance with multiple models when using DeepSpeed
    title: the script prepared several models with one Accelerator and one DeepSpeed configuration
    change: prepare only the model that you train, and do not pass a frozen one to `prepare`; a second model that you
        train needs its own plugin and its own Accelerator (`deepspeed_plugins`, accelerate 1.0 and later)
LG186 Please make sure to properly initialize your accelerator via `accelerator = Accelerator\(\)`
    change: create the Accelerator before any other use of accelerate (loggers, `PartialState`)
LG186 object has no attribute `\w+`\. This happens if `(?:AcceleratorState|PartialState)\._reset_state\(\)` was called
    change: create the Accelerator again after the reset, or do not reset its state
LG187 Cannot get 16bit model weights because `stage3_gather_16bit_weights_on_model_save`
LG206 Cannot pickle a prepared model with automatic mixed precision
    title: the script pickled a model that `accelerator.prepare` had wrapped
    change: save `accelerator.unwrap_model(model)`
LG207 You can't save the model since some parameters are on the meta device
LG188 You can't use batches of different size with `dispatch_batches=True`
    title: the main process dispatched batches of different sizes, as happens with an iterable dataset
    change: set `dispatch_batches=False` (`accelerator_config={"dispatch_batches": false}` in TrainingArguments), so
        that each rank reads its own batches; or pad all batches to one length
LG188 Iterable datasets require `dispatch_batches=False`
    change: set `accelerator_config={"dispatch_batches": False}`
LG188 the batch size \(.*?\) needs to be a round multiple of the number of processes
    |In order to use `split_batches==True`
    change: choose a batch size that is a multiple of the number of ranks, or set `split_batches=False`
LG188 Using `dispatch_batches=True` requires `put_on_device=True`
    change: leave out `dispatch_batches`, or set `put_on_device=True`
LG045 Batch does not contain any data \(`
    title: the main process ran out of data: some ranks got no part of a dispatched batch
    change: set `drop_last=True` or `even_batches=True`, or give the main process enough samples for all ranks
LG189 Can only concatenate tensors but got|Cannot find the batch size from empty|Can only find the batch size of tensors
    title: a batch has values that are not tensors, so accelerate cannot concatenate or split it
    change: let the collator return a dictionary of tensors, without strings, plain numbers or None, or set
        `dispatch_batches=False`
LG190 One or more of the tensors passed to (?P<op>\S+) were not on the
    title: `{op}` got a tensor that is not on the rank's GPU
    change: move it first: `accelerator.gather(x.to(accelerator.device))`
LG071 Cannot apply desired operation due to shape mismatches\. All shapes across devices must be valid
    title: the ranks gathered tensors of different shapes
    change: pad them first (`accelerator.pad_across_processes`), or use `gather_for_metrics` or `gather_object`
LG185 DeepSpeed and FSDP +do not support `clip_grad_value_`
    title: accelerate cannot run `clip_grad_value_` under DeepSpeed or FSDP
    change: set `gradient_clipping` in the DeepSpeed JSON, or call `accelerator.clip_grad_norm_`
LG001 * No executable batch size found, reached zero
    title: the automatic batch size reached 0: every size ran out of memory, most often GPU memory
    change: use a higher ZeRO stage or offload, gradient checkpointing, shorter sequences or LoRA
LG019 (?:fp16|bf16) mixed precision requires (?:a GPU|a device|PyTorch)
    title: this device or torch does not support the requested mixed precision
    change: use bf16 on Ampere or later, fp16 on older GPUs; without a GPU check `nvidia-smi` and that torch is a CUDA
        build
LG031 Trying to set a tensor of shape torch\.Size\(\[(?P<new>[\d, ]+)\]\) in "(?P<name>[^"]*)" \(which has shape torc
    h\.Size\(\[0\]
    title: transformers loaded a full weight into `{name}`, which ZeRO-3 has partitioned
    change: remove `device_map` and `low_cpu_mem_usage` from `from_pretrained` under ZeRO-3, and create
        TrainingArguments (or HfDeepSpeedConfig) before it
LG031 Trying to set a tensor of shape .* in "(?P<name>[^"]*)" \(which has shape .*this looks? incorrect
    title: `{name}` has a different shape in the checkpoint than in the model
    change: compare the model's configuration with the checkpoint's; if tokens were added, make the same
        `resize_token_embeddings` call before loading
LG207 is on the meta device, we need a `value` to put in on
LG034 Tried to find (?P<path>\S+) but folder does not exist
    title: the folder to resume from does not exist: {path}
    change: give `load_state` the folder that `save_state` wrote, visible on every host under the same path
LG236 Checkpoint directory (?P<path>\S+) \(\w+\) already exists
    title: the checkpoint folder {path} already exists
    change: remove it, or set `project_configuration.iteration` to the next number
LG089 Deepspeed (?:TP|ALST/Ulysses) requires deepspeed ?>= ?(?P<version>[\d.]+)
    title: this feature needs DeepSpeed {version} or later
    change: install DeepSpeed {version} or later on every host
LG089 DeepSpeed (?:MLU |MUSA )?version must be (?P<version>[<>]= ?[\d.]+)
    title: this accelerate needs DeepSpeed {version}
    change: install DeepSpeed {version} on every host, or an accelerate that supports the installed DeepSpeed
LG220 * DeepSpeed is not (?:installed|available) => (?:run|install)
    title: accelerate found no DeepSpeed in the environment of this rank
    change: `pip install deepspeed` in the environment that the ranks use, on every host; accelerate also says this when
        `import deepspeed` itself fails (`python -c "import deepspeed"` shows the error)
LG220 `?zero3_init_flag`? is set, it requires Transformers to be installed
    change: `pip install transformers`, or set `zero3_init_flag: false`
LG013 Using RTX 4000 series doesn't support faster communication
    title: GPUs of the RTX 4000 series support neither P2P transfers nor InfiniBand in NCCL
    change: set `NCCL_P2P_DISABLE=1` and `NCCL_IB_DISABLE=1`, or start with `accelerate launch`, which sets them
LG184 ParallelismConfig total_size \((?P<have>\w+)\) does not match num_processes \((?P<ranks>\w+)\)
    title: the sizes of ParallelismConfig multiply to {have}, but the job has {ranks} ranks
    change: make `dp_replicate_size * dp_shard_size * tp_size * cp_size * sp_size` equal to the number of ranks
LG184 ParallelismConfig is only compatible|`--use_parallelism_config` without|sp_backend='deepspeed', yet you configured
    change: under DeepSpeed set `sp_size` with `sp_backend="deepspeed"` only
LG089 * 'Accelerator' object has no attribute 'deepspeed_engine_wrapped'
    title: accelerate has no DeepSpeed engine to run `backward` with: the releases of accelerate and transformers are
        incompatible, or the model was not passed to `accelerator.prepare()` with its optimizer
    change: install an accelerate and a transformers released at about the same time (`pip install -U accelerate
        transformers`); in your own script, prepare the model, the optimizer and the data loader before `backward`
LG089 * 'NoneType' object has no attribute 'backward' ::! accelerate/accelerator
    title: accelerate has no DeepSpeed engine to run `backward` with: the model was not passed to
        `accelerator.prepare()`, or a second Accelerator prepared it
    change: prepare the model and its optimizer with the same Accelerator that runs `backward`; upgrade accelerate and
        transformers together
LG089 unwrap_model\(\) got an unexpected keyword argument 'keep_torch_compile'
    title: this transformers needs accelerate 1.3 or later, and an older one is installed
    change: install accelerate 1.3 or later (`pip install -U accelerate`), or a transformers before 4.52
LG089 Accelerator\.__init__\(\) got an unexpected keyword argument '(?P<name>dispatch_batches|split_batches
    |even_batches|use_seedable_sampler)'
    title: the installed accelerate removed the argument `{name}` of Accelerator, which an older transformers or script
        still passes
    change: install a newer transformers, or accelerate before 1.0; a script must pass
        `DataLoaderConfiguration({name}=...)` as `dataloader_config` (accelerate 0.28 and later)
LG089 Accelerator\.__init__\(\) got an unexpected keyword argument '(?P<name>logging_dir|use_fp16|fp16)'
    title: the installed accelerate removed the argument `{name}` of Accelerator, which an older script or package still
        passes
    change: use `project_dir` or `mixed_precision` instead, or an accelerate released at about the same time as the
        script
LG089 (?:Accelerator|DeepSpeedPlugin|DataLoaderConfiguration|prepare
    |Accelerator\.\w+)(?:\.__init__)?\(\) got an unexpected keyword argument '(?P<name>\w+)'
    title: the installed accelerate does not know the argument `{name}`: it is older or newer than the code that passes
        it
    change: install a newer accelerate (`pip install -U accelerate`), or one released at about the same time as the
        package whose file is last in the traceback
LG089 * 'Accelerator' object has no attribute '(?P<name>\w+)'
    title: the installed accelerate has no `Accelerator.{name}`: it is older or newer than the transformers or script
        that uses it
    change: install an accelerate and a transformers released at about the same time (`pip install -U accelerate
        transformers`)
LG089 * 'AcceleratorState' object has no attribute '(?P<name>\w+)'
    title: `AcceleratorState` has no `{name}`: the script created no Accelerator with DeepSpeed, or accelerate does not
        match the package that reads it
    change: create the Accelerator first, launch the script with `accelerate launch --use_deepspeed`, and install an
        accelerate released at about the same time as the package that reads it
LG089 'DeepSpeedZeroOptimizer\w*' object has no attribute '(?:train|eval)'
    title: this accelerate calls `train()` or `eval()` on DeepSpeed's optimizer, which has no such method
    change: install accelerate 0.34 or later, which checks for the method first, and a matching transformers
LG089 'DeepSpeedOptimizerWrapper' object has no attribute '(?P<name>\w+)'
    title: accelerate's optimizer wrapper has no `{name}`: accelerate does not match DeepSpeed or the script
    change: install a newer accelerate; in a script use the DeepSpeed engine (`model.optimizer`)
LG186 decorator must be called with a function on an instantiated `Accelerator` object
    title: a decorator of the Accelerator was used before an Accelerator existed
    change: create the Accelerator first, and decorate with its methods (`@accelerator.on_main_process`)
LG186 The `PartialState` or `Accelerator` must be initialized before calling this function
    title: a function of accelerate was called before an Accelerator existed
    change: create the Accelerator (or PartialState) first
LG184 You can only pass one of `gradient_accumulation_steps` and `gradient_accumulation_plugin`
    |You can only pass one \S+ in `kwargs_handlers`|Unsupported kwargs handler passed
    title: the script gave the Accelerator two handlers for one setting, or a handler that it does not know
    change: pass `gradient_accumulation_steps` or the plugin, and one handler of each kind
LG183 The model and the optimizer parameters are not on the same device
    title: the optimizer was created before the model was moved to its device
    change: create the optimizer after the model is on its device, or prepare both and let DeepSpeed place them
LG184 Can't find `model\.config`|expects the model object to have a config attribute
LG184 Model should undergo tensor parallel before passing it to accelerate
    |tp_size in the plugin \S+ should be same as model's tp size
    title: accelerate and the model have different tensor-parallel settings
    change: load the model with `tp_plan="auto"` and the `tp_size` of the plugin, or use DeepSpeed's `tensor_parallel`
        block without accelerate's
LG184 (?:dp_replicate|dp_shard|tp|cp|sp)_size must be at least 1|(?:cp|sp)_backend must be one of
    |are mutually exclusive\. Got cp_size|cannot be used with pure data parallelism|Parallelism must be one of
    |cp_backend=\S+ requires|sp_seq_length_is_variable|Invalid sp_attn_implementation|(?:Tensor|Data
    |Shard-based data) parallelism is not configured|parallelism is currently not supported in Accelerate
    title: accelerate's ParallelismConfig has an invalid value, or values that conflict with each other
    change: set the sizes in ParallelismConfig so that they multiply to the number of ranks; under DeepSpeed set
        `sp_size` with `sp_backend="deepspeed"`, `sp_seq_length` and `flash_attention_2` or `sdpa`, and leave out
        `cp_size`
LG184 Your assigned backend (?P<a>\S+) is not available, please use (?P<b>\S+)
    title: the communication backend {a} is not available here
    change: use {b}, or install a torch that has {a}
LG184 --module and --no_python cannot be used together|Unknown dynamo backend|Invalid mixed precision(?: policy)?:
    |Your training script should be a python script|should have a function named
    title: `accelerate launch` refused an argument or its value
    change: correct the argument that the message names
LG062 mpirun or mpiexec were not found
    title: accelerate was asked to launch with MPI, but neither `mpirun` nor `mpiexec` is installed
    change: install an MPI, or start without it (`accelerate launch --use_deepspeed`)
LG034 No input_dir provided and automatic checkpoint naming is disabled
    change: give `load_state` the folder that `save_state` wrote
LG071 Error found while calling `(?P<op>\S+)`\. Please see the earlier error
    title: the ranks passed tensors of different shapes or types to `{op}`
    change: read the earlier error: the shapes or types differ between ranks; pad them first
        (`accelerator.pad_across_processes`)
LG189 Unsupported types \(.*\) passed to `(?P<op>\S+)`\. Only nested list/tuple/dicts
    title: `{op}` got a value that is not a tensor
    change: pass tensors (or lists, tuples and dictionaries of them); use `gather_object` for other values
LG197 load_in_[48]bit must be a boolean|bnb_4bit_\w+ must be|llm_int8_threshold must be|skip_modules must be a list
    |keep_in_fp_32_modules must be
    change: give `BnbQuantizationConfig` or `BitsAndBytesConfig` values of the types that the message names
LG089 (?:TP requires transformers|Torch tensor parallelism is only available in PyTorch
    |Building a device_mesh requires to have torch) ?>?=? ?(?P<version>[\d.]*)
    title: tensor parallelism needs a newer torch or transformers ({version} or later)
    change: install newer torch and transformers on every host
LG012 There are currently no available devices found
    title: accelerate found no GPU on this host
LG181 KeyError: '(?P<key>train_micro_batch_size_per_gpu|train_batch_size|gradient_accumulation_steps|zero_optimization
    |optimizer|bf16|fp16)' ::! accelerate/|transformers/|trl/|deepspeed_plugin
    title: the DeepSpeed JSON has no `{key}`, which accelerate, the Trainer or the script reads
    change: add `{key}` to the DeepSpeed JSON, as a value or `"auto"`
LG089 'DeepSpeedZeRoOffload' object has no attribute '(?P<name>\w+)'
    title: the calling package reads `DeepSpeedZeRoOffload.{name}`, which this DeepSpeed release does not have
    change: install releases of DeepSpeed and trl (or the package whose file is last in the traceback) from about the
        same time
LG184 MS-AMP is not supported for ZeRO Stage 3|Invalid optimization level for MS-AMP
    title: MS-AMP does not work with this ZeRO stage or level
    change: use ZeRO stage 0 to 2 with level `O1` or `O2`, or another FP8 library
LG184 Could not find a transformer layer class called '(?P<name>[^']*)'
    title: `transformer_moe_cls_names` of the DeepSpeed plugin names a class that the model does not have: {name}
    change: give the class name of the model's MoE block, as `print(model)` shows it
LG185 You can't use an Offload Optimizer with HPU in Lazy Mode
    title: optimizer offload does not work in Gaudi's lazy mode
    change: set PT_HPU_LAZY_MODE=0, or turn `offload_optimizer` off
"""
