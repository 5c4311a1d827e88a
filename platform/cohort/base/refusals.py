"""What the platform refuses to do, and why."""


class Refused(Exception):
    """The message is for a person and may be worded anew; `code`, in snake_case, stays. It is the class's own, or says
    which of several reasons it was."""

    code = "refused"

    def __init__(self, message: str = "", *, code: str = "") -> None:
        super().__init__(message)
        if code:
            self.code = code
