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
A file of the checkpoint is missing, has another size or other bytes than its manifest says, or there is no manifest.

DeepSpeed would load a torn shard on one rank while the others go on to train, and would not notice flipped bytes or
a shard of another step at all. Use an earlier checkpoint: `harness checkpoint verify RUN` tells which are whole.
A file that the manifest does not list is a warning: it is neither looked at nor loaded.

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
Model, tokenizer, data, optimizer, precision or batch are not those that the checkpoint was trained with.

DeepSpeed takes the optimizer's settings from the checkpoint in silence, so that a new learning rate would never arrive;
a place in the data means nothing in another order. Where the change is meant, say so: `--allow-change KEY`, with a key
or a section. Files that were moved are no change: their content is compared.

## CK131 tensor-shards-not-joined
DeepSpeed calls the layout of a tensor-parallel weight one that it cannot describe, so its shards cannot be joined.

Train such a model with `parallel.tensor_parallel_size: 1`, or name its layers in a `partition_config`.

## CK120 not-a-shard
A file of the checkpoint is not what DeepSpeed writes, or holds objects other than tensors and plain values.

Shards are read without running code from them, so what would need that is refused.

## CK121 conversion-not-written
A checkpoint of another shape (ranks, ZeRO stage, offload, degrees) is converted when a run goes on from it, and there
is no room for that, or the disk refused it.

The conversion is as large as the fp32 weights and the optimizer's states. It is kept in `checkpoints/universal` of the
new run and goes when that run has saved a checkpoint of its own.

## CK122 shards-on-several-hosts
Each host has the shards that its own ranks wrote, and none has them all, so they cannot be cut anew.

## CK123 weight-not-in-the-checkpoint
The run trains a weight that the checkpoint does not have: it is of another model, or of other adapters.

## CK124 export-has-other-logits
The exported folder, loaded as anybody would load it, computes something else than the checkpoint. It was not kept.

## CK125 export-cannot-be-checked
There is not enough memory to load the model twice, a package is missing, or the code that a model brings is not there.

## CK126 export-not-written
There is no room for the exported folder, or the disk refused it. Nothing of it was kept.

## CK127 no-adapters-to-export
The checkpoint was trained without LoRA, so there are no adapters to export alone.

## CK108 edited-manifest
The manifest is not as it was written: its own checksum differs, or it is no JSON.

It lists the sizes and sha256 of all files, so that nothing about a checkpoint can be trusted without it. Use another
checkpoint.

## CK109 settings-that-may-change
Settings that may change between a save and a resume have changed: told, not refused.

Such are the schedule, the number of steps, the micro-batch and ZeRO's buffer sizes. Training goes on from the saved
state, by the new settings from here on.

## CK110 save-failed
A checkpoint could not be written, on one rank or all: disk full, read-only, or gone.

The save is given up on all ranks; earlier checkpoints and `latest` stay as they were. The message tells how much the
checkpoint needs and how much room there is; that is looked at before the first byte is written. What follows is
`checkpoint.on_save_error`: `stop` ends the run, `continue` trains on and tries again at the next save.

## CK111 code-in-a-shard
A file of the checkpoint needs classes or functions that no shard has a need of; reading it would run code.

Shards are read as tensors, plain values and the four classes that DeepSpeed itself writes, never in any other way.
Every file is looked at before the first one is read.

## CK112 path-out-of-the-checkpoint
The manifest lists a path that leads out of the checkpoint's folder, or a listed file is a link.

## CK113 no-such-checkpoint
What `harness checkpoint` was given is no checkpoint, no run directory, and no folder of checkpoints.

## CK114 only-checkpoint
The only complete checkpoint of a run would be removed. `--force` does it.

## CK115 latest-is-stale
The file `latest` does not name the newest checkpoint that is whole.

A resume never trusts it: it looks for itself. Tools that read it would take the wrong one.

## CK116 folder-not-shared
Not every rank sees the folder of checkpoints that rank 0 sees.

A checkpoint is one folder with the shards of all ranks: put the run directory on a disk that all hosts share. Disks of
single hosts are good for `nvme_path`, not for checkpoints.

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

## EN120 run-directory-in-use
Another process holds the run directory: `harness launch`, or rank 0 of a run that was started by hand.

Two writers would mix their metrics and overwrite each other's checkpoints. The lock is the file `lock`, which names its
holder; the kernel gives it back when the holder dies.

## EN121 swap-folder-in-use
Another run swaps to the same `nvme_path`.

DeepSpeed empties its folders below it at the start, whoever they belong to.

## EN122 newest-run-still-runs
`--resume auto` would go on from a run that still runs.

Both would train the same steps, and the older one removes checkpoints that the other is reading.

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

## MD120 bad-json
A line of JSON Lines, an element of a JSON list or a row of a CSV file cannot be read.

The place is named by file and line. A JSON list that breaks off leaves no way to find the next element, so it ends the
preparation whatever `data.on_bad_record` says.

## MD121 empty-record
A text, a completion or what the assistant says is empty.

## MD122 record-too-long
A record has more tokens than `data.max_length`, and `data.excess_length_strategy` is `raise`.

## MD123 turns-not-usable
A chat has no turns, none of the assistant, or turns in an order that the tokenizer's chat template refuses.

## MD124 nothing-to-train-on
No token of the record would be trained on: the prompt alone fills `data.max_length`, so that the answer is cut off.

## MD125 too-many-bad-records
More records than `data.max_bad_records` cannot be used.

With `data.on_bad_record: skip`, records that cannot be used are left out, counted by kind, and listed in
`skipped.jsonl` beside the tokens. So many of them mean that something else is wrong, such as the name of a column.

## MD126 answers-not-found
It cannot be told which tokens of a chat the assistant says.

A chat template with `{% generation %}` marks them. From any other they are found by writing the beginnings of the chat,
each up to one turn, and seeing what the turn adds. That fails where the template writes earlier turns in another way
once more follow, such as without their thoughts; a guess would train on the wrong tokens in silence.

## MD127 no-chat-template
The data holds chats, and neither the tokenizer nor `data.chat_template` says how to write them.

## MD128 packed-rows-see-each-other
The model would see, in a packed row, the documents before the one that it predicts. Gate MD020 says why.

## MD129 cache-not-usable
The folder in which prepared data is kept cannot be made or written.

## MD150 weights-missing
The folder of `model.name_or_path` lacks weights of the model. `transformers` would draw them at random with a warning,
and training would start from a model that is partly noise.

## MD151 weights-of-another-shape
Tensors of the weights have not the shape that `config.json` gives them: the two do not belong together.

## MD152 pattern-that-fits-nothing
A pattern of `model.freeze` or `model.train_only` fits no parameter of the model, so that something else would be
trained than was meant. Patterns are globs over whole names; `*` stands for any text, dots included.

## MD153 nothing-to-train
Every parameter is frozen.

## MD154 peft-missing
`model.lora` needs the package `peft`, which is not installed where the ranks run.

## MD155 adapters-not-possible
`peft` refuses `model.lora` for this model: most often `target_modules` names none of its modules, or is left out for a
type of model whose usual targets `peft` does not know.

## MD156 no-recomputation
The model's class has no layers that `transformers` can compute anew in the backward pass.

## MD157 code-not-allowed
`plugins.file` names code, and code runs only if whoever starts the run allows it: `harness launch --allow-local-code`
tells the ranks the sha256 of the file. A file that was changed since, or differs on another host, is refused too.

## MD158 plug-in-not-usable
The file of `plugins.file` cannot be read, fails when it is run, has none of the functions that are looked for, or one
of them returns something else than it should.

## MD159 compiler-backend
torch has no compiler backend of that name, or DeepCompile cannot be used on this kind of device.
## PP101 model-not-cut-into-stages
The model is of a family that cannot be cut into pipeline stages.

A pipeline calls the layers one by one. A family is taken once a test has compared its pipeline with the whole model;
`harness explain MD004` names them.

## PP102 weights-not-in-safetensors
The folder or Hub model has weights, but not in safetensors files.

A pipeline stage reads the tensors of its own layers and no others. Other formats can only be read whole, on every
rank. `save_pretrained` of `transformers` writes safetensors.

## PP103 stage-with-nothing-to-train
The partition leaves a pipeline stage without a layer that has parameters.

DeepSpeed's optimizer refuses an empty list on the ranks of that stage, while the others wait for them. Fewer stages, or
another `parallel.pipeline_partition_method`, fill every one.

## PP104 partition-pattern-without-match
No layer's class has a name that matches the pattern of `parallel.pipeline_partition_method: type:PATTERN`.

The finding lists the classes. DeepSpeed raises on every rank when the PipelineModule is built.

## PP105 plug-in-of-a-whole-model
The plug-in has a `build_model` or `metrics`, and the run has pipeline stages.

`build_model` returns a whole model, while the layers of a pipeline are made one by one, on the rank that trains them.
`metrics` is given the logits of the model's forward, which a pipeline does not call as a whole.

## SQ101 model-not-split-by-sequence
The model's attention, or a layer of another kind, cannot be spread over a sequence group.

Each rank of the group has a part of every row. Attention is exchanged so that it sees whole rows; what mixes positions
by other means (convolutions, recurrences, an attention function of the model's own, a loss over a router's choices)
would see a part of each, in silence. `sdpa` and flash attention are exchanged; the first forward counts the layers.

## OP101 no-optimizer
The rendered DeepSpeed JSON has no optimizer.

## OP110 decay-that-does-not-fit
Warm-up and decay of `warmup_stable_decay` take more steps than the run has.

## OP111 step-that-is-not-a-number
The loss or the gradient of a step has a NaN or an infinity, and `train.on_nonfinite` is `stop`. The step changed no
weight. The rows are counted in the order in which `train.seed` draws them; with `checkpoint.save_at_end` the run is
saved, and a resume goes on behind them.

## OP112 too-many-skipped-steps
As many steps had a NaN or an infinity as `train.max_skipped_steps` or `train.max_consecutive_skipped_steps` allows.

## OP113 weights-that-are-not-numbers
A step was taken with a loss that is NaN or infinite, which only happens where DeepSpeed's own check is off.

## OP120 disk-not-measured
`harness doctor --tune-nvme` could not measure the disk: no room, no DeepSpeed, or its `async_io` does not build.
"""


@cache
def pages() -> dict[str, Page]:
    """Every page by the finding's id."""
    found = re.findall(r"^## (\S+) (\S+)\n(.*?)(?=^## |\Z)", _TEXT, re.MULTILINE | re.DOTALL)
    return {id_: Page(name, text.strip()) for id_, name, text in found}
