"""Makes the locks beside this file from pyproject.toml's extras: `python requirements/lock.py`.

Each lock holds for every system and every Python of `requires-python` (markers tell them apart)
and names each file by its hash. lab.txt is a part of test.txt: one version of all in both.
Needs uv on the PATH, which nobody else needs. `--upgrade` takes the newest versions; without it
the pins that still fit are kept.
"""

import re
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
COMMAND = "python requirements/lock.py"
# lock -> (extra, the lock that it must agree with). The order matters: test.txt comes first.
LOCKS = {
    "test.txt": ("dev", None),
    "lab.txt": ("course", "test.txt"),
    "gpu-cuda12x.txt": ("gpu-cuda12x", "test.txt"),
    "gpu-cuda13x.txt": ("gpu-cuda13x", "test.txt"),
}


def compile_command(lock: str, extra: str, agree: str | None) -> list[str]:
    """The uv command for one lock. `fewest`: all Pythons get the versions that were tested."""
    command = ["uv", "pip", "compile", "pyproject.toml", "--extra", extra, "--universal"]
    command += ["--generate-hashes", "--fork-strategy", "fewest", "--no-emit-index-url"]
    command += ["--custom-compile-command", COMMAND, "--quiet", "-o", f"requirements/{lock}"]
    return command + (["-c", f"requirements/{agree}"] if agree else [])


def main(arguments: list[str]) -> None:
    if not shutil.which("uv"):
        sys.exit("lock: uv is not on the PATH. Install it with: pip install uv")
    if arguments not in ([], ["--upgrade"]):
        sys.exit(f"lock: unknown arguments {arguments}. Use: {COMMAND} [--upgrade]")
    for lock, (extra, agree) in LOCKS.items():
        command = compile_command(lock, extra, agree) + arguments
        if subprocess.call(command, cwd=HERE.parent):
            sys.exit(f"lock: uv could not resolve {lock} (extra {extra!r}); its reason is above")
        pins = len(re.findall("^[^ #]+==", (HERE / lock).read_text(encoding="utf-8"), re.M))
        print(f"requirements/{lock}: {pins} pins")


if __name__ == "__main__":
    main(sys.argv[1:])
