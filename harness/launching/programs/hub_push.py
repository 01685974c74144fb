# SPDX-License-Identifier: Apache-2.0
"""An export as a model repository of the Hugging Face Hub, for `harness export --push`.

The token is that of `huggingface_hub`: `HF_TOKEN` in the environment, or the file of `hf auth login`. It is written
nowhere.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from harness.errors import ExitCode, UserError, user_error

_REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}", re.ASCII)


def check_repository(repo: str) -> None:
    """Refuse what is no `OWNER/NAME`. Raises UserError (EN095)."""
    if not _REPOSITORY.fullmatch(repo):
        raise _push_error(f"`--push {repo[:100]}` is no repository", "name it `OWNER/NAME`", ExitCode.USAGE)


def open_repository(repo: str, *, public: bool) -> None:
    """Before an export: make the repository, private unless `public`, or find it writable. Raises UserError (EN095)."""
    api = _api()
    if api.token is None:
        raise _push_error("there is no token of the Hub", "`hf auth login`, or `HF_TOKEN` with a token that may write")
    try:
        api.create_repo(repo, private=not public, exist_ok=True)
        api.auth_check(repo, write=True)
    except Exception as error:  # what its HTTP client and its checks raise
        raise _explain(error, repo, ExitCode.PREFLIGHT) from None


def push_folder(folder: Path, repo: str, message: str) -> str:
    """Upload the folder as one commit; returns the address of the commit. Raises UserError (EN095, exit code 8)."""
    try:
        return str(_api().upload_folder(repo_id=repo, folder_path=folder, commit_message=message).commit_url)
    except Exception as error:
        refused = _explain(error, repo, ExitCode.NOT_UPLOADED)
        note = f"`{folder}` is whole: `hf upload {repo} {folder}` uploads it"
        raise UserError([f._replace(notes=(*f.notes, note)) for f in refused.findings], refused.code) from None


def _api() -> Any:
    try:
        from huggingface_hub import HfApi, constants, get_token
    except ImportError:
        fix = "`pip install '.[train]'` in a clone of the harness"
        raise _push_error("`--push` needs the package `huggingface_hub`", fix) from None
    if constants.HF_HUB_OFFLINE:
        raise _push_error("HF_HUB_OFFLINE is set, so nothing can be pushed", "`unset HF_HUB_OFFLINE`")
    return HfApi(token=get_token())


def _explain(error: Exception, repo: str, code: ExitCode) -> UserError:
    """One finding for what the Hub or the network said."""
    status = getattr(getattr(error, "response", None), "status_code", None)
    if status == 401:
        return _push_error("the Hub does not know the token", "`hf auth login` with a token that may write", code)
    if status in (403, 404):
        fix = "name a repository of yours, or of an organization in which your token may write"
        return _push_error(f"the token may not write to `{repo}`", fix, code)
    if status is not None:
        fix = "try again later: https://status.huggingface.co"
        return _push_error(f"the Hub answered with status {status}", fix, code)
    reason = " ".join(str(error).split())[:120].rstrip(".") or type(error).__name__
    return _push_error(f"the Hub cannot be reached: {reason}", "look at the network, a proxy, or `HF_ENDPOINT`", code)


def _push_error(message: str, fix: str, code: ExitCode = ExitCode.PREFLIGHT) -> UserError:
    return user_error("EN095", message, fix=fix, code=code)
