"""The page of a run: one self-contained HTML file, without scripts, that needs nothing from any network."""
