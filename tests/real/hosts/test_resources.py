"""A host with systemd and a driver of its own: headers by apt, huge pages, limits of containers, persistence mode.

The driver is made up, since none would load: its library, the mark of NVIDIA's installer, and an nvidia-smi that writes
down its input. The archive that apt installs headers from lies on the host, which reaches no other. It has no
right to reserve huge pages, or to raise limits. The tests go on from one another in their order.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.answers import Answer
from tests.real.hosts import nspawn, state
from tests.real.hosts.conftest import assert_as_they_came
from tests.real.hosts.nspawn import NspawnHost, nspawn_hosts
from tests.real.hosts.user import User

pytestmark = pytest.mark.hosts

SETTINGS = {
    "host_prerequisites": {
        "kernel_modules": [],
        "blacklist_nouveau": False,
        "hugepages": {"2Mi": 16},
        "limits": {"memlock": "64Ki"},
    },
    "preflight": {"registry": False, "ignore": ["GP609", "GP610", "GP612", "GP623"]},
    "pools": {"t4": {"gpu": {"model": "T4", "count": 2}, "driver": {"enabled": False}}},
}

DRIVER = r"""
cd /usr/bin && printf '#!/bin/sh\necho "$*" >/run/nvidia-smi-was-told\n' >nvidia-smi && chmod +x nvidia-smi
echo installer >nvidia-uninstall && echo library >/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.550.54.15
"""

ARCHIVE = r"""
build() {
  mkdir -p "/tmp/$1/DEBIAN" && printf '%s\n' "Package: $1" 'Version: 1' 'Architecture: all' 'Maintainer: test' \
    'Description: made up' ${2:+"Depends: $2"} >"/tmp/$1/DEBIAN/control" && dpkg-deb -b "/tmp/$1" "/srv/$1.deb"
}
kernel=$(uname -r)
mkdir -p "/tmp/linux-headers-$kernel/usr/lib/modules/$kernel/build"
echo all: >"/tmp/linux-headers-$kernel/usr/lib/modules/$kernel/build/Makefile"
build "linux-headers-$kernel" linux-kbuild-test && build linux-kbuild-test && cd /srv && for file in *.deb; do
  dpkg-deb -f "$file"
  printf '%s\n' "Filename: ./$file" "Size: $(wc -c <"$file")" "SHA256: $(sha256sum "$file" | cut -c1-64)" ''
done >Packages
rm -rf /etc/apt/sources.list.d/* && echo 'deb [trusted=yes] file:/srv ./' >/etc/apt/sources.list
"""

OURS = "gpu-provision-persistence"


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[NspawnHost, ...]]:
    if reason := nspawn.missing():
        pytest.skip(reason)
    with nspawn_hosts(tmp_path_factory.mktemp("resources"), 1, name="own-driver") as begun:
        begun[0].run(DRIVER)
        begun[0].run(ARCHIVE)
        yield begun


@pytest.fixture(scope="module")
def host(hosts: tuple[NspawnHost, ...]) -> NspawnHost:
    return hosts[0]


@pytest.fixture(scope="module")
def runtime(host: NspawnHost) -> str:
    """The process of containerd before the first run."""
    assert _may_lock(host) != "65536"
    return host.run("pidof containerd")


@pytest.fixture(scope="module")
def first_run(user: User, as_they_came: dict[str, set[str]], runtime: str) -> Answer:
    assert all(as_they_came.values())
    assert runtime
    return user.apply("--hosts-only")


def _may_lock(host: NspawnHost) -> str:
    """Return how many bytes of memory containerd, and its children, may lock."""
    return host.run("sed -nE 's/^Max locked memory +[0-9a-z]+ +([0-9a-z]+) .*/\\1/p' /proc/$(pidof containerd)/limits")


def test_first_run_says_what_it_did(first_run: Answer, host: NspawnHost) -> None:
    """The unit of gpu-provision waits for the next boot: no driver is loaded."""
    assert first_run.code == 0, first_run.text
    assert first_run.changes == [
        [
            f"kernel headers installed: {host.run('uname -r')}",
            "huge pages reserved: 16 x 2Mi (0 before)",
            "huge pages kept for the boot",
            "limits of containerd set: memlock=65536",
            "limits kept for the boot: containerd.service",
            f"unit {OURS} made",
            f"persistence mode at every boot, by {OURS}",
        ]
    ]


def test_missing_hugepages_require_a_reboot(first_run: Answer) -> None:
    (told,) = [finding["what"] for finding in first_run.document["warnings"] if finding["code"] == "GP603"]
    assert "room for 0 of 16 huge pages of 2Mi" in told
    assert [each["reboot_needed"] for each in first_run.document["hosts"]] == [True]


@pytest.mark.usefixtures("first_run")
def test_headers_come_from_the_archive_with_what_they_depend_on(host: NspawnHost) -> None:
    release = host.run("uname -r")
    assert state.of(host).package(f"linux-headers-{release}").is_installed
    assert state.of(host).package("linux-kbuild-test").is_installed
    assert host.run(f"cat /lib/modules/{release}/build/Makefile") == "all:"


@pytest.mark.usefixtures("first_run")
def test_limits_are_in_force_without_a_restart_and_after_one(host: NspawnHost, runtime: str) -> None:
    assert (host.run("pidof containerd"), _may_lock(host)) == (runtime, "65536")
    host.run("systemctl daemon-reload && systemctl restart containerd")
    assert host.run("pidof containerd") != runtime
    assert _may_lock(host) == "65536"


@pytest.mark.usefixtures("first_run")
def test_unit_for_persistence_mode_tells_nvidia_smi(host: NspawnHost) -> None:
    assert state.of(host).service(OURS).is_enabled
    host.run(f"systemctl start {OURS}")
    assert host.run("cat /run/nvidia-smi-was-told") == "-pm 1"


@pytest.mark.usefixtures("first_run")
def test_second_run_changes_nothing(user: User, host: NspawnHost) -> None:
    before = state.written(state.of(host))
    second = user.apply("--hosts-only")
    assert (second.code, second.changes) == (0, [[]]), second.text
    assert state.written(state.of(host)) == before


@pytest.mark.usefixtures("first_run")
def test_teardown_takes_all_of_it_back(user: User, host: NspawnHost, as_they_came: dict[str, set[str]]) -> None:
    said = user.pyinfra("host_teardown.py")
    assert said.code == 0, said.text
    assert_as_they_came((host,), as_they_came)
    assert not state.of(host).package(f"linux-headers-{host.run('uname -r')}").is_installed
    assert not state.of(host).package("linux-kbuild-test").is_installed
    assert not state.of(host).service(OURS).is_enabled


def test_archive_without_headers_fails_the_host(user: User, host: NspawnHost) -> None:
    host.run("mkdir -p /var/empty && : >/var/empty/Packages && rm -rf /var/lib/apt/lists/*")
    host.run("echo 'deb [trusted=yes] file:/var/empty ./' >/etc/apt/sources.list")
    said = user.apply("--hosts-only")
    assert said.code == 1, said.text
    assert said.errors["GP665", host.name]["evidence"].startswith("E: Unable to locate package linux-headers-")
