"""The host phase: prepare machines for the containers of the stack.

- `facts` reads a host with one command and parses the answer; `checks` finds what would go wrong (preflight).
- `operations` are the pyinfra operations that change a host; each decides from the facts what has to change.
- `deploy` composes the operations and holds the cluster phase back until every host is ready.
- `runner` runs the deploy in a process of its own (`worker`, `session`), since pyinfra's gevent and the Kubernetes
  client do not share a process; `messages` are what the two processes send each other.

`facts`, `checks`, `messages`, `result` and `runner` import no pyinfra. Nothing here imports `gpu_provision.kube`.
"""
