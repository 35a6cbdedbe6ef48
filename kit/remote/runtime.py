"""Makes a virtual environment with an engine in it, on the host. Standard library only, Python >= 3.9.

    python3 runtime.py FOLDER REQUIREMENT...

Builds in FOLDER, and writes FOLDER/complete.json last: a folder without it is
half-made and is made anew. Ends 0 when it is there, also when it already was.
"""

import json
import os
import shutil
import subprocess
import sys


def main(folder, requirements):
    done = os.path.join(folder, "complete.json")
    python = os.path.join(folder, "bin", "python")
    try:
        with open(done) as f:
            json.load(f)
        print("already there: " + folder)
        return 0
    except (OSError, ValueError):       # not there, or cut short: made anew
        pass
    shutil.rmtree(folder, ignore_errors=True)
    print("making a virtual environment in " + folder, flush=True)
    try:
        import venv
        venv.EnvBuilder(with_pip=True, symlinks=True).create(folder)
    except (ImportError, subprocess.CalledProcessError, SystemExit) as e:
        print("this Python cannot make virtual environments (%s: %s); on Debian install python3-venv"
              % (type(e).__name__, e), file=sys.stderr)
        return 3
    # pip reads its configuration (index, proxy, certificates) as the user has it
    code = subprocess.call([python, "-m", "pip", "install", "--no-input", "--disable-pip-version-check",
                            "--progress-bar", "off", *requirements])
    if code:
        print("pip could not install " + " ".join(requirements), file=sys.stderr)
        return 4
    frozen = subprocess.run([python, "-m", "pip", "freeze", "--disable-pip-version-check"],
                            stdout=subprocess.PIPE, universal_newlines=True).stdout.split()
    with open(done + ".tmp", "w") as f:
        json.dump({"requirements": requirements, "installed": frozen}, f)
    os.replace(done + ".tmp", done)
    print("ready: " + " ".join(frozen))
    return 0


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    sys.exit(main(sys.argv[1], sys.argv[2:]))
