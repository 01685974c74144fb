# SPDX-License-Identifier: Apache-2.0
"""Memory of gradients that `overlap_comm` reduces on a separate stream, at stages 1 and 2."""

from __future__ import annotations

from harness.gates.registry import Cite, Context, Findings, gate

_KEY = "zero.overlap_comm"
_BUCKET = "zero_optimization.reduce_bucket_size"
_DEFAULT_BUCKET = 500_000_000


def _is_reduction_overlapped(ctx: Context) -> bool:
    return (
        ctx.stage in (1, 2)
        and ctx.ds("zero_optimization.overlap_comm") is True
        and not ctx.is_optimizer_offloaded
        and ctx.accelerator != "cpu"
    )


@gate(
    "ZR041 gradients-above-the-bucket-freed-early",
    upstream="wrong",
    severity="warning",
    since="0.19.0",
    cites=Cite("runtime/zero/stage_1_and_2.py", "self.extra_large_param_to_reduce[comm_dtype] = param"),
    when=lambda ctx: ctx.consumer is not None and _is_reduction_overlapped(ctx),
    unseen="needs a GPU: the CPU has no streams",
)
def oversized_gradients(ctx: Context) -> Findings:
    """Gradients above `reduce_bucket_size` that are freed while they are reduced.

    `overlap_comm: true` at stage 2, or at stage 1 with `reduce_scatter: false`, without an offloaded optimizer and with
    `contiguous_gradients`, where a parameter has more elements than `reduce_bucket_size`. Under the Trainer, `auto` is
    the hidden size squared, which the matrices of an MLP exceed. The gate needs to know the model.

    Why: Such a gradient is reduced where it lies, on the reduction stream, and freed before that stream has read it:
    the allocator may give its memory to the backward pass, and then wrong values are reduced, without an error. At
    stage 2 this affects parameters that span the partitions of two other ranks; with `reduce_scatter: false`, all
    parameters. Pull request 7965 fixed it for the other buffers (read in 0.19.0 to 0.19.8; two streams with no order
    between them on the simulated device of `harness simulate --races`; not seen on a GPU). Runs of the harness
    have the patch `zero12-oversized-grads`.

    Example: {
      "train_micro_batch_size_per_gpu": "auto",
      "zero_optimization": {
        "stage": 2,
        "overlap_comm": true,
        "reduce_bucket_size": "auto"
      },
      "gradient_clipping": "auto"
    }
    """
    is_scattered = ctx.ds("zero_optimization.reduce_scatter", True) is True
    if not ctx.ds("zero_optimization.contiguous_gradients", True) or (ctx.stage == 1 and is_scattered):
        return
    key, model = "zero.reduce_bucket_size", ctx.model
    if ctx.consumer == "hf" and ctx.is_auto(_BUCKET):
        bucket, largest = (model.hidden**2, model.largest_parameter) if model is not None else (None, None)
        asked = "`auto`, the hidden size squared"
    elif model is not None:
        bucket, largest = ctx.ds(_BUCKET, _DEFAULT_BUCKET), model.largest_parameter
        asked = f"{bucket:,} elements"
    else:
        return
    if bucket is not None and largest is not None and largest <= bucket:
        return
    above = f"the largest parameter has {largest:,}" if largest is not None else "the matrices of an MLP are larger"
    place = key if ctx.has_key(_BUCKET) else _KEY
    yield ctx.finding(
        f"{ctx.key(key)} is {asked}, {above}: a reduction may read freed memory",
        place,
        label="smaller than a gradient",
        related=[(_KEY, "reduces on a separate stream")],
        notes=["the allocator reuses the memory of such a gradient while the reduction stream still reads it"],
        fix=(
            ctx.fix_to_set(key, largest, effect="each gradient fits; the two buckets take more memory of the GPU")
            if largest is not None
            else ctx.fix_to_set(_KEY, False, effect="reductions wait for the backward pass: no overlap")
        ),
    )


@gate(
    "ZR042 reduced-buffers-freed-early",
    upstream="wrong",
    severity="info",
    until="0.18.9",
    when=_is_reduction_overlapped,
    unseen="needs a GPU: the CPU has no streams",
)
def recycled_buffers(ctx: Context) -> Findings:
    """Buffers of an overlapped reduction that are freed early, up to 0.18.9.

    `overlap_comm: true` at stage 1 or 2 without an offloaded optimizer, on DeepSpeed before 0.19.0.

    Why: The allocator does not know that the reduction stream uses these buffers, and may reuse their memory before the
    sum is copied. DeepSpeed's pull request 7965 shows a loss of NaN at stage 2 in the third step, and records the
    stream from 0.19.0 on (read there and in the sources of 0.14.5 to 0.19.0; not seen on a GPU).

    Example:
        zero.stage: 2
        zero.overlap_comm: true
    """
    yield ctx.finding(
        f"DeepSpeed {ctx.target.text} may reuse the memory of gradients that {ctx.key(_KEY)} still reduces",
        _KEY,
        label="a separate stream, unknown to the allocator",
        notes=[
            "a loss of NaN was seen at stage 2 (DeepSpeed's pull request 7965); 0.19.0 is the first release without it"
        ],
        fix=ctx.fix_to_set(_KEY, False, effect="reductions wait for the backward pass: no overlap"),
    )
