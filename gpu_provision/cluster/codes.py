"""Codes of findings about API servers; docs/findings.md is generated from such tables."""

CODES = {
    "GP300": "The kubeconfig cannot be used",
    "GP301": "The API server does not answer",
    "GP302": "The API server does not accept the credentials",
    "GP303": "A permission is missing",
    "GP304": "A field belongs to another field manager",
    "GP305": "The API server rejects an object",
    "GP306": "Another run holds the lock",
    "GP307": "The API server is not a Kubernetes this tool supports",
    "GP308": "The lock was lost while the run was writing",
    "GP309": "An object belongs to another stack",
    "GP310": "Permissions are missing; they are named before anything is written",
    "GP311": "The plan lacks the API server's own word, which needs the right to write",
}
