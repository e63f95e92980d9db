"""Built-in acceptance tests; `gpu-provision verify` runs them, or pytest with the plugin's options."""
