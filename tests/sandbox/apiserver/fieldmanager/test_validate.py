"""Configurations that cannot be applied, and what the server says about them."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from gpu_provision.sandbox.apiserver.fieldmanager import InvalidConfig
from gpu_provision.sandbox.apiserver.fieldmanager.schema import types_of
from gpu_provision.sandbox.apiserver.fieldmanager.validate import check

PREFIX = r"^failed to create typed patch object \(default/d; apps/v1, Kind=DaemonSet\): "


def daemon_set(spec: str) -> dict[str, Any]:
    metadata = {"name": "d", "namespace": "default"}
    return {"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": metadata, "spec": yaml.safe_load(spec)}


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("{replica: 1}", r"\.spec\.replica: field not declared in schema$"),
        ("{minReadySeconds: '1'}", r"\.spec\.minReadySeconds: expected numeric \(int or float\), got string$"),
        ("{minReadySeconds: true}", r"\.spec\.minReadySeconds: expected numeric \(int or float\), got bool$"),
        ("{template: x}", r"\.spec\.template: expected map, got "),
        ("{template: {spec: {volumes: {}}}}", r"\.spec\.template\.spec\.volumes: expected list, got "),
        ("{template: {spec: {hostNetwork: 'yes'}}}", r"\.spec\.template\.spec\.hostNetwork: expected boolean, got "),
        ("{template: {spec: {nodeName: 1}}}", r"\.spec\.template\.spec\.nodeName: expected string, got "),
        (
            "{template: {spec: {containers: [{name: x}, {name: x}]}}}",
            r'\.spec\.template\.spec\.containers: duplicate entries for key \[name="x"\]$',
        ),
        ("{template: {spec: {imagePullSecrets: [a]}}}", r"imagePullSecrets: element 0: .* non-map elements$"),
        ("{a: 1, b: 2}", r"errors:\n  \.spec\.a: field not declared in schema\n  \.spec\.b: field not declared"),
    ],
)
def test_a_mistake_is_named_with_its_path(spec: str, message: str) -> None:
    """The reader finds the field in the manifest."""
    config = daemon_set(spec)
    with pytest.raises(InvalidConfig, match=PREFIX + ".*" + message):
        check(config, types_of(config, None).root)


@pytest.mark.parametrize(
    "spec",
    [
        "null",
        "{template: null, minReadySeconds: null}",
        "{updateStrategy: {rollingUpdate: {maxUnavailable: 10%}}}",
        "{updateStrategy: {rollingUpdate: {maxUnavailable: 1}}}",
        "{template: {spec: {containers: [{name: x, resources: {limits: {cpu: 1, memory: 1Gi}}}]}}}",
        "{template: {spec: {containers: [{name: x, ports: [{containerPort: 1}, {containerPort: 1, protocol: UDP}]}]}}}",
    ],
)
def test_nulls_and_values_of_either_kind_are_fine(spec: str) -> None:
    """What a server accepts is accepted."""
    config = daemon_set(spec)
    check(config, types_of(config, None).root)
