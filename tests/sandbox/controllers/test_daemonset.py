"""DaemonSets on a cluster that runs."""

from __future__ import annotations

from typing import Any

from gpu_provision.sandbox.controllers.resources import CONTROLLER_REVISIONS, DAEMON_SETS, NODES, PODS

LABELS = {"app": "d"}


def spec(template: Any, **more: Any) -> Any:
    """Return a DaemonSet's spec."""
    return {"selector": {"matchLabels": LABELS}, "template": template, **more}


def nodes_of(pods: Any) -> Any:
    """Return the nodes that pods are bound to."""
    return sorted(pod["spec"]["nodeName"] for pod in pods)


def test_every_eligible_node_gets_a_pod_and_the_status_counts_them(lab: Any, template: Any) -> None:
    """One pod per node that the selector admits and whose taints are tolerated."""

    async def story(lab: Any) -> None:
        for name in ("a", "b", "c"):
            await lab.node(name, labels={"gpu": "yes"})
        await lab.node("plain")
        await lab.node("tainted", labels={"gpu": "yes"}, taints=[{"key": "k", "effect": "NoSchedule"}])
        body = spec(template(LABELS, nodeSelector={"gpu": "yes"}))
        await lab.create(DAEMON_SETS, "DaemonSet", "d", spec=body)
        status = await lab.status_of(DAEMON_SETS, "d", numberReady=3, numberAvailable=3, updatedNumberScheduled=3)
        assert status["desiredNumberScheduled"] == status["currentNumberScheduled"] == 3
        assert status["numberMisscheduled"] == 0
        assert status["observedGeneration"] == 1
        assert "numberUnavailable" not in status
        pods = await lab.pods()
        assert nodes_of(pods) == ["a", "b", "c"]
        assert pods[0]["metadata"]["ownerReferences"][0]["kind"] == "DaemonSet"

    lab(story)


def test_a_node_that_changes_gains_or_loses_its_pod(lab: Any, template: Any) -> None:
    """Labels decide at any time."""

    async def story(lab: Any) -> None:
        await lab.node("a", labels={"gpu": "yes"})
        await lab.node("b")
        body = spec(template(LABELS, nodeSelector={"gpu": "yes"}))
        await lab.create(DAEMON_SETS, "DaemonSet", "d", spec=body)
        await lab.status_of(DAEMON_SETS, "d", numberReady=1)
        await lab.api.patch(NODES, "b", {"metadata": {"labels": {"gpu": "yes"}}})
        await lab.status_of(DAEMON_SETS, "d", numberReady=2)
        await lab.api.patch(NODES, "a", {"metadata": {"labels": {"gpu": None}}})
        await lab.status_of(DAEMON_SETS, "d", numberReady=1, desiredNumberScheduled=1, numberMisscheduled=0)
        assert nodes_of(await lab.running()) == ["b"]

    lab(story)


def test_a_rolling_update_replaces_all_pods_within_its_limit(lab: Any, template: Any) -> None:
    """At no time are more pods missing than maxUnavailable allows."""

    async def story(lab: Any) -> None:
        for number in range(5):
            await lab.node(f"n{number}")
        rolling = {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": "40%"}}
        await lab.create(DAEMON_SETS, "DaemonSet", "d", spec=spec(template(LABELS), updateStrategy=rolling))
        await lab.status_of(DAEMON_SETS, "d", numberAvailable=5)
        lowest = [5]
        seen = lab.kubelet.pods

        def count(_change: Any, _pod: Any) -> Any:
            live = [one for one in seen.objects.values() if not one["metadata"].get("deletionTimestamp")]
            lowest.append(len(live))

        seen.on_event(count)
        lab.kubelet.broken_images.add("bad")
        await lab.api.patch(DAEMON_SETS, "d", {"spec": {"template": template(LABELS, image="bad")}}, "default")
        status = await lab.status_of(DAEMON_SETS, "d", updatedNumberScheduled=2, numberAvailable=3, numberUnavailable=2)
        assert status["observedGeneration"] == 2
        await lab.api.patch(DAEMON_SETS, "d", {"spec": {"template": template(LABELS, image="two")}}, "default")
        await lab.status_of(DAEMON_SETS, "d", updatedNumberScheduled=5, numberAvailable=5)
        assert {pod["spec"]["containers"][0]["image"] for pod in await lab.pods()} == {"two"}
        assert min(lowest) >= 3

    lab(story)


def test_on_delete_waits_for_the_pods_to_be_deleted(lab: Any, template: Any) -> None:
    """Only a pod that somebody deletes comes back in the new revision."""

    async def story(lab: Any) -> None:
        await lab.node("a")
        await lab.node("b")
        body = spec(template(LABELS), updateStrategy={"type": "OnDelete"})
        await lab.create(DAEMON_SETS, "DaemonSet", "d", spec=body)
        await lab.status_of(DAEMON_SETS, "d", numberAvailable=2)
        await lab.api.patch(DAEMON_SETS, "d", {"spec": {"template": template(LABELS, image="two")}}, "default")
        await lab.status_of(DAEMON_SETS, "d", updatedNumberScheduled=0, observedGeneration=2)
        old = (await lab.pods())[0]
        await lab.api.delete(PODS, old["metadata"]["name"], "default")
        await lab.status_of(DAEMON_SETS, "d", updatedNumberScheduled=1, numberAvailable=2)
        images = {pod["spec"]["nodeName"]: pod["spec"]["containers"][0]["image"] for pod in await lab.pods()}
        assert images[old["spec"]["nodeName"]] == "two"
        assert sorted(images.values()) == ["one", "two"]

    lab(story)


def test_revisions_are_kept_and_a_return_to_an_old_template_renumbers_it(lab: Any, template: Any) -> None:
    """The history has one entry per template; going back makes the old one the newest."""

    async def story(lab: Any) -> None:
        await lab.node("a")
        await lab.create(DAEMON_SETS, "DaemonSet", "d", spec=spec(template(LABELS)))
        await lab.status_of(DAEMON_SETS, "d", numberAvailable=1)
        for image, generation in (("two", 2), ("one", 3)):
            change = {"spec": {"template": template(LABELS, image=image)}}
            await lab.api.patch(DAEMON_SETS, "d", change, "default")
            await lab.status_of(
                DAEMON_SETS, "d", observedGeneration=generation, updatedNumberScheduled=1, numberAvailable=1
            )
        revisions, _ = await lab.api.list(CONTROLLER_REVISIONS, "default")
        numbers = {
            one["data"]["spec"]["template"]["spec"]["containers"][0]["image"]: one["revision"] for one in revisions
        }
        assert numbers == {"two": 2, "one": 3}
        (pod,) = await lab.pods()
        newest = max(revisions, key=lambda one: one["revision"])
        digest = newest["metadata"]["labels"]["controller-revision-hash"]
        assert pod["metadata"]["labels"]["controller-revision-hash"] == digest
        assert newest["metadata"]["name"] == f"d-{digest}"
        assert newest["data"]["spec"]["template"]["$patch"] == "replace"

    lab(story)


def test_a_failed_pod_is_replaced(lab: Any, template: Any) -> None:
    """A pod that failed on its node is deleted and made anew."""

    async def story(lab: Any) -> None:
        await lab.node("a")
        await lab.create(DAEMON_SETS, "DaemonSet", "d", spec=spec(template(LABELS)))
        await lab.status_of(DAEMON_SETS, "d", numberAvailable=1)
        (pod,) = await lab.pods()
        name = pod["metadata"]["name"]
        await lab.api.patch(PODS, name, {"status": {"phase": "Failed"}}, "default", "status")
        await lab.gone(PODS, name)
        await lab.status_of(DAEMON_SETS, "d", numberAvailable=1)

    lab(story)


def test_a_deleted_daemon_set_takes_its_pods_along(lab: Any, template: Any) -> None:
    """Garbage collection removes pods and revisions."""

    async def story(lab: Any) -> None:
        await lab.node("a")
        await lab.create(DAEMON_SETS, "DaemonSet", "d", spec=spec(template(LABELS)))
        await lab.status_of(DAEMON_SETS, "d", numberAvailable=1)
        await lab.api.delete(DAEMON_SETS, "d", "default")

        async def empty() -> Any:
            revisions, _ = await lab.api.list(CONTROLLER_REVISIONS, "default")
            return not revisions and not await lab.pods()

        await lab.until(empty)

    lab(story)


def test_matching_orphans_are_adopted(lab: Any, template: Any) -> None:
    """A DaemonSet that is created again over its old pods keeps them."""

    async def story(lab: Any) -> None:
        await lab.node("a")
        first = await lab.create(DAEMON_SETS, "DaemonSet", "d", spec=spec(template(LABELS)))
        await lab.status_of(DAEMON_SETS, "d", numberAvailable=1)
        (pod,) = await lab.pods()
        await lab.api.patch(DAEMON_SETS, "d", {"metadata": {"finalizers": ["orphan"]}}, "default")
        await lab.api.delete(DAEMON_SETS, "d", "default")
        await lab.gone(DAEMON_SETS, "d")
        second = await lab.create(DAEMON_SETS, "DaemonSet", "d", spec=spec(template(LABELS)))
        assert second["metadata"]["uid"] != first["metadata"]["uid"]
        await lab.status_of(DAEMON_SETS, "d", numberAvailable=1, updatedNumberScheduled=1)
        (same,) = await lab.pods()
        assert same["metadata"]["uid"] == pod["metadata"]["uid"]
        assert same["metadata"]["ownerReferences"][0]["uid"] == second["metadata"]["uid"]

    lab(story)
