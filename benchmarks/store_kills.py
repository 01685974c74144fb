# SPDX-License-Identifier: Apache-2.0
"""Does a run of which only an object store is left end as one that nobody touched?

Runs on 2 ranks upload a checkpoint of each step to a real S3 server. At random moments a rank, all ranks or a whole
host is killed with its disk, or the store is killed, answers with 500s, cuts connections or becomes slow, and the ranks
are killed a few steps later. Each start resumes from the store alone. Every checkpoint with a manifest in the store
must be there to the last byte; every step's loss and the final state must be those of the undisturbed run.

Ranks and the store: forked ranks on this machine. Hosts: `harness launch` on a cluster in a box, each host with a disk
of its own; needs root, sshd and pdsh. A state folder keeps what each training (a chain of kills) came to, so that the
command can be stopped and called again until it has all kills. Ends with 1 when anything was wrong or kills are
missing.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from datetime import date
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from harness.launching.hosts.local_host import find_free_port  # noqa: E402
from tests.kill import boxed, stored  # noqa: E402
from tests.kill.chain import Plan, run_reference  # noqa: E402
from tests.support.boxes import LACKING, made_box  # noqa: E402
from tests.support.object_store import StoreServer, run_store_server  # noqa: E402

CASES = ("zero2", "zero3-cpu")
KILLS_A_CHAIN = 5


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=38, help="of ranks and of the store")
    parser.add_argument("--host-kills", type=int, default=12, help="of hosts in a box")
    parser.add_argument("--steps", type=int, default=60, help="length of a training")
    parser.add_argument("--seed", type=int, default=34)
    parser.add_argument("--state", type=Path, default=ROOT / "build" / "store-kills", help="what is done so far")
    parser.add_argument("--seconds", type=float, default=1e9, help="start no training after so long")
    parser.add_argument("--write", action="store_true", help="write benchmarks/results/store-kills-DATE.{md,json}")
    asked = parser.parse_args()
    asked.state.mkdir(parents=True, exist_ok=True)
    end = time.monotonic() + asked.seconds
    missing = 0
    for kind, count in (("stored", asked.kills), ("boxed", asked.host_kills)):
        if kind == "boxed" and count and (os.geteuid() != 0 or LACKING):
            print("hosts in a box need root, sshd, ssh, pdsh and ip", file=sys.stderr)
            missing += count
            continue
        missing += run_chains(kind, count, asked, end)
    chains = [json.loads(file.read_text()) for file in sorted(asked.state.glob("*-[0-9]*.json"))]
    text = page(chains, asked.seed, asked.steps, asked.kills + asked.host_kills)
    print(text)
    if asked.write:
        target = ROOT / "benchmarks" / "results" / f"store-kills-{date.today().isoformat()}.md"
        target.write_text(text)
        body = {"seed": asked.seed, "steps": asked.steps, "chains": chains}
        target.with_suffix(".json").write_text(json.dumps(body, indent=1) + "\n")
    return 1 if missing or any(chain["wrong"] for chain in chains) else 0


def run_chains(kind: str, count: int, asked: argparse.Namespace, end: float) -> int:
    """Run the chains of one kind that the state folder lacks; returns how many kills are missing afterwards."""
    draw: Callable[[int, int], Sequence[Any]] = stored.draw if kind == "stored" else boxed.draw
    left = list(draw(count, asked.seed))
    done = [json.loads(file.read_text()) for file in sorted(asked.state.glob(f"{kind}-[0-9]*.json"))]
    left = left[sum(chain["kills"] for chain in done) :]
    if not left or time.monotonic() > end:
        return len(left)
    with tempfile.TemporaryDirectory(prefix="store-kills-") as made, resources(kind, Path(made), asked) as run:
        number = len(done)
        while left and time.monotonic() < end:
            kills, start = left[:KILLS_A_CHAIN], time.monotonic()
            before = len(kills)
            reports, wrong = run(number, kills)
            landed = before - len(kills)
            left = left[landed:]
            rows = [{**report.to_json(), "kill": asdict(report.kill) if report.kill else None} for report in reports]
            body = {
                "name": f"{kind}-{number:02d}",
                "kills": landed,
                "seconds": round(time.monotonic() - start, 1),
                "wrong": wrong,
                "starts": rows,
            }
            (asked.state / f"{kind}-{number:02d}.json").write_text(json.dumps(body, indent=1) + "\n")
            number += 1
    return len(left)


Run = Callable[[int, list[Any]], tuple[list[Any], list[str]]]


@contextlib.contextmanager
def resources(kind: str, folder: Path, asked: argparse.Namespace) -> Iterator[Run]:
    """What chains need, and a function that runs one; it takes off the list the kills that came to be."""
    from tests.support.training.forked_ranks import ForkedRanks

    def tell(text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    with contextlib.ExitStack() as stack:
        box = None
        if kind == "boxed":
            (folder / "boxed" / "runs").mkdir(parents=True)
            box = stack.enter_context(made_box(4, "k", folder / "boxed" / "runs"))
        host = box.address(1).rpartition(".")[0] + ".254" if box else "127.0.0.1"
        server: StoreServer = stack.enter_context(run_store_server(host))
        stack.enter_context(stored.reached_by_ranks(server))
        ranks = ForkedRanks()
        stack.callback(ranks.close)
        plan = Plan((), asked.steps, CASES, find_free_port(), asked.seed)
        references: dict[str, Any] = {}

        def run(number: int, kills: list[Any]) -> tuple[list[Any], list[str]]:
            case = CASES[number % len(CASES)]
            if case not in references:
                references[case] = run_reference(plan, case, folder / f"reference-{case}", ranks)
            watch, reference = stored.StoreWatch(server), references[case]
            chain: Any
            if box is not None:
                place = folder / "boxed"
                chain = boxed.HostChain(f"boxed-{number}", plan, case, place, box, reference, ranks, watch, tell)
            else:
                place = folder / f"chain-{number}"
                chain = stored.StoreChain(plan, case, place, reference, ranks, watch, tell)
            chain.run(kills)
            return chain.reports, chain.wrong

        yield run


def page(chains: Sequence[dict[str, Any]], seed: int, steps: int, num_drawn: int) -> str:
    """The figures as Markdown."""
    starts = [start for chain in chains for start in chain["starts"]]
    killed = [start for start in starts if start["kill"]]
    wrong = [text for chain in chains for text in chain["wrong"]]
    targets = sorted({start["kill"]["target"] for start in killed})
    moments = ("upload", "download", "step")
    counts = Counter((start["kill"]["target"], start["kill"]["moment"]) for start in killed)
    uploading = Counter(start["kill"]["target"] for start in killed if start["mid_save"])
    resumed = sum(bool(start["resumed_from"]) for start in starts)
    seconds = sum(chain["seconds"] for chain in chains)
    lines = [
        f"# Kills with an object store alone, {date.today().isoformat()}",
        "",
        f"`python benchmarks/store_kills.py --write`: {len(killed)} of the {num_drawn} kills that it draws, in",
        f"{len(chains)} trainings of {steps} steps on 2 ranks, a checkpoint at each step, seed {seed};",
        f"{seconds:.0f} s. After each kill the disk is emptied, and the next start has the store alone. A store",
        "fails for 0.3 to 3 s, and the ranks are killed 1 to 10 steps after that began. Hosts are those of a cluster",
        "in a box, the others forked ranks.",
        "",
        "| Killed | In an upload | In a download | At a step | A checkpoint was half uploaded |",
        "| --- | ---: | ---: | ---: | ---: |",
        *(
            f"| {target} | {' | '.join(str(counts[target, m]) for m in moments)} | {uploading[target]} |"
            for target in targets
        ),
        "",
        f"- starts: {len(starts)}, of which {resumed} resumed from the store, each from its newest complete checkpoint",
        f"- steps trained and compared, lost ones again: {sum(start['steps'] for start in starts)}",
    ]
    if wrong:
        lines += [f"- wrong: {len(wrong)}", *(f"  - {text}" for text in wrong)]
    else:
        lines += [
            "- wrong: nothing. Each loss, and the final state in the store, are those of the undisturbed run to the"
            " last bit; every checkpoint with a manifest in the store was whole; no process of a run was left"
        ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
