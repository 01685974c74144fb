# SPDX-License-Identifier: Apache-2.0
"""The facts of a tokenizer against the one that `transformers` loads from the same files; and the readers of data."""

from __future__ import annotations

import json

import pytest
from transformers import AutoTokenizer

from harness.check.tokenizer_findings import BYTE_TOKENS, find_tokenizer
from harness.runtime.dataset.data_sources import READERS
from harness.runtime.tokenizer import byte_tokenizer
from harness.spec.named_paths import DATA_SUFFIXES


@pytest.mark.parametrize("added", [[], ["<one>", "<two>"]])
@pytest.mark.parametrize("with_template", [True, False])
def test_the_files_say_what_the_loaded_tokenizer_has(tmp_path, added, with_template):
    tokenizer = byte_tokenizer()
    tokenizer.add_tokens(added)
    if not with_template:
        tokenizer.chat_template = None
    tokenizer.save_pretrained(tmp_path)
    loaded, facts = AutoTokenizer.from_pretrained(tmp_path), find_tokenizer(str(tmp_path))
    assert facts is not None
    assert facts.num_tokens == len(loaded) == BYTE_TOKENS + len(added)
    assert facts.has_chat_template is (loaded.chat_template is not None) is with_template


def test_a_template_inside_the_configuration_counts_too(tmp_path):
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = None
    tokenizer.save_pretrained(tmp_path)
    file = tmp_path / "tokenizer_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "chat_template": "{{ messages }}"}))
    assert AutoTokenizer.from_pretrained(tmp_path).chat_template == "{{ messages }}"
    assert find_tokenizer(str(tmp_path)).has_chat_template


def test_the_extensions_of_data_are_those_that_have_a_reader():
    assert set(DATA_SUFFIXES) == READERS.keys()
