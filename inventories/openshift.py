"""pyinfra's view of openshift.yaml, which is where everything is declared."""

from gpu_provision.inventory import hosts_of as _hosts_of

globals().update(_hosts_of(__file__))
