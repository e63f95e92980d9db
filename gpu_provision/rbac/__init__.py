"""The permissions that each command needs, the roles that grant them, and which of them an account lacks.

`permissions` derives them from an inventory, `roles` turns them into Roles, ClusterRoles and bindings, `review` asks
the API server before the first write.

Imports `history`, `kube` and the pure packages; `reconcile` and the layers above import it.
"""
