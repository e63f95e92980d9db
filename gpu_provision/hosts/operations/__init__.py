"""The pyinfra operations of the host phase. Each reads the host once and changes only what differs."""
