# SPDX-License-Identifier: Apache-2.0
"""The model's `transformers` configuration: written out in the spec, or from a folder or the Hub."""

from __future__ import annotations

from transformers import AutoConfig, PreTrainedConfig, PreTrainedTokenizerBase

from harness.runtime.hub_kernels import refuse_hub_kernels
from harness.runtime.text_part import SOURCE_KIND, find_text_part
from harness.runtime.tokenizer import check_vocabulary
from harness.runtime.user_errors import first_error_line, user_error
from harness.spec.run_spec import ModelSpec


def load_config(spec: ModelSpec, tokenizer: PreTrainedTokenizerBase) -> PreTrainedConfig:
    """The model's `transformers` configuration, of a composite that of its text model; a new model takes its special
    ids from the tokenizer.

    Raises UserError (MD101 vocabulary, MD102 configuration).
    """
    whole = _read_config(spec)
    config = find_text_part(whole).config or whole
    if config is not whole and not is_random_init(spec):
        setattr(config, SOURCE_KIND, whole.model_type)
    check_vocabulary(tokenizer, config.get_text_config().vocab_size)
    if is_random_init(spec):
        for name in ("bos_token_id", "eos_token_id", "pad_token_id"):
            setattr(config, name, getattr(tokenizer, name))
    config.use_cache = False
    return config


def is_random_init(spec: ModelSpec) -> bool:
    """True when weights are initialised rather than loaded."""
    return spec.name_or_path is None or spec.random_init


def _read_config(spec: ModelSpec) -> PreTrainedConfig:
    try:
        if spec.config is not None and spec.name_or_path is None:
            fields = dict(spec.config)
            written: PreTrainedConfig = AutoConfig.for_model(fields.pop("model_type"), **fields)
            refuse_hub_kernels(written)
            return written
        if spec.name_or_path is not None:
            config: PreTrainedConfig = AutoConfig.from_pretrained(
                spec.name_or_path, revision=spec.revision, trust_remote_code=spec.trust_remote_code
            )
            refuse_hub_kernels(config)
            return config
    except KeyError:
        raise user_error(
            "MD102", "`model.config` has no `model_type`", key="model.config", fix="add `model_type`, such as `llama`"
        ) from None
    except Exception as error:  # transformers raises OSError, ValueError, TypeError and its own validation errors here
        where = "`model.config`" if spec.name_or_path is None else f"`{spec.name_or_path}`"
        raise user_error(
            "MD102", f"no model configuration could be made from {where}", key="model", notes=(first_error_line(error),)
        ) from None
    raise user_error(
        "MD102", "neither `model.name_or_path` nor `model.config` is set", key="model", fix="set one of them"
    )
