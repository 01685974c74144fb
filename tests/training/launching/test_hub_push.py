# SPDX-License-Identifier: Apache-2.0
"""`harness export --push`, by the real `huggingface_hub` against a server of this machine that speaks the Hub's protocol."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.hub_server import TOKEN, HubServer, hub_server
from tests.support.sample_run import evaluation, head, on_gpus, step, write_run

PROGRAM = """
import sys
from pathlib import Path
from harness.cli.error_handler import exit_refused
from harness.cli.export import _push
from harness.errors import UserError
from harness.launching.programs.hub_push import check_repository, open_repository
from harness.launching.programs.model_export import ExportPlan

repo, out, checkpoint = sys.argv[1:]
try:
    check_repository(repo)
    open_repository(repo, public=False)
except UserError as refused:
    exit_refused(refused, "Nothing was written")
_push(ExportPlan(Path(checkpoint), Path(out), []), repo)
"""
"""What the command does around an export, which other tests run."""


@pytest.fixture
def hub() -> Iterator[HubServer]:
    with hub_server() as server:
        yield server


@pytest.fixture
def exported(tmp_path: Path) -> Path:
    """A run and the folder of its export."""
    run = on_gpus({"data": {"train": "/home/me/secret-project/chats.jsonl"}})
    machine = {"cpu": "x", "deepspeed": "0.19.8", "torch": "2.13.0", "harness": "0.1.0"}
    lines = [head(run, machine=machine), *(step(n) for n in range(1, 41)), evaluation(20), evaluation(40)]
    write_run(tmp_path / "runs" / "large-1", run, lines)
    out = tmp_path / "out"
    out.mkdir()
    (out / "config.json").write_text(json.dumps({"model_type": "llama"}))
    (out / "model.safetensors").write_bytes(b"weights" * 1000)
    return out


def push(out: Path, url: str, repo: str = "me/model", token: str | None = TOKEN) -> subprocess.CompletedProcess[str]:
    env = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    env |= {"HF_ENDPOINT": url, "HF_HOME": str(out.parent / "hf"), "NO_COLOR": "1", "HF_HUB_DISABLE_XET": "1"}
    env |= {"HF_TOKEN": token} if token else {}
    checkpoint = out.parent / "runs" / "large-1" / "checkpoints" / "step-00000040"
    argv = [sys.executable, "-c", PROGRAM, repo, str(out), str(checkpoint)]
    return subprocess.run(argv, env=env, text=True, capture_output=True, timeout=120, check=False)


def test_the_folder_and_its_card_are_one_commit(hub, exported):
    done = push(exported, hub.url)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == f"{hub.url}/me/model/commit/{'0' * 40}"
    files = hub.repositories["me/model"]
    assert set(files) == {"README.md", "config.json", "model.safetensors"}
    assert files["model.safetensors"] == (exported / "model.safetensors").read_bytes()
    assert (hub.messages, hub.private["me/model"]) == (["large-1, step-00000040"], True)
    card = files["README.md"].decode()
    assert re.search(r"\| `model.safetensors` \| `[0-9a-f]{64}` \|", card)
    assert "* deepspeed 0.19.8" in card
    assert "`chats.jsonl`" in card
    assert re.search(r"^\| `optimizer.learning_rate` \| `[\d.e-]+` \|$", card, re.MULTILINE)
    assert "secret-project" not in card, "the path of the data says who trained where"
    assert re.search(r"^\| 40 \| \d+\.\d{4} \| \d+\.\d{4} \|$", card, re.MULTILINE), "the curve"
    again = push(exported, hub.url)
    assert again.returncode == 0, "a second push is a second commit\n" + again.stderr


def test_the_token_is_in_no_file(hub, exported):
    push(exported, hub.url)
    push(exported, hub.url, repo="others/model")
    files = [path for path in exported.parent.rglob("*") if path.is_file()]
    assert len(files) > 5
    assert not [path for path in files if TOKEN.encode() in path.read_bytes()]
    assert not [name for files in hub.repositories.values() for name, body in files.items() if TOKEN.encode() in body]


@pytest.mark.parametrize(
    ("repo", "token", "said"),
    [
        ("me/model", "hf_" + "0" * 32, "the Hub does not know the token"),
        ("me/model", None, "there is no token of the Hub"),
        ("others/model", TOKEN, "the token may not write to `others/model`"),
        ("others/new", TOKEN, "the token may not write to `others/new`"),
        ("model", TOKEN, "`--push model` is no repository"),
    ],
)
def test_what_cannot_be_written_to_is_one_finding_before_the_export(hub, exported, repo, token, said):
    done = push(exported, hub.url, repo, token)
    assert done.returncode == (2 if repo == "model" else 4), done.stderr
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stderr.count("error[") == 1
    assert not (exported / "README.md").exists()


def test_no_network_is_one_finding(exported):
    done = push(exported, "http://127.0.0.1:9")
    assert done.returncode == 4
    assert "the Hub cannot be reached" in done.stderr
    assert done.stderr.count("error[") == 1


def test_a_failed_upload_leaves_the_folder_and_says_how_to_repeat_it(hub, exported):
    hub.commit_status = 400
    done = push(exported, hub.url)
    assert done.returncode == 8
    assert "the Hub answered with status 400" in done.stderr
    assert f"hf upload me/model {exported}" in done.stderr
    assert (exported / "README.md").is_file()
