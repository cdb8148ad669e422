"""Builds pycoll; everything that is not the native module is in pyproject.toml."""

from __future__ import annotations

import runpy
import shlex
import shutil
import sysconfig
from pathlib import Path

from setuptools import setup
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py

#: Read by pycoll.runtime.native.load when the native module is missing.
RECORD = "_native_missing.txt"
CURE = "apt-get install gcc python3-dev"
AGAIN = "pip install --force-reinstall --no-deps . (or make build)"


#: Tells which sources the GPU's kernels have, and looks for them in this folder's `native`.
KERNELS = Path("pycoll", "runtime", "cuda")


class BuildPackage(build_py):
    """Ships the kernels' sources with the package, as they are compiled where there is a GPU."""

    def run(self) -> None:
        """Copy the modules, then the sources; an editable install finds them in `native`."""
        super().run()
        if not self.editable_mode:
            for name, text in self.kernels().items():
                target = Path(self.build_lib, KERNELS, "native", name)
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_text(text, encoding="utf-8")

    def kernels(self) -> dict[str, str]:
        """Return name and text of each source."""
        return runpy.run_path(str(KERNELS / "source.py"))["closure"](Path("native"))

    def get_outputs(self, include_bytecode: bool = True) -> list[str]:
        """List the sources too: a wheel's record is made of this."""
        own = [str(Path(self.build_lib, KERNELS, "native", name)) for name in self.kernels()]
        return super().get_outputs(include_bytecode) + ([] if self.editable_mode else own)


class BuildNative(build_ext):
    """Builds the native module if it can; otherwise says why, and records it for `init`."""

    def build_extension(self, ext) -> None:
        """Compile; the caller turns an error into a warning, because ext.optional is set."""
        record = Path(self.build_lib, "pycoll", RECORD)
        record.unlink(missing_ok=True)
        try:
            super().build_extension(ext)
        except Exception:
            reason = f"{self.lack()}, then {AGAIN}"
            record.parent.mkdir(parents=True, exist_ok=True)
            record.write_text(reason + "\n", encoding="utf-8")
            # An engine left by an earlier build would not fit the Python beside it.
            Path(self.get_ext_fullpath(ext.name)).unlink(missing_ok=True)
            self.warn(f"pycoll is built without its native engine: {reason}")
            raise

    def lack(self) -> str:
        """Say what this machine has not got, and what mends it."""
        command = (getattr(self.compiler, "compiler_so", None) or shlex.split("cc"))[0]
        if shutil.which(command) is None:
            return f"no C compiler ({command}) was found: {CURE}"
        header = Path(sysconfig.get_path("include"), "Python.h")
        if not header.exists():
            return f"{header} was not found: {CURE}"
        return f"{command} did not compile native/*.c: see the build's output (pip install -v)"

    def copy_extensions_to_source(self) -> None:
        """Copy the record too when building in place, and drop what an earlier build left."""
        target = Path("pycoll", RECORD)
        for stale in (target, *Path("pycoll").glob("_native*.so")):
            stale.unlink(missing_ok=True)
        super().copy_extensions_to_source()
        source = Path(self.build_lib, "pycoll", RECORD)
        if source.exists():
            shutil.copy(source, target)


setup(
    cffi_modules=["native/build.py:ffi"],
    cmdclass={"build_ext": BuildNative, "build_py": BuildPackage},
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)
