# SPDX-License-Identifier: Apache-2.0
"""The notation of a page, and the text that it stands for."""

from __future__ import annotations

import pytest

from harness.gates.page import parse_page

PAGE = """A title.

    A paragraph: with a colon
    over two lines.

    Why: DeepSpeed raises (run on 0.19.8).

    And a second paragraph.

    Example:
        zero.stage: 3
        zero.offload_param.device: nvme
        zero.offload_param.nvme_path: /nvme
        train.max_steps: 10
        data:
          train:
            - {path: a.jsonl}
        model.config: {model_type: llama,
                       vocab_size: 64}
    """


def test_paragraphs():
    page = parse_page("XX001", PAGE)
    assert page.title == "A title"
    assert page.checks == "A paragraph: with a colon\nover two lines."
    assert page.why == "DeepSpeed raises (run on 0.19.8).\n\nAnd a second paragraph."
    assert page.instead is None


def test_dotted_keys_become_sections():
    assert (
        parse_page("XX001", PAGE).example.text
        == """zero:
  stage: 3
  offload_param:
    device: nvme
    nvme_path: /nvme
train:
  max_steps: 10
data:
  train:
    - {path: a.jsonl}
model:
  config: {model_type: llama,
                 vocab_size: 64}
"""
    )


def test_json_and_a_sentence_before_it():
    docstring = (
        PAGE.partition("    Example:")[0]
        + """    Example: {
      "bf16": {"enabled": true}
    }

    Use instead: On another release: {"bf16": {}}
    """
    )
    page = parse_page("XX001", docstring)
    assert page.example.kind == page.instead.kind == "json"
    assert page.example.text == '{\n  "bf16": {"enabled": true}\n}\n'
    assert (page.instead.lead, page.instead.text) == ("On another release:", '{"bf16": {}}\n')


def test_hosts_and_their_answers():
    page = parse_page(
        "XX001",
        PAGE
        + """
    Probe:
        worker-1: {nofile: 128}

    Use instead:
        zero.stage: 1
    Hostfile:
        one slots=1
    """,
    )
    assert page.example.hostfile == "worker-0 slots=8\nworker-1 slots=8\n"
    assert page.example.probe == "worker-1: {nofile: 128}\n"
    assert page.instead[:4] == ("zero:\n  stage: 1\n", "yaml", "one slots=1\n", "")


def test_a_named_model_is_written_out():
    docstring = (
        PAGE.partition("    Example:")[0]
        + """    Example:
        model.config: llama-2-layers
        model.tokenizer: bytes
    """
    )
    text = parse_page("XX001", docstring).example.text
    assert text.startswith("model:\n  config:\n    model_type: llama\n")
    assert text.endswith("    vocab_size: 32000\n  tokenizer: bytes\n")


@pytest.mark.parametrize("label", ["Why:", "Example:"])
def test_a_missing_part_is_named(label):
    with pytest.raises(ValueError, match=f"XX001 has no .*`{label[:-1]}`"):
        parse_page("XX001", PAGE.partition(f"    {label}")[0])
