"""The pages are right: commands run, links resolve, generated pages are current."""

from __future__ import annotations

import ast
import contextlib
import importlib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpu_provision.cli.root import EXIT_CODES
from gpu_provision.model import codes
from tests.documents import CHECKOUT, TAGS, Reader, blocks
from tools import pages

PAGES = sorted(
    str(path.relative_to(CHECKOUT))
    for folder in (
        ".",
        "docs",
        "examples",
        "examples/ansible",
        "examples/ci",
        "examples/gitops",
        "examples/infra-repo",
        "examples/operator",
        "examples/secrets",
        "examples/startup-taint",
    )
    for path in (CHECKOUT / folder).glob("*.md")
)
_PYTHON = re.compile(r"^```python\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\[[^\]]*\]\((?!https?:)(?P<target>[^)#]+)[^)]*\)")


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reader]:
    """A user with a fresh copy and a sandbox on which the demo has run."""
    made = Reader(tmp_path_factory.mktemp("reader"))
    made.run("pyinfra -y inventories/sandbox.py deploys/gpu_stack.py")
    yield made
    made.close()


def test_the_readme_can_be_followed(reader: Reader) -> None:
    """After the demo, a plan is empty; an edit of one version is one field; a run makes it empty again."""
    output = reader.follow("README.md")
    assert output.count("everything is as declared") == 2
    assert "k8s-device-plugin:v0.20.0 -> " in output
    assert "0 to create, 1 to update, 0 to delete" in output


def test_the_openshift_guide_can_be_followed(tmp_path: Path) -> None:
    """Installation, an update of the cluster with another kernel, removal; a plan in between is empty."""
    with contextlib.closing(Reader(tmp_path, fleet="openshift")) as reader:
        output = reader.follow("docs/openshift.md")
    assert "will reboot 2 nodes of MachineConfigPool gpu, 1 at a time" in output
    assert output.count("everything is as declared") == 1
    assert "sandbox openshift runs OpenShift 4.18.24" in output
    assert "+ DaemonSet gpu-operator-resources/nvidia-driver-daemonset-rhcos4.18-418.94.202509100653-0" in output
    assert "Nothing of the stack is left" in output


def test_the_readmes_python_is_an_example() -> None:
    """The block for library users is a program that tests/examples runs."""
    text = (CHECKOUT / "README.md").read_text(encoding="utf-8")
    program = text.partition("```python\n")[2].partition("```")[0]
    examples = (CHECKOUT / "examples" / "library").glob("*.py")
    assert program in {path.read_text(encoding="utf-8").partition('"""\n\n')[2] for path in examples}


@pytest.mark.parametrize("name", PAGES)
def test_every_block_says_whether_it_can_be_run(name: str) -> None:
    """A block with an unknown tag would never run."""
    assert {block.tag for block in blocks(name)} <= TAGS
    assert all(block.commands for block in blocks(name))


@pytest.mark.parametrize("name", PAGES)
def test_every_link_leads_to_a_file(name: str) -> None:
    """Pages move, links must follow."""
    text = (CHECKOUT / name).read_text(encoding="utf-8")
    targets = [found["target"] for found in _LINK.finditer(text)]
    assert [target for target in targets if not (CHECKOUT / name).parent.joinpath(target).exists()] == []


@pytest.mark.parametrize("name", PAGES)
def test_python_on_a_page_imports_what_there_is(name: str) -> None:
    """Every block is a program, and its imports from the package exist."""
    text = (CHECKOUT / name).read_text(encoding="utf-8")
    nodes = [node for found in _PYTHON.finditer(text) for node in ast.walk(ast.parse(found["body"]))]
    imports = [node for node in nodes if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("gpu_")]
    for node in imports:
        module = importlib.import_module(node.module or "")
        assert [each.name for each in node.names if not hasattr(module, each.name)] == []


def test_the_list_of_findings_is_current() -> None:
    """``make docs`` writes it."""
    assert (CHECKOUT / "docs" / "findings.md").read_text(encoding="utf-8") == pages.findings()


def test_the_page_of_rights_is_current() -> None:
    """The tables are those of the example inventory."""
    page = (CHECKOUT / "docs" / "rbac.md").read_text(encoding="utf-8")
    assert pages.permission_tables(page) == page


PROGRAM = "\n".join(
    path.read_text(encoding="utf-8")
    for path in sorted((CHECKOUT / "gpu_provision").rglob("*"))
    if path.suffix in {".py", ".toml"} and path.stem != "codes"
)


def test_every_code_in_the_program_is_listed() -> None:
    """A message's code leads its reader to the page."""
    used = set(re.findall(r"\"(GP\d{3})\"", PROGRAM))
    assert used - codes.meanings().keys() == set()


def test_every_code_on_the_list_is_in_the_program() -> None:
    """By itself or by its name; a reader looks for no message that does not exist."""
    words = set(re.findall(r"\w+", PROGRAM))
    names = {value: name for name, value in vars(codes).items() if isinstance(value, str)}
    assert {code for code in codes.meanings() if not {code, names.get(code, code)} & words} == set()


def test_the_readme_lists_the_exit_codes() -> None:
    """The same table as in --help."""
    text = (CHECKOUT / "README.md").read_text(encoding="utf-8")
    assert set(re.findall(r"^\| (\d+) \|", text, re.MULTILINE)) == {str(code.value) for code in EXIT_CODES}
