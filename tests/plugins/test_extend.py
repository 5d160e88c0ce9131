"""`kvlab.extend` keeps its names, loads only what is used, and is the only import in docs and templates."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import warnings
from importlib import import_module
from pathlib import Path

import pytest

from kvlab import extend
from kvlab.core.plugins.moved_modules import MOVED

ROOT = Path(__file__).resolve().parents[2]
# A name leaves this list only with an entry in `extend._DEPRECATED` for one release.
NAMES = """
AboveThreshold Absorb AccumulatedAttention Allocator AttentionPass Ballots Capabilities Capacity Chosen ChosenSlots
ChunkLeverage Chunks Code CosineDecay CosineMerge Critical DecodeCompression Draft Draws Edges Eight EmaScore
EqualHeads Estimate Evict EvictAndReposition ExactResidual ExpectedAttention FigureView FirstLayers FusedWindow
FutureQueries GatedChunks GaussianSets GlobalRidge GroupFit HUES HeadAdaptive HeadCurves HeadProfile HeadShares
Held InPlace Lag LastQuery LayerAttention LazyLayers Linear LowestScore METRICS Mass MatchAttention Method
ModelWide NearestMerge NewKeys Oldest PairCalibration PairMerge SparseShare PerChannel PerToken Pipeline Plan Pool
PredictedScore Preset PromptOnly Pursuit Pyramid QueryCentres QueryFilter SparseAttention SparseCapabilities Recency
RecentRows Redundancy ResidualMerge Rotated STATE_COLOURS STORES Sample SampledRest Scorer SecondPassAttention
SecondPassRequest SeedClusters Selector Settler ShortKeys Slots SlotsAlone SquaredLengths Store TASKS Task
TimeStamps Uniform Unscored UnusualKeys UserError ValueMerge ValueShift Variance Victims View WindowAttention
compose finish get_task load_plain_text make_method method_style pick register register_allocator register_loader
register_metric register_sparse_attention register_scorer register_selector register_settler register_task register_view
registered score_answer view
""".split()  # noqa: SIM905 (a list literal takes a line a name)
# Module paths of version 0.1, by what a plug-in may have taken from them.
OLD_PATHS = {
    "kvlab.methods.core.method": ["Method", "register"],
    "kvlab.methods.core.contract": ["Capabilities"],
    "kvlab.methods.scorers.attention.accumulated_attention": ["AccumulatedAttention"],
    "kvlab.stores": ["STORES", "Store"],
    "kvlab.cache": ["make_cache"],
    "kvlab.common.errors": ["UserError"],
    "kvlab.core.contract.reading": ["PartReading", "Reading", "ReadingCapabilities", "register_reading"],
    "kvlab.core.methods.readings": ["Reading"],
}


def test_names_are_pinned() -> None:
    assert set(NAMES) - set(extend.__all__) <= set(extend._DEPRECATED), "a name left without a deprecation"
    assert set(extend.__all__) == set(NAMES), "a new name belongs into this list"
    assert dir(extend) == extend.__all__


def test_every_name_is_there_and_type_checkers_see_the_same() -> None:
    source = ast.parse((ROOT / "kvlab" / "extend.py").read_text())
    (block,) = [node for node in source.body if isinstance(node, ast.If)]
    typed = {
        alias.asname or alias.name: (node.module, alias.name)
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert typed == extend._NAMES
    for name, (module, there) in extend._NAMES.items():
        assert getattr(extend, name) is getattr(import_module(module), there)


def test_an_unknown_name_is_refused_and_an_old_one_warns(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(AttributeError, match="no name 'Nothing'"):
        _ = extend.Nothing
    with pytest.raises(AttributeError, match="only epikv used"):
        _ = extend.ResidualRule
    monkeypatch.setitem(extend._DEPRECATED, "OldEvict", "Evict")
    with pytest.warns(DeprecationWarning, match="now called Evict"):
        assert extend.OldEvict is extend.Evict
    with pytest.warns(DeprecationWarning, match="now called DecodeCompression"):
        assert extend.GoesOn.going_on is extend.DecodeCompression.with_decoding
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert extend.Evict


@pytest.mark.parametrize("names", ["FigureView, finish, HUES, pick, register_view, view", "Preset"])
def test_views_and_presets_load_no_model_stack(names: str) -> None:
    code = f"import sys; from kvlab.extend import {names}; print('torch' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert found.stdout.strip() == "False"


def test_docs_and_templates_import_nothing_else_of_kvlab() -> None:
    allowed = {"kvlab", "kvlab.extend", "kvlab.checking"}  # the last for the test that `kvlab plugin new` writes
    for path in [*ROOT.glob("docs/**/*.md"), *ROOT.glob("kvlab/core/plugins/templates/*"), ROOT / "README.md"]:
        found = re.findall(r"^\s*(?:from|import) (kvlab\b[\w.]*)", path.read_text(), re.MULTILINE)
        assert set(found) <= allowed, path.relative_to(ROOT)


@pytest.mark.parametrize("old", MOVED)
def test_a_module_that_moved_is_the_same_module_under_both_names(old: str) -> None:
    sys.modules.pop(old, None)
    with pytest.warns(DeprecationWarning, match=r"import its names from kvlab\.extend"):
        found = import_module(old)
    assert found is import_module(MOVED[old]) and found.__spec__ is not None and found.__spec__.name == MOVED[old]


def test_a_moved_package_loads_no_module_twice() -> None:
    code = "from kvlab.methods.eviction.lagkv import Lag; from kvlab import extend; print(Lag is extend.Lag)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert found.stdout.strip() == "True"


@pytest.mark.parametrize("module", OLD_PATHS)
def test_old_paths_still_have_their_names(module: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        found = import_module(module)
    assert all(hasattr(found, name) for name in OLD_PATHS[module])


@pytest.mark.parametrize("name", ["Method", "Pipeline", "Uniform", "compose"])
def test_a_name_can_be_the_first_that_is_imported(name: str) -> None:
    """A plug-in file may be run alone, as its own test does: no other import has put the modules into order."""
    code = f"from kvlab.extend import {name}"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert found.returncode == 0, found.stderr
