"""Release the lock of a run that was killed."""

import gpu_provision

inventory = gpu_provision.load("inventories/sandbox.yaml")
lock, released = gpu_provision.unlock(inventory)
print(f"released: {lock}" if released else "the lock is free" if lock is None else lock)
