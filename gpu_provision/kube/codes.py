"""Codes of findings about API servers; docs/findings.md is generated from such tables."""

NODE_AWAY = "GP690"
POD_AWAY = "GP691"
NO_SHELL = "GP692"
UNRECORDED = "GP330"
NO_SUCH_RUN = "GP331"
NOT_ON_RECORD = "GP332"
DAMAGED_RECORD = "GP334"
KEPT_AS_NOW = "GP335"
NOT_UNDERSTOOD = "GP336"
ROLLED_BACK = "GP337"
UNKNOWN_VERSION = "GP338"
LOCKED = "GP306"
OUTRUN = "GP351"
PLUGIN_FAILED = "GP312"
NO_TIMEOUT = "GP314"

CODES = {
    "GP300": "The kubeconfig cannot be used",
    "GP301": "The API server does not answer",
    "GP302": "The API server does not accept the credentials",
    "GP303": "A permission is missing",
    "GP304": "A field belongs to another field manager",
    "GP305": "The API server rejects an object",
    LOCKED: "Another run holds the lock",
    "GP308": "The lock was lost while the run was writing",
    "GP309": "An object belongs to another stack",
    "GP310": "Permissions are missing; they are named before anything is written",
    "GP311": "The plan lacks the API server's own word, which needs the right to write",
    PLUGIN_FAILED: "The credential plugin of the kubeconfig fails",
    "GP313": "The API server's certificate is not verified",
    NO_TIMEOUT: "GPU_PROVISION_API_TIMEOUT is not a number of seconds",
    "GP320": "The plan does not say how drivers are replaced, which needs rights to read",
    "GP350": "The lock was not taken away: its holder lives",
    OUTRUN: "Another run has written since the plan was made",
    UNRECORDED: "A run could not be put on record",
    NO_SUCH_RUN: "There is no run of this number on record, or none to go back to",
    NOT_ON_RECORD: "The inventory of a run is not on record",
    DAMAGED_RECORD: "A record of a run cannot be read",
    KEPT_AS_NOW: "A rollback brings back versions only: other settings differ, and stay as they are now",
    ROLLED_BACK: "The rollout of the driver failed, and the cluster goes back to the versions that it had",
    UNKNOWN_VERSION: "A version on record is neither in the release catalogue nor in the inventory as it is now",
    NOT_UNDERSTOOD: "An inventory on record is not valid for this version of the tool",
    NODE_AWAY: "The cluster has no node of this name, or the node is not ready",
    POD_AWAY: "The helper pod does not start on a node",
    NO_SHELL: "No command can be run on a node through its helper pod",
}
