"""What a user can put right, said in one line."""


class UserError(Exception):
    """Bad input or a bad state of the machine: the message is one line that says what to do.

    The command line prints it without a traceback and exits with 1; so does a notebook.
    """

    def _render_traceback_(self) -> list[str]:
        # IPython asks an exception how it wants to be shown.
        return [f"{type(self).__name__}: {self}"]


class Interrupted(UserError):
    """Someone pressed Ctrl-C; what was recorded is kept."""


class EnvironmentChanged(UserError):
    """A run that was cut off began in another environment than this one."""
