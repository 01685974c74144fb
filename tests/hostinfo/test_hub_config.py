# SPDX-License-Identifier: Apache-2.0
"""`harness plan --model ORG/NAME` against a local server in the place of the Hub."""

from __future__ import annotations

import json
import shlex
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from harness.cli.app import main
from harness.facts.model_lookup import find_model
from harness.hostinfo import hub_config
from harness.hostinfo.hub_config import FetchError, can_fetch, fetch_config
from harness.hostinfo.stored_models import is_repository_cached

COMMIT = "0123456789abcdef0123456789abcdef01234567"
CONFIG = {"model_type": "llama", "hidden_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4}
CONFIG |= {"intermediate_size": 512, "vocab_size": 1000}
STATUS = {"private": 401, "gated": 403, "gone": 404, "busy": 429, "broken": 500}


class Hub(BaseHTTPRequestHandler):
    """Answers for `org/STATUS` as the Hub does; `org/moved` redirects on the server, `org/away` to another name of it."""

    seen: list[tuple[str, str | None]]

    def do_GET(self) -> None:
        Hub.seen.append((self.path, self.headers.get("Authorization")))
        name = self.path.split("/")[2]
        if name in STATUS:
            self.send_response(STATUS[name])
            self.send_header("Retry-After", "7")
            self.end_headers()
            return
        if name in ("moved", "away"):
            host = "localhost" if name == "away" else "127.0.0.1"
            self.send_response(307)
            self.send_header("Location", f"http://{host}:{self.server.server_port}/org/there/config.json")  # type: ignore[attr-defined]
            self.send_header("X-Repo-Commit", COMMIT)
            self.end_headers()
            return
        self.send_response(200)
        if name != "nameless":
            self.send_header("X-Repo-Commit", COMMIT)
        self.end_headers()
        body = json.dumps(CONFIG if name != "list" else [])
        self.wfile.write(body.encode()[: 5 if name == "cut" else None])

    def log_message(self, *_: object) -> None:
        """Nothing."""


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """The folder of HF_HOME; HF_ENDPOINT is a server of this process."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    Hub.seen = []
    for name in ("HF_HUB_OFFLINE", "HF_HUB_CACHE", "HF_TOKEN_PATH", "HTTP_PROXY", "http_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    monkeypatch.setenv("no_proxy", "*")
    yield tmp_path / "home"
    server.shutdown()
    server.server_close()


def test_the_configuration_alone_is_fetched_and_kept(hub: Path) -> None:
    file = fetch_config("org/model")
    assert file == hub / "hub/models--org--model/snapshots" / COMMIT / "config.json"
    assert json.loads(file.read_text()) == CONFIG
    assert Hub.seen == [("/org/model/resolve/main/config.json", "Bearer hf_secret")]
    lookup = find_model("org/model")
    assert lookup.facts is not None
    assert lookup.facts.num_layers == 2
    assert not is_repository_cached("org/model", None), "its weights are not here"


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("private", "set HF_TOKEN"),
        ("gated", "ask for access"),
        ("gone", "there is no such model"),
        ("busy", "limits requests: wait some minutes, or set HF_TOKEN (HTTP 429, retry after 7 s)"),
        ("broken", "(HTTP 500"),
        ("list", "no configuration with a `model_type`"),
        ("cut", "no configuration with a `model_type`"),
        ("nameless", "did not say its commit"),
    ],
)
def test_what_the_server_refuses_is_said_and_not_kept(hub: Path, name: str, reason: str) -> None:
    with pytest.raises(FetchError) as refused:
        fetch_config(f"org/{name}")
    assert reason in str(refused.value)
    assert "hf_secret" not in str(refused.value)
    assert not hub.exists()


def test_a_token_stays_on_its_server(hub: Path) -> None:
    fetch_config("org/moved")
    assert Hub.seen[-1] == ("/org/there/config.json", "Bearer hf_secret")
    fetch_config("org/away")
    assert Hub.seen[-1] == ("/org/there/config.json", None)
    assert not [path for path, _ in Hub.seen if "hf_secret" in path]


def test_a_server_that_is_silent_is_not_waited_for(hub: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    released = threading.Event()
    monkeypatch.setattr(hub_config, "_SECONDS", 0.2)
    monkeypatch.setattr(Hub, "do_GET", lambda _: released.wait(10))
    with pytest.raises(FetchError, match="timed out"):
        fetch_config("org/model")
    released.set()
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(FetchError, match="HF_HUB_OFFLINE"):
        fetch_config("org/model")


def test_only_a_repository_with_its_owner_is_looked_up() -> None:
    assert can_fetch("Qwen/Qwen3.5-9B")
    for name in ("gpt2", "../x/y", "a/b/c", "org/..", "org/na me", "./model", "org/name?x=1"):
        assert not can_fetch(name), name


def test_a_plan_says_what_it_fetched(
    hub: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def ask(words: str) -> tuple[object, str]:
        monkeypatch.setattr(sys, "argv", ["harness", "plan", *shlex.split(words)])
        with pytest.raises(SystemExit) as ended:
            main()
        return ended.value.code or 0, "".join(capsys.readouterr())

    rest = "--gpus 8 --gpu H100-80GB --zero-stage 1"
    code, text = ask(f"--model org/model {rest} --offline")
    assert (code, Hub.seen) == (2, [])
    assert "not in the local Hugging Face cache" in text
    code, text = ask(f"--model org/model {rest}")
    assert code == 0, text
    assert "fetched `config.json` of `org/model` and nothing else" in text
    assert "hf_secret" not in text
    code, text = ask(f"--model org/model {rest} --offline")
    assert (code, len(Hub.seen)) == (0, 1)
    assert "fetched" not in text
    code, text = ask(f"--model org/gone {rest}")
    assert code == 2
    assert "could not be fetched: there is no such model" in text
    code, text = ask("demo.yaml --offline")
    assert code == 2
    assert "`--offline`" in text
