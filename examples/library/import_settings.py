"""Make an inventory of values of the GPU Operator's chart, and name the settings that it lacks."""

from pathlib import Path

import gpu_provision

Path("values.yaml").write_text("driver: {version: 580.126.20}\npsp: {enabled: true}\n")
made = gpu_provision.import_settings("values.yaml", name="prod")
print(made)
for each in made.not_carried_over:
    print(each.where, each.what)
Path("inventories/imported.yaml").write_text(made.yaml)
