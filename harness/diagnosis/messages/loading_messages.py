# SPDX-License-Identifier: Apache-2.0
"""Messages of transformers, safetensors, huggingface_hub and tokenizers about loading and saving models."""

from __future__ import annotations

MESSAGES = r"""
LG204 * LOAD REPORT from: (?P<model>\S+).*?(?P<key>(?<![\w.])[\w.]{0,80}?(?:layers?|blocks?|\bh)\.\{?\d[\w., {}]{0,80}?\.(?:weight
    |bias)) *\| *MISSING
    title: layers of {model} were not found in its files (`{key}` is MISSING): these weights were initialized at random
LG204 * (?:^|\.)(?:layers?|blocks?|h)\.\{\d[\d., ]*\}\.[\w.{}, ]*(?:weight|bias) *\| *MISSING
    title: layers of the model were not found in the checkpoint (MISSING in the load report): these weights were
        initialized at random
LG204 * Some weights of (?P<class>\w+) were not initialized from the model checkpoint at (?P<path>\S+) and are newly in
    itialized: .*(?:layers?|blocks?|\bh)\.\d+\.[\w.]*(?:proj|norm|mlp|dense|attn|attention|attention\w*|experts?|fc\d?
    |ln_\d|query\w*|w\d|c_\w+|layernorm\w*)[\w.]*\.weight'
    title: layers of {class} were not found in the checkpoint {path}: these weights were initialized at random
LG205 size mismatch for (?P<name>\S+): copying a param with shape torch\.Size\(\[0\]\) from checkpoint
    title: the checkpoint's `{name}` is empty (shape [0]): it was saved from a model that ZeRO-3 had partitioned
LG209 (?P<name>\S+): found shape torch\.Size\(\[[\d, ]+\]\) in the checkpoint and torch\.Size\(\[0\]\) in the model
    title: transformers loaded full weights into a model that ZeRO-3 has partitioned (`{name}` has shape [0] in the
        model)
LG205 (?P<name>\S+): found shape torch\.Size\(\[0\]\) in the checkpoint
    title: the checkpoint's `{name}` is empty (shape [0]): it was saved from a model that ZeRO-3 had partitioned
LG205 ckpt torch\.Size\(\[0\]\)
LG031 size mismatch for (?P<name>\S*(?:embed_tokens|wte|word_embeddings|lm_head|embed_out
    |output_layer)\S*): copying a param with shape torch\.Size\(\[(?P<saved>\d+), \d+\]\).* is torch\.Size\(\[(?P<no
    w>\d+), \d+\]\)
    title: the checkpoint's vocabulary has {saved} tokens and the model's {now} (`{name}`)
    change: use the tokenizer and the `vocab_size` that it was saved with: call `model.resize_token_embeddings({saved})`
        before loading, with the same `pad_to_multiple_of`
LG031 Error\(s\) in loading state_dict for (?P<model>\w+): \| Missing key\(s\) in state_dict: "(?P<ke
    y>[^"]*)"\.?(?: \|)?$
    title: the state dict lacks only `{key}`, most often a tied weight that is stored under its other name
    change: if `{key}` is tied to another weight, load with `strict=False` and call `model.tie_weights()`, or copy it
        (newer DeepSpeed releases, 0.10 and later, write both names in `zero_to_fp32.py`); if it is not tied, the model
        has a layer that the saved model lacks
LG207 Cannot copy out of meta tensor; no data!
LG207 (?:Tensor on device meta is not on the expected device|is on device meta|tensors? on the meta device
    |Tensor\.item\(\) cannot be called on meta|on the meta device because)
LG207 You are using `from_pretrained` with a meta device context manager
    change: call `from_pretrained` outside `torch.device("meta")`; under ZeRO-3 it partitions by itself
LG206 Some tensors share memory, this will lead to duplicate memory on disk
LG206 The weights trying to be saved contained shared tensors
LG206 Error while trying to find names to remove to save state dict
    title: safetensors finds no tensor that owns its storage: the state dict has empty (partitioned) or tied weights
    change: gather the weights first (`accelerator.get_state_dict(model)` on all ranks), and save with `save_pretrained`
        or `safe_serialization=False`
LG206 You are trying to save a non contiguous tensor: `(?P<name>[^`]*)`
    title: `{name}` is not contiguous, which safetensors refuses
    change: call `.contiguous()` on it before saving, or `safe_serialization=False`
LG208 Due to a serious vulnerability issue in `torch\.load`
LG207 * NotImplementedError: Cannot access storage of|Cannot access data pointer of (?:Tensor|Storage)
    |Attempted to access the data pointer on an invalid python storage
    title: code saved or moved weights without data: they are partitioned, offloaded or on the meta device
    change: gather them first: `accelerator.get_state_dict(model)` on all ranks, or
        `stage3_gather_16bit_weights_on_model_save: true`; remove `device_map`
LG043 The checkpoint you are trying to load has model type `(?P<type>[\w.-]+)` but Transformers does not recognize
    title: the installed transformers is too old for models of type `{type}`
    change: install a newer transformers on every host (`pip install -U transformers`), with a matching accelerate and
        DeepSpeed; a brand-new model needs transformers from its main branch
LG043 * KeyError: '(?P<type>qwen2(?:_moe|_vl|_5_vl|_5_omni)?|qwen3\w*|llama4\w*|gemma[23]\w*|mistral\w*|mixtral|phi3\w*
    |phi4\w*|deepseek_\w+|glm4\w*|olmo2?\w*|gpt_oss|internvl\w*|mllama|minicpm\w*|cohere2?|granite\w*|starcoder2|jamba
    |ernie4\w*|smollm\w*|falcon_\w+|mamba2?|exaone\w*|hunyuan\w*|seed_oss|bailing\w*|kimi\w*)'
    title: the installed transformers is too old: it does not know models of type `{type}`
    change: install a newer transformers on every host (`pip install -U transformers`): `qwen2` needs 4.37, `gemma2`
        4.42, `qwen2_vl` and `mllama` 4.45, `qwen2_5_vl` 4.49, `gemma3` 4.50, `qwen3` and `llama4` 4.51, `gpt_oss` 4.55
LG043 * KeyError: '(?P<type>[a-z][\w-]*)' ::! transformers/models/auto/(?:configuration|tokenization)_auto
    |configuration_auto
    title: the installed transformers does not know the model type `{type}`: it is too old, or `model_type` in
        config.json is wrong
    change: install a newer transformers on every host (`pip install -U transformers`)
LG043 Tokenizer class (?P<name>\w+) does not exist or is not currently imported
    title: the installed transformers does not have the tokenizer class `{name}`: it is older or newer than the model
        expects
    change: install the transformers that the model's card names (see `transformers_version` in its config.json), and
        `sentencepiece` and `tiktoken`; a class from the model's own repository needs `trust_remote_code=True`
LG043 ImportError: cannot import name '(?P<name>\w+)' from '(?P<module>transformers_modules\S*)'
LG043 This modeling file requires the following packages that were not found in your environment: (?P<names>.*?)\. Run
    title: the model's own code needs packages that are not installed: {names}
    change: `pip install` them on every host
LG227 * (?:ImportError|AttributeError|TypeError): .* ::! transformers_modules/|huggingface/modules
    title: the model's own code (trust_remote_code) does not match the installed transformers
    change: install the transformers that the model's config.json names (`transformers_version`), or use a model class
        that is built into transformers (without `trust_remote_code`)
LG043 (?:Error|Exception): .*(?:is not supported (?:yet )?(?:for|by) (?:this version of )?`?transformers
    |requires `?transformers ?>=? ?(?P<version>[\d.]+))
    change: install a newer transformers on every host
LG041 Can't load tokenizer for '(?P<name>[^']*)'
    title: no tokenizer was found under the name or path `{name}`
    change: check that the folder has tokenizer files, and that no local folder hides the repository of that name; save
        the tokenizer into the model's folder (`tokenizer.save_pretrained`)
LG042 Error while deserializing header: (?P<what>HeaderTooLarge|HeaderTooSmall|InvalidHeader\w*)
    title: a file is not valid safetensors ({what}): it is a git-lfs pointer, an HTML page or a damaged download
    change: look at its size and first bytes; download it again with `hf download` (or `git lfs pull`)
LG033 Error while deserializing header: MetadataIncompleteBuffer|incomplete metadata, file not fully covered
    title: a `.safetensors` file is truncated: its download or save did not finish
    change: download or save it again, and check the free space
LG033 Unable to load weights from pytorch checkpoint file for
    |If you tried to load a PyTorch model from a TF 2\.0 checkpoint
    title: a weight file (`.bin`) could not be read: it is damaged, is a git-lfs pointer, or has another format
    change: download it again, or use the `.safetensors` files; newer transformers refuse `.bin` files with torch before
        2.6
LG033 Invalid magic number; corrupt file\?|Expected input to be a checkpoint returned by torch\.save
LG042 You seem to have cloned a repository without having git-lfs installed
    title: the folder has git-lfs pointers instead of weights
    change: install git-lfs and run `git lfs pull` there, or `hf download`
LG031 You set `ignore_mismatched_sizes` to `False`.*
LG041 (?P<name>\S+) does not appear to have (?:a file|files) named (?P<file>\S+)
    title: `{name}` has no file `{file}`: the model is incomplete, or the folder is a ZeRO checkpoint or an adapter
    change: pass the folder with the model's `config.json` and weights; consolidate a ZeRO checkpoint with
        `zero_to_fp32.py`, and copy `config.json` and the tokenizer into that folder
LG041 Error no file named (?P<file>\S+?),? .*found in directory (?P<path>\S+?)\.?$
    title: the folder {path} has no weights: it was saved as a ZeRO checkpoint or an adapter, or its download is
        incomplete
    change: consolidate the weights with `zero_to_fp32.py`, or pass the folder with `model.safetensors`; for an adapter
        load the base model first (`PeftModel.from_pretrained`)
LG041 Incorrect path_or_model_id: '(?P<path>[^']*)'|Repo id must be in the form .*: '(?P<name>[^']*)'
    title: `{path}{name}` is neither a folder on this host nor a valid repository name
    change: check the path on the host of that rank (mounted in the container? relative to which folder?)
LG041 GatedRepoError|Access to model (?P<name>\S+) is restricted|You are trying to access a gated repo
    |Cannot access gated repo
    title: the repository is gated, and this account has not been given access
    change: accept its terms on the Hub with the account of the token, and give the ranks HF_TOKEN (`hf auth login`) on
        every host
LG041 401 Client Error.*(?:huggingface|hf\.co|hf-mirror)|Invalid (?:user(?:name)? or password
    |credentials in Authorization)|Invalid user token
    title: the Hub rejected the token, or no token is set
    change: give a valid HF_TOKEN to the ranks on every host (`hf auth login`); a private repository needs a token with
        read access to it
LG041 404 Client Error.*(?:huggingface|hf\.co|hf-mirror)|(?:RepositoryNotFound|RevisionNotFound
    |\b(?:Remote)?EntryNotFound)Error
    title: the repository, revision or file is not on the Hub, or is private
    change: check the spelling and the revision; a private repository needs HF_TOKEN
LG232 429 Client Error.*(?:huggingface|hf\.co|hf-mirror)|We had to rate limit|rate limit(?:ed|s)? .*(?:hub|huggingface)
    title: the Hub limits the requests of this address (429), for example because all ranks download at once
LG232 50[0234] Server Error.*(?:huggingface|hf\.co|hf-mirror)|Hub is (?:down|temporarily unavailable)
    title: a server of the Hub failed (5xx)
LG233 Consistency check failed: file should be of size|(?:IncompleteRead|ChunkedEncodingError|ContentTooShort)
    |Connection broken: (?:Incomplete|Invalid)
LG233 CAS service error|(?:xet|Xet).*(?:[Ee]rror|failed)
    title: a download through the Hub's Xet storage failed
    change: set HF_HUB_DISABLE_XET=1, or download beforehand in one process (`hf download`)
LG040 An error happened while trying to locate the files? on the Hub
    title: the file is not in the cache, and the Hub could not be reached to find it
    change: check the network and proxy of the host (`curl -I https://huggingface.co`), or download beforehand and set
        HF_HUB_OFFLINE=1
LG040 (?:ReadTimeoutError|ConnectTimeoutError|ProxyError|SSLError|SSLCertVerificationError|ConnectionError
    |NewConnectionError).*(?:huggingface\.co|hf\.co|hf-mirror)
    title: the Hub cannot be reached from this host (network, proxy or certificates)
LG040 OfflineModeIsEnabled|offline mode is enabled
    title: HF_HUB_OFFLINE (or TRANSFORMERS_OFFLINE) is set, and the files are not in the cache of this host
    change: fill the cache on every host (`hf download`) and give all ranks the same HF_HOME, or unset HF_HUB_OFFLINE
LG220 Using a fast tokenizer.*sentencepiece|requires the (?P<name>SentencePiece|[Tt]iktoken|[Pp]rotobuf
    |sacremoses) library|`(?P<lib>sentencepiece|tiktoken|protobuf)` is required
    title: the tokenizer needs a package that is not installed: {name}{lib}
    change: `pip install sentencepiece tiktoken protobuf` on every host
LG220 Couldn't instantiate the backend tokenizer from one of
    title: transformers cannot build the tokenizer: sentencepiece, tiktoken or a tokenizer file is missing
    change: `pip install sentencepiece tiktoken protobuf` on every host, and check that the folder has `tokenizer.json`
LG227 data did not match any variant of untagged enum (?P<what>\w+)
    title: `tokenizer.json` was written by a newer `tokenizers` than the installed one reads
    change: install a newer tokenizers and transformers, or use a tokenizer that was saved with the installed version
LG227 'TokenizersBackend'|'NoneType' object has no attribute 'endswith' ::! transformers/tokenization
LG220 requires the (?P<name>[\w. -]+?) library but it was not found in your environment
    title: a package that transformers needs here is not installed: {name}
    change: install it in the environment of the ranks, on every host
LG220 (?P<class>\w+) requires the (?P<name>PyTorch|[Tt]orch) library but it was not found
    title: transformers found no torch, or one that is too old for it
    change: install a newer torch, or an older transformers
LG090 does not support (?:Flash Attention|an attention implementation through|setting experts implementation)
    |Requested Flash Attention \S+ which is not supported|is not a valid attention implementation registered
    |Could not find (?:any flash attn implementation|the currently requested flash attention implementation)
    |This flash attention implementation does not support
    title: the model or this transformers does not support the requested attention implementation
    change: use `attn_implementation="sdpa"` or `"eager"`, or a newer transformers
LG090 Flash Attention \S+ with a model not initialized on GPU and with no GPU available
    |FlashAttention\d* is not available on CPU|Flash Attention \d is not available on CPU
    title: FlashAttention was requested, but this rank sees no GPU or the model was loaded on the CPU
    change: check `nvidia-smi`, CUDA_VISIBLE_DEVICES and that torch is a CUDA build; otherwise use
        `attn_implementation="sdpa"`
LG090 (?:FlashAttention|Flash Attention )\d* requires (?:compute capability|at least version)
    title: the requested FlashAttention needs a newer GPU or a newer flash-attn
    change: use `attn_implementation="sdpa"`, or install a newer flash-attn
LG220 Kernels are not available\. Please install a compatible version
    title: the package `kernels` is missing, or an incompatible version is installed
    change: install the version that the message names
LG185 is not compatible with gradient checkpointing|does not support (?:gradient|activation) checkpointing
    title: this model does not support gradient checkpointing
    change: set `gradient_checkpointing=False`
LG197 Unknown quantization type|Did not found a `quantization_config`|has no `quant_method` attribute
    |is quantized with \S+ but you are passing a|does require the model to be pre-quantized
    |cannot combine Quantization and loading|`quant_method=bitsandbytes` but `quantization_config`
    title: the model's quantization and the requested `quantization_config` do not match
    change: load a quantized model without your own `quantization_config`, or pass one with the unquantized model; an
        unknown quantization type needs a newer transformers and the package for that type
LG197 is not serializable - check out the warnings from the logger
    title: this quantized model cannot be saved
    change: save the adapter alone (`model.save_pretrained` of the PeftModel), or train without quantization
LG043 should be an instance of class `PreTrainedConfig`|does not define `config_class`|is not a valid auto class
    |(?:is not consistent with the (?:config class|model type) you pass)
    title: the model class and the configuration belong to different model types
    change: load it with `AutoModelForCausalLM.from_pretrained` (or the class that its config.json names)
LG043 Unrecognized model identifier|Unrecognized model in|Unrecognized configuration class
    title: transformers cannot determine the model class: config.json has no known `model_type`, or the `Auto` class
        does not support it
    change: install a newer transformers, give the folder with `config.json`, and use the `Auto` class of the model's
        task (multimodal: `AutoModelForImageTextToText`)
LG041 Neither a state dict nor checkpoint files were found
    title: the folder of the model has no weights
    change: give the folder with `model.safetensors`; create it from a ZeRO checkpoint with `zero_to_fp32.py`
LG041 Tokenizer class '(?P<name>\w+)' specified in the tokenizer config was not found
    |Unable to load vocabulary from file|Unable to load tokenizer model from SPM
    title: transformers cannot load the tokenizer: its class is unknown, or its files are damaged or incomplete
    change: install a newer transformers, sentencepiece and tiktoken, and download the tokenizer files again
LG206 You are trying to save a sparse tensors|Expected a dict of \[str, torch\.Tensor\]
    |is invalid, expected torch\.Tensor but received
    title: the state dict contains a value that safetensors cannot save
    change: save only dense tensors under their names (`model.state_dict()` of the unwrapped model)
LG043 `?rope_scaling`? must be a dictionary with (?:with )?two fields
    title: the installed transformers is too old for this model's `rope_scaling` (Llama 3.1 and later models)
    change: install transformers 4.43 or later on every host
LG227 * KeyError: '(?:default|type|rope_type)' ::! rope|modeling_|transformers_modules
    title: the model's `rope_scaling` has different keys than the installed transformers or the model's code expects
    change: install the transformers that the model's config.json names (`transformers_version`), or update the model's
        own code
LG231 (?:Image|Video|Audio) features and (?:image|video|audio) tokens do not match|Mismatch in `(?:image|video
    |audio)` token count
    title: a sample has a different number of image, video or audio tokens than features: its text was truncated, or the
        processor does not match the model
    change: raise the maximum length or lower the image resolution (`max_pixels`) so that no sample is truncated, and
        load the processor from the model's own folder
LG223 No operator found for `memory_efficient_attention|xFormers (?:wasn't build|was not built) with CUDA
    title: the installed xformers has no kernel for this torch, GPU or dtype
    change: install the xformers for this torch (`pip install -U xformers`, keeping the same torch), or use
        `attn_implementation="sdpa"`
LG220 (?:Using FP16 with APEX but APEX is not installed|FusedAdam requires cuda extensions|requires cuda extensions
    |Trainer tried to instantiate apex)
    title: NVIDIA Apex was requested, but it is missing or was built without its CUDA extensions
    change: remove `half_precision_backend` and apex optimizers (`fp16` and `bf16` of the DeepSpeed JSON need no Apex),
        or build Apex with `--cpp_ext --cuda_ext`
"""
