"""Rules by theme. Each looks at one machine and yields findings."""
