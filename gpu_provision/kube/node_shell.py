"""Run commands on a node's host, through a privileged helper pod on it."""

from __future__ import annotations

import contextlib
import secrets
import shlex
import time
from collections.abc import Callable, Iterable, Sequence
from importlib import resources

import yaml

from gpu_provision.components import labels
from gpu_provision.diagnostics.pods import cause, phase
from gpu_provision.kube.client import KubeClient, connect
from gpu_provision.kube.exec import STDERR, Listen, exec_in_pod
from gpu_provision.kube.lease import holder_is_dead, process_identity
from gpu_provision.kube.observe import node_facts, ready_message
from gpu_provision.model import codes
from gpu_provision.model.cluster import Kind, Manifest, ObjectRef, ref_of
from gpu_provision.model.findings import Finding, InvalidError, ProvisionError, RunFailedError
from gpu_provision.model.hosts import HelperPod

POD = Kind("v1", "Pod")
CLIENT = "gpu-provision.io/client"
PURPOSE = "host-shell"
ENTER = ("nsenter", "-t", "1", "-m", "-u", "-i", "-n", "-p", "--")
LIFETIME_SECONDS = 3600
_START_SECONDS = 120
_POLL_SECONDS = 0.25
_OVER = frozenset({"Failed", "Succeeded"})
_HOPELESS = frozenset(
    {"CreateContainerConfigError", "CreateContainerError", "ErrImageNeverPull", "ImagePullBackOff", "InvalidImageName"}
    | {"RunContainerError"}
)


def is_orphaned(pod: Manifest) -> bool:
    """Whether a helper pod has ended, or its client was a process here that is gone; nothing is known of others."""
    client = (pod["metadata"].get("annotations") or {}).get(CLIENT, "")
    return phase(pod) in _OVER or holder_is_dead(str(client))


def remove_orphaned(cluster: KubeClient, namespace: str) -> None:
    """Delete helper pods, on any node, that no client uses: one LIST. Raises ForbiddenError, UnreachableError."""
    for pod in cluster.list(POD, namespace=namespace, label_selector=f"{labels.HELPER}={PURPOSE}").items:
        if is_orphaned(pod) and not pod["metadata"].get("deletionTimestamp"):
            cluster.delete(ref_of(pod), uid=pod["metadata"]["uid"])


def helper_pod(node: str, settings: HelperPod) -> Manifest:
    """Return a new helper pod for a node."""
    pod: Manifest = yaml.safe_load(resources.files(__package__).joinpath("helper_pod.yaml").read_text(encoding="utf-8"))
    pod["metadata"] |= {"name": f"gpu-provision-{PURPOSE}-{secrets.token_hex(5)}", "namespace": settings.namespace}
    pod["metadata"] |= {"annotations": {CLIENT: process_identity()}}
    pod["metadata"]["labels"][labels.HELPER] = PURPOSE
    pull_secrets = [{"name": name} for name in settings.image_pull_secrets]
    pod["spec"] |= {"nodeName": node, "activeDeadlineSeconds": LIFETIME_SECONDS, "imagePullSecrets": pull_secrets}
    pod["spec"]["containers"][0] |= {"image": settings.image, "command": [*ENTER, "sleep", str(LIFETIME_SECONDS)]}
    return pod


def start_helper_pod(cluster: KubeClient, node: str, settings: HelperPod) -> ObjectRef:
    """Return a helper pod that runs on a node. Raises ProvisionError."""
    found = cluster.get(ObjectRef("v1", "Node", "", node))
    if found is None:
        what, fix = f"{cluster.name} has no node {node}", "write its name as kubectl get nodes shows it"
        raise RunFailedError(Finding(code=codes.NODE_NOT_READY, what=what, where=node, fix=fix))
    if not node_facts(found).ready:  # a pod that is bound to it would stay, and be pending, for good
        what = "the node is not ready, so no pod can be started on it"
        said, fix = ready_message(found), "see to its kubelet, or reach this host over SSH (connect: ssh)"
        raise RunFailedError(Finding(code=codes.NODE_NOT_READY, what=what, where=node, evidence=said, fix=fix))
    ref = ref_of(cluster.create(helper_pod(node, settings)))
    try:
        _wait(cluster, ref, node, settings)
    except BaseException:
        cluster.delete(ref)
        raise
    return ref


def _wait(cluster: KubeClient, ref: ObjectRef, node: str, settings: HelperPod) -> None:
    """Wait until the pod runs; fail as soon as it is clear that it will not."""
    give_up = time.monotonic() + _START_SECONDS
    while True:
        pod = cluster.get(ref)
        if pod is None:
            raise _start_error(node, settings, "it was deleted")
        if phase(pod) == "Running":
            return
        statuses: Sequence[Manifest] = pod.get("status", {}).get("containerStatuses", ())
        reasons = {status.get("state", {}).get("waiting", {}).get("reason") for status in statuses}
        if phase(pod) in _OVER or reasons & _HOPELESS or time.monotonic() > give_up:
            raise _start_error(node, settings, cause(pod))
        time.sleep(_POLL_SECONDS)


def _start_error(node: str, settings: HelperPod, why: str) -> ProvisionError:
    what, said = (
        "the helper pod does not start on this node",
        f"{why} (image {settings.image}, namespace {settings.namespace})",
    )
    fix = (
        "set helper_pod.image to an image that this node can have and that holds nsenter, "
        "helper_pod.namespace to a namespace that admits privileged pods"
    )
    return RunFailedError(Finding(code=codes.HELPER_POD_FAILED, what=what, where=node, evidence=said, fix=fix))


# What goes to stdin; all but the first when the command says with a byte that it is ready for it.
StdinChunks = Sequence[Iterable[bytes]]
_ENVIRONMENT = (
    "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    *("HOME=/root", "USER=root", "LOGNAME=root", "SHELL=/bin/sh"),
)
# Nothing but the command is there to read yet, so that head cannot take more.
_READ_COMMAND = 'cd 2>/dev/null; c=$(head -c "$1") && exec sh -c "$c"'
_WITHOUT_STDIN = "exec </dev/null\n"
_WITH_STDIN = """\
f=$(mktemp) || exit 125
printf .
head -c {size} >"$f" && exec <"$f" && rm "$f" || {{ rm -f "$f"; exit 125; }}
"""
_PUT = """\
exec 3>{path} || exit 1
printf .
head -c {size} >&3 && exec 3>&- && [ "$(wc -c <{path})" -eq {size} ]
"""
_GET = "wc -c <{path} >&2 && cat {path}"
_STOP = """\
processes() {{ grep -ls {mark} /proc/[0-9]*/environ | cut -d / -f 3; }}
kill $(processes) 2>/dev/null
sleep 1
kill -9 $(processes) 2>/dev/null
"""
_STOP_SECONDS = 30.0


class NodeShell:
    """The shell of one node, from `open` to `close`."""

    def __init__(self, cluster: KubeClient, node: str, settings: HelperPod) -> None:
        """Keep what is needed; nothing is sent yet."""
        self._cluster, self._node, self._settings = cluster, node, settings
        self._pod: ObjectRef | None = None

    def open(self) -> None:
        """Start a helper pod in place of an earlier one, and check that commands run in it. Raises ProvisionError."""
        self.close()
        self._pod = start_helper_pod(self._cluster, self._node, self._settings)
        said: list[bytes] = []
        try:
            status = self.run("exit 0", listen=lambda _channel, data: said.append(data))
        except ProvisionError as error:
            self.close()
            first = error.findings[0]
            raise _shell_error(self._node, first.evidence or first.what, first.fix or "connect: ssh") from error
        if status:
            self.close()
            image = f"set helper_pod.image to one that holds nsenter (now {self._settings.image}), or connect: ssh"
            raise _shell_error(self._node, f"exit status {status}: {_decode(said)}", image)

    def close(self) -> None:
        """Remove the helper pod, and with it whatever still runs in it; a server that does not answer is no error."""
        pod, self._pod = self._pod, None
        if pod:
            with contextlib.suppress(ProvisionError):
                self._cluster.delete(pod)

    def run(self, command: str, *, listen: Listen, stdin: bytes | None = None, timeout: float | None = None) -> int:
        """Run a shell command and return its exit status.

        Raises:
            TimeoutError: It took longer than so many seconds, and was ended, with all that it had started.
            ProvisionError: It could not be started, or its end is unknown.
        """
        begin = _WITHOUT_STDIN if stdin is None else _WITH_STDIN.format(size=len(stdin))
        return self._shell(f"{begin}{command}", [] if stdin is None else [[stdin]], listen, timeout)

    def write_file(self, path: str, size: int, parts: Iterable[bytes], *, within: Callable[[str], str]) -> None:
        """Write a file of this size; ``within`` puts a command into others. Raises OSError with what the shell said."""
        said: list[bytes] = []
        command = within(_PUT.format(path=shlex.quote(path), size=size))
        if self._shell(command, [parts], lambda _, data: said.append(data), None):
            raise OSError(_decode(said) or f"{path} could not be written as a whole")

    def read_file(self, path: str, write: Callable[[bytes], object], *, within: Callable[[str], str]) -> None:
        """Hand the content of a file to ``write``, in parts. Raises OSError with what the shell said."""
        said, received = list[bytes](), 0

        def listen(channel: int, data: bytes) -> None:
            nonlocal received
            if channel == STDERR:
                said.append(data)
            else:
                received += len(data)
                write(data)

        status = self._shell(within(_GET.format(path=shlex.quote(path))), [], listen, None)
        size, _, complaint = _decode(said).partition("\n")
        if status:
            raise OSError(complaint or size)
        if received < int(size):
            message = f"{path}: the connection broke off after {received} of {size} bytes"
            raise OSError(message)

    def _shell(self, command: str, stdin: StdinChunks, listen: Listen, timeout: float | None) -> int:
        text, mark = command.encode(), f"GPU_PROVISION_COMMAND={secrets.token_hex(8)}"
        boot = ("sh", "-c", _READ_COMMAND, "sh", str(len(text)))
        words = (*ENTER, "env", "-i", *_ENVIRONMENT, mark, *boot)
        try:
            return self._execute(words, [[text], *stdin], listen, timeout)
        except TimeoutError:
            with contextlib.suppress(ProvisionError, TimeoutError):  # end it, and all that has the mark from it
                self._shell(_STOP.format(mark=mark), [], lambda _channel, _data: None, _STOP_SECONDS)
            raise

    def _execute(self, words: Sequence[str], stdin: StdinChunks, listen: Listen, timeout: float | None) -> int:
        """Run a command in the helper pod; in a new one if it has ended, at its age or with its node."""
        if self._pod is None:
            raise _shell_error(self._node, "the shell is not open", "open it first")
        try:
            return exec_in_pod(self._cluster, self._pod, words, stdin=stdin, listen=listen, timeout=timeout)
        except InvalidError:
            pod = self._cluster.get(self._pod)
            if pod is not None and phase(pod) == "Running":
                raise
            self.close()
            self._pod = start_helper_pod(self._cluster, self._node, self._settings)
        return exec_in_pod(self._cluster, self._pod, words, stdin=stdin, listen=listen, timeout=timeout)


def open_shell(kubeconfig: str, context: str, node: str, settings: HelperPod) -> NodeShell:
    """Return the open shell of a node; the caller closes it. Raises ProvisionError if none can be had."""
    cluster = connect(kubeconfig, context)
    remove_orphaned(cluster, settings.namespace)
    shell = NodeShell(cluster, node, settings)
    shell.open()
    return shell


def _decode(said: Sequence[bytes]) -> str:
    return b"".join(said).decode(errors="replace").strip()


def _shell_error(node: str, evidence: str, fix: str) -> RunFailedError:
    what = "no command can be run on this node through the Kubernetes API"
    return RunFailedError(Finding(code=codes.NO_SHELL, what=what, where=node, evidence=evidence, fix=fix))
