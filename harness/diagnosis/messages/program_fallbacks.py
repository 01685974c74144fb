# SPDX-License-Identifier: Apache-2.0
"""The last rows: exceptions for which only type and frames suggest a next step. Never certain."""

from __future__ import annotations

MESSAGES = r"""
LG291 * (?:ValueError|AssertionError|RuntimeError|NotImplementedError|ImportError): .* ::$ /(?:training_args|\w*_?config
    |arguments|args|hparams/\w+|\w+_args|validation|schemas/\S+)\.py (?:__post_init__|validate\w*|check_\w+|_check\w*
    |_validate\w*|get_train_args|_verify\w*|\w*parse_args\w*|__init__)\b
    title: the program refused its arguments or configuration
    change: change the argument that the message names; if the installed version does not have it, install the version
        that the script was written for
LG227 * TypeError: (?P<function>[\w.]+)\(\) (?:got multiple values for argument|missing \d+ required
    |takes (?:from )?\d+) .* ::$ site-packages/(?:transformers|accelerate|trl|peft|datasets|huggingface_hub|lightning
    |pytorch_lightning|axolotl|llamafactory|swift|torch|openrlhf|unsloth|vllm|megatron)/
    title: a package calls `{function}` with arguments that the installed version does not take
    change: install matching releases of the package whose file is last in the traceback and the one that defines
        `{function}`
LG227 * AttributeError: '(?P<class>\w+)' object has no attribute '(?P<name>\w+)' ::$ site-packages/(?:transformers
    |accelerate|trl|peft|datasets|huggingface_hub|axolotl|llamafactory|swift|openrlhf|unsloth|vllm|lightning
    |pytorch_lightning|bitsandbytes)/
    title: a package reads `{class}.{name}`, which does not exist: two packages have incompatible releases, or the
        script passed an object of another type
    change: install matching releases of transformers, accelerate, peft and trl, or check the object that the script
        passes to the last function in the traceback
LG234 * KeyError: '(?P<name>[\w ./-]+)' ::$ datasets/|formatting|/data/|dataset|preprocess|tokenize|collat
    title: a record of the dataset, or a batch, has no field `{name}`
    change: compare `dataset.column_names` with the names that the script reads, and name the fields in its
        configuration
LG044 * (?:TypeError|AttributeError): .*NoneType.* ::$ /data/|dataset|collat|tokeniz|preprocess|template
    title: a record of the dataset has None where the data preparation expects a string or a list
    change: drop or fill such records (`dataset.filter(...)`), and run once with `num_proc=1` and `num_workers=0` to
        find them
LG291 * ^(?:ValueError|AssertionError|NotImplementedError): (?P<why>(?:[A-Z`]|`?--|\w+_\w+)[^
    |]{24,}) ::$ site-packages/(?:transformers/(?:trainer|training_args|integrations|data|hf_argparser|processing_utils
    |tokenization_utils|generation|optimization|modeling_utils|quantizers|utils)|accelerate/|trl/|peft/|datasets/
    |lightning/|pytorch_lightning/|axolotl/|llamafactory/|swift/|openrlhf/|huggingface_hub/)
    title: a package refused an argument, an input or a combination of settings: {why}
    change: change the setting that the message names; if the script worked before, compare the package versions with
        those of that run
"""
