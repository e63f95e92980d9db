"""Catch what goes wrong: each error has findings, and a failed run has its result as well."""

import gpu_provision

inventory = gpu_provision.load("inventories/sandbox.yaml")
try:
    gpu_provision.apply(inventory, limit="t4-3")
except gpu_provision.RunFailedError as failure:
    print(failure.result)
except gpu_provision.ProvisionError as error:
    print(error)
    print([finding.fix for finding in error.findings], int(error.exit_code))
