"""Make an environment in which SGLang's engine runs on CPUs: `make sglang` calls it with the folder to make.

It holds SGLang and what only SGLang needs, some in other versions than vLLM wants; everything else it takes from the
environment that runs this script, and the kernels from the stand-in beside it.
"""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

HERE = Path(__file__).resolve().parent


def main() -> None:
    folder = Path(sys.argv[1])
    venv.create(folder, with_pip=True, clear=True)
    python = folder / "bin" / "python"
    where = "import sysconfig; print(sysconfig.get_path('purelib'))"
    packages = Path(subprocess.check_output([python, "-c", where], text=True).strip())
    # Its own packages come first; addsitedir also finds packages that are installed where their source is.
    (packages / "base.pth").write_text(
        f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n"
        f"{HERE}\n"
        "import torchvision_operators; torchvision_operators.install()\n"
    )
    requirements = HERE / "requirements.txt"
    pip = [python, "-m", "pip", "install", "--no-compile", "--quiet", "--disable-pip-version-check", "--no-deps"]
    subprocess.check_call([*pip, "-r", requirements])


if __name__ == "__main__":
    main()
