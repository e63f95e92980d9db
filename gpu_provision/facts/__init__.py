"""What a host is seen to be: sections of one shell script, each with the parser of what it prints. Pure."""
