"""Files of our own that a container runtime is started with, and where the system's trusted certificates lie."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from gpu_provision.facts.section import Said, Section

PROXY_FILE = "/etc/gpu-provision/runtime-proxy.env"
"""Holds the proxies, with credentials if they have any: for root alone."""

DROP_IN = "90-gpu-provision-proxy.conf"
"""Name of the file that has a unit of systemd read the other one."""

PREFIX = "gpu-provision-"
"""Of the names of certificates that are ours."""


@dataclass(frozen=True, slots=True)
class TrustStore:
    """Where certificates are put, and what makes the system trust them.

    Attributes:
        anchors: Directory for certificates, one a file.
        command: What has to run after a change.
        suffix: Of the files.
    """

    anchors: str
    command: str
    suffix: str

    @property
    def program(self) -> str:
        """The first word of the command."""
        return self.command.split()[0]


DEBIAN = TrustStore("/usr/local/share/ca-certificates", "update-ca-certificates", ".crt")
RHEL = TrustStore("/etc/pki/ca-trust/source/anchors", "update-ca-trust extract", ".pem")
SUSE = TrustStore("/etc/pki/trust/anchors", "update-ca-certificates", ".pem")

STORES = (RHEL, SUSE, DEBIAN)
_BY_ANCHORS = {store.anchors: store for store in STORES}


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """What a container runtime is started with.

    Attributes:
        files: SHA-256 of each such file of ours that is there, by its path.
        trust: The system's store of trusted certificates; None if there is none that is known.
    """

    files: Mapping[str, str] = field(default_factory=dict)
    trust: TrustStore | None = None


# Of our files only a digest leaves the host: one may hold credentials.
SCRIPT = rf"""
for file in {PROXY_FILE} /etc/systemd/system/*.service.d/{DROP_IN} \
  {" ".join(f"{anchors}/{PREFIX}*" for anchors in _BY_ANCHORS)}; do
  [ -f "$file" ] && echo "file $(sha256sum <"$file" | cut -c 1-64) $file"
done
if command -v update-ca-trust >/dev/null; then echo "trust {RHEL.anchors}"
elif command -v update-ca-certificates >/dev/null; then
  if [ -d {SUSE.anchors} ]; then echo "trust {SUSE.anchors}"; else echo "trust {DEBIAN.anchors}"; fi
fi
"""


def read(said: Said) -> Environment:
    """Read the section."""
    files = (rest.partition(" ") for rest in said.all("file"))
    return Environment(
        files={path: digest for digest, _, path in files},
        trust=_BY_ANCHORS.get(said.first("trust")),
    )


SECTION = Section("environment", SCRIPT, read)
