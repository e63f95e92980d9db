"""Cordon nodes and evict their pods (`drain`), also around the reboot of a machine (`maintenance`)."""
