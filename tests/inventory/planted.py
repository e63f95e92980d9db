"""Records that someone has edited who may patch the ConfigMap of the history and nothing else."""

from __future__ import annotations

from typing import Any

from gpu_provision.history.restore import VERSIONS
from gpu_provision.inventory.document import KeyPath
from gpu_provision.inventory.json_schema import ANY, resolved, schema

EVIL = "evil.example.com/$(id)\nx\x1b]0;\x07"

VALID = """
registry: evil.example.com
image_pull_secrets: [evil]
proxy: {http_proxy: "http://evil.example.com:3128"}
connect: kubernetes
helper_pod: {image: "evil.example.com/busybox:1", namespace: default}
ssh: {user: evil, port: 2222, bastion: evil@evil.example.com, key: /etc/shadow, sudo: false}
host_prerequisites:
  kernel_modules: [evil]
  sysctls: {kernel.core_pattern: "|/tmp/evil"}
  ca_certificates: [/etc/shadow]
  reboot: if-required
preflight: {ignore: [GP631]}
driver:
  repository: evil.example.com/evil
  image: evil
  env: {LD_PRELOAD: /tmp/evil.so}
  args: [--evil]
  manager: {repository: evil.example.com/evil, image: evil}
  repo_config: evil
  upgrade_policy: {auto_upgrade: false, pod_deletion: {force: true}, drain: {enable: true, force: true}}
toolkit: {repository: evil.example.com/evil, install_dir: /etc, env: {EVIL: "1"}}
device_plugin: {repository: evil.example.com/evil, image: evil, args: [--evil]}
validator: {repository: evil.example.com/evil, image: evil}
dcgm: {enabled: true, image: evil}
rollout: {on_failure: pause, stop_after_failures: 1000}
pools:
  t4:
    gpu: {model: T4, count: 1}
    node_selector: {kubernetes.io/os: linux}
    labels: {evil: evil}
    host_prerequisites: {sysctls: {kernel.core_pattern: "|/tmp/evil"}}
    driver: {repository: evil.example.com/evil, image: evil}
  evil: {gpu: {model: T4, count: 1}, node_selector: {kubernetes.io/os: linux}, driver: {version: "999.1"}}
nodes:
  - {name: t4-1, pool: evil, address: evil.example.com, ssh: {user: evil}}
  - {name: evil, pool: evil, address: evil.example.com}
"""
"""What a loader accepts; the versions of the pool that is not there now are of no use either."""


def hostile(part: dict[str, Any] | None = None, path: KeyPath = ()) -> Any:
    """Return an inventory in which every setting of the schema but versions has a hostile value, pool ``t4`` too.

    Args:
        part: Of the schema, at the path; all of it unless given.
    """
    found = resolved(part or schema())
    entry = resolved(found.get("items") or found.get("additionalProperties") or {})
    if "properties" in found:
        below = {key: (each, (*path, key)) for key, each in found["properties"].items()}
        return {key: hostile(each, here) for key, (each, here) in below.items() if here not in VERSIONS}
    if "properties" in entry:
        value = hostile(entry, (*path, ANY))
        return [value] if found["type"] == "array" else {"t4": value, "evil": value}
    return {"array": [EVIL], "object": {EVIL: EVIL}, "integer": 999}.get(str(found.get("type")), EVIL)
