"""`python -m storage`: list, inspect and verify stored results, change the champion, delete what is not needed."""

import io
import os
import sys
from collections.abc import Sequence

from storage import error_policy, terminal
from storage.admin import parser
from storage.manifest import Damaged
from storage.process import reach_loopback_directly
from storage.registry import Superseded
from storage.uri import redact_text


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; return exit code 0 (success), 1 (damage, failure), 2 (invalid request) or 130 (interrupted)."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # file names may contain any bytes
    arguments = parser.make().parse_args(argv)
    reach_loopback_directly()  # S3 may be served there
    try:
        code: int = arguments.run(arguments)
        sys.stdout.flush()
        return code
    except BrokenPipeError:  # the reader closed the pipe, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt:
        return _failed("interrupted", code=130)
    except ValueError as error:
        return _failed(str(error), code=2)
    except Superseded as error:
        return _failed(f"{error}; nothing was changed; check with `python -m storage champion` and try again", code=1)
    except (Damaged, OSError) as error:
        return _failed(str(error), code=1)
    except Exception as error:
        if not error_policy.is_storage_error(error):
            raise
        return _failed(f"{redact_text(str(error))}; check AWS_ENDPOINT_URL and the AWS_* variables", code=1)


def _failed(text: str, *, code: int) -> int:
    terminal.show(f"error: {' '.join(text.split())}", sys.stderr)
    return code


if __name__ == "__main__":
    raise SystemExit(main())
