"""The host phase for callers that are not pyinfra; `gpu_provision.api` puts it before the cluster phase.

pyinfra runs in a process of its own; see gpu_provision.hosts.worker.
"""

from __future__ import annotations

import contextlib
import difflib
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpu_provision.hosts.maintenance import GuardAtHand
from gpu_provision.hosts.result import HostOutcome, HostsResult
from gpu_provision.hosts.worker_protocol import Conversation, finding_of
from gpu_provision.inventory import groups
from gpu_provision.model import codes
from gpu_provision.model.findings import Finding, RunFailed, Severity, UsageError
from gpu_provision.model.inventory import Inventory
from gpu_provision.model.progress import Event, State

COMPONENT = "host_prerequisites"
"""Component of the events."""

Listen = Callable[[Event], None]

_LAST_WORDS_SECONDS = 10

_GROUPS = {"prerequisites": "gpu", "judge": "nodes", "teardown": "nodes"}
"""Phase -> pyinfra's group of the hosts that take part."""


def prepare(
    inventory: Inventory,
    *,
    limit: Iterable[str] = (),
    dry_run: bool = False,
    listen: Listen = lambda _: None,
    guard: GuardAtHand | None = None,
) -> HostsResult:
    """Make the GPU hosts of an inventory as their prerequisites say, all at the same time; or only look.

    Args:
        inventory: Hosts whose pool has a GPU and whose host phase is on take part.
        limit: Names of nodes; none for all.
        dry_run: True reads the hosts, changes nothing, and returns what would change.
        listen: Called as hosts go on, from the calling thread.
        guard: Cordons and drains nodes around reboots (gpu_provision.reconcile.maintenance.NodeGuard). Without one,
            no host that a kubelet runs on is rebooted.

    Returns:
        An outcome per host. A host that fails does not raise: see ``HostsResult.failed``.

    Raises:
        UsageError: A name in ``limit`` is no node of the inventory.
        RunFailed: pyinfra itself broke down.
    """
    return _run(inventory, "prerequisites", limit=limit, dry_run=dry_run, listen=listen, guard=guard)


def judge(inventory: Inventory, *, limit: Iterable[str] = (), listen: Listen = lambda _: None) -> HostsResult:
    """Read every host whose host phase is on, also those without a GPU, and change nothing.

    Raises:
        UsageError: A name in ``limit`` is no node of the inventory.
        RunFailed: pyinfra itself broke down.
    """
    return _run(inventory, "judge", limit=limit, dry_run=True, listen=listen)


def teardown(
    inventory: Inventory,
    *,
    limit: Iterable[str] = (),
    dry_run: bool = False,
    listen: Listen = lambda _: None,
) -> HostsResult:
    """Make every file that the host phase changed as it was before, on all hosts; or only look.

    Nothing is unloaded: kernel modules stay until the next boot. Arguments, result and errors as for `prepare`;
    nodes without a GPU take part too, they may have had one.
    """
    return _run(inventory, "teardown", limit=limit, dry_run=dry_run, listen=listen)


def _run(  # noqa: PLR0913 - what the three public functions take
    inventory: Inventory,
    phase: str,
    *,
    limit: Iterable[str],
    dry_run: bool,
    listen: Listen,
    guard: GuardAtHand | None = None,
) -> HostsResult:
    """Go through a phase with those of its hosts that are not left out by the limit."""
    declared = groups(inventory)
    chosen = _chosen(inventory, tuple(limit))
    data = dict(declared["nodes"][0])
    names = {
        host: data[host].get("gpu_node", host)
        for host, _ in declared[_GROUPS[phase]][0]
        if data[host]["gpu_node"] in chosen
    }
    if not names:
        return HostsResult()
    declared["nodes"] = ([(host, {**own, "gpu_judge_only": phase == "judge"}) for host, own in data.items()], {})
    shared = {name: members for name, members in declared.items() if name != "cluster"}
    request = {"groups": shared, "hosts": list(names), "phase": phase, "dry_run": dry_run}
    request["guarded"] = guard is not None
    with contextlib.closing(guard) if guard else contextlib.nullcontext():
        answer = _ask(request, names, listen, guard)
    return _result(answer, names, listen)


def _chosen(inventory: Inventory, limit: tuple[str, ...]) -> frozenset[str]:
    known = [node.name for node in inventory.nodes]
    findings = [_unknown(name, known) for name in limit if name not in known]
    if findings:
        raise UsageError(*findings)
    return frozenset(limit or known)


def _unknown(name: str, known: list[str]) -> Finding:
    near = difflib.get_close_matches(name, known, 1)
    return Finding(
        code=codes.UNKNOWN_HOST,
        what=f"the inventory has no node {name}",
        where=name,
        fix=f"write {near[0]}" if near else f"known nodes: {', '.join(known)}",
    )


def _ask(request: dict[str, Any], names: dict[str, str], listen: Listen, guard: GuardAtHand | None) -> dict[str, Any]:
    """Run the worker and return its answer; it ends with this call, however that ends."""
    so_far = SoFar()

    def tell(message: dict[str, Any]) -> None:
        if "event" in message:
            told = message["event"]
            node = told["node"] if "node" in told else names[told["host"]]
            so_far.steps[node] = told["message"]
            listen(_event(node, State.PROGRESSING, told["message"]))
        if "changed" in message:
            so_far.changes.setdefault(names[message["changed"]["host"]], []).extend(message["changed"]["words"])

    with tempfile.TemporaryFile() as errors, _worker(errors) as process, _told_if_interrupted(so_far):
        talk = Conversation(process, guard)
        try:
            result = talk.result(request, tell)
        except BaseException as error:
            process.kill()  # first, so that nothing is rebooted any more
            _leave_in_order(talk, guard, error)
            raise
        if result is None:
            errors.seek(0)
            raise RunFailed(_ended_early(process.wait(), errors.read().decode(errors="replace")))
    return result


def _leave_in_order(talk: Conversation, guard: GuardAtHand | None, error: BaseException) -> None:
    """Take back what can be taken back, and note on the error what cannot."""
    if guard is None:
        return
    guard.stop()
    talk.end(_LAST_WORDS_SECONDS)
    if guard.cordoned:
        error.add_note(f"still cordoned: {', '.join(sorted(guard.cordoned))}")


@contextlib.contextmanager
def _told_if_interrupted(so_far: SoFar) -> Iterator[None]:
    """Note on Ctrl-C what was done until then: commands on hosts go on to their own end, the run does not."""
    try:
        yield
    except KeyboardInterrupt as interrupt:
        interrupt.add_note(str(so_far))
        raise


@contextlib.contextmanager
def _worker(errors: Any) -> Iterator[subprocess.Popen[str]]:
    package = Path(__file__).resolve().parents[2]
    path = os.pathsep.join([str(package), *filter(None, [os.environ.get("PYTHONPATH")])])
    command = [sys.executable, "-m", "gpu_provision.hosts.worker"]
    environment = {**os.environ, "PYTHONPATH": path}
    pipe = subprocess.PIPE
    with subprocess.Popen(  # noqa: S603 - our own module
        command, stdin=pipe, stdout=pipe, stderr=errors, text=True, env=environment
    ) as process:
        try:
            yield process
        finally:
            process.kill()
            with contextlib.suppress(BrokenPipeError):  # what it has not read nobody reads any more
                process.stdin.close()  # type: ignore[union-attr]


def _ended_early(status: int, errors: str) -> Finding:
    lines = [line for line in errors.splitlines() if line.strip()]
    return Finding(
        code=codes.ENDED_EARLY,
        what=f"the host phase ended unexpectedly with status {status}",
        evidence=lines[-1] if lines else "",
        fix="run: pyinfra INVENTORY deploys/host_prerequisites.py, which shows more",
    )


def _result(answer: dict[str, Any], names: dict[str, str], listen: Listen) -> HostsResult:
    outcomes = answer["outcomes"]
    hosts = tuple(_outcome(node, outcomes[host]) for host, node in names.items() if host in outcomes)
    for host in hosts:
        listen(_event(host.name, State.FAILED if host.failed else State.READY, _in_short(host)))
    findings = [finding_of(each) for each in answer["findings"]]
    if answer["left_out"]:
        findings.insert(0, _left_out(answer["left_out"]))
    return HostsResult(hosts=hosts, findings=tuple(findings))


def _in_short(host: HostOutcome) -> str:
    """Return why a host failed, without the remedy where a finding has it: that is told in the end."""
    return "; ".join(finding.what for finding in host.errors) or host.reason


def _outcome(node: str, told: dict[str, Any]) -> HostOutcome:
    errors = tuple(map(finding_of, told["errors"]))
    return HostOutcome(name=node, **{**told, "changes": tuple(told["changes"]), "errors": errors})


def _left_out(why: str) -> Finding:
    return Finding(
        code=codes.HOSTS_LEFT_OUT,
        what=why,
        fix="run as root, or allow user namespaces; see docs/sandbox.md",
        severity=Severity.WARNING,
    )


def _event(node: str, state: State, message: str) -> Event:
    return Event(component=COMPONENT, node=node, state=state, message=message)


_MANY = 8


@dataclass(slots=True)
class SoFar:
    """What hosts were heard of, from the events of a run.

    Attributes:
        steps: Node -> what it was at last.
        changes: Node -> what was changed on it, in words.
    """

    steps: dict[str, str] = field(default_factory=dict)
    changes: dict[str, list[str]] = field(default_factory=dict)

    def __str__(self) -> str:
        """Return it in words: every change with its hosts, and what was under way."""
        if not self.steps:
            return "no host was reached yet"
        done = _by_text({node: tuple(words) for node, words in self.changes.items()})
        under_way = _by_text({node: (step,) for node, step in self.steps.items()})
        return f"changed so far: {done or 'nothing'}. Last begun: {under_way}"


def _by_text(said: Mapping[str, tuple[str, ...]]) -> str:
    nodes: dict[str, list[str]] = {}
    for node, texts in said.items():
        for text in texts:
            nodes.setdefault(text, []).append(node)
    return "; ".join(f"{text} ({_listed(where)})" for text, where in nodes.items())


def _listed(nodes: Iterable[str]) -> str:
    names = sorted(nodes)
    rest = len(names) - _MANY
    return ", ".join(names[:_MANY]) + (f" and {rest} more" if rest > 0 else "")
