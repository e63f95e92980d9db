"""The host phase as a function: values in, values out."""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from gpu_provision.hosts import runner
from gpu_provision.hosts.facts.host import parse
from gpu_provision.hosts.messages import HostPhase
from gpu_provision.hosts.result import HostOutcome, HostsResult
from gpu_provision.hosts.runner import check_hosts, prepare, teardown
from gpu_provision.model.findings import RunFailedError, UsageError
from gpu_provision.model.inventory import Inventory
from gpu_provision.model.progress import Event, State
from tests.hosts.fleet import FIRST, inventory


@pytest.mark.usefixtures("sandbox", "cold_worker")
def test_first_run_changes_and_second_does_not(tmp_path: Path) -> None:
    declared = inventory(tmp_path, "good-1", "good-2", "cpu-1")
    first, second = prepare(declared), prepare(declared)
    assert [(host.name, host.gpus, host.changes) for host in first.hosts] == [
        ("good-1", 1, FIRST),
        ("good-2", 8, (*FIRST, "nouveau unloaded")),
    ]
    assert [(host.name, host.gpus, host.changes) for host in second.hosts] == [("good-1", 1, ()), ("good-2", 8, ())]
    assert not first.failed
    assert not first.findings


def test_dry_run_names_changes(tmp_path: Path, sandbox: Path) -> None:
    result = prepare(inventory(tmp_path, "good-1"), dry_run=True)
    assert result.hosts == (HostOutcome(name="good-1", changes=FIRST, gpus=1, kernel="5.15.0-122-generic", driver=""),)
    assert not list(sandbox.rglob("gpu-provision*.conf"))


@pytest.mark.parametrize("act", [partial(prepare, dry_run=True), prepare, check_hosts, teardown])
def test_coreos_is_refused_with_one_finding_for_all_hosts(
    tmp_path: Path, sandbox: Path, act: Callable[[Inventory], HostsResult]
) -> None:
    """The Machine Config Operator would find other files than it has written, and call the node degraded."""
    result = act(inventory(tmp_path, "rhcos-1", "good-1", "rhcos-2"))
    [finding] = result.errors
    assert (finding.code, finding.where) == ("GP658", "@sandbox/rhcos-1, @sandbox/rhcos-2")
    assert "cluster: {platform: openshift}" in finding.fix
    assert [host.name for host in result.failed] == ["rhcos-1", "rhcos-2"]
    assert not [path for path in sandbox.rglob("*gpu-provision*") if "rhcos" in str(path)]


@pytest.mark.parametrize(
    ("release", "is_coreos"),
    [
        ("ID=rhcos", True),
        ("ID=rhel VARIANT_ID=coreos", True),  # RHCOS of OpenShift 4.19
        ("ID=fedora VARIANT_ID=coreos", True),
        ("ID=rhel VARIANT_ID=server", False),
    ],
)
def test_coreos_is_known_by_id_or_variant(release: str, is_coreos: bool) -> None:  # noqa: FBT001 - a parameter
    lines = ["[system]", *(f"os {each}" for each in release.split())]
    facts = parse([*lines, "[end]"])
    assert facts is not None
    assert facts.system.is_coreos is is_coreos


@pytest.mark.usefixtures("sandbox")
@pytest.mark.parametrize("dry_run", [True, False])
def test_failed_hosts_say_why_and_do_not_stop_the_others(tmp_path: Path, *, dry_run: bool) -> None:
    """Two failures of different kinds, found by the run and by the look alike."""
    events: list[Event] = []
    result = prepare(inventory(tmp_path, "good-1", "bad-1", "away-1"), dry_run=dry_run, listen=events.append)
    good, bad, away = result.hosts
    assert good.changes == FIRST
    assert bad.failed
    assert "has no module ipmi_msghandler" in bad.reason
    assert "linux-modules-extra-5.15.0-122-generic" in bad.reason
    assert bad.gpus == 1
    assert away.failed
    assert "unreachable" in away.reason
    assert away.gpus is None
    assert [host.name for host in result.failed] == ["bad-1", "away-1"]
    assert [
        "no module" in host.reason or "unreachable" in host.reason
        for host in prepare(inventory(tmp_path, "bad-1", "away-1"), dry_run=dry_run).hosts
    ] == [True, True]  # all may fail
    last = {event.node: event.state for event in events}
    assert last == {"good-1": State.READY, "bad-1": State.FAILED, "away-1": State.FAILED}


BROKEN = """
import pickle, sys
from gevent import monkey
monkey.patch_all()
from pyinfra.context import host
from gpu_provision.hosts import session
from gpu_provision.hosts.operations import driver
sound = driver.nouveau_changes
def broken(record, *, blacklisted):
    if host.name == "@sandbox/good-1":
        raise LookupError("an odd answer")
    return sound(record, blacklisted=blacklisted)
driver.nouveau_changes = broken
result = session.run(pickle.load(sys.stdin.buffer), lambda event: None)
pickle.dump(result, sys.stdout.buffer)
"""


@pytest.mark.usefixtures("sandbox")
@pytest.mark.parametrize("dry_run", [True, False])
def test_an_internal_error_on_a_host_is_its_finding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, dry_run: bool
) -> None:
    """Pyinfra would end the run for all, and the others would look as if they were done."""

    def run_broken(request: HostPhase, *_: object) -> Any:
        command = [sys.executable, "-c", BROKEN]
        done = subprocess.run(command, input=pickle.dumps(request), capture_output=True, check=True)
        return pickle.loads(done.stdout)  # noqa: S301 - of the process above

    monkeypatch.setattr(runner, "_run_worker", run_broken)
    broken, sound = prepare(inventory(tmp_path, "good-1", "good-2"), dry_run=dry_run).hosts
    assert [finding.code for finding in broken.errors] == ["GP693"]
    assert "LookupError: an odd answer" in broken.reason
    assert (sound.failed, sound.changes) == (False, (*FIRST, "nouveau unloaded"))


@pytest.mark.usefixtures("sandbox")
@pytest.mark.parametrize("node", ["good-1", "rhel-1"])
def test_proxies_and_certificates_are_tried_on_the_sandbox_first(tmp_path: Path, node: str) -> None:
    """Its hosts have a runtime that answers, and a store of certificates; all goes on as elsewhere."""
    declared = inventory(tmp_path, node)
    bare = prepare(declared)
    with_proxy = replace(
        declared.pools["t4"].host_prerequisites,
        proxy={"https_proxy": "http://me:s3cret@proxy:3128"},
        ca_certificates=("-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n",),
    )
    behind = replace(declared, pools={"t4": replace(declared.pools["t4"], host_prerequisites=with_proxy)})
    first, second, undone = prepare(behind), prepare(behind), teardown(behind)
    assert not any(result.failed for result in (bare, first, second, undone))
    assert [host.changes for host in first.hosts] == [
        (
            "images pulled through a proxy: https_proxy=http://proxy:3128",
            "certificates trusted besides the system's own: 1",
            "containerd restarted",
        )
    ]
    assert [host.changes for host in second.hosts] == [()]
    assert "containerd restarted" in undone.hosts[0].changes


@pytest.mark.usefixtures("sandbox")
@pytest.mark.parametrize("dry_run", [True, False])
def test_preflight_error_stops_its_host_before_any_write(tmp_path: Path, sandbox: Path, *, dry_run: bool) -> None:
    result = prepare(inventory(tmp_path, "good-1", "driver-1"), dry_run=dry_run)
    good, driver = result.hosts
    assert (good.failed, good.changes) == (False, FIRST)
    assert (driver.failed, driver.changes) == (True, ())
    assert [finding.code for finding in driver.errors] == ["GP615", "GP620"]
    assert {finding.where for finding in driver.errors} == {"driver-1"}
    assert driver.reason.endswith("(and 1 more)")
    assert "/sys/module/nvidia/version: 535.183.01" in driver.errors[1].evidence
    assert not list((sandbox / "mine/hosts/driver-1").rglob("gpu-provision*.conf"))


@pytest.mark.usefixtures("sandbox")
def test_judging_reads_machines_without_gpu_too(tmp_path: Path, sandbox: Path) -> None:
    declared = inventory(tmp_path, "good-1", "cpu-1")
    pools = {**declared.pools, "t4": replace(declared.pools["t4"], gpu=None)}
    result = check_hosts(replace(declared, pools=pools))
    assert [(host.name, host.gpus, host.changes) for host in result.hosts] == [("good-1", 1, ()), ("cpu-1", 0, ())]
    assert [(finding.code, finding.where) for finding in result.findings] == [("GP611", "good-1")]
    assert not list(sandbox.rglob("gpu-provision*.conf"))


COUNTS_READS = """
import os
from gpu_provision.sandbox.hosts import isolation
enter = isolation.argv
def counted(directory, command):
    if "[end]" in command:
        with open(os.environ["READS"], "a") as log:
            log.write("read\\n")
    return enter(directory, command)
isolation.argv = counted
"""


@pytest.mark.usefixtures("sandbox", "cold_worker")
def test_host_is_read_once_to_look_at_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Preflight and the operations share one answer, up to what one has changed; the outcome is read in the end."""
    log = tmp_path / "reads"
    (tmp_path / "sitecustomize.py").write_text(COUNTS_READS)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("READS", str(log))
    declared = inventory(tmp_path, "good-1")
    prepare(declared, dry_run=True)
    assert log.read_text().split() == ["read"]
    for reads in (3, 2):  # modules are changed, and nouveau is one
        log.unlink()
        prepare(declared)
        assert len(log.read_text().split()) == reads


def test_limit_leaves_the_others_alone(tmp_path: Path, sandbox: Path) -> None:
    result = prepare(inventory(tmp_path, "good-1", "good-2"), limit=["good-2"])
    assert [host.name for host in result.hosts] == ["good-2"]
    assert [path.name for path in sandbox.glob("*/hosts/*")] == ["good-2"]


def test_limit_without_work_starts_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "_run_worker", None)
    assert prepare(inventory(tmp_path, "cpu-1", "good-1"), limit=["cpu-1"]).hosts == ()
    with pytest.raises(UsageError, match="write good-1"):
        prepare(inventory(tmp_path, "good-1"), limit=["god-1"])


@pytest.mark.usefixtures("sandbox", "cold_worker", "without_isolation")
def test_hosts_are_skipped_on_a_machine_without_isolation(tmp_path: Path) -> None:
    result = prepare(inventory(tmp_path, "good-1"))
    assert result.hosts == ()
    assert [finding.code for finding in result.findings] == ["GP606"]
    assert "does not let" in result.findings[0].what


@pytest.mark.usefixtures("sandbox", "cold_worker")
def test_breakdown_of_the_worker_is_one_finding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\necho 'no such luck' >&2\nexit 3\n")
    broken.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(broken))
    with pytest.raises(RunFailedError, match="ended unexpectedly with status 3") as caught:
        prepare(inventory(tmp_path, "good-1"))
    assert caught.value.findings[0].evidence == "no such luck"


@pytest.mark.usefixtures("sandbox", "cold_worker")
def test_an_interrupt_ends_the_worker_and_names_changes(tmp_path: Path) -> None:
    """As Ctrl-C does: nothing goes on in the background, and the state of the hosts is known."""

    def interrupt(event: Event) -> None:
        if event.message == "Kernel and driver packages held":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt) as caught:
        prepare(inventory(tmp_path, "good-1"), listen=interrupt)
    (told,) = caught.value.__notes__
    changed, _, last = told.partition(" Last begun: ")
    assert changed.startswith(
        "changed so far: kernel modules loaded: ipmi_msghandler (good-1);"
        " kernel modules listed for the boot: ipmi_msghandler (good-1);"
        " nouveau blacklisted (good-1); initramfs rebuilt (good-1)"
    )
    assert last.endswith(" (good-1)"), "the worker may have begun another step before it was killed"


@pytest.mark.usefixtures("sandbox")
def test_callers_process_stays_as_it_was(tmp_path: Path) -> None:
    """Neither gevent nor pyinfra comes into it, so a Kubernetes client may be imported before or after."""
    inventory(tmp_path, "good-1")
    code = (
        "import sys\n"
        "from gpu_provision.hosts.runner import prepare\n"
        "from gpu_provision.inventory import load\n"
        "assert prepare(load(sys.argv[1])).hosts[0].changes\n"
        "sys.exit(str({'gevent', 'pyinfra', 'kubernetes'} & set(sys.modules) or ''))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "inventory.yaml")], capture_output=True, text=True, check=False
    )
    assert done.stderr.strip() == ""
