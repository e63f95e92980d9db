"""What a kubelet answers to who asks for the log of a container that has not started."""

from __future__ import annotations

_WORDS = {"ErrImagePull": "image can't be pulled", "ImagePullBackOff": "trying and failing to pull image"}


def no_log_yet(container: str, pod: str, reason: str) -> str:
    """Return the refusal; ``reason`` is what the container waits for, as its status says."""
    why = _WORDS.get(reason, reason or "ContainerCreating")
    return f'container "{container}" in pod "{pod}" is waiting to start: {why}'
