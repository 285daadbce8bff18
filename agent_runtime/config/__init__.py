"""Settings of the command `hunk`, declared once and read from a file, the environment and flags.

A value comes, in rising precedence, from its default, from a file in TOML (`sources.find_file`), from the environment
(`HUNK_` and the name in capitals) or from a flag (`--` and the name with dashes). `resolve` puts these together and
records the origin of every value.

To add a setting, add one field to `settings.Settings`. Its flag, its place in `--help`, its key in the file, its
variable, its checks and its line of `hunk config show` follow from that. Rules about several settings (two that exclude
each other) are checked where the settings are used.
"""

from agent_runtime.config.settings import Settings
from agent_runtime.config.sources import Origin, ResolvedSettings, resolve

__all__ = ["Origin", "ResolvedSettings", "Settings", "resolve"]
