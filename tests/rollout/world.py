"""A simulated cluster for rollouts: nodes, their driver pods and workloads, a clock, and failures.

It does what actions ask for, as a cluster would, and judges every one of them by the rules of the house, in its own
words: nothing here is computed by the code under test but the actions themselves.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from enum import StrEnum

import pytest

from gpu_provision.rollout import states
from gpu_provision.rollout.snapshot import (
    NO_DRIVER,
    Action,
    Cordon,
    DesiredContent,
    DisruptionBudget,
    DriverPod,
    Evict,
    FleetNode,
    GpuUse,
    Pod,
    Policy,
    RemoveLabels,
    Restart,
    RollBack,
    Snapshot,
    StackPresence,
    StateTransition,
    Validate,
    ValidationResult,
)
from gpu_provision.rollout.state_machine import Decision, coalesce, decide
from gpu_provision.rollout.states import UpgradeState

OLD, NEW = "550", "560"
GRACE, START, PROVE, OFFER = 3.0, 4.0, 2.0, 3.0
"""Seconds: a pod ends, a driver starts, then a validation runs, and the device plugin offers the GPUs again."""
BEGINNING = 1_800_000_000.0
_ENDLESS = 4000


class Trouble(StrEnum):
    """What happens to the new driver of a node."""

    NONE = "none"
    CRASHES = "it never becomes ready and is restarted again and again"
    HANGS = "it never becomes ready"
    DISPROVEN = "its validation fails"
    UNPROVEN = "its validation never ends"
    UNOFFERED = "the device plugin never offers the GPUs again"
    WRONG_VERSION = "another version is loaded"
    ALWAYS = "every validation fails, also that of the previous driver"
    LATE = "it dies a minute after it was proven"


@dataclass(kw_only=True)
class Work:
    name: str
    use: GpuUse = GpuUse.REQUEST
    owner: str = "ReplicaSet web"
    labels: dict[str, str] = field(default_factory=dict)
    is_daemon: bool = False
    has_empty_dir: bool = False
    tolerates_cordons: bool = False
    ends: float = math.inf  # by itself
    blocked_until: float = -math.inf  # by a PodDisruptionBudget
    refusal: str = ""
    gone: float = math.inf

    def is_alive(self, now: float) -> bool:
        """Whether it still holds what it holds."""
        return now < min(self.ends, self.gone)


@dataclass(kw_only=True)
class Driver:
    """A driver pod, with the one digest that it was made from."""

    uid: str
    digest: str
    started: float
    gone: float = math.inf


@dataclass(kw_only=True)
class Machine:
    name: str
    domain: str = "shared"
    trouble: Trouble = Trouble.NONE
    labels: dict[str, str] = field(default_factory=dict)
    annotations: dict[str, str] = field(default_factory=dict)
    cordoned_by: str = ""  # empty: schedulable
    is_ready: bool = True
    has_taint: bool = False  # that keeps driver pods away
    driver: Driver | None = None
    work: list[Work] = field(default_factory=list)
    proofs: dict[str, float] = field(default_factory=dict)  # uid of a driver -> when its validation ends
    revision: int = 1
    is_foreign: bool = False  # another client wants it cordoned
    left_out: str = ""  # of this run
    is_template_observed: bool = True
    leaves: bool = False  # the inventory
    has_labels: bool = True  # of the stack
    is_forgotten: bool = False  # the stack's mark is off as well

    @property
    def state(self) -> UpgradeState:
        return states.parse_state(self.labels.get(states.STATE, ""))


class World:
    """Make it, `run` it, look at it. ``check`` sees every decision before it is carried out."""

    def __init__(self, machines: Iterable[Machine], policy: Policy, *, content: str = NEW, previous: str = OLD) -> None:
        """Start with the previous driver on every machine that has none of its own."""
        self.machines = {machine.name: machine for machine in machines}
        self.policy, self.content, self.previous = policy, content, previous
        self.now, self.is_rolling_back, self._uids = BEGINNING, False, 0
        self.makes_strides = False  # several states in one write, as runs do
        self.tells_managers = True  # False: a cluster whose managed fields have been stripped
        self.decisions: list[Decision] = []
        self.writing: dict[str, StateTransition] = {}  # on their way
        self.rolled_back: list[str] = []
        self.observers: list[Callable[[Snapshot, Decision], None]] = []
        self.judges: list[Callable[[Snapshot, tuple[Action, ...]], None]] = []
        self.restarted: list[tuple[float, str]] = []  # when, and which node's driver
        self.writes = 0  # to nodes
        for machine in self.machines.values():
            if machine.driver is None and not machine.has_taint:
                machine.driver = self._new_driver(OLD, BEGINNING - 1000)

    @property
    def restarts(self) -> list[str]:
        return [name for _, name in self.restarted]

    def _new_driver(self, digest: str, started: float) -> Driver:
        self._uids += 1
        return Driver(uid=f"driver-{self._uids}", digest=digest, started=started)

    # --- observation -------------------------------------------------------------------------------------------------

    def snapshot(self) -> Snapshot:
        known = (machine for machine in self.machines.values() if not machine.is_forgotten)
        nodes = tuple(self._node(machine, place) for place, machine in enumerate(known))
        target, previous = f"fleet-{self.content}", f"fleet-{self.previous}" if self.previous else ""
        rolling_back = self.is_rolling_back
        return Snapshot(now=self.now, target=target, previous=previous, nodes=nodes, is_rolling_back=rolling_back)

    def _node(self, machine: Machine, place: int) -> FleetNode:
        return FleetNode(
            name=machine.name,
            domain=machine.domain,
            desired=NO_DRIVER if machine.leaves else DesiredContent(self.content, self.content),
            position=place,
            revision=str(machine.revision),
            labels=dict(machine.labels),
            annotations=dict(machine.annotations),
            is_cordoned=bool(machine.cordoned_by),
            cordoned_by=machine.cordoned_by if self.tells_managers else "",
            is_ready=machine.is_ready,
            driver=self._driver_pod(machine),
            validation_result=self._proof(machine),
            pods=tuple(self._pod(machine, work) for work in machine.work if self.now < work.gone),
            offers_gpus=self.offers_gpus(machine),
            exclusion_reason=machine.left_out,
            is_template_observed=machine.is_template_observed,
            stack=self._stack(machine) if machine.leaves else StackPresence.STAYS,
        )

    @staticmethod
    def _stack(machine: Machine) -> StackPresence:
        if machine.has_labels:
            return StackPresence.LABELLED
        return StackPresence.ENDING if machine.driver else StackPresence.BARE

    def _pod(self, machine: Machine, work: Work) -> Pod:
        blocked = self.now < work.blocked_until
        return Pod(
            namespace="default",
            name=work.name,
            uid=f"{machine.name}/{work.name}",
            owner=work.owner,
            labels=work.labels,
            use=work.use,
            is_daemon=work.is_daemon,
            is_finished=self.now >= work.ends,
            has_empty_dir=work.has_empty_dir,
            tolerates_cordons=work.tolerates_cordons,
            is_terminating=work.gone < math.inf,
            refusal=work.refusal,
            budgets=(DisruptionBudget("budget", 0 if blocked else 1),) if work.blocked_until > -math.inf else (),
        )

    def _driver_pod(self, machine: Machine) -> DriverPod | None:
        driver = machine.driver
        if driver is None:
            return None
        return DriverPod(
            uid=driver.uid,
            digest=driver.digest,
            is_ready=self.is_driver_ready(machine),
            is_terminating=driver.gone < math.inf,
            restarts=self._restarts(machine, driver),
        )

    def _restarts(self, machine: Machine, driver: Driver) -> int:
        crashes = driver.digest == NEW and machine.trouble is Trouble.CRASHES
        return int((self.now - driver.started) // 2) if crashes else 0

    def is_driver_ready(self, machine: Machine) -> bool:
        driver = machine.driver
        if driver is None or not driver.started + START <= self.now < driver.gone:
            return False
        if driver.digest == NEW and machine.trouble in {Trouble.CRASHES, Trouble.HANGS}:
            return False
        dies = machine.trouble is Trouble.LATE and driver.digest == NEW
        return not dies or self.now < machine.proofs.get(driver.uid, math.inf) + 60

    def offers_gpus(self, machine: Machine) -> bool:
        """Whether the device plugin of a machine has come back after its driver."""
        driver = machine.driver
        if driver is None or (driver.digest == NEW and machine.trouble is Trouble.UNOFFERED):
            return False
        return driver.started + START + OFFER <= self.now < driver.gone

    def _proof(self, machine: Machine) -> ValidationResult | None:
        uid = machine.driver.uid if machine.driver else ""
        if machine.driver is None or self.now < machine.proofs.get(uid, math.inf):
            return None
        return self._verdict(machine, machine.driver)

    def _verdict(self, machine: Machine, driver: Driver) -> ValidationResult:
        is_new = driver.digest == NEW
        if (is_new and machine.trouble is Trouble.DISPROVEN) or machine.trouble is Trouble.ALWAYS:
            return ValidationResult(passed=False, reason="vectorAdd found no device")
        other = "390" if is_new and machine.trouble is Trouble.WRONG_VERSION else driver.digest
        return ValidationResult(passed=True, version=other)

    def is_proven(self, machine: Machine) -> bool:
        """Whether the driver that a machine has now is the wanted one and has shown that it works."""
        proof = self._proof(machine)
        wanted = machine.driver is not None and machine.driver.digest == self.content
        return wanted and proof is not None and proof.passed and proof.version == self.content

    # --- actions -------------------------------------------------------------------------------------------------

    def apply(self, action: Action) -> bool:
        match action:
            case StateTransition():
                return self._move(action)
            case Evict():
                return self._evict(action)
            case Restart():
                return self._restart(self.machines[action.node], action.uid)
            case Validate():
                return self._validate(self.machines[action.node], action.driver)
            case RemoveLabels():
                return self._take_off(self.machines[action.node])
            case RollBack():
                assert self.previous
                assert not self.is_rolling_back, "a rollback is not rolled back"
                self.content, self.is_rolling_back = self.previous, True
                self.rolled_back.append(action.reason)
                return True

    def _move(self, action: StateTransition) -> bool:
        machine = self.machines[action.node]
        if action.revision != str(machine.revision):
            return False  # 409: another resourceVersion
        assert len(action.reason) < 1000
        before = (dict(machine.labels), dict(machine.annotations), machine.cordoned_by)
        machine.labels = {**machine.labels, states.STATE: action.state.value}
        if not action.state.value:
            del machine.labels[states.STATE]
        for key, value in action.annotations:
            machine.annotations.pop(key, None)
            if value is not None:
                machine.annotations[key] = value
        if action.cordon is Cordon.SET and not machine.cordoned_by:
            machine.cordoned_by = "gpu-provision"
        if action.cordon is Cordon.LIFT:
            assert not machine.is_foreign, f"{machine.name} was cordoned by another client"
            machine.cordoned_by = ""
        assert before != (machine.labels, machine.annotations, machine.cordoned_by), f"a write of nothing: {action}"
        machine.revision += 1
        self.writes += 1
        return True

    def _evict(self, action: Evict) -> bool:
        machine = self.machines[action.node]
        work = next(item for item in machine.work if f"{machine.name}/{item.name}" == action.uid)
        if self.now < work.blocked_until:
            work.refusal = "Cannot evict pod as it would violate the pod's disruption budget."
            return False
        work.gone = min(work.gone, self.now + GRACE)
        return True

    def _restart(self, machine: Machine, uid: str) -> bool:
        driver = machine.driver
        if driver is None or driver.uid != uid or driver.gone < math.inf:
            return False
        self.restarted.append((self.now, machine.name))
        driver.gone = self.now + GRACE
        return True

    def _take_off(self, machine: Machine) -> bool:
        if not machine.has_labels:
            return False
        machine.has_labels = False
        machine.revision += 1
        if machine.driver is not None:
            machine.driver.gone = min(machine.driver.gone, self.now + GRACE)
        return True

    def _validate(self, machine: Machine, uid: str) -> bool:
        if machine.driver is None or machine.driver.uid != uid or uid in machine.proofs:
            return False
        endless = machine.driver.digest == NEW and machine.trouble is Trouble.UNPROVEN
        machine.proofs[uid] = math.inf if endless else self.now + PROVE
        return True

    # --- time ---------------------------------------------------------------------------------------------------------

    def settle(self) -> None:
        """Let the DaemonSet controller do its part: a driver pod on every node that lets it."""
        for machine in self.machines.values():
            if machine.driver is not None and self.now >= machine.driver.gone:
                machine.driver = None
            if machine.driver is None and not machine.has_taint and machine.is_ready and machine.has_labels:
                machine.driver = self._new_driver(self.content, self.now)
            if machine.leaves and not machine.is_forgotten and self._is_free(machine):
                self._take_off(machine)
                machine.is_forgotten = True

    def _is_free(self, machine: Machine) -> bool:
        """Whether a run takes the labels off: no rollout has its marks there, and no work would lose its GPU."""
        marks = {states.STATE, *states.ALL_ANNOTATIONS} & {*machine.labels, *machine.annotations}
        return not marks and not (machine.has_labels and self.users(machine))

    def users(self, machine: Machine) -> list[Work]:
        """Return the work on a machine that would lose its GPU with the driver."""
        sure, unknown = {GpuUse.REQUEST, GpuUse.CLAIM}, {GpuUse.NONE, GpuUse.SOME_CLAIM}
        return [
            work
            for work in machine.work
            if work.is_alive(self.now) and work.use not in unknown and (work.use in sure or not work.is_daemon)
            if machine.is_ready or work.gone == math.inf
        ]

    def _next_event(self, until: float) -> float:
        moments = [until]
        for machine in self.machines.values():
            moments += [*machine.proofs.values()]
            moments += [moment + 60 for moment in machine.proofs.values() if machine.trouble is Trouble.LATE]
            moments += [moment for work in machine.work for moment in (work.ends, work.blocked_until, work.gone)]
            if machine.driver is not None:
                driver = machine.driver
                moments += [driver.started + START, driver.started + START + OFFER, driver.gone]
                crashing = machine.trouble is Trouble.CRASHES and self._restarts(machine, driver) < 12
                moments += [driver.started + 2 * count for count in range(1, 12)] if crashing else []
        return min((moment for moment in moments if moment > self.now), default=math.inf)

    def step(self, kept: Collection[int] | None = None, slow: Collection[int] = ()) -> bool:
        """Look, decide, act; let time pass if there was nothing to do. Return whether anything may still happen."""
        self.settle()
        seen = self.snapshot()
        decision = decide(seen, self.policy, self.writing)
        assert decision == decide(seen, self.policy, self.writing), "the same snapshot has the same answer"
        self.decisions.append(decision)
        for observe in self.observers:
            observe(seen, decision)
        actions = tuple(coalesce(decision.actions, seen, self.policy)) if self.makes_strides else decision.actions
        for judge in self.judges:
            judge(seen, actions)
        if kept is not None:
            for index, action in enumerate(actions):
                if index in kept:
                    self.apply(action)
            self._forget()
            return True
        arriving = [*self.writing.values()]
        late = {
            index: each for index, each in enumerate(actions) if index in slow and isinstance(each, StateTransition)
        }
        self.writing = {move.node: move for move in late.values()}
        now = (action for index, action in enumerate(actions) if index not in late)
        changed = [self.apply(action) for action in (*arriving, *now)]
        if any(changed) or late:
            return True
        following = self._next_event(decision.until)
        self.now = following if following < math.inf else self.now
        return following < math.inf

    def _forget(self) -> None:
        for machine in self.machines.values():
            for work in machine.work:
                work.refusal = ""

    def run(self) -> Decision:
        for _ in range(_ENDLESS):
            if not self.step():
                return self.decisions[-1]
        pytest.fail(f"no end: {self.decisions[-1]}")
