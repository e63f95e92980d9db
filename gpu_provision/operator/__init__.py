"""Operator mode: a GPUStack as a custom resource, and the controller that reconciles the cluster with it.

`controller.Controller` leads (leader election is in `kube.lease`) and has one `StackWorker` for each stack, which hands
`schedule.ReconcileRequest`s to a `reconciler.StackReconciler`; that starts the same runs as ``gpu-provision apply``.
`crd` is the CustomResourceDefinition, `stack` turns a spec into an inventory, `status` and `telemetry` report.
`install` and `manifests` are the commands about the operator itself; `executor`, `client` and `remote_run` carry out
apply, release and destroy through it; `gitops` finds tools that declare the resource, too.

Imports the layers below it, except `adopt`; `output` and the layers above may import it.
"""
