# SPDX-License-Identifier: Apache-2.0
"""Messages of `datasets` and transformers about data, tokenizers, collators, processors and `generate`."""

from __future__ import annotations

MESSAGES = r"""
LG234 (?:Error|Exception|Exit)\b.*?(?:(?:Original column|New column|Input column|Column)s?(?: names?
    | to remove)?,? ?\[?(?P<name>'?[\w', .-]*'?)\]? (?:not (?:in|found in) the (?:dataset|table)|already in the dataset
    |(?:are|is) empty)|Column \((?P<name2>\S+)\) not in table columns)
    title: the dataset has no column {name}{name2} (or has it already)
    change: compare `dataset.column_names` with the names that the script or its configuration uses
LG234 (?:Error|Exception|Exit)\b.*?(?:The features can't be aligned because|External features info don't match
    |columns in features .* must be identical|The 'source' features come from dataset_info|Keys mismatch: between
    |Type mismatch: between|(?:Features|Number of rows) must (?:be the same|match) for all
    |Features specified in .* can't be different|tables can't have duplicated columns|[Cc]olumn lengths mismatch
    |Column mismatch between batch)
    title: the datasets to combine have different columns or types
    change: `cast` all to the same `features` and remove other columns before `concatenate_datasets` or
        `interleave_datasets`; delete the old cache when the format changed
LG234 (?:NonMatchingSplitsSizes|ExpectedMoreSplits|UnexpectedSplits|NonMatchingChecksum|ExpectedMoreDownloadedFiles
    |UnexpectedDownloadedFile)Error
    title: the downloaded files differ from the dataset's metadata: the dataset changed, or the cache is stale
    change: load with `download_mode="force_redownload"` and `verification_mode="no_checks"`, or delete the folder of
        that dataset in HF_DATASETS_CACHE
LG227 (?:Error|Exception|Exit)\b.*?(?:Invalid pattern: '\*\*' can only be an entire path component
    |Loading a (?:streaming )?dataset cached in a (?P<fs>\w+) is not supported
    |got an unexpected keyword argument '(?:use_auth_token|trust_remote_code|ignore_verifications|task)') :: datasets/
    |load_dataset|fsspec
    title: the installed datasets does not match the installed fsspec or huggingface_hub, or the script's arguments
    change: `pip install -U datasets fsspec huggingface_hub`, or `"fsspec<2023.10"` with an old datasets
LG234 (?:Error|Exception|Exit)\b.*?(?:Couldn't find any data file at|Couldn't resolve pattern
    |Unable to find '\S+'(?: with any supported extension)?|Local file \S+ doesn't exist|Empty 'data_files'
    |At least one (?:valid )?data file must be specified|(?:Please )?specify the data files or data directory
    |No such files?: '[^']*'(?:, nor|\. Expected to load)|could not find data in|Directory \S+ not found
    |Data files don't belong to|No JSON/JSONL files found|File \S+ not found\.$|Cannot open \S+ due to
    |Path does not exist: \S+\.$)
    title: the data files do not exist at that path on this host
    change: give an absolute path that exists on every host, check the file extension, and that `load_from_disk` gets a
        folder written by `save_to_disk`
LG234 (?:Error|Exception|Exit)\b.*?(?:Feature type '(?P<name>\w+)' not found)
    title: the dataset was saved with a newer `datasets`, which has the feature `{name}`
    change: `pip install -U datasets` (`List` needs 4.0), or save the data again with the installed version
LG234 (?:Error|Exception|Exit)\b.*?(?:(?:Couldn't write column|its type in this file is null|Couldn't (?:embed
    |cast) array|Cannot (?:encode mixed-type|convert \S+ to a Feature)|Please pass `features` or at least one example
    |Failed to convert pandas DataFrame|Class label \S+ greater than|Invalid string class label
    |Got None but expected a dictionary))
    title: a record of the dataset has a different type than its column, or a column has only empty values
    change: give `features` to `load_dataset` or `map`, and make all records have the same fields and types
LG044 (?:Error|Exception|Exit)\b.*?(?:There was an overflow with type|[Oo]ffset overflow|array larger than 2 ?GB)
    title: a batch of a column is larger than arrow's limit of 2 GB
    change: pass a smaller `writer_batch_size` (100) and `batch_size` to `map`
LG044 ArrowInvalid: Column (?P<index>\d+) named (?P<name>\S+) expected length (?P<a>\d+) but got length (?P<b>\d+)
    title: a batched `map` returned {b} rows of `{name}` for {a} rows of the other columns
    change: return the same number of rows for every column, and remove the old ones: `map(..., batched=True,
        remove_columns=dataset.column_names)`
LG044 ArrowInvalid: (?:Could not convert|cannot mix|Invalid (?:null|value)|Expected bytes)|ArrowTypeError
    |ArrowNotImplementedError|Schema at index \d+ was different|changed from (?:object|string|array|number|boolean) to
    title: records of the dataset have different types in one column, such as a string and a number
    change: make all records have the same fields and types, or give `features`; look at the column and row that the
        message names
LG234 (?:Error|Exception|Exit)\b.*?(?:(?:Unable to (?:interleave|concatenate) an empty list|No datasets were loaded
    |num_shards=\d+, which is lower than world_size|Unable to shard a dataset of size|the number of shards exceeds
    |test_size=\S+ should be either|the resulting train set will be empty|least populated class in))
    title: the dataset is empty, or too small for the requested shards or splits
    change: check the filters and `max_samples`, use fewer shards, ranks or workers, or a smaller `test_size`
LG292 Error: num_proc must be
    title: `num_proc` of the data preparation is out of range
    change: set `num_proc` between 1 and the number of rows and CPU cores
LG230 (?:Error|Exception|Exit)\b.*?(?:This tokenizer does not have a mask token which is necessary for masked)
    title: masked language modelling was requested, but the tokenizer has no mask token
    change: set `mlm=False` in `DataCollatorForLanguageModeling` for causal models
LG230 (?:Error|Exception|Exit)\b.*?(?:(?:specified `?(?:pad_token
    |eos_token)`? \('?(?P<token>[^')]*)'?\) is not found in the vocabulary|pad_token_id.*(?:must|has to) be defined
    |[Pp]ad_token_id must be set|Special token \S+ has to be|Cannot set a non-string value as the \w+ token
    |decoder_start_token_id.* (?:has to be|must be) defined|`bos_token_id` has to be defined))
    title: a special token is not in the vocabulary of the tokenizer, or is not set
    change: set `tokenizer.pad_token = tokenizer.eos_token` (and `model.config.pad_token_id`, `eos_token_id`,
        `decoder_start_token_id`) to tokens that the tokenizer has
LG230 (?:Error|Exception|Exit)\b.*?(?:multiple chat templates (?:but none|with no default)|Invalid keys in the example
    |continue_final_message|chat template is not training-compatible|(?:Invalid
    |Unexpected) role(?: in (?:the last )?message)?: |Unrecognized chat template|Chat messages should be dicts
    |each dict must have a 'role' and 'content'|assistant_only_loss=True`?, but|`return_assistant_tokens_mask
    |no assistant tokens|does not support tool calling)
    title: the chat template does not support these conversations or this loss masking
    change: give each record `messages` with `role` (system, user, assistant) and `content`, and use the model's own
        template; `assistant_only_loss` needs one with `{% generation %}` tags
LG231 * (?:Error|Exception|Exit)\b.*?(?:batch length of `text`|`text_pair` must be a list
    |Input \S* ?is not valid\. Should be a string|type of \S+ unknown: |batch_text_or_text_pairs has to be
    |`text` must be a string|should be an str but got|You should supply an encoding or a list of encodings)
    title: the tokenizer or its `pad` got a value that is not a string or an encoding, such as None, a number or a
        nested list
    change: remove or convert such records (`dataset.filter(lambda x: isinstance(x["text"], str))`), tokenize before
        padding, and keep only the model's columns in the batch
LG231 (?:Error|Exception|Exit)\b.*?(?:Truncation and padding are both activated but truncation length)
    title: the maximum length is not a multiple of `pad_to_multiple_of`
    change: choose `max_length` as a multiple of `pad_to_multiple_of` (8 or 64)
LG231 (?:Error|Exception|Exit)\b.*?(?:returning overflowing tokens of different lengths|sequence lengths be even
    |a batch where every example is empty|All columns must have values of the same length|Packing requires all columns
    |An example has no prompt tokens left|packed example should be identical to the cutoff
    |Prompt input ids and (?:answer|attention)|prompt_input_ids might only differ on the last token)
    title: the examples of a batch or a packed sequence have lengths that do not match, or are empty
    change: truncate and pad all examples the same way (`padding=True`, `truncation=True`), drop empty ones, and raise
        `max_length` where no prompt tokens are left
LG231 (?:Error|Exception|Exit)\b.*?(?:(?:number of|Number of) (?P<kind>images?|videos?|audios?).*(?:does not match
    |should be the same|must match)|Found \d+ \S+ tokens in the text but no
    |image placeholder tokens in `input_ids` to be truncated|The total number of \S+ tokens in the prompts
    |runs of image tokens|image (?:features and image )?tokens do(?:es)? not match|does not support (?:image|video
    |audio) input)
    title: the number of image, video or audio placeholders in the text differs from the number of files
    change: write one placeholder (`<image>`) for each file in every record, do not truncate inside its tokens (raise
        `max_length` or `cutoff_len`, or use smaller images), and use the model's own template
LG189 (?:Error|Exception|Exit)\b.*?(?:Unexpected input keys in examples|input examples must contain either
    |requires 'prompt' and 'completion' keys|The `?\w+`? dataset has mask columns but no
    |Expected 'attention_mask' or 'position_ids'|Unexpected key in batch|(?:No role|No message_content
    |Field '[^']*') (?:field )?(?:not )?found in (?:message|sample))
    title: the records lack the columns that this trainer and collator read
    change: give each record `text`, `messages`, or `prompt` and `completion` (preference data: `prompt`, `chosen`,
        `rejected`); your own collator needs `remove_unused_columns=False`
LG189 (?:Error|Exception|Exit)\b.*?(?:You must specify a `?dataset_text_field|need to pass a `dataset_text_field
    |`formatting_func`? should return a list|should provide a list of processed strings)
    title: the trainer does not know which column of the data has the text
    change: set `dataset_text_field`, or pass a `formatting_func` that returns a string (older trl: a list of strings)
LG238 Input length of (?:decoder_)?input_ids is \d+, but `?max_length|longer than allowed|Error: .*tokens .*(?:exceeds?
    |longer than) (?:the )?(?:maximum|model'?s?)|context_length is bigger than
    title: an input is longer than the allowed length
    change: truncate prompts (`max_length`, `max_prompt_length`), or give `max_new_tokens` instead of `max_length`
LG299 (?:Error|Exception|Exit)\b.*?(?:The following `?model_kwargs`? are not used by the model: (?P<names>.*))
    title: `generate` got inputs that the model does not take: {names}
    change: drop them from the batch (`token_type_ids`: `return_token_type_ids=False`), and check the spelling
LG299 (?:Error|Exception|Exit)\b.*?(?:GenerationConfig is invalid|generation config instance is invalid
    |Some generation parameters are set in the model config|These should go into `?(?:model\.)?generation_config
    |modified the pretrained model configuration to control generation|Fix these issues to (?:save|train))
    title: the generation settings of the model conflict with each other, so they cannot be saved: sampling values such
        as `temperature` or `top_p` without `do_sample=True`
    change: set `model.generation_config.do_sample = True` (or unset `temperature`, `top_p`) before training, and keep
        such values out of `config.json`
LG299 (?:Error|Exception|Exit)\b.*?(?:`(?:max_new_tokens|early_stopping|num_return_sequences|num_beams
    |cache_implementation|streamer|assistant_\w+|inputs)`.*(?:must|has to|cannot|should|not (?:supported|allowed
    |required))|Greedy methods \S* ?\S* ?without beam search do not|Passing a tuple for `(?:cache|past_key_values)`
    |attention_mask` passed to `generate`|only supports .* generation mode
    |batched generation with `?padding_side='right'|padding_side ?= ?'left')
    title: `generate` refused its inputs or settings
    change: change the argument that the message names; for batches set `tokenizer.padding_side = "left"`, and give
        whole numbers above 0 for lengths
LG082 (?:Error|Exception|Exit)\b.*?(?:Attention (?:mask|weights) should be of size)
    title: the attention mask has a different shape than the attention expects, for example because of an attention
        patch, a KV cache or a different padded length
    change: pass the `attention_mask` of the tokenizer (batch x length), set `use_cache=False` for training, and remove
        attention patches that were written for another transformers
LG090 (?:Error|Exception|Exit)\b.*?(?:`?(?:flex_attention|sdpa
    |flash_attention\S*)`? (?:attention )?does not support `?(?P<what>\w+)
    |Flash Attention 2(?:\.0)? (?:with a model dispatched on CPU|and BetterTransformer)
    |Tensor query has shape with a zero dim|Both attn_implementation=.* and `use_flash_attention_2)
    title: the requested attention implementation does not support this model, batch or device
    change: use `attn_implementation="sdpa"` or `"eager"`, load the model on the GPU, and pass only
        `attn_implementation`, not `use_flash_attention_2` as well
LG043 (?:Error|Exception|Exit)\b.*?(?:`?(?:torch_)?dtype`? (?:provided as a `str`|can (?:only )?be (?:one of|`torch
    |`'auto))|Invalid `(?:torch_)?dtype` passed to|since it is not a floating[ -]point dtype
    |Can't instantiate \w+ model under dtype)
    title: `dtype` (`torch_dtype`) is not a floating-point dtype
    change: give `torch.bfloat16`, `torch.float16`, `torch.float32`, or `"auto"`
LG031 (?:Error|Exception|Exit)\b.*?(?:Incompatible safetensors file|does not contain the valid metadata
    |state dictionary of the model you are trying to load is corrupted|File metadata is not \[)
    title: the weight file was saved without the metadata that transformers needs, or is damaged
    change: save it again with `save_pretrained` (or `save_file(..., metadata={"format": "pt"})`)
LG054 (?:Error|Exception|Exit)\b.*?(?:is not a valid JSON file|config file at '(?P<path>[^']*)' is not a valid)
    title: the model's configuration {path} is not valid JSON: its download or copy is incomplete, or an edit broke it
    change: download or copy it again; its first line shows whether it is a git-lfs pointer or an HTML page
LG051 PermissionError at \S+ when downloading|Check cache directory permissions
    title: this user has no permission to write the Hugging Face cache
    change: give HF_HOME a folder that this user owns, on every host
LG089 (?:Error|Exception|Exit)\b.*?(?:Could not import module '(?P<name>\w+)'\. Are this object's requirements defined c
    orrectly)
    title: transformers could not import `{name}`: a package that it needs is missing or incompatible
    change: run `python -c "from transformers import {name}"` with TRANSFORMERS_VERBOSITY=debug to see the first error;
        torchvision, torchaudio, flash-attn and peft must match this torch and transformers
LG031 (?:Error|Exception|Exit)\b.*?(?:We encountered some issues during automatic conversion of the weights)
    title: transformers could not convert the checkpoint's weights to the layout of its model class
    change: read the `CONVERSION` rows of the load report above; load with the transformers that saved it, or a newer
        one
LG014 * (?:CUDA error: device-side assert|Assertion `?(?:srcIndex < srcSelectDimSize|t >= 0 && t < n_classes
    |index >= -sizes))
    title: an index on the GPU is out of range: most often a token id beyond the embedding, or a label beyond the number
        of classes
    change: call `model.resize_token_embeddings(len(tokenizer))` after adding tokens, use -100 for masked labels, and
        set `num_labels`; CUDA_LAUNCH_BLOCKING=1 shows the line
LG041 (?:Error|Exception|Exit)\b.*?(?:Can't load processor for|is a gated repository
    |is not a local folder or a valid repository name|is not a valid git identifier)
    title: the model's repository, revision or processor does not exist, or this account has no access to it
    change: check the name and revision; log in (`hf auth login`, HF_TOKEN on every host) and accept the terms of a
        gated repository
LG040 (?:Error|Exception|Exit)\b.*?(?:Couldn't reach the Hugging Face Hub
    |There was a specific connection error when trying to load|Server Disconnected)
    title: the Hub cannot be reached from this host
"""
