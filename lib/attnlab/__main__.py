"""The entry point of the command line, which the Makefile calls."""

import sys

from attnlab.base.parent import ctrl_c_blocked, interruptible, raise_if_interrupted


def main(arguments: list[str] | None = None) -> int:
    """Run one command and return its exit status, as `commands.run`; after Ctrl-C or SIGTERM one line says so.

    Raises:
        SystemExit: the arguments can't be parsed; the status is 2.
    """
    try:
        # The import takes seconds. If Ctrl-C interrupted it, the exit status might be another than 130.
        with ctrl_c_blocked():
            from attnlab import commands

        with interruptible():
            status = commands.run(arguments)
            if status == 0:
                raise_if_interrupted()
            return status
    except KeyboardInterrupt:
        print("attnlab: interrupted; what was recorded is kept", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
