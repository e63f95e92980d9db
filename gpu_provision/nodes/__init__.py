"""Cordon, drain and evict: what happens to nodes around driver rollouts, reboots and the removal of a stack.

`drain` cordons nodes and evicts pods by the Eviction API; `maintenance` takes a node out of service while its machine
reboots. Imports kube, hosts and the pure packages; reconcile imports it.
"""
