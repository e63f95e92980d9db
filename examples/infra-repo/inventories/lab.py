"""pyinfra's view of lab.yaml."""

from gpu_provision.inventory import hosts_of as _hosts_of

globals().update(_hosts_of(__file__))
