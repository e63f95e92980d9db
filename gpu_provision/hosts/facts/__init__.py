"""Facts of a host: sections of one shell script, each with the parser of what it prints. No pyinfra."""
