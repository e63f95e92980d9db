"""Kubernetes API access: the only package that imports ``kubernetes``, and only inside functions.

`client.KubeClient` has the verbs on objects, plain dicts in and out; `transport.Connection` below it sends, counts,
fences and repeats requests by the policy of `retry`, and `errors` maps answers to exceptions.
`informer.InformerCache` keeps live copies by list and watch, trimmed by `trim`. `lease` has the Lease protocol: leader
election, and the fence that the stack's `lock` shares. `config` says which cluster an inventory means and reads its
kubeconfig, `credentials` logs in. `observe` reads all that planning compares with, what has passed, and who has GPUs by
DRA; `node_shell` runs commands on a node through a helper pod and `exec`.

Imports the pure packages; the layers above import it.
"""
