# SPDX-License-Identifier: Apache-2.0
"""Models, tokenizers and data that are not there or cannot be read."""

from __future__ import annotations

from harness.diagnosis.diagnosis_types import FailureCause, FailureSignature

CAUSES = (
    FailureCause(
        "LG040",
        "hub-not-reachable",
        "a model, tokenizer or dataset must be downloaded from the Hub, which cannot be reached",
        "download it beforehand where there is a network and give the folder's path, or put it into HF_HOME on "
        "every host and "
        "set HF_HUB_OFFLINE=1",
        (
            FailureSignature(r"We couldn't connect to 'https?://\S+' to load"),
            FailureSignature(r"LocalEntryNotFoundError|OfflineModeIsEnabled|outgoing traffic has been disabled"),
            FailureSignature(
                r"(?:HTTPSConnectionPool|MaxRetryError|ConnectTimeout|NameResolutionError).*huggingface\.co"
            ),
            FailureSignature(r"Couldn't reach '?[\w./-]+'? on the Hub|Cannot reach https://huggingface\.co"),
            FailureSignature(
                r"couldn't find (?:it|them) in the cached files|Cannot find an appropriate cached snapshot folder"
            ),
        ),
    ),
    FailureCause(
        "LG041",
        "model-not-found",
        "the model, tokenizer or dataset does not exist, or this account may not read it",
        "check the name or path on every host; for a gated or private one accept its terms and give HF_TOKEN",
        (
            FailureSignature(r"is not a local folder and is not a valid model identifier"),
            FailureSignature(r"Incorrect path_or_model_id|Repo id must (?:be in the form|use alphanumeric)"),
            FailureSignature(
                r"(?:RepositoryNotFound|GatedRepo|RevisionNotFound|EntryNotFound|HFValidation|DatasetNotFound)Error"
            ),
            FailureSignature(
                r"Can't load (?:tokenizer|the model|the configuration|config|feature extractor|"
                r"image processor) (?:for|of)"
            ),
            FailureSignature(
                r"(?:401|403) Client Error.*huggingface|Access to model \S+ is restricted|"
                r"You are trying to access a gated"
            ),
            FailureSignature(
                r"does not appear to have (?:a file|files) named|no file named (?:model|pytorch_model|config)\b"
            ),
            FailureSignature(r"Error no file named \S+ found in directory"),
            FailureSignature(r"Couldn't instantiate the backend tokenizer"),
        ),
    ),
    FailureCause(
        "LG042",
        "weight-files-missing",
        "the model's folder lacks weight files",
        "download the folder again: every file that its index (`*.index.json`) lists must be there, and none may be "
        "a git-lfs pointer",
        (
            FailureSignature(
                r"No such file or directory: '?\S*(?:model|pytorch_model)(?:-\d+-of-\d+)?\.(?:safetensors|bin)"
            ),
            FailureSignature(r"SafetensorError: (?:File does not contain tensor|.*not found)"),
            FailureSignature(r"safetensors.*(?:does not contain|missing) (?:tensor|key)"),
        ),
    ),
    FailureCause(
        "LG043",
        "model-too-new",
        "the installed transformers does not support the model's architecture or its own code",
        "update transformers on every host, or use a model that it supports",
        (
            FailureSignature(r"Transformers does not recognize this architecture"),
            FailureSignature(r"requires you to execute the (?:modeling|configuration|tokenizer)? ?.*file in that repo"),
            FailureSignature(
                r"contains custom code which must be executed|[Pp]lease pass the argument `trust_remote_code=True`"
            ),
            FailureSignature(
                r"^(?:AttributeError|ValueError)\b.*?(?:Tokenizer class|ForCausalLM) .*(?:does not exist|not currently)"
            ),
        ),
    ),
    FailureCause(
        "LG044",
        "data-not-readable",
        "the data could not be read",
        "check the file and the record named; `harness data` shows the prepared data",
        (
            FailureSignature(
                r"DatasetGenerationError|DataFilesNotFoundError|EmptyDatasetError|DatasetGenerationCastError"
            ),
            FailureSignature(r"UnicodeDecodeError", sure=False),
            FailureSignature(r"JSONDecodeError|Failed to read file .*\.json|JSON parse error", sure=False),
            FailureSignature(r"ArrowInvalid|pyarrow\.lib\.\w+|CSV parse error|Parquet magic bytes not found"),
            FailureSignature(
                r"Column(?:s)? (?:name )?\[?'?\S+'?\]? not in the dataset|KeyError: '(?:text|messages|"
                r"input_ids|labels)'",
                False,
            ),
        ),
    ),
    FailureCause(
        "LG045",
        "data-ran-out",
        "a rank had no more batches, or none at all",
        "give every rank the same number of batches: `drop_last`, a `DistributedSampler`, or stop all ranks at the "
        "shortest; a rank that has no batch leaves the others waiting in a collective",
        (
            FailureSignature(r"^(?:\w+\.)?StopIteration\b"),
            FailureSignature(r"generator raised StopIteration"),
            FailureSignature(
                r"object of type 'NoneType' has no len\(\)", sure=False, frames=r"sampler|dataloader|data_loader"
            ),
        ),
    ),
    FailureCause(
        "LG046",
        "data-differs-in-a-tensor-group",
        "the ranks of a tensor-parallel group got different samples",
        "give all ranks of a tensor group the same data: build the sampler with the rank and size of the "
        "data-parallel group",
        (FailureSignature(r"Data inconsistency within the TP group"),),
    ),
    FailureCause(
        "LG047",
        "loss-scale-at-its-minimum",
        "the loss scale fell to its minimum: gradients were NaN or infinite step after step",
        "train in bf16 where the device supports it, lower the learning rate or warm up longer, clip gradients, and "
        "look at the first step with a NaN; a model that was trained in bf16 often overflows in fp16",
        (
            FailureSignature(r"loss scale already at minimum"),
            FailureSignature(r"Exiting run.*loss scale|FloatingPointError: Minimum loss scale reached"),
        ),
    ),
    FailureCause(
        "LG048",
        "loss-is-not-a-number",
        "the loss or a gradient became NaN or infinite",
        "lower the learning rate or warm up longer, clip gradients, look at the batch of that step (empty labels, all "
        "masked), and for fp16 at the loss scale",
        (
            FailureSignature(
                r"(?:Error|Exception|Exit\w*)\b.*\b(?:[Ll]oss|[Gg]rad\w*)\b.*\b(?:is|became|was|are) (?:nan|NaN|inf)"
            ),
            FailureSignature(
                r"\b(?:[Ll]oss|[Gg]rad\w*)(?: norm)? (?:is|became|contains?) (?:nan|NaN|inf|Inf)\b", sure=False
            ),
            FailureSignature(r"probability tensor contains either `?inf`?, `?nan`?"),
            FailureSignature(
                r"(?:NaN|nan|inf) (?:detected|found|encountered)|[Nn]on-?finite (?:loss|grad)", sure=False
            ),
            FailureSignature(r"step \d+: .*(?:not a number|NaN or infinite)", sure=False),
        ),
    ),
)
