"""Exit codes, and the codes of findings by name; codes.toml has title, cause and remedy of each finding.

Only what explains a code reads that table; runs need the names alone.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from enum import IntEnum
from functools import cache
from pathlib import Path
from typing import NamedTuple

from gpu_provision.model.text import find_nearest


class ExitCode(IntEnum):
    """Exit codes of the gpu-provision command, as its --help lists them."""

    OK = 0
    FAILED = 1
    DIFFERENCES = 2
    USAGE = 64
    INVALID_INVENTORY = 65
    UNREACHABLE = 69
    LOCKED = 75
    INTERRUPTED = 130


INTERNAL = "GP001"
USAGE = "GP002"
INTERRUPTED = "GP003"
NO_INVENTORY = "GP004"
NOT_CONFIRMED = "GP005"
NOTHING_MATCHES = "GP006"
NOT_WRITABLE = "GP007"
NO_SANDBOX = "GP009"
NOT_AS_DECLARED = "GP010"
NO_ENDPOINT = "GP011"
ABSENT = "GP210"
EXISTENCE_UNKNOWN = "GP211"
LOCKED = "GP306"
PLUGIN_FAILED = "GP312"
NO_TIMEOUT = "GP314"
UNRECORDED = "GP330"
NO_SUCH_RUN = "GP331"
NOT_ON_RECORD = "GP332"
DAMAGED_RECORD = "GP334"
OTHER_SETTINGS_STAY = "GP335"
NOT_UNDERSTOOD = "GP336"
ROLLED_BACK = "GP337"
UNKNOWN_VERSION = "GP338"
GPUS_IN_USE = "GP340"
NOT_GONE = "GP341"
LEFT_OVER = "GP342"
TAKEN_OVER = "GP343"
CRDS_KEPT = "GP344"
SHARED_OBJECT_STAYS = "GP345"
HOSTS_HELD_BACK = "GP346"
PROGRAMS_KEPT = "GP347"
UNMANAGED_PODS = "GP348"
BUDGET_HOLDS = "GP349"
PLAN_STALE = "GP351"
NO_PLAN = "GP352"
OTHER_FORMAT = "GP353"
OTHER_CLUSTER = "GP354"
OTHER_INVENTORY = "GP355"
STATE_CHANGED = "GP356"
NOTHING_TO_ADOPT = "GP360"
UPGRADING = "GP361"
NOT_EXPRESSIBLE = "GP362"
NOT_AS_INVENTORY = "GP363"
DRIVER_RESTARTS = "GP364"
HELM_RECORDS = "GP365"
NOT_DONE = "GP366"
NOT_CARRIED_OVER = "GP368"
NOT_IMPORTABLE = "GP369"
NO_PLACE_FOR_REPORT = "GP370"
NO_LOCAL_RECORD = "GP371"
DAMAGED_LOCAL_RECORD = "GP372"
PART_ONLY = "GP380"
OTHER_TOOL = "GP381"
TOO_MANY_NODES = "GP382"
STACKS_EXIST = "GP390"
NOT_IN_TIME = "GP391"
NAMESPACE_STAYS = "GP392"
NAMESPACE_CHANGED = "GP393"
PROXY_CREDENTIALS = "GP394"
UNKNOWN_KEYS = "GP395"
OTHERS_FIELDS = "GP396"
RULES_REFUSED = "GP397"
OS_DIFFERS = "GP403"
RUNTIME_WITHOUT_CDI = "GP407"
STAYS_TAINTED = "GP408"
NO_PLUGIN_CONFIG = "GP416"
OTHER_PLATFORM = "GP424"
NO_DRIVER_TOOLKIT = "GP425"
UNKNOWN_RELEASE = "GP426"
WITHOUT_DRIVER_AFTER_UPDATE = "GP427"
HOST_SETTING_IGNORED = "GP428"
MACHINE_POOL_SHARED = "GP429"
NO_CONTROLLER = "GP430"
RESOURCE_NOT_READY = "GP431"
NOT_FOR_RESOURCE = "GP432"
MANAGED_BY_OPERATOR = "GP433"
RESOURCE_CHANGED = "GP434"
DECLARED_ELSEWHERE = "GP435"
OTHER_VERSION = "GP436"
MACHINE_POOL_STUCK = "GP437"
MACHINE_CONFIG_UNREACHED = "GP438"
ARGUMENTS_IGNORED = "GP439"
UNREADABLE = "GP602"
REBOOT_NEEDED = "GP603"
HOST_FAILED = "GP604"
HOST_UNFINISHED = "GP605"
HOSTS_LEFT_OUT = "GP606"
ENDED_EARLY = "GP607"
UNKNOWN_HOST = "GP608"
GPU_COUNT = "GP609"
NO_HOST = "GP617"
NO_CLUSTER_HOST = "GP618"
NO_INVENTORY_FILE = "GP619"
HOST_DRIVER = "GP620"
RUNTIME_OLD = "GP640"
NODE_NAME = "GP650"
OTHER_SYSTEM = "GP651"
HOST_UNREAD = "GP655"
COREOS = "GP658"
OTHER_ARCHITECTURE = "GP661"
NODE_NOT_READY = "GP690"
HELPER_POD_FAILED = "GP691"
NO_SHELL = "GP692"
PODS_WOULD_BE_LOST = "GP695"
NOT_DRAINED = "GP696"
REBOOT_TIMEOUT = "GP697"
NOT_INSTALLED = "GP800"
NOT_RUN = "GP801"
NO_LOGIN = "GP802"

_PREFLIGHT = (411, 412, *range(609, 617), *range(620, 633), *range(640, 647), *range(650, 658), *range(660, 665))
PREFLIGHT = frozenset(f"GP{number}" for number in _PREFLIGHT)
"""Codes of preflight; ``preflight.ignore`` or --ignore downgrades them to warnings."""


class Meaning(NamedTuple):
    """Title, usual cause and remedy of a code."""

    title: str
    cause: str
    remedy: str


@cache
def meanings() -> Mapping[str, Meaning]:
    """Return the meaning of every code, in the order of codes."""
    import tomllib  # noqa: PLC0415 - see above

    table = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
    return {code: Meaning(**table[code]) for code in sorted(table)}


def find_nearest_code(code: str, known: Collection[str]) -> str:
    """Return the known code that a mistyped one resembles most, of its own area if there is one; empty for none."""
    for head in (code[:4], code[:3], ""):
        if near := find_nearest(code, sorted(each for each in known if each.startswith(head))):
            return near
    return ""
