# SPDX-License-Identifier: Apache-2.0
"""Pages of findings about files: run specs, DeepSpeed JSONs, hostfiles. Read by `harness.finding_pages`."""

TEXT = """
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

## HO024 host-selection
`--include`, `--exclude`, `--num-nodes` or `--num-gpus` does not fit the hostfile.

They mean what they mean to DeepSpeed: hosts are separated by `@`, slots by commas, as in `--include a@b:0,2`. DeepSpeed
takes the hosts that there are when more are asked for, starts ranks without a device when `--num_gpus` is above the
slots, and trains on the machine at hand when one host is left, whatever it is called.

## HO025 hosts-on-the-command-line
`--hosts` is not `NAME:SLOTS,NAME:SLOTS`.

## HO026 not-a-slurm-job
`--slurm` takes the hosts from the variables of the job, and these are not there or cannot be read.

## HO027 all-reduce-failed
`harness preflight --allreduce` started the ranks as a run would and had them add up tensors. Ssh and a connection to
one port worked before; what did not is what training needs: that all ranks find each other and that sums are right.

## HO028 not-submitted
`harness launch --slurm` outside a job writes a batch script and hands it to `sbatch`, which is not there or refused it.

## HO005 ranks-said-twice
The hostfile and another place say how many ranks there are, and differ.

## GT001 gate-that-failed
A gate itself crashed, which is a fault of the harness. The other gates looked all the same.

## GT002 ignore-without-effect
The spec ignores a gate that found nothing, or that does not exist.

## SP016 other-format
The file is a configuration of another program, or of none.

Run specs, DeepSpeed's JSON and accelerate's YAML are read; `harness adopt` makes a run spec of a file for axolotl,
LLaMA-Factory or the Trainer.

## SP040 training-of-another-kind
A YAML for axolotl, LLaMA-Factory or the Trainer trains in a way that a run spec does not have.

Run specs train by the loss of the next token (pre-training and supervised fine-tuning), all parameters or plain LoRA,
over weights of 16 or 32 bit. What `harness adopt` could make of DPO, KTO, PPO, a reward model, QLoRA, 8-bit weights,
DoRA or frozen layers would train something else, so it writes nothing.

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

## BT101 started-on-other-ranks
The ranks that were started are not those that the DeepSpeed JSON was rendered for.

The global batch in `ds_config.json` would come out otherwise; render and launch again for these ranks.
"""
