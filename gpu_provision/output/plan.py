"""A plan as text and as JSON.

The text has the order of decisions: changes, disruption, validations, blocking findings.
`+ ~ -` mark changes only; the tool's own records are in JSON only.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from operator import attrgetter
from typing import Any

from gpu_provision.hosts.result import HostsResult
from gpu_provision.model import codes
from gpu_provision.model.findings import Finding, Severity
from gpu_provision.model.plan import NOT_IN_INVENTORY, Action, Change, Departure, FieldChange, Plan, ResourceChange
from gpu_provision.model.text import pluralize
from gpu_provision.output import findings as findings_view
from gpu_provision.output import rollout as rollout_view
from gpu_provision.output import status as status_view
from gpu_provision.output.findings import to_json_value
from gpu_provision.output.object_text import field_document, field_line, image_version, is_downgrade, visible_fields
from gpu_provision.output.text import PLAIN, Style, group_by, indent, join_first, ranges, wrap

SIGNS = {Action.CREATE: ("+", "green"), Action.UPDATE: ("~", "yellow"), Action.DELETE: ("-", "red")}
_OBSTACLES = {Severity.ERROR: ("blocked by", "red"), Severity.WARNING: ("to know", "yellow")}
_DRIVER, _MACHINE_CONFIG = "driver", "machine_config"
_TOOLKIT = "[openshift-driver-toolkit-ctr]"
_RECORDS = ("", "-history", "-validations")  # suffixes to the inventory's name
_FUTURE = {"runs": "run", "restarts": "restart", "undoes": "undo", "removes": "remove", "reboots": "reboot"}
_FEW = 3  # pods that are named; labels of a node that are counted
_MAY = "  (may)"
_COUNTED = {
    Action.CREATE: "to create",
    Action.UPDATE: "to update",
    Action.DELETE: "to delete",
    Action.RUN: "to validate",
    Action.WAIT: "not ready yet",
}


def text(plan: Plan, style: Style = PLAIN, *, on_hosts: HostsResult | None = None) -> str:
    """Return the whole plan, hosts before cluster."""
    hosts = status_view.hosts_text(on_hosts, style, done=False) if on_hosts else ""
    changed = on_hosts.changed if on_hosts else ()
    last = closing(plan, hosts=len(changed), reboots=sum(map(status_view.is_rebooted, changed)))
    if any(each.code == codes.NO_HOST for each in plan.findings):
        last = status_view.NO_HOST
    body = [*_parts(plan, style, hosts), _obstacles(plan.findings, style), style.bold(last)]
    return wrap("\n\n".join(filter(None, body)), style.columns)


def announcement(plan: Plan, style: Style = PLAIN) -> str:
    """Return the cluster plan at the start of a run, without findings, which the run prints at its end."""
    return wrap("\n\n".join(filter(None, _parts(plan, style))), style.columns)


def _parts(plan: Plan, style: Style, hosts: str = "") -> Iterator[str]:
    yield style.bold(f"Inventory {plan.inventory}, release {plan.release}, cluster {plan.cluster}")
    yield _section("hosts", hosts, style)
    yield changes(plan, style)
    yield disruption(plan, style)
    yield validations(plan, style)
    yield resource_text(plan.resource, style)


def _section(title: str, body: str, style: Style) -> str:
    return f"{style.bold(title)}\n{indent(body)}" if body else ""


def changes(plan: Plan, style: Style = PLAIN) -> str:
    """Return the changes of every component, and the names of unchanged components."""
    visible = [change for change in _visible_changes(plan) if change.action in SIGNS]
    blocks = [_component(name, own, style) for name, own in _by_component(visible, plan.components).items()]
    unchanged = [name for name in plan.components if not plan.changes_of(name)]
    if plan.changes and unchanged:
        blocks.append(style.paint("dim", f"unchanged: {', '.join(unchanged)}"))
    if not all(change.certain for change in plan.changes):
        blocks.append(style.paint("dim", "(may): depends on an earlier step"))
    return "\n".join(blocks)


def _visible_changes(plan: Plan) -> Sequence[Change]:
    """Return all changes but those of lock, history and members, which are returned only without others."""
    records = {f"{plan.inventory}{of}" for of in _RECORDS}
    kinds = {"ConfigMap", "Lease"}
    return [each for each in plan.changes if each.ref.kind not in kinds or each.ref.name not in records] or plan.changes


def disruption(plan: Plan, style: Style = PLAIN) -> str:
    """Return pod restarts, evictions, their durations and waves; empty if none."""
    restarts = (change for change in plan.changes if change.nodes and change.action in SIGNS)
    lines = []
    for (component, by_node), group in group_by(restarts, lambda each: (each.component, _is_by_node(each))).items():
        nodes = {node for change in group for node in change.nodes}
        lines.append(f"{component}: {_restarts('will restart', ranges(nodes), len(nodes), by_node=by_node)}")
    configs = [each for each in plan.changes if each.component == _MACHINE_CONFIG and each.action in SIGNS]
    reboots = dict.fromkeys((effect, change.certain) for change in configs for effect in change.effects)
    lines = [f"{_MACHINE_CONFIG}: {_in_future_tense(effect, certain=certain)}" for effect, certain in reboots] + lines
    lines += [rollout_view.text(plan.rollout, style)] if plan.rollout and rollout_view.is_reported(plan.rollout) else []
    return _section("disruption", "\n".join(lines), style)


def _restarts(verb: str, where: str, nodes: int, *, by_node: bool) -> str:
    if nodes == 1:
        return f"{verb} pods on {where}"
    return f"{verb} pods on {nodes} nodes{', node by node' if by_node else ''}: {where}"


def validations(plan: Plan, style: Style = PLAIN) -> str:
    """Return the pending validations, and the objects that are not ready yet."""
    runs, waits = list[str](), list[str]()
    for group in group_by((each for each in plan.changes if each.action not in SIGNS), _group_key).values():
        change, nodes = group[0], ranges(_node_name(each) for each in group)
        if change.action is Action.WAIT:
            waits += [f"{change.component}: {_title(group)}", *(f"    {effect}" for effect in effects(change))]
            continue
        node = _node_name(change)
        lines = [_in_future_tense(_replace_node(effect, node, nodes)) for effect in change.effects]
        lines = lines or [f"will run on {nodes}"]
        runs.append(f"{style.paint('cyan', '>')} {change.component}: {lines[0]}{'' if change.certain else _MAY}")
        runs += [f"    {effect}" for effect in lines[1:]]
    parts = _section("validation", "\n".join(runs), style), _section("not ready yet", "\n".join(waits), style)
    return "\n\n".join(filter(None, parts))


def _obstacles(findings: Iterable[Finding], style: Style) -> str:
    by_severity = group_by(findings_view.merge_findings(findings), lambda finding: finding.severity)
    blocks = []
    for severity, (title, color) in _OBSTACLES.items():
        mark = style.paint(color, "!")
        lines = (f"{mark} {findings_view.finding_text(finding, style)}" for finding in by_severity.get(severity, ()))
        blocks.append(_section(title, "\n".join(lines), style))
    return "\n\n".join(filter(None, blocks))


def closing(plan: Plan, *, hosts: int = 0, reboots: int = 0) -> str:
    """Return one sentence with the counts of changes, hosts and reboots."""
    counts = Counter(change.action for change in _visible_changes(plan))
    problems = sum(finding.severity is Severity.ERROR for finding in plan.findings)
    if plan.is_empty and not (problems or hosts):
        return "Plan: everything is as declared. Nothing was changed."
    parts = [f"{pluralize(hosts, 'host')} to change"] if hosts else []
    parts += [f"{reboots} of them to reboot"] if reboots else []
    parts += [f"{counts[action]} {word}" for action, word in _COUNTED.items() if counts[action] or action in SIGNS]
    nodes = plan.rollout.nodes if plan.rollout else ()
    drivers = sum(not (node.leaves or node.keeps_driver) for node in nodes)
    divided, pods = sum(node.keeps_driver for node in nodes), sum(len(node.evicts) for node in nodes)
    waves = f" in {pluralize(len(plan.rollout.waves), 'wave')}" if plan.rollout else ""
    parts += [f"{pluralize(drivers, 'driver')} to replace{waves}"] if drivers else []
    parts += [f"{pluralize(divided, 'node')} to divide into MIG devices{waves}"] if divided else []
    parts += [f"{pluralize(pods, 'pod')} to evict"] if pods else []
    parts += [pluralize(problems, "conflict")] if problems else []
    return f"Plan: {', '.join(parts)}. Nothing was changed."


def upgrades(plan: Plan) -> list[str]:
    """Return ``driver 595.91.07 -> 580.126.20 on 3 nodes in 2 waves`` for each component with another version."""
    lines = []
    for component, own in _by_component(plan.changes, plan.components).items():
        nodes, waves = {node for change in own for node in change.nodes}, ""
        if component == _DRIVER and plan.rollout:
            nodes = {node.node for node in plan.rollout.nodes if not (node.leaves or node.keeps_driver)}
            waves = f" in {pluralize(len(plan.rollout.waves), 'wave')}" if nodes else ""
        where = f" on {pluralize(len(nodes), 'node')}{waves}" if nodes else ""
        version = _version_change(own) or (f"{component} replaced" if waves else "")
        lines += [f"{version}{where}"] if version else []
    divided = (node for node in (plan.rollout.nodes if plan.rollout else ()) if node.keeps_driver)
    by_reason = group_by(divided, attrgetter("why")).items()
    return [*lines, *(f"{why} on {pluralize(len(nodes), 'node')}" for why, nodes in by_reason)]


def _version_change(own: Iterable[Change]) -> str:
    """Return ``driver 595.91.07 -> 580.126.20``; empty if no image of a component gets another version."""
    images = [
        (change.component, field)
        for change in own
        for field in change.fields
        if _is_own_image(field) and isinstance(field.old, str) and isinstance(field.new, str)
    ]
    versions = dict.fromkeys((image_version(field.old), image_version(field.new)) for _, field in images)
    parts = [f"{old} -> {new}" for old, new in versions if old != new]
    return f"{images[0][0]} {', '.join(parts)}" if parts else ""


def _created_versions(own: Iterable[Change]) -> dict[str, None]:
    """Return the versions of a component's new workloads: of the first container of each, which is its own."""
    specs = [(change.manifest or {}).get("spec") or {} for change in own if change.action is Action.CREATE]
    pods = [spec["template"]["spec"] for spec in specs if "template" in spec]
    return dict.fromkeys(image_version(pod["containers"][0]["image"]) for pod in pods)


def _is_own_image(field: FieldChange) -> bool:
    """Whether a field is a component's image.

    Init containers run the validator or the driver manager, and a container beside the driver OpenShift's toolkit.
    """
    return ".containers[" in field.path and field.path.endswith(".image") and _TOOLKIT not in field.path


def _by_component(pending: Iterable[Change], components: Sequence[str]) -> dict[str, list[Change]]:
    """Return changes by component in dependency order; removed components come last."""
    groups = group_by(pending, lambda change: change.component)
    known = [name for name in components if name in groups]
    return {name: groups[name] for name in (*known, *sorted(groups.keys() - set(components)))}


def resource_text(change: ResourceChange | None, style: Style = PLAIN) -> str:
    """Return the changes of the GPUStack that carries out the plan; empty without an operator."""
    if change is None:
        return ""
    if not change.fields:
        return f"The operator manages this stack; {change.name} is already up to date."
    fields = [f"  {style.paint('yellow', '~')} {field_line('GPUStack', field)}" for field in change.fields]
    return "\n".join([f"The operator carries this out: {change.name} is to change.", *fields])


def effects(change: Change) -> tuple[str, ...]:
    """Return the side effects as sentences, with ranges of nodes."""
    if not change.nodes:
        return change.effects
    where = ranges(change.nodes)
    if change.action is Action.WAIT:
        return tuple(f"{where}: {effect}" for effect in change.effects)
    return _restarts("restarts", where, len(change.nodes), by_node=_is_by_node(change)), *change.effects


def _is_by_node(change: Change) -> bool:
    spec = (change.manifest or {}).get("spec", {})
    return bool(spec.get("updateStrategy", {}).get("type") == "OnDelete")


def _in_future_tense(effect: str, *, certain: bool = True) -> str:
    """Return ``will run vectorAdd`` for ``runs vectorAdd``."""
    verb, _, rest = effect.partition(" ")
    return f"{'will' if certain else 'may'} {_FUTURE[verb]} {rest}" if verb in _FUTURE else effect


def _component(name: str, own: list[Change], style: Style) -> str:
    is_back = any(_is_own_image(field) and is_downgrade(field) for change in own for field in change.fields)
    heading = _version_change(own) or f"{name} {', '.join(_created_versions(own))}".rstrip()
    lines = [style.bold(f"{heading}{' (downgrade)' if is_back else ''}")]
    for group in group_by(own, _group_key).values():
        change = group[0]
        sign, color = SIGNS[change.action]
        fields, labels = _shown_fields(change)
        numbers = Counter(map(_sign_of, labels))
        count = f"  labels {' '.join(f'{sign}{numbers[sign]}' for sign in '+~-' if sign in numbers)}" if labels else ""
        lines.append(f"  {style.paint(color, sign)} {_title(group)}{count}{'' if change.certain else _MAY}")
        lines += [f"      {field_line(change.ref.kind, field)}" for field in fields]
        if not change.departure:
            nodes = ranges(_node_name(each) for each in group)
            lines += [
                f"      {_in_future_tense(_replace_node(effect, _node_name(change), nodes))}"
                for effect in change.effects
            ]
    return "\n".join(lines)


def _group_key(change: Change) -> tuple[object, ...]:
    """Return the key of changes that share a line."""
    if change.departure:
        return change.certain, change.departure.users is None, bool(change.departure.users), change.departure.why
    node, name = _node_name(change), change.ref.name
    if node:
        name = _stem(name, node) if change.ref.kind == "Pod" else ""
    shown, labels = _shown_fields(change)
    fields = tuple((field.path, repr(field.old), repr(field.new)) for field in shown)
    counted = tuple((field.path, _sign_of(field)) for field in labels)
    words = tuple(_replace_node(effect, node, "*") for effect in effects(change))
    is_plain = change.action in {Action.CREATE, Action.DELETE} and not (node or fields or change.effects)
    kind, words = (None, ()) if is_plain else (change.ref.type, words)
    return change.action, kind, change.ref.namespace, name, fields, counted, words, change.certain


def _shown_fields(change: Change) -> tuple[Sequence[FieldChange], Sequence[FieldChange]]:
    """Return the fields to show, and the labels of a node that are counted instead of shown: three or more."""
    fields = () if change.departure else visible_fields(change)
    if change.ref.kind != "Node":
        return fields, ()
    labels = [field for field in fields if field.path.startswith("metadata.labels.")]
    return ([field for field in fields if field not in labels], labels) if len(labels) >= _FEW else (fields, ())


def _sign_of(field: FieldChange) -> str:
    return "+" if field.old is None else "-" if field.new is None else "~"


def _replace_node(effect: str, node: str, where: str) -> str:
    """Replace the node of an effect by other nodes."""
    return effect.replace(f"on {node}", f"on {where}") if node else effect


def _title(group: list[Change]) -> str:
    change = group[0]
    node, nodes = _node_name(change), ranges(_node_name(each) for each in group)
    if not node:
        kinds = dict.fromkeys(each.ref.kind for each in group)
        return str(change.ref._replace(kind=", ".join(kinds)))
    if change.departure:
        return _departure_text([each.departure for each in group if each.departure], nodes)
    if change.ref.kind == "Node":
        return f"Node {nodes}"
    title = change.ref.name if len(group) == 1 else f"{_stem(change.ref.name, node)}-*"
    return f"{change.ref.kind} {change.ref.namespace}/{title} on {nodes}"


def _stem(name: str, node: str) -> str:
    """Return the common prefix of pod names: all before the node, or before the suffix of a controller."""
    stem, separator, _ = name.partition(f"-{node}")
    return stem if separator else name.rpartition("-")[0]


def _departure_text(group: list[Departure], nodes: str) -> str:
    """Return in one line the pods of nodes that left the inventory; the diff and JSON have their labels."""
    pods, users = sum(each.pods for each in group), [user for each in group for user in each.users or ()]
    parts = [f"{pluralize(pods, 'pod')} deleted"]
    if users:
        parts.append(f"in use by {pluralize(len(users), 'GPU pod')} ({join_first(users, _FEW)})")
    elif group[0].users is not None:
        parts.append("in use by no GPU pod")
    why = "" if group[0].why == NOT_IN_INVENTORY else f"; {group[0].why}"
    return f"removes the GPU stack from {'node' if len(group) == 1 else 'nodes'} {nodes}: {', '.join(parts)}{why}"


def _node_name(change: Change) -> str:
    """Return the node of a change: of a Node object, or of a pod that is pinned to a node.

    A pod names its node in ``spec.nodeName``, in the host name selector, or in a required node affinity.
    """
    if change.ref.kind != "Pod":
        return change.ref.name if change.ref.kind == "Node" else ""
    spec = (change.manifest or {}).get("spec", {})
    selector = spec.get("nodeSelector", {}).get("kubernetes.io/hostname", "")
    affinity = spec.get("affinity", {}).get("nodeAffinity", {})
    terms = affinity.get("requiredDuringSchedulingIgnoredDuringExecution", {}).get("nodeSelectorTerms", [])
    fields = (field for term in terms for field in term.get("matchFields", []))
    by_field = (field["values"][0] for field in fields if field.get("key") == "metadata.name")
    return str(spec.get("nodeName") or selector or next(by_field, ""))


def document(plan: Plan) -> dict[str, Any]:
    """Return the plan's own parts of its JSON document."""
    counts = Counter(change.action for change in plan.changes)
    conflicts = sum(finding.severity is Severity.ERROR for finding in plan.findings)
    return {
        "inventory": plan.inventory,
        "release": plan.release,
        "cluster": plan.cluster,
        "components": list(plan.components),
        "changes": [change_document(change) for change in plan.changes],
        "rollout": rollout_view.document(plan.rollout) if plan.rollout else None,
        "resource": resource_document(plan.resource),
        "summary": {**{action.value: counts[action] for action in Action}, "conflict": conflicts},
    }


def resource_document(change: ResourceChange | None) -> dict[str, Any] | None:
    """Return a change of the stack's resource as JSON."""
    if change is None:
        return None
    return {"name": change.name, "fields": [field_document("GPUStack", field) for field in change.fields]}


def change_document(change: Change) -> dict[str, Any]:
    """Return one change as JSON."""
    return {
        "component": change.component,
        "action": change.action.value,
        "object": change.ref._asdict(),
        "node": _node_name(change),
        "fields": [field_document(change.ref.kind, field) for field in change.fields],
        "nodes": list(change.nodes),
        "effects": list(effects(change)),
        "certain": change.certain,
        "departure": to_json_value(change.departure),
    }
