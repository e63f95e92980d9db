"""The verbs of gpu-provision as functions of values, which the commands call as well. `gpu_provision` exports them.

`verbs` changes hosts and cluster and reads records, `views` looks and adopts, `options` narrows an inventory down.
`jobs` puts the host phase and the cluster phase together; `results` has what plans, runs and removals return.
"""
