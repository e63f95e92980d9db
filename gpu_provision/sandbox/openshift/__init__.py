"""What makes the simulated cluster an OpenShift cluster: its kinds and objects, and the operators that serve them.

A fleet with the key ``openshift`` has it. ``profile`` adds kinds, first objects and admission to the API server;
``scc`` admits pods by SecurityContextConstraints; ``machine_config_operator`` renders MachineConfigs and rolls pools;
``cluster_version_operator`` upgrades the cluster; ``network_operator`` injects CA bundles. The daemons on the machines
are in ``kubelet/machine_config_daemon.py``.
"""
