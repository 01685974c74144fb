# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of other programs, into a run of the harness. The way back is `runtime/export/checkpoint_conversion.py`.

foreign_save.py   a save of DeepSpeed's, whoever trained, as whole tensors by name; at stage 0 its numbers become names
import_writer.py  the import: tensor by tensor, each compared by its hash, with schedule and random states
partial.py        what can be saved of a save with missing shards
"""
