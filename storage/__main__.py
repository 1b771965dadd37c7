"""`python -m storage`: look at what a pipeline stored, check it, change who is in charge, and clear away."""

import io
import os
import sys
from collections.abc import Sequence

from storage import files
from storage.admin import parser
from storage.manifest import Damaged
from storage.registry import Superseded
from storage.uri import masked


def main(argv: Sequence[str] | None = None) -> int:
    """Do what the command line says: 0 when done, 1 for damage and failures, 2 for a wrong request, 130 interrupted."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # names of files may hold anything
    arguments = parser.make().parse_args(argv)
    try:
        code: int = arguments.run(arguments)
        sys.stdout.flush()
        return code
    except BrokenPipeError:  # whoever read has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt:
        return _failed("interrupted", code=130)
    except ValueError as error:
        return _failed(str(error), code=2)
    except Superseded as error:
        return _failed(f"{error}: nothing was changed; look with champion, then type it again", code=1)
    except (Damaged, OSError) as error:
        return _failed(str(error), code=1)
    except Exception as error:
        if not files.is_trouble(error):
            raise
        return _failed(f"{masked(str(error))}; check AWS_ENDPOINT_URL and the AWS_* variables", code=1)


def _failed(text: str, *, code: int) -> int:
    print(f"error: {' '.join(text.split())}", file=sys.stderr, flush=True)
    return code


if __name__ == "__main__":
    raise SystemExit(main())
