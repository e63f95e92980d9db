"""The door to container registries: does an image exist? Nothing is pulled."""
