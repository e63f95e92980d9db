"""Shell scripts as far as containers of this trade use them: loops that wait for files, then one program.

Understood: ``until``/``while`` loops around ``[ -f FILE ]``, endless loops, ``sleep``, ``echo``, ``exit``, ``touch``,
``rm`` and the programs of the table. Conditionals are passed over, and so is everything else.
"""

from __future__ import annotations

import posixpath
import re
import shlex
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import NamedTuple

from gpu_provision.sandbox.kubelet.container import Container, Program
from gpu_provision.sandbox.kubelet.programs import workloads

_LOOP = re.compile(r"\b(until|while)\b(.*?)(?:;|\n)\s*do\b(.*?)\bdone\b", re.DOTALL)
_IF = re.compile(r"(?:^|[;\n])\s*if\b.*?\bfi\b", re.DOTALL)
_COMMENT = re.compile(r"(?m)(?:^|(?<=\s))#[^\n]*$")
_FILE_TEST = re.compile(r"-[efrs]\s+[\"']?([^\s\"'\]]+)")
_ASSIGNMENT = re.compile(r"(?m)^\s*(?:export\s+|readonly\s+|local\s+)?([A-Za-z_]\w*)=[\"']?([^\s\"';]*)[\"']?\s*$")
_VARIABLE = re.compile(r"\$\{?([A-Za-z_]\w*)(?::-([^}]*))?\}?")
_ECHO = re.compile(r"\becho\s+(?:-\w+\s+)?(\"[^\"]*\"|'[^']*'|[^;\n>]+)")
_FILE_CONTENT = re.compile(r"\$\(cat ([^)\s]+)\)")
_MESSAGE = re.compile(r"> */dev/termination-log")
_SEPARATOR = re.compile(r"[;\n]|&&|\|\|")
_BOOT_ID, _MODULE_VERSION = "/proc/sys/kernel/random/boot_id", "/sys/module/nvidia/version"


class ScriptStep(NamedTuple):
    """One thing that a script does: ``wait`` (for files), ``forever`` or ``run`` (a command)."""

    kind: str
    words: tuple[str, ...]
    any_of: bool = False
    says: str = ""


def parse_script(script: str, env: Mapping[str, str]) -> list[ScriptStep]:
    """Return what a script does, in order."""
    text = _COMMENT.sub("", script.replace("\\\n", " "))
    variables = {**env, **dict(_ASSIGNMENT.findall(text))}
    text = _VARIABLE.sub(lambda m: variables.get(m[1]) or m[2] or "", text)
    return list(_steps(text))


def _steps(text: str) -> Iterator[ScriptStep]:
    position = 0
    for loop in _LOOP.finditer(text):
        yield from _commands(text[position : loop.start()])
        yield from _loop(loop)
        position = loop.end()
    yield from _commands(text[position:])


def _loop(loop: re.Match[str]) -> Iterator[ScriptStep]:
    condition, body = loop[2], loop[3]
    files = tuple(_FILE_TEST.findall(condition))
    said = _ECHO.search(body)
    says = said[1].strip("\"' ") if said else ""
    if files:
        yield ScriptStep("wait", files, "||" in condition, says)
    elif condition.strip() in {"true", ":", "sleep 1"}:
        yield ScriptStep("forever", (), says=says)


def _commands(text: str) -> Iterator[ScriptStep]:
    for command in _SEPARATOR.split(_IF.sub("\n", text)):
        try:
            words = shlex.split(command)
        except ValueError:
            continue
        while words and words[0] in {"exec", "command", "nohup", "!"}:
            words = words[1:]
        if words and "=" not in words[0]:
            yield ScriptStep("run", tuple(words))


def script_program(container: Container, programs: Mapping[str, Program]) -> Program:
    """Return what the container's script does; what it leaves behind is what its programs leave behind."""
    steps = parse_script(container.script, container.env)
    named = [programs[posixpath.basename(s.words[0])] for s in steps if s.kind == "run" and _known(s, programs)]

    async def run(running: Container) -> int:
        code = 0
        if _MESSAGE.search(running.script):
            running.keep_message()
        for number, step in enumerate(steps):
            if number and step.words[:1] == ("sleep",) and steps[number - 1].kind == "wait":
                await running.simulation.pause()  # a waiter's own pause counts as one of its polls
                continue
            code = await _play(running, step, programs, last=number == len(steps) - 1)
            if code != 0 or (step.kind == "run" and step.words[0] == "exit"):
                return code
        return code

    def stopped(ended: Container) -> None:
        for program in named:
            program.stopped(ended)

    return Program(run, stopped, named[-1].exit_code if named else 143)


def _known(step: ScriptStep, programs: Mapping[str, Program]) -> bool:
    return posixpath.basename(step.words[0]) in programs


async def _play(container: Container, step: ScriptStep, programs: Mapping[str, Program], *, last: bool) -> int:
    if step.kind == "wait":
        return await _wait(container, step)
    if step.kind == "forever":
        container.log(*([step.says] if step.says else []))
        return await container.for_ever()
    builtin = _BUILTINS.get(step.words[0])
    if builtin is not None:
        return await builtin(container, step.words)
    container.argv = tuple(_FILE_CONTENT.sub(lambda found: _content(container, found[1]), word) for word in step.words)
    if _known(step, programs):
        return await programs[posixpath.basename(step.words[0])].run(container)
    return await workloads.UNKNOWN.run(container) if last else 0


async def _wait(container: Container, step: ScriptStep) -> int:
    """Wait for the files that are tested; one that the container cannot see never appears."""
    combine = any if step.any_of else all

    def there() -> bool:
        return combine(container.files.exists(path) for path in step.words)

    if not there():
        waits = f"waiting for {(' or ' if step.any_of else ' and ').join(step.words)}"
        container.log(
            *([step.says] if step.says else []), *([] if all(w in step.says for w in step.words) else [waits])
        )
        await container.machine.until(there)
        await container.simulation.pause()
    return 0


def _content(container: Container, path: str) -> str:
    shown = {_BOOT_ID: container.machine.state.boot_id, _MODULE_VERSION: container.machine.state.driver}
    return shown.get(path) or container.files.read(path).strip()


async def _exit(_: Container, words: tuple[str, ...]) -> int:
    return int(words[1]) if len(words) > 1 and words[1].isdigit() else 0


async def _touch(container: Container, words: tuple[str, ...]) -> int:
    for path in words[1:]:
        container.files.write(path, container.files.read(path))
    return 0


async def _remove(container: Container, words: tuple[str, ...]) -> int:
    for path in words[1:]:
        if not path.startswith("-"):
            container.files.remove(path)
    return 0


async def _print_file(container: Container, words: tuple[str, ...]) -> int:
    for path in words[1:]:
        container.log(*container.files.read(path).splitlines())
    return 0


_BUILTINS: dict[str, Callable[[Container, tuple[str, ...]], Awaitable[int]]] = {
    "exit": _exit,
    "touch": _touch,
    "rm": _remove,
    "cat": _print_file,
}
