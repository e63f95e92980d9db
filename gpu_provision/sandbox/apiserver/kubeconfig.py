"""The file with which clients reach the sandbox."""

from __future__ import annotations

import base64
import os
from pathlib import Path

import yaml


def write(  # noqa: PLR0913 - the parts of the file
    path: Path, *, url: str, authority: Path, token: str, context: str, user: str
) -> None:
    """Write a kubeconfig that only its owner may read, in one step, so that no reader sees half of it."""
    data = base64.b64encode(authority.read_bytes()).decode()
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": context, "cluster": {"server": url, "certificate-authority-data": data}}],
        "users": [{"name": user, "user": {"token": token}}],
        "contexts": [{"name": context, "context": {"cluster": context, "user": user}}],
        "current-context": context,
    }
    draft = path.with_name(f".{path.name}.new")
    draft.unlink(missing_ok=True)
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
        yaml.safe_dump(config, file, sort_keys=False)
    draft.replace(path)
