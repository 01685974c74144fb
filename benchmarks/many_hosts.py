# SPDX-License-Identifier: Apache-2.0
"""The launching host with 64, 512 and 4,096 hosts of 8 ranks: time, memory, open files and messages of each command.

The real code up to the process boundary: one server answers for all hosts behind a made-up `ssh`
(`tests/support/made_up_hosts.py`), with latencies, dead hosts and hosts that say something wrong from a seed. This
program writes the status files of their ranks, and starts a launcher that only waits. `--real` takes real node agents
and probes instead, each a process of this machine. `--parts ssh --sizes 1` measures one real ssh client (root, sshd).
`--write` writes the dated result. A quarter of an hour.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.support.made_up_hosts import MadeUpHosts, Options, address_of, first_pid, made_up_hosts  # noqa: E402

SIZES = (64, 512, 4096)
RANKS_PER_HOST = 8
STEADY_SECONDS = 20.0
SPEC = """\
name: many
model: {name_or_path: meta-llama/Llama-3.2-1B}
data: {train: data.jsonl, max_length: 512}
train: {max_steps: 1000, per_device_train_batch_size: 1}
precision: {bf16: true}
zero: {stage: 2}
launch: {output_dir: runs, launcher: slurm, hang_timeout_seconds: null}
cluster: {gpu: H100-80GB}
"""
REAL_SSH = '#!/bin/sh\nwhile [ "$1" != -- ]; do shift; done\nexec sh -c "$3"\n'


@dataclass
class Measured:
    """One process while it ran: wall and CPU seconds, the most memory and open files, its output."""

    name: str
    wall: float
    cpu: float
    rss_mib: float
    files: int
    code: int
    output: str
    more: dict[str, Any] = field(default_factory=dict)


def measure(name: str, command: Sequence[str], folder: Path, environ: dict[str, str] | None = None) -> Measured:
    """Run a command to its end; its open files are counted ten times a second."""
    start, files, output = time.monotonic(), 0, list[str]()
    child = subprocess.Popen(
        command, cwd=folder, env=environ, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    reader = threading.Thread(target=lambda: output.append(child.stdout.read() if child.stdout else ""), daemon=True)
    reader.start()
    while reader.is_alive():
        reader.join(0.1)
        try:
            files = max(files, len(os.listdir(f"/proc/{child.pid}/fd")))  # noqa: PTH208  (counted often)
        except OSError:
            break
    _, status, usage = os.wait4(child.pid, 0)
    reader.join(5)
    wall = time.monotonic() - start
    cpu = usage.ru_utime + usage.ru_stime
    code = os.waitstatus_to_exitcode(status)
    return Measured(name, wall, cpu, usage.ru_maxrss / 1024, files, code, "".join(output))


def write_inputs(folder: Path, names: Sequence[str]) -> None:
    """The spec, its data and a hostfile."""
    (folder / "spec.yaml").write_text(SPEC)
    (folder / "data.jsonl").write_text('{"text": "a"}\n')
    (folder / "hosts").write_text("".join(f"{name} slots={RANKS_PER_HOST}\n" for name in names))


def harness(*words: str) -> list[str]:
    """The command line of a harness command on the spec and the hostfile."""
    return [sys.executable, "-m", "harness", *words, "--hostfile", "hosts"]


def measure_commands(folder: Path, names: Sequence[str]) -> list[Measured]:
    """`validate-config` and `launch --dry-run`, with names that resolve and with names that do not."""
    environ = dict(os.environ) | {"PYTHONPATH": str(ROOT), "SLURM_JOB_ID": "1"}
    found = []
    loopback = [f"127.{1 + (i >> 14)}.{(i >> 6) & 255}.{(i & 63) + 2}" for i in range(len(names))]
    for kind, hosts in (
        ("names that resolve", loopback),
        ("names that do not", [f"node-{i:05d}.invalid" for i in range(len(names))]),
    ):
        write_inputs(folder, hosts)
        for words in (("validate-config", "spec.yaml"), ("launch", "spec.yaml", "--dry-run")):
            found.append(measure(f"`{' '.join(words)}`, {kind}", harness(*words), folder, environ))
    return found


def real_hosts(folder: Path) -> dict[str, str]:
    """An environment in which `ssh` runs its command on this machine."""
    (folder / "real").mkdir(exist_ok=True)
    (folder / "real" / "ssh").write_text(REAL_SSH)
    (folder / "real" / "ssh").chmod(0o755)
    return dict(os.environ) | {"PATH": f"{folder}/real:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}


def measure_preflight(folder: Path, names: Sequence[str], seconds: float, *, real: bool) -> Measured:
    """`harness preflight` with this latency, a few dead, silent and lying hosts."""
    write_inputs(folder, names)
    if real:
        return measure("preflight, real probes", harness("preflight", "spec.yaml"), folder, real_hosts(folder))
    options = Options(seconds=seconds, dead=0.002, silent=0.0005, liars=0.002, hosts=tuple(names))
    with made_up_hosts(folder / "bin", options) as hosts:
        result = measure("preflight", harness("preflight", "spec.yaml"), folder, hosts.environ)
        time.sleep(0.5)
        result.more["messages"] = sum(hosts.counts().values())
    return result


def supervise(num_hosts: int, folder: Path) -> None:
    """In a process of its own: one attempt of the real supervisor, to the end of the ranks. Prints what it took."""
    from harness.launching.process.signals import Signals
    from harness.launching.setup.launch_context import LaunchContext
    from harness.launching.setup.launch_request import LaunchRequest, LaunchSetup
    from harness.launching.setup.prepare import prepare
    from harness.launching.setup.run_dir import write_run_dir
    from harness.launching.supervise import monitor
    from harness.launching.supervise.attempt_runner import run_attempt
    from harness.views.screen import Screen

    class Log(Screen):
        def on_findings(self, findings: Any, lines_of: Any) -> None:
            """Warnings are not of interest here."""

    log = Log("quiet")
    setup = prepare(LaunchRequest("spec.yaml", hostfile="hosts", dry_run=True), log)
    if not isinstance(setup, LaunchSetup):
        raise SystemExit(str(setup))
    launcher = "import time, pathlib, sys; p = pathlib.Path(sys.argv[1]);\nwhile not p.exists(): time.sleep(0.1)"
    plan = dataclasses.replace(setup.plan, argv=(sys.executable, "-c", launcher, str(folder / "ranks-ended")))
    start = time.monotonic()
    write_run_dir(plan)
    took = {"write run dir": time.monotonic() - start}
    (folder / "run-dir").write_text(str(plan.run_dir))
    polls: list[tuple[float, float]] = []
    original, marks = monitor.RankMonitor.poll, dict[str, float]()

    def poll(self: Any, *, force: bool = False) -> None:
        began = time.monotonic()
        original(self, force=force)
        polls.append((began, time.monotonic() - began))
        agents = self.node_agents.agents if self.node_agents is not None else []
        if "agents" not in marks and len(agents) == num_hosts and all(a.last_heartbeat for a in agents):
            marks["agents"] = time.monotonic() - start
        if "statuses" not in marks and len(self.statuses) == plan.world_size:
            marks["statuses"] = time.monotonic() - start
        if len(marks) == 2 and "steady" not in marks:
            marks["steady"], marks["cpu"] = time.monotonic(), time.process_time()
            (folder / "steady").touch()

    monitor.RankMonitor.poll = poll  # type: ignore[method-assign]
    with Signals() as signals:
        context = LaunchContext(setup.local_host.scripts, log, signals, None)
        result = run_attempt(plan, setup.run.spec.launch, context, lambda: None)
    steady = [
        (at, seconds)
        for at, seconds in polls
        if marks.get("steady", 1e18) <= at <= marks.get("steady", 0) + STEADY_SECONDS
    ]
    took |= {
        "all agents": marks.get("agents", -1.0),
        "all statuses": marks.get("statuses", -1.0),
        "longest poll": max((s for _, s in steady), default=0.0),
        "share of a core": sum(s for _, s in steady) / STEADY_SECONDS,
        "after the ranks": time.time() - (folder / "ranks-ended").stat().st_mtime,
        "rss": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }
    print(json.dumps({"verdict": result.verdict.state, "reason": result.verdict.reason} | took))


def write_statuses(
    run_dir: Path, names: Sequence[str], state: str, step: int, until: Callable[[], bool], first_rank_pid: int
) -> int:
    """The status files of all ranks, as ranks replace theirs; returns how many were written before `until` was true.

    `first_rank_pid` is 0 where real node agents would miss the process.
    """
    scratch, written = run_dir / "status" / ".new", 0
    for rank in range(len(names) * RANKS_PER_HOST):
        body = {"rank": rank, "host": names[rank // RANKS_PER_HOST], "pid": first_rank_pid and first_rank_pid + rank}
        scratch.write_text(json.dumps(body | {"state": state, "phase": "step", "step": step, "time": time.time()}))
        scratch.replace(run_dir / "status" / f"rank-{rank:05d}.json")
        written += 1
        if until():
            break
    return written


def measure_supervisor(folder: Path, names: Sequence[str], *, real: bool) -> Measured:
    """The supervisor from the start of node agents over a steady state to the end of the ranks."""
    write_inputs(folder, names)
    for file in ("ranks-ended", "steady", "run-dir"):
        (folder / file).unlink(missing_ok=True)
    command = [sys.executable, __file__, "--supervise", str(len(names)), str(folder)]

    has_ended, pid = threading.Event(), 0 if real else first_pid(0, RANKS_PER_HOST)

    def ranks(hosts: MadeUpHosts | None, results: dict[str, float]) -> None:
        while not (folder / "run-dir").exists() and not has_ended.is_set():
            time.sleep(0.05)
        run_dir = Path((folder / "run-dir").read_text())
        write_statuses(run_dir, names, "running", 1, lambda: False, pid)
        while not (folder / "steady").exists() and not has_ended.is_set():
            time.sleep(0.05)
        if has_ended.is_set():
            return
        start, before, step, written = time.monotonic(), hosts.counts() if hosts else {}, 1, 0
        while time.monotonic() - start < STEADY_SECONDS + 1:
            step += 1
            round_start = time.monotonic()
            written += write_statuses(
                run_dir, names, "running", step, lambda: time.monotonic() - start > STEADY_SECONDS, pid
            )
            time.sleep(max(0.0, 1.0 - (time.monotonic() - round_start)))
        seconds, after = time.monotonic() - start, hosts.counts() if hosts else {}
        results |= {f"{kind} a second": (after[kind] - before.get(kind, 0)) / seconds for kind in after}
        results["statuses a second"] = written / seconds
        write_statuses(run_dir, names, "completed", step, lambda: False, pid)
        (folder / "ranks-ended").touch()

    results: dict[str, float] = {}
    if real:
        thread = threading.Thread(target=ranks, args=(None, results))
        thread.start()
        measured = measure("supervisor, real agents", command, folder, real_hosts(folder) | {"SLURM_JOB_ID": "1"})
    else:
        with made_up_hosts(folder / "bin", Options(seconds=1.0, hosts=tuple(names))) as hosts:
            thread = threading.Thread(target=ranks, args=(hosts, results))
            thread.start()
            measured = measure("supervisor", command, folder, hosts.environ | {"SLURM_JOB_ID": "1"})
    has_ended.set()
    thread.join()
    try:
        measured.more = json.loads(measured.output.strip().splitlines()[-1]) | results
    except (ValueError, IndexError):
        print(measured.output[-3000:])
    return measured


def measure_records(folder: Path, names: Sequence[str]) -> list[Measured]:
    """`harness runs` and `harness report` of a run of all ranks; its checkpoint, and the look for slow ranks."""
    command = [sys.executable, __file__, "--records", str(len(names)), str(folder)]
    environ = dict(os.environ) | {"PYTHONPATH": str(ROOT)}
    made = measure("checkpoint of all ranks, slow ranks", command, folder, environ)
    made.more = json.loads(made.output.strip().splitlines()[-1])
    found = [made]
    for words in (["runs", "records"], ["report", "records/large-1", "-o", "report.html"]):
        found.append(measure(f"`harness {words[0]}`", [sys.executable, "-m", "harness", *words], folder, environ))
    found[-1].more["page MiB"] = (folder / "report.html").stat().st_size / 2**20
    return found


def make_records(num_hosts: int, folder: Path) -> None:
    """In a process of its own: write a run and a checkpoint of all ranks, look for slow ones. Prints what it took."""
    from harness.checkpoints.latest import find_latest
    from harness.checkpoints.retention import remove_checkpoint
    from harness.checkpoints.verify import verify_checkpoint
    from harness.runtime.telemetry.stragglers import RankSample, StragglerDetector
    from tests.support import sample_checkpoints, sample_run

    world, took = num_hosts * RANKS_PER_HOST, dict[str, float]()
    hosts = [f"node-{rank // RANKS_PER_HOST:05d}" for rank in range(world)]
    run = sample_run.on_gpus()
    lines = [sample_run.head(run) | {"hosts": hosts, "world": world}]
    for number in range(1, 101):
        lines.append(sample_run.step(number))
        if number % 10 == 0:
            lines.append(sample_run.ranks(number, world, {world // 3: 1.5}))
    sample_run.write_run(folder / "records" / "large-1", run, lines, states=("completed",) * world)

    def timed(name: str, action: Callable[[], object]) -> None:
        start = time.monotonic()
        action()
        took[name] = round(time.monotonic() - start, 3)

    contents = {f"global_step1/rank-{rank:05d}-{part}.pt": b"x" for rank in range(world) for part in ("model", "optim")}
    sample_checkpoints.CONTENTS = contents
    checkpoints = folder / "checkpoints"
    timed("write a checkpoint", lambda: sample_checkpoints.make(checkpoints, 1))
    timed("find the newest", lambda: find_latest(checkpoints, verify="exists"))
    (newest,) = checkpoints.glob("step-*")
    timed("verify its hashes", lambda: verify_checkpoint(newest))
    timed("remove it", lambda: remove_checkpoint(newest))
    detector = StragglerDetector(hosts, [0] * world)
    for look in range(6):  # a tenth of the hosts becomes slow
        samples = [
            RankSample(0.1, 2.0 if look > 2 and rank // RANKS_PER_HOST % 10 == 0 else 1.0) for rank in range(world)
        ]
        timed("longest look for slow ranks", lambda samples=samples: detector.update(10, samples))  # type: ignore[misc]
        took["longest"] = max(took.get("longest", 0.0), took["longest look for slow ranks"])
    took["longest look for slow ranks"] = took.pop("longest")
    print(json.dumps(took))


def render(results: Sequence[tuple[int, Measured]], machine: str) -> str:
    """The result as a page."""
    lines = [
        "# The launching host with many hosts",
        "",
        f"`python benchmarks/many_hosts.py --write`, {machine}. Hosts have {RANKS_PER_HOST} ranks and answer after",
        "1 s; 2 in 1,000 are dead and 2 say something wrong. The made-up `ssh` and its server are not counted.",
        "",
        "| Hosts | What | Seconds | CPU seconds | Memory | Open files | More |",
        "| ---: | --- | ---: | ---: | ---: | ---: | --- |",
    ]
    for size, m in results:
        more = ", ".join(
            f"{key} {value:,.0f}" if isinstance(value, float) and value >= 100 else f"{key} {value:.3g}"
            for key, value in m.more.items()
            if isinstance(value, int | float)
        )
        cells = [f"{size:,}", m.name, f"{m.wall:.1f}", f"{m.cpu:.1f}", f"{m.rss_mib:.0f} MiB", f"{m.files:,}", more]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def measure_ssh(connections: int = 16) -> Measured:
    """What a real ssh client takes that is connected to a host in a box: its own memory, and CPU time to connect."""
    from tests.support.boxes import made_box

    with made_box(1, "m") as box:
        command = [str(box.folder / "bin" / "ssh"), "-T", box.address(1)]
        start = resource.getrusage(resource.RUSAGE_CHILDREN)
        for _ in range(connections):
            subprocess.run([*command, "true"], check=True, stdin=subprocess.DEVNULL)
        end = resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu = (end.ru_utime + end.ru_stime - start.ru_utime - start.ru_stime) / connections
        clients = [subprocess.Popen([*command, "cat"], stdin=-1, stdout=-1) for _ in range(connections)]
        own = []
        for client in clients:
            if client.stdin and client.stdout:
                client.stdin.write(b"x\n")
                client.stdin.flush()
                client.stdout.readline()  # it is connected
            rows = Path(f"/proc/{client.pid}/smaps_rollup").read_text().splitlines()
            own.append(sum(int(row.split()[1]) for row in rows if row.startswith("Private")) / 1024)
        for client in clients:
            client.communicate()
    more = {"MiB of its own a client": statistics.median(own), "CPU ms to connect": cpu * 1000}
    return Measured("real ssh to a host in a box", 0.0, cpu * connections, max(own), 0, 0, "", more)


def measure_part(part: str, folder: Path, names: Sequence[str], args: argparse.Namespace) -> list[Measured]:
    """The measurements of one part."""
    if part == "ssh":
        return [measure_ssh()]
    if part == "commands":
        return measure_commands(folder, names)
    if part == "preflight":
        return [measure_preflight(folder, names, args.seconds, real=args.real)]
    if part == "supervisor":
        return [measure_supervisor(folder, names, real=args.real)]
    return measure_records(folder, names)


def main() -> None:
    """Measure, print, and with `--write` write the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="*", default=SIZES)
    parser.add_argument("--seconds", type=float, default=1.0, help="latency of a made-up host")
    parser.add_argument("--parts", default="commands,preflight,supervisor,records")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--real", action="store_true")
    parser.add_argument("--supervise", nargs=2)
    parser.add_argument("--records", nargs=2)
    args = parser.parse_args()
    if args.supervise:
        supervise(int(args.supervise[0]), Path(args.supervise[1]))
        return
    if args.records:
        make_records(int(args.records[0]), Path(args.records[1]))
        return
    results: list[tuple[int, Measured]] = []
    for size in args.sizes:
        names = [address_of(i) for i in range(size)]
        with tempfile.TemporaryDirectory() as made:
            folder = Path(made)
            for part in args.parts.split(","):
                for measured in measure_part(part, folder, names, args):
                    results.append((size, measured))
                    print(render(results[-1:], "").splitlines()[-1], flush=True)
                    if args.write:
                        write_result(results)


def write_result(results: Sequence[tuple[int, Measured]]) -> None:
    """Write the dated result so far."""
    machine = f"{os.cpu_count()} cores that others used too (load average {os.getloadavg()[0]:.0f})"
    file = ROOT / "benchmarks" / "results" / f"many-hosts-{time.strftime('%Y-%m-%d')}.md"
    file.write_text(render(results, machine), encoding="utf-8")


if __name__ == "__main__":
    main()
