"""The same sandbox as for tests of the host phase."""

from tests.hosts.conftest import sandbox

__all__ = ["sandbox"]
