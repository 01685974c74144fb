# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoTokenizer

from harness.errors import UserError
from harness.runtime.tokenizer import byte_tokenizer, check_vocabulary, load_tokenizer
from harness.spec.run_spec import ModelSpec

TOKENIZER = byte_tokenizer()


def encode(tokenizer: Any, texts: list[str]) -> list[list[int]]:
    """As the data side does for plain text."""
    return tokenizer(texts, add_special_tokens=False, split_special_tokens=True)["input_ids"]


def test_ids_are_the_bytes_then_end_and_padding() -> None:
    every = "".join(chr(i) for i in range(0x80)) + "\u00e9\u20ac\U0001f600\ufeff\r\n\t"
    assert encode(TOKENIZER, [every]) == [list(every.encode())]
    assert (TOKENIZER.eos_token_id, TOKENIZER.pad_token_id, len(TOKENIZER)) == (256, 257, 258)


@given(st.text())
def test_any_text_comes_back_exactly(text: str) -> None:
    assert TOKENIZER.decode(encode(TOKENIZER, [text])[0]) == text


def test_text_that_looks_like_a_special_token_is_text() -> None:
    assert encode(TOKENIZER, ["<|endoftext|>"]) == [list(b"<|endoftext|>")]


def test_saved_it_is_an_ordinary_tokenizer_folder(tmp_path: Path) -> None:
    TOKENIZER.save_pretrained(tmp_path)
    assert not list(tmp_path.glob("*.py"))
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    text = "naive cafe \u00e9\u4e2d  two  blanks , a comma"
    assert loaded(text)["input_ids"] == list(text.encode())
    assert loaded.decode(loaded(text)["input_ids"]) == text
    assert (loaded.eos_token_id, loaded.pad_token_id) == (256, 257)


def test_a_vocabulary_that_is_too_small_is_refused_with_a_size_that_fits() -> None:
    check_vocabulary(TOKENIZER, 258)
    with pytest.raises(UserError) as refused:
        check_vocabulary(TOKENIZER, 256)
    (finding,) = refused.value.findings
    assert finding.gate == "MD101"
    assert "258" in finding.message
    assert "256" in finding.message
    assert finding.fix is not None
    assert "320" in finding.fix.title


def test_a_tokenizer_that_is_not_there_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(UserError) as refused:
        load_tokenizer(ModelSpec(tokenizer=str(tmp_path)))
    assert str(tmp_path) in refused.value.findings[0].message
    with pytest.raises(UserError, match=r"model\.tokenizer"):
        load_tokenizer(ModelSpec())
