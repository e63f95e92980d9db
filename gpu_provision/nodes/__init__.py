"""Cordon, `drain` and evict, and the `maintenance` of nodes whose machines reboot; kube below, reconcile above."""
