"""Codes of findings about the operator."""

from __future__ import annotations

STACKS_EXIST = "GP390"
NOT_IN_TIME = "GP391"
NAMESPACE_STAYS = "GP392"
NAMESPACE_CHANGED = "GP393"
PROXY_CREDENTIALS = "GP394"
UNKNOWN_KEYS = "GP395"
OTHERS_FIELDS = "GP396"
RULES_REFUSED = "GP397"
NO_CONTROLLER = "GP430"
NOT_REACHED = "GP431"
NOT_FOR_RESOURCE = "GP432"
LOOKED_AFTER = "GP433"
IN_BETWEEN = "GP434"
DECLARED_ELSEWHERE = "GP435"
OTHER_VERSION = "GP436"

CODES: dict[str, str] = {
    STACKS_EXIST: "The operator is not removed while there are stacks: it alone takes them off the cluster",
    NOT_IN_TIME: "Something of the operator did not become ready, or did not go, within the time given",
    NAMESPACE_STAYS: "A namespace stays, since it holds objects of others",
    NAMESPACE_CHANGED: "A stack does not move to another namespace",
    PROXY_CREDENTIALS: "A stack has no proxy that needs credentials",
    UNKNOWN_KEYS: "A stack has keys that the version to be installed does not know, and that would be dropped",
    OTHERS_FIELDS: "Another tool has applied the operator, otherwise than this version installs it",
    RULES_REFUSED: "An API server does not take the rules by which it would check stacks itself; it has none of them",
    NO_CONTROLLER: "A stack has a resource, and no controller works that would look after it",
    NOT_REACHED: "A controller has not made a stack as it is declared; reason and message are its own",
    NOT_FOR_RESOURCE: "Something that a stack's resource cannot say, so that its controller cannot carry it out",
    LOOKED_AFTER: "A controller looks after the stack, and a command would get into its way",
    IN_BETWEEN: "A stack's resource was changed or deleted while a command waited for it",
    DECLARED_ELSEWHERE: "GitOps or another tool declares a stack's resource, too, and may bring it back",
    OTHER_VERSION: "The controller, or the definition of stacks, is of another version of gpu-provision",
}
"""Code -> title."""
