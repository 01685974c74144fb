# SPDX-License-Identifier: Apache-2.0
"""Exports of the checkpoints that the parity test has trained: every stage, in one process, read by plain transformers."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Literal

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from harness.checkpoints import manifest
from harness.errors import UserError
from harness.file_io import read_umask
from harness.runtime.checkpoint.consolidate import open_weights
from harness.runtime.export import export_checkpoint
from tests.support.training.runtime_helpers import ROOT, rank_environment
from tests.support.training.runtime_settings import CASES

LAST = "checkpoints/step-00000006"


@pytest.mark.parametrize("case", CASES)
def test_exported_weights_equal_the_engines_consolidated_ones(
    case: str, straight: dict[str, Path], tmp_path: Path
) -> None:
    (tmp_path / ".out.tmp").mkdir()
    (tmp_path / ".out.tmp" / "notes").touch()
    folder = export_checkpoint(straight[case] / LAST, tmp_path / "out", dtype="float32")
    assert (tmp_path / ".out.tmp" / "notes").exists()  # the user's own
    written = load_file(folder / "model.safetensors")
    engine = load_file(straight[case] / "weights.safetensors")
    assert written.keys() == engine.keys()
    for name, tensor in engine.items():
        assert torch.equal(written[name], tensor), name


@pytest.mark.parametrize("case", ["zero0", "zero3-cpu-bf16"])
def test_plain_transformers_loads_it_and_its_tokenizer(case: str, straight: dict[str, Path], tmp_path: Path) -> None:
    folder = export_checkpoint(straight[case] / LAST, tmp_path / "out")
    model, info = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    assert model.dtype == (torch.bfloat16 if CASES[case][2] else torch.float32)
    assert model.lm_head.weight is model.model.embed_tokens.weight  # tied, and stored once
    assert model.config.use_cache
    ids = AutoTokenizer.from_pretrained(folder)("The quick \u00e9", return_tensors="pt").input_ids
    loss = model(input_ids=ids, labels=ids).loss
    assert torch.isfinite(loss)


def test_large_models_are_written_in_shards_with_an_index(straight: dict[str, Path], tmp_path: Path) -> None:
    folder = export_checkpoint(straight["zero3"] / LAST, tmp_path / "out", dtype="bfloat16", shard_bytes=20_000)
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    files = sorted(set(index["weight_map"].values()))
    assert len(files) > 2
    assert files[0] == f"model-00001-of-{len(files):05d}.safetensors"
    modes = {path.name: path.stat().st_mode & 0o777 for path in folder.iterdir()}
    assert set(modes.values()) == {0o666 & ~read_umask()}, modes
    for file in files:
        with safe_open(folder / file, "pt") as opened:
            assert set(opened.keys()) == {n for n, f in index["weight_map"].items() if f == file}
    _, info = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    assert not info["missing_keys"]


def damaged(straight: dict[str, Path], tmp_path: Path) -> Path:
    checkpoint = tmp_path / "step"
    shutil.copytree(straight["zero3"] / LAST, checkpoint)
    return checkpoint


def test_a_checkpoint_with_a_missing_or_short_file_is_refused_by_name(
    straight: dict[str, Path], tmp_path: Path
) -> None:
    checkpoint = damaged(straight, tmp_path)
    shard = next(checkpoint.rglob("*rank_1*optim_states.pt"))
    shard.write_bytes(shard.read_bytes()[:-1])
    with pytest.raises(UserError, match=rf"`{shard.parent.name}/{shard.name}` has \d+ bytes, should have \d+"):
        export_checkpoint(checkpoint, tmp_path / "out")
    shard.unlink()
    with pytest.raises(UserError, match="is missing"):
        export_checkpoint(checkpoint, tmp_path / "out")
    (checkpoint / "manifest.json").unlink()
    with pytest.raises(UserError, match="not a complete checkpoint"):
        export_checkpoint(checkpoint, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_shard_that_would_run_code_is_not_loaded(straight: dict[str, Path], tmp_path: Path) -> None:
    checkpoint, marker = damaged(straight, tmp_path), tmp_path / "marker"
    shard = next(checkpoint.rglob("*rank_1*optim_states.pt"))
    torch.save({"optimizer_state_dict": Evil(marker)}, shard)
    with pytest.raises(UserError, match="cannot be read as a shard"):
        open_weights(shard.parent, 3)
    assert not marker.exists()


class Evil:
    """Creates a file when it is unpickled."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[object, tuple[Path]]:
        return Path.touch, (self.marker,)


CODE = """\
from pathlib import Path
Path({marker!r}).touch()
import torch
from transformers import PretrainedConfig, PreTrainedModel

class Own(PretrainedConfig):
    model_type = "own"

class Other(PreTrainedModel):
    config_class = Own

    def __init__(self, config):
        super().__init__(config)
        self.head = torch.nn.Linear(3, 3)
        self.post_init()
"""


def trusting(checkpoint: Path, files: dict[str, str]) -> Path:
    """With these files, and a manifest that is right in all but that it allows itself to run code."""
    body = json.loads((checkpoint / "manifest.json").read_text())
    body["spec"]["model"]["trust_remote_code"] = True
    for name, text in files.items():
        (checkpoint / name).write_text(text)
        digest = hashlib.sha256(text.encode()).hexdigest()
        body["files"][name] = {"bytes": len(text.encode()), "sha256": digest, "rank": 0, "node": 0}
    manifest.write_manifest(checkpoint, {k: v for k, v in body.items() if k not in ("checksum", "format_version")})
    return checkpoint


@pytest.mark.parametrize("lora", ["merge", "adapter"])
def test_code_of_a_checkpoint_is_run_when_the_user_allows_it_alone(
    straight: dict[str, Path], tmp_path: Path, lora: Literal["merge", "adapter"]
) -> None:
    checkpoint, marker = damaged(straight, tmp_path), tmp_path / "marker"
    config = json.loads((checkpoint / "huggingface" / "config.json").read_text()) | {"model_type": "own"}
    config["auto_map"] = {"AutoConfig": "own.Own", "AutoModelForCausalLM": "own.Other"}
    files = {
        "huggingface/own.py": CODE.format(marker=str(marker)),
        "huggingface/config.json": json.dumps(config),
    }
    trusting(checkpoint, files)
    with pytest.raises(UserError, match=r"has Python code, and running it was not allowed: own\.py, the") as no:
        export_checkpoint(checkpoint, tmp_path / "out", lora=lora, verify=True)
    assert (no.value.findings[0].gate, no.value.code) == ("CK128", 1)
    assert not marker.exists()
    if lora == "merge":
        with pytest.raises(UserError, match="does not fit the class `Other`") as unfit:
            export_checkpoint(checkpoint, tmp_path / "out", allow_code=True)
        assert unfit.value.findings[0].gate == "CK125"
        assert marker.exists()
    assert not (tmp_path / "out").exists()


def test_a_checkpoint_that_trusts_and_has_no_code_needs_no_leave(straight: dict[str, Path], tmp_path: Path) -> None:
    checkpoint, private = trusting(damaged(straight, tmp_path), {}), tmp_path / "private"
    private.write_text("{}")
    link = checkpoint / "huggingface" / "chat_template.json"
    link.symlink_to(private)  # and no link brings a file of this machine
    with pytest.raises(UserError, match="is a link") as refused:
        export_checkpoint(checkpoint, tmp_path / "out")
    assert refused.value.findings[0].gate == "CK112"
    link.unlink()
    link.write_text("nor does a file that the manifest does not list")
    folder = export_checkpoint(checkpoint, tmp_path / "out")
    assert (folder / "model.safetensors").is_file()
    assert not (folder / link.name).exists()


def test_an_existing_folder_is_not_overwritten(straight: dict[str, Path], tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("keep")
    with pytest.raises(UserError, match="exists"):
        export_checkpoint(straight["zero2"] / LAST, tmp_path)
    assert (tmp_path / "mine.txt").read_text() == "keep"


def test_the_script_exports_and_samples_from_the_export(straight: dict[str, Path], tmp_path: Path) -> None:
    arguments = ["--checkpoint", str(straight["zero2-cpu"] / LAST), "--out", str(tmp_path / "out")]
    more = ["--sample-prompt", "The ", "--sample-tokens", "12"]
    command = [sys.executable, str(ROOT / "launch" / "export.py"), *arguments, *more]
    result = subprocess.run(command, env=rank_environment(), capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    text = (tmp_path / "sample.txt").read_text()
    assert "Loading weights" not in result.stderr, "a progress bar in a log"
    assert text.startswith("The ")
    assert len(text.encode()) > len("The \n")
    assert text in result.stdout
    again = subprocess.run(command, env=rank_environment(), capture_output=True, text=True, check=False)
    assert again.returncode == 1
    assert again.stderr.splitlines()[-2].startswith("error[CK106]: ")
    assert "Traceback" not in again.stderr
