"""The library's face: plan, apply, status and render as values. Nothing here prints."""

from gpu_provision.library.adopting import adopt, adoption
from gpu_provision.library.declared import meaning, render
from gpu_provision.library.past import going_back, history, rollback
from gpu_provision.library.permission import rbac, unlock
from gpu_provision.library.removal import destroy
from gpu_provision.library.runs import apply, plan, put_hosts_on_record
from gpu_provision.library.views import cluster_id, drift, preflight, status

__all__ = [
    "adopt",
    "adoption",
    "apply",
    "cluster_id",
    "destroy",
    "drift",
    "going_back",
    "history",
    "meaning",
    "plan",
    "preflight",
    "put_hosts_on_record",
    "rbac",
    "render",
    "rollback",
    "status",
    "unlock",
]
