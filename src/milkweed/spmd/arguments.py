"""The command line of torchrun 2.13, read without torch: same options, same defaults, same `PET_` variables.

Python's own argparse reads both, so abbreviations, `--` and where a script's arguments begin cannot differ.
"""

from __future__ import annotations

import argparse
import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NoReturn

from ..errors import SpecError

PROG = "milkweed torchrun"
HINT = f"all options: `{PROG} --help`"
REPLICA_ID = "${replica_id}"
"""What AppDefs carry as `--node-rank`: a scheduler was to write each node's number in its place."""

OWN = ("job", "mesh", "set_env")
"""The attributes that torchrun does not have."""
START_METHODS = ("spawn", "fork", "forkserver")


class HelpAsked(Exception):  # noqa: N818  nothing is wrong
    """Somebody wants to see the help, and nothing else."""


class Unsaid(str):
    """A default that nobody asked for; else the same as the text."""

    __slots__ = ()


class _Variable(str):
    """A default from the environment, which remembers its variable for error messages."""

    __slots__ = ("name",)
    name: str


def parse_namespace(argv: Sequence[str], environ: Mapping[str, str]) -> argparse.Namespace:
    """Read a command line as torchrun would, with three options more.

    Raises:
        SpecError: for everything that torchrun would refuse; nothing is printed, and nobody exits
        HelpAsked: when `--help` stands before the script
    """
    return make_parser(environ).parse_args(list(argv))


def render_help() -> str:
    """The help that `milkweed torchrun --help` shows."""
    return make_parser({}).format_help().replace("usage:", "Usage:", 1)


def make_parser(environ: Mapping[str, str]) -> argparse.ArgumentParser:
    """The parser, with defaults from `PET_` variables."""
    parser = _Parser(
        prog=PROG,
        usage=f"{PROG} [options] SCRIPT [ARG ...]",
        description="Run a torchrun command line on the hosts of a job.",
        epilog="An option's default can be set by a variable: PET_NNODES for --nnodes, and so on.",
        formatter_class=_Formatter,
        add_help=False,
    )
    for title, options in _GROUPS.items():
        group = parser.add_argument_group(title)
        for option in options:
            option.add_to(group, environ)
    _add_own(parser.add_argument_group("milkweed's own"))
    parser.add_argument("training_script", metavar="SCRIPT", help="what every process runs")
    parser.add_argument(
        "training_script_args", metavar="ARG", nargs=argparse.REMAINDER, help="given to the script"
    )
    return parser


def _add_own(group: argparse._ArgumentGroup) -> None:  # pyright: ignore[reportPrivateUsage] it has no other name
    """What torchrun does not have. No name of these may make an abbreviation of its own ambiguous."""
    group.add_argument(
        "--job", metavar="JOB", help="a job file, or the name or id of a job; else this folder's"
    )
    group.add_argument("--mesh", metavar="MESH", help="the mesh whose hosts are the nodes")
    group.add_argument(
        "--set-env",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        help="a variable for every process; can be repeated",
    )
    nowhere = argparse.SUPPRESS
    group.add_argument(
        *("-h", "--help"),
        action=_Help,
        nargs=0,
        dest=nowhere,
        default=nowhere,
        help="show this and stop",
    )


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise SpecError(message, hint=HINT) from None


class _Help(argparse.Action):
    def __call__(self, *_: object) -> NoReturn:
        raise HelpAsked


class _Formatter(argparse.HelpFormatter):
    def _format_action_invocation(self, action: argparse.Action) -> str:
        """`-r, --redirects STREAMS`; spellings with underscores are for scripts that have them already."""
        names = [name for name in action.option_strings if "_" not in name]
        if not names:
            return super()._format_action_invocation(action)
        value = "" if action.nargs == 0 else f" {action.metavar}"
        return ", ".join(names) + value


def _names(short: str, name: str) -> list[str]:
    """The option's spellings in torchrun's order; the first long one gives the attribute its name."""
    long = dict.fromkeys([f"--{name}", f"--{name.replace('-', '_')}"])
    return [short, *long] if short else [*long]


def _variable(name: str) -> str:
    return f"PET_{name.replace('-', '_').upper()}"


@dataclass(frozen=True, slots=True)
class _Switch:
    """An option without a value."""

    name: str
    help: str
    short: str = ""

    def add_to(self, group: argparse._ArgumentGroup, environ: Mapping[str, str]) -> None:  # pyright: ignore[reportPrivateUsage] it has no other name
        group.add_argument(
            *_names(self.short, self.name),
            action="store_true",
            default=_parse_switch(_variable(self.name), environ),
            help=self.help,
        )


def _parse_switch(variable: str, environ: Mapping[str, str]) -> bool:
    text = environ.get(variable, "0")
    try:
        return bool(int(text))
    except ValueError:
        raise SpecError(
            f"{variable}: {text!r} is not a whole number", hint="1 turns it on, 0 turns it off"
        ) from None


@dataclass(frozen=True, slots=True)
class _Option:
    """An option with a value."""

    name: str
    metavar: str
    help: str
    default: object = None
    short: str = ""
    convert: Callable[[str], object] = str
    choices: tuple[str, ...] | None = None
    variable: bool = True
    """Whether a variable can give its default; which is converted as a value is, but may be no choice."""

    def add_to(self, group: argparse._ArgumentGroup, environ: Mapping[str, str]) -> None:  # pyright: ignore[reportPrivateUsage] it has no other name
        group.add_argument(
            *_names(self.short, self.name),
            metavar=self.metavar,
            help=self.help,
            type=self.convert,
            choices=self.choices,
            default=self._default(environ),
        )

    def _default(self, environ: Mapping[str, str]) -> object:
        name = _variable(self.name)
        if not self.variable or name not in environ:
            return copy.copy(self.default)  # a list belongs to whoever gets it
        found = _Variable(environ[name])
        found.name = name
        return found


def _whole(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(_not_a("int", text)) from None


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(_not_a("float", text)) from None


def _not_a(kind: str, text: str) -> str:
    where = f" (from {text.name})" if isinstance(text, _Variable) else ""
    return f"invalid {kind} value: {text!r}{where}"


def _rank(text: str) -> int:
    """A node's number; a number that is yet to be written there is the same as none."""
    return 0 if text == REPLICA_ID else _whole(text)


def _address(text: str) -> str:
    return text if isinstance(text, Unsaid) else str(text)


def _list(text: str) -> list[str]:
    """Parts between commas; two commas are one that belongs to a part. No argument can hold a NUL."""
    return [part.replace("\0", ",") for part in text.replace(",,", "\0").split(",")]


_NODES = (
    _Option("nnodes", "N|MIN:MAX", "how many hosts, or the fewest and the most", "1:1"),
    _Option(
        "nproc-per-node",
        "N",
        "processes on each host: a number, or auto, cpu, gpu, xpu for one per device",
        "1",
    ),
    _Option("node-rank", "N", "not needed: milkweed starts all nodes", 0, convert=_rank),
)
_PROGRAM = (
    _Switch("module", "SCRIPT is the name of a module, as for `python -m`", short="-m"),
    _Switch("no-python", "SCRIPT is a program of any kind, started without Python"),
    _Switch("run-path", "SCRIPT is the path of a file that Python's runpy runs"),
    _Option("role", "NAME", "a name for the processes, seen in output and variables", "default"),
    _Option(
        "start-method",
        "METHOD",
        "no effect: every process is a program of its own",
        "spawn",
        choices=START_METHODS,
    ),
    _Option(
        "numa-binding",
        "MODE",
        "keep each process on CPUs near its GPU: node, socket, exclusive or core-complex",
        choices=("node", "socket", "exclusive", "core-complex"),
        variable=False,
    ),
    _Switch("virtual-local-rank", "each process sees its GPU alone, as device 0, and LOCAL_RANK=0"),
)
_FAILURE = (
    _Option("max-restarts", "N", "how often all may be started again", 0, convert=_whole),
    _Option("monitor-interval", "SECONDS", "time between two looks", 0.1, convert=_number),
    _Option(
        "signals-to-handle",
        "NAMES",
        "signals that are passed on to the processes, with commas between",
        "SIGTERM,SIGINT,SIGHUP,SIGQUIT",
    ),
    _Option(
        "shutdown-timeout",
        "SECONDS",
        "from asking processes to end until they are killed; 30 if not said",
        convert=_whole,
    ),
    _Option("event-log-handler", "NAME", "where events go: null or console", "null"),
)
_OUTPUT = (
    _Option("log-dir", "FOLDER", "where the processes' files are written, on each host"),
    _Option(
        "redirects",
        "STREAMS",
        "write to files: 1 is output, 2 errors, 3 both; 0:1,1:2 is one for each local rank",
        "0",
        short="-r",
    ),
    _Option("tee", "STREAMS", "the same, and show it too", "0", short="-t"),
    _Option("local-ranks-filter", "RANKS", "show only these local ranks, such as 0,1", ""),
    _Option(
        "duplicate-stdout-filters",
        "WORDS",
        "collect teed lines of output that have one of these words; `,,` is a comma",
        [],
        convert=_list,
    ),
    _Option("duplicate-stderr-filters", "WORDS", "the same for errors", [], convert=_list),
    _Option("logs-specs", "NAME", "only `default` is known", variable=False),
)
_MEETING = (
    _Switch("standalone", "one host, and nothing else to agree on"),
    _Option("rdzv-backend", "NAME", "static or c10d; milkweed itself connects the hosts", "static"),
    _Option("rdzv-endpoint", "HOST:PORT", "with static: where rank 0 listens", ""),
    _Option("rdzv-id", "ID", "a name for the run", "none"),
    _Option("rdzv-conf", "KEY=VALUE,…", "timeout, join_timeout and last_call_timeout count", ""),
    _Option(
        "master-addr",
        "HOST",
        "where rank 0 listens; else milkweed chooses",
        Unsaid("127.0.0.1"),
        convert=_address,
    ),
    _Option("master-port", "PORT", "its port; else milkweed chooses", convert=_whole),
    _Option("local-addr", "HOST", "the address of the only node"),
)
_GROUPS: dict[str, tuple[_Switch | _Option, ...]] = {
    "how many": _NODES,
    "what is run": _PROGRAM,
    "when something ends": _FAILURE,
    "output": _OUTPUT,
    "how processes find each other": _MEETING,
}
