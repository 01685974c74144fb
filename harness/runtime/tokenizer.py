# SPDX-License-Identifier: Apache-2.0
"""Tokenizers: a byte-level one that needs no file, or one that `transformers` loads.

Reading and tokenizing text is in `dataset/`.
"""

from __future__ import annotations

from pathlib import Path

from tokenizers import Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE
from transformers import AutoTokenizer, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from harness import input_limits
from harness.file_io import read_regular
from harness.runtime.user_errors import first_error_line, user_error
from harness.spec.run_spec import ModelSpec

EOS_TOKEN, PAD_TOKEN = "<|endoftext|>", "<|pad|>"
_CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '### ' + message['role'] + '\n' + message['content'] }}"
    "{% if message['role'] == 'assistant' %}{{ eos_token }}{% endif %}{{ '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '### assistant\n' }}{% endif %}"
)
"""Chats of the byte tokenizer: a headline for each turn, and the end of text after each turn of the assistant."""
_CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


def byte_tokenizer() -> PreTrainedTokenizerFast:
    """256 tokens, id = value of the byte, then end of text (256) and padding (257); any UTF-8 text decodes exactly.

    Saved, it is an ordinary Hugging Face tokenizer folder: byte-level BPE (GPT-2's alphabet) without a single merge.
    """
    vocabulary = {character: byte for byte, character in enumerate(_byte_alphabet())}
    core = Tokenizer(BPE(vocab=vocabulary, merges=[]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    core.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        chat_template=_CHAT_TEMPLATE,
        eos_token=EOS_TOKEN,
        pad_token=PAD_TOKEN,
        clean_up_tokenization_spaces=False,
        model_max_length=1 << 30,
    )


def _byte_alphabet() -> list[str]:
    """The printable character that stands for each byte in byte-level BPE: the byte's own where Latin-1 prints it, else
    the next one from U+0100 on (Radford et al. 2019, GPT-2's `bytes_to_unicode`).
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    substitutes = iter(range(0x100, 0x200))
    return [chr(byte) if byte in printable else chr(next(substitutes)) for byte in range(256)]


def load_tokenizer(spec: ModelSpec, chat_template: str | None = None) -> PreTrainedTokenizerBase:
    """The tokenizer that `model.tokenizer` names, else the one of `model.name_or_path`; `chat_template`: with this one.

    Raises UserError (MD103, MD127).
    """
    tokenizer = _load_by_name(spec)
    _set_template(tokenizer, chat_template)
    return tokenizer


def _load_by_name(spec: ModelSpec) -> PreTrainedTokenizerBase:
    name = spec.tokenizer or spec.name_or_path
    if name == "bytes":
        return byte_tokenizer()
    if name is None:
        raise user_error(
            "MD103",
            "`model.tokenizer` is not set",
            key="model.tokenizer",
            fix="set `model.tokenizer: bytes`, or name a folder",
        )
    try:
        return AutoTokenizer.from_pretrained(name, revision=spec.revision, trust_remote_code=spec.trust_remote_code)
    except (OSError, ValueError, ImportError, KeyError) as error:
        raise user_error(
            "MD103",
            f"no tokenizer could be loaded from `{name}`",
            key="model.tokenizer",
            notes=(first_error_line(error),),
        ) from None


def _set_template(tokenizer: PreTrainedTokenizerBase, name: str | None) -> None:
    """Give the tokenizer the template of `data.chat_template`; the export keeps it. Raises UserError (MD127)."""
    if name is None:
        return
    if name == "chatml":
        tokenizer.chat_template = _CHATML
        return
    try:
        tokenizer.chat_template = read_regular(Path(name), input_limits.MODEL_CONFIG).decode("utf-8")
    except (OSError, ValueError) as error:
        reason = (getattr(error, "strerror", None) or str(error)).lower()
        raise user_error(
            "MD127",
            f"`data.chat_template: {name}` cannot be read: {reason}",
            key="data.chat_template",
            fix="name a file with a Jinja template, or `chatml`",
        ) from None


def check_vocabulary(tokenizer: PreTrainedTokenizerBase, vocab_size: int) -> None:
    """Refuse (MD101) a tokenizer that can give ids which the model has no embedding for."""
    if len(tokenizer) > vocab_size:
        raise user_error(
            "MD101",
            f"the model's `vocab_size` is {vocab_size}, should be at least the tokenizer's {len(tokenizer)} tokens",
            key="model.config.vocab_size",
            notes=("an id beyond the embedding ends in an index error or, on a GPU, in a device-side assertion",),
            fix=f"set `model.config.vocab_size: {-(-len(tokenizer) // 64) * 64}`",
        )
