"""Load request classes of vLLM and SGLang from their released packages, without a GPU.

Only the modules that a caller names run; every other module of the engine, and the
libraries that it needs for its work, are stand-ins that have any name and do nothing.
So the classes are the engine's own, with their fields, aliases and validators.

    with Released("vllm", "0.33.0") as engine:
        engine.load("vllm.entrypoints.anthropic.protocol").AnthropicMessagesRequest

Packages are fetched with pip from the registry that it is set up for, and kept in
$KVATLAS_ENGINES (default: .cache/engine-packages of this checkout). Needs pydantic,
openai, openai-harmony and jinja2: requirements.txt beside this file.
"""

import importlib.abc
import importlib.machinery
import importlib.util
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import types
import zipfile

HERE = pathlib.Path(__file__).resolve().parent
CACHE = pathlib.Path(os.environ.get("KVATLAS_ENGINES", HERE.parent.parent / ".cache" / "engine-packages"))


def fetch(package, version):
    """Return the folder that holds the package, unpacked. It is fetched once."""
    target = CACHE / f"{package}-{version}"
    if target.is_dir():
        return target
    CACHE.mkdir(parents=True, exist_ok=True)
    pip = [sys.executable, "-m", "pip", "download", "-q", "--disable-pip-version-check", "--no-deps"]
    with tempfile.TemporaryDirectory(dir=CACHE) as tmp:
        if package == "vllm":
            # A wheel is 400 MB of kernels. pip unpacks the source and then fails for
            # lack of torch; the unpacked tree is all that is wanted.
            subprocess.run(
                [*pip, "--no-binary", package, "--no-build-isolation", "--no-clean", "-d", f"{tmp}/dl", f"{package}=={version}"],
                env={**os.environ, "TMPDIR": tmp}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False,
            )
            (tree,) = pathlib.Path(tmp).glob("pip-*/vllm*")
            shutil.move(tree, target)
        else:
            subprocess.run([*pip, "--only-binary", ":all:", "-d", tmp, f"{package}=={version}"], check=True)
            (wheel,) = pathlib.Path(tmp).glob("*.whl")
            with zipfile.ZipFile(wheel) as z:
                z.extractall(f"{tmp}/tree")
            shutil.move(f"{tmp}/tree", target)
    return target


class _Anything(type):
    def __getattr__(cls, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return cls

    def __or__(cls, other):
        return cls

    __ror__ = __or__


class Stand(metaclass=_Anything):
    """Stand-in for whatever a module that is not loaded would have."""

    def __init__(self, *args, **kwargs):
        pass

    def __init_subclass__(cls, **kwargs):
        pass

    def __call__(self, *args, **kwargs):
        # As a decorator it leaves alone what it decorates.
        return args[0] if len(args) == 1 and not kwargs and callable(args[0]) else self

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    def __class_getitem__(cls, item):
        return cls

    def __bool__(self):
        return False

    @classmethod
    def __get_pydantic_core_schema__(cls, source, handler):
        from pydantic_core import core_schema

        return core_schema.any_schema()


class _StandModule(types.ModuleType):
    __path__ = []

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        full = f"{self.__name__}.{name}"
        if full in sys.modules:
            return sys.modules[full]
        value = _Anything(name, (Stand,), {"__module__": self.__name__})
        setattr(self, name, value)
        return value


class Released(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Engine of one release. Leave the context before loading another one."""

    # Libraries that engines import and that no request class needs.
    stands = ("torch", "transformers", "fastapi", "starlette", "zmq", "msgspec", "cloudpickle", "numpy", "PIL", "mcp",
              "partial_json_parser", "sglang", "vllm", "xgrammar", "orjson", "regex", "huggingface_hub", "tqdm",
              "soundfile", "safetensors", "prometheus_client", "uvloop", "psutil", "requests", "aiohttp", "llguidance", "cbor2",
              "mistral_common", "tokenizers", "pybase64", "jsonschema", "packaging", "setproctitle")

    def __init__(self, package, version, real=(), values=None):
        self.root = fetch(package, version)
        self.package, self.version = package, version
        self.real = set(real)
        self.values = values or {}

    def __enter__(self):
        sys.meta_path.insert(0, self)
        return self

    def __exit__(self, *exc):
        sys.meta_path.remove(self)
        for name in [n for n in sys.modules if n.split(".")[0] in self.stands]:
            if getattr(sys.modules[name], "__loader__", None) is self or isinstance(sys.modules[name], _StandModule):
                del sys.modules[name]

    def path(self, module):
        """Return the file of a module of the engine, or None."""
        base = self.root / module.replace(".", "/")
        for file in (base.with_suffix(".py"), base / "__init__.py"):
            if file.is_file():
                return file
        return None

    def load(self, module):
        """Import a module of the engine for real."""
        self.real.add(module)
        return importlib.import_module(module)

    def find_spec(self, name, path=None, target=None):
        top = name.split(".")[0]
        if top not in self.stands:
            return None
        file = self.path(name) if name in self.real else None
        return importlib.machinery.ModuleSpec(name, self, is_package=file is None or file.name == "__init__.py")

    def create_module(self, spec):
        if spec.name in self.real and self.path(spec.name):
            m = types.ModuleType(spec.name)
            m.__file__ = str(self.path(spec.name))
            return m
        return _StandModule(spec.name)

    def exec_module(self, module):
        if isinstance(module, _StandModule):
            for key, value in self.values.get(module.__name__, {}).items():
                setattr(module, key, value)
            return
        code = compile(pathlib.Path(module.__file__).read_text(), module.__file__, "exec")
        exec(code, module.__dict__)
