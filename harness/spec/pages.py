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

YAML allows no tabs for indentation. A run spec in JSON is read strictly; a DeepSpeed JSON may have what hjson takes,
which findings SP018 and SP019 tell.

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

An error where DeepSpeed refuses the value or reads something else: blocks without types take any text as true, even
"false", count `true` as 1 and compute with half a micro-batch. A warning where it converts the value to what was
meant, as blocks with types do with "5", "true" and 1.

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
DeepSpeed has a better name for the key. It still reads the old one, but for `aio.thread_count`, which it passes over
from 0.16.4 on: the same steps, with one I/O thread.

## SP015 auto-values
The JSON leaves values to whoever reads it, and nobody said who that is.

The Hugging Face Trainer fills batch sizes, optimizer, scheduler, precision and three bucket sizes; accelerate fills
others. DeepSpeed itself takes the default in typed blocks, takes the text as true for some switches, and fails on
the rest. The reader is guessed by the keys that are "auto"; `--consumer hf`, `accelerate` or `deepspeed` says it.

## SP017 template
The file holds placeholders such as `$BATCH`, `{{ stage }}` or `CONFIG_BATCH_SIZE`, which a script or a template engine
fills in.

Nothing else in it is looked at: check what comes out of the template.

## SP018 not-strict-json
Comments, trailing or missing commas, single quotes, keys or texts without quotes, no outer braces, or a byte order
mark.

DeepSpeed reads its configuration with hjson, which takes all of these; the Hugging Face Trainer and accelerate read it
with Python's `json`, which takes none. So this is a warning where DeepSpeed reads the file, else an error.

## SP019 text-without-quotes
What was meant as a number, a switch or nothing is no JSON: `True`, `None`, `.001`, `NaN`, `1_000`.

DeepSpeed's reader makes a text of it, with everything up to the end of the line: `False,` with its comma. A text counts
as true in blocks without types, and as a number nowhere; a learning rate of `.001` fails in the first optimizer step.

## SP021 named-file-not-found
A configuration names another file that is not there, seen from here. Nothing in that file was checked.

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

## HO005 ranks-said-twice
The hostfile and another place say how many ranks there are, and differ.

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

## SP016 other-format
The file is a configuration of another program, or of none.

Run specs, DeepSpeed's JSON and accelerate's YAML are read; `harness adopt` makes a run spec of a file for axolotl,
LLaMA-Factory or the Trainer.

## SP022 two-names-for-one-key
A key is written together with its old name, or with another name of it.

DeepSpeed refuses the pair once every rank has started, even where both say the same.

## SP020 deepspeed-json-for-a-run
A DeepSpeed JSON was given where a run spec is needed.

A JSON says nothing about model, data or length; `validate-config` takes both kinds, `launch` only a run spec.

## HF101 field-beside-config-file
An accelerate YAML says something beside `deepspeed_config_file` that belongs into the file named there.

accelerate refuses such a pair, `mixed_precision` included: the JSON alone decides.

## HF102 field-passed-over
accelerate reads its own few names in `deepspeed_config` and passes over all others in silence, whole blocks of
DeepSpeed's JSON included. They belong into a JSON that `deepspeed_config_file` names.

## HF103 stage-by-default
An accelerate YAML without `zero_stage` trains at ZeRO stage 2.

## SP030 report-not-written
The report cannot be written where it was asked for.

## SP031 no-run-directory
What `report` names is no run directory: it has no `spec.resolved.json`.

## MM001 model-size-unknown
The plan does not know how large the model is: its architecture is not one it can count, or its `config.json` is not
at hand.

## MM002 plan-lacks-a-number
The plan needs the number of ranks and the micro-batch for anything beyond model states.

## MM003 gpu-kind-unknown
The kind of GPU in `cluster.gpu` is not in the table of devices, so whether it fits and how long a step takes is not
known.

## MM004 memory-size-unreadable
A size in `cluster` is none such as `2TB` or `80GiB`.

## MM005 does-not-fit
The plan's peak is above what the GPU, the host or its disks have.

## MM006 counted-by-building
The architecture is not one that is counted by formula, so `transformers` built it on the meta device, where nothing is
allocated. Its parameters are exact; what its layers keep for the backward pass is taken to be what a Llama-like layer
of the same sizes keeps.

## MM007 not-a-number-to-plan-with
An option of `harness plan` has a value that no machine and no run has, or options contradict each other.

## CK002 export-folder-in-use
The folder to export to is there and not empty, or is a file; nothing in it was touched.

## BT101 started-on-other-ranks
The ranks that were started are not those that the DeepSpeed JSON was rendered for.

The global batch in `ds_config.json` would come out otherwise; render and launch again for these ranks.

## CK001 no-checkpoint-to-resume
What `--resume` or `export` names holds no complete checkpoint.

A checkpoint is a folder with `manifest.json`; the manifest is written last, so a folder without it was never
finished.

## CK101 damaged-checkpoint
A file of the checkpoint is missing or has another size than its manifest says.

DeepSpeed would load a torn shard on one rank while the others go on to train. Use an earlier checkpoint.

## CK102 checkpoint-of-another-shape
The checkpoint was saved with another number of ranks, ZeRO stage or number format.

DeepSpeed cannot load its shards into another shape. Export the checkpoint to a Hugging Face folder to start from
its weights.

## CK103 checkpoint-of-other-data
The training text is not the one that the checkpoint was trained on, so its place in the data means nothing.

## CK104 checkpoint-not-loaded
DeepSpeed returned no checkpoint. Left to itself it would start again at step 0, with exit code 0.

## CK105 shards-missing
The folder has fewer shards than the run that wrote it had ranks.

## CK106 export-exists
The folder to export to exists; nothing in it was touched.

## CK107 settings-changed-since-the-checkpoint
The optimizer, the seed, the sequence length, the shuffling or `round_robin_gradients` are not those of the checkpoint.

DeepSpeed takes the optimizer's settings from the checkpoint in silence, so that a new learning rate would never arrive;
a place in the data means nothing in another order; changed round-robin gradients permute the weights.

## EN001 assertions-off
Python runs with assertions off. DeepSpeed refuses wrong batch sizes and much else by `assert`, so it would train
something else than was asked.

## EN002 training-extra-missing
The packages that train are not installed where the ranks would run.

## EN003 launch-scripts-missing
The scripts that run on the nodes are not where the package looks for them.

## EN004 visible-devices-by-name
`CUDA_VISIBLE_DEVICES` names devices by something other than a number, which the launcher would replace by numbers.

## EN005 more-ranks-than-devices
More ranks are asked for than this machine has accelerators. DeepSpeed starts them all; those without a device fail
later.

## EN006 environment-name
A name or value in `launch.env` cannot be a variable of the environment.

## EN007 value-a-shell-would-change
A value would reach the other hosts changed: DeepSpeed writes it into a remote shell command between double quotes.

## EN008 path-a-shell-would-change
A path would reach the other hosts changed: DeepSpeed writes paths into the remote command without quoting them.

## EN009 no-pdsh
DeepSpeed starts ranks on other hosts through pdsh, which is not installed.

## EN010 op-does-not-compile
One of DeepSpeed's C++ ops does not compile on this machine. `harness doctor` says what is missing.

## EN011 run-directory
The run directory cannot be made where `launch.output_dir` says.

## EN020 version-not-verified
The DeepSpeed to check against is older or newer than the releases whose rules were looked up.

Rules that came or went outside that range are not known; those that are known are applied all the same.

## EN101 run-directory-unreadable
A rank cannot read `spec.resolved.json` or `ds_config.json`, or they were edited after the launch.

## EN102 hosts-read-different-files
A rank read another `spec.resolved.json` or `ds_config.json` than rank 0: the hosts do not share the run directory.

DeepSpeed would train each host with its own file, different stages included.

## MD101 vocabulary-too-small
The tokenizer gives ids that the model has no embedding for.

## MD102 model-not-loaded
`transformers` could not build the model or load its weights.

## MD103 tokenizer-not-loaded
No tokenizer is named, or it could not be loaded.

## MD111 no-such-data
No file matches, or a file cannot be read.

## MD112 no-such-column
The data has no column of that name, or a row holds something else than text there.

## MD113 data-not-utf-8
A text file is not UTF-8.

## MD114 empty-data
The data holds no text.

## MD115 too-little-data
The text does not fill one global batch, or the held-out part not one sequence.

## MD116 data-set-not-read
The `datasets` library could not read the file, or the Hub could not be reached.

## MD117 data-not-named
`data.train` is not set.

## MD118 unknown-kind-of-data
The ending of a file does not say how to read it, or a built-in text has another name.

## MD119 hosts-read-different-text
The hosts found different training text under the same name.

## OP101 no-optimizer
The rendered DeepSpeed JSON has no optimizer.
"""


@cache
def pages() -> dict[str, Page]:
    """Every page by the finding's id."""
    found = re.findall(r"^## (\S+) (\S+)\n(.*?)(?=^## |\Z)", _TEXT, re.MULTILINE | re.DOTALL)
    return {id_: Page(name, text.strip()) for id_, name, text in found}
