"""Which mutants are drawn, and which tests they are given to."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from itertools import islice
from pathlib import Path

import pytest
from fusewheel.doctor.columns import COLUMNS
from stems import owner

from mutants import harmless, sources, tests_of
from mutants.mutant import Change, Mutant
from mutants.sources import FILES, draw, files_of
from mutants.workspace import ROOT

LINEAR = ["linear", "linear_blocks", "linear_int4", "linear_int8"]


def test_the_same_seed_draws_the_same():
    first, second, other = (
        [str(m) for kind in FILES for m in islice(draw(kind, ROOT, seed), 10)] for seed in (1, 1, 2)
    )
    assert first == second != other


@pytest.mark.parametrize("kind", FILES)
def test_files_take_turns(kind: str):
    files = Counter(mutant.path for mutant in islice(draw(kind, ROOT, 3), 30))
    assert max(files.values()) <= 30 // len(files) + 1


def test_what_a_processor_lacks_is_not_broken(monkeypatch: pytest.MonkeyPatch):
    def found(flags: str) -> set[str]:
        monkeypatch.setattr(sources, "_processor", lambda: flags)
        return {path.stem for path in files_of("cpu", ROOT)}

    assert found("avx2 amx_tile") - found("avx2") >= {
        "attention_decode_amx",
        "amx_decode_pack",
        "int8_amx",
    }
    assert found("avx2 avx_vnni") - found("avx2") == {"int8_groups", "int8_rows"}
    assert {"rms_norm", "linear_int8", "decode"} <= found("avx2")


def test_a_function_that_a_processor_never_calls_is_not_broken(monkeypatch: pytest.MonkeyPatch):
    def inside(flags: str) -> bool:
        monkeypatch.setattr(sources, "_processor", lambda: flags)
        mutants = sources.mutants_of("cpu", Path("cpu_kernels/matmul/prepare.cc"), ROOT)
        return any("size_of_number = 2" in m.text.splitlines()[m.line - 1] for m in mutants)

    assert inside("avx2 avx512_bf16") and inside("amx_bf16") and not inside("avx2")


def test_every_kind_has_files_and_the_emulator_is_none():
    for kind in FILES:
        assert len(files_of(kind, ROOT)) > 10
    paths = {str(path) for path in files_of("cuda", ROOT)}
    assert not any("emulation" in path for path in paths)
    assert {"cuda_kernels/backend.cc", "cuda_kernels/experts/grouped_linear.cu"} < paths


def is_left_out(kind: str, text: str, old: str, new: str) -> bool:
    """Whether no test has to find this change of the first `old` in a text."""
    start = text.index(old)
    mutant = Mutant(kind, Path("a.file"), text, Change(start, start + len(old), new))
    return harmless.reason(mutant) is not None


@pytest.mark.parametrize(
    ("line", "old", "left_out"),
    [
        ("constexpr int64_t kGrain = 16384;", "16384", True),
        ("constexpr double kTwice = 1.5;", "1.5", False),
        ("__builtin_prefetch(a + b);", "+", True),
        ("      ask_for_tensor(weights_[i + kTensorAhead]);", "+", True),
        ("      each(k);", "each(k)", True),
        ("  plan->sizes = std::move(sizes);", "plan->sizes = std::move(sizes)", True),
        ("constexpr int64_t kFewestBytesAsked = int64_t{2} << 20;", "<<", True),
        ("constexpr int64_t kFewestBytesRead = int64_t{2} << 20;", "<<", False),
        ("const A mean = a + b;", "+", False),
        ("const dim3 block = row_block(args.size / V, 256);", "/", True),
        ("const int64_t width = std::max<int64_t>(1, kSliceSize / rows);", "/", True),
        ("const int64_t width = std::max<int64_t>(1, classes / rows);", "/", False),
        ("A h[8];", "8", True),
        ("x[8] = 3;", "8", False),
        ("const A x = y[8];", "8", False),
        ("return x[8];", "8", False),
        ("const int64_t n = end - i < kMany ? end - i : kMany;", "<", True),
        ("return a > b ? splat(b) : a;", ">", True),
        ("for (int j = 0; j < kLanes; ++j) {", "<", True),
        ("for (int64_t i = 0; i < count; ++i) {", "<", False),
        ("for (; i + kTileRows <= rows; i += kTileRows) {", "<=", True),
        ("for (; i + pairs * pair <= size; i += pairs * pair) {", "<=", True),
        ("for (; i <= rows; i += kFewRows) {", "<=", False),
        ("const int64_t n = i < count ? x : count;", "<", False),
        ("return args.m <= kFewRows && is_fast(args);", "<=", True),
        ("return args.m > kFewRows && args.k > 0;", ">", False),
        ("for (int64_t i = 0; i < kFewRows; ++i) {", "<", False),
        ("  int64_t rank = 0;", "0", True),
        ("  int64_t count = 0;", "0", False),
        ("const uint32_t count = reader.count(20);", "20", True),
        ("rests_.get(), [] { std::this_thread::yield(); }};", "std::this_thread::yield()", True),
        ("constexpr int64_t kPlaces = 4;", "4", True),
        ("constexpr size_t kMostPlans = 8;", "8", True),
        ("constexpr int64_t kSoon = 2;", "2", True),
        ("constexpr size_t kHandleAhead = 16;", "16", True),
        ("constexpr int64_t kNowhere = std::numeric_limits<int64_t>::min();", "min", True),
        ("constexpr uint32_t kUnused = 0xFFFFFFFF;", "0xFFFFFFFF", False),
        ("  const bool pays = args.m <= kDotRows || kBytes == 32;", "32", True),
        ("constexpr int kFewRows = kTileRows / 3;", "/", True),
        ("return args.rows <= kMmaRows ? small(args) : large(args);", "<=", True),
        ("const int64_t ahead = last ? kUnit * stride : live;", "*", True),
        ("const int64_t head = last ? kUnit * stride : live;", "*", False),
        ("for (int i = 0; i < V; ++i) {", "<", True),
        ("  int device = 0;", "0", True),
        ("  int32_t dtype = 0;", "0", True),
        ("  int32_t number = 0;", "0", False),
        ("for (; i + 8 <= rows && !next.is_done(); i += 8) {", "!next.is_done()", True),
        ("for (; i + 8 <= rows && !next.is_done(); i += 8) {", "+", False),
        ("  return body(uint8_t{1}, uint8_t{0});", "1", True),
        ("  return body(uint8_t{1}, uint8_t{0});", "0", False),
    ],
)
def test_what_does_no_harm_is_left_out(line: str, old: str, left_out: bool):
    assert is_left_out("cpu", line + "\n", old, "7") == left_out


@pytest.mark.parametrize(
    ("kind", "line", "old", "left_out"),
    [
        ("patterns", "last = (rank_of(node) or 0) - 1", "0", True),
        ("patterns", "last = (rank_of(node) or 0) - 1", "1", False),
        ("patterns", "size = (shape_of(node) or (0,))[-1]", "0", True),
        ("patterns", "if softcap or 0:", "0", False),
        ("patterns", "return any(_has_product(arg, steps - 1) for arg in found.args)", "1", True),
        ("patterns", "last = steps - 10", "10", False),
        ("columns", "if abs(got - want) > relative * float(scale) + noise:", ">", True),
        ("columns", "if got > relative * float(scale) + noise:", ">", False),
    ],
)
def test_what_does_no_harm_in_python(kind: str, line: str, old: str, left_out: bool):
    assert is_left_out(kind, line + "\n", old, "7") == left_out


@pytest.mark.parametrize("kind", ["cpu", "cuda"])
def test_the_inside_of_a_function_may_do_no_harm(kind: str):
    text = "int chunk(int n) {\n  return n / 16;\n}\n\nint half(int n) {\n  return n / 2;\n}\n"
    text = text.replace("chunk", "row_chunks")
    chunks, half = (
        Mutant(kind, Path("a.cc"), text, Change(text.index(old), text.index(old) + 1, "*"))
        for old in ("/ 16", "/ 2")
    )
    assert harmless.reason(chunks) is not None
    assert harmless.reason(half) is None


@pytest.mark.parametrize(
    ("text", "old", "new", "left_out"),
    [
        ("void mark_neighbours(Program& program) {\n    return free;\n", "free", "{}", True),
        ("void mark_neighbours(Program& program) {\n    return free;\n", "free", "!(free)", False),
        ("void others(Program& program) {\n    return free;\n", "free", "{}", False),
        ("void each(int64_t size) {\n  if (i < size) {\n", "< s", "<= s", False),
        ("void each(int64_t size) {\n  if (i < size) {\n", "<", "<=", True),
        ("void each(int64_t size) {\n  if (i < size) {\n", "<", ">", False),
        ("class LinesAhead {\n  at_ += kPlaces * kRun;\n", "+=", "-=", True),
        ("class NextRows {\n  left_ = rows * lines;\n", "*", "+", True),
        ("class NextCodes {\n  groups_ = rows * weight.groups;\n", "*", "+", True),
        ("void pack() {\n  NextCodes next(weight, begin, blocks);\n", "begin", "blocks", True),
        ("bool is_own(int64_t rows) {\n  return small && rows > 8;\n", "&&", "||", True),
        ("bool is_own_row(int64_t rows) {\n  return small && rows > 8;\n", "&&", "||", False),
        ("class LinesBehind {\n  at_ += kPlaces * kRun;\n", "+=", "-=", False),
        ("uint64_t key_of(const void* memory) {\n  return a ^ b;\n", "^", "&", True),
        ("constexpr double erfc(double x) {\n  for (int n = 1; n < 60; ++n) {\n", "60", "61", True),
        ("constexpr double erfc(double x) {\n  for (int n = 1; n < 60; ++n) {\n", "1", "2", False),
    ],
)
def test_where_it_stands_may_say_that_it_does_no_harm(
    text: str, old: str, new: str, left_out: bool
):
    assert is_left_out("cpu", text, old, new) == left_out


def test_operators_are_tested_by_name_and_of_each_family_one():
    first, others = tests_of.operator_tests("rms_norm", ROOT)
    assert first.arguments[:2] == ("tests/ops/test_values.py", "tests/ops/norm/test_rms_norm.py")
    assert first.options == others.options == ("--operator", "rms_norm")
    assert "tests/ops/test_vmap.py" in others.arguments
    assert "tests/ops/test_compilers.py" not in others.arguments
    (numbers,) = tests_of.operator_tests("rms_norm", ROOT, of_numbers=True)
    assert {*numbers.arguments} <= {*first.arguments}
    stems = ["gelu", "layer_norm", "rms_norm", "rope", "silu_mul", "linear"]
    parts = [["rms_norm", "gelu"], ["linear", "rope", "layer_norm", "silu_mul"]]
    assert tests_of.parts(stems, "rms_norm", ROOT) == parts
    assert tests_of.parts(["grouped_linear", *LINEAR], "int8_amx", ROOT)[0][0] == "linear_int8"
    assert tests_of.parts([], "processor", ROOT) == [[]]


def test_what_is_about_an_operator_runs_under_its_name():
    numbers, _ = tests_of.operator_tests("attention_decode", ROOT)
    edges = "tests/ops/attention/test_attention_decode_edges.py"
    assert edges in numbers.arguments
    asked = edges, *numbers.options, "--collect-only", "-q", "-p", "no:cacheprovider"
    command = sys.executable, "-m", "pytest", *asked
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    assert "deselected" not in done.stdout


def test_a_loop_over_no_elements_may_be_entered():
    line = "  if (call.args.norm.size > 0) {\n"
    start = line.index(">")
    for new, harms in ((">=", False), ("<", True)):
        mutant = Mutant("cpu", Path("a.cc"), line, Change(start, start + 1, new))
        assert (harmless.reason(mutant) is None) == harms


def test_objects_have_levels():
    names = ("fusewheel_cpu_x86_64_v4", "fusewheel_cpu_baseline", "fusewheel_cpu")
    levels = [tests_of.level_of(Path(f"CMakeFiles/{name}.dir/gelu.cpp.o")) for name in names]
    assert levels == ["v4", "baseline", ""]


@pytest.mark.parametrize(
    ("stems", "path", "expected"),
    [
        (["rope", "lanes"], "cpu_kernels/simd/lanes.h", ["rope"]),
        (["attention_backward"], "cpu_kernels/attention/attention_backward.cpp", ["attention"]),
        (["gelu_mul_vectors"], "cpu_kernels/activation/gelu_mul_vectors.cpp", ["gelu_mul"]),
        (
            ["products"],
            "cuda_kernels/linear/products.cc",
            ["grouped_linear", *LINEAR],
        ),
        (
            ["matmul"],
            "cpu_kernels/matmul/int8.h",
            ["grouped_linear", *LINEAR],
        ),
        (["processor"], "cpu_kernels/processor.cc", []),
    ],
)
def test_a_file_that_no_operator_names_belongs_to_its_family(stems, path, expected):
    assert tests_of.operators_with(stems, Path(path), ROOT) == expected


def test_what_operators_share_has_tests_too():
    (run,) = tests_of.shared_tests(Path("cpu_kernels/engine/append.cc"))
    assert run == tests_of.Run(("tests/engine", "-m", "not nightly"))
    backend, kernels = tests_of.shared_tests(Path("cuda_kernels/backend.cc"))
    assert "tests/ops/test_refusals.py" in backend.arguments and not backend.env
    assert kernels.arguments == ("tests/cuda_emulated",)
    assert kernels.env == tests_of.UNMARKED


def test_an_operator_may_have_several_files_of_tests():
    run, _ = tests_of.operator_tests("attention", ROOT)
    assert "tests/ops/attention/test_attention_edges.py" in run.arguments
    run, _ = tests_of.operator_tests("gelu", ROOT)
    assert "tests/ops/activation/test_gelu_mul.py" not in run.arguments


def test_tests_of_several_operators_are_given_what_these_share():
    """A file that has no operator's name would be run for none."""
    files = sorted((ROOT / "tests" / "ops").glob("*/test_*.py"))
    names = {file.stem.removeprefix("test_"): file for file in files}
    several = {
        str(file.relative_to(ROOT))
        for name, file in names.items()
        if owner(name, tests_of.operators(ROOT)) is None
    }
    assert several <= {argument for tests in tests_of.SHARED.values() for argument in tests}


def test_patterns_are_tested_by_name_and_models_last():
    folder = Path("python/fusewheel/compiler")
    first, others, models = tests_of.pattern_tests(folder / "patterns" / "gelu_mul.py", ROOT)
    assert first.arguments == (tests_of.QUICK, "tests/compiler/test_gelu_mul.py")
    assert "tests/compiler/test_packed.py" in others.arguments
    assert models.arguments and all("models" in name for name in models.arguments)
    first, *_ = tests_of.pattern_tests(folder / "read" / "inverse_root.py", ROOT)
    assert first.arguments[:2] == (tests_of.QUICK, "tests/compiler/test_inverse_root.py")
    assert "tests/compiler/test_layer_norm.py" in first.arguments


def test_columns_are_tested_by_their_names():
    paths = files_of("columns", ROOT)
    names = [name for path in paths for name in tests_of.column_names((ROOT / path).read_text())]
    assert sorted(names) == sorted(column.name for column in COLUMNS)
    named, others = tests_of.column_tests(Path("python/fusewheel/doctor/columns/values.py"), ROOT)
    *files, option, chosen = named.arguments
    assert (*files, option) == (*tests_of.COLUMNS, "-k")
    assert "(free and threads)" in chosen and tests_of.SOUND in chosen
    assert chosen.endswith(" or (test_limits and not test_what_a_column_says)")
    assert "tests/doctor/test_check.py" in others.arguments
    assert not {*files} & {*others.arguments}
