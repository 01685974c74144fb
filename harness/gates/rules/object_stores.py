# SPDX-License-Identifier: Apache-2.0
"""Object stores that a run spec names."""

from __future__ import annotations

from harness.gates.registry import Context, Findings, spec_gate
from harness.object_stores.store_url import is_store_url, parse_store_url


@spec_gate("ST001 store-url", policy="DeepSpeed knows no object stores")
def unusable_store_url(ctx: Context) -> Findings:
    """A URL of an object store that cannot be used.

    `checkpoint.upload_to`, `export.upload_to` and sources of `data` are URLs such as `s3://bucket/prefix`; an upload
    needs a prefix below the bucket.

    Why: A key or a signature in a URL would be copied to run directories, logs and checkpoints. Credentials come from
    the store's own chain instead: a role, a profile, the environment.

    Example:
        checkpoint.upload_to: s3://AKIDEXAMPLE:secret@bucket/run-7

    Use instead:
        checkpoint.upload_to: s3://bucket/run-7
    """
    spec = ctx.run.spec
    uploads = {"checkpoint.upload_to": spec.checkpoint.upload_to, "export.upload_to": spec.export.upload_to}
    for key, text in uploads.items():
        reason = _find_problem(text) if text is not None else ""
        if reason:
            yield ctx.finding(
                f"the URL of {ctx.key(key)} cannot be used: {reason}",
                key,
                fix=ctx.fix_to_remove(key, effect="uploads nothing"),
            )
    for name in ("train", "eval"):
        for source in getattr(spec.data, name) or ():
            reason = _find_problem(source.path, is_prefix=False) if is_store_url(source.path) else ""
            if reason:
                yield ctx.finding(f"a URL of {ctx.key(f'data.{name}')} cannot be used: {reason}", f"data.{name}")


def _find_problem(text: str, *, is_prefix: bool = True) -> str:
    try:
        url = parse_store_url(text)
    except ValueError as error:
        return str(error)
    return "it names a bucket, and no prefix below it" if is_prefix and not url.path else ""


@spec_gate("ST002 upload-of-nothing", severity="warning")
def upload_without_files(ctx: Context) -> Findings:
    """An upload in a run that writes nothing to upload.

    `checkpoint.upload_to` in a run that saves no checkpoint, or `export.upload_to` without `export.at_end`.

    Why: The store stays empty.

    Example:
        export.upload_to: s3://bucket/models/run-7
    """
    spec = ctx.run.spec
    saves = spec.checkpoint.save_at_end or spec.checkpoint.save_steps is not None
    if spec.checkpoint.upload_to is not None and not saves:
        key = "checkpoint.upload_to"
        fix = ctx.fix_to_set("checkpoint.save_at_end", True, effect="saves at the end")
        yield ctx.finding(f"{ctx.key(key)} is set, and no checkpoint is ever saved", key, fix=fix)
    if spec.export.upload_to is not None and not spec.export.at_end:
        key = "export.upload_to"
        fix = ctx.fix_to_set("export.at_end", True, effect="exports the last checkpoint")
        yield ctx.finding(f"{ctx.key(key)} is set, and the run exports nothing", key, fix=fix)
