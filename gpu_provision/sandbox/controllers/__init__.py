"""The controllers of the sandbox's cluster, written against ``sandbox.api.Api`` only."""

from gpu_provision.sandbox.controllers.run import run_controllers

__all__ = ["run_controllers"]
