"""Records of runs, and rolling back to one of them.

`recorder` writes the record of a run while it goes, `store` turns it into text and keeps it: in a ConfigMap of
the cluster, and in files on this machine. `rollback` finds an earlier run, and `restore` puts its versions into the
current inventory. No record holds a secret.

Imports `kube` and the pure packages; `reconcile` imports it, because each run records itself.
"""
