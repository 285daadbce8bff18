"""Every setting of the command `hunk`, declared once and read from a file, the environment and flags.

A value comes, in rising precedence, from its default, from a file in TOML (`sources.find`), from the environment
(`HUNK_` and the name in capitals) or from a flag (`--` and the name with dashes). `choose` puts the layers together and
says of every value where it came from.

To add a setting, add one field to `settings.Settings`, with its type, its help, its bounds, its default and the
commands that take it as a flag. The flag, its place in `--help`, the key of the file, the variable, the checks and the
line of `hunk config show` follow from that; the command reads `chosen.values.NAME`. What no single value can be checked
for (two that exclude each other) is checked by whoever uses them.
"""

from agent_runtime.config.settings import Settings
from agent_runtime.config.sources import Chosen, Origin, choose

__all__ = ["Chosen", "Origin", "Settings", "choose"]
