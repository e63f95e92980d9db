"""What a Containerfile says of the containers of its image, which tests then make without a registry to build on."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any


def config_of(file: Path) -> dict[str, Any]:
    """Return the image configuration that the last stage of a Containerfile describes."""
    config: dict[str, Any] = {"Env": []}
    for line in file.read_text().splitlines():
        instruction, _, rest = line.partition(" ")
        match instruction:
            case "FROM":
                config = {"Env": []}
            case "ENV":
                config["Env"] += shlex.split(rest)
            case "USER":
                config["User"] = rest
            case "ENTRYPOINT" | "CMD":
                config[instruction.title()] = json.loads(rest)
    return config
