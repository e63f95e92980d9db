"""Who is asking: bearer tokens from a file, and rules that forbid users things (for tests)."""

from __future__ import annotations

import contextlib
import json
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gpu_provision import files
from gpu_provision.sandbox.apiserver.status import StatusError, unauthorized

ADMIN, ANONYMOUS = "sandbox-admin", "system:anonymous"


@dataclass(frozen=True, slots=True)
class Rule:
    """Something that a user may not do; an empty tuple means every verb, or every resource."""

    user: str
    verbs: tuple[str, ...] = ()
    resources: tuple[str, ...] = ()
    namespaces: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Attempt:
    """What a request wants to do."""

    user: str
    verb: str
    group: str = ""
    resource: str = ""
    namespace: str = ""
    name: str = ""


class Tokens:
    """The file ``tokens.json``: token -> user name; read again whenever it changes."""

    def __init__(self, path: Path) -> None:
        """Make the file with one token for the administrator if it is not there."""
        self._path, self._users, self._read_at = path, dict[str, str](), -1
        if not path.exists():
            self._write({secrets.token_urlsafe(32): ADMIN})

    def _write(self, users: dict[str, str]) -> None:
        """Replace the file in one step; only its owner may read it."""
        files.put(self._path, json.dumps(users, indent=1), private=True)

    def users(self) -> dict[str, str]:
        """Return user names by token; while the file cannot be read, those of before."""
        changed_at = self._path.stat().st_mtime_ns if self._path.exists() else 0
        if changed_at != self._read_at:
            self._read_at = changed_at
            with contextlib.suppress(OSError, ValueError):
                self._users = dict(json.loads(self._path.read_text()))
        return self._users

    def token(self, user: str = ADMIN) -> str:
        """Return a user's token."""
        return next(token for token, name in self.users().items() if name == user)

    def add(self, user: str) -> str:
        """Give a user a new token."""
        token = secrets.token_urlsafe(32)
        self._write({**self.users(), token: user})
        return token

    def ensured(self, user: str) -> str:
        """Return a user's token, a new one if they have none."""
        return self.token(user) if user in self.users().values() else self.add(user)

    def user_of(self, header: str) -> str:
        """Return the user of an Authorization header; whoever shows no token is nobody. Raises StatusError 401."""
        scheme, _, token = header.strip().partition(" ")
        if scheme.lower() != "bearer" or not token.strip():
            return ANONYMOUS
        user = self.users().get(token.strip())
        if user is None:
            raise unauthorized()
        return user


def check(attempt: Attempt, rules: Sequence[Rule]) -> None:
    """Refuse (403) what a rule forbids; whether anything else is allowed, the authorizer says."""
    if any(_forbids(rule, attempt) for rule in rules):
        raise forbidden(attempt)


def _forbids(rule: Rule, attempt: Attempt) -> bool:
    return (
        rule.user == attempt.user
        and (not rule.verbs or attempt.verb in rule.verbs)
        and (not rule.resources or attempt.resource in rule.resources)
        and (not rule.namespaces or attempt.namespace in rule.namespaces)
    )


def forbidden_path(user: str, method: str, path: str) -> StatusError:
    """403 for a path that is no resource."""
    message = f'forbidden: User "{user}" cannot {method.lower()} path "{path}"'
    return StatusError(403, "Forbidden", message)


def forbidden(attempt: Attempt) -> StatusError:
    """403 in the words of the real server."""
    plural = attempt.resource.partition("/")[0]
    qualified = f"{plural}.{attempt.group}" if attempt.group else plural
    subject = f'{qualified} "{attempt.name}"' if attempt.name else qualified
    scope = f'in the namespace "{attempt.namespace}"' if attempt.namespace else "at the cluster scope"
    message = (
        f'{subject} is forbidden: User "{attempt.user}" cannot {attempt.verb} resource "{attempt.resource}" '
        f'in API group "{attempt.group}" {scope}'
    )
    details = {"name": attempt.name, "group": attempt.group, "kind": plural}
    return StatusError(403, "Forbidden", message, details={key: value for key, value in details.items() if value})
