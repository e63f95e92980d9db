"""Manifests as YAML."""

from __future__ import annotations

import yaml

from gpu_provision.output import object_text

MANIFEST = {
    "data": {"run.sh": "#!/bin/sh\nexit 0\n", "no": "no", "version": "1.0"},
    "metadata": {"name": "x"},
    "kind": "ConfigMap",
    "apiVersion": "v1",
}


def test_what_is_written_reads_back_as_the_same_value() -> None:
    """Strings that look like numbers or booleans stay strings."""
    assert list(yaml.safe_load_all(object_text.yaml_stream([MANIFEST, MANIFEST]))) == [MANIFEST, MANIFEST]


def test_it_reads_as_people_write_it() -> None:
    """apiVersion, kind and metadata come first; scripts are block text."""
    text = object_text.to_yaml(MANIFEST)
    assert text.startswith("apiVersion: v1\nkind: ConfigMap\nmetadata:\n")
    assert "run.sh: |\n" in text
