"""The error tree: the type says who has to act and whether trying again can help."""

from __future__ import annotations


class PilotlineError(Exception):
    """Base of every error that the command line prints as one line.

    Attributes:
        exit_code: process exit status, see `pilotline --help`.
        kind: the word used in JSON output and step records.
    """

    exit_code = 1
    kind = "failed"


class UserError(PilotlineError):
    """Bad usage, configuration or input: says what, where, and what to do."""

    exit_code = 2
    kind = "bad_input"


class ContractViolation(PilotlineError):
    """The batch breaks its data contract."""

    exit_code = 3
    kind = "contract_violated"


class PolicyRefusal(PilotlineError):
    """A rule of the gate, the rollout or a policy says no."""

    exit_code = 3
    kind = "refused"


class IntegrityError(PilotlineError):
    """Bytes differ from the digest that names them."""

    exit_code = 3
    kind = "integrity_broken"


class TransientError(PilotlineError):
    """An engine or the network failed; the same call may be tried again."""

    exit_code = 1
    kind = "transient"


KINDS: dict[str, type[PilotlineError]] = {
    cls.kind: cls
    for cls in (PilotlineError, UserError, ContractViolation, PolicyRefusal, IntegrityError, TransientError)
}


def one_line(error: BaseException) -> str:
    """The error's text folded to a single line."""
    text = " ".join(str(error).split())
    return text or type(error).__name__
