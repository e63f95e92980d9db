"""Scenarios of a user whose API server answers badly: what they do, and what has to be so afterwards."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from tests.faults.proxy import Proxy
from tests.scenarios.on_real import Lender, RealWorld
from tests.scenarios.on_sandbox import SandboxWorld
from tests.scenarios.test_hand_over import Both
from tests.scenarios.test_operator import NEW, OLD, OPERANDS
from tests.scenarios.test_removal import _furniture, _has_its_taints, dump
from tests.scenarios.world import World

_EXPORTER = ("daemonset", "nvidia-dcgm-exporter", "-n", OPERANDS)
_FOREIGN_IMAGE = "busybox:1"
_GPU_NODES = 3
_REPAIR_SECONDS, _END_SECONDS, _LEFT_SECONDS = 150, 30, 60


class Outcome(NamedTuple):
    """How the tool ended, and what it said."""

    exit: str
    text: str


class Bench(Both):
    """A world with the operator's definition in it, and commands whose requests go through the proxy.

    Attributes:
        proxy: Through which the tool's requests go.
        audit_log: Of a real API server; without it, the proxy tells what was created.
        before: What the cluster holds before the first run.
    """

    proxy: Proxy

    def __init__(self, world: World, audit_log: Path | None = None) -> None:
        """Remember what the cluster holds before the first run."""
        super().__init__(world)
        self.audit_log = audit_log
        for options in ("--operator", "--destroy"):
            world.give_rights(options)
        world.until(self._is_settled)
        self.before = dump(world)

    def prepare(self) -> None:
        """Bring the cluster to what the inventory declares, without the proxy; AssertionError if that fails."""
        if self.world.json("gpustacks")["items"]:
            self.release()
        self.world.until(lambda: self.world.apply("--cluster-only").code == 0)

    def _is_settled(self) -> bool:
        """Whether controllers have added what they add to new namespaces and nodes."""
        names = [each["metadata"]["name"] for each in self.world.json("namespaces")["items"]]
        found = [_furniture(self.world.json("serviceaccounts,configmaps", "-n", name)["items"]) for name in names]
        wanted = found[names.index("default")]
        return all(wanted <= each for each in found) and all(map(_has_its_taints, self.world.json("nodes")["items"]))

    def run(self, *words: str) -> Outcome:
        """Run a command on the inventory."""
        through = str(self.proxy.kubeconfig(self.world.account()))
        try:
            done = self.world.cli(*words, "--cluster-only", "--kubeconfig", through, "-i", str(self.world.inventory))
        except subprocess.TimeoutExpired as error:
            return Outcome(f"none in {error.timeout} s", "")
        return Outcome(str(done.code), done.text)

    def differences(self) -> str:
        """Say what plan finds without the proxy; empty if it finds nothing."""
        plan = self.world.plan("--detailed-exitcode", "--quiet")
        if plan.code == 0:
            return ""
        lines = (plan.out or plan.err).strip().splitlines()
        return f"exit {plan.code}: {lines[-1] if plan.out else lines[0]}"

    def left(self) -> str:
        """Say what is not as it was before the first run, once the garbage collector has had its time; or nothing."""
        with contextlib.suppress(AssertionError):  # what differs is told below
            self.world.until(lambda: dump(self.world) == self.before, seconds=_LEFT_SECONDS)
        now = dump(self.world)
        changed = {name for name in now.keys() | self.before.keys() if now.get(name) != self.before.get(name)}
        return f"{len(changed)} differ: {', '.join(sorted(changed)[:3])}" if changed else ""


def install(bench: Bench) -> Outcome:
    """Bring the stack up on a bare cluster, with an old driver."""
    policy = {"max_parallel_upgrades": 0, "max_unavailable": "100%"}
    bench.world.settings(driver={"version": OLD, "upgrade_policy": policy})
    return bench.run("apply", "-y")


def upgrade(bench: Bench) -> Outcome:
    """Roll another version of the driver out."""
    bench.world.settings(driver={"version": NEW})
    return bench.run("apply", "-y")


def repair(bench: Bench) -> Outcome:
    """Have a controller take the stack over, bring back an operand that is deleted, and undo an edit of it."""
    stack = bench.world.cli("operator", "stack", "-i", str(bench.world.inventory), check=True).out
    bench.world.submit(stack, "gpu-provision")
    run = bench.controller("--kubeconfig", str(bench.proxy.kubeconfig(bench.world.kubeconfig)))
    try:
        _break_what_it_repairs(bench, run)
        run.send_signal(signal.SIGTERM)
        return Outcome(str(run.wait(_END_SECONDS)), bench.log.read_text())
    except AssertionError:
        return Outcome("not repaired", bench.log.read_text())
    except subprocess.TimeoutExpired:
        return Outcome(f"none in {_END_SECONDS} s", bench.log.read_text())
    finally:
        run.kill()
        run.wait()


def _break_what_it_repairs(bench: Bench, run: subprocess.Popen[str]) -> None:
    """Break an operand twice, and wait each time until the controller has repaired it, or has ended."""
    world = bench.world

    def until(condition: Callable[[], object]) -> None:
        world.until(lambda: run.poll() is not None or condition(), seconds=_REPAIR_SECONDS)

    def is_whole() -> bool:
        exporter = world.json(*_EXPORTER) if world.api.exists(*_EXPORTER) else {}
        is_ready = exporter.get("status", {}).get("numberReady") == _GPU_NODES
        is_own = is_ready and _FOREIGN_IMAGE not in str(exporter["spec"])
        return is_own and bench.condition("Ready", bench.name)["status"] == "True"

    until(is_whole)
    world.api.delete(*_EXPORTER)
    until(is_whole)
    if run.poll() is None:
        world.api.set_image(*_EXPORTER, image=_FOREIGN_IMAGE)
        until(is_whole)


def destroy(bench: Bench) -> Outcome:
    """Take the stack off the cluster."""
    return bench.run("destroy", "-y", "--crds")


SCENARIOS: Mapping[str, Callable[[Bench], Outcome]] = {
    "install": install,
    "upgrade": upgrade,
    "repair": repair,
    "destroy": destroy,
}


@contextlib.contextmanager
def on_sandbox() -> Iterator[Bench]:
    """Open a bench on a sandbox."""
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as ended:
        world = SandboxWorld(Path(folder))
        ended.callback(world.down)
        yield Bench(world)


@contextlib.contextmanager
def on_real(lender: Lender) -> Iterator[Bench]:
    """Open a bench on a real control plane."""
    with tempfile.TemporaryDirectory() as folder, lender.lend() as cluster, contextlib.ExitStack() as ended:
        world = RealWorld(Path(folder), cluster)
        ended.callback(world.down)
        yield Bench(world, cluster.plane.audit_log if cluster.plane else None)
