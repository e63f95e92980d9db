"""The host phase: prepare machines for the containers of the stack.

- `facts` reads a host with one command and parses the answer; `checks` finds what would go wrong (preflight).
- `changes` decides from these facts what has to change; `operations` are the pyinfra operations that change it.
- `deploy` composes the operations; `runner` runs them in a process of their own (`worker`, `session`), since pyinfra's
  gevent and the Kubernetes client do not share a process.
- `reboot` reboots hosts within a limit; `maintenance` is what it asks of the cluster; `gate` blocks the cluster phase.

`facts`, `checks` and `changes` import no pyinfra. Nothing here imports `gpu_provision.kube`.
"""
