"""`python -m sglang.launch_server FLAGS`: parse, resolve, then start as recorded."""

import os
import sys

from sglang.srt.server_args import RELEASE, prepare_server_args


def recorded(name):
    with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "recorded", name), encoding="utf-8") as f:
        return f.read()


if __name__ == "__main__":
    if (RELEASE >= (0, 5, 12)):
        sys.stderr.write("".join(line + "\n" for line in recorded("steps-missing.log").splitlines()[2:5]))
    try:
        server_args = prepare_server_args(sys.argv[1:])
        if hasattr(server_args, "resolve_once"):
            server_args.resolve_once()
            server_args = server_args._resolved
        server_args.check_server_args()
    except AssertionError as error:
        if str(error) or RELEASE[:3] != (0, 5, 12):
            raise
        sys.stderr.write("".join(line + "\n" for line in recorded("steps-missing.log").splitlines()[5:]))
        sys.exit(1)                                 # as recorded: the very text of 0.5.12.post1
    from sglang.standin import serve
    serve(server_args)
