# SPDX-License-Identifier: Apache-2.0
"""The Hugging Face Hub: its cache here, and does it answer? Where it does not, its client retries for half a minute."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from pathlib import Path
from threading import Thread
from urllib.parse import urlsplit

ENDPOINT = "https://huggingface.co"
_PROXIES = ("HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy")
_TIMEOUT_SECONDS = 3.0


def is_hub_unreachable(environ: Mapping[str, str] | None = None) -> bool:
    """Was a connection to the Hub refused, or not made in three seconds? False where that is not asked: behind a proxy,
    and where the user has chosen with HF_HUB_OFFLINE.
    """
    env = os.environ if environ is None else environ
    if is_hub_offline(env) or any(env.get(name) for name in _PROXIES):
        return False
    answers: list[bool] = []
    thread = Thread(target=lambda: answers.append(_connects(env.get("HF_ENDPOINT") or ENDPOINT)), daemon=True)
    thread.start()  # the look-up of a name has no timeout of its own
    thread.join(_TIMEOUT_SECONDS)
    return answers != [True]


def is_hub_offline(environ: Mapping[str, str] | None = None) -> bool:
    """Has the user forbidden the Hub with HF_HUB_OFFLINE, as huggingface_hub reads it?"""
    env = os.environ if environ is None else environ
    return env.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE")


def hub_cache(env: Mapping[str, str]) -> Path:
    """The cache of `huggingface_hub`."""
    home = env.get("HF_HOME", "~/.cache/huggingface")
    return Path(env.get("HF_HUB_CACHE", f"{home}/hub")).expanduser()


def _connects(endpoint: str) -> bool:
    try:
        url = urlsplit(endpoint)
        with socket.create_connection((url.hostname or "", url.port or 443), timeout=_TIMEOUT_SECONDS):
            return True
    except (OSError, ValueError):
        return False
