"""Programs of any image: the CUDA samples, nvidia-smi, notebooks, tools, and shell scripts that run programs.

Of scripts understood: ``until``/``while`` loops around ``[ -f FILE ]``, endless loops, ``sleep``, ``echo``, ``exit``,
``touch``, ``rm`` and the programs of the table. Conditionals are passed over, and so is everything else.
"""

from __future__ import annotations

import posixpath
import re
import shlex
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from gpu_provision.sandbox.kubelet.container import Container, Program
from gpu_provision.sandbox.operand_rules import NO_DEVICE, VECTOR_ADD_FAILED, VECTOR_ADD_LINES, cuda_version

_RULE = "+" + "-" * 77 + "+"
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_KILLED = 143
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


async def _vector_add(container: Container) -> int:
    container.report_started()
    container.log(VECTOR_ADD_LINES[0])
    fault = container.machine.faults.find("vectoradd-fails", container.machine.name)
    if fault or not container.visible_gpus:
        failure = VECTOR_ADD_FAILED.format(NO_DEVICE)
        container.log(str(fault.get("message", failure)) if fault else failure)
        return 1
    container.hold_gpu()
    await container.sleep(container.simulation.timings.vectoradd)
    container.log(*VECTOR_ADD_LINES[1:])
    return 0


async def _nvidia_smi(container: Container) -> int:
    container.report_started()
    gpu, state, count = container.machine.spec.gpu, container.machine.state, container.visible_gpus
    if not count or gpu is None:
        container.log("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.")
        return 9
    if "-L" in container.argv:
        seed = state.machine_id
        uuid = f"GPU-{seed[:8]}-{seed[8:12]}-{seed[12:16]}-{seed[16:20]}"
        container.log(*(f"GPU {n}: {gpu.name} (UUID: {uuid}-{n:012x})" for n in range(count)))
        return 0
    versions = f"Driver Version: {state.driver:<14} CUDA Version: {cuda_version(state.driver):<9}|"
    usage = f"{'0MiB / ' + str(gpu.memory) + 'MiB':>22}   0%  Default |"
    gpus = (f"| {n:>3}  {gpu.name:<32} {usage}" for n in range(count))
    container.log(_RULE, f"| NVIDIA-SMI {state.driver:<14} {versions}", _RULE, *gpus, _RULE)
    return 0


async def _notebook(container: Container) -> int:
    await container.simulation.pause()
    container.hold_gpu()
    container.log(
        "[I ServerApp] Serving notebooks from local directory: /home/jovyan",
        "[I ServerApp] Jupyter Server is running at:",
        f"[I ServerApp] http://{container.pod_name}:8888/lab?token=sandbox",
        "[I ServerApp] Use Control-C to stop this server and shut down all kernels.",
    )
    return await container.run_forever()


async def _sleep(container: Container) -> int:
    container.report_started()
    words = [word for word in container.argv if not word.endswith("sleep")] or ["infinity"]
    if words[0] in {"infinity", "inf"}:
        return await container.run_forever()
    number, unit = (words[0][:-1], words[0][-1]) if words[0][-1] in _UNITS else (words[0], "s")
    try:
        seconds = float(number) * _UNITS[unit]
    except ValueError:
        container.log(f"sleep: invalid time interval '{words[0]}'")
        return 1
    await container.sleep(seconds)
    return 0


async def _echo(container: Container) -> int:
    container.log(" ".join(container.argv[1:]))
    return 0


async def _exit(container: Container) -> int:
    words = container.argv
    return int(words[1]) if len(words) > 1 and words[1].isdigit() else 0


async def _touch(container: Container) -> int:
    for path in container.argv[1:]:
        container.files.write(path, container.files.read(path))
    return 0


async def _remove(container: Container) -> int:
    for path in container.argv[1:]:
        if not path.startswith("-"):
            container.files.remove(path)
    return 0


async def _print_file(container: Container) -> int:
    for path in container.argv[1:]:
        container.log(*container.files.read(path).splitlines())
    return 0


async def _succeed(_: Container) -> int:
    return 0


async def _fail(_: Container) -> int:
    return 1


async def _unknown(container: Container) -> int:
    """Serve for ever if the pod is meant to; a task of a Job is done after a moment."""
    container.hold_gpu()
    if container.pod["spec"].get("restartPolicy", "Always") == "Always":
        return await container.run_forever()
    container.report_started()
    await container.simulation.pause()
    return 0


VECTOR_ADD = Program(_vector_add)
NVIDIA_SMI = Program(_nvidia_smi)
NOTEBOOK = Program(_notebook)
SLEEPER = Program(Container.run_forever, exit_code=_KILLED)
SLEEP = Program(_sleep, exit_code=_KILLED)
ECHO = Program(_echo)
SUCCESS = Program(_succeed)
FAILURE = Program(_fail)
UNKNOWN = Program(_unknown, exit_code=_KILLED)
_BUILTINS = {"exit": _exit, "touch": _touch, "rm": _remove, "cat": _print_file}


class ScriptStep(NamedTuple):
    """One thing that a script does: ``wait`` (for files), ``forever`` or ``run`` (a command)."""

    kind: str
    words: tuple[str, ...]
    any_of: bool = False
    says: str = ""


def parse_script(script: str, env: Mapping[str, str]) -> Iterator[ScriptStep]:
    """Yield what a script does, in order."""
    text = _COMMENT.sub("", script.replace("\\\n", " "))
    variables = {**env, **dict(_ASSIGNMENT.findall(text))}
    text = _VARIABLE.sub(lambda m: variables.get(m[1]) or m[2] or "", text)
    position = 0
    for loop in _LOOP.finditer(text):
        yield from _commands(text[position : loop.start()])
        position, condition = loop.end(), loop[2]
        said = _ECHO.search(loop[3])
        says = said[1].strip("\"' ") if said else ""
        if files := tuple(_FILE_TEST.findall(condition)):
            yield ScriptStep("wait", files, "||" in condition, says)
        elif condition.strip() in {"true", ":", "sleep 1"}:
            yield ScriptStep("forever", (), says=says)
    yield from _commands(text[position:])


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
    steps = list(parse_script(container.script, container.env))
    commands = [posixpath.basename(step.words[0]) for step in steps if step.kind == "run"]
    named = [programs[command] for command in commands if command in programs]

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

    def on_stop(ended: Container) -> None:
        for program in named:
            program.on_stop(ended)

    return Program(run, on_stop, named[-1].exit_code if named else _KILLED)


async def _play(container: Container, step: ScriptStep, programs: Mapping[str, Program], *, last: bool) -> int:
    if step.kind == "wait":
        return await _wait(container, step)
    if step.kind == "forever":
        container.log(*([step.says] if step.says else []))
        return await container.run_forever()
    if builtin := _BUILTINS.get(step.words[0]):
        container.argv = step.words
        return await builtin(container)
    shown = {_BOOT_ID: container.machine.state.boot_id, _MODULE_VERSION: container.machine.state.driver}

    def content(found: re.Match[str]) -> str:
        return shown.get(found[1]) or container.files.read(found[1]).strip()

    container.argv = tuple(_FILE_CONTENT.sub(content, word) for word in step.words)
    program = programs.get(posixpath.basename(step.words[0]), UNKNOWN if last else SUCCESS)
    return await program.run(container)


async def _wait(container: Container, step: ScriptStep) -> int:
    """Wait for the files that are tested; one that the container cannot see never appears."""
    combine = any if step.any_of else all

    def there() -> bool:
        return combine(container.files.exists(path) for path in step.words)

    if not there():
        if step.says:
            container.log(step.says)
        if not all(word in step.says for word in step.words):
            container.log(f"waiting for {(' or ' if step.any_of else ' and ').join(step.words)}")
        await container.machine.wait_until(there)
        await container.simulation.pause()
    return 0
