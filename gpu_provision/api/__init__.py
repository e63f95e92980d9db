"""The Python API, which the commands call as well. `gpu_provision` exports it.

`verbs` plans and changes hosts and cluster and reads records. `views` has the read-only verbs and `adopt`. `selection`
selects nodes, components and releases; `options` has other options and `render`; `imports` imports the GPU Operator's
settings. `jobs` combines the host phase and the cluster phase. `results` has the return values.
"""
