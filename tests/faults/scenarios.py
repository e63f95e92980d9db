"""Scenarios of a user whose API server answers badly: what they do, and what has to be so afterwards."""

from __future__ import annotations

import contextlib
import signal
import subprocess
from collections.abc import Callable, Mapping
from typing import NamedTuple

from gpu_provision.diagnostics.pods import is_ready
from tests.faults.proxy import Proxy
from tests.scenarios.test_hand_over import Both
from tests.scenarios.test_operator import NEW, OLD, OPERANDS
from tests.scenarios.test_removal import dump, settled_dump
from tests.scenarios.world import World

_EXPORTER = ("daemonset", "nvidia-dcgm-exporter", "-n", OPERANDS)
_FOREIGN_IMAGE = "busybox:1"
_GPU_NODES = 3
_ALL_AT_ONCE = {"max_parallel_upgrades": 0, "max_unavailable": "100%"}
_REPAIR_SECONDS, _END_SECONDS, _LEFT_SECONDS = 150, 120, 120
_SHOWN = 3


class Outcome(NamedTuple):
    exit: str
    text: str


class Stack(Both):
    """A stack that an inventory declares, on a cluster with the operator's definition."""

    proxy: Proxy  # through which requests of the tool go

    def __init__(self, world: World) -> None:
        super().__init__(world)
        world.settings(driver={"upgrade_policy": _ALL_AT_ONCE})
        for options in ("--operator", "--destroy"):
            world.give_rights(options)
        self.before = settled_dump(world)  # what the cluster holds before the first run

    def prepare(self, scenario: str) -> None:
        """Bring the cluster, without the proxy, to where a scenario begins; AssertionError if that fails."""
        if scenario in {"install", "upgrade"}:
            self.world.settings(driver={"version": OLD})
        if scenario == "install":
            return
        if self.world.json("gpustacks")["items"]:
            self.release()
        self.world.until(lambda: self.world.apply("--cluster-only").code == 0)

    def run(self, *words: str) -> Outcome:
        through = str(self.proxy.kubeconfig(self.world.account()))
        try:
            done = self.world.cli(*words, "--kubeconfig", through, "-i", str(self.world.inventory))
        except subprocess.TimeoutExpired as error:
            return Outcome(f"none in {error.timeout} s", "")
        return Outcome(str(done.code), done.text)

    def differences(self) -> str:
        plan = self.world.plan("--detailed-exitcode", "--quiet")
        if plan.code == 0:
            return ""
        lines = (plan.out or plan.err).strip().splitlines()
        return (lines[-1] if plan.out else lines[0]).removesuffix(" Nothing was changed.")

    def left(self, outcome: Outcome) -> str:
        """Say what is not as it was before the first run, once controllers have had their time; empty if all is."""
        if outcome.exit == "0":
            with contextlib.suppress(AssertionError):  # what differs is in the answer below
                self.world.until(lambda: dump(self.world) == self.before, seconds=_LEFT_SECONDS)
        now = dump(self.world)
        changed = {name for name in now.keys() | self.before.keys() if now.get(name) != self.before.get(name)}
        return f"{len(changed)} differ: {', '.join(sorted(changed)[:_SHOWN])}" if changed else ""


def install(stack: Stack) -> Outcome:
    return stack.run("apply", "-y", "--cluster-only")


def upgrade(stack: Stack) -> Outcome:
    stack.world.settings(driver={"version": NEW})
    return stack.run("apply", "-y", "--cluster-only")


def run_read_commands(stack: Stack) -> Outcome:
    outcomes = [(words[0], stack.run(*words)) for words in _LOOKS]
    failed = [f"{name} {outcome.exit}" for name, outcome in outcomes if outcome.exit != "0"]
    return Outcome(", ".join(failed) or "0", "\n".join(outcome.text for _, outcome in outcomes))


_LOOKS = (
    ("plan", "--cluster-only"),
    ("status",),
    ("drift", "--cluster-only"),
    ("history",),
    ("diff", "1"),
    ("destroy", "--dry-run", "--cluster-only"),
)


def repair(stack: Stack) -> Outcome:
    """Have a controller take the stack over, bring back an operand that is deleted, and undo an edit of it."""
    resource = stack.world.cli("operator", "stack", "-i", str(stack.world.inventory), check=True).out
    stack.world.submit(resource, "gpu-provision")
    stack.log.unlink(missing_ok=True)
    run = stack.controller("--kubeconfig", str(stack.proxy.kubeconfig(stack.world.kubeconfig)))
    try:
        _break_what_it_repairs(stack, run)
        run.send_signal(signal.SIGTERM)
        return Outcome(str(run.wait(_END_SECONDS)), stack.log.read_text())
    except AssertionError:
        return Outcome("not repaired", stack.log.read_text())
    except subprocess.TimeoutExpired:
        return Outcome(f"none in {_END_SECONDS} s", stack.log.read_text())
    finally:
        run.kill()
        run.wait()


def _break_what_it_repairs(stack: Stack, run: subprocess.Popen[str]) -> None:
    """Break an operand twice, and wait each time until the controller has repaired it, or has ended."""
    world = stack.world

    def until(condition: Callable[[], object]) -> None:
        world.until(lambda: run.poll() is not None or condition(), seconds=_REPAIR_SECONDS)

    def is_whole() -> bool:
        exporter = world.json(*_EXPORTER) if world.api.exists(*_EXPORTER) else {}
        if not exporter or exporter["status"].get("observedGeneration") != exporter["metadata"]["generation"]:
            return False
        is_own = _FOREIGN_IMAGE not in str(exporter["spec"])
        return is_own and _has_its_pods(world) and stack.condition("Ready", stack.name)["status"] == "True"

    until(is_whole)
    world.api.delete(*_EXPORTER)
    until(is_whole)
    if run.poll() is None:
        world.api.set_image(*_EXPORTER, image=_FOREIGN_IMAGE)
        until(is_whole)


def _has_its_pods(world: World) -> bool:
    """Whether each GPU node has a ready pod of the exporter, with its own image, and none is being replaced."""
    pods = world.pods("nvidia-dcgm-exporter")
    return len(pods) == _GPU_NODES and _FOREIGN_IMAGE not in str(pods) and all(map(is_ready, pods))


def destroy(stack: Stack) -> Outcome:
    return stack.run("destroy", "-y", "--crds", "--cluster-only")


SCENARIOS: Mapping[str, Callable[[Stack], Outcome]] = {
    "install": install,
    "upgrade": upgrade,
    "look": run_read_commands,
    "repair": repair,
    "destroy": destroy,
}
