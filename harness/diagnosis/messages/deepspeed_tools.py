# SPDX-License-Identifier: Apache-2.0
"""Messages of `deepspeed.initialize`, accelerators, inference, autotuning, profilers, monitors and other tools.

They come from releases 0.14.5 to 0.19.8.
"""

from __future__ import annotations

MESSAGES = r"""
LG096 deepspeed\.initialize requires a model
    title: `deepspeed.initialize` was called without a model
    change: pass `model=`
SP001 DeepSpeed requires --deepspeed_config to specify configuration file
    title: `deepspeed.initialize` got no configuration
    change: pass `config=` (a path or a dict), or parse `--deepspeed_config FILE` with `deepspeed.add_config_arguments`
SP022 Not sure how to proceed, we were given (?:both a deepscale_config|deepspeed configs)
    title: `deepspeed.initialize` got two configurations
    change: pass `config=` or `--deepspeed_config`, not both
PP016 mpu must be None with pipeline parallelism
    title: `deepspeed.initialize` got a pipeline module and an `mpu`
    change: leave out `mpu=`: the topology of the `PipelineModule` provides the groups
SP006 'config' argument expected string or dictionary, got
    change: pass `config=` of `init_inference` as a path or a dict
SP022 Conflicting argument '(?P<key>[^']*)' in 'config'
    title: an inference setting has different values in `config` and in the call
    change: set `{key}` in only one of them
OP006 per_head_muon is enabled but
    title: `per_head_muon` finds no attention projection that it can split into heads
    change: remove `per_head_muon` from the optimizer's parameters
LG089 * AttributeError: module 'deepspeed(?:\.ops)?' has no attribute
    title: the `deepspeed` that was imported has no such name
    change: if one of your files or folders is called `deepspeed`, rename it: it hides the package; otherwise install
        the DeepSpeed release that the script was written for: an older or a newer release has that name
LG174 (?P<accelerator>[A-Z]+)_Accelerator (?:external )?requires
LG174 DS_ACCELERATOR must be one of
    title: `DS_ACCELERATOR` names an accelerator that DeepSpeed does not support
    change: set `DS_ACCELERATOR` to one of those that the message lists, or unset it
LG174 accelerator is not subclass of DeepSpeedAccelerator
    change: derive the class that you pass to `set_accelerator` from `DeepSpeedAccelerator`
LG088 (?P<backend>\S+) not supported by (?P<device>\w+)\. Supported [Bb]ackends
    title: `torch.compile` has no such backend on this accelerator
    change: use one of the backends that the message lists, such as `inductor`
LG174 pin_empty allocates host memory; device must be cpu
    change: call `pin_empty` with `device="cpu"`
LG174 npuHostUnregister failed with rc
    title: the NPU driver did not release pinned memory
    change: unset `DS_PIN_MEMORY_REGISTER_DEVICE`, and update the driver
LG174 DS_PIN_MEMORY_REGISTER_DEVICE must be one of
    change: set it to 1 or 0
LG174 accelerator_name: .* not supported
LG162 Invalid type for dtype:
    title: the `dtype` of inference has the wrong type
    change: pass `dtype` as `torch.half`, `torch.bfloat16`, `torch.float32`, `torch.int8`, or its name
LG064 Triton needs to be installed to use deepspeed with triton kernels
    change: `pip install deepspeed[triton]`, or set `use_triton: false`
LG162 checkpoint (?:has both|contains neither) 'model' (?:and|or) 'module' keys
    title: the checkpoint for inference does not have the layout that DeepSpeed reads
    change: save the weights under only one key, `module` or `model`
LG162 model profiling is not enabled
    change: call `profile_model_time()` of the engine before `model_times()`
LG162 Model times are empty and cuda graph is enabled
    change: set `enable_cuda_graph: false` to measure the times
LG019 Data type \S+ is not supported by (?P<device>\w+) accelerator
    change: choose another `dtype` for inference on this accelerator
LG089 If you want to use cuda graph, please upgrade torch
    change: install torch 1.10 or newer, or set `enable_cuda_graph: false`
LG162 Cannot use both user specified injection policy and kernel injection
    change: pass `injection_policy`, or set `replace_with_kernel_inject: true`, not both
LG162 Cuda graph is not supported for model parallelism
    change: set `enable_cuda_graph: false`, or `tensor_parallel.tp_size: 1`
LG162 Cannot determine the attention head count for
    change: set `tensor_parallel.tp_size: 1`, or use a model whose configuration has `num_attention_heads`
LG162 pipeline parallelism is currently not supported in inference
    change: use `tensor_parallel.tp_size` instead
LG162 DeepSpeed does not support .num_beams. > 1
    change: generate with `num_beams=1`
LG089 compile is not supported in your version of PyTorch
    change: install torch 2.0 or newer, or do not call `compile()`
LG162 * is not a subclass of torch\.nn\.Module
    change: pass the classes of the model's layers as keys of `injection_policy`
LG162 Invalid ep_size=\S+ for world_size
    change: choose a `moe.ep_size` that divides the number of ranks
LG162 Input with size \S+ exceeds maximum length of
    title: the prompt and the generated tokens exceed the length that inference allocated memory for
    change: raise `max_out_tokens` (`max_tokens`) of the inference configuration or `hybrid_engine`, or shorten the
        input
LG162 Injection policy layer'[^']*' not valid
    change: write the name of the output projection as a string, or a tuple of them, in `injection_policy`
LG162 model must be a torch\.nn\.Module, got
    change: pass the model itself to `init_inference`
LG162 mp_size must be an int
    change: correct the argument of `init_inference` that the message names
LG162 checkpoint must be None, str or dict
    change: correct the argument of `init_inference` that the message names
LG162 injection_dict must be None or a dict
    change: correct the argument of `init_inference` that the message names
LG162 (?:torch\.\w+|\S+) not supported, valid dtype:
    change: use one of the dtypes that the message lists
LG162 mpu is missing (?P<name>\w+)
    change: add that method to the `mpu`, or set `tensor_parallel.tp_size` instead
LG162 * Only one of .layer_past. or .past_key_value. can be present
    change: pass only one of the two
LG175 Missing required package .tabulate.
    title: autotuning needs the package `tabulate`, which is not installed
    change: `pip install deepspeed[autotuning]`
LG175 missing requirements, please install deepspeed w\. 'autotuning_ml' extra
    title: the model-based tuner needs packages that are not installed
    change: `pip install deepspeed[autotuning_ml]`, or set `autotuning.tuner_type` to `gridsearch` or `random`
LG175 DeepSpeed configuration is not provided
    change: name the JSON with `--deepspeed_config FILE` or `--deepspeed FILE` on the script's command line
LG175 num_(?:gpus|nodes) in the autotuning configuration must not be less
    change: lower `autotuning.num_gpus` or `num_nodes` to what the hostfile has
LG175 * no gpu is available
    title: autotuning found no GPU
    change: set `slots` for the hosts in the hostfile, and check CUDA_VISIBLE_DEVICES
LG175 the tuning micro batch size list is empty
    title: not even the smallest micro-batch fits
    change: lower `autotuning.min_train_micro_batch_size_per_gpu`, or allow a higher ZeRO stage or offload
LG175 Gradient accumulation steps must be positive\.
    change: write the batch sizes as numbers of at least 1, or `auto`
LG175 The micro batch size per GPU must be greater than 0\.
    change: write the batch sizes as numbers of at least 1, or `auto`
LG175 DeepSpeed --deepspeed_config requires a json file to specify
    change: name a `.json` file after `--deepspeed_config`
LG175 DeepSpeed configuration file: \S+ is not an existing file
    change: correct the path of the JSON on the script's command line
LG175 (?:results_dir|exps_dir) cannot be empty
    change: set the key to a folder, or leave it out
LG175 * must provide launcher args
    change: start autotuning through `deepspeed --autotuning run SCRIPT ...`
LG175 there is no ds_config file specified after
    change: name the JSON after `--deepspeed_config` or `--deepspeed`
LG175 * Invalid loss type:
    change: report it to DeepSpeed, and set `autotuning.tuner_type: gridsearch`
LG175 unknown var key:
    change: correct the placeholder in the template of the tuning space
LG175 unable to replace multiple non-string matches
    change: write one placeholder in each value of the tuning space
LG061 * host \S+ is already defined
    title: the hostfile names a host twice
    change: write each host once, with all its slots
UT003 * model must be a PyTorch module
    title: `get_model_profile` got arguments that it cannot use
    change: pass a torch module, and `input_shape` as a tuple or `args` and `kwargs` of a forward pass
UT003 * input_shape must
    title: `get_model_profile` got arguments that it cannot use
    change: pass a torch module, and `input_shape` as a tuple or `args` and `kwargs` of a forward pass
UT003 * args and/or kwargs must be specified if input_shape
    title: `get_model_profile` got arguments that it cannot use
    change: pass a torch module, and `input_shape` as a tuple or `args` and `kwargs` of a forward pass
UT003 * either size or scale_factor should be defined
    title: the FLOPS profiler saw an `interpolate` without a size
    change: pass `size` or `scale_factor` to `interpolate`, or switch `flops_profiler` off
UT003 Unsupported (?:einops\.)?einsum operation
    title: the FLOPS profiler cannot count an `einsum`
    change: switch `flops_profiler` off, or write the equation of the einsum as its first argument
PP005 * timer has already been started
    title: a timer of `wall_clock_breakdown` was started twice
    change: set `wall_clock_breakdown: false`; the engine must be called in the order forward, backward, step
PP005 * \btimer is not started
    title: a timer of `wall_clock_breakdown` was stopped before its start
    change: set `wall_clock_breakdown: false`; the engine must be called in the order forward, backward, step
LG064 Unable to import 'psutils', please install package
    change: `pip install psutil`
UT013 .comet_ml. must have at least version
    title: comet_ml is too old
    change: `pip install -U comet_ml`, or set `comet.enabled: false`
SP007 * is not a string$ ::! deepspeed/utils/logging
    title: a log level is not a string
    change: write `debug`, `info`, `warning`, `error` or `critical`
SP007 is not one of the .?logging.? levels
    change: use `debug`, `info`, `warning`, `error` or `critical`
LG096 name for logger cannot be None
LG096 Must provide a min_version or max_version argument
LG162 * write position must
    title: the static KV cache of generation got invalid positions
    change: generate without the static cache of the hybrid engine, and report it to DeepSpeed
LG162 * active_indices
    title: the static KV cache of generation got invalid positions
    change: generate without the static cache of the hybrid engine, and report it to DeepSpeed
LG162 * trim count must be
    title: the static KV cache of generation got invalid positions
    change: generate without the static cache of the hybrid engine, and report it to DeepSpeed
LG162 per-row write positions
    title: the static KV cache of generation got invalid positions
    change: generate without the static cache of the hybrid engine, and report it to DeepSpeed
LG162 layer_idx \S+ out of range \(cache has
    change: create the static cache for the model that generates
LG055 * This command failed:
    title: a command of the NVMe benchmark failed
    change: run the command that the message shows by hand; it needs `sudo` to drop caches, libaio, and space on
        `nvme_path`
LG055 * Mismatch in number of read & write results
    change: run `ds_nvme_tune` again with an empty log folder
LG055 Error: cannot remove \S+ - folder not found
    change: give `ds_nvme_tune` a folder that exists
LG055 * Read operation is not currently supported
    change: use the write test of this engine, or another engine
"""
