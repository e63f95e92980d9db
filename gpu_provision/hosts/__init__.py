"""The host phase: prepare machines for the containers of the stack.

- `facts` reads a host with one command and parses the output; `checks` finds problems (preflight).
- `operations` are the pyinfra operations that change a host; each derives its changes from the facts.
- `deploy` composes the operations and blocks the cluster phase until every host is ready.
- `runner` runs the deploy in a separate process (`worker`, `session`), as pyinfra's gevent and the Kubernetes client
  cannot share one; `messages` has the messages between the two processes.

`facts`, `checks`, `messages`, `result` and `runner` import no pyinfra. Nothing here imports `gpu_provision.kube`.
"""
