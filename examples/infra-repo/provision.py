"""Plan, apply and status as values: a program of your own decides what may happen.

Run it from this directory: python provision.py
"""

import sys

import gpu_provision


def main() -> int:
    """Apply the plan unless it deletes something; return an exit code."""
    inventory = gpu_provision.load("inventories/lab.yaml")
    plan = gpu_provision.plan(inventory, cluster_only=True)
    doomed = [str(change.ref) for change in plan.changes if change.action is gpu_provision.Action.DELETE]
    if doomed:
        print("A person should look at this first, it deletes:", *doomed, sep="\n  ")
        return 1
    run = gpu_provision.apply(inventory, listen=print)
    print(f"{len(run.hosts.changed)} hosts changed, {run.changed} objects written")
    for node in gpu_provision.status(inventory).nodes:
        print(node.node, node.gpu or "no GPU", node.state)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except gpu_provision.ProvisionError as error:
        sys.exit(str(error))
