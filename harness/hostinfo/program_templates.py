# SPDX-License-Identifier: Apache-2.0
"""Chat templates that training programs know by a name, asked of the installed program; None where it has no answer."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from harness.interpreter import find_new_module, python_command

_LLAMA_FACTORY = """
import sys
from llamafactory.data.template import TEMPLATES
from transformers import AutoTokenizer
template, tokenizer = TEMPLATES[sys.argv[1]], AutoTokenizer.from_pretrained(sys.argv[2])
own, chat = tokenizer.chat_template, [{"role": role, "content": "A text."} for role in ("user", "assistant") * 2]
template.fix_special_tokens(tokenizer)
def gives_same(text, system):
    tokenizer.chat_template, turns = text, [{"role": "system", "content": system}] * bool(system) + chat
    pairs = template.encode_multiturn(tokenizer, [dict(turn) for turn in chat], system, None)
    ids = [i for pair in pairs for part in pair for i in part] + [tokenizer.eos_token_id] * template.efficient_eos
    return tokenizer(tokenizer.apply_chat_template(turns, tokenize=False), add_special_tokens=False)["input_ids"] == ids
for text in filter(None, (own, template._get_jinja_template(tokenizer))):
    if gives_same(text, None) and gives_same(text, "A rule."):
        sys.exit(print("\\0" + text * (text != own), end=""))
"""
"""Prints the first template with the program's tokens: nothing for the tokenizer's own, or the text of its jinja."""


def find_axolotl_template(name: str) -> str | None:
    """The text of axolotl's template of this name."""
    found = find_new_module("axolotl")
    places = found.submodule_search_locations if found is not None and name.isidentifier() else None
    files = [Path(place) / f"utils/chat_templates/templates/{name}.jinja" for place in places or ()]
    return next((file.read_text(encoding="utf-8") for file in files if file.is_file()), None)


def ask_llama_factory_template(name: str, model: str) -> str | None:
    """The text of LLaMA-Factory's template for the model's tokenizer; "" where the tokenizer's own gives the same."""
    if find_new_module("llamafactory") is None:
        return None
    variables = {**os.environ, "HF_HUB_OFFLINE": "1", "DISABLE_VERSION_CHECK": "1"}
    command = python_command("-c", _LLAMA_FACTORY, name, model)
    try:
        done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=120, check=False)  # noqa: S603
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return None
    return done.stdout.partition("\0")[2] if done.returncode == 0 and "\0" in done.stdout else None
