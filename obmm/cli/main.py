# SPDX-License-Identifier: Apache-2.0
"""``obmm``: one thin module per command, loaded when it is called."""

from __future__ import annotations

import importlib
import importlib.util
import sys

try:
    import click
except ModuleNotFoundError:  # pragma: no cover - depends on how the package was installed
    sys.exit("the obmm command needs the extra `cli`: pip install click rich")

#: command -> (module, one line for the overview).  The module has a click command of the same name (dashes as underscores).
COMMANDS: dict[str, tuple[str, str]] = {
    "demo": ("obmm.cli.demo", "the main job on two emulated nodes, every byte verified"),
    "explain": ("obmm.cli.explain", "what an errno means for an operation, and the fix"),
    "smoke": ("obmm.cli.smoke", "export, map, import back, verify: one node against itself"),
    "serve": ("obmm.cli.serve", "export a NumPy file and hand its handle to whoever asks over TCP"),
    "fetch": ("obmm.cli.fetch", "import a served table and read rows of it"),
    "emulate": ("obmm.cli.emulate", "run, inspect and disturb an emulated fabric"),
    "ls": ("obmm.cli.ls", "regions of this host, and who owns them"),
    "gc": ("obmm.cli.gc", "what dead owners left behind"),
    "doctor": ("obmm.cli.doctor", "check this host, without side effects"),
    "open-broker": ("obmm.cli.open_broker", "open nodes for processes without privilege, by policy"),
    "bench": ("obmm.cli.bench", "the reference benchmark"),
}


class _LazyGroup(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return [name for name, (module, _) in COMMANDS.items() if importlib.util.find_spec(module)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.list_commands(ctx):
            return None
        module = importlib.import_module(COMMANDS[cmd_name][0])
        command: click.Command = getattr(module, cmd_name.replace("-", "_"))
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, COMMANDS[name][1]) for name in self.list_commands(ctx)])


@click.group(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="obmm", message="obmm %(version)s")
def main() -> None:
    """Another node's memory through openEuler's OBMM driver."""


if __name__ == "__main__":
    main()
