"""An install and a run without changes, against kubectl and Ansible on the same objects."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

from benchmarks.processes import command
from benchmarks.sites import Site, site
from benchmarks.table import Row, at_most
from gpu_provision.sandbox.apiserver.request_log import LoggedRequest
from tests.request_counts import count_requests

FIXED_REQUESTS, REQUESTS_OF_A_NODE = 70, 1.1
OWN_SECONDS = {5: 1.5, 200: 6.0, 1000: 30.0}
MILLISECONDS_OF_A_NODE = 15.0
NOTHING_SECONDS = {5: 0.6, 200: 1.2, 1000: 2.0, 5000: 6.0}
NOTHING_REQUESTS = 25
_SHOWN = 4
_PAGE = 1000  # objects of an answer to a LIST
_FEW = 50  # nodes, below which what a run costs anyway outweighs what nodes cost
_PLAYBOOK = """
- hosts: localhost
  connection: local
  gather_facts: false
  tasks:
    - kubernetes.core.k8s:
        src: {src}
        kubeconfig: {kubeconfig}
        apply: true
        server_side_apply: {{field_manager: ansible, force_conflicts: true}}
"""


def rows(sizes: Iterable[int], *, real: bool) -> Iterator[Row]:
    """Measure at each size."""
    start = _start(real=real)
    for count in sizes:
        with site(count, real=real) as made:
            yield from _install(made, start, {} if real else _instead(count))
            yield from _nothing(made)


def _start(*, real: bool) -> float:
    """Return the seconds of a processor that a plan for one node uses, most of them for starting."""
    with site(1, real=real) as made:
        return made.tool("plan").processor


def _instead(count: int) -> dict[str, float]:
    """Return the seconds of other tools on clusters of their own that are as empty."""
    found = {}
    for name in _others():
        with site(count, real=False) as made:
            found[name] = _OTHERS[name](made)()
    return found


def _install(made: Site, start: float, others: Mapping[str, float]) -> Iterator[Row]:
    began = time.monotonic()
    use, requests = made.apply()
    count, ended = len(made.nodes), time.monotonic()
    path = max(made.at_work(node, began, ended) for node in made.nodes)
    size, own = f"{count} nodes", use.processor - start
    goal = FIXED_REQUESTS + REQUESTS_OF_A_NODE * count
    yield at_most("install, requests", size, len(requests), goal, instead=_summary(requests))
    text = f"{use.seconds - path:.1f} s of {use.seconds:.1f} s"
    instead = "; ".join(f"{name}, without waiting: {seconds:.1f} s" for name, seconds in others.items())
    if limit := OWN_SECONDS.get(count):
        yield Row("install, own time", size, text, f"<= {limit} s", use.seconds - path <= limit, instead)
    else:
        yield Row("install, own time", size, text, instead=instead)
    each = own / count * 1000
    text = f"{own:.1f} s, {each:.0f} ms a node"
    if count < _FEW:
        yield Row("install, own CPU", size, text)
    else:
        goal_text = f"<= {MILLISECONDS_OF_A_NODE:.0f} ms a node"
        yield Row("install, own CPU", size, text, goal_text, each <= MILLISECONDS_OF_A_NODE)
    yield Row("install, memory", size, f"{use.peak:.0f} MiB")


def _nothing(made: Site) -> Iterator[Row]:
    count = len(made.nodes)
    runs = [made.apply() for _ in range(3)]
    use, requests = min(runs, key=lambda run: run[0].seconds)
    if any(request.is_write for request in requests):
        sys.exit(f"a run that has nothing to do wrote: {_summary(requests)}")
    others = {name: _again(_OTHERS[name](made)) for name in _others()}
    size, limit = f"{count} nodes", NOTHING_SECONDS.get(count)
    figure = f"{use.seconds:.2f} s, {use.processor:.2f} s of CPU, {use.peak:.0f} MiB"
    is_fast = None if limit is None else use.seconds <= limit
    yield Row("nothing to do", size, figure, f"<= {limit} s" if limit else "", is_fast)
    for name, seconds in others.items():
        ratio = f"{use.seconds / seconds:.2f} times as long"
        goal = "< 1" if name == "kubectl" else ""
        holds = use.seconds < seconds if goal else None
        yield Row(f"nothing to do, x {name}", size, ratio, goal, holds, f"{name} {seconds:.2f} s")
    pages = 13 * count // _PAGE + 2 * count // _PAGE  # of pods, and of nodes
    yield at_most("nothing to do, requests", size, len(requests), NOTHING_REQUESTS + pages, instead=_summary(requests))


def _again(run: Callable[[], float]) -> float:
    """Return the time of the second run, which changes nothing: the first takes fields over."""
    run()
    return run()


def _summary(requests: Iterable[LoggedRequest]) -> str:
    """Return the most frequent requests by verb and kind."""
    counts = count_requests(requests)
    shown = counts.most_common(_SHOWN)
    rest = counts.total() - sum(number for _, number in shown)
    return ", ".join([*(f"{number} {name}" for name, number in shown), f"{rest} others"])


def _kubectl(made: Site) -> Callable[[], float]:
    folder = str(made.rendered())
    words = ("kubectl", "--kubeconfig", str(made.kubeconfig), "apply", "--server-side", "--force-conflicts", "-R")
    return lambda: command(*words, "-f", folder).seconds


def _ansible(made: Site) -> Callable[[], float]:
    """Return a run of Ansible's module on one file, which is its fastest form: one process for all objects."""
    files = sorted(made.rendered().glob("*.yaml"))
    objects = made.folder / "objects.yaml"
    objects.write_text("\n---\n".join(file.read_text() for file in files))
    playbook = made.folder / "playbook.yaml"
    playbook.write_text(_PLAYBOOK.format(src=objects, kubeconfig=made.kubeconfig))
    program = ansible_program()
    environment = {
        **os.environ,
        "ANSIBLE_HOME": str(made.folder),
        "ANSIBLE_PYTHON_INTERPRETER": str(Path(program).parent / "python"),
        "ANSIBLE_LOCALHOST_WARNING": "False",
    }
    return lambda: command(program, str(playbook), environment=environment).seconds


_OTHERS = {"kubectl": _kubectl, "ansible": _ansible}


def ansible_program() -> str:
    """Return ansible-playbook if it has kubernetes.core; BENCH_ANSIBLE names the folder of its programs."""
    folder = os.environ.get("BENCH_ANSIBLE")
    program = shutil.which("ansible-playbook", path=folder)
    if not program:
        return ""
    galaxy = str(Path(program).with_name("ansible-galaxy"))
    words = (galaxy, "collection", "list", "kubernetes.core", "--format", "json")
    found = subprocess.run(words, capture_output=True, text=True, check=False)
    return program if found.returncode == 0 and json.loads(found.stdout or "{}") else ""


def _others() -> list[str]:
    """Return the tools that this machine has."""
    return [name for name, program in (("kubectl", shutil.which("kubectl")), ("ansible", ansible_program())) if program]


def lacking() -> Iterator[Row]:
    """Yield a row for each tool that this machine lacks."""
    how = {
        "kubectl": "install kubectl",
        "ansible": "pip install ansible kubernetes, into a venv named by BENCH_ANSIBLE",
    }
    for name in _OTHERS.keys() - set(_others()):
        yield Row(f"compared with {name}", "", f"not installed: {how[name]}")
