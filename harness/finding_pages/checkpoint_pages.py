# SPDX-License-Identifier: Apache-2.0
"""Checkpoints: saving, resuming, converting, exporting. Pages of findings, read by `harness.finding_pages`."""

TEXT = """
## CK002 export-folder-in-use
The export folder exists and is not empty, or is a file. Nothing in it was changed.

## CK001 no-checkpoint-to-resume
The path of `--resume` or `export` has no complete checkpoint.

A checkpoint is a folder with `manifest.json`. The manifest is written last, so a folder without it is incomplete.

## CK101 damaged-checkpoint
A file of the checkpoint is missing, or its size or bytes differ from the manifest, or there is no manifest.

DeepSpeed fails on one rank for a truncated shard while the others train on, and does not detect flipped bytes or a
shard of another step. Use an earlier checkpoint: `harness checkpoint verify RUN` lists the intact ones.
A file that the manifest does not list is a warning: it is neither checked nor loaded.

## CK102 checkpoint-of-another-shape
The checkpoint was saved with another number of ranks, ZeRO stage or number format.

DeepSpeed cannot load its shards into another layout. Export the checkpoint to a Hugging Face folder to start from its
weights.

## CK103 checkpoint-of-other-data
The training data differs from that of the checkpoint, so the position in the data is meaningless.

## CK104 checkpoint-not-loaded
DeepSpeed returned no checkpoint. Without this check the run would start again at step 0, with exit code 0.

## CK105 shards-missing
The folder has fewer shards than the run that wrote it had ranks.

## CK106 export-exists
The export folder exists. Nothing in it was changed.

## CK107 settings-changed-since-the-checkpoint
Model, tokenizer, data, optimizer, precision, batch or schedule differ from the checkpoint.

Of batch and schedule the effect is compared: the sequences of a step, and the rates of the steps that are left. A spec
without `train.global_batch_size` and `train.gradient_accumulation_steps` keeps the checkpoint's batch on other ranks by
accumulation. Where that is not possible, and where fewer steps would make a decaying schedule jump, the resume is
refused. A position in the data is meaningless in another order.

Allow an intended change by `--allow-change KEY`, with a key or a section. The next step then trains with the new
value: the optimizer's settings, the clipping norm and the schedule are the run's own, not those in the checkpoint.
What a resume cannot apply, such as another optimizer, is refused even so. `docs/resume-changes.md` has all keys.
Moving files is not a change: their content is compared.

## CK131 tensor-shards-not-joined
DeepSpeed has no description of the layout of a tensor-parallel weight, so its shards cannot be joined.

Train such a model with `parallel.tensor_parallel_size: 1`, or name its layers in a `partition_config`.

## CK120 not-a-shard
A file of the checkpoint is not a shard of DeepSpeed's, or has objects other than tensors and plain values.

Shards are read without running code from them, so such objects are refused. So are shards that the engine of this run
cannot use: missing parts, shapes that do not match the weights, a text instead of a number, or a file larger than the
host's memory.

## CK121 conversion-not-written
A run that resumes with another layout (ranks, ZeRO stage, offload, degrees) converts the checkpoint first. There is
no space for the conversion, or the write failed.

The conversion is as large as the fp32 weights and the optimizer's states. It is in `checkpoints/universal` of the
new run, which removes it after its first own checkpoint.

## CK122 shards-on-several-hosts
Each host has only the shards of its own ranks, so they cannot be resharded.

## CK123 weight-not-in-the-checkpoint
The run trains a weight that the checkpoint does not have, or one that was frozen when it was saved: it is of another
model, of other adapters, or `model.freeze` has changed.

## CK124 export-has-other-logits
The exported folder, loaded with plain `transformers`, computes other logits than the checkpoint. It was not kept.

## CK125 export-cannot-be-checked
There is too little memory to load the model twice, or a package or the model's own code is missing.

## CK126 export-not-written
There is no space for the exported folder, or the write failed. Nothing of it was kept.

## CK127 no-adapters-to-export
The checkpoint was trained without LoRA, so there are no adapters to export alone. Or its weights have 4 bits
(`model.quantization`): adapters are exported alone then, since a sum of both has more bits.

## CK128 code-in-a-checkpoint
The model of a checkpoint has its own Python code (an `auto_map` in its configuration, or Python files), and its
manifest says `model.trust_remote_code: true`. `transformers` would import that code to check the export, with all your
rights. The manifest does not count as consent, since the author of the checkpoint wrote it, too.

Read the code. Then `harness export --allow-local-code` runs it. The export at the end of a launch needs no option: the
run itself has already imported the model's code.

## CK129 checkpoint-of-another-user
`--resume latest`, or an abbreviated name, leads to another user's run, or a named checkpoint has files of a third user.

In a shared folder anybody can point `latest` to their own run, and loading a checkpoint can run code (its converted
form is unpickled). Name the whole directory to resume from it on purpose. `--resume auto` skips such runs and
checkpoints, and reports it. HARNESS_TRUSTED_ACCOUNTS names accounts that you trust (EN018).

## CK134 several-runs-to-resume
`--resume` does not tell which of several runs is meant, or which checkpoint of a prefix.

`auto` continues the newest run of the same spec. Where none is, it takes a run of another spec if all are of one spec,
or if each continued the one before from its end. A run that went on under another spec may be meant as well as its
successor. A prefix of an object store has the lineage of its runs in `run.json`; one that an older release wrote lacks
it. Name the run, or the checkpoint.

## CK135 no-step-left
The checkpoint is at a later step than `train.max_steps`, so there is nothing to train.

## CK108 edited-manifest
The manifest was changed: its own checksum differs, or it is not JSON.

It lists the sizes and sha256 of all files, so no file can be verified without it. Use another checkpoint.

## CK109 settings-that-may-change
Settings that may change between a save and a resume have changed. They are reported, not refused.

These are ZeRO's buffer sizes, ways to compute the same numbers, the number of steps where the schedule does not depend
on it, and what `--allow-change` allows. Training resumes from the saved state with the new settings.

## CK110 save-failed
A checkpoint could not be written, on one rank or all: disk full, read-only, or unmounted.

All ranks abandon the save; earlier checkpoints and `latest` stay unchanged. The message has the needed and the free
space, which is checked before the first byte is written, with a margin of 4 MiB for the manifest and folders.
`checkpoint.on_save_error` selects the response: `stop` ends the run, `continue` continues training and tries again at
the next save. The save of the last step must succeed: with `continue` it is tried once more, and then the run fails.

As a warning: the checkpoint is complete and is used, but its new name could not be flushed to the disk.

## CK111 code-in-a-shard
A file of the checkpoint needs classes or functions that no shard needs; reading it would run code.

Shards are read as tensors, plain values and the four classes that DeepSpeed itself writes, never in any other way.
Every file is checked before the first one is loaded.

## CK112 path-out-of-the-checkpoint
The manifest lists a path outside the checkpoint's folder, or a listed file is a link.

## CK113 no-such-checkpoint
The argument of `harness checkpoint` is not a checkpoint, a run directory or a folder of checkpoints.

## CK114 only-checkpoint
The only complete checkpoint of a run would be removed. `--force` removes it.

## CK115 latest-is-stale
The file `latest` does not name the newest complete checkpoint.

A resume never uses it. Other tools that read it would load the wrong checkpoint. A folder of no run directory, such as
one of downloads, needs none.

## CK116 folder-not-shared
Not every rank sees the folder of checkpoints that rank 0 sees.

A checkpoint is one folder with the shards of all ranks: put the run directory on a file system that all hosts share.
Use local disks for `nvme_path`, not for checkpoints.

## CK132 files-on-no-host
With `launch.shared_disk: false` files of the checkpoint are on no host of this run: a host that wrote them is gone.
With `checkpoint.upload_to` they come from the store. Run on the hosts that have them, or resume from the store.

## CK133 hosts-that-share-a-disk
`launch.shared_disk` is false, and two hosts see the same folder of checkpoints. Each would empty it for its own files.
"""
