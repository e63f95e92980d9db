"""What importing the inventory costs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SANDBOX = Path(__file__).parents[2] / "inventories" / "sandbox.yaml"
HEAVY = ("jsonschema", "pyinfra", "kubernetes", "gevent", "aiohttp", "click")


def loaded_after(code: str) -> set[str]:
    """Return which heavy packages a fresh Python has loaded after some code."""
    script = f"import sys\n{code}\nprint(' '.join(name for name in {HEAVY!r} if name in sys.modules))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=300)
    return set(done.stdout.split())


def test_checking_needs_the_schema_library_alone() -> None:
    """Not the clients of clusters and hosts."""
    code = f"from gpu_provision.inventory import groups; groups({str(SANDBOX)!r})"
    assert loaded_after(code) == {"jsonschema"}
