# SPDX-License-Identifier: Apache-2.0
"""Does `harness explain --log` name the right cause? Provokes real faults and judges the answers.

Each fault is a job of bare DeepSpeed (`faulty_job.py`) on the CPU accelerator that really goes wrong: a rank is killed,
a file is torn, a port is taken. Where what the launcher says matters the job runs under the real `deepspeed` launcher,
else its ranks are forked from this process, which has imported torch once. `--logs FOLDER` keeps the logs, with this
machine's paths left out. Needs root for the two faults of file systems; some ten minutes.

    python benchmarks/log_causes.py [--only NAME ...] [--logs FOLDER] [--out FILE]

With `--only` the other rows of `--out` stay as they are.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import io
import json
import os
import re
import runpy
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from harness.diagnosis import Diagnosis, diagnose
from harness.launching.hosts.local_host import find_free_port

HERE = Path(__file__).parent
JOB = HERE / "faulty_job.py"
Row = tuple[str, ...]
Prepare = Callable[[Path, dict[str, str], int], contextlib.AbstractContextManager[None]]


@dataclass(frozen=True)
class Fault:
    """One way to go wrong: the job's word for it, what is right to say of it, and what must be prepared."""

    name: str
    causes: tuple[str, ...]
    job: str = "none"
    rank: int | None = None
    config: dict[str, object] = field(default_factory=dict)
    ranks: int = 2
    prepare: Prepare | None = None
    options: tuple[str, ...] = ()
    seconds: float = 240.0
    launcher: bool = False


@contextlib.contextmanager
def port_taken(_folder: Path, _env: dict[str, str], port: int) -> Iterator[None]:
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(("", port))
        taken.listen()
        yield


def mounted(options: str) -> Prepare:
    @contextlib.contextmanager
    def context(folder: Path, _env: dict[str, str], _port: int) -> Iterator[None]:
        subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)], check=True)  # noqa: S607
        try:
            yield
        finally:
            subprocess.run(["umount", "-l", str(folder)], check=False)  # noqa: S607

    return context


@contextlib.contextmanager
def lock_left(folder: Path, env: dict[str, str], _port: int) -> Iterator[None]:
    """The folder of an op as a killed build leaves it."""
    for op in ("cpu_adam", "deepspeed_shm_comm"):
        (folder / op).mkdir()
        (folder / op / "lock").touch()
    env["TORCH_EXTENSIONS_DIR"] = str(folder)
    yield


@contextlib.contextmanager
def no_compiler(folder: Path, env: dict[str, str], _port: int) -> Iterator[None]:
    env |= {"TORCH_EXTENSIONS_DIR": str(folder), "CXX": "/nowhere/c++"}
    yield


@contextlib.contextmanager
def no_ninja(folder: Path, env: dict[str, str], _port: int) -> Iterator[None]:
    (folder / "bin").mkdir()
    for name in ("python", "sh", "bash", "which"):
        found = shutil.which(name)
        if found:
            (folder / "bin" / name).symlink_to(found)
    env |= {"TORCH_EXTENSIONS_DIR": str(folder), "PATH": str(folder / "bin")}
    yield


@contextlib.contextmanager
def bad_data(folder: Path, _env: dict[str, str], _port: int) -> Iterator[None]:
    (folder / "data.jsonl").write_text('{"text": "fine"}\n{"text": "torn\n')
    yield


@contextlib.contextmanager
def model_folder(folder: Path, _env: dict[str, str], _port: int) -> Iterator[None]:
    config = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 16, "num_hidden_layers": 1}
    (folder / "config.json").write_text(json.dumps(config | {"num_attention_heads": 2, "vocab_size": 50}))
    yield


def saved(harm: Callable[[Path], None]) -> Prepare:
    """A checkpoint of two ranks, harmed afterwards."""

    @contextlib.contextmanager
    def context(folder: Path, env: dict[str, str], port: int) -> Iterator[None]:
        job(Fault("save", (), "save"), folder, env, port)
        harm(folder)
        yield

    return context


def tear(folder: Path) -> None:
    file = next(folder.glob("*/mp_rank_00_model_states.pt"))
    os.truncate(file, file.stat().st_size // 2)


def remove(folder: Path) -> None:
    next(folder.glob("*/*zero_pp_rank_1_mp_rank_00_optim_states.pt")).unlink()


def leave(_folder: Path) -> None:
    """No harm: what loads it is of another kind."""


SGD = {"optimizer": {"type": "SGD", "params": {"lr": 0.1, "momentum": 0.9}}, "zero_allow_untested_optimizer": True}
CPU_ADAM = {
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}},
    "zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}},
}
NVME = {"zero_optimization": {"stage": 3, "offload_optimizer": {"device": "nvme", "nvme_path": "/proc/nowhere"}}}
FAULTS = (
    Fault("none", ("",), launcher=True),
    Fault("killed-rank", ("LG003",), "killed", 1, launcher=True),
    Fault("killed-rank-after-an-error-that-was-caught", ("LG003",), "caught-first", 1, launcher=True),
    Fault("segmentation-fault", ("LG018",), "segfault", 1, launcher=True),
    Fault("memory-limit", ("LG004",), "memory-limit"),
    Fault("port-taken", ("LG066",), prepare=port_taken, launcher=True),
    # torch 2.13 prints nothing while it waits for the lock: the answer is a note on it, and no cause.
    Fault("lock-left-behind", ("LG026", ""), config=CPU_ADAM, prepare=lock_left, seconds=120, launcher=True),
    Fault("no-compiler", ("LG022", "LG024"), config=CPU_ADAM, prepare=no_compiler),
    Fault("no-ninja", ("LG022",), config=CPU_ADAM, prepare=no_ninja, launcher=True),
    Fault("disk-full", ("LG050",), "disk-full", prepare=mounted("size=12k")),
    Fault("read-only-disk", ("LG051",), "read-only", prepare=mounted("size=1m,ro")),
    Fault("torn-checkpoint", ("LG033",), "torn", prepare=saved(tear)),
    Fault("checkpoint-file-gone", ("LG034",), "files-missing", prepare=saved(remove)),
    Fault("checkpoint-of-two-ranks-on-one", ("LG030",), "other-ranks", ranks=1, prepare=saved(leave)),
    Fault("checkpoint-of-another-width", ("LG031",), "other-width", prepare=saved(leave)),
    Fault("checkpoint-of-another-optimizer", ("LG032",), "other-optimizer", config=SGD, prepare=saved(leave)),
    Fault("missing-model", ("LG040", "LG041"), "missing-model"),
    Fault("missing-weights", ("LG041", "LG042"), "missing-weights", prepare=model_folder),
    Fault("bad-data", ("LG044",), "bad-data", prepare=bad_data),
    Fault("rank-stopped", ("LG070",), "stopped-late", 1, seconds=170, launcher=True),
    Fault("rank-asleep", ("LG070",), "sleeps-late", 1, seconds=170, launcher=True),
    Fault("nan", ("LG048",), "nan"),
    Fault("shapes", ("LG082",), "shapes"),
    Fault("vocabulary", ("LG014",), "vocabulary"),
    Fault("collective-mismatch", ("LG071",), "mismatch"),
    Fault("data-ran-out", ("LG045",), "data-ran-out", 1),
    Fault("module-missing", ("LG064",), "module"),
    Fault("local-rank-not-parsed", ("LG065",), "no-local-rank", launcher=True),
    Fault("too-many-open-files", ("LG053",), "open-files", 1),
    Fault("backward-twice", ("LG080",), "backward-twice"),
    Fault("terminated", ("LG069",), "terminated", launcher=True),
    Fault("nobody-knows", ("",), "nobody-knows", 1),
    Fault("batch-sizes", ("BT001",), config={"train_batch_size": 5}),
    Fault("unknown-key", ("SP005",), config={"zero_optimization": {"stage": 2, "overlap_com": True}}),
    Fault("unknown-optimizer", ("OP001",), config={"optimizer": {"type": "DeepSpeedCPUAdam", "params": {"lr": 1e-3}}}),
    Fault("untested-optimizer", ("OP011",), config={"optimizer": SGD["optimizer"]}),
    Fault("text-for-a-block", ("SP006",), config={"activation_checkpointing": "auto"}),
    Fault("text-for-a-number", ("SP006",), config={"gradient_clipping": "auto"}),
    Fault("removed-block", ("SP012",), config={"elasticity": {"enabled": True}}),
    Fault("nvme-nowhere", ("OF026", "LG054", "LG051"), config=NVME),
    Fault("fp16-and-bf16", ("PR001",), config={"fp16": {"enabled": True}, "bf16": {"enabled": True}}),
    Fault("host-not-in-hostfile", ("LG061",), options=("--include", "elsewhere"), launcher=True),
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--logs", type=Path)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    rows: list[Row] = []
    faults = [fault for fault in FAULTS if not args.only or fault.name in args.only]
    for fault in faults:
        text, seconds = provoke(fault)
        found = diagnose([io.BytesIO(text)])
        good = judge(fault, found)
        row = (fault.name, " or ".join(c or "none" for c in fault.causes), found.cause or found.state, found.confidence)
        rows.append((*row, "-" if found.rank is None else str(found.rank), "yes" if good else "no"))
        print("  ".join((*rows[-1], f"{seconds:.0f} s")), flush=True)
        if args.logs:
            args.logs.mkdir(exist_ok=True)
            (args.logs / f"{fault.name}.log").write_bytes(text)
    if args.out and args.only:
        rows = with_earlier(rows, args.out)
    right = sum(row[-1] == "yes" for row in rows)
    wrong_and_certain = sum(row[-1] == "no" and row[3] == "certain" for row in rows)
    told = f"{right} of {len(rows)} right ({right / len(rows):.0%}), {wrong_and_certain} wrong and certain"
    print(told)
    if args.out:
        args.out.write_text(page(rows, told))
    return 0 if right >= 0.95 * len(rows) and not wrong_and_certain else 1


def with_earlier(rows: list[Row], file: Path) -> list[Row]:
    """These rows and, of the other faults, those that a file has from before; in the order of the faults."""
    cells = [line.strip("| ").split(" | ") for line in file.read_text().splitlines() if line.startswith("| ")]
    known = {cell[0]: tuple(cell) for cell in cells if len(cell) == 6}
    known |= {row[0]: row for row in rows}
    return [known[fault.name] for fault in FAULTS if fault.name in known]


def judge(fault: Fault, found: Diagnosis) -> bool:
    """Is it the right cause, and the right rank where one is to blame?"""
    if found.cause not in fault.causes or (fault.name == "none") != (found.state == "completed"):
        return False
    return fault.rank is None or found.rank == fault.rank


def provoke(fault: Fault) -> tuple[bytes, float]:
    """The log of one job, scrubbed, and how long it took."""
    folder = Path(tempfile.mkdtemp(prefix="fault-"))
    port = find_free_port()
    env = dict(os.environ) | {"DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    before = time.monotonic()
    try:
        warm()
        with fault.prepare(folder, env, port) if fault.prepare else contextlib.nullcontext():
            return scrubbed(job(fault, folder, env, port), folder), time.monotonic() - before
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        for left in Path("/dev/shm").glob(f"deepspeed_allreduce_buffer_*{port}*"):  # noqa: S108
            left.unlink(missing_ok=True)


def job(fault: Fault, folder: Path, env: dict[str, str], port: int) -> bytes:
    """What the job prints."""
    arguments = [fault.job, "--folder", str(folder), "--config", json.dumps(fault.config)]
    if not fault.launcher:
        return forked(fault, arguments, env | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)})
    launcher = [sys.executable, "-m", "deepspeed.launcher.runner"]
    command = [*launcher, "--num_gpus", str(fault.ranks), "--master_port", str(port)]
    if fault.options:
        (folder / "hostfile").write_text("localhost slots=2\n")
        command = [*launcher, "--hostfile", str(folder / "hostfile"), *fault.options]
    child = subprocess.Popen(
        [*command, str(JOB), *arguments],
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        cwd=folder,
    )
    try:
        return child.communicate(timeout=fault.seconds)[0]
    except subprocess.TimeoutExpired:
        end(child.pid)
        return child.communicate(timeout=60)[0]


def forked(fault: Fault, arguments: list[str], env: dict[str, str]) -> bytes:
    """The job's ranks, forked from here; when one has failed the others have 40 s to fail for reasons of their own."""
    with tempfile.TemporaryFile() as log:
        pids = {fork_rank(fault, rank, arguments, env, log.fileno()): rank for rank in range(fault.ranks)}
        deadline = time.monotonic() + fault.seconds
        while pids and time.monotonic() < deadline:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid in pids:
                del pids[pid]
                if status:
                    deadline = min(deadline, time.monotonic() + 40)
            time.sleep(0.05)
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        log.seek(0)
        return log.read()


def fork_rank(fault: Fault, rank: int, arguments: list[str], env: dict[str, str], log: int) -> int:
    """A rank with the environment that the launcher gives."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.environ.clear()
        os.environ.update(env, RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(fault.ranks))
        sys.argv = [str(JOB), f"--local_rank={rank}", *arguments]
        runpy.run_path(str(JOB), run_name="__main__")
        code = 0
    except SystemExit as ended:
        code = int(ended.code or 0)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def end(leader: int) -> None:
    """What a scheduler does: the whole session gets SIGKILL."""
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError, IndexError):
            session = int((entry / "stat").read_text().rpartition(")")[2].split()[3])
            if session == leader or _child_of(int(entry.name), leader):
                os.kill(int(entry.name), signal.SIGKILL)


def _child_of(pid: int, ancestor: int) -> bool:
    while pid > 1:
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        if pid == ancestor:
            return True
    return False


def scrubbed(text: bytes, folder: Path) -> bytes:
    """The log without paths, names and addresses of this machine."""
    spec = importlib.util.find_spec("deepspeed")
    site = str(Path(spec.origin or "").parents[1]) if spec else "/nowhere"
    names = ((site, "/opt/site-packages"), (str(folder), "/data/job"), (str(HERE), "/data"), (sys.prefix, "/opt"))
    for path, name in names:
        text = text.replace(path.encode(), name.encode())
    text = re.sub(rb"/[\w./-]*/lib/python3\.\d+/", b"/usr/lib/python3/", text)
    text = text.replace(socket.gethostname().encode(), b"node-0")
    return re.sub(rb"(?:/root|/home/\w+)/", b"/home/user/", text)


def warm() -> None:
    """Import once what every rank needs."""
    os.environ |= {"DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1"}
    import deepspeed
    import transformers

    _ = deepspeed, transformers.AutoModelForCausalLM


def page(rows: list[tuple[str, ...]], told: str) -> str:
    from importlib.metadata import version

    head = ("Fault", "Right", "Answer", "Confidence", "Rank", "Right?")
    lines = [f"# Causes found in the logs of real faults, {time.strftime('%Y-%m-%d')}", "", f"{told}.", ""]
    lines += [
        f"DeepSpeed {version('deepspeed')}, torch {version('torch')}, CPU accelerator, gloo.",
        "",
    ]
    lines += [f"| {' | '.join(row)} |" for row in (head, ("---",) * len(head), *rows)]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
