"""What containers have left on a host, as one shell command finds it in a directory."""

from __future__ import annotations

import subprocess
from pathlib import Path

from gpu_provision.hosts.facts.packages import ToolkitRemains, parse_toolkit, toolkit_command


def read_remains(home: Path, *configs: Path) -> ToolkitRemains:
    """Return what the command sees; what is below /run is this machine's own."""
    script = toolkit_command(str(home), map(str, configs))
    lines = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True).stdout.splitlines()
    remains = parse_toolkit(lines)
    assert remains
    return remains


def installed(home: Path, *names: str) -> list[str]:
    for name in names:
        (home / "toolkit" / name).parent.mkdir(parents=True, exist_ok=True)
        (home / "toolkit" / name).write_text("ELF\n")
    return [f"{home}/toolkit/{name}" for name in names]


OURS = ("nvidia-container-runtime", "nvidia-cdi-hook.real", ".config/nvidia-container-runtime/config.toml")


def test_programs_are_known_by_name_and_directories_by_content(tmp_path: Path) -> None:
    home = tmp_path / "nvidia with a blank"
    paths = installed(home, *OURS)
    seen = read_remains(home)
    assert sorted(seen.files) == sorted(paths)
    assert [path for path in seen.hollow if str(home) in path] == [
        f"{home}/toolkit/.config/nvidia-container-runtime",
        f"{home}/toolkit/.config",
        f"{home}/toolkit",
        str(home),
    ]
    installed(home, "site-local.sh")
    assert f"{home}/toolkit" not in read_remains(home).hollow
    assert sorted(read_remains(home).files) == sorted(paths)


def test_a_configuration_that_names_the_programs_uses_them(tmp_path: Path) -> None:
    installed(tmp_path, *OURS)
    config, other = tmp_path / "config.toml", tmp_path / "other.toml"
    config.write_text(f'BinaryName = "{tmp_path}/toolkit/nvidia-container-runtime"\n')
    other.write_text('BinaryName = "/usr/bin/nvidia-container-runtime"\n')
    assert read_remains(tmp_path, other, tmp_path / "none").uses == ()
    assert read_remains(tmp_path, other, config).uses == (f"{config} names them",)


def test_a_process_that_was_started_with_the_programs_uses_them(tmp_path: Path) -> None:
    """As CRI-O's monitors are: they end containers with what they were started with."""
    (program,) = installed(tmp_path, "nvidia-container-runtime")
    with subprocess.Popen(["sh", "-c", "read -r line", "monitor", program], stdin=subprocess.PIPE) as monitor:
        uses = read_remains(tmp_path).uses
        monitor.kill()
    assert uses == (f"process {monitor.pid} runs with them",)


def test_nothing_is_found_where_nothing_is(tmp_path: Path) -> None:
    assert read_remains(tmp_path / "nowhere").files == ()
    assert parse_toolkit(["file /usr/local/nvidia/toolkit/nvidia-ctk"]) is None
