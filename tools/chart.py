"""``python -m tools.chart`` writes the templates of charts/gpu-provision from the manifests of ``operator render``.

Values become expressions of Helm's templates; NOTES.txt, values.yaml and values.schema.json are written by hand.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import yaml

from gpu_provision.model.cluster import Manifest, Permission
from gpu_provision.operator.crd import CRD_NAME, definition
from gpu_provision.operator.manifests import USE_NON_ROOT, InstallOptions, group_by_file, manifests
from gpu_provision.operator.stack import CONTROLLER_NAME, CONTROLLER_NAMESPACE, GROUP, PLURAL
from gpu_provision.output import object_text
from gpu_provision.rbac.roles import RbacSubject, roles

CHART = Path(__file__).parents[1] / "charts/gpu-provision"
TEST_NAME = f"{CONTROLLER_NAME}-test"

_EXAMPLES = CHART.parents[1] / "examples/operator/monitoring"
_MONITORING = {"podMonitor": "podmonitor.yaml", "prometheusRule": "alerts.yaml"}
"""Values that turn an object on, and the examples that have it."""

_HEADER = "# Made by `make docs` from the manifests of `gpu-provision operator render`.\n"
_KEEP = {"helm.sh/resource-policy": "keep"}
_HOOK = {"helm.sh/hook": "test", "helm.sh/hook-delete-policy": "before-hook-creation,hook-succeeded"}

_IMAGE = '{{ include "gpu-provision.image" . }}'
_HAS_IMAGE = ".Values.image.repository"
_HAS_RULES = 'and .Values.crds.rules (semverCompare ">=1.29-0" .Capabilities.KubeVersion.Version)'
_BUDGET_VERSION = (
    '{{ semverCompare ">=1.21-0" .Capabilities.KubeVersion.Version | ternary "policy/v1" "policy/v1beta1" }}'
)
_IS_OWN_OR_NEW = """\
{{{{- $found := lookup "v1" "Namespace" "" "{name}" }}}}
{{{{- $release := dig "metadata" "annotations" "meta.helm.sh/release-name" "" $found }}}}
{{{{- if and .Values.namespaces.create (or (not $found) (eq $release .Release.Name)) }}}}
"""

_FIELD = re.compile(r"^(?P<key> *\w+: )\{\{ toJson (?P<value>\.Values\.\w+) \}\}$", re.MULTILINE)

POD = ("spec", "template", "spec")
VALUES: Mapping[str, tuple[str | int, ...]] = {
    "replicas": ("spec", "replicas"),
    "imagePullSecrets": (*POD, "imagePullSecrets"),
    "priorityClassName": (*POD, "priorityClassName"),
    "nodeSelector": (*POD, "nodeSelector"),
    "affinity": (*POD, "affinity"),
    "tolerations": (*POD, "tolerations"),
    "resources": (*POD, "containers", 0, "resources"),
}
"""Values of the chart, and the fields of the Deployment that have them."""

_TEST_PERMISSIONS = (
    Permission("list", GROUP, PLURAL),
    Permission("get", "apiextensions.k8s.io", "customresourcedefinitions", "", CRD_NAME),
    Permission("get", "apps", "deployments", CONTROLLER_NAMESPACE, CONTROLLER_NAME),
    Permission("get", "coordination.k8s.io", "leases", CONTROLLER_NAMESPACE, CONTROLLER_NAME),
    USE_NON_ROOT,
)
"""What ``operator status`` reads, and its user on OpenShift."""


def files() -> dict[str, str]:
    """Return the generated files of the chart by their paths in it."""
    made = group_by_file(manifests(InstallOptions(image=_IMAGE)))
    texts = {
        "definition.yaml": _definition(),
        "namespaces.yaml": "".join(map(_namespace, made["namespaces.yaml"])),
        "rights.yaml": _when(".Values.rbac.create", _stream(made["rights.yaml"])),
        "controller.yaml": _when(_HAS_IMAGE, "".join(map(_controller_object, made["controller.yaml"]))),
        "monitoring.yaml": "".join(map(_monitoring_object, _MONITORING)),
        "tests/status.yaml": _when(_HAS_IMAGE, _stream(_test())),
    }
    return {"Chart.yaml": _chart(), **{f"templates/{name}": _HEADER + text for name, text in texts.items()}}


def _chart() -> str:
    known = version("gpu-provision")
    chart = {
        "apiVersion": "v2",
        "name": "gpu-provision",
        "description": "The operator mode of gpu-provision: the CRD of GPUStacks and their controller.",
        "type": "application",
        "version": known,
        "appVersion": known,
        "kubeVersion": ">=1.20.0-0",
    }
    return _HEADER + object_text.to_yaml(chart)


def _definition() -> str:
    """Return the definition; servers older than 1.29 get it without rules in CEL, as from ``operator render``.

    It is a template, not in crds/, which Helm installs but never upgrades. Helm keeps it when the release is removed:
    the API server would delete all stacks with it.
    """
    plain, ruled = (_stream([_annotated(definition(rules=rules), _KEEP)]).splitlines() for rules in (False, True))
    lines: list[str] = []
    for kind, start, end, first, last in difflib.SequenceMatcher(None, plain, ruled, autojunk=False).get_opcodes():
        old, new = plain[start:end], ruled[first:last]
        without = ["{{- else }}", *old] if old else []
        lines += new if kind == "equal" else [f"{{{{- if {_HAS_RULES} }}}}", *new, *without, "{{- end }}"]
    return _when(".Values.crds.enabled", "\n".join(lines) + "\n")


def _namespace(item: Manifest) -> str:
    """Return a namespace of stacks, which Helm neither takes from others nor deletes. Its own one exists already."""
    name = item["metadata"]["name"]
    if name == CONTROLLER_NAMESPACE:
        return ""
    return _IS_OWN_OR_NEW.format(name=name) + _stream([_annotated(item, _KEEP)]) + "{{- end }}\n"


def _controller_object(item: Manifest) -> str:
    if item["kind"] == "PodDisruptionBudget":
        return _when("gt (int .Values.replicas) 1", _stream([{**item, "apiVersion": _BUDGET_VERSION}]))
    if item["kind"] == "Deployment":
        made = json.loads(json.dumps(item))
        for value, path in VALUES.items():
            _put(made, path, f"{{{{ toJson .Values.{value} }}}}")
        return _stream([made])
    return _stream([item])


def _monitoring_object(value: str) -> str:
    """Return an object of the Prometheus Operator; braces in its texts are for Prometheus."""
    item = yaml.safe_load((_EXAMPLES / _MONITORING[value]).read_text(encoding="utf-8"))
    text = _stream([item]).replace("{{", '{{ "{{" }}')
    labels = f"{{{{- with .Values.{value}.labels }}}}\n  labels: {{{{ toJson . }}}}\n{{{{- end }}}}\nspec:\n"
    return _when(f"and {_HAS_IMAGE} .Values.{value}.enabled", text.replace("spec:\n", labels, 1))


def _put(value: Any, path: Sequence[str | int], new: str) -> None:
    *way, last = path
    for step in way:
        value = value[step]
    value[last] = new


def _test() -> list[Manifest]:
    account = RbacSubject("ServiceAccount", TEST_NAME, CONTROLLER_NAMESPACE)
    metadata = {"name": TEST_NAME, "namespace": CONTROLLER_NAMESPACE}
    rights = [item for item in roles(TEST_NAME, _TEST_PERMISSIONS, [account]) if item["kind"] != "Namespace"]
    pod = {
        "serviceAccountName": TEST_NAME,
        "restartPolicy": "Never",
        "imagePullSecrets": "{{ toJson .Values.imagePullSecrets }}",
        "nodeSelector": "{{ toJson .Values.nodeSelector }}",
        "tolerations": "{{ toJson .Values.tolerations }}",
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": 65532,
            "runAsGroup": 65532,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [
            {
                "name": "status",
                "image": _IMAGE,
                "args": ["operator", "status", "--detailed-exitcode"],
                "env": [{"name": "XDG_STATE_HOME", "value": "/dev/null"}],
                "securityContext": {
                    "allowPrivilegeEscalation": False,
                    "readOnlyRootFilesystem": True,
                    "capabilities": {"drop": ["ALL"]},
                },
            }
        ],
    }
    first = [{"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata}, *rights]
    before = {**_HOOK, "helm.sh/hook-weight": "-1"}
    return [
        *(_annotated(item, before) for item in first),
        _annotated({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": pod}, _HOOK),
    ]


def _annotated(item: Manifest, annotations: Mapping[str, str]) -> Manifest:
    return {**item, "metadata": {**item["metadata"], "annotations": dict(annotations)}}


def _stream(objects: Sequence[Manifest]) -> str:
    """Return objects as YAML. Expressions stand without quotes, to keep their type; empty values are left out."""
    text = "".join(f"---\n{object_text.to_yaml(item)}" for item in objects)
    bare = re.sub(r"'(\{\{ .+ \}\})'$", lambda found: found[1].replace("''", "'"), text, flags=re.MULTILINE)
    return _FIELD.sub(r"{{- with \g<value> }}\n\g<key>{{ toJson . }}\n{{- end }}", bare)


def _when(condition: str, text: str) -> str:
    return f"{{{{- if {condition} }}}}\n{text}{{{{- end }}}}\n"


def main() -> None:
    """Write the files."""
    for name, text in files().items():
        path = CHART / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
