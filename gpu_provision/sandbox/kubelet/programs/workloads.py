"""What users run: the CUDA samples, nvidia-smi, notebooks, and programs that are unknown here."""

from __future__ import annotations

from gpu_provision.sandbox.kubelet.container import Container, Program
from gpu_provision.sandbox.operand_rules import NO_DEVICE, VECTOR_ADD_FAILED, VECTOR_ADD_LINES, cuda_version

_RULE = "+" + "-" * 77 + "+"
_NEVER = {"infinity", "inf"}
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


async def _vector_add(container: Container) -> int:
    container.up()
    container.log(VECTOR_ADD_LINES[0])
    fault = container.machine.faults.of("vectoradd-fails", container.machine.name)
    if fault or not container.visible_gpus:
        failure = VECTOR_ADD_FAILED.format(NO_DEVICE)
        container.log(str(fault.get("message", failure)) if fault else failure)
        return 1
    container.hold_gpu()
    await container.sleep(container.simulation.timings.vectoradd)
    container.log(*VECTOR_ADD_LINES[1:])
    return 0


async def _nvidia_smi(container: Container) -> int:
    container.up()
    gpu, driver = container.machine.spec.gpu, container.machine.state.driver
    if not container.visible_gpus or gpu is None:
        container.log("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.")
        return 9
    if "-L" in container.argv:
        container.log(
            *(f"GPU {n}: {gpu.name} (UUID: {_gpu_uuid(container, n)})" for n in range(container.visible_gpus))
        )
        return 0
    container.log(
        _RULE,
        f"| NVIDIA-SMI {driver:<14} Driver Version: {driver:<14} CUDA Version: {cuda_version(driver):<9}|",
        _RULE,
        *(
            f"| {n:>3}  {gpu.name:<32} {'0MiB / ' + str(gpu.memory) + 'MiB':>22}   0%  Default |"
            for n in range(container.visible_gpus)
        ),
        _RULE,
    )
    return 0


def _gpu_uuid(container: Container, index: int) -> str:
    seed = container.machine.state.machine_id
    return f"GPU-{seed[:8]}-{seed[8:12]}-{seed[12:16]}-{seed[16:20]}-{index:012x}"


async def _notebook(container: Container) -> int:
    await container.sleep(container.simulation.timings.retry)
    container.hold_gpu()
    name = container.pod_name
    container.log(
        "[I ServerApp] Serving notebooks from local directory: /home/jovyan",
        "[I ServerApp] Jupyter Server is running at:",
        f"[I ServerApp] http://{name}:8888/lab?token=sandbox",
        "[I ServerApp] Use Control-C to stop this server and shut down all kernels.",
    )
    return await container.for_ever()


async def _for_ever(container: Container) -> int:
    return await container.for_ever()


async def _sleep(container: Container) -> int:
    container.up()
    words = [word for word in container.argv if not word.endswith("sleep")] or ["infinity"]
    if words[0] in _NEVER:
        return await container.for_ever()
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


async def _succeed(_: Container) -> int:
    return 0


async def _fail(_: Container) -> int:
    return 1


async def _unknown(container: Container) -> int:
    """Serve for ever if the pod is meant to; a task of a Job is done after a moment."""
    if container.visible_gpus:
        container.hold_gpu()
    if container.pod["spec"].get("restartPolicy", "Always") == "Always":
        return await container.for_ever()
    container.up()
    await container.simulation.pause()
    return 0


VECTOR_ADD = Program(_vector_add)
NVIDIA_SMI = Program(_nvidia_smi)
NOTEBOOK = Program(_notebook)
SLEEPER = Program(_for_ever, exit_code=143)
SLEEP = Program(_sleep, exit_code=143)
ECHO = Program(_echo)
SUCCESS = Program(_succeed)
FAILURE = Program(_fail)
UNKNOWN = Program(_unknown, exit_code=143)
