"""``gpu-provision adopt`` asks before it writes, and says what it did."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

import gpu_provision
from gpu_provision.adopt import discovery
from gpu_provision.adopt.plan import Adoption
from gpu_provision.api.results import StackRun
from gpu_provision.api.views import StackAdoption
from gpu_provision.inventory import check
from gpu_provision.kube import client
from gpu_provision.model.progress import RunResult
from tests.adopt.builders import adoption_of, operator_install, policy
from tests.cli.harness import Run


class Fake:
    """What the library answers, and whether it was told to adopt."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.adoption, self.done = folder, adoption_of(folder, operator_install()), 0

    def adopt(self, *_: object, **__: object) -> StackRun:
        self.done += 1
        return StackRun(inventory="gpu", cluster=RunResult(changed=63, requests=198, seconds=3.0), command="adopt")


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fake:
    made = Fake(tmp_path)
    monkeypatch.setattr(gpu_provision, "adoption", lambda _: StackAdoption.copy_of(made.adoption))
    monkeypatch.setattr(gpu_provision, "adopt", made.adopt)
    monkeypatch.setattr(client, "connect", lambda *_: None)
    monkeypatch.setattr(discovery, "discover", lambda *_: operator_install(policies=(policy(psp={"enabled": True}),)))
    monkeypatch.setenv("GPU_PROVISION_INVENTORY", str(tmp_path / "gpu.yaml"))
    return made


def test_only_an_agreed_adoption_is_done(run: Run, fake: Fake) -> None:
    """Without a terminal to ask on it is shown alone."""
    ran = run("adopt")
    assert (ran.code, fake.done) == (0, 0)
    assert "First the operator stops" in ran.out
    assert "Next: the same with --yes" in ran.out
    assert "kubectl -n gpu-operator delete secret -l owner=helm,name=gpu-operator" in ran.err
    done = run("adopt", "--yes")
    assert (done.code, fake.done, "63 objects written" in done.out) == (0, 1, True)


def test_what_was_there_is_kept_before_anything_changes(run: Run, fake: Fake, tmp_path: Path) -> None:
    """For its owner's eyes, in a form that kubectl apply takes, and without owners that will be gone."""
    ran = run("adopt", "--yes")
    (file,) = (tmp_path / "state" / "gpu-provision" / "adoptions").iterdir()
    assert str(file) in ran.err
    assert file.stat().st_mode & 0o777 == 0o600
    items = list(yaml.safe_load_all(file.read_text(encoding="utf-8")))
    assert len(items) == 1 + len(fake.adoption.objects)
    assert items[0]["kind"] == "ClusterPolicy"
    assert not any(item["metadata"].keys() & {"uid", "ownerReferences", "managedFields"} for item in items)


def test_what_cannot_be_kept_is_not_begun(run: Run, fake: Fake, tmp_path: Path) -> None:
    (tmp_path / "state").write_text("a file where a folder should be", encoding="utf-8")
    ran = run("adopt", "--yes")
    assert (ran.code, fake.done) == (64, 0)
    assert "nothing was changed" in ran.err


@pytest.mark.parametrize(
    ("adoption", "code"),
    [
        (
            lambda folder: adoption_of(
                folder, operator_install(policies=(policy(sandboxWorkloads={"enabled": True}),))
            ),
            1,
        ),
        (lambda folder: adoption_of(folder, operator_install(policies=(), objects={}, pods=())), 0),
    ],
    ids=["something stands against it", "there is nothing to take over"],
)
def test_what_cannot_or_need_not_be_done_is_not_begun(
    run: Run, fake: Fake, adoption: Callable[[Path], Adoption], code: int
) -> None:
    fake.adoption = adoption(fake.folder)
    assert run("adopt", "--yes").code == code
    assert fake.done == 0


@pytest.mark.parametrize("words", [["--dry-run"], ["--yes"]])
def test_its_document_says_what_was_done(run: Run, fake: Fake, words: list[str]) -> None:
    document = run("adopt", "--json", *words).document
    assert document["command"] == "adopt"
    assert {each["node"] for each in document["adoption"]["drivers"]} == {"gpu-1"}
    assert ("changed" in document) is (fake.done == 1) is (words == ["--yes"])


def test_an_inventory_of_what_is_there_is_written_once(run: Run, fake: Fake, tmp_path: Path) -> None:
    """Never over an existing file; what it cannot express is a finding."""
    file = tmp_path / "new.yaml"
    ran = run("adopt", "--json", "--inventory-out", file)
    assert (ran.code, ran.document["inventory_file"]) == (0, str(file))
    assert "psp.enabled" in ran.document["warnings"][0]["evidence"]
    assert check(file).errors == ()
    before = file.read_text(encoding="utf-8")
    assert run("adopt", "--inventory-out", file).code == 64
    assert file.read_text(encoding="utf-8") == before
    assert fake.done == 0
