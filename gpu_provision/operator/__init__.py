"""Operator mode: a GPUStack as a custom resource, and the controller that reconciles the cluster with it.

`controller.Controller` leads (leader election is in `kube.lease`) and has one `StackWorker` for each stack, which hands
`queue.ReconcileRequest`s to a `reconciler.StackReconciler`; that starts the same runs as ``gpu-provision apply``. `crd`
is the definition, `stack` turns a spec into an inventory, `status` and `events` say how it stands, `conflicts` which
stacks overlap and which GitOps tool declares them. `install`, `manifests` and `overview` are the commands about the
operator itself; `executor`, `client`, `remote_run` and `release` are how apply and destroy work through it.

Imports reconcile, nodes, kube and the pure packages; api and cli import it.
"""
