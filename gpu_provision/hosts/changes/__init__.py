"""What has to change on a host, decided from its facts alone; `operations` carries it out. No pyinfra."""
