"""python -m lab <command>."""

import argparse
import sys
from collections.abc import Callable, Sequence

from lab.error import LabError

Command = Callable[[argparse.Namespace], int | None]


def _tree(_: argparse.Namespace) -> None:
    from lab import tree

    tree.compose()


def _modules(_: argparse.Namespace) -> None:
    from lab import modules

    modules.build()


def parser() -> argparse.ArgumentParser:
    """Return the parser of all commands."""
    top = argparse.ArgumentParser(prog="python -m lab", description="Compose, build, boot, test.")
    commands = top.add_subparsers(required=True, metavar="command")

    def add(name: str, run: Command, text: str) -> argparse.ArgumentParser:
        command = commands.add_parser(name, help=text, description=text)
        command.set_defaults(run=run)
        return command

    add("tree", _tree, "compose the kernel tree in build/linux")
    add("modules", _modules, "build the KVM modules into build/modules")
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; an error a user can mend is one line."""
    args = parser().parse_args(argv)
    try:
        return args.run(args) or 0
    except LabError as error:
        print(f"lab: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("lab: interrupted", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
