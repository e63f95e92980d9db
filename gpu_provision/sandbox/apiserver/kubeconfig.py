"""The file with which clients reach the sandbox."""

from __future__ import annotations

import base64
from pathlib import Path

import yaml

from gpu_provision import files


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
    files.put(path, yaml.safe_dump(config, sort_keys=False), private=True)
