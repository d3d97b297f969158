"""What an import brings with it: the command line answers without torch, and the library never
loads a package that only some of it needs.
"""

import json
import subprocess
import sys

import pytest

HEAVY = [
    "IPython",
    "botorch",
    "constriction",
    "gpytorch",
    "jinja2",
    "linear_operator",
    "matplotlib",
    "onnx",
    "onnxruntime",
    "onnxscript",
    "pandas",
    "PIL",
    "plotly",
    "pyarrow",
    "rich",
    "scipy",
    "sklearn",
    "sympy",
    "torch._dynamo",
    "torch._inductor",
    "torchmetrics",
    "torchvision",
    "typer",
    "zuko",
]


def loaded_by(code):
    """The modules that are loaded after a program of these lines, in a fresh interpreter."""
    program = f"import json, sys\n{code}\nprint('\\n' + json.dumps(sorted(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    return set(json.loads(done.stdout.splitlines()[-1]))


def run_of(*words, code=0):
    return (
        f"sys.argv = ['credo', *{words!r}]\n"
        "from credo.cli import main\n"
        f"try:\n    main()\nexcept SystemExit as done:\n    assert (done.code or 0) == {code}"
    )


@pytest.mark.parametrize(
    "words",
    [
        ("--help",),
        ("--version",),
        ("methods",),
        ("methods", "--help"),
        ("fit", "--help"),
        ("audit", "--help"),
        ("compress", "--help"),
        ("demo", "--help"),
        ("reproduce", "--help"),
        ("task", "distill", "--help"),
        ("vae", "fit", "--help"),
    ],
    ids=" ".join,
)
def test_the_command_line_explains_itself_without_torch(words):
    loaded = loaded_by(run_of(*words))
    assert "typer" in loaded
    assert not {"torch", "numpy", *HEAVY} - {"typer", "rich"} & loaded


def test_the_demo_names_a_missing_package_before_it_imports_torch():
    hide = "import importlib.util\nimportlib.util.find_spec = lambda name: None\n"
    assert "torch" not in loaded_by(hide + run_of("demo", code=2))


def test_importing_credo_costs_nothing_and_a_model_only_torch():
    assert "torch" not in loaded_by("import credo; dir(credo); credo.CredoError")
    alone = loaded_by("import torch")
    assert not set(HEAVY) & loaded_by("import credo; credo.BNN") - alone


@pytest.mark.parametrize("name", ["tasks", "compress", "audit", "generative", "nets", "data"])
def test_packages_are_reachable_without_what_only_some_functions_need(name):
    needed = set(HEAVY) & loaded_by(f"import credo; credo.{name}") - loaded_by("import torch")
    assert not needed
