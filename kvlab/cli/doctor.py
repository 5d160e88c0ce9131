"""`kvlab doctor`: versions, devices, a self-test of about ten seconds; or a check of recorded runs or of a model."""

from __future__ import annotations

import json
import os
import platform
import shutil
import tempfile
import time
from collections.abc import Callable
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import psutil
import typer
from rich.table import Table

from kvlab.common.terminal import print_wide
from kvlab.core.choice import MethodChoice
from kvlab.requests.compare import CompareRequest
from kvlab.trace import open_run

if TYPE_CHECKING:
    import torch
    from transformers import LlamaForCausalLM

DECIDED = ("h2o", "zsmerge", "keepkv", "d2o", "cam")  # one of each kind of decision that the kernel supports
TESTED = {"transformers": "5.23, 5.24"}  # versions that tests of models, caches and methods have run on
PACKAGES = ("torch", "triton", "transformers", "streamlit", "plotly", "pyarrow", "duckdb", "kaleido")


def doctor(
    target: Annotated[
        Path | None,
        typer.Argument(help="instead, a run folder or folder of runs to check, or a model: mini, a folder, a hub name"),
    ] = None,
    deep: Annotated[
        bool,
        typer.Option(help="also check a law: StreamingLLM finds needles as often as their place is kept"),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="print as JSON")] = False,
) -> None:
    """Report versions, devices and memory, and test a compressed cache here; or check recorded runs, or a model's keys.

    With --deep, 24 needles are looked for in texts of 512 tokens, by the model or mini. Checking runs compares every
    file with its checksum in run.json; checking a model, every store's loss of the keys of one text. Exit status 1:
    something is damaged or fails.
    On an NVIDIA GPU decode steps use a Triton kernel, which needs the package triton (pip install 'kvlab\\[kernels]'),
    a C compiler and Python's headers; KVLAB_KERNELS=off disables it.
    """
    if target is not None and target.is_dir() and not (target / "config.json").is_file():
        from kvlab.trace.verify import verify_runs

        findings = verify_runs(target)
        if as_json:
            found = [finding.model_dump() | {"verdict": finding.verdict} for finding in findings]
            typer.echo(json.dumps(found, indent=2))
        else:
            table = Table("run", "state", "found", show_lines=any(len(finding.problems) > 1 for finding in findings))
            for finding in findings:
                table.add_row(finding.run, finding.state, finding.verdict)
            print_wide(table)
        if any(finding.problems for finding in findings):
            raise typer.Exit(1)
        return
    if target is None:
        report = _machine_report()
    else:
        from kvlab.checking.loud_keys import check_keys

        report = check_keys(str(target))
    if deep:
        from kvlab.evaluation.self_check import check_needles

        report |= check_needles("mini" if target is None else str(target))
    if as_json:
        typer.echo(json.dumps(report, indent=2))
    else:
        for name, value in report.items():
            typer.echo(f"{name:>34}  {value}")
    if any(str(value).startswith("FAILED") for value in report.values()):
        raise typer.Exit(1)


def _machine_report() -> dict[str, str]:
    import torch

    from kvlab.core.plugins.load import load_plugins
    from kvlab.engine.energy import describe_energy, energy_counter

    versions = {"kvlab": "", "python": platform.python_version()}
    for name in ("kvlab", *PACKAGES):
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            versions[name] = "not installed"
        versions[name] += f" (tested: {TESTED[name]})" if name in TESTED else ""
    memory = psutil.virtual_memory()
    disk = shutil.disk_usage(".")
    machine = {
        "platform": platform.platform(),
        "cores": str(psutil.cpu_count(logical=True)),
        "memory": f"{memory.available / 2**30:.1f} of {memory.total / 2**30:.1f} GiB free",
        "disk": f"{disk.free / 2**30:.1f} GiB free here",
        "chromium (image export)": shutil.which("chromium") or shutil.which("google-chrome") or "not found",
        "mps": "yes" if torch.backends.mps.is_available() else "no",
    }
    devices = [torch.device("cpu"), *(torch.device("cuda", index) for index in range(torch.cuda.device_count()))]
    energy = {f"energy counter, {device}": describe_energy(energy_counter(device)) for device in devices}
    # What each plug-in registers, or why it failed to load.
    plugins = {
        f"plug-in {one.origin.name}": f"FAILED: {one.failure}"
        if one.failure
        else f"{one.origin.stamp}, {one.description}"
        for one in load_plugins()
    }
    kernels = {"fused kernels": _fused_kernels()}
    return {**versions, **machine, **_gpus(), **energy, **kernels, **plugins, **_self_tests()}


def _gpus() -> dict[str, str]:
    import torch

    from kvlab.core.attention.kernels import shared_memory

    found = {}
    for index in range(torch.cuda.device_count()):
        free, total = torch.cuda.mem_get_info(index)
        kib = shared_memory(torch.device("cuda", index)) / 1024
        major, minor = torch.cuda.get_device_capability(index)
        found[f"cuda:{index}"] = (
            f"{torch.cuda.get_device_name(index)}, {free / 2**30:.1f} of {total / 2**30:.1f} GiB free, "
            f"sm_{major}{minor}, {kib:.0f} KiB shared memory"
        )
    return found or {"cuda": "no"}


def _fused_kernels() -> str:
    """Whether decode steps on CUDA use the Triton kernel, and what it lacks."""
    from kvlab.core.attention.kernels import SWITCH, missing

    if os.environ.get(SWITCH) == "off":
        return f"disabled by {SWITCH}=off"
    lacks = missing()
    ready = f"ready, used on CUDA; {SWITCH}=off disables them"
    return f"missing {' and '.join(lacks)}: plain torch is used" if lacks else ready


def _self_tests() -> dict[str, str]:
    import torch

    tests = {
        "self-test: same as plain attention": _timed(_check_full_budget),
        "self-test: a comparison is recorded": _timed(_check_comparison),
    }
    for index in range(torch.cuda.device_count()):
        device = torch.device("cuda", index)
        tests[f"self-test: attention kernel, cuda:{index}"] = _timed(partial(_check_kernel, device))
        tests[f"self-test: decision kernel, cuda:{index}"] = _timed(partial(_check_decisions, device))
    return tests


def _timed(check: Callable[[], str]) -> str:
    begun = time.perf_counter()
    try:
        result = check()
    except Exception as error:  # report any failure
        return f"FAILED: {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
    return f"ok, {result}, {time.perf_counter() - begun:.1f} s"


def _check_full_budget() -> str:
    import torch

    from kvlab.core.cache import make_cache
    from kvlab.models.load import prepare

    model = _tiny_llama(hidden_size=32)
    ids = torch.randint(3, 64, (1, 40))
    with torch.inference_mode():
        plain = model(ids).logits
        ours = prepare(model)(ids, past_key_values=make_cache(model, "keepkv", 1.0)).logits
    difference = float((plain - ours).abs().max())
    if difference > 1e-4:
        raise ArithmeticError(f"logits differ by {difference:.1e} with a full budget")
    return f"largest difference {difference:.0e}"


def _tiny_llama(hidden_size: int, initializer_range: float = 0.02) -> LlamaForCausalLM:
    """A two-layer model with fixed random weights; also fixes the random numbers drawn afterwards."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=64,
        hidden_size=hidden_size,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        initializer_range=initializer_range,
    )
    return LlamaForCausalLM(config).eval()


def _check_kernel(device: torch.device) -> str:
    import torch

    from kvlab.core.attention.kernels import one_query_kernel, reference

    draw = torch.Generator().manual_seed(0)
    query, keys, values = (torch.randn(1, 2, size, 128, generator=draw).to(device) for size in (4, 300, 300))
    kernel = one_query_kernel(device)
    if kernel is None:
        return "plain torch is used"
    pairs = zip(kernel(query, keys, values, None, 0.1), reference(query, keys, values, None, 0.1), strict=True)
    difference = max(float((ours - theirs).abs().max()) for ours, theirs in pairs)
    if difference > 1e-3:
        raise ArithmeticError(f"differs from plain torch by {difference:.1e}")
    done_by = "plain torch is used" if one_query_kernel(device) is None else "as plain torch"
    return f"{done_by}, largest difference {difference:.0e}"


def _check_decisions(device: torch.device) -> str:
    """Check that every kind of decision gives the same logits with and without kernels on `device`."""
    from kvlab.core.attention.kernels import SWITCH, one_query_kernel
    from kvlab.core.cache.layers import dispatch

    if dispatch.decision_kernel(device) is None:
        return "the pipeline decides"
    ours = [_decoded(method, device) for method in DECIDED]
    if dispatch.decision_kernel(device) is None:
        return "the kernel cannot be compiled here (see the warning): the pipeline decides"
    # The same without kernels.
    before = os.environ.get(SWITCH)
    known = (one_query_kernel, dispatch.decision_kernel)
    os.environ[SWITCH] = "off"
    try:
        for kernel in known:
            kernel.cache_clear()
        theirs = [_decoded(method, device) for method in DECIDED]
    finally:
        os.environ.pop(SWITCH) if before is None else os.environ.update({SWITCH: before})
        for kernel in known:
            kernel.cache_clear()
    differences = {
        method: float((our - their).abs().max()) for method, our, their in zip(DECIDED, ours, theirs, strict=True)
    }
    worst = max(differences, key=differences.__getitem__)
    if not differences[worst] <= 1e-3:
        raise ArithmeticError(f"{worst} differs from the pipeline by {differences[worst]:.1e}")
    return f"{', '.join(DECIDED)} as the pipeline, largest difference {differences[worst]:.0e}"


def _decoded(method: str, device: torch.device) -> torch.Tensor:
    """Logits of decode steps of a random model with a method that decides at each step."""
    import torch

    from kvlab.core.cache import make_cache
    from kvlab.models.load import prepare

    model = prepare(_tiny_llama(hidden_size=64, initializer_range=0.2).to(device))  # type: ignore[arg-type]  # `to` keeps the class
    cache = make_cache(model, method, 0.4)
    logits = []
    with torch.inference_mode():
        # Long enough for cam to spread values within its window.
        model(torch.arange(160, device=device)[None] % 61 + 3, past_key_values=cache)
        for step in range(6):
            token = torch.tensor([[5 + 7 * step]], device=device)
            logits.append(model(token, past_key_values=cache).logits[0, -1])
    return torch.stack(logits)


def _check_comparison() -> str:
    from kvlab.engine import compare

    prompt = "The old house stood on the hill. Nobody had lived in it for years. " * 12
    request = CompareRequest(prompt=prompt, choices=(MethodChoice(method="keepkv", budget=0.3),), max_new_tokens=8)
    with tempfile.TemporaryDirectory() as folder:
        run = open_run(compare(request, folder)[0])
        slots = run.memory["live_slots"].mean()
    return f"mini kept {slots:.0f} of {run.record.prompt_tokens} tokens"
