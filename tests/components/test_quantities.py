"""Quantities as the API server stores them."""

from __future__ import annotations

import pytest

from gpu_provision.components.pods import canonical_quantity, resources

# The right side is what a kube-apiserver 1.20 stored for either side, but for signs, zeros and exponents of unusual
# form (+1, 007, 1E3), which it keeps as they were sent.
_PAIRS = """
0=0 0.0=0 1=1 2.0=2 0.5=500m .5=500m 1.5=1500m 500m=500m 1000m=1 2000m=2 100=100 1000=1k 1500=1500 1000000=1M
1024=1024 0.5k=500 1e3=1e3 1E3=1e3 5e-1=500e-3 128Mi=128Mi 1024Mi=1Gi 2048Ki=2Mi 1000Ki=1000Ki 0.5Gi=512Mi
1.5Gi=1536Mi 0.1Ki=102400m 1Ki=1Ki 16Ei=9223372036854775807 1e-10=1e-3 0.1n=1m -1024Mi=-1Gi -0.5=-500m +1=1
4Gi=4Gi 1000M=1G 1000n=1m 1001u=2m 0.00001Mi=10486m 7Ei=7Ei 10E=10E 1e0=1 1e+3=1e3 007=7 1.=1
"""
CANONICAL = {" 1Gi ": "1Gi", **dict(pair.split("=") for pair in _PAIRS.split())}


@pytest.mark.parametrize(("given", "stored"), CANONICAL.items())
def test_a_quantity_is_written_as_the_server_stores_it(given: str, stored: str) -> None:
    """Otherwise the second run would see a difference."""
    assert canonical_quantity(given) == stored


@pytest.mark.parametrize(("given", "stored"), [(2, "2"), (0.5, "500m"), (1000, "1k")])
def test_numbers_of_yaml_are_quantities_too(given: float, stored: str) -> None:
    """``cpu: 2`` reaches us as a number."""
    assert canonical_quantity(given) == stored


@pytest.mark.parametrize("text", ["", "Gi", "1 Gi", "1GB", "one", "1.2.3", "--1", "1ki"])
def test_what_is_no_quantity_is_refused(text: str) -> None:
    """The loader turns this into a finding."""
    with pytest.raises(ValueError, match="is not a Kubernetes quantity"):
        canonical_quantity(text)


def test_resources_keep_what_is_no_quantity() -> None:
    """Claims name things; they hold no amounts."""
    given = {"limits": {"cpu": 0.5, "nvidia.com/gpu": 1}, "requests": {}, "claims": [{"name": "one"}]}
    assert resources(given) == {
        "limits": {"cpu": "500m", "nvidia.com/gpu": "1"},
        "requests": {},
        "claims": [{"name": "one"}],
    }
