# SPDX-License-Identifier: Apache-2.0
"""Runs one file on the real DeepSpeed and prints what happened: `python -m tests.conformance.ask FILE --world-size 2`.

The file is a run spec (YAML) or a DeepSpeed JSON. It is not checked first: what DeepSpeed does is the point.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from .judge import Judge


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.conformance.ask", description=__doc__)
    parser.add_argument("files", nargs="+", help="run specs or DeepSpeed JSONs; all of them in one server")
    parser.add_argument("--world-size", type=int, default=None, help="ranks (default: launch.num_gpus, else 2)")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="as in validate-config")
    parser.add_argument(
        "--model", default=None, metavar="JSON", help='{"kind": "llama"|"gpt2"|"mixtral"|"mlp"|"pipe", ...}'
    )
    parser.add_argument("--tensor", type=int, default=None, help="tensor degree that the script knows of")
    parser.add_argument("--pipeline", type=int, default=None, help="train a PipelineModule of so many stages")
    parser.add_argument("--sequence", type=int, default=None, help="wrap attention in Ulysses of this degree")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--limit", type=float, default=60.0, help="seconds before a job counts as hanging")
    parser.add_argument("--load", action="store_true", help="load the checkpoint back")
    parser.add_argument("--save-16bit", action="store_true", help="call save_16bit_model as well")
    parser.add_argument(
        "--creation", choices=("plain", "shards"), default="plain", help="shards: HfDeepSpeedConfig alive"
    )
    parser.add_argument("--json", action="store_true", help="everything, as JSON")
    parser.add_argument("--log", action="store_true", help="with the end of each rank's log")
    args = parser.parse_args()
    jobs = [(file, job_of(file, args)) for file in args.files]
    with Judge() as judge:
        if judge.versions["missing_ops"]:
            print(f"ops that cannot be compiled here: {judge.versions['missing_ops']}", file=sys.stderr)
        for file, job in jobs:
            answer = judge.run(job)
            print(
                json.dumps({"file": file, "job": job, "answer": answer})
                if args.json
                else told(file, job, answer, args.log)
            )
    return 0


def job_of(file: str, args: argparse.Namespace) -> dict[str, Any]:
    """The job that a file and the options describe."""
    from . import jobs

    if file.endswith((".yaml", ".yml")):
        job = jobs.from_spec(file, args.set, args.world_size)
    else:
        job = jobs.from_json(Path(file).read_text(), args.world_size or 2)
    if args.model:
        job["model"] = json.loads(args.model)
    for name in ("tensor", "pipeline", "sequence"):
        if getattr(args, name) is not None:
            job[name] = getattr(args, name)
    if args.pipeline:
        job["model"] = {**job["model"], "kind": "pipe"}
    return job | {
        "steps": args.steps,
        "limit": args.limit,
        "load": args.load,
        "save_16bit": args.save_16bit,
        "creation": args.creation,
    }


def told(file: str, job: dict[str, Any], answer: dict[str, Any], log: bool = False) -> str:
    """The answer in a few lines."""
    lines = [f"{file}: {answer['outcome']} on {job['world']} ranks in {answer.get('seconds')} s"]
    if "phase" in answer:
        lines.append(f"  at      {answer['phase']}")
    if "error" in answer:
        lines.append(f"  error   {answer['error']['type']}: {answer['error']['message']}")
    first = (answer.get("ranks") or [{}])[0]
    for name in ("losses", "lr", "norms", "skipped", "scale", "global_steps", "saved", "loaded", "saved_16bit"):
        if first.get(name) not in (None, []):
            lines.append(f"  {name:<8}{first[name]}")
    for name, value in (first.get("facts") or {}).items():
        if name != "effective" and value not in (None, {}):
            lines.append(f"  {name:<24}{value}")
    if answer.get("reference"):
        lines.append(f"  plain torch would       {answer['reference']}")
    if log:
        lines += [f"  --- rank {r['rank']}\n{r.get('log', '')}" for r in answer.get("ranks", [])]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
