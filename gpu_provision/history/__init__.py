"""Records of runs, and rolling back to one of them.

`recorder` writes the record of a run while it goes, `store` turns it into text and keeps it: in a ConfigMap of
the cluster, and in files on this machine. `rollback` finds an earlier run, and `restore` puts its versions into the
present inventory. No record holds a secret.

Stands above `kube` and `planning`, and below `reconcile`, whose runs record themselves.
"""
