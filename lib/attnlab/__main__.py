"""The command line behind the Makefile, from its first moment on."""

import sys

from attnlab.base.parent import ctrl_c_blocked, interruptible, raise_if_interrupted


def main(arguments: list[str] | None = None) -> int:
    """Run one command and return its exit status, as `commands.run`; after Ctrl-C or SIGTERM one line says so.

    Raises:
        SystemExit: the arguments can't be parsed; the status is 2.
    """
    try:
        # That takes seconds. An import that Ctrl-C cuts off may leave the interpreter with a status of its own.
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
