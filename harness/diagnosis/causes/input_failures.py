# SPDX-License-Identifier: Apache-2.0
"""Tokenizers, batches and downloads. `messages` has what transformers, datasets and huggingface_hub say."""

from __future__ import annotations

from harness.diagnosis.diagnosis_types import FailureCause

CAUSES = (
    FailureCause(
        "LG230",
        "tokenizer-lacks-a-setting",
        "the tokenizer lacks a padding token, a chat template or another setting",
        "set `tokenizer.pad_token = tokenizer.eos_token`, or `tokenizer.chat_template`, before the data is prepared",
        (),
    ),
    FailureCause(
        "LG231",
        "examples-of-different-length",
        "the examples of a batch have different lengths, or values that are not numbers",
        "pad and truncate them (`padding=True`, `truncation=True`, a collator that pads `labels` too), and remove "
        "string columns before the collator",
        (),
    ),
    FailureCause(
        "LG232",
        "hub-limits-requests",
        "the Hub refused a request: too many of them, or the server failed",
        "download once (`hf download`) and give the folder's path, or set HF_HUB_OFFLINE=1 with a filled HF_HOME; give "
        "HF_TOKEN for a higher limit, and try again later",
        (),
    ),
    FailureCause(
        "LG233",
        "download-incomplete",
        "a download from the Hub was interrupted or incomplete",
        "remove the file from the cache (HF_HOME) and download it once, on one process, before the job",
        (),
    ),
    FailureCause(
        "LG234",
        "dataset-does-not-fit",
        "the dataset does not have the requested format, columns, splits or configuration",
        "look at `dataset.features` and the names of its splits, and at the first records; give `data_files`, `split` "
        "and the configuration by name",
        (),
    ),
    FailureCause(
        "LG235",
        "dataset-script-refused",
        "the dataset needs its own Python script, which this version of `datasets` does not run",
        'install `"datasets<4"` and pass `trust_remote_code=True`, or use a dataset converted to Parquet',
        (),
    ),
    FailureCause(
        "LG236",
        "concurrent-file-creation",
        "a rank tried to create a file or folder that already exists: an earlier run left it, or several ranks "
        "created it at the same time",
        "let one rank create it and the others wait (a barrier, `exist_ok=True`), remove what an earlier run left, or "
        "write to a new folder",
        (),
    ),
    FailureCause(
        "LG238",
        "input-longer-than-the-model",
        "an input has more tokens than the model has positions",
        "truncate inputs to the model's maximum (`max_length`, `max_position_embeddings`), or use a model with a "
        "longer context",
        (),
    ),
)
