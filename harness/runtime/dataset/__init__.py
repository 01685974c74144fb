# SPDX-License-Identifier: Apache-2.0
"""The path of the data: sources, records, tokens, rows in a cache that ranks map, batches of a step.

    data_sources.py        files, Hub data sets and builtins (file_readers, json_readers, hub)
    record_formats.py      columns into texts, prompt-completion pairs and chats (chat_templates, bad_records)
    tokenization.py        records into token ids, in this process or in several (ingestion)
    preparation.py         the token files of a run: eval_split, token_rows, bin_packing; cache.py stores them
    distributed_preparation.py  one rank a node prepares
    token_dataset.py       rows as tensors; sampler.py the rows of each step
    batch_prefetch.py      the batch of the next step, in a thread

Nothing but `distributed_preparation` needs DeepSpeed: `harness data` previews a data set in a process of its own.
"""
