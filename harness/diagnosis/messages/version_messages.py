# SPDX-License-Identifier: Apache-2.0
"""Messages about imports, attributes and arguments that fail because two packages have incompatible releases."""

from __future__ import annotations

MESSAGES = r"""
LG220 name 'init_empty_weights' is not defined
    title: accelerate is missing or too old, and transformers needs it to load the model
    change: `pip install -U accelerate` on every host
LG227 * NameError: name '(?P<name>DTensor|torch|nn|Replicate|Shard|DeviceMesh|deepspeed|is_deepspeed_zero3_enabled
    |flash_attn_func|unpad_input|pad_input|index_first_axis|bnb)' is not defined ::! site-packages/
    title: a package uses `{name}`, which it could not import: the package that defines it is missing or too old
    change: install the package that has `{name}` (torch 2.5 or later for DTensor, flash-attn for `unpad_input`), or
        matching releases of the two packages
LG228 No module named 'distutils'|No module named 'imp'|No module named 'pkg_resources'
    |cannot import name '\w+' from 'collections'
    title: this Python (or its setuptools) no longer has a module that a package imports
    change: `pip install "setuptools<81"`, a newer release of the package, or an older Python (3.11)
LG228 TypeError: unsupported operand type\(s\) for \|: '(?:type|ABCMeta|_\w+|NoneType)' and '\w+'
    |'type' object is not subscriptable|module 'ast' has no attribute
    title: a package needs a newer Python than this one
    change: use Python 3.10 or later, or an older release of the package
LG089 cannot import name 'log' from 'torch\.distributed\.elastic\.agent\.server\.api'
    title: torch 2.3 renamed `log` of torch.distributed.elastic, which DeepSpeed before 0.14.1 imports
    change: install DeepSpeed 0.14.1 or later (`pip install -U deepspeed`), or torch before 2.3
LG089 No module named 'torch\._six'
    title: torch 2.0 removed `torch._six`, which an older package imports (DeepSpeed before 0.8.2, apex)
    change: install DeepSpeed 0.8.2 or later and a newer release of the package whose file the traceback ends in
LG221 cannot import name 'BUFSIZE' from 'numpy'
    title: numpy 2 removed a name that DeepSpeed before 0.14.4 imports
    change: install DeepSpeed 0.14.4 or later, or `"numpy<2"`
LG221 * A module that was compiled using NumPy 1\.x cannot be run in
    |numpy\.dtype size changed, may indicate binary incompatibility|numpy\.core\.multiarray failed to import
    |_ARRAY_API not found|numpy\.core\.umath failed to import
    title: a package was built for numpy 1, and numpy 2 is installed (or the other way round)
    change: install `"numpy<2"`, or newer builds of the package whose file the traceback ends in (pandas, pyarrow,
        scipy, opencv, scikit-learn)
LG221 `np\.(?P<name>\w+)` was removed in the NumPy 2\.0|module 'numpy' has no attribute '(?P<old>float_|float|int|bool
    |object|complex|unicode_|product|Inf|infty|cumproduct)'
    title: numpy removed `np.{name}{old}`, which a package or the script uses
    change: install a newer release of the package whose file the traceback ends in, or an older numpy (`"numpy<2"`;
        `"numpy<1.24"` for `np.float`, `np.int` and `np.bool`)
LG221 Numpy is not available|No module named 'numpy\._core|No module named 'numpy\.core
    title: torch, or a pickled file, needs a different major version of numpy than the installed one
    change: install `"numpy<2"` with a torch before 2.3, or a newer torch; a file pickled with numpy 2 needs numpy 2 to
        load
LG222 PydanticUserError|pydantic\.errors\.Pydantic(?:ImportError|SchemaGenerationError|UndefinedAnnotation)
    title: the package (DeepSpeed before 0.12 or another) was written for pydantic 1, but pydantic 2 is installed
    change: install a newer DeepSpeed (`pip install -U deepspeed`), or `"pydantic<2"` for an old one
LG222 cannot import name '(?P<name>field_validator|model_validator|ConfigDict|TypeAdapter|BeforeValidator|RootModel
    |model_serializer|Field|computed_field)' from 'pydantic
    title: a package needs pydantic 2 (`{name}`), but pydantic 1 is installed
    change: `pip install -U pydantic` (2 or later), with DeepSpeed 0.12 or later (0.15 and later need pydantic 2)
LG222 No module named 'pydantic_core|No module named 'pydantic\.v1'|pydantic_core.*(?:version|incompatible)
    |`BaseSettings` has been moved
    title: a package needs a different major version of pydantic, or the installation of pydantic is incomplete
    change: `pip install -U pydantic pydantic-core pydantic-settings` (pydantic 2), or `"pydantic<2"` for a package that
        needs it
LG222 '(?:type object )?\w*' has no attribute '(?:model_fields|model_rebuild|model_validate|__fields__
    |update_forward_refs|__fields_set__)'|object has no attribute 'model_fields_set'
    title: the package was written for another major version of pydantic
    change: install pydantic 2 for `model_*` names and `"pydantic<2"` for `__fields__`, or a newer release of the
        package
LG222 unable to infer type for attribute "(?P<name>\w+)"|non-annotated attribute was detected
    title: pydantic cannot read the annotations of a class: the installed pydantic does not match this Python or the
        package
    change: install a newer DeepSpeed with pydantic 2, or `"pydantic<2"` with the old DeepSpeed and an older Python
LG226 module 'triton(?:\.\w+)*' has no attribute '(?P<name>\w+)'|cannot import name '(?P<imported>\w+)' from 'triton
    |No module named 'triton\.(?P<module>[\w.]+)'
    title: the installed triton has no `{name}{imported}{module}`: it is newer or older than the package expects
    change: install the triton that this torch requires (`pip install --force-reinstall torch==...` brings it), and a
        newer release of the package whose file the traceback ends in (bitsandbytes 0.45.1 and later need no
        `triton.ops`)
LG226 * ModuleNotFoundError: No module named 'triton'
    title: triton is not installed, and a kernel needs it
    change: `pip install triton` in the version that torch requires (CUDA builds of torch on Linux install it)
LG064 ModuleNotFoundError: No module named 'flash_attn[\w.]*'
    title: flash-attn is not installed in the environment of this rank
    change: `pip install flash-attn --no-build-isolation` on every host (the same environment everywhere), or
        `attn_implementation="sdpa"`
LG220 FlashAttention-?2? (?:has been toggled on, but it )?cannot be used
    |the package (?:for FlashAttention\d* doesn't seem to be installed|flash_attn seems to be not installed)
    title: FlashAttention was requested, but the environment of this rank cannot use it: not installed, or an
        unsupported version or GPU
    change: `pip install flash-attn --no-build-isolation` on every host, or `attn_implementation="sdpa"`
LG223 (?:Error|No module|failed).*(?:flash_attn_2_cuda|flash_attn_3_cuda|fused_layer_norm_cuda|dropout_layer_norm
    |rotary_emb\S*\.so)|flash_attn\S*\.so\S*: undefined symbol
    title: the installed flash-attn was built for another torch, CUDA or Python
    change: install the wheel of flash-attn for this torch, CUDA, Python and C++ ABI, or build it here: `pip uninstall
        flash-attn; pip install flash-attn --no-build-isolation --no-cache-dir`; or use `attn_implementation="sdpa"`
        without flash-attn
LG223 cannot import name '(?P<name>\w+)' from 'flash_attn
    title: the installed flash-attn has no `{name}`: it is older or newer than transformers or the model's code expects
    change: install a newer flash-attn (2.3.3 at least), or `attn_implementation="sdpa"`
LG225 (?P<library>lib(?:cudart|cublas\w*|cudnn\w*|nvrtc\S*|nvJitLink|cusparse\w*|cusolver|curand|cufft|nccl|nvToolsExt
    |cupti)\.so[\d.]*): cannot open shared object file
    title: {library} was not found: a package was built for a different CUDA than the installed one
    change: reinstall the package whose file the traceback ends in for the CUDA of this torch (the number in the
        library's name is its major version), or add that CUDA's lib64 to LD_LIBRARY_PATH
LG225 (?P<library>\blib(?:mpi|ibverbs|numa|python|GL|stdc\+\+|gomp)[^\s:]{0,60}
    |\blibcuda\.so[^\s:]{0,60})(?:: |.*)cannot open shared object file
    title: a system library is missing on this host: {library}
    change: install its package on the host or in the image (libGL.so.1: `libgl1`, libmpi: OpenMPI, libnuma:
        `libnuma1`), or use a build without it
LG223 * undefined symbol: \S*(?:nvJitLink|cusparse|cublas)\w*
    title: the process mixes two versions of the CUDA libraries, most often because LD_LIBRARY_PATH hides torch's own
    change: unset LD_LIBRARY_PATH (or take the CUDA folder out), or install the `nvidia-*-cu12` packages in the versions
        that torch requires
LG223 (?P<library>[^\s/]{1,120}\.so)[^\s:]{0,60}: undefined symbol: (?:\S*?(?:c10|torch)|_ZN\S*?at|PyTensor)
    title: `{library}` was built for a different torch than the installed one
    change: reinstall the package (or remove the op's folder below TORCH_EXTENSIONS_DIR) so that it is built for this
        torch; do not share that folder between environments
LG223 (?:GLIBCXX|CXXABI)_(?P<version>[\d.]+)'? not found
    title: the C++ library of this host or environment is too old for a compiled package (GLIBCXX or CXXABI {version})
    change: install a newer one (`conda install -c conda-forge libstdcxx-ng`), or put the newer libstdc++.so.6 first on
        LD_LIBRARY_PATH; rebuild the op with the host's compiler
LG223 GLIBC_(?P<version>[\d.]+)'? not found
    title: the host's C library is too old for a compiled package (GLIBC {version})
    change: use an older build of the package, build it on this host, or run in a container with a newer system
LG223 No module named '(?P<name>transformer_engine_torch|fused_\w+_cuda|amp_C|apex_C|syncbn|xentropy_cuda_lib
    |scaled_\w+_cuda|causal_conv1d_cuda|selective_scan_cuda|fused_weight_gradient_mlp_cuda)'
    title: a compiled extension is missing: `{name}` was not built for this environment
    change: build the package with its CUDA extensions (apex: `--cpp_ext --cuda_ext`), for this torch and CUDA
LG089 cannot import name '(?P<name>HfDeepSpeedConfig|is_deepspeed_zero3_enabled|HfTrainerDeepSpeedConfig|deepspeed_init
    |deepspeed_config)' from 'transformers(?P<module>\S*?)'|No module named 'transformers\.deepspeed'
    title: transformers moved its DeepSpeed integration: 4.33 added `transformers.integrations.deepspeed`, and 4.46
        removed `transformers.deepspeed`
    change: import from `transformers.integrations` (4.33 and later), or install the transformers that the script was
        written for
LG089 cannot import name '(?P<name>AdamW|top_k_top_p_filtering|LlamaFlashAttention2|shard_checkpoint
    |is_torch_fx_available|is_torch_tpu_available|LossKwargs|HybridCache|SlidingWindowCache|AutoModelForVision2Seq
    |load_sharded_checkpoint|_load_state_dict_into_model|find_pruneable_heads_and_indices|FLAX_WEIGHTS_NAME
    |TRANSFORMERS_CACHE|is_flash_attn_greater_or_equal_2_10|no_init_weights|prune_linear_layer|SequenceSummary
    |_prepare_4d_causal_attention_mask|is_flash_attn_2_available|_expand_mask|_make_causal_mask|is_tf_available
    |is_flax_available|apply_chunking_to_forward|BeamSearchScorer|DisjunctiveConstraint
    |EncoderDecoderCache)' from 'transformers
    title: the installed transformers has no `{name}`: it is newer (or older) than the code that imports it
    change: install a newer release of the package whose file is last in the traceback, or an older transformers (the
        last release with `AdamW` and `_load_state_dict_into_model` is 4.49, with `shard_checkpoint` 4.46,
        `LlamaFlashAttention2` 4.47, `top_k_top_p_filtering` 4.38, `is_torch_tpu_available` 4.50, `LossKwargs` 4.53,
        `HybridCache`, `is_torch_fx_available` and `find_pruneable_heads_and_indices` 4.57; the first with
        `EncoderDecoderCache` is 4.43)
LG089 * cannot import name '(?P<name>\w*(?:ForCausalLM|ForConditionalGeneration|Processor|Config|Tokenizer(?:Fast)?
    |Model))' from 'transformers
    title: the installed transformers has no `{name}`, most often because it is older than this model
    change: install a newer transformers (Qwen2 needs 4.37, Gemma 2 4.42, Qwen2-VL and Mllama 4.45, Qwen2.5-VL 4.49,
        Gemma 3 4.50, Qwen3, Llama 4 and DeepSeek-V3 4.51, Qwen2.5-Omni and InternVL 4.52, GPT-OSS 4.55, Qwen3-VL 4.57)
LG089 cannot import name '(?P<name>\w+)' from '(?P<module>transformers(?!_modules)[\w.]*)'
    title: the installed transformers has no `{name}` in {module}: it is newer or older than the code that imports it
    change: install the transformers released at about the same time as the package whose file is last in the traceback
        (`pip show` prints the versions of both), or a newer release of that package
LG089 cannot import name '(?P<name>cached_download|url_to_filename|ModelFilter|HfFolder|Repository|get_full_repo_name
    |is_offline_mode|split_torch_state_dict_into_shards|DDUFEntry|OfflineModeIsEnabled)' from 'huggingface_hub
    title: the installed huggingface_hub has no `{name}`: it is newer (or older) than the package that imports it
    change: install a newer release of that package (transformers, diffusers, datasets), or a huggingface_hub that has
        the name (`cached_download` and `url_to_filename`: before 0.26; `ModelFilter`: before 0.24; `HfFolder`: before
        1.0; `DDUFEntry`: 0.27 and later)
LG089 cannot import name '(?P<name>\w+)' from '(?P<module>huggingface_hub[\w.]*)'
    title: the installed huggingface_hub has no `{name}`: it is older or newer than the package that imports it
    change: `pip install -U huggingface_hub transformers datasets accelerate`, or a huggingface_hub released at about
        the same time as that package
LG089 cannot import name '(?P<name>\w+)' from '(?P<module>accelerate[\w.]*)'
    title: the installed accelerate has no `{name}` in {module}: it is older or newer than transformers, peft or trl
        expect
    change: install an accelerate released at about the same time as the package whose file is last in the traceback,
        most often a newer one (`pip install -U accelerate`; `clear_device_cache` needs 0.32, `DataLoaderConfiguration`
        0.28, `ParallelismConfig` 1.10)
LG089 cannot import name '(?P<name>\w+)' from '(?P<module>peft[\w.]*)'
    title: the installed peft has no `{name}` in {module}: it is older or newer than the code that imports it
    change: install a peft that matches that code (`prepare_model_for_int8_training` was removed: use
        `prepare_model_for_kbit_training`; most new names need `pip install -U peft`)
LG089 cannot import name '(?P<name>\w+)' from '(?P<module>trl[\w.]*)'
    title: the installed trl has no `{name}`: it is older or newer than the script expects
    change: install the trl that the script was written for (`DataCollatorForCompletionOnlyLM` and
        `ConstantLengthDataset`: before 0.20; `GRPOTrainer`: 0.14 and later; `SFTConfig` and `DPOConfig`: 0.9 and later;
        `PPOv2Trainer`: 0.9 to 0.13)
LG089 cannot import name '(?P<name>\w+)' from '(?P<module>datasets[\w.]*)'
    title: the installed datasets has no `{name}`: it is newer than the code that imports it (`load_metric` moved to
        `evaluate`)
    change: install an older datasets, or a newer release of the package whose file is last in the traceback
LG089 cannot import name '(?P<name>\w+)' from '(?P<module>deepspeed[\w.]*)'
    title: the installed DeepSpeed has no `{name}` in {module}: it is older or newer than the code that imports it
    change: install a DeepSpeed released at about the same time as the package whose file is last in the traceback
        (accelerate, transformers, Megatron), or a newer release of that package
LG089 cannot import name '(?P<name>\w+)' from '(?P<module>torch[\w.]*)'
    title: the installed torch has no `{name}` in {module}: it is newer or older than the importing package expects
    change: install a newer release of the package whose file is last in the traceback (DeepSpeed, transformers, apex),
        or a torch released at about the same time; torchvision and torchaudio must match torch
LG089 * cannot import name '(?P<name>\w+)' from partially initialized module '(?P<module>[\w.]+)'
    title: {module} imports itself before it defines `{name}`: a file of the job has the same name as a package, an
        installation is incomplete, or imports are circular
    change: rename the script or folder that has the name of the package ({module}), or reinstall the package
LG089 * cannot import name '(?P<name>\w+)' from '(?P<module>(?!transformers_modules)[\w.]+)' \((?P<path>(?!.*site-packages)(?!.*dist-package
    s)[^)]*)\)
    title: {module} at {path}, outside site-packages, has no `{name}`: it hides a package of that name, or is a
        different version
    change: check that file, and rename it if it hides a package
LG227 cannot import name '(?P<name>\w+)' from '(?P<module>(?!transformers_modules)[\w.]+)'
    title: the installed {module} has no `{name}`: it is newer or older than the package that imports it
    change: install a {module} released at about the same time as the package whose file is last in the traceback, or a
        newer release of that package
LG227 module 'torch(?P<module>[\w.]*)' has no attribute '(?P<name>\w+)'
    title: the installed torch has no `torch{module}.{name}`: it is older (or newer) than the calling package expects
    change: install a newer torch, or a release of the last package in the traceback that supports this torch
LG227 * module '(?P<module>transformers|accelerate|peft|trl|deepspeed|datasets|huggingface_hub|tokenizers|safetensors
    |pyarrow|bitsandbytes|xformers|triton|numpy|pydantic|google|lightning
    |pytorch_lightning)(?P<sub>[\w.]*)' has no attribute '(?P<name>\w+)'
    title: the installed {module} has no `{name}`: it is older or newer than the code that uses it, or a file of the job
        has the same name as the package
    change: install a {module} released at about the same time as the package whose file is last in the traceback; look
        for a file `{module}.py` in the job's folder
LG227 No module named '(?P<module>(?:transformers|accelerate|peft|trl|deepspeed|torch|huggingface_hub|datasets|pydantic
    |pyarrow|lightning|pytorch_lightning|xformers|vllm)\.[\w.]+)'
    title: the installed package has no module `{module}`: it is older or newer than the code that imports it
    change: install a version released at about the same time as the package or script whose file is last in the
        traceback
LG227 Descriptors cannot (?:not )?be created directly
    title: the installed protobuf is newer than a package expects
    change: `pip install "protobuf<3.21"` (or a newer release of the package), or set
        PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION=python
LG227 (?<!\S)\S{1,60}?[<>=!]\S{1,60} is required for a normal functioning of this module, but found (?P<found>\S+)
    title: transformers does not accept the installed version of a package that it requires: {found}
    change: install the version that the message names (`pip install -U transformers` brings it), on every host
LG227 * PyTorch (?:version )?(?:>=|>)? ?(?P<version>[\d.]+) (?:or (?:later|above|higher) )?(?:is )?required
    |requires (?:PyTorch|torch)(?: version)? ?(?:>=|>) ?(?P<version2>[\d.]+)
    |Disabling PyTorch because PyTorch >= (?P<version3>[\d.]+) is required but found
    title: a package needs torch {version}{version2}{version3} or later
    change: install a newer torch, or an older release of that package
LG227 * '(?P<class>(?!\w*DeepSpeed)\w*Config)' object has no attribute '(?P<name>\w+)' ::! transformers|modeling_
    |deepspeed|accelerate|trl|peft|vllm|train
    title: the model's configuration has no `{name}`: the installed transformers, or the code that reads it, does not
        match the model
    change: install the transformers that the model's config.json names (`transformers_version`); a multimodal model has
        it in `config.text_config`
LG227 * '(?P<class>\w+(?:Model|ForCausalLM|ForConditionalGeneration|Attention|DecoderLayer|Cache|Tokenizer\w*
    |Processor))' object has no attribute '(?P<name>\w+)' ::$ site-packages/|dist-packages/|transformers_modules
    title: `{class}` has no `{name}` in the installed transformers: the code that uses it was written for another
        version
    change: install the transformers that the code was written for, or a newer release of the code
LG227 got an unexpected keyword argument 'num_items_in_batch'
    title: transformers 4.46 and later pass `num_items_in_batch`, which the overridden method does not take
    change: add `num_items_in_batch=None` (or `**kwargs`) to the overridden `compute_loss` or `forward`, or install a
        transformers before 4.46
LG227 * (?P<function>[\w.]+)\(\) got an unexpected keyword argument '(?P<name>\w+)' ::! site-packages/(?:transformers
    |accelerate|trl|peft|datasets|deepspeed|huggingface_hub|lightning|pytorch_lightning|axolotl|llamafactory|swift)/
    title: `{function}` does not take `{name}`: the calling package and the one that defines it are incompatible
    change: install matching releases of both: the last file in the traceback belongs to the caller, `{function}` to the
        other package
LG090 Specified `?attn_implementation=
    title: the model or this transformers does not know the requested attention implementation
    change: use one that the message lists (`sdpa`, `eager`, `flash_attention_2`), or a newer transformers
LG089 Failed to import (?P<module>[\w.]+) because of the following error \(look up to see its tracebac
    k\):(?: \| )?(?P<why>.*)
    title: {module} cannot be imported: {why}
    change: reinstall the package that the error names for the installed torch, or install matching releases of
        transformers, accelerate, peft and trl
LG064 ModuleNotFoundError: No module named '(?P<module>liger_kernel|bitsandbytes|deepspeed|peft|trl|flash_attn|xformers
    |apex|vllm|sentencepiece|tiktoken|protobuf|google|wandb|tensorboard|einops|mpi4py|scipy|sklearn|evaluate
    |rouge_chinese|nltk|jieba|ninja|optimum|auto_gptq|awq|gptqmodel|timm|decord|av|qwen_vl_utils|soundfile|librosa
    |galore_torch|torchao|kernels|transformer_engine|megatron|mamba_ssm|causal_conv1d|fla|datasets|accelerate
    |transformers|safetensors|tokenizers|hjson|cpuinfo|msgpack|psutil|pynvml|tqdm|yaml|lightning|pytorch_lightning
    |unsloth|cut_cross_entropy|torchvision|torchaudio|numpy|pandas|pyarrow|ray|packaging|setuptools|PIL|cv2|omegaconf
    |hydra|fire)'
    title: the package `{module}` is not installed in the environment of this rank
    change: install it with `pip install` (the name may differ: google -> protobuf, cv2 -> opencv-python, sklearn ->
        scikit-learn, cpuinfo -> py-cpuinfo, yaml -> pyyaml, PIL -> pillow) in the environment that the ranks use, on
        every host
LG064 * (?:ModuleNotFoundError|ImportError): No module named '?(?P<module>[\w.]+)
    title: a rank cannot import `{module}`: it is not installed in the rank's environment, or its folder is not on
        PYTHONPATH
    change: compare `which python` of the ranks with your shell's; install the package on every host, or launch from the
        folder that has the module (for other hosts, set PYTHONPATH in `.deepspeed_env`)
"""
