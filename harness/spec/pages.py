"""What the findings of loading mean, at length. Gates carry their pages themselves."""

from __future__ import annotations

from typing import NamedTuple


class Page(NamedTuple):
    """A name and the text that `harness explain` prints."""

    name: str
    text: str


PAGES: dict[str, Page] = {
    "SP001": Page("unreadable-file", "The file is not there, is a directory, or is not UTF-8 text.\n\nA hostfile or a folder given by mistake ends here too."),
    "SP002": Page("not-yaml-or-json", "The syntax is wrong at the place named.\n\nYAML allows no tabs for indentation. JSON is read strictly: DeepSpeed's own reader (hjson) takes comments\nand trailing commas, the Hugging Face Trainer and accelerate do not, and it makes texts of `.001` and `NaN`."),
    "SP003": Page("not-a-map", "The file is empty, or holds a list or a single value, where a map of keys belongs."),
    "SP004": Page("key-written-twice", "The same key stands twice in one section.\n\nDeepSpeed refuses this; YAML readers, the Trainer and accelerate keep the last one in silence."),
    "SP005": Page("unknown-key", "The key is not one that a run spec, or DeepSpeed, knows.\n\nDeepSpeed ignores unknown keys at the top level and in blocks without types: a misspelt `zero_optimization` trains with\nZeRO stage 0. The finding names the nearest known key; names from DeepSpeed and from other trainers are recognised."),
    "SP006": Page("wrong-type", "The value is of another kind than the key takes, such as a text where a number belongs.\n\nNothing is converted: DeepSpeed takes the text \"false\" as true in blocks without types."),
    "SP007": Page("out-of-range", "The value is of the right kind but none that is allowed."),
    "SP008": Page("missing-key", "A section needs this key.\n\n`zero` without `stage` is stage 0 to DeepSpeed, which is hardly what is meant."),
    "SP010": Page("key-in-two-places", "The `deepspeed` section sets something that has a field of its own in the run spec."),
    "SP011": Page("wrong-option", "An option of the command line has a value that cannot be used."),
    "SP012": Page("key-that-is-gone", "This DeepSpeed no longer knows the key. From 0.19.7 and 0.19.8 on it refuses leftovers such as `amp` and `elasticity`\nthat older releases read."),
    "SP013": Page("key-from-a-newer-release", "The key came with a later DeepSpeed than the one checked against."),
    "SP014": Page("deprecated-key", "DeepSpeed still reads the key but has a better name for it."),
    "SP015": Page("auto-values", "The JSON leaves values to whoever reads it.\n\nThe Hugging Face Trainer fills batch sizes, optimizer, scheduler, precision and three bucket sizes; accelerate fills fewer.\nDeepSpeed itself takes the default in typed blocks, takes the text as true for some switches, and fails on the rest."),
    "HO001": Page("unreadable-hostfile", "The hostfile is not there or is not text.\n\nDeepSpeed only warns and then trains on this machine alone, with exit code 0."),
    "HO002": Page("hostfile-without-hosts", "The hostfile holds nothing but comments."),
    "HO003": Page("hostfile-line", "A line is not `NAME slots=N`.\n\nDeepSpeed reads `slots=8x` as 8 and starts nothing for `slots=0`."),
    "HO004": Page("host-listed-twice", "A host stands twice in the hostfile."),
    "RN001": Page("no-json-to-compare", "`harness render --check` found no JSON beside the spec."),
    "RN002": Page("json-out-of-step", "The checked-in JSON is not what the spec renders to any more."),
    "RN003": Page("json-not-written", "The JSON could not be written where it was asked for."),
    "GT001": Page("gate-that-failed", "A gate itself crashed, which is a fault of the harness. The other gates looked all the same."),
    "GT002": Page("ignore-without-effect", "The spec ignores a gate that found nothing, or that does not exist."),
}
