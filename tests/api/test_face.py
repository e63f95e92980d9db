"""`import gpu_provision` exports every type that a function takes, returns or raises, with docstrings."""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

import pytest

import gpu_provision

FACE = Path(gpu_provision.__file__)
FUNCTIONS = [name for name in gpu_provision.__all__ if inspect.isfunction(getattr(gpu_provision, name))]
CLASSES = [name for name in gpu_provision.__all__ if inspect.isclass(getattr(gpu_provision, name))]


def own_classes(hint: Any) -> Iterator[type]:
    """Yield the classes of this package in a type hint, such as of ``tuple[Finding, ...] | None``."""
    for part in get_args(hint):
        for each in part if isinstance(part, list) else [part]:
            yield from own_classes(each)
    kind = get_origin(hint) or hint
    if inspect.isclass(kind) and kind.__module__.startswith("gpu_provision"):
        yield kind


def hints_of(kind: type) -> Iterator[Any]:
    """Yield the hints of a class's attributes, properties and public methods, and its bases."""
    yield from (base for base in kind.__mro__ if base is not kind)
    yield from get_type_hints(kind).values()
    for name, member in vars(kind).items():
        function = member.fget if isinstance(member, property) else member
        if inspect.isfunction(function) and not name.startswith("_"):
            yield from get_type_hints(function).values()


def find_reachable_classes() -> set[type]:
    """Return every class of this package that the annotations of public functions lead to."""
    left = [hint for name in FUNCTIONS for hint in get_type_hints(getattr(gpu_provision, name)).values()]
    classes: set[type] = set()
    while left:
        for kind in own_classes(left.pop()):
            if kind not in classes:
                classes.add(kind)
                left.extend(hints_of(kind))
    return classes


def test_the_verbs_are_there() -> None:
    commands = {"adopt", "apply", "destroy", "drift", "history", "plan", "preflight", "rbac", "render", "rollback"}
    assert commands | {"check", "import_settings", "load", "revalidate", "status", "unlock", "verify"} <= set(FUNCTIONS)
    assert gpu_provision.__all__ == sorted(gpu_provision.__all__)


def test_every_type_of_a_signature_is_exported() -> None:
    """Down to the fields of fields: a program can name each type without knowing its module."""
    unnamed = {kind for kind in find_reachable_classes() if getattr(gpu_provision, kind.__name__, None) is not kind}
    assert {kind.__qualname__ for kind in unnamed} == set()


def test_every_exported_error_is_raised_as_its_own_class() -> None:
    """The tree in the docstring of ProvisionError is the tree that is exported."""
    errors = [getattr(gpu_provision, name) for name in CLASSES]
    errors = [each for each in errors if issubclass(each, gpu_provision.ProvisionError)]
    tree = inspect.getdoc(gpu_provision.ProvisionError) or ""
    assert {each.__name__ for each in errors if each.__name__ in tree} == {each.__name__ for each in errors}
    assert len(errors) == 8


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_signature_reads_without_its_source(name: str) -> None:
    """A default is a value, each argument has a type, and the docstring describes each option."""
    function: Callable[..., Any] = getattr(gpu_provision, name)
    parameters = inspect.signature(function).parameters.values()
    assert not [each.name for each in parameters if callable(each.default) and each.default is not each.empty]
    assert all(each.annotation is not each.empty for each in parameters)
    text = inspect.getdoc(function) or ""
    options = {each.name for each in parameters if each.kind is each.KEYWORD_ONLY}
    inherited = [gpu_provision.plan, gpu_provision.apply] if "those of `" in text else []
    texts = "\n".join([text, *(inspect.getdoc(each) or "" for each in inherited)])
    assert [option for option in options if not re.search(rf"\b{option}\b.*:", texts)] == []


@pytest.mark.parametrize("name", CLASSES)
def test_a_class_and_its_members_have_docstrings(name: str) -> None:
    kind = getattr(gpu_provision, name)
    members = {each: member for each, member in vars(kind).items() if not each.startswith("_")}
    documented = {
        each for each, member in members.items() if inspect.isfunction(member) or isinstance(member, property)
    }
    assert kind.__doc__
    assert not kind.__doc__.startswith(f"{name}(")
    assert {each for each in documented if not inspect.getdoc(getattr(kind, each))} == set()


def test_checkers_see_what_python_sees() -> None:
    """The stub names each export from where the module imports it."""
    tree = ast.parse(FACE.with_suffix(".pyi").read_text(encoding="utf-8"))
    stub = {alias.asname: node.module for node in tree.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert stub == {name: f"gpu_provision.{home}" for name, home in gpu_provision._HOMES.items()}


def test_a_verb_is_a_function_after_its_package_is_imported() -> None:
    """A verb shares its name with a package, which Python would put in their place."""
    program = """import gpu_provision.verify.run
print(callable(gpu_provision.verify))"""
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ran.stdout == "True\n"


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="'gpu_provision' has no attribute 'aply'"):
        _ = gpu_provision.aply  # type: ignore[attr-defined]
