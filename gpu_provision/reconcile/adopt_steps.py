"""The two halves of an adoption, each under the stack's lock; between them comes an ordinary apply."""

from __future__ import annotations

from collections.abc import Callable

from gpu_provision.adopt.discovery import Found
from gpu_provision.adopt.plan import Adoption, Fate, adoption
from gpu_provision.kube.lock import WriteLock
from gpu_provision.model.findings import Finding, Refused, RunFailed, Severity
from gpu_provision.model.progress import Event, State
from gpu_provision.reconcile import missing_permissions
from gpu_provision.reconcile.adopt_discovery import look
from gpu_provision.reconcile.adopt_run import Adopting, permissions
from gpu_provision.reconcile.session import Session

Listen = Callable[[Event], None]
_FIELD_CONFLICT = "GP304"


def planned(session: Session) -> Adoption:
    """Return what an adoption would do. Raises Unreachable, Refused."""
    reading = session.reading()
    found = look(session.cluster, session.inventory)
    return adoption(found, reading.context, reading.desired)


def hand_over(session: Session, listen: Listen) -> None:
    """Stop the operator and make its objects ours; nothing of ours runs yet, and every driver runs on.

    Raises:
        RunFailed: Something stands against it, and nothing was written; or a step does not come to its end.
        Refused: Permissions are missing; nothing was written.
        Locked: Somebody else writes.
    """
    refuse(session, planned(session))
    with WriteLock(session.cluster, session.inventory, on_wait=_saying(listen)):
        Adopting(session.cluster, _saying(listen)).hand_over(planned(session))


def refuse(session: Session, found: Adoption) -> None:
    """Raise if an adoption must not begin: RunFailed for what stands against it, Refused for missing permissions."""
    against = [item for item in (*found.findings, *_conflicts(session, found)) if item.severity is Severity.ERROR]
    if against:
        raise RunFailed(*against)
    reading = session.reading()
    lacking = missing_permissions.missing(
        session.cluster, session.inventory, permissions(found), "--adopt"
    ) or missing_permissions.missing_to_run(session.cluster, reading)
    if lacking:
        raise Refused(lacking)


def _conflicts(session: Session, found: Adoption) -> tuple[Finding, ...]:
    """Return what would stop the apply: not fields of objects that change hands before."""
    ours = {str(item.ref) for item in found.of(Fate.TAKEN, Fate.REPLACED)}
    return tuple(item for item in session.refusals() if item.code != _FIELD_CONFLICT or item.where not in ours)


def finish(session: Session, listen: Listen) -> None:
    """Take away what an apply has replaced, and last the ClusterPolicy.

    Raises:
        RunFailed: A step does not come to its end.
        Locked: Somebody else writes.
    """

    def again() -> Found:
        return look(session.cluster, session.inventory)

    with WriteLock(session.cluster, session.inventory, on_wait=_saying(listen)):
        Adopting(session.cluster, _saying(listen)).finish(planned(session), again)


def _saying(listen: Listen) -> Callable[[str], None]:
    return lambda message: listen(Event(component="", node="", state=State.PROGRESSING, message=message))
