"""Where Kubernetes' programs come from, and how they are built: with small stand-ins for programs and recipe."""

from __future__ import annotations

import lzma
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.real import binaries
from tests.real.binaries import Found, NotHereError, Places, build, find

FIT = b"an API server with reflect2/go_above_118.go in it"
CHECKOUT = Path(__file__).resolve().parents[2]
BUILDING = """\
import sys
from pathlib import Path
from tests.real import binaries
binaries.RECIPE = Path(sys.argv[1])
binaries.build(["kubelet"], binaries.Places(None, Path("none"), Path(sys.argv[2])))
"""


@pytest.fixture
def where(tmp_path: Path) -> Places:
    """A machine on which nobody set KUBEBUILDER_ASSETS."""
    (tmp_path / "compressed").mkdir()
    return Places(None, tmp_path / "compressed", tmp_path / "cache")


def put(folder: Path, name: str, content: bytes = b"") -> Path:
    """Put a program into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(content)
    return folder / name


def compressed(where: Places, name: str, content: bytes = b"") -> None:
    """Put a compressed program beside the checkout."""
    (where.compressed / f"{name}.xz").write_bytes(lzma.compress(content))


def with_assets(where: Places, folder: Path) -> Places:
    """Return the places of somebody who set KUBEBUILDER_ASSETS."""
    return Places(folder, where.compressed, where.cache)


def recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *lines: str) -> Path:
    """Build by these lines of shell, of which ``$1`` is the work folder."""
    script = put(tmp_path, "recipe.sh", "\n".join(["#!/bin/sh -eu", *lines, ""]).encode())
    script.chmod(0o755)
    monkeypatch.setattr(binaries, "RECIPE", script)
    return script


MAKE_ALL = 'mkdir "$1/made"; work=$1; shift; for name; do echo built >"$work/made/$name"; done'


def test_the_folder_of_kubebuilder_assets_comes_first_and_is_the_only_one(where: Places, tmp_path: Path) -> None:
    """Programs of different versions are not mixed."""
    for name in binaries.PROGRAMS:
        compressed(where, name, FIT)
        put(where.built, name)
    theirs = with_assets(where, tmp_path / "assets")
    path = put(tmp_path / "assets", "kube-apiserver")
    assert find("kube-apiserver", theirs) == Found(path, "KUBEBUILDER_ASSETS")
    assert find("kubelet", theirs) is None


def test_what_kubebuilder_assets_lacks_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests that need no controllers run, the others say why not."""
    put(tmp_path, "kube-apiserver")
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(tmp_path))
    binaries._find_here.cache_clear()
    try:
        assert not binaries.missing("kube-apiserver")
        reason = f"KUBEBUILDER_ASSETS={tmp_path} has no kube-scheduler"
        assert binaries.missing("kube-apiserver", "kube-scheduler") == reason
        with pytest.raises(NotHereError, match="has no kube-scheduler"):
            binaries.binary("kube-scheduler")
    finally:
        binaries._find_here.cache_clear()


def test_etcd_of_kubebuilder_assets_comes_before_the_machines(
    where: Places, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machines = put(tmp_path / "bin", "etcd")
    machines.chmod(0o755)
    monkeypatch.setenv("PATH", str(machines.parent))
    theirs = with_assets(where, tmp_path / "assets")
    assert find("etcd", theirs) == Found(machines, "PATH")
    assert find("etcd", where) == Found(machines, "PATH")
    own = put(tmp_path / "assets", "etcd")
    assert find("etcd", theirs) == Found(own, "KUBEBUILDER_ASSETS")


def test_compressed_programs_come_before_built_ones_and_are_unpacked_once(where: Places) -> None:
    put(where.built, "kubelet")
    compressed(where, "kubelet", b"theirs")
    found = find("kubelet", where)
    assert found
    assert found.path.read_bytes() == b"theirs"
    assert os.access(found.path, os.X_OK)
    before = found.path.stat().st_ino
    assert find("kubelet", where) == found
    assert found.path.stat().st_ino == before
    assert [file.name for file in found.path.parent.iterdir()] == ["kubelet"], "no half file is left"


def test_other_compressed_programs_are_unpacked_anew(where: Places) -> None:
    compressed(where, "kubelet", b"old")
    old = find("kubelet", where)
    binaries._digest.cache_clear()
    compressed(where, "kubelet", b"new")
    new = find("kubelet", where)
    assert old
    assert new
    assert (old.path.read_bytes(), new.path.read_bytes()) == (b"old", b"new")


def test_an_api_server_that_dies_of_custom_resources_is_passed_over(where: Places) -> None:
    """The compressed one was built with a reflect2 that Go broke; its other programs are fine."""
    for name in binaries.PROGRAMS:
        compressed(where, name, b"no fix in here")
    assert find("kube-apiserver", where) is None
    scheduler = find("kube-scheduler", where)
    assert scheduler
    assert scheduler.path.is_relative_to(where.cache / "kubernetes-1.20.2-unpacked")
    built = put(where.built, "kube-apiserver")
    assert find("kube-apiserver", where) == Found(built, "built earlier")


def test_an_api_server_with_the_fix_is_taken(where: Places) -> None:
    compressed(where, "kube-apiserver", FIT)
    found = find("kube-apiserver", where)
    assert found
    assert found.path.read_bytes() == FIT


def test_the_rest_is_built_and_found_from_then_on(
    where: Places, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe(tmp_path, monkeypatch, MAKE_ALL)
    assert find("kubelet", where) is None
    build(["kubelet", "kube-scheduler"], where)
    assert find("kubelet", where) == Found(where.built / "kubelet", "built earlier")
    assert sorted(file.name for file in where.built.iterdir()) == ["kube-scheduler", "kubelet"]


def test_only_what_is_not_there_is_built(where: Places, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe(tmp_path, monkeypatch, MAKE_ALL)
    put(where.built, "kubelet", b"mine")
    build(["kubelet", "kube-scheduler"], where)
    assert (where.built / "kubelet").read_bytes() == b"mine"
    assert (where.built / "kube-scheduler").read_text() == "built\n"


def test_a_changed_recipe_builds_anew(where: Places, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe(tmp_path, monkeypatch, MAKE_ALL)
    build(["kubelet"], where)
    monkeypatch.setattr(binaries, "RECIPE", put(tmp_path, "another.sh", b"#!/bin/sh"))
    assert find("kubelet", where) is None


def test_a_recipe_that_fails_leaves_nothing(where: Places, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe(tmp_path, monkeypatch, 'mkdir "$1/made"; echo half >"$1/made/kubelet"; exit 1')
    with pytest.raises(NotHereError, match=r"recipe\.sh failed"):
        build(["kubelet"], where)
    assert not list(where.built.iterdir())


def test_a_build_that_was_killed_is_begun_again(where: Places, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it left is not taken for a program."""
    die = 'mkdir "$1/made"; echo half >"$1/made/kubelet"; kill -9 "$PPID"; exit 1'
    first = f'if [ ! -e "{tmp_path}/begun" ]; then touch "{tmp_path}/begun"; {die}; fi'
    script = recipe(tmp_path, monkeypatch, first, MAKE_ALL)
    command = [sys.executable, "-c", BUILDING, str(script), str(where.cache)]
    assert subprocess.run(command, cwd=CHECKOUT, check=False, timeout=300).returncode == -9
    assert [file.read_text() for file in where.built.rglob("kubelet")] == ["half\n"]
    assert find("kubelet", where) is None
    build(["kubelet"], where)
    assert (where.built / "kubelet").read_text() == "built\n"


def test_two_builds_at_once_are_one(where: Places, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second waits, and finds what it wants."""
    script = recipe(tmp_path, monkeypatch, f'echo once >>"{tmp_path}/builds"', "sleep 0.5", MAKE_ALL)
    command = [sys.executable, "-c", BUILDING, str(script), str(where.cache)]
    both = [subprocess.Popen(command, cwd=CHECKOUT) for _ in range(2)]
    assert [one.wait(60) for one in both] == [0, 0]
    assert (tmp_path / "builds").read_text() == "once\n"


def test_places_come_from_the_environment_and_the_checkout() -> None:
    found = binaries.places({"XDG_CACHE_HOME": "/x", "KUBEBUILDER_ASSETS": "/k"})
    assert (found.assets, found.cache) == (Path("/k"), Path("/x/gpu-provision"))
    assert found.compressed == CHECKOUT.parent / "shared" / "kubernetes-1.20.2"
    assert binaries.places({}).cache == Path.home() / ".cache" / "gpu-provision"
    assert binaries.places({"GPU_PROVISION_TEST_CACHE": "/c", "XDG_CACHE_HOME": "/x"}).cache == Path("/c")


def test_the_cache_outlives_a_test_run() -> None:
    """Tests give what they start an XDG folder of their own."""
    assert not Path(os.environ[binaries.CACHE_VARIABLE]).is_relative_to(os.environ["XDG_CACHE_HOME"])


@pytest.mark.parametrize(
    ("said", "numbers"),
    [
        ("Kubernetes v1.20.2", (1, 20, 2)),
        ("Kubernetes v1.36.0-rc.1+k3s1", (1, 36, 0)),
        ("etcd Version: 3.4.23", (3, 4, 23)),
    ],
)
def test_a_program_tells_its_version(tmp_path: Path, said: str, numbers: tuple[int, ...]) -> None:
    program = put(tmp_path, "program", f"#!/bin/sh\necho '{said}'\n".encode())
    program.chmod(0o755)
    assert binaries.version(program) == numbers


def test_the_command_says_what_came_from_where(
    where: Places, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """And passes over, and says so, what is of no use."""
    recipe(
        tmp_path,
        monkeypatch,
        'mkdir "$1/made"; work=$1; shift; for name; do',
        'printf "#!/bin/sh\\necho Kubernetes v1.20.2\\n" >"$work/made/$name"; chmod +x "$work/made/$name"; done',
    )
    monkeypatch.setattr(binaries, "OF_THE_MACHINE", ("etcd",))
    etcd = put(tmp_path / "bin", "etcd", b"#!/bin/sh\necho etcd Version: 3.4.23\n")
    etcd.chmod(0o755)
    monkeypatch.setenv("PATH", f"{etcd.parent}:{os.environ['PATH']}")
    monkeypatch.setattr(binaries, "places", lambda _: where)
    compressed(where, "kube-apiserver", b"no fix in here")
    compressed(where, "kubelet", b"#!/bin/sh\necho Kubernetes v1.20.2\n")
    assert binaries.main(["kube-apiserver", "kubelet"]) == 0
    unpacked = find("kubelet", where)
    assert unpacked
    said = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert said[0].startswith("passed over: kube-apiserver.xz")
    assert said[1:] == [
        f"kube-apiserver 1.20.2 built earlier: {where.built}/kube-apiserver",
        f"kubelet 1.20.2 unpacked: {unpacked.path}",
        f"etcd 3.4.23 PATH: {etcd}",
    ]


@pytest.mark.parametrize(("word", "code"), [("--help", 0), ("kube-apisrver", 2)])
def test_a_question_or_a_slip_builds_nothing(monkeypatch: pytest.MonkeyPatch, word: str, code: int) -> None:
    """A build takes minutes."""
    monkeypatch.setattr(binaries, "build", lambda *_: pytest.fail("built"))
    with pytest.raises(SystemExit) as ended:
        binaries.main([word])
    assert ended.value.code == code


def test_a_program_that_the_machine_lacks_is_named_with_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(binaries, "_find_here", lambda _: None)
    assert binaries.missing("etcd", "runc") == (
        "etcd is not installed (Debian: apt-get install etcd-server); "
        "runc is not installed (Debian: apt-get install runc)"
    )
