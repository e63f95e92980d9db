"""The acceptance tests that come along; `gpu-provision verify` runs them, or pytest with the plugin's options."""
