"""A user of a real control plane, whose audit log tells what this tool asked it for."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml

from gpu_provision.sandbox.apiserver.requestlog import Request
from tests.real.control_plane import ControlPlane
from tests.scenarios.world import CHECKOUT, User

AGENT = "gpu-provision"
_METHODS = {"create": "POST", "update": "PUT", "patch": "PATCH", "delete": "DELETE", "deletecollection": "DELETE"}


class RealUser(User):
    """Has the sandbox's inventory, pointed at a real cluster; nobody logs in to simulated hosts there."""

    def __init__(self, folder: Path, plane: ControlPlane) -> None:
        """Write the inventory."""
        super().__init__(folder, folder / "real.yaml", plane.kubeconfig)
        self._audit_log = plane.audit_log
        shutil.copy(CHECKOUT / "inventories" / "sandbox.py", folder / "real.py")
        shutil.copy(CHECKOUT / "inventories" / "sandbox.yaml", self.inventory)
        document = yaml.safe_load(self.inventory.read_text())
        document["name"] = "real"
        document["cluster"] = {"kubeconfig": str(plane.kubeconfig), "context": "real"}
        document["host_prerequisites"] = {"enabled": False}
        self.inventory.write_text(yaml.safe_dump(document, sort_keys=False))

    def requests(self) -> list[Request]:
        """Every request that this tool sent so far; one that is not answered yet is left out, a watch is not."""
        complete, _, _ = self._audit_log.read_text().rpartition("\n")
        events = (json.loads(line) for line in complete.splitlines())
        return list({event["auditID"]: _request(event) for event in events if event.get("userAgent") == AGENT}.values())


def _request(event: dict[str, Any]) -> Request:
    address = urlsplit(event["requestURI"])
    return Request(
        time=event["requestReceivedTimestamp"],
        verb=_METHODS.get(event["verb"], "GET"),
        path=address.path,
        query=address.query,
        agent=event["userAgent"],
        user=event["user"]["username"],
        code=event.get("responseStatus", {}).get("code", 0),
        dry_run="dryRun=" in address.query,
    )
