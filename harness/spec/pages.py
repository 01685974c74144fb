"""What the findings of loading, comparing and launching mean, at length. Gates carry their pages themselves."""

from __future__ import annotations

import re
from functools import cache
from typing import NamedTuple


class Page(NamedTuple):
    """A name and the text that `harness explain` prints."""

    name: str
    text: str


_TEXT = """
## SP001 unreadable-file
The file is not there, is a directory, or is not UTF-8 text.

A hostfile or a folder given by mistake ends here too.

## SP002 not-yaml-or-json
The syntax is wrong at the place named.

YAML allows no tabs for indentation. JSON is read strictly: DeepSpeed's own reader (hjson) takes comments and
trailing commas, the Hugging Face Trainer and accelerate do not, and it makes texts of `.001` and `NaN`.

## SP003 not-a-map
The file is empty, or holds a list or a single value, where a map of keys belongs.

## SP004 key-written-twice
The same key stands twice in one section.

DeepSpeed refuses this; YAML readers, the Trainer and accelerate keep the last one in silence.

## SP005 unknown-key
The key is not one that a run spec, or DeepSpeed, knows.

DeepSpeed ignores unknown keys at the top level and in blocks without types: a misspelt `zero_optimization` trains
with ZeRO stage 0. The finding names the nearest known key; names from DeepSpeed and from other trainers are
recognised.

## SP006 wrong-type
The value is of another kind than the key takes, such as a text where a number belongs.

Nothing is converted: DeepSpeed takes the text "false" as true in blocks without types.

## SP007 out-of-range
The value is of the right kind but none that is allowed.

## SP008 missing-key
A section needs this key.

`zero` without `stage` is stage 0 to DeepSpeed, which is hardly what is meant.

## SP010 key-in-two-places
The `deepspeed` section sets something that has a field of its own in the run spec.

## SP011 wrong-option
An option of the command line has a value that cannot be used.

## SP012 key-that-is-gone
This DeepSpeed no longer knows the key. From 0.19.7 and 0.19.8 on it refuses leftovers such as `amp` and
`elasticity` that older releases read.

## SP013 key-from-a-newer-release
The key came with a later DeepSpeed than the one checked against.

## SP014 deprecated-key
DeepSpeed still reads the key but has a better name for it.

## SP015 auto-values
The JSON leaves values to whoever reads it.

The Hugging Face Trainer fills batch sizes, optimizer, scheduler, precision and three bucket sizes; accelerate fills
fewer. DeepSpeed itself takes the default in typed blocks, takes the text as true for some switches, and fails on
the rest.

## HO001 unreadable-hostfile
The hostfile is not there or is not text.

DeepSpeed only warns and then trains on this machine alone, with exit code 0.

## HO002 hostfile-without-hosts
The hostfile holds nothing but comments.

## HO003 hostfile-line
A line is not `NAME slots=N`.

DeepSpeed reads `slots=8x` as 8 and starts nothing for `slots=0`.

## HO004 host-listed-twice
A host stands twice in the hostfile.

## RN001 no-json-to-compare
`harness render --check` found no JSON beside the spec.

## RN002 json-out-of-step
The checked-in JSON is not what the spec renders to any more.

## RN003 json-not-written
The JSON could not be written where it was asked for.

## GT001 gate-that-failed
A gate itself crashed, which is a fault of the harness. The other gates looked all the same.

## GT002 ignore-without-effect
The spec ignores a gate that found nothing, or that does not exist.

## SP020 deepspeed-json-for-a-run
A DeepSpeed JSON was given where a run spec is needed.

A JSON says nothing about model, data or length; `validate-config` takes both kinds, `launch` only a run spec.
"""


@cache
def pages() -> dict[str, Page]:
    """Every page by the finding's id."""
    found = re.findall(r"^## (\S+) (\S+)\n(.*?)(?=^## |\Z)", _TEXT, re.MULTILINE | re.DOTALL)
    return {id_: Page(name, text.strip()) for id_, name, text in found}
