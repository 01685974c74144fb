# SPDX-License-Identifier: Apache-2.0
"""Attacks by a model's configuration that comes with a run, a checkpoint or a spec, and by data files."""

from __future__ import annotations

import json
import struct
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from harness.errors import UserError
from harness.hostinfo import model_probe
from harness.run_records.run_files import drop_lost_steps
from harness.spec.run_spec import ModelSpec
from tests.security.attempts import Attempt
from tests.security.command_runner import SECONDS, run_command
from tests.security.started_programs import watch_command
from tests.support.sample_run import TINY, head, step, tiny, write_run

KERNELS = "kernels-community/evil"
FAMILY = {
    "model_type": "gpt_neo", "num_layers": 2, "num_heads": 4, "attention_types": [[["global", "local"], 1]],
}  # fmt: skip
"""A family without a formula of its own, which `plan` lets `transformers` build."""


def run_of(folder: Path, config: dict[str, Any]) -> Path:
    run = tiny({"model": {"config": config}})
    write_run(folder, run, [head(run), *(step(number) for number in range(1, 10))])
    (folder / "plan.json").unlink()
    return folder


@Attempt(
    "W30",
    "A run directory without `plan.json` whose model is of a family that is not built in, for `report`",
    "`report` started Python twice, which built the model that the run describes",
    "nothing is started: the model is estimated from its sizes",
)
def test_report_starts_nothing(tmp_path: Path) -> None:
    run_of(tmp_path / "run", FAMILY)
    seen = watch_command(["report", "run"], tmp_path, tmp_path)
    assert seen.code == 0, seen.output
    assert seen.starts == seen.connects == []


@Attempt(
    "K40",
    "`attn_implementation: org/kernels` in the configuration that `plan` and a run's calibration build",
    "with `kernels` installed, `transformers` fetched that repository and imported it",
    "the names of kernels are left out, and the child is offline",
)
def test_kernels_in_a_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[dict[str, Any]] = []

    def start(*_: object, **options: Any) -> SimpleNamespace:
        calls.append(options)
        return SimpleNamespace(returncode=1, stdout="")

    monkeypatch.setattr(model_probe.subprocess, "run", start)
    config = {**FAMILY, "attn_implementation": KERNELS, "text_config": {"_attn_implementation": {"": KERNELS}}}
    assert "could not build" in str(model_probe.probe_model(config))
    (call,) = calls
    assert json.loads(call["input"]) == {**FAMILY, "text_config": {}}
    assert call["env"]["HF_HUB_OFFLINE"] == "1"
    assert call["env"]["USE_HUB_KERNELS"] == "0"


@pytest.mark.parametrize("name", [KERNELS, f"paged|{KERNELS}", {"": KERNELS}])
@Attempt(
    "K41",
    "`attn_implementation: org/kernels` in `model.config`, in a model's `config.json` or in a checkpoint's",
    "`launch`, `rehearse` and `export` handed it to `transformers`, which imports it where `kernels` is installed",
    "MD102, and CK125 of an export",
)
def test_kernels_in_a_configuration(tmp_path: Path, name: object) -> None:
    from harness.runtime.export.export_checks import check_architecture
    from harness.runtime.models.model_config import load_config
    from harness.runtime.tokenizer import byte_tokenizer

    config = {**TINY, "attn_implementation": name}
    (tmp_path / "config.json").write_text(json.dumps(config))
    for spec in (ModelSpec(config=config), ModelSpec(name_or_path=str(tmp_path))):
        with pytest.raises(UserError) as refused:
            load_config(spec, byte_tokenizer())
        assert refused.value.findings[0].gate == "MD102"
        assert "never run" in str(refused.value.findings[0].notes)
    with pytest.raises(UserError) as refused:
        check_architecture(tmp_path, SimpleNamespace(shapes={}), trust_remote_code=False)  # type: ignore[arg-type]
    assert refused.value.findings[0].gate == "CK125"
    assert "never run" in refused.value.findings[0].message
    load_config(ModelSpec(config={**TINY, "attn_implementation": "sdpa"}), byte_tokenizer())


@Attempt(
    "I90",
    "A run whose model has 10^60 columns and 10^300 tokens",
    "`report` and `calibrate` ended in a crash log: OverflowError",
    "the model's size is not known",
)
def test_huge_sizes(tmp_path: Path) -> None:
    run_of(tmp_path / "run", {"hidden_size": 10**60, "vocab_size": 10**300})
    assert run_command("report", tmp_path / "run").code == 0
    assert (
        "cannot be used for a calibration"
        in run_command("plan", "--calibrate", tmp_path / "run").assert_unharmed().text
    )


@pytest.mark.parametrize(
    "offsets",
    [(0, 2**30, 5, -(2**30)), (0, 2**31 - 1, 2**31 - 1, 2**31 - 1), (-(2**31), 0, 5, 10), (0, 40, 40, 40)],
)
@Attempt(
    "I91",
    "Texts of an Arrow file begin and end outside of it",
    "memory of the process was read as text, or the process died of SIGBUS, or SystemError",
    "MD116 before a text is read",
)
def test_offsets_of_arrow(tmp_path: Path, offsets: tuple[int, ...]) -> None:
    pa = pytest.importorskip("pyarrow")
    from harness.runtime.dataset.file_readers import columnar_reader

    batch = pa.record_batch([pa.array(["hello", "abcde", "fghij"])], names=["text"])
    file = tmp_path / "x.arrow"
    with pa.OSFile(str(file), "wb") as stream, pa.ipc.new_file(stream, batch.schema) as writer:
        writer.write(batch)
    read = columnar_reader(file, "data.train")
    assert [row.value for row in read(lambda _: None)] == [{"text": t} for t in ("hello", "abcde", "fghij")]
    content = file.read_bytes()
    honest = struct.pack("<4i", 0, 5, 10, 15)
    assert content.count(honest) == 1
    file.write_bytes(content.replace(honest, struct.pack("<4i", *offsets)))
    with pytest.raises(UserError) as refused:
        list(read(lambda _: None))
    assert refused.value.findings[0].gate == "MD116"


@Attempt(
    "I92",
    "`metrics.jsonl` has 20,000 steps and as many restarts, each of which takes one step back",
    "`report` had no end within 40 s, and `runs` took 4 s of 256 KiB: each restart read all steps again",
    "each line is looked at once",
)
def test_many_restarts() -> None:
    count = 20_000
    steps = tuple({"type": "step", "step": number} for number in range(1, count + 1))
    restarts = tuple({"type": "restart", "step": number} for number in range(count - 1, -1, -1))
    started = time.process_time()
    lines, lost = drop_lost_steps((*steps, *restarts))
    assert time.process_time() - started < SECONDS
    assert lines == restarts
    assert lost == count
