"""`batchyard settings`: every knob as a table, JSON, or the page docs/settings.md."""

from __future__ import annotations

import json
from itertools import groupby

from rich.console import Console
from rich.table import Table

from app.cli.options import table_rows
from app.settings import Loaded, Settings, knobs


def as_table(loaded: Loaded, console: Console) -> None:
    """Print name, value, source and meaning."""
    table = Table("setting", "value", "source", "meaning", title=None, show_lines=False)
    for row in table_rows(loaded):
        style = None if row["source"] != "default" else "dim"
        table.add_row(row["name"], row["value"], row["source"], row["meaning"], style=style)
    console.print(table)
    for variable in loaded.unknown:
        console.print(f"note: {variable} is set but means nothing here", markup=False)


def as_json(loaded: Loaded) -> str:
    """A list of objects with name, value (text), source, variable and meaning."""
    return json.dumps(table_rows(loaded), indent=2, ensure_ascii=False)


_HEAD = """\
# Settings

<!-- Written by `batchyard settings --markdown`. Do not edit: change app/settings/rooms.py and run it again. -->

A value comes from a flag, else from the environment, else from a file, else it is the default.

- **Flag:** `--set NAME=VALUE` reaches every setting: `batchyard serve --set worker.part_seconds=2`. The usual ones
  have a flag of their own: `--host --port --data-dir --engine --model --role --log-level --log-format`.
- **Environment:** the variable in the table. Lists are written `a,b` or as JSON: `["a", "b"]`.
- **File:** TOML, named by `--config FILE` or `BATCHYARD_CONFIG`, with one table a group:

```toml
data_dir = "/var/lib/batchyard"

[server]
host = "0.0.0.0"
port = 8000

[engine]
model = "Qwen/Qwen3-8B"
arguments = ["--max-model-len", "8192"]
```

`batchyard settings` prints what is in force and where each value came from; keys and passwords are blotted out.
A wrong value stops the start with one line that names the setting and its source.
"""


def as_markdown() -> str:
    """The page of all knobs and their defaults. Depends on the code only, not on the machine."""
    parts = [_HEAD]
    for room, members in groupby(knobs(), key=lambda knob: knob.room):
        field = Settings.model_fields.get(room)
        about = (field.annotation.__doc__ or "") if field and field.annotation else "Not in a group."
        parts.append(f"\n## {room or 'data_dir'}\n\n{about.strip()}\n\n")
        parts.append("| setting | variable | type | default | meaning |\n|---|---|---|---|---|\n")
        for knob in members:
            default = f"`{knob.shown(knob.default)}`" if knob.shown(knob.default) else ""
            cells = (f"`{knob.name}`", f"`{knob.variable}`", knob.type, default, knob.meaning.replace("|", "\\|"))
            parts.append("| " + " | ".join(cells) + " |\n")
    return "".join(parts)
