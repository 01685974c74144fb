# SPDX-License-Identifier: Apache-2.0
"""Turns a checkpoint into a Hugging Face folder, and may print a sample from it. One process, no launcher, no GPU."""

from __future__ import annotations

import argparse
import os
import sys
import traceback
from pathlib import Path
from types import TracebackType


def main() -> int:
    """Export, and generate the sample; returns the exit code."""
    arguments = _parse_arguments()
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    sys.excepthook = _print_exception
    # An export needs no accelerator, and DeepSpeed would print on stdout which one it uses.
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    from harness.interpreter import freeze_imports, remove_repeated_root

    remove_repeated_root()
    with freeze_imports():
        from harness.patches.no_mlflow import import_deepspeed, read_switches

        import_deepspeed(read_switches(arguments.checkpoint / "manifest.json"))
        from harness.errors import UserError
        from harness.progress import GENERATING_SAMPLE
        from harness.runtime.export import SHARD_BYTES, export_checkpoint
        from harness.runtime.text_generation import generate_sample
        from harness.runtime.user_errors import print_findings

    _silence_transformers()
    try:
        folder = export_checkpoint(
            arguments.checkpoint,
            arguments.out,
            arguments.dtype,
            arguments.max_shard_bytes or SHARD_BYTES,
            lora=arguments.lora,
            verify=arguments.verify,
            allow_code=arguments.allow_local_code,
            log=lambda text: print(text, file=sys.stderr, flush=True),
        )
    except UserError as error:
        print_findings(error.findings)
        return int(error.code)
    print(folder)
    if arguments.sample_prompt is not None:
        seed = None if arguments.sample_seed < 0 else arguments.sample_seed
        trusted = arguments.allow_local_code
        print(GENERATING_SAMPLE, file=sys.stderr, flush=True)
        text = generate_sample(
            folder, arguments.sample_prompt, arguments.sample_tokens, seed=seed, trust_remote_code=trusted
        )
        try:
            (arguments.sample_file or folder.with_name("sample.txt")).write_text(text + "\n", encoding="utf-8")
        except OSError as error:  # the export is complete
            print(f"the sample cannot be written: {(error.strerror or str(error)).lower()}", file=sys.stderr)
        print(text)
    return 0


def _print_exception(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """As Python does it, without passwords: stderr may be `logs/export.log`."""
    from harness.secret_text import hide_passwords

    sys.stderr.write(hide_passwords("".join(traceback.format_exception(kind, error, trace))))


def _silence_transformers() -> None:
    """No bars in a log, and no warnings of `transformers` about its own code."""
    import warnings

    from transformers.utils import logging

    if not sys.stderr.isatty():
        logging.disable_progress_bar()
    warnings.filterwarnings("ignore", category=FutureWarning, module=r"transformers\.")


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--checkpoint", type=Path, required=True, metavar="DIR", help="a folder checkpoints/step-NNNNNNNN"
    )
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="the folder to make")
    parser.add_argument("--dtype", choices=("float32", "bfloat16", "float16"), help="default: the format trained in")
    parser.add_argument("--max-shard-bytes", type=int, metavar="N", help="size of a file at most; default: 2 GiB")
    parser.add_argument(
        "--lora", choices=("merge", "adapter"), default="merge", help="adapters: into the weights (default), or alone"
    )
    parser.add_argument(
        "--verify", action="store_true", help="load the folder, and compare its logits with those of the checkpoint"
    )
    parser.add_argument("--allow-local-code", action="store_true", help="run Python code that the model brings")
    parser.add_argument(
        "--sample-prompt", metavar="TEXT", help="print a sample that starts like this, and keep it in --sample-file"
    )
    parser.add_argument("--sample-tokens", type=int, default=128, metavar="N")
    parser.add_argument("--sample-file", type=Path, metavar="FILE", help="default: sample.txt next to --out")
    parser.add_argument(
        "--sample-seed",
        type=int,
        metavar="N",
        default=0,
        help="the sample is drawn with this seed (default 0); -1: greedy",
    )
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
