# SPDX-License-Identifier: Apache-2.0
"""Fetches `config.json` of a model alone from the Hugging Face Hub, into its own cache: no weights, no code.

The cache has the layout of `huggingface_hub` (HF_HOME, HF_HUB_CACHE): a later plan needs no network. HF_ENDPOINT names
another server. A token goes into a header, and to no server but that one.
"""

from __future__ import annotations

import http.client
import json
import os
import re
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import quote, urlsplit

from harness import input_limits
from harness.file_io import parse_json, read_regular, write_atomically
from harness.hostinfo.hub_access import ENDPOINT, hub_cache, is_hub_offline, is_hub_unreachable

_SECONDS = 15.0
"""Of the whole request, and of each wait for bytes."""
_REPOSITORY = re.compile(r"[\w-][\w.-]{0,95}/[\w-][\w.-]{0,95}", re.ASCII)
_COMMIT = re.compile(r"[0-9a-f]{40}")
_MAX_TOKEN_BYTES = 4096
_REASONS = {
    401: "it does not exist, or is private or gated: set HF_TOKEN, or log in with `hf auth login`",
    403: "your token may not read it: ask for access on its page",
    404: "there is no such model, or it has no `config.json`",
    429: "the Hub limits requests: wait some minutes, or set HF_TOKEN",
}


class FetchError(Exception):
    """The reason why there is no configuration, which does not name the model."""


def can_fetch(name: str) -> bool:
    """Is it a name of a repository with its owner?"""
    return _REPOSITORY.fullmatch(name) is not None and ".." not in name


def fetch_config(name: str, environ: Mapping[str, str] | None = None) -> Path:
    """`config.json` of the repository `name` (`owner/name`), from the Hub into the cache. Raises FetchError."""
    env = os.environ if environ is None else environ
    if is_hub_offline(env):
        raise FetchError("HF_HUB_OFFLINE is set")
    if is_hub_unreachable(env):
        raise FetchError("the Hub cannot be reached")
    content, commit = _request(name, env)
    try:
        config = parse_json(content)
    except (ValueError, RecursionError):
        config = None
    if not isinstance(config, dict) or not isinstance(config.get("model_type"), str):
        raise FetchError("what the server sent is no configuration with a `model_type`")
    if not _COMMIT.fullmatch(commit):
        raise FetchError("the server did not say its commit (`X-Repo-Commit`)")
    return _store(name, commit, json.dumps(config, indent=2) + "\n", env)


def _request(name: str, env: Mapping[str, str]) -> tuple[bytes, str]:
    """What the server sent, and the commit that it is of. Raises FetchError."""
    endpoint = (env.get("HF_ENDPOINT") or ENDPOINT).rstrip("/")
    if urlsplit(endpoint).scheme not in ("http", "https"):
        raise FetchError("HF_ENDPOINT is no address of a server")
    token = _find_token(env)
    redirects = _Redirects(urlsplit(endpoint)[:2], token)
    request = urllib.request.Request(  # noqa: S310
        f"{endpoint}/{quote(name)}/resolve/main/config.json", headers={"User-Agent": "deepspeed-harness"}
    )
    if token:
        request.add_unredirected_header("Authorization", f"Bearer {token}")
    try:
        with urllib.request.build_opener(redirects).open(request, timeout=_SECONDS) as answer:
            return _read_in_time(answer), redirects.commit or answer.headers.get("X-Repo-Commit") or ""
    except urllib.error.HTTPError as error:
        wait = error.headers.get("Retry-After") or ""
        reason = _REASONS.get(error.code, "the server refuses it")
        raise FetchError(f"{reason} (HTTP {error.code}{f', retry after {wait} s' * wait.isdigit()})") from None
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise FetchError(f"the request failed: {getattr(error, 'reason', None) or error}") from None


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Takes the token along on the same server alone, and keeps the commit that a redirect names."""

    def __init__(self, server: tuple[str, str], token: str) -> None:
        self._server, self._token, self.commit = server, token, ""

    def redirect_request(self, req, fp, code, msg, headers, newurl):  # type: ignore[no-untyped-def]
        """The next request. Raises HTTPError for a scheme other than that of the Web."""
        self.commit = self.commit or headers.get("X-Repo-Commit") or ""
        following = super().redirect_request(req, fp, code, msg, headers, newurl)
        if following is not None and self._token and urlsplit(newurl)[:2] == self._server:
            following.add_unredirected_header("Authorization", f"Bearer {self._token}")
        return following


def _read_in_time(answer: http.client.HTTPResponse) -> bytes:
    """Raises ValueError for a file that is too large, TimeoutError for one that does not end."""
    end, content = time.monotonic() + _SECONDS, b""
    while chunk := answer.read1(1 << 16):
        content += chunk
        if len(content) > input_limits.MODEL_CONFIG:
            raise ValueError(f"it is larger than {input_limits.MODEL_CONFIG:,} bytes")
        if time.monotonic() > end:
            raise TimeoutError(f"it did not end in {_SECONDS:.0f} s")
    return content


def _store(name: str, commit: str, text: str, env: Mapping[str, str]) -> Path:
    """The file in the cache. Raises FetchError where that cannot be written."""
    repository = hub_cache(env) / f"models--{name.replace('/', '--')}"
    file = repository / "snapshots" / commit / "config.json"
    try:
        for path, content in ((file, text), (repository / "refs" / "main", commit)):
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, content)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise FetchError(f"`{repository}` cannot be written: {reason}") from None
    return file


def _find_token(env: Mapping[str, str]) -> str:
    """HF_TOKEN, else the one of `hf auth login`; none where HF_HUB_DISABLE_IMPLICIT_TOKEN forbids that."""
    token = env.get("HF_TOKEN", "")
    if not token and env.get("HF_HUB_DISABLE_IMPLICIT_TOKEN", "").upper() not in ("1", "ON", "YES", "TRUE"):
        file = env.get("HF_TOKEN_PATH") or f"{env.get('HF_HOME', '~/.cache/huggingface')}/token"
        try:
            token = read_regular(Path(file).expanduser(), _MAX_TOKEN_BYTES).decode("ascii")
        except (OSError, ValueError, RuntimeError):
            token = ""
    return token.strip() if token.strip().isprintable() else ""
