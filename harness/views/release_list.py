# SPDX-License-Identifier: Apache-2.0
"""The faults of DeepSpeed's releases as text. `python -m tests.docs.release_page` writes the page of them."""

from __future__ import annotations

from textwrap import fill

from harness.facts.release_faults import DRAWN, RELEASE_CHANGES, RELEASE_FAULTS, TRIED, ReleaseFault


def render_releases(word: str, width: int = 120) -> str | None:
    """For the word `releases`, all faults, a paragraph each, and the releases that were tried; for a release that was
    tried, such as `0.18.2`, its faults; None for another word.
    """
    faults = (*RELEASE_FAULTS, *RELEASE_CHANGES)
    if word in TRIED:
        own = [_describe_fault(fault, width) for fault in faults if fault.applies_to(word)]
        head = f"DeepSpeed {word}. `harness validate-config FILE --deepspeed-version {word}` finds those of a file."
        return "\n\n".join([fill(head, width), *own])
    if word.lower() not in ("release", "releases"):
        return None
    paragraphs = [_describe_fault(fault, width) for fault in faults]
    same = f"{DRAWN['cases'] - DRAWN['different']} of {DRAWN['cases']}"
    tail = fill(
        f"Compared with plain torch: {', '.join(TRIED)}. Compared with what the gates say:"
        f" {DRAWN['releases']} releases, {same} drawn JSONs as they say. The page docs/releases.md has the figures.",
        width,
    )
    return "\n\n".join([*paragraphs, tail])


def _describe_fault(fault: ReleaseFault, width: int) -> str:
    effect = fault.effect[:1].upper() + fault.effect[1:]
    text = f"{name_of(fault)}  {range_of(fault)}: {fault.settings}. {effect}. Instead: {fault.workaround}."
    return fill(text, width, subsequent_indent="    ")


def name_of(fault: ReleaseFault) -> str:
    """Its gate, where it has one, and its name."""
    return f"{fault.gate} {fault.name}".strip()


def range_of(fault: ReleaseFault) -> str:
    """Its releases in words."""
    if fault.first == fault.last and fault.first:
        return fault.first
    if not fault.last:
        return f"from {fault.first}" if fault.first else "all"
    return f"{fault.first} to {fault.last}" if fault.first else f"up to {fault.last}"
