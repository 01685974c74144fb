# SPDX-License-Identifier: Apache-2.0
"""Checkpoints that do not load, or could not be saved."""

from __future__ import annotations

from harness.diagnosis.diagnosis_types import FailureCause, FailureSignature

_LOADING_FRAMES = r"checkpoint|load_state_dict|serialization|saver|state_dict|safetensors|modeling_utils|zero_to_fp32"

CAUSES = (
    FailureCause(
        "LG030",
        "checkpoint-of-another-number-of-ranks",
        "the ZeRO checkpoint was saved with another number of ranks",
        "resume with as many data-parallel ranks as it was saved with, or convert it to a universal checkpoint "
        "(`ds_to_universal.py`) and set `checkpoint.load_universal`",
        (
            FailureSignature(
                r"checkpoint being loaded used a DP world size of (?P<saved>\d+) but the current world size "
                r"is (?P<now>\d+)"
            ),
            FailureSignature(r"different (?:DP|MP|TP|PP) (?:world size|degree)|mp_world_size.*mismatch", sure=False),
        ),
    ),
    FailureCause(
        "LG031",
        "checkpoint-of-another-model",
        "the checkpoint's tensors do not match this model",
        "compare the model's configuration with that of the run that saved it: layers, widths, vocabulary, tied "
        "weights, adapters",
        (
            FailureSignature(r"size mismatch for (?P<name>\S+?): copying a param with shape"),
            FailureSignature(r"Error\(s\) in loading state_dict for (?P<model>\w+)"),
            FailureSignature(r"(?:Missing|Unexpected) key\(s\) in state_dict"),
            FailureSignature(r"AssertionError: key: \S+ is not found in the checkpoint"),
            FailureSignature(r"KeyError: '[\w.]+\.(?:weight|bias)'", sure=False, frames=_LOADING_FRAMES),
            FailureSignature(
                r"size of tensor a \(\d+\) must match the size of tensor b", sure=False, frames=_LOADING_FRAMES
            ),
        ),
    ),
    FailureCause(
        "LG032",
        "checkpoint-of-another-optimizer",
        "the checkpoint's optimizer states do not match this optimizer, precision or ZeRO setting",
        "resume with the optimizer, the precision, the ZeRO stage and the scheduler that it was saved with, "
        "or load the "
        "weights alone (`load_module_only=True`)",
        (
            FailureSignature(
                r"loaded state dict (?:contains a parameter group that doesn't match|has a different number of)"
            ),
            FailureSignature(
                r"KeyError: '(?:optimizer_state_dict|param_groups|momentum|exp_avg|exp_avg_sq|sum|state_steps)'", False
            ),
            FailureSignature(
                r"KeyError: '(?:fp32_flat_groups|single_partition_of_fp32_groups|base_optimizer_state|ds_version)'"
            ),
            FailureSignature(
                r"'NoneType' object has no attribute 'copy'|'NoneType' object is not subscriptable",
                False,
                _LOADING_FRAMES,
            ),
            FailureSignature(
                r"KeyError: ",
                sure=False,
                frames=r"deepspeed/.*(?:load_checkpoint|state_dict|checkpoint)",
                frames_required=True,
            ),
        ),
    ),
    FailureCause(
        "LG033",
        "torn-checkpoint",
        "a file of the checkpoint or of the weights is truncated or damaged",
        "resume from an older checkpoint (`harness checkpoint verify` finds the newest intact one); download weights "
        "again",
        (
            FailureSignature(r"PytorchStreamReader failed (?:reading|locating|finding|getting)"),
            FailureSignature(
                r"failed finding central directory|invalid header or archive is corrupted|file not found in archive"
            ),
            FailureSignature(r"EOFError: Ran out of input", sure=False),
            FailureSignature(r"unexpected EOF, expected \d+ more bytes|The file might be corrupted"),
            FailureSignature(
                r"UnpicklingError: (?:pickle data was truncated|invalid load key|unpickling stack underflow)"
            ),
            FailureSignature(r"invalid load key, '"),
            FailureSignature(
                r"SafetensorError: (?:Error while deserializing|.*[Ii]ncomplete|.*HeaderToo|.*InvalidHeader)"
            ),
            FailureSignature(r"MetadataIncompleteBuffer|HeaderTooLarge|HeaderTooSmall|InvalidHeaderDeserialization"),
            FailureSignature(r"BadZipFile|zipfile\.BadZip"),
            FailureSignature(
                r"OSError: \[Errno 22\] Invalid argument",
                sure=False,
                frames=r"torch/serialization",
                frames_required=True,
            ),
            FailureSignature(r"JSONDecodeError", sure=False, frames=_LOADING_FRAMES, frames_required=True),
        ),
    ),
    FailureCause(
        "LG034",
        "checkpoint-files-missing",
        "files of the checkpoint are missing at the rank's path",
        "check the path and the tag, that every host sees the folder, and that the save had finished",
        (
            FailureSignature(r"Unable to find latest file at|Invalid for universal checkpoint: \S* ?does not exist"),
            FailureSignature(
                r"No such file or directory: '?\S*(?:mp_rank_\d+|zero_pp_rank|optim_states|model_states|"
                r"layer_\d+-model)"
            ),
            FailureSignature(r"The following zero checkpoints paths are missing|Client provided checkpoint load paths"),
            FailureSignature(
                r"FileNotFoundError",
                sure=False,
                frames=r"load_checkpoint|checkpoint_engine|zero_to_fp32",
                frames_required=True,
            ),
            FailureSignature(r"Can't find a valid checkpoint at|No valid checkpoint found"),
        ),
    ),
    FailureCause(
        "LG035",
        "checkpoint-refused-by-unpickling",
        "torch refuses to unpickle the checkpoint (`weights_only` is on by default from torch 2.6)",
        "use the DeepSpeed and torch that saved it, or newer releases of both; load it with `weights_only=False` "
        "only if you trust its author",
        (FailureSignature(r"Weights only load failed|Unsupported (?:global|class): GLOBAL|WeightsUnpickler error"),),
    ),
    FailureCause(
        "LG036",
        "ranks-save-different-tags",
        "the ranks did not save, or load, the same checkpoint tag",
        "call `save_checkpoint` on all ranks, with the same tag",
        (FailureSignature(r"checkpoint tag name '[^']*' is not consistent across all ranks"),),
    ),
)
