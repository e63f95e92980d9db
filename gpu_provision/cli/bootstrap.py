"""The one place that switches gevent on, for commands that run pyinfra.

pyinfra's host phase runs on gevent. Patching after the users of ``ssl`` (kubernetes, requests, urllib3) are
imported makes every later HTTPS call end in a RecursionError. So this comes first, or refuses.
"""

from __future__ import annotations

import sys

_TOO_LATE = ("urllib3", "requests", "kubernetes")


def patch() -> None:
    """Make the standard library cooperative; a second call does nothing.

    Raises RuntimeError if a module that must come later is imported already: a mistake of ours.
    """
    from gevent import monkey

    if monkey.is_module_patched("socket"):
        return
    early = [name for name in _TOO_LATE if name in sys.modules]
    if early:
        message = f"{', '.join(early)} imported before gevent's patching"
        raise RuntimeError(message)
    monkey.patch_all()
