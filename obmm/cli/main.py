# SPDX-License-Identifier: Apache-2.0
"""``obmm``: one thin module per command, loaded when it is called."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys

for needed in ("click", "rich"):
    if importlib.util.find_spec(needed) is None:
        sys.exit(
            f"the obmm command needs the package {needed}: pip install 'obmm[cli]' (in a clone: pip install -e '.[cli]')"
        )

import click  # noqa: E402 - after the sentence above

from obmm.cli.command import Group  # noqa: E402

#: command -> (module, one line for the overview).  The module has a click command of the same name (dashes as underscores).
COMMANDS: dict[str, tuple[str, str]] = {
    "blocks": ("obmm.cli.blocks", "KV blocks under keys in another node's memory: serve, status, evict, prove"),
    "demo": ("obmm.cli.demo", "the main job on two emulated nodes, every byte verified"),
    "explain": ("obmm.cli.explain", "what an errno means for an operation, and the fix"),
    "smoke": ("obmm.cli.smoke", "export, map, import back, verify: one node against itself"),
    "serve": ("obmm.cli.serve", "export the tables of a file and hand their handles out over TCP"),
    "fetch": ("obmm.cli.fetch", "import a served table and read rows of it"),
    "lease": ("obmm.cli.lease", "leases of a running server: show them, end those of the dead"),
    "engram": ("obmm.cli.engram", "publish the n-gram tables of a checkpoint, look at them, compare them"),
    "emulate": ("obmm.cli.emulate", "run, inspect and disturb an emulated fabric"),
    "ls": ("obmm.cli.ls", "regions of this host, and who owns them"),
    "gc": ("obmm.cli.gc", "remove what dead owners left behind; shows it, without --yes"),
    "doctor": ("obmm.cli.doctor", "check this host, without side effects"),
    "open-broker": ("obmm.cli.open_broker", "open nodes for processes without privilege, by policy"),
    "bench": ("obmm.cli.bench", "the reference benchmark"),
    "help": ("obmm.cli.help", "what a command does: obmm help [COMMAND...]"),
}


class _LazyGroup(Group):
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


def _print_dir(ctx: click.Context, option: click.Parameter, asked: bool) -> None:
    if not asked or ctx.resilient_parsing:
        return
    from obmm.errors import ObmmError
    from obmm.host import c_library

    try:
        click.echo(c_library.include_dir() if option.name == "include_dir" else c_library.library_dir())
    except ObmmError as error:
        raise click.ClickException(error.strerror or str(error)) from None
    ctx.exit()


@click.group(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="obmm", message="obmm %(version)s")
@click.option("--include-dir", is_flag=True, expose_value=False, is_eager=True, callback=_print_dir, help="C headers")
@click.option("--library-dir", is_flag=True, expose_value=False, is_eager=True, callback=_print_dir, help="libobmm.a")
@click.pass_context
def main(ctx: click.Context) -> None:
    """Another node's memory through openEuler's OBMM driver."""
    if os.environ.get("NO_COLOR"):
        ctx.color = False


if __name__ == "__main__":
    main()
