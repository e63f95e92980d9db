"""The password that sudo asks for on hosts: given by a person or a secret store, and never part of an inventory."""

from __future__ import annotations

import os
from contextvars import ContextVar

VARIABLE = "GPU_PROVISION_SUDO_PASSWORD"
"""Environment variable for programs that cannot be asked."""

_given: ContextVar[str] = ContextVar("sudo_password", default="")


class Password(str):
    """A password that does not show itself where values are printed to look at them, as pyinfra --debug does."""

    __slots__ = ()

    def __repr__(self) -> str:
        """Return stars."""
        return "'***'"


def give(password: str) -> None:
    """Use a password for the rest of this program; it comes before that of the environment."""
    _given.set(password)


def password() -> Password:
    """Return the password; empty if sudo is not to be given one."""
    return Password(_given.get() or os.environ.get(VARIABLE, ""))
