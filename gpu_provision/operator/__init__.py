"""Operator mode: a GPUStack as a custom resource, and the controller that reconciles the cluster with it.

`controller.Controller` leads (leader election is in `kube.lease`) and has one `StackWorker` for each stack, which hands
`queue.ReconcileRequest`s to a `reconciler.StackReconciler`; that starts the same runs as ``gpu-provision apply``. `crd`
is the definition, `stack` turns a spec into an inventory, `status` and `telemetry` say how it stands. `install` and
`manifests` are the commands about the operator itself; `executor`, `client` and `remote_run` are how apply, release and
destroy work through it.

Imports reconcile, nodes, kube and the pure packages; api and cli import it.
"""
