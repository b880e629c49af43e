"""Where milkweed is not torchrun, and why: all other differences are mistakes."""

from __future__ import annotations

import re
import socket
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Difference:
    """Something that is seen of a run, and what either launcher shows; all but words are patterns."""

    what: str
    where: str
    torchrun: str
    milkweed: str
    reason: str
    row: str
    """The first cell of its row in the table of docs/spmd.md, without marks."""
    cases: str = ".*"
    sometimes: bool = False
    """Whether it depends on the machine."""

    def fits(self, case: str, fact: str, theirs: str, ours: str) -> bool:
        """Whether this explains why a fact is not the same."""
        pairs = (
            (self.cases, case),
            (self.where, fact),
            (self.torchrun, theirs),
            (self.milkweed, ours),
        )
        return all(re.fullmatch(pattern, text, re.DOTALL) for pattern, text in pairs)


RANK = r"rank \S+ "
NOTHING = "<nothing>"

DIFFERENCES = [
    # Variables
    Difference(
        what="who holds the store",
        row="who holds the store",
        where=RANK + "env TORCHELASTIC_USE_AGENT_STORE",
        torchrun="True",
        milkweed="False",
        reason="rank 0 holds the store itself: hosts need no torch",
    ),
    Difference(
        what="variables of milkweed",
        row="variables of its own",
        where=RANK + "env MILKWEED_(GANG|HOST|RUN)",
        torchrun=NOTHING,
        milkweed=".+",
        reason="they tell a rank's processes from all others, and a program where it runs",
    ),
    Difference(
        what="spaces in --signals-to-handle",
        row="TORCHELASTIC_SIGNALS_TO_HANDLE",
        where=RANK + "env TORCHELASTIC_SIGNALS_TO_HANDLE",
        torchrun="SIGTERM, SIGINT",
        milkweed="SIGTERM,SIGINT",
        reason="the same signals",
        cases="signals with spaces",
    ),
    Difference(
        what="the path of an error file",
        row="TORCHELASTIC_ERROR_FILE with a relative --log-dir",
        where=RANK + "env TORCHELASTIC_ERROR_FILE",
        torchrun="logs/<run>/.*",
        milkweed="<folder>/logs/<run>/.*",
        reason="it is absolute, so that a rank may change its folder",
        cases="log dir relative",
    ),
    Difference(
        what="the restart count of nodes on which no rank failed",
        row="TORCHELASTIC_RESTART_COUNT on a node where no rank failed",
        where="ranks",
        torchrun=r'\["0\.0", "1\.0", "1\.1"\]',
        milkweed=r'\["0\.0", "0\.1", "1\.0", "1\.1"\]',
        reason="all ranks are started again, and all are told the same; a torchrun counts its own",
        cases="two nodes restart",
    ),
    # Where ranks meet
    Difference(
        what="the port of several nodes that were told none",
        row="MASTER_PORT of several nodes, not said",
        where=RANK + "env MASTER_PORT",
        torchrun="29500",
        milkweed="<port>",
        reason="a free one is taken, so that two runs can share a host",
        cases="two nodes by default",
    ),
    Difference(
        what="the address of several nodes that were told none",
        row="MASTER_ADDR, not said",
        where=RANK + "env MASTER_ADDR",
        torchrun="127.0.0.1",
        milkweed="localhost",
        reason="milkweed knows where rank 0 is; torchrun's default is right on one machine only",
        cases="two nodes by default",
    ),
    Difference(
        what="the name of the only machine",
        row="MASTER_ADDR, not said",
        where=RANK + "env MASTER_ADDR",
        torchrun=re.escape(socket.getfqdn()),
        milkweed="localhost",
        reason="torchrun asks the network for the machine's name, which may lead elsewhere",
        sometimes=True,
    ),
    # Streams
    Difference(
        what="standard input of ranks",
        row="stdin of ranks",
        where=RANK + "stdin",
        torchrun="<folder>/stdin",
        milkweed="/dev/null",
        reason="ranks may be on other machines; torchrun's all read what the launcher reads",
    ),
    Difference(
        what="output of ranks",
        row="stdout of ranks",
        where=RANK + "stdout",
        torchrun="-",
        milkweed="p",
        reason="what is shown comes over a pipe, so it is never a terminal",
    ),
    Difference(
        what="a last line without newline",
        row="a last line without its end",
        where="ends with newline",
        torchrun="false",
        milkweed="true",
        reason="the next rank's line would be on it",
        cases="no newline.*",
    ),
    Difference(
        what="carriage returns in teed lines",
        row="\\r in teed lines",
        where="(teed )?out",
        torchrun=r'\["(\[default0\]:)?1%", .*',
        milkweed=r'\["1%\\r2%\\r3%"\]|\[\]',
        reason="torchrun makes a line of each; a progress bar stays one here",
        cases="progress teed",
    ),
    Difference(
        what="teed lines that are read while they are written",
        row="a teed line that is read while it is written",
        where="(teed )?out",
        torchrun=r".*x\[default0\]:x.*",
        milkweed=r'\["end 0"(, "x{99}"){20000}\]'
        r'|\["\[default0\]:end 0"(, "\[default0\]:x{99}"){19900,20000}\]',
        reason="torchrun reads the end of a file, which may be the half of a line",
        cases="much teed",
        sometimes=True,
    ),
    Difference(
        what="lines above 64 KiB",
        row="lines above 64 KiB",
        where="out",
        torchrun=r'\["x{200000}"\]',
        milkweed=r'\["x+"(, "x+"){2,3}\]',
        reason="they are shown in pieces, so that no host needs memory for a line without end",
        cases="long line",
    ),
    # Ends
    Difference(
        what="the exit code after a signal",
        row="after a signal",
        where="code",
        torchrun="1",
        milkweed="1(29|30|31|38|43)",
        reason="128 and the signal's number, as shells have it: somebody stopped it, and no rank failed",
        cases="launcher gets .*|ranks .*",
    ),
    Difference(
        what="a command that is not there",
        row="a --no-python program that is not there",
        where="failures|err",
        torchrun=rf"{NOTHING}|\[\]",
        milkweed=r'\[0, 0, 127, 0\]|\["\./nothing\.sh: No such file or directory"\]',
        reason="it is a rank that failed, with its host and why; torchrun itself ends with a traceback",
        cases="missing tool",
    ),
    Difference(
        what="signals that do not exist",
        row="--signals-to-handle with no signal",
        where="code|out|ranks",
        torchrun=r'0|\["rank 0"\]|\["0\.0"\]',
        milkweed=r"1|\[\]",
        reason="torchrun warns and goes on, and the signal that was meant is never handled",
        cases="no signal",
    ),
    Difference(
        what="--shutdown-timeout after a failure",
        row="grace time after a failure",
        where="in time",
        torchrun="false",
        milkweed="true",
        reason="it counts whyever ranks end; torchrun waits 30 s then",
        cases="other ranks ignore it",
    ),
    Difference(
        what="what ranks leave behind",
        row="what ranks leave behind",
        where="left behind",
        torchrun="true",
        milkweed="false",
        reason="hosts stay for the next run, which must find them as they were",
    ),
    # --run-path
    Difference(
        what="how --run-path runs a file",
        row="--run-path",
        where=RANK + r"(leads its session|open files|orig_argv|unbuffered)",
        torchrun=r"false|\[0, 1, 2, .*\]|\[false, false\]|.*multiprocessing.*",
        milkweed=r"true|\[0, 1, 2\]|\[true, true\]|.*runpy.*",
        reason="in a fresh Python; torchrun's is one that its own started, with its imports and files",
        cases="run path.*",
    ),
    Difference(
        what="what --run-path can import",
        row="--run-path",
        where=RANK + r"path\[0\]",
        torchrun=".*/bin",
        milkweed="",
        reason="the folder it starts in; torchrun's has the folder of the program `torchrun`",
        cases="run path.*",
    ),
]


def explain(case: str, fact: str, theirs: str, ours: str) -> Difference | None:
    """The documented difference that a fact is, if any."""
    return next((each for each in DIFFERENCES if each.fits(case, fact, theirs, ours)), None)
