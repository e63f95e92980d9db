"""The verbs of gpu-provision as functions of values, which the commands call as well. `gpu_provision` exports them.

`runs` changes hosts and cluster, `views` looks, `past` reads records, `adopting` takes over from the GPU Operator,
`declared` asks no cluster, `permission` is about rights and the lock. `work` and `removal` put the halves together,
those of hosts in `gpu_provision.hosts.runner`, those of the cluster in `cluster_phase`. `results` has what they return,
and `view_results` what `views` does.
"""
