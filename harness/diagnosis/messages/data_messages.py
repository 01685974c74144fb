# SPDX-License-Identifier: Apache-2.0
"""Messages of datasets, pyarrow, tokenizers and transformers about data and batches; files that ranks create."""

from __future__ import annotations

MESSAGES = r"""
LG235 Dataset scripts are no longer supported, but found (?P<name>\S+)
LG234 (?:Couldn't find cache for|Dataset \S+ is not cached in)
    title: the dataset is not in this host's cache, and cannot be downloaded here
    change: download it once on a host with a network (`load_dataset`), give all hosts the same HF_HOME, or pass the
        files (`data_files`)
LG234 Unknown split "?(?P<split>\w+)"?|Bad split: (?P<bad>\w+)\. Available splits
    title: the dataset has no split `{split}{bad}`
    change: use a split that the message lists
LG234 BuilderConfig '?(?P<name>\S+?)'? not found\. Available|Config name is missing
    title: the script named no configuration of the dataset, or one that the dataset does not have
    change: pass, as the second argument (`name`), one that the message lists
LG234 Couldn't infer the same data file format for all splits|No \(supported\) data files? found
    |doesn't contain any data files|EmptyDatasetError|DataFilesNotFoundError
    title: the path has no data file of a supported format
    change: check the path on the host of that rank; give `data_files` and the format (`load_dataset("json",
        data_files=...)`)
LG234 You are trying to load a dataset that was saved using `save_to_disk`
    change: use `load_from_disk`
LG234 Directory (?P<path>\S+) is neither a `Dataset` directory nor a `DatasetDict`
    change: give the folder that `save_to_disk` wrote, or use `load_dataset`
LG234 Couldn't cast(?: array of type)?|(?:DatasetGenerationCastError|TypeError: Couldn't cast)
    title: some records of the dataset have other columns or types than the first ones
    change: make all files have the same columns and types, or give `features`
LG234 (?:Column|Columns) (?:name )?\[?'?(?P<name>[^'\]]+)'?\]? (?:not in the dataset|doesn't exist|to remove).*
    |KeyError: "Column (?P<column>\w+) not in the dataset
    title: the dataset has no column `{name}{column}`
    change: compare `dataset.column_names` with the names that the script or its configuration uses
LG234 * KeyError: '(?P<name>text|messages|conversations|prompt|chosen|rejected|instruction|input|output|question|answer
    |completion|response|image|images|label|content|role|from|value)'
    title: a record of the dataset has no field `{name}`
    change: name the fields of your data in the script's configuration (`dataset_text_field`, the template's columns),
        or rename the columns
LG234 Not enough disk space\. Needed:
    title: the disk has no space for the dataset's cache
    change: put HF_HOME (or `cache_dir`) on a larger disk
LG044 (?:JSON parse error|Failed to (?:read|load) (?:file|JSON from file)).*
    title: a JSON file of the data cannot be parsed
    change: check the line that the message names: JSON Lines has one object per line, all with the same fields and
        types
LG044 ArrowInvalid: offset overflow while concatenating arrays|ArrowInvalid: .*exceed
    title: a column of the data is larger than arrow's 2 GB limit for a chunk
    change: pass a smaller `writer_batch_size` or `batch_size` to `map`, or use `large_string`
LG230 Asking to pad but the tokenizer does not have a padding token|(?:Please select a token to use as `pad_token`)
    |does not have a pad(?:ding)? token|Can't find `pad_token_id`|not configured with a padding token
    |Cannot handle batch sizes > 1 if no padding token is defined
    title: the tokenizer has no padding token
    change: set `tokenizer.pad_token = tokenizer.eos_token` (and `model.config.pad_token_id`) before the data is
        prepared
LG230 chat_template is not set|does not have a chat template|no chat template|No default chat template
    |Cannot use (?:apply_chat_template|chat template functions)
    title: the tokenizer has no chat template
    change: use the instruct model's tokenizer, set `tokenizer.chat_template`, or format the texts yourself
LG230 (?:Conversation roles must alternate|TemplateError|jinja2\.exceptions\.\w+)
    title: the chat template refused a conversation, most often because of its roles, a system message or an empty
        message
    change: alternate user and assistant messages, starting with the user; some templates accept no system message
LG230 You need to specify either `text` or `text_target`|text input must be? of type `str`
    |TextEncodeInput must be Union|TextInputSequence must be str
    title: the tokenizer got a value that is not a string: a record is None or a number
    change: remove or convert such records (`dataset.filter(lambda x: x["text"])`)
LG238 Error: .*(?:longer than|exceeds?) .*(?:max_position_embeddings|max(?:imum)? (?:model|sequence|context
    |position) ?(?:length|embeddings)?)
LG014 index out of range in self
    title: a token id or a position is beyond the end of the embedding table that it indexes
    change: compare `len(tokenizer)` with `model.config.vocab_size`: call
        `model.resize_token_embeddings(len(tokenizer))` after adding tokens; compare the length of inputs with
        `max_position_embeddings`
LG045 num_samples should be a positive integer value, but got num_samples=0
    title: the training dataset is empty: the filters removed every record, or none was read
    change: check the path, the split and the filters (does `max_length` drop every record?)
LG045 object of type '(?P<name>\w*Dataset\w*|generator|NoneType)' has no len\(\) :: sampler|dataloader|data_loader
    |trainer
    title: the sampler needs a dataset with a length: this one is iterable, or None
    change: for an iterable dataset set `max_steps` and no sampler, or load it without streaming
LG236 FileExistsError: \[Errno 17\] File exists: '?(?P<path>[^']*)
    title: {path} already exists: an earlier run left it, or several ranks created it at the same time
LG054 (?P<what>Is a directory|Not a directory): '(?P<path>[^']*)
    title: {path} has the wrong type ({what})
    change: pass a file where the traceback's call expects a file, and a folder where it expects a folder, on the host
        of that rank
LG034 \[Errno 2\] No such file or directory: '?(?P<path>[^']*/(?:trainer_state\.json|optimizer\.pt|scheduler\.pt
    |rng_state_\d+\.pth|latest|zero_to_fp32\.py|random_states_\d+\.pkl|training_args\.bin))
    title: a file of the checkpoint is missing on this host: {path}
    change: resume from a complete `checkpoint-N` folder that every host sees; without a shared disk each host has only
        the files that its own ranks wrote
LG236 OSError: \[Errno 39\] Directory not empty: '?(?P<path>[^']*)
    title: several ranks or hosts renamed or removed the same folder ({path}) at the same time
    change: let one rank save on a shared disk (`save_on_each_node=False`), remove what an earlier save left, and use a
        newer transformers (some releases rename `tmp-checkpoint-N` on every rank)
LG236 FileNotFoundError: .*?(?P<path>[^' ]{0,200}tmp-checkpoint-[^']*)
    title: several ranks renamed the same temporary checkpoint folder ({path})
    change: install transformers 4.39 or later, which writes into the folder itself (4.36 to 4.38 rename it, which fails
        on shared disks), or set `save_on_each_node=False`
"""
