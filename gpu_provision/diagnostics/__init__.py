"""From a stuck pod to its first cause; pure."""
