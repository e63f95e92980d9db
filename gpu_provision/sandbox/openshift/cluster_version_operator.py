"""The cluster version operator: installs the release that ClusterVersion desires.

As the real one, in its order: ClusterVersion shows the release at once, the image stream of the Driver Toolkit gets its
tag, then the MachineConfigs change; the update is Completed once the control plane runs it. Workers follow, pool by
pool.
"""

from __future__ import annotations

from gpu_provision.sandbox import objects
from gpu_provision.sandbox.api import ApiResource, Object
from gpu_provision.sandbox.controllers.manager import ControllerManager, QueueController
from gpu_provision.sandbox.machine_config import CONTROLLER_VERSION, MACHINE_CONFIGS, POOLS
from gpu_provision.sandbox.objects import ConditionUpdate, Key
from gpu_provision.sandbox.openshift_releases import RELEASES, OpenShiftRelease, later_releases

CLUSTER_VERSIONS = ApiResource("config.openshift.io", "v1", "clusterversions")
IMAGE_STREAMS = ApiResource("image.openshift.io", "v1", "imagestreams")
_NAME = "version"
_STREAM = ("openshift", "driver-toolkit")
_COMPLETED, _PARTIAL = "Completed", "Partial"


def _shown(release: OpenShiftRelease) -> Object:
    return {"version": release.version, "image": release.release_image}


def new_cluster_version(release: OpenShiftRelease, cluster_id: str) -> Object:
    """Return the ClusterVersion of a cluster that was installed with a release."""
    now = objects.timestamp()
    history = {**_shown(release), "state": _COMPLETED, "startedTime": now, "completionTime": now, "verified": False}
    return {
        "apiVersion": "config.openshift.io/v1",
        "kind": "ClusterVersion",
        "metadata": {"name": _NAME},
        "spec": {"channel": f"stable-{release.minor}", "clusterID": cluster_id},
        "status": {
            "desired": _shown(release),
            "history": [history],
            "availableUpdates": [_shown(each) for each in later_releases(release.version)],
            "conditions": _conditions({}, release, done=True),
            "observedGeneration": 1,
            "versionHash": release.release_image[-8:],
        },
    }


def _conditions(found: Object, release: OpenShiftRelease, *, done: bool, invalid: str = "") -> list[Object]:
    before = (objects.condition(found, "Available") or {}).get("message", "")
    progress = f"Cluster version is {release.version}" if done else f"Working towards {release.version}"
    return objects.set_conditions(
        found,
        objects.now(),
        ConditionUpdate("Available", "True", "", f"Done applying {release.version}" if done else before),
        ConditionUpdate("Failing", "False", ""),
        ConditionUpdate("Progressing", str(not done), "", progress),
        ConditionUpdate("Invalid", str(bool(invalid)), "InvalidClusterVersion" if invalid else "", invalid),
    )


def toolkit_stream(release: OpenShiftRelease) -> Object:
    """Return the image stream of the Driver Toolkit, with the tags of one release."""
    namespace, name = _STREAM
    return {
        "apiVersion": "image.openshift.io/v1",
        "kind": "ImageStream",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"lookupPolicy": {"local": False}, "tags": _spec_tags([], release)},
        "status": {
            "dockerImageRepository": f"image-registry.openshift-image-registry.svc:5000/{namespace}/{name}",
            "tags": _status_tags([], release),
        },
    }


def _spec_tags(before: list[Object], release: OpenShiftRelease) -> list[Object]:
    source = {"kind": "DockerImage", "name": release.toolkit_image}
    rest = {"importPolicy": {"scheduled": True}, "referencePolicy": {"type": "Source"}}
    return _with_tags(before, "name", release, {"from": source, **rest})


def _status_tags(before: list[Object], release: OpenShiftRelease) -> list[Object]:
    image = release.toolkit_image
    item = {"created": objects.timestamp(), "dockerImageReference": image, "image": image.partition("@")[2]}
    return _with_tags(before, "tag", release, {"items": [{**item, "generation": 1}]})


def _with_tags(before: list[Object], key: str, release: OpenShiftRelease, content: Object) -> list[Object]:
    names = (release.rhcos, "latest")
    return [*(each for each in before if each[key] not in names), *({key: name, **content} for name in names)]


class ClusterVersions(QueueController[Key]):
    """Brings the cluster to the release that its ClusterVersion desires."""

    name = "cluster-version-operator"
    watches = (CLUSTER_VERSIONS, IMAGE_STREAMS, MACHINE_CONFIGS, POOLS)
    workers = 1

    def __init__(self, cluster: ControllerManager) -> None:
        """Follow the ClusterVersion and the pool of the control plane."""
        super().__init__(cluster)
        self._versions, self._configs = cluster.informer(CLUSTER_VERSIONS), cluster.informer(MACHINE_CONFIGS)
        self._streams, self._pools = cluster.informer(IMAGE_STREAMS), cluster.informer(POOLS)
        for informer in (self._versions, self._pools, self._streams):
            informer.on_event(lambda *_: self.queue.add(("", _NAME)))

    async def sync(self, key: Key) -> None:
        """Take the next step towards the desired release."""
        found = self._versions.objects.get(key)
        if found is None:
            return
        status, wanted = objects.status(found), (found["spec"].get("desiredUpdate") or {}).get("version", "")
        release = RELEASES[status["desired"]["version"]]
        if _STREAM not in self._streams.objects:
            await self.cluster.create(IMAGE_STREAMS, toolkit_stream(release), _STREAM[0])
        if wanted and wanted != release.version:
            await self._accept(found, wanted)
        elif status["history"][0]["state"] == _PARTIAL:
            await self._apply(found, release)

    async def _accept(self, found: Object, wanted: str) -> None:
        status, present = objects.status(found), RELEASES[objects.status(found)["desired"]["version"]]
        if wanted not in {each.version for each in later_releases(present.version)}:
            why = (
                f'The cluster version is invalid: spec.desiredUpdate.version: Invalid value: "{wanted}": '
                "when image is empty the update must be a previous version or an available update"
            )
            conditions = _conditions(found, present, done=True, invalid=why)
            await self.cluster.write_status(CLUSTER_VERSIONS, found, {"conditions": conditions})
            return
        release = RELEASES[wanted]
        started = {**_shown(release), "state": _PARTIAL, "startedTime": objects.timestamp(), "completionTime": None}
        await self.cluster.write_status(
            CLUSTER_VERSIONS,
            found,
            {
                "desired": _shown(release),
                "history": [{**started, "verified": False}, *status["history"]],
                "availableUpdates": [_shown(each) for each in later_releases(wanted)],
                "conditions": _conditions(found, release, done=False),
                "observedGeneration": found["metadata"].get("generation", 1),
            },
        )

    async def _apply(self, found: Object, release: OpenShiftRelease) -> None:
        await self._tag_toolkit(release)
        changed = False
        for config in tuple(self._configs.objects.values()):
            generated = CONTROLLER_VERSION in objects.annotations_of(config) and not objects.controller_of(config)
            if generated and objects.annotations_of(config)[CONTROLLER_VERSION] != release.version:
                spec = {"osImageURL": release.os_image_url} if objects.name(config).startswith("00-") else {}
                annotations = {"annotations": {CONTROLLER_VERSION: release.version}}
                await self.cluster.patch(MACHINE_CONFIGS, config, {"metadata": annotations, "spec": spec})
                changed = True
        if changed or not self._runs_on_control_plane(release):
            return
        first, *rest = objects.status(found)["history"]
        done = {**first, "state": _COMPLETED, "completionTime": objects.timestamp()}
        conditions = _conditions(found, release, done=True)
        await self.cluster.write_status(CLUSTER_VERSIONS, found, {"history": [done, *rest], "conditions": conditions})

    async def _tag_toolkit(self, release: OpenShiftRelease) -> None:
        stream = self._streams.objects[_STREAM]
        tags = _spec_tags(stream["spec"].get("tags") or [], release)
        if tags != stream["spec"].get("tags"):
            stream = await self.cluster.patch(IMAGE_STREAMS, stream, {"spec": {"tags": tags}})
            status = _status_tags(objects.status(stream).get("tags") or [], release)
            await self.cluster.write_status(IMAGE_STREAMS, stream, {"tags": status})

    def _runs_on_control_plane(self, release: OpenShiftRelease) -> bool:
        pool = self._pools.objects.get(("", "master"))
        if pool is None:
            return True
        name = objects.value_at(pool, "status", "configuration", "name")
        config = self._configs.objects.get(("", str(name)))
        is_current = config is not None and config["spec"].get("osImageURL") == release.os_image_url
        return is_current and objects.has_condition(pool, "Updated")
