"""The gpu-provision command: parse, call, print, exit code."""

from gpu_provision.cli.root import main

__all__ = ["main"]
