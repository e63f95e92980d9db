"""From a kubeconfig, or a pod's service account, to a client of the ``kubernetes`` package."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from yaml import YAMLError

from gpu_provision.cluster.errors import bad_kubeconfig

_CONNECTIONS = 24


def api_client(kubeconfig: str = "", context: str = "") -> Any:
    """Return the ``kubernetes.client.ApiClient`` that a kubeconfig names; nothing is sent yet.

    Args:
        kubeconfig: Path; empty for $KUBECONFIG, else ~/.kube/config, else the pod's service account.
        context: Name of the context; empty for the current one.

    Raises:
        UsageError: The file or the context cannot be used.
    """
    from kubernetes import client, config

    if problem := _unusable(kubeconfig):
        raise bad_kubeconfig(kubeconfig, context, problem)
    settings = client.Configuration()
    try:
        config.load_kube_config(kubeconfig or None, context=context or None, client_configuration=settings)
    except (config.ConfigException, OSError, ValueError, TypeError, KeyError, YAMLError) as error:
        if kubeconfig or context or not _in_pod():
            raise bad_kubeconfig(kubeconfig or "the default kubeconfig", context, error) from error
        config.load_incluster_config(client_configuration=settings)
    settings.keep_alive = True  # a connection that died silently is noticed within minutes
    settings.retries = False  # whoever asks owns the retries
    settings.connection_pool_maxsize = _CONNECTIONS
    api = client.ApiClient(settings)
    api.user_agent = "gpu-provision"
    return api


def _unusable(kubeconfig: str) -> str:
    """The client library says "no configuration found" to a missing and to an unreadable file alike."""
    if not kubeconfig:
        return ""
    try:
        with Path(kubeconfig).open("rb"):
            return ""
    except OSError as error:
        return error.strerror or str(error)


def _in_pod() -> bool:
    return Path("/var/run/secrets/kubernetes.io/serviceaccount/token").exists()


def names(kubeconfig: str, context: str) -> tuple[str, str]:
    """Return the name of the context, by default of the current one, and that of its user."""
    from kubernetes import config

    try:
        known, current = config.list_kube_config_contexts(kubeconfig or None)
        found = next(item for item in known if item["name"] == context) if context else current
        return str(found["name"]), str(found["context"]["user"])
    except (config.ConfigException, StopIteration, TypeError, KeyError):
        return "", ""
