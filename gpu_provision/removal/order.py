"""In which order components go: whatever requires a component has to be gone first. Pure."""

from __future__ import annotations

from functools import cache

from gpu_provision.components import COMPONENTS


def waves() -> tuple[tuple[str, ...], ...]:
    """Return the components in waves; those of one wave may go at the same time."""
    heights = {component.name: _height(component.name) for component in COMPONENTS}
    return tuple(
        tuple(name for name, height in heights.items() if height == level) for level in range(max(heights.values()) + 1)
    )


@cache
def _height(name: str) -> int:
    """Return how many components stand on top of one another above this one."""
    above = (component.name for component in COMPONENTS if name in component.requires)
    return max((_height(each) + 1 for each in above), default=0)
