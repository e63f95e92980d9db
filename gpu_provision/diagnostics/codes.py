"""Codes of findings about a run; docs/findings.md is generated from such tables."""

CODES = {
    "GP201": "A node of the inventory is not in the cluster",
    "GP500": "A component failed",
    "GP501": "The driver failed",
    "GP502": "An image cannot be pulled",
    "GP503": "A validation failed",
    "GP504": "The GPU count is not as declared",
    "GP505": "No GPU is seen on the node",
    "GP506": "A node is not in the cluster",
    "GP508": "A GPU could not be validated, as all of them are in use",
    "GP509": "Nodes keep their previous driver, as their policy says",
    "GP510": "Nodes keep their previous driver, since the rollout cannot go on",
    "GP511": "Nodes keep their startup taint, as they are not validated",
    "GP512": "A pod does not tolerate the startup taint of a node",
    "GP513": "Nodes that left the inventory keep the stack",
    "GP515": "The stack's pods do not tolerate a taint of a node",
    "GP516": "CUDA is not initialized, as the fabric of the node's GPUs is not up",
    "GP517": "A run is over, and nodes stay cordoned or halfway to another driver",
}
