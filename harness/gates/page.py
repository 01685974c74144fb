# SPDX-License-Identifier: Apache-2.0
"""The page of a gate, as its docstring has it: what the gate checks, why it fails, an example. Knows no gate.

    A title that ends in a full stop.

    One paragraph: what the gate checks.

    Why: what DeepSpeed does, and where that was run or read.

    Example:
        zero.stage: 2
        zero.offload_optimizer.device: cpu

An example is YAML with dotted keys as for `--set`, of which the page shows the sections; `model.config` may be one of
those in `example_models`. `Example: {` begins one in JSON. `Hostfile:` and `Probe:` after an example are its hosts and
their answers; answers without a hostfile are those of two hosts with eight slots each. `Use instead:` is a second
example, written only where the fix of the finding does not make it out of the first.
"""

from __future__ import annotations

import re
from functools import cache
from inspect import cleandoc
from itertools import takewhile
from textwrap import dedent
from typing import Literal, NamedTuple

EXAMPLE_MODELS = {
    "llama-70b": """ \
{model_type: llama, vocab_size: 32000, hidden_size: 8192, intermediate_size: 28672, num_hidden_layers: 80,
         num_attention_heads: 64, num_key_value_heads: 8, max_position_embeddings: 4096}""",
    "llama-2-layers": """
  model_type: llama
  hidden_size: 2048
  intermediate_size: 5504
  num_hidden_layers: 2
  num_attention_heads: 16
  vocab_size: 32000""",
}


_TWO_HOSTS = "worker-0 slots=8\nworker-1 slots=8\n"
_LABEL = re.compile(r"^(Why|Example|Use instead|Hostfile|Probe):(?: (.*))?$")


class Example(NamedTuple):
    """A run spec or a DeepSpeed JSON, and its hosts and their answers, if any. `lead` is a sentence before it."""

    text: str
    kind: Literal["yaml", "json"] = "yaml"
    hostfile: str = ""
    probe: str = ""
    lead: str = ""


class Page(NamedTuple):
    """A page, section by section. `instead` is None where the fix makes it out of the example."""

    title: str
    checks: str
    why: str
    example: Example
    instead: Example | None


@cache
def parse_page(id_: str, docstring: str) -> Page:
    """The page of the gate `id_`. Raises ValueError when a part of it is missing."""
    sections = _split_sections(cleandoc(docstring))
    missing = [name for name in ("title", "checks", "Why", "Example") if not sections.get(name)]
    if missing:
        raise ValueError(f"the docstring of {id_} has no `{'`, `'.join(missing)}`")
    instead = _example_of(sections, "Use instead") if "Use instead" in sections else None
    title, checks, why = (sections[name].strip("\n") for name in ("title", "checks", "Why"))
    return Page(title.rstrip("."), checks, why, _example_of(sections, "Example"), instead)


def _split_sections(text: str) -> dict[str, str]:
    """The text below each label; `Hostfile` and `Probe` belong to the example that they follow."""
    title, _, rest = text.partition("\n")
    sections, name, example = {"title": title, "checks": ""}, "checks", ""
    for line in rest.splitlines():
        label = _LABEL.match(line)
        if label is None:
            sections[name] += f"{line}\n"
            continue
        name = label[1]
        if name in ("Example", "Use instead"):
            example = name
        elif name in ("Hostfile", "Probe"):
            name = f"{example} {name}"
        sections[name] = f"{label[2]}\n" if label[2] else ""
    return sections


def _example_of(sections: dict[str, str], name: str) -> Example:
    block = sections[name]
    hostfile, probe = (_dedent(sections.get(f"{name} {part}", "")) for part in ("Hostfile", "Probe"))
    hostfile = hostfile or (_TWO_HOSTS if probe else "")
    if not block.startswith(" "):
        lead, brace, rest = block.partition("{")
        return Example(f"{brace}{rest.rstrip()}\n", "json", hostfile, probe, lead.strip())
    return Example(_nest(_dedent(block)), "yaml", hostfile, probe)


def _dedent(text: str) -> str:
    """The block without its indentation and the empty lines around it; empty if there is none."""
    return dedent(text).strip("\n") + "\n" if text.strip() else ""


def _nest(text: str) -> str:
    """YAML with dotted keys as YAML with sections, line by line; the text after a key stays as it is."""
    lines: list[str] = []
    section: list[str] = []
    for line in text.splitlines():
        key, colon, value = line.partition(":")
        if line.startswith(" "):
            lines.append("  " * len(section) + line)
            continue
        *parents, name = key.split(".")
        shared = len(list(takewhile(lambda pair: pair[0] == pair[1], zip(section, parents, strict=False))))
        lines += [f"{'  ' * depth}{parents[depth]}:" for depth in range(shared, len(parents))]
        section = parents
        value = EXAMPLE_MODELS.get(value.strip(), value) if key == "model.config" else value
        lines += ["  " * len(section) + part for part in f"{name}{colon}{value}".splitlines()]
    return "\n".join(lines) + "\n"
